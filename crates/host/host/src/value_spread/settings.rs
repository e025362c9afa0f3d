//! The targets of a spread, and how keys are spread over them.

use std::sync::Arc;
use std::time::Duration;

use host_core::rendezvous::TARGET_COUNT_MAX;

use crate::address::Address;
use crate::error::Error;
use crate::invalid_spread::InvalidSpread;

/// A target among which keys are spread.
#[derive(Clone, Debug)]
pub struct SpreadTarget {
    /// Where it is.
    pub address: Address,
    /// Its name, from which the targets of each key follow: the same in every program that uses them. By default
    /// `HOST:PORT/NQN`, and `?ns=NSID` if the address has it. A name keeps the keys of a target whose address changes.
    pub name: String,
    /// Its share of the keys, in proportion to the weights of the others: 1 to 65,535, by default 1.
    pub weight: u16,
}

impl SpreadTarget {
    /// A target with the default name and weight.
    #[must_use]
    pub fn new(address: Address) -> Self {
        let with_port = address.clone().with_port(address.port());
        Self { address, name: format!("{with_port:#}"), weight: 1 }
    }

    /// With another name.
    #[must_use]
    pub fn with_name(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// With another weight.
    #[must_use]
    pub fn with_weight(self, weight: u16) -> Self {
        Self { weight, ..self }
    }
}

/// How keys are spread over targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpreadOptions {
    /// How long a target may be silent while commands are outstanding, by default 1 s; and so how long a call waits at most
    /// without any progress.
    pub deadline: Duration,
    /// Whether each key has one value for ever, or none, as in a cache whose keys are hashes of their contents: then other
    /// targets take the place of lost ones. On by default; see [`ValueSpread`](crate::ValueSpread#lost-targets).
    pub is_immutable: bool,
    /// Targets that store each value, by default 1; only for immutable values.
    pub copies: u8,
}

impl Default for SpreadOptions {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(1), is_immutable: true, copies: 1 }
    }
}

impl SpreadOptions {
    /// With this deadline.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// For immutable values, or for others.
    #[must_use]
    pub fn with_immutable(self, is_immutable: bool) -> Self {
        Self { is_immutable, ..self }
    }

    /// With this number of copies.
    #[must_use]
    pub fn with_copies(self, copies: u8) -> Self {
        Self { copies, ..self }
    }
}

/// How a target is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TargetHealth {
    /// Its name.
    pub name: String,
    /// Whether it is connected.
    pub is_up: bool,
    /// How often it was lost.
    pub loss_count: u64,
    /// Why it was lost or the last attempt to connect failed, if it is not up.
    pub cause: Option<Arc<Error>>,
}

pub(super) fn check(targets: &[SpreadTarget], spread: &SpreadOptions) -> Result<(), InvalidSpread> {
    let count = targets.len();
    if !(1..=TARGET_COUNT_MAX).contains(&count) {
        return Err(InvalidSpread::TargetCount { count });
    }
    for (number, SpreadTarget { name, weight, .. }) in targets.iter().enumerate() {
        if targets[..number].iter().any(|other| other.name == *name) {
            return Err(InvalidSpread::SameName { name: name.clone() });
        }
        if *weight == 0 {
            return Err(InvalidSpread::Weight { name: name.clone() });
        }
    }
    let copies = spread.copies;
    if copies == 0 || usize::from(copies) > count {
        return Err(InvalidSpread::Copies { copies, targets: count });
    }
    if copies > 1 && !spread.is_immutable {
        return Err(InvalidSpread::MutableCopies);
    }
    if spread.deadline < Duration::from_millis(1) {
        return Err(InvalidSpread::Deadline { deadline: spread.deadline });
    }
    Ok(())
}
