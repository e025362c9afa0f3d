//! The zero-copy threshold: decides which caravans are sent without a copy, for both ends of a queue pair.
//! docs/design/socket-path.md
//!
//! If a packet does not leave the machine, the kernel copies it after all and reports that in its notices, which costs
//! more than a copy at once. The decision is therefore made for each connection, by its route and its notices.
//! [`bytes_min`] is pure; [`Threshold`] is the state of one connection for it.

use std::fmt;
use std::str::FromStr;

/// Least size of a caravan sent without a copy where that may pay, bytes.
pub const AUTO_BYTES_MIN: u32 = 64 << 10;

/// Copied sends in a row after which a connection gives up zero-copy.
pub const COPIED_COUNT_MAX: u32 = 4;

/// Whether caravans are sent without a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Never.
    Off,
    /// Caravans of this size and more, bytes, even if the kernel copies them.
    From(u32),
    /// From [`AUTO_BYTES_MIN`] on, where packets leave the machine, until the kernel has reported a few times that it
    /// copied anyway.
    #[default]
    Auto,
}

/// The error for an unknown policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown zero-copy policy {0:?}: write off, auto, or a least size, such as 64K")]
pub struct UnknownPolicy(String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            _ => size(text).map(Self::From).ok_or_else(|| UnknownPolicy(text.to_owned())),
        }
    }
}

/// Bytes, with or without K or M behind the number; not 0.
fn size(text: &str) -> Option<u32> {
    let (digits, factor) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1 << 10),
        None => text.strip_suffix(['m', 'M']).map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let count = digits.parse::<u32>().ok().filter(|count| is_number && *count > 0)?;
    count.checked_mul(factor)
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Off => f.write_str("off"),
            Self::Auto => f.write_str("auto"),
            Self::From(bytes) if bytes.trailing_zeros() >= 20 => write!(f, "{}M", bytes >> 20),
            Self::From(bytes) if bytes.trailing_zeros() >= 10 => write!(f, "{}K", bytes >> 10),
            Self::From(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// Least size of a caravan that a connection sends without a copy, bytes; `None` for never. `is_local`: its packets are
/// known to stay on this machine. `copied_count`: its last sends in a row that the kernel copied anyway.
#[must_use]
pub fn bytes_min(policy: Policy, is_local: bool, copied_count: u32) -> Option<u32> {
    match policy {
        Policy::Off => None,
        Policy::From(bytes) => Some(bytes),
        Policy::Auto => (!is_local && copied_count < COPIED_COUNT_MAX).then_some(AUTO_BYTES_MIN),
    }
}

/// The zero-copy threshold of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    policy: Policy,
    is_local: bool,
    copied_count: u32,
    bytes: usize,
}

impl Threshold {
    /// No caravan.
    pub const NEVER: Self = Self { policy: Policy::Off, is_local: true, copied_count: 0, bytes: usize::MAX };

    /// For a new connection.
    #[must_use]
    pub fn new(policy: Policy, is_local: bool) -> Self {
        let mut threshold = Self { policy, is_local, ..Self::NEVER };
        threshold.decide();
        threshold
    }

    fn decide(&mut self) {
        let bytes = bytes_min(self.policy, self.is_local, self.copied_count);
        self.bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX);
    }

    /// Whether a send of `bytes` goes without a copy.
    #[inline]
    #[must_use]
    pub fn takes(&self, bytes: usize) -> bool {
        bytes >= self.bytes
    }

    /// Whether any send may go without a copy.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.bytes < usize::MAX
    }

    /// The kernel has reported for `count` sends whether it copied them. Returns whether the connection now gives up
    /// zero-copy.
    pub fn on_notice(&mut self, send_count: u32, is_copied: bool) -> bool {
        let was_on = self.is_on();
        self.copied_count = if is_copied { self.copied_count.saturating_add(send_count) } else { 0 };
        // Late notices do not undo that.
        if was_on {
            self.decide();
        }
        was_on && !self.is_on()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read_back() {
        for text in ["off", "auto", "1", "1000", "16K", "1M", "96K", "4095M"] {
            assert_eq!(text.parse::<Policy>().unwrap().to_string(), text);
        }
        assert_eq!("64k".parse(), Ok(Policy::From(64 << 10)));
        for text in ["", "on", "0", "K", "-1", "+1", "1G", "4096M", "64KB", "1.5M"] {
            assert!(text.parse::<Policy>().is_err(), "{text}");
        }
    }

    #[test]
    fn loopback_never_pays_for_it_unless_it_is_told_to() {
        for copied_count in [0, COPIED_COUNT_MAX, u32::MAX] {
            assert_eq!(bytes_min(Policy::Auto, true, copied_count), None);
            for is_local in [false, true] {
                assert_eq!(bytes_min(Policy::Off, is_local, copied_count), None);
                assert_eq!(bytes_min(Policy::From(5), is_local, copied_count), Some(5));
            }
        }
        assert!(!Threshold::NEVER.takes(usize::MAX - 1));
    }

    #[test]
    fn a_few_copies_in_a_row_end_it() {
        let mut threshold = Threshold::new(Policy::Auto, false);
        let bytes = AUTO_BYTES_MIN as usize;
        assert!(threshold.takes(bytes) && !threshold.takes(bytes - 1));
        for _ in 0..3 {
            assert!(!threshold.on_notice(COPIED_COUNT_MAX - 1, true));
            assert!(!threshold.on_notice(1, false), "one that was not copied");
        }
        assert!(!threshold.on_notice(COPIED_COUNT_MAX - 1, true));
        assert!(threshold.on_notice(1, true));
        assert!(!threshold.is_on() && !threshold.takes(usize::MAX - 1));
        assert!(!threshold.on_notice(1, false) && !threshold.is_on(), "for good");
    }

    proptest! {
        /// Whatever the kernel says: a size that was given stays, and the rule goes by the last copies in a row.
        #[test]
        fn the_rule_is_what_is_remembered(notices in proptest::collection::vec((1u32..9, any::<bool>()), 0..30)) {
            let (mut auto, mut given) =
                (Threshold::new(Policy::Auto, false), Threshold::new(Policy::From(9), true));
            let (mut copied_count, mut is_over) = (0, false);
            for (count, is_copied) in notices {
                auto.on_notice(count, is_copied);
                prop_assert!(!given.on_notice(count, is_copied));
                copied_count = if is_copied { copied_count + count } else { 0 };
                is_over |= copied_count >= COPIED_COUNT_MAX;
                prop_assert_eq!(auto.is_on(), !is_over);
                prop_assert!(given.takes(9) && !given.takes(8));
            }
        }
    }
}
