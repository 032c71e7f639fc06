//! The name by which an open object is found again after the device was restarted.
//!
//! Invariant: while it is not known whether the name belongs to another object, the object is not
//! opened again under that name.
//!
//! Threading: plain data, under the lock of its object.

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct ObjectName {
    name: String,
    /// The name that the object may have instead, because a rename to it has no answer yet.
    other: Option<String>,
    hold: Hold,
}

/// Whether the object still has its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// The object has its name.
    Kept,
    /// A change that gives the name to another object has no answer yet.
    InDoubt,
    /// Another object has the name, or no object has it.
    Lost,
}

/// Where an object can be found.
pub(super) enum Candidates {
    /// Under one of these names.
    Names(Vec<String>),
    /// This is not known now, but will be known soon.
    InDoubt,
    /// Nowhere.
    Lost,
}

impl ObjectName {
    pub(super) fn new(name: &str) -> ObjectName {
        ObjectName {
            name: name.to_string(),
            other: None,
            hold: Hold::Kept,
        }
    }

    /// The name, for messages.
    pub(super) fn text(&self) -> &str {
        &self.name
    }

    /// Whether this is the object's name.
    pub(super) fn is(&self, name: &str) -> bool {
        self.hold != Hold::Lost && self.name == name
    }

    /// Where the object can be found.
    pub(super) fn candidates(&self) -> Candidates {
        match self.hold {
            Hold::Kept => {
                let names = [Some(self.name.clone()), self.other.clone()];
                Candidates::Names(names.into_iter().flatten().collect())
            }
            Hold::InDoubt => Candidates::InDoubt,
            Hold::Lost => Candidates::Lost,
        }
    }

    /// Notes that a rename to this name was requested.
    pub(super) fn may_become(&mut self, name: &str) {
        self.other = Some(name.to_string());
    }

    /// Notes that the object has this name now.
    pub(super) fn becomes(&mut self, name: &str) {
        self.name = name.to_string();
        self.other = None;
    }

    /// Notes that a change was requested that gives the name to another object, or to none.
    pub(super) fn may_be_lost(&mut self) {
        self.hold = Hold::InDoubt;
    }

    /// Notes that another object has the name, or no object has it.
    pub(super) fn is_lost(&mut self) {
        self.hold = Hold::Lost;
    }

    /// Notes that the object has kept its name.
    pub(super) fn is_kept(&mut self) {
        self.hold = Hold::Kept;
    }
}
