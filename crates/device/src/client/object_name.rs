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
    /// The object has no name any more, or another one has it, or that is being asked for.
    is_given_up: bool,
}

impl ObjectName {
    pub(super) fn new(name: &str) -> ObjectName {
        ObjectName {
            name: name.to_string(),
            other: None,
            is_given_up: false,
        }
    }

    /// The name, for messages.
    pub(super) fn text(&self) -> &str {
        &self.name
    }

    /// Whether this is the object's name.
    pub(super) fn is(&self, name: &str) -> bool {
        !self.is_given_up && self.name == name
    }

    /// The names under which the object can be, or `None` if it cannot be opened again.
    pub(super) fn candidates(&self) -> Option<Vec<String>> {
        let names = || [Some(self.name.clone()), self.other.clone()];
        (!self.is_given_up).then(|| names().into_iter().flatten().collect())
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

    /// The name goes to another object, or to none.
    pub(super) fn give_up(&mut self) {
        self.is_given_up = true;
    }

    /// The object kept its name after all.
    pub(super) fn take_back(&mut self) {
        self.is_given_up = false;
    }
}
