//! Sizes for people to read.

use std::fmt;

/// Bytes, with three digits and a binary unit: `1.50 GiB`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HumanSize(pub(crate) u128);

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

impl fmt::Display for HumanSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut unit = 0;
        let mut scale: u128 = 1;
        while self.0 / scale >= 1024 && unit + 1 < UNITS.len() {
            (unit, scale) = (unit + 1, scale * 1024);
        }
        let whole = self.0 / scale;
        let hundredths = (self.0 % scale) * 100 / scale;
        let text = match (whole, hundredths) {
            (_, 0) => format!("{whole} {}", UNITS[unit]),
            (100.., _) => format!("{whole} {}", UNITS[unit]),
            (10..100, _) => format!("{whole}.{} {}", hundredths / 10, UNITS[unit]),
            _ => format!("{whole}.{hundredths:02} {}", UNITS[unit]),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits_and_a_unit() {
        let cases: [(u128, &str); 8] = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.50 KiB"),
            (64 << 20, "64 MiB"),
            ((10 << 30) + (1 << 29), "10.5 GiB"),
            ((100 << 30) + (1 << 29), "100 GiB"),
            (u128::from(u64::MAX), "15.9 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(HumanSize(bytes).to_string(), text);
        }
    }
}
