//! Rates as people write them: `10Gbit`, `500Mbit`, `2.5G`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A rate of bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate(u64);

/// A text that is no rate.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no rate: a number and a unit such as 10Gbit, 500Mbit or 64kbit")]
pub struct RateError(String);

const UNITS: [(&str, u64); 5] =
    [("T", 1_000_000_000_000), ("G", 1_000_000_000), ("M", 1_000_000), ("k", 1_000), ("", 1)];

impl Rate {
    /// A rate of `bits` bits per second.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Bits per second.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Bytes per second, the kernel's unit.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.0 / 8
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let error = || RateError(text.to_owned());
        let number_length =
            text.find(|sign: char| !sign.is_ascii_digit() && sign != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(number_length);
        let unit = unit.to_ascii_lowercase();
        let prefix = unit.strip_suffix("bit").or(unit.strip_suffix("bps")).unwrap_or(&unit);
        let (_, factor) =
            UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(prefix)).ok_or_else(error)?;
        if unit.is_empty() && number != "0" {
            return Err(error()); // "10" may mean anything.
        }
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let mut bits =
            whole.parse::<u64>().ok().and_then(|whole| whole.checked_mul(*factor)).ok_or_else(error)?;
        let mut digit_value = *factor;
        for digit in fraction.chars() {
            digit_value /= 10;
            let digit = digit.to_digit(10).ok_or_else(error)?;
            bits = bits.checked_add(u64::from(digit) * digit_value).ok_or_else(error)?;
        }
        Ok(Self(bits))
    }
}

impl TryFrom<String> for Rate {
    type Error = RateError;

    fn try_from(text: String) -> Result<Self, RateError> {
        text.parse()
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        rate.to_string()
    }
}

impl fmt::Display for Rate {
    /// The largest unit without a fraction, as `tc` reads it.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, factor) = UNITS
            .iter()
            .find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor))
            .unwrap_or(&("", 1));
        if self.0 == 0 { write!(formatter, "0") } else { write!(formatter, "{}{name}bit", self.0 / factor) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_written() {
        for (text, bits, written) in [
            ("10Gbit", 10_000_000_000, "10Gbit"),
            ("2.5G", 2_500_000_000, "2500Mbit"),
            ("500mbit", 500_000_000, "500Mbit"),
            ("64kbps", 64_000, "64kbit"),
            ("1bit", 1, "1bit"),
            ("0", 0, "0"),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!((rate.bits(), rate.to_string().as_str()), (bits, written));
            assert_eq!(rate.to_string().parse(), Ok(rate));
        }
    }

    #[test]
    fn a_rate_needs_a_unit() {
        for text in ["", "10", "G", "10Xbit", "-1Gbit", "99999999999Gbit", "1.2.3Gbit", "1e9"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }
}
