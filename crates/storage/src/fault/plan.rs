//! What goes wrong, and when: each rule counts the calls that match it.

use std::time::Duration;

use crate::error::StorageErrorKind;
use crate::op::OpKind;
use crate::prng::Prng;
use crate::runtime::Instant;

/// The calls that a rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// All calls.
    Any,
    /// Calls that change something ([`OpKind::is_change`]).
    Changes,
    /// Calls that read something ([`OpKind::is_read`]).
    Reads,
    /// Calls of one kind.
    Kind(OpKind),
}

impl Calls {
    fn include(self, kind: OpKind) -> bool {
        match self {
            Calls::Any => true,
            Calls::Changes => kind.is_change(),
            Calls::Reads => kind.is_read(),
            Calls::Kind(k) => k == kind,
        }
    }
}

/// Whether a call that gets no answer takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It does not.
    None,
    /// It does: only the answer is lost.
    Taken,
    /// A draw from this seed and the call's number decides.
    Drawn(u64),
}

impl Effect {
    /// Whether call number `call`, of this kind, takes effect. A failed append never does.
    pub(super) fn is_taken(self, kind: OpKind, call: u64) -> bool {
        let is_drawn = match self {
            Effect::None => false,
            Effect::Taken => true,
            Effect::Drawn(seed) => Prng::new(seed ^ call).below(2) == 1,
        };
        is_drawn && kind != OpKind::Append
    }
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call fails and has no effect. A sync (of bytes or names) that fails this way *loses*
    /// what it should have made durable: it is still visible, but no later sync saves it, as with a
    /// kernel whose write-back failed.
    Fail(StorageErrorKind),
    /// The call takes effect and fails nevertheless: a lost reply, or an error after the effect.
    FailAfter(StorageErrorKind),
    /// An append writes this many per mille of its bytes before it fails. Other calls fail without
    /// an effect.
    ShortAppend {
        /// The part of the bytes that is written, 0 to 1000.
        per_mille: u32,
        /// The error that is reported.
        kind: StorageErrorKind,
    },
    /// A read fills a part of the buffer and fails with `UnexpectedEof`. Other calls are not
    /// affected.
    ShortRead,
    /// A read or a map returns the byte at this offset of the object with these bits flipped.
    FlipAt {
        /// Byte offset in the object.
        offset: u64,
        /// Bits to flip.
        mask: u8,
    },
    /// A read of any of these bytes of the object fails with `Io`, as a read of a bad sector does.
    /// Other reads, and maps, are not affected.
    Unreadable {
        /// Offset of the first byte in the object.
        start: u64,
        /// Offset after the last byte.
        end: u64,
    },
    /// A read or a map returns its bytes with one bit flipped. The seed and the call's number
    /// choose it.
    FlipRandom {
        /// Chooses the bit.
        seed: u64,
    },
    /// A map shows zeros and is marked as failed.
    FailedMap,
    /// The call panics before it has any effect, like a bug in the storage below.
    Panic,
    /// The caller's simulated process dies before the call has any effect
    /// ([`Runtime::die`](crate::Runtime::die)).
    Die,
    /// The call first sleeps for this long, on the runtime's clock.
    Delay(Duration),
    /// The storage cannot be reached: the call waits for its time limit and fails as
    /// `Unreachable`, as one of a client across a link does. If the rule ends before the time limit
    /// ([`Rule::until`]), the call is then made and does not fail. A failed sync loses nothing. A
    /// creation, and a lease, that took effect is undone at once, because nobody waits for it.
    Unreachable {
        /// The time limit of the call, on the runtime's clock.
        limit: Duration,
        /// Whether the call takes effect even so.
        effect: Effect,
    },
}

/// How often a rule fires once it has reached its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// For one call.
    Once,
    /// For this many calls.
    Times(u64),
    /// For this call and all that follow.
    ForGood,
}

/// A fault and the calls that it hits: the `nth` matching call (from 0).
///
/// ```
/// use siltstone_storage::fault::{Fault, Rule};
/// use siltstone_storage::{OpKind, StorageErrorKind};
/// let rule = Rule::on(OpKind::Sync, Fault::Fail(StorageErrorKind::Io))
///     .named("000007")
///     .nth(2)
///     .for_good();
/// # let _ = rule;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The calls that it counts.
    pub calls: Calls,
    /// Only calls on objects whose names start with this. Calls without a name have the name `""`.
    pub name_prefix: String,
    /// Only calls on objects whose names end with this.
    pub name_suffix: String,
    /// The number (from 0) of the first matching call that fails.
    pub nth: u64,
    /// How often it fires.
    pub repeat: Repeat,
    /// It neither counts nor fires from this time on, on the runtime's clock.
    pub until: Option<Instant>,
    /// The fault that it injects.
    pub fault: Fault,
}

