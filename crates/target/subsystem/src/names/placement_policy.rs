//! How an I/O lane gets its reactor, as the operator chooses it. docs/design/placement.md

use std::fmt;
use std::str::FromStr;

/// A placement policy: how an I/O lane gets its reactor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlacementPolicy {
    /// The least loaded reactor.
    #[default]
    Load,
    /// One reactor for all lanes that come in through the same device queue, so that it alone polls that queue.
    Napi,
    /// The reactor on the core that receives the lane's packets.
    Cpu,
    /// Queue n of each controller goes to reactor n - 1, modulo the number of reactors.
    Queue,
}

impl PlacementPolicy {
    /// All policies, in the order of their documentation.
    pub const ALL: [Self; 4] = [Self::Load, Self::Napi, Self::Cpu, Self::Queue];

    /// The name of the policy.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Napi => "napi",
            Self::Cpu => "cpu",
            Self::Queue => "queue",
        }
    }
}

impl fmt::Display for PlacementPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error for an unknown policy name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no placement policy: write load, napi, cpu or queue")]
pub struct UnknownPolicy(String);

impl FromStr for PlacementPolicy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for policy in PlacementPolicy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert!("numa".parse::<PlacementPolicy>().is_err());
    }
}
