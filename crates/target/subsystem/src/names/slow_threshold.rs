//! From which time on a command is logged as slow.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

/// Least threshold, us: below it, the log would have every command.
const US_MIN: u64 = 10;

/// Greatest threshold, us: an hour.
const US_MAX: u64 = 3_600_000_000;

/// Units of time, us, largest first.
const UNITS: [(&str, u64); 3] = [("s", 1_000_000), ("ms", 1000), ("us", 1)];

/// The time in the target from which on a command is logged as slow; off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowThreshold(Option<NonZeroU64>);

impl SlowThreshold {
    /// No command is logged.
    pub const OFF: Self = Self(None);

    /// The threshold, ns; `u64::MAX` if it is off.
    #[must_use]
    pub fn ns(self) -> u64 {
        self.0.map_or(u64::MAX, |us| us.get().saturating_mul(1000))
    }

    /// Whether slow commands are logged.
    #[must_use]
    pub fn is_on(self) -> bool {
        self.0.is_some()
    }
}

impl FromStr for SlowThreshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if matches!(text, "off" | "0") {
            return Ok(Self::OFF);
        }
        let digits = text.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
        let us =
            number.parse::<u64>().ok().zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
        match us.and_then(NonZeroU64::new).filter(|us| (US_MIN..=US_MAX).contains(&us.get())) {
            Some(us) => Ok(Self(Some(us))),
            None => Err(format!(
                "\"{text}\" is no threshold: write a time from 10us to 3600s, such as 10ms, or off"
            )),
        }
    }
}

impl fmt::Display for SlowThreshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(us) = self.0 else { return f.write_str("off") };
        let (unit, factor) =
            UNITS.iter().find(|(_, factor)| us.get().is_multiple_of(*factor)).unwrap_or(&("us", 1));
        write!(f, "{}{unit}", us.get() / factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_a_time_with_its_unit_or_off() {
        for (text, ns) in
            [("10us", 10_000), ("10ms", 10_000_000), ("1500us", 1_500_000), ("3600s", 3_600_000_000_000)]
        {
            let threshold: SlowThreshold = text.parse().expect(text);
            assert_eq!((threshold.ns(), threshold.to_string().as_str(), threshold.is_on()), (ns, text, true));
        }
        assert_eq!("2000ms".parse::<SlowThreshold>().expect("a time").to_string(), "2s");
        for text in ["off", "0"] {
            assert_eq!(text.parse(), Ok(SlowThreshold::OFF));
        }
        assert_eq!((SlowThreshold::OFF.ns(), SlowThreshold::OFF.to_string()), (u64::MAX, "off".to_owned()));
        for text in ["", "10", "ms", "9us", "3601s", "-1ms", "1.5ms", "10 ms", "18446744073709551615s", "10m"]
        {
            let error = text.parse::<SlowThreshold>().expect_err(text);
            assert!(error.contains("such as 10ms, or off"), "{error}");
        }
    }
}
