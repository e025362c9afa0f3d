//! Doorbell policies of `--doorbell`: one for all lanes, or by class, in the form of `--queues`.

use std::fmt;
use std::str::FromStr;

use host::{DoorbellPolicy, LaneClass, QueueMap};

/// Doorbell policy by class of lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Doorbells {
    /// Of the default class, and of classes without a policy of their own.
    pub(crate) default: DoorbellPolicy,
    /// Of read lanes.
    pub(crate) read: Option<DoorbellPolicy>,
    /// Of poll lanes.
    pub(crate) poll: Option<DoorbellPolicy>,
}

impl Doorbells {
    /// A class with a policy here but no lanes in `queues`.
    pub(crate) fn lacking(self, queues: Option<QueueMap>) -> Option<LaneClass> {
        let named = [(LaneClass::Read, self.read), (LaneClass::Poll, self.poll)];
        let lacks = |class| queues.is_none_or(|queues| queues.of(class) == 0);
        named.into_iter().find(|(class, policy)| policy.is_some() && lacks(*class)).map(|(class, _)| class)
    }
}

impl FromStr for Doorbells {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let policy = |text: &str| text.parse::<DoorbellPolicy>().map_err(|error| error.to_string());
        if !text.contains('=') {
            return Ok(Self { default: policy(text)?, ..Self::default() });
        }
        let mut doorbells = Self::default();
        let mut rest = text;
        while !rest.is_empty() {
            let (name, behind) = rest.split_once('=').ok_or_else(|| unknown(text))?;
            // Policies contain commas too: this one ends before the next class name.
            let end = behind.find('=').map_or(Some(behind.len()), |next| behind[..next].rfind(','));
            let end = end.ok_or_else(|| unknown(text))?;
            let policy = policy(&behind[..end])?;
            match name {
                "default" => doorbells.default = policy,
                "read" => doorbells.read = Some(policy),
                "poll" => doorbells.poll = Some(policy),
                _ => return Err(unknown(text)),
            }
            rest = behind[end..].strip_prefix(',').unwrap_or("");
        }
        Ok(doorbells)
    }
}

fn unknown(text: &str) -> String {
    format!(
        "{text:?}: write a policy, or policies by class, such as default=adaptive,read=immediate,poll=turn"
    )
}

impl fmt::Display for Doorbells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if (self.read, self.poll) == (None, None) {
            return self.default.fmt(f);
        }
        write!(f, "default={}", self.default)?;
        let named = [(LaneClass::Read, self.read), (LaneClass::Poll, self.poll)];
        named
            .into_iter()
            .filter_map(|(class, policy)| policy.map(|policy| (class, policy)))
            .try_for_each(|(class, policy)| write!(f, ",{class}={policy}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_policy_or_some_by_class() {
        let all = |default| Doorbells { default, ..Doorbells::default() };
        assert_eq!("turn".parse(), Ok(all(DoorbellPolicy::Turn)));
        assert_eq!("fixed:1,2,3".parse::<Doorbells>().map(|all| all.to_string()), Ok("fixed:1,2,3".into()));
        let text = "default=fixed:16,65536,50,read=immediate,poll=adaptive:30";
        let doorbells: Doorbells = text.parse().expect("good policies");
        assert_eq!(doorbells.default, DoorbellPolicy::FIXED);
        assert_eq!(doorbells.read, Some(DoorbellPolicy::Immediate));
        assert_eq!(doorbells.poll, Some(DoorbellPolicy::Adaptive { goal_ns: 30_000 }));
        assert_eq!(doorbells.to_string(), text);
        let read: Doorbells = "read=fixed:1,2,3".parse().expect("a good policy");
        assert_eq!((read.default, read.poll), (DoorbellPolicy::default(), None));
        for text in ["", "sometimes", "admin=turn", "read=", "read=turn,", "read=turn,poll", "read=poll=turn"]
        {
            assert!(text.parse::<Doorbells>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_class_without_lanes_needs_no_policy() {
        let doorbells: Doorbells = "read=turn".parse().expect("a good policy");
        assert_eq!(doorbells.lacking(None), Some(LaneClass::Read));
        assert_eq!(doorbells.lacking("default=1,poll=1".parse().ok()), Some(LaneClass::Read));
        assert_eq!(doorbells.lacking("default=1,read=1".parse().ok()), None);
        assert_eq!(Doorbells::default().lacking(None), None);
    }
}
