//! Requests of a cache: generated, or of a recorded trace.

use std::collections::HashMap;
use std::path::Path;

use load::random::Prng;

use crate::error::{Doing, Error};

/// A request for a key; a miss stores its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Its number.
    pub(crate) at: u32,
    pub(crate) key: u32,
    /// Bytes of its value.
    pub(crate) bytes: u32,
    /// The next request for the same key; `u32::MAX` if there is none.
    pub(crate) next_at: u32,
}

/// The requests of a workload.
pub(crate) struct Requests {
    pub(crate) all: Vec<Request>,
    pub(crate) key_count: u32,
    /// Whether the request is one of a scan, which cannot hit.
    is_scan: fn(u32) -> bool,
}

/// Keys whose popularity follows Zipf's law with exponent 0.99.
const KEY_COUNT: u32 = 600_000;
const REQUEST_COUNT: u32 = 2_000_000;

/// Keys of a loop: some 200 MiB.
const LOOP_COUNT: u32 = 100_000;

/// Environment variable with the path of a recorded trace.
const TRACE: &str = "NVLANE_CACHE_TRACE";

/// The name of [`Workload::Recorded`].
pub(crate) const RECORDED: &str = "recorded";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// The popularity stays.
    Steady,
    /// As `Steady`, and a request in three is for a key that comes once.
    Scan,
    /// The popularity moves from key to key.
    Drift,
    /// The popularity stays, and a request in three reads the next of the same keys, round after round.
    Loop,
    /// The recorded requests of `NVLANE_CACHE_TRACE`.
    Recorded,
}

impl Workload {
    /// The generated ones, and the recorded one if there is one.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let recorded = std::env::var_os(TRACE).map(|_| Self::Recorded);
        [Self::Steady, Self::Scan, Self::Drift, Self::Loop].into_iter().chain(recorded)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Scan => "scan",
            Self::Drift => "drift",
            Self::Loop => "loop",
            Self::Recorded => RECORDED,
        }
    }

    /// Its requests, always the same.
    pub(crate) fn requests(self) -> Result<Requests, Error> {
        if self == Self::Recorded {
            return Requests::read(Path::new(&std::env::var_os(TRACE).unwrap_or_default()));
        }
        let mut sums = Vec::with_capacity(KEY_COUNT as usize);
        let mut sum = 0.0;
        for rank in 1..=KEY_COUNT {
            sum += f64::from(rank).powf(-0.99);
            sums.push(sum);
        }
        let mut prng = Prng::new(1);
        let mut key_count = KEY_COUNT;
        let mut pairs = Vec::with_capacity(REQUEST_COUNT as usize);
        for at in 0..REQUEST_COUNT {
            if matches!(self, Self::Scan | Self::Loop) && is_scan(at) {
                let key = if self == Self::Loop { KEY_COUNT + at / 3 % LOOP_COUNT } else { key_count };
                key_count = key_count.max(key + 1);
                pairs.push((key, value_bytes(key)));
                continue;
            }
            let drawn = (prng.draw() >> 11) as f64 / (1_u64 << 53) as f64 * sum;
            let rank = u32::try_from(sums.partition_point(|&sum| sum < drawn)).expect("below the count");
            let moved_on = if self == Self::Drift { at / 1000 * DRIFT } else { 0 };
            let key = (rank + moved_on) % KEY_COUNT;
            pairs.push((key, value_bytes(key)));
        }
        let is_scan = if self == Self::Scan { is_scan } else { |_| false };
        Ok(Requests::new(&pairs, key_count, is_scan))
    }
}

/// Ranks by which the popularity moves on in a thousand requests.
const DRIFT: u32 = 50;

fn is_scan(at: u32) -> bool {
    at.is_multiple_of(3)
}

/// Bytes of the value of a key, 100 to 4000.
fn value_bytes(key: u32) -> u32 {
    100 + key.wrapping_mul(0x9e37_79b1).rotate_left(16) % 3901
}