impl Rule {
    fn new(calls: Calls, fault: Fault) -> Rule {
        Rule {
            calls,
            name_prefix: String::new(),
            name_suffix: String::new(),
            nth: 0,
            repeat: Repeat::Once,
            until: None,
            fault,
        }
    }

    /// A rule for calls of one kind.
    pub fn on(kind: OpKind, fault: Fault) -> Rule {
        Rule::new(Calls::Kind(kind), fault)
    }

    /// A rule for calls that change something.
    pub fn on_changes(fault: Fault) -> Rule {
        Rule::new(Calls::Changes, fault)
    }

    /// A rule for calls that read something.
    pub fn on_reads(fault: Fault) -> Rule {
        Rule::new(Calls::Reads, fault)
    }

    /// A rule for all calls.
    pub fn on_any(fault: Fault) -> Rule {
        Rule::new(Calls::Any, fault)
    }

    /// Restricts the rule to objects whose names start with `prefix`.
    pub fn named(mut self, prefix: impl Into<String>) -> Rule {
        self.name_prefix = prefix.into();
        self
    }

    /// Restricts the rule to objects whose names end with `suffix`.
    pub fn ending(mut self, suffix: impl Into<String>) -> Rule {
        self.name_suffix = suffix.into();
        self
    }

    /// Fires first for the `n`-th (from 0) matching call.
    pub fn nth(mut self, n: u64) -> Rule {
        self.nth = n;
        self
    }

    /// Fires for this many calls.
    pub fn times(mut self, count: u64) -> Rule {
        self.repeat = Repeat::Times(count);
        self
    }

    /// Fires for this call and all that follow.
    pub fn for_good(mut self) -> Rule {
        self.repeat = Repeat::ForGood;
        self
    }

    /// Neither counts nor fires from this time on, on the runtime's clock.
    pub fn until(mut self, end: Instant) -> Rule {
        self.until = Some(end);
        self
    }

    /// Whether this fault can affect a call of this kind. Only such calls are counted.
    fn affects(&self, kind: OpKind) -> bool {
        match self.fault {
            Fault::ShortRead | Fault::Unreadable { .. } => kind == OpKind::Read,
            Fault::FlipAt { .. } | Fault::FlipRandom { .. } => {
                matches!(kind, OpKind::Read | OpKind::Map)
            }
            Fault::FailedMap => kind == OpKind::Map,
            Fault::Fail(_)
            | Fault::FailAfter(_)
            | Fault::ShortAppend { .. }
            | Fault::Unreachable { .. } => {
                // These calls cannot report an error.
                !matches!(
                    kind,
                    OpKind::FreeBytes | OpKind::StartWriteback | OpKind::Advise
                )
            }
            Fault::Delay(_) | Fault::Panic | Fault::Die => true,
        }
    }
}

/// A rule and its counters.
#[derive(Debug)]
pub(super) struct RuleState {
    pub(super) rule: Rule,
    seen: u64,
    pub(super) fired: u64,
}

impl RuleState {
    pub(super) fn new(rule: Rule) -> RuleState {
        RuleState {
            rule,
            seen: 0,
            fired: 0,
        }
    }

    /// Counts the call if it matches. Returns whether the rule fires for it.
    pub(super) fn fires(&mut self, kind: OpKind, name: &str, now: Instant) -> bool {
        let rule = &self.rule;
        if rule.until.is_some_and(|end| now >= end) {
            return false;
        }
        let named = name.starts_with(&rule.name_prefix) && name.ends_with(&rule.name_suffix);
        if !rule.calls.include(kind) || !rule.affects(kind) || !named {
            return false;
        }
        let number = self.seen;
        self.seen += 1;
        let last = match rule.repeat {
            Repeat::Once => rule.nth,
            Repeat::Times(0) => return false,
            Repeat::Times(count) => rule.nth.saturating_add(count - 1),
            Repeat::ForGood => u64::MAX,
        };
        let fires = (rule.nth..=last).contains(&number);
        self.fired += u64::from(fires);
        fires
    }
}
