//! The name by which an open object is found again when the device was started again.
//!
//! Invariant: as long as it is not known whether the name belongs to another object, the object is
//! not opened again by it.
//!
//! Threading: plain data, under the lock of its object.

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct ObjectName {
    name: String,
    /// The name that it may have instead, because a rename to it has no answer yet.
    other: Option<String>,
    hold: Hold,
}

/// Whether the object has its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// It has it.
    Kept,
    /// A change that gives the name to another object has no answer yet.
    InDoubt,
    /// Another object has the name, or none.
    Lost,
}

/// Where an object can be found.
pub(super) enum Candidates {
    /// Under one of these names.
    Names(Vec<String>),
    /// That is not known now, and will be soon.
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

    /// A rename to this name is asked for.
    pub(super) fn may_become(&mut self, name: &str) {
        self.other = Some(name.to_string());
    }

    /// The object has this name.
    pub(super) fn becomes(&mut self, name: &str) {
        self.name = name.to_string();
        self.other = None;
    }

    /// A change is asked for that gives the name to another object, or to none.
    pub(super) fn may_be_lost(&mut self) {
        self.hold = Hold::InDoubt;
    }

    /// Another object has the name, or none.
    pub(super) fn is_lost(&mut self) {
        self.hold = Hold::Lost;
    }

    /// The object kept its name after all.
    pub(super) fn is_kept(&mut self) {
        self.hold = Hold::Kept;
    }
}
