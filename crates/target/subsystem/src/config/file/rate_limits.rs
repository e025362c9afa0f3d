//! The keys of rate limits, which a namespace and a host have alike.

use config_file::RawSize;
use store::Size;
use toml::Spanned;

use super::Reader;
use crate::config::ConfigPlace;
use crate::objects::rate_limit::RateLimits;

/// The least limit of bytes per second.
const BYTES_PER_S_MIN: u64 = 64 << 10;

/// The longest burst, ms.
const BURST_MS_MAX: u32 = 10_000;

/// The keys as they are written.
pub(super) struct RawRates {
    pub(super) numbers: [(&'static str, Option<Spanned<u64>>); 4],
    pub(super) sizes: [(&'static str, Option<Spanned<RawSize>>); 3],
    pub(super) burst_ms: Option<Spanned<u32>>,
}

/// Takes the keys out of a table.
macro_rules! rates {
    ($raw:ident) => {
        rate_limits::RawRates {
            numbers: [
                ("iops", $raw.iops),
                ("read_iops", $raw.read_iops),
                ("write_iops", $raw.write_iops),
                ("min_iops", $raw.min_iops),
            ],
            sizes: [
                ("bytes_per_s", $raw.bytes_per_s),
                ("read_bytes_per_s", $raw.read_bytes_per_s),
                ("write_bytes_per_s", $raw.write_bytes_per_s),
            ],
            burst_ms: $raw.burst_ms,
        }
    };
}
pub(super) use rates;

impl Reader<'_> {
    /// The rate limits of a table. Their positions are kept where they have a place.
    pub(super) fn rate_limits(
        &mut self,
        raw: RawRates,
        place: impl Fn(&'static str) -> Option<ConfigPlace>,
    ) -> RateLimits {
        let RawRates { numbers, sizes, burst_ms } = raw;
        let [iops, read_iops, write_iops, min_iops] = numbers.map(|(key, number)| {
            let number = number?;
            self.spans.extend(place(key).map(|place| (place, number.span())));
            if *number.get_ref() == 0 {
                self.wrong(
                    number.span(),
                    format!("{key} is 0: take 1 or more, or leave it out for no limit"),
                );
            }
            Some(number.into_inner())
        });
        if let (Some(iops), Some(least)) = (iops, min_iops)
            && least > iops
        {
            let message = format!("min_iops is {least}, and iops only {iops}: take no more than that");
            let span = place("min_iops").and_then(|place| self.spans.get(&place).cloned());
            self.errors.push(self.source.error(span, message));
        }
        let [bytes_per_s, read_bytes_per_s, write_bytes_per_s] = sizes.map(|(key, size)| {
            let size = size?;
            self.spans.extend(place(key).map(|place| (place, size.span())));
            let bytes = self.size(&size)?;
            if bytes < BYTES_PER_S_MIN {
                let least = Size(BYTES_PER_S_MIN);
                let message =
                    format!("{key} is {}: take {least} or more, or leave it out for no limit", Size(bytes));
                self.wrong(size.span(), message);
            }
            Some(bytes)
        });
        let has_limit = [iops, read_iops, write_iops, bytes_per_s, read_bytes_per_s, write_bytes_per_s];
        let burst_ms = burst_ms.map(|burst_ms| {
            if has_limit.iter().all(Option::is_none) {
                self.wrong(
                    burst_ms.span(),
                    "burst_ms is that of a limit: add one, such as iops, or leave it out",
                );
            }
            let given = *burst_ms.get_ref();
            if !(1..=BURST_MS_MAX).contains(&given) {
                self.wrong(burst_ms.span(), format!("burst_ms is {given}: take 1 to {BURST_MS_MAX}"));
            }
            given
        });
        RateLimits {
            iops,
            read_iops,
            write_iops,
            bytes_per_s,
            read_bytes_per_s,
            write_bytes_per_s,
            burst_ms,
            min_iops,
        }
    }
}
