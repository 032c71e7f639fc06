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

    /// Whether a caller who names an object may mean this one: it has this name, or it had it until
    /// another object got it, or a rename to it has no answer yet.
    pub(super) fn may_be(&self, name: &str) -> bool {
        self.name == name || self.other.as_deref() == Some(name)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_may_be_meant_by_each_name_that_it_may_have() {
        let mut own = ObjectName::new("old");
        assert!(own.may_be("old") && !own.may_be("new"));
        own.may_become("new");
        assert!(own.may_be("old") && own.may_be("new"));
        assert!(own.is("old") && !own.is("new"));
        own.becomes("new");
        assert!(own.may_be("new") && !own.may_be("old"));
        // Somebody may still read the object.
        own.is_lost();
        assert!(own.may_be("new") && !own.is("new"));
    }
}
