//! Samples of the code that threads of a process execute, from perf_event_open: the address, and callers within the
//! kernel.
//!
//! The event is `cpu-clock`, a timer that runs while a thread runs: every machine has it, virtual ones too, and needs no
//! counter of the processor. A section of the kernel in which interrupts are disabled is seen at its end.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use perf_event::events::Software;
use perf_event::{Builder, SampleFlag};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Processor time between two samples: prime in microseconds, so that it does not follow the ticks of the kernel.
pub(crate) const PERIOD: Duration = Duration::from_micros(199);

/// Functions of the kernel that a sample names: the current one and its callers.
const FRAMES_MAX: u16 = 16;

/// In a list of callers, values from this one on are marks and no addresses (`PERF_CONTEXT_MAX`).
const FIRST_MARK: u64 = -4095_i64 as u64;

/// The part of the code that the kernel permits to sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scope {
    /// Programs and the kernel.
    All,
    /// Programs only.
    User,
}

impl Scope {
    /// Finds the permitted scope.
    ///
    /// # Errors
    /// [`Error::Lacking`]: nothing is permitted.
    pub(crate) fn permitted() -> Result<Self, Error> {
        let open = |scope: Self| scope.builder().build();
        let Err(refused) = open(Self::All) else { return Ok(Self::All) };
        if open(Self::User).is_ok() {
            return Ok(Self::User);
        }
        Err(Error::Lacking(format!(
            "samples of threads are not permitted (perf_event_open: {refused}; kernel.perf_event_paranoid is {}): \
             sysctl kernel.perf_event_paranoid=1, or CAP_PERFMON",
            paranoid()
        )))
    }

    /// Why the kernel is not sampled.
    pub(crate) fn limit(self) -> Option<String> {
        (self == Self::User).then(|| {
            format!(
                "samples in the kernel are not permitted (kernel.perf_event_paranoid is {}; 1 or less, or CAP_PERFMON, permits \
                 them), so all of the kernel's time is not named",
                paranoid()
            )
        })
    }

    pub(super) fn builder(self) -> Builder<'static> {
        let mut builder = Builder::new(Software::CPU_CLOCK);
        builder
            .exclude_kernel(self == Self::User)
            .sample_period(u64::try_from(PERIOD.as_nanos()).unwrap_or(u64::MAX))
            .sample(SampleFlag::IP);
        if self == Self::All {
            builder.sample(SampleFlag::CALLCHAIN).exclude_callchain_user(true).sample_max_stack(FRAMES_MAX);
        }
        builder
    }
}

/// The sysctl `kernel.perf_event_paranoid`.
fn paranoid() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    text.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// Samples, by the executed code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Samples {
    /// Addresses in the kernel, the current one first, then callers.
    pub(crate) kernel: BTreeMap<Vec<u64>, u64>,
    /// Addresses in programs.
    pub(crate) user: BTreeMap<u64, u64>,
    /// Samples for which there was no room.
    pub(crate) lost: u64,
}

/// Types of records (`PERF_RECORD_SAMPLE`, `PERF_RECORD_LOST`).
const SAMPLE: u32 = 9;
const LOST: u32 = 2;

impl Samples {
    /// Adds a record of the buffer: a sample is its address, and where the kernel is sampled a number of callers and
    /// these. For a program the number is zero, which perf-event2 0.7 takes for the end of the record, so it is read
    /// here.
    pub(super) fn add_record(&mut self, kind: u32, bytes: &[u8]) {
        let words: Vec<u64> =
            bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes"))).collect();
        match (kind, words.as_slice()) {
            (SAMPLE, [address]) => self.add(*address, &[]),
            (SAMPLE, [address, count, callers @ ..]) => {
                let count = usize::try_from(*count).unwrap_or(usize::MAX);
                self.add(*address, &callers[..count.min(callers.len())]);
            }
            (LOST, [_, lost, ..]) => self.lost += lost,
            _ => {}
        }
    }

    /// Adds a sample. Callers are given for the kernel only, where they begin with a mark and the address itself.
    fn add(&mut self, address: u64, callers: &[u64]) {
        let frames: Vec<u64> = callers.iter().copied().filter(|caller| *caller < FIRST_MARK).collect();
        match frames.first() {
            Some(_) => *self.kernel.entry(frames).or_default() += 1,
            None if is_in_kernel(address) => *self.kernel.entry(vec![address]).or_default() += 1,
            None => *self.user.entry(address).or_default() += 1,
        }
    }
}

/// The upper half of the addresses is the kernel's, on x86-64 and on 64-bit Arm.
pub(super) fn is_in_kernel(address: u64) -> bool {
    address >> 63 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_the_kernel_are_told_from_those_of_programs() {
        let mut samples = Samples::default();
        let (kernel, caller, mark) = (0xffff_ffff_8100_0100, 0xffff_ffff_8100_0200, -128_i64 as u64);
        samples.add(0x5555_0000_1000, &[]);
        samples.add(0x5555_0000_1000, &[]);
        samples.add(kernel, &[mark, kernel, caller]);
        samples.add(kernel, &[]);
        assert_eq!(samples.user, BTreeMap::from([(0x5555_0000_1000, 2)]));
        assert_eq!(samples.kernel, BTreeMap::from([(vec![kernel, caller], 1), (vec![kernel], 1)]));
    }

    #[test]
    fn records_are_read_as_the_kernel_writes_them() {
        let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let kernel = 0xffff_ffff_8100_0100;
        let mut samples = Samples::default();
        samples.add_record(SAMPLE, &bytes(&[0x5555_0000_1000]));
        samples.add_record(SAMPLE, &bytes(&[0x5555_0000_1000, 0]));
        samples.add_record(SAMPLE, &bytes(&[kernel, 2, -128_i64 as u64, kernel]));
        samples.add_record(LOST, &bytes(&[1, 7]));
        samples.add_record(LOST + 1, &bytes(&[1, 7]));
        let expected = Samples {
            kernel: BTreeMap::from([(vec![kernel], 1)]),
            user: BTreeMap::from([(0x5555_0000_1000, 2)]),
            lost: 7,
        };
        assert_eq!(samples, expected);
    }
}
