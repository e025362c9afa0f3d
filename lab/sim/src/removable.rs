//! A namespace that the operator removes and adds again: the results that commands in it may have, and when.
//!
//! ```text
//! Configured ──removed──▶ Leaving ──released──▶ Away ──returned──▶ Configured
//! ```
//!
//! From the order to remove it until every reactor has released it, a command may find it or not. Then none may, until
//! it is added again. Once everything is calm, all must.

use host_core::Failure;
use wire::status::Status;

use crate::finding::Finding;

/// The namespace as the operator knows it.
#[derive(Debug, Default)]
pub(crate) struct Removable {
    state: State,
    /// When it was first removed: no command that ended before may report it as missing.
    removed_ns: Option<u64>,
    /// Since when all reactors have it again.
    back_ns: Option<u64>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Configured,
    Leaving {
        returns: bool,
    },
    Away {
        since_ns: u64,
        returns: bool,
    },
}

impl Removable {
    /// Whether it is there, or to be.
    pub(crate) fn is_configured(&self) -> bool {
        matches!(self.state, State::Configured)
    }

    /// Its state in a word.
    pub(crate) fn name(&self) -> &'static str {
        match self.state {
            State::Configured => "configured",
            State::Leaving { .. } => "leaving",
            State::Away { .. } => "away",
        }
    }

    /// Whether a command that began at `begin_ns` may have missed it: it was not there, or not on all reactors yet.
    pub(crate) fn was_missing(&self, begin_ns: u64) -> bool {
        self.removed_ns.is_some() && self.back_ns.is_none_or(|back_ns| begin_ns <= back_ns)
    }

    /// Whether it will be added again.
    pub(crate) fn is_to_return(&self) -> bool {
        matches!(self.state, State::Leaving { returns: true } | State::Away { returns: true, .. })
    }

    /// Its removal is ordered.
    pub(crate) fn on_removed(&mut self, now_ns: u64, returns: bool) {
        self.removed_ns.get_or_insert(now_ns);
        self.back_ns = None;
        self.state = State::Leaving { returns };
    }

    /// The target has ended, so it is idle.
    pub(crate) fn on_target_down(&mut self, now_ns: u64) {
        self.on_released(now_ns);
    }

    /// No reactor uses it any more.
    pub(crate) fn on_released(&mut self, now_ns: u64) {
        if let State::Leaving { returns } = self.state {
            self.state = State::Away { since_ns: now_ns, returns };
        }
    }

    /// Since when it is idle.
    pub(crate) fn away_since_ns(&self) -> Option<u64> {
        if let State::Away { since_ns, .. } = self.state { Some(since_ns) } else { None }
    }

    /// It is added again.
    pub(crate) fn on_returned(&mut self) {
        self.state = State::Configured;
    }

    /// All reactors have it again by this time, if it was added.
    pub(crate) fn on_back(&mut self, back_ns: u64) {
        if self.is_configured() {
            self.back_ns = Some(back_ns);
        }
    }

    /// Whether a command that began at `begin_ns` may have had this result.
    pub(crate) fn judge(&self, begin_ns: u64, result: Result<u64, Failure>) -> Result<(), Finding> {
        match (result, &self.state) {
            (Ok(_), State::Away { since_ns, .. }) if begin_ns > *since_ns => {
                Err("succeeded in a namespace that every reactor had released".into())
            }
            (Err(Failure::Status(status)), _)
                if status.is(Status::INVALID_NAMESPACE) && self.removed_ns.is_none() =>
            {
                Err("did not find a namespace that was never removed".into())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_namespace_serves_no_command() {
        let missing = Err(Failure::Status(Status::INVALID_NAMESPACE));
        let mut removable = Removable::default();
        assert!(removable.judge(5, Ok(0)).is_ok() && removable.judge(5, missing).is_err());
        removable.on_removed(10, true);
        assert!(removable.judge(5, missing).is_ok() && removable.judge(11, Ok(0)).is_ok());
        assert_eq!(removable.away_since_ns(), None);
        removable.on_released(30);
        assert!(removable.judge(25, Ok(0)).is_ok(), "it began before");
        assert!(removable.judge(31, Ok(0)).is_err() && removable.judge(31, missing).is_ok());
        removable.on_returned();
        assert!(removable.judge(40, Ok(0)).is_ok() && removable.is_configured());
        assert!(removable.was_missing(45), "not on all reactors yet");
        removable.on_back(50);
        assert!(removable.was_missing(50) && !removable.was_missing(51));
        removable.on_removed(60, false);
        assert!(removable.was_missing(61));
    }
}