impl Requests {
    /// Requests for these keys, with the bytes of their values.
    fn new(pairs: &[(u32, u32)], key_count: u32, is_scan: fn(u32) -> bool) -> Self {
        let mut next_at = vec![u32::MAX; key_count as usize];
        let number = |(at, &(key, bytes))| Request { at, key, bytes, next_at: u32::MAX };
        let mut all: Vec<_> = (0_u32..).zip(pairs).map(number).collect();
        for request in all.iter_mut().rev() {
            request.next_at = std::mem::replace(&mut next_at[request.key as usize], request.at);
        }
        Self { all, key_count, is_scan }
    }

    /// A trace in the format that libCacheSim calls oracleGeneral: 24 bytes per request.
    fn read(path: &Path) -> Result<Self, Error> {
        let bytes = std::fs::read(path).doing("read a trace")?;
        let mut keys = HashMap::new();
        let (records, rest) = bytes.as_chunks::<24>();
        if !rest.is_empty() || records.is_empty() {
            return Err(Error::Load(format!("{} is no oracleGeneral trace", path.display())));
        }
        let pair = |record: &[u8; 24]| {
            let id = u64::from_le_bytes(record[4..12].try_into().expect("eight bytes"));
            let bytes = u32::from_le_bytes(record[12..16].try_into().expect("four bytes"));
            let next = u32::try_from(keys.len()).expect("fewer keys than requests");
            // A key has one length here, that of its first request.
            *keys.entry(id).or_insert((next, bytes.max(1)))
        };
        let pairs: Vec<_> = records.iter().map(pair).collect();
        Ok(Self::new(&pairs, u32::try_from(keys.len()).expect("fewer keys than requests"), |_| false))
    }

    /// Bytes of the values of all keys.
    pub(crate) fn value_bytes(&self) -> u64 {
        let last = self.all.iter().filter(|request| request.next_at == u32::MAX);
        last.map(|request| u64::from(request.bytes)).sum()
    }

    /// Part of the requests that hit, in the second half, those of scans aside. `run` carries `batch_count` requests
    /// out at a time, and appends whether each hits.
    pub(crate) fn hit_ratio(
        &self,
        batch_count: usize,
        mut run: impl FnMut(&[Request], &mut Vec<bool>) -> Result<(), Error>,
    ) -> Result<f64, Error> {
        let (mut hits, mut count, mut are_hits) = (0_u32, 0_u32, Vec::new());
        for batch in self.all.chunks(batch_count) {
            are_hits.clear();
            run(batch, &mut are_hits)?;
            for (request, &is_hit) in batch.iter().zip(&are_hits) {
                if request.at as usize >= self.all.len() / 2 && !(self.is_scan)(request.at) {
                    count += 1;
                    hits += u32::from(is_hit);
                }
            }
        }
        Ok(f64::from(hits) / f64::from(count.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_knows_the_next_one_for_its_key() {
        let requests = Requests::new(&[(0, 10), (1, 20), (0, 10)], 2, |_| false);
        assert_eq!(
            requests.all.iter().map(|request| request.next_at).collect::<Vec<_>>(),
            [2, u32::MAX, u32::MAX]
        );
        let ratio = requests.hit_ratio(2, |batch, are_hits| {
            are_hits.extend(batch.iter().map(|request| request.key == 0));
            Ok(())
        });
        assert_eq!(ratio.expect("it runs"), 0.5, "the second half are the last two");
        assert_eq!(requests.value_bytes(), 30);
    }

    #[test]
    fn a_trace_of_libcachesim_is_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("trace");
        let record = |id: u64, bytes: u32| {
            let mut record = [0; 24];
            record[4..12].copy_from_slice(&id.to_le_bytes());
            record[12..16].copy_from_slice(&bytes.to_le_bytes());
            record
        };
        std::fs::write(&path, [record(77, 512), record(1 << 40, 4096), record(77, 100)].concat())
            .expect("written");
        let requests = Requests::read(&path).expect("a trace");
        let pairs: Vec<_> = requests.all.iter().map(|request| (request.key, request.bytes)).collect();
        assert_eq!(pairs, [(0, 512), (1, 4096), (0, 512)]);
    }
}
