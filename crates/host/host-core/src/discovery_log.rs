//! Reads a discovery log. wire §20
// Data from a controller must not cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

use wire::discovery::{DISCOVERY_RECORD_BYTES, DiscoveryEntry, DiscoveryHeader, DiscoveryLog};
use wire::log::{GetLogPage, Lid};
use wire::status::Status;
use zerocopy::FromBytes;

/// Maximum entries read from one service, whatever count it reports. hostile H16
pub const ENTRY_COUNT_MAX: u64 = 1024;

/// Maximum attempts to read a log that changes meanwhile.
const ATTEMPT_COUNT_MAX: u32 = 8;

/// Entries read by one command.
const ENTRIES_PER_PART: u64 = 15;

/// The discovery log of a service.
#[derive(Clone, Debug, Default)]
pub struct Discovered {
    /// Changes with each change of the log.
    pub generation: u64,
    /// The entries.
    pub entries: Vec<DiscoveryEntry>,
}

/// Reads a discovery log in parts; the log may change meanwhile.
///
/// ```text
/// Header ─▶ Entries … ─▶ Check ──the same generation──▶ done
///    ▲                     └──another one──┐
///    └─────────────────────────────────────┘
/// ```
#[derive(Debug)]
pub struct LogReader {
    state: ReaderState,
    /// The controller supports offsets.
    can_offset: bool,
    attempt_count: u32,
    generation: u64,
    count: u64,
    entries: Vec<DiscoveryEntry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderState {
    Header,
    Entries,
    Check,
    Done,
}

/// Why a log cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
#[non_exhaustive]
pub enum LogError {
    /// A part is shorter than requested.
    Short,
    /// An unknown record format.
    Format,
    /// The log changed during every attempt.
    Changing,
}

impl LogError {
    /// The reason in words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Short => "a part of it is missing",
            Self::Format => "its record format is unknown",
            Self::Changing => "it changes faster than it can be read",
        }
    }
}

impl LogReader {
    /// A reader of a log that has not been read yet.
    #[must_use]
    pub fn new(can_offset: bool) -> Self {
        Self {
            state: ReaderState::Header,
            can_offset,
            attempt_count: 0,
            generation: 0,
            count: 0,
            entries: Vec::new(),
        }
    }

    /// The part to read next; `None` once the log is complete.
    #[must_use]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "what is read is at most the count, and that the limit"
    )]
    pub fn next_part(&self) -> Option<GetLogPage> {
        let record = DISCOVERY_RECORD_BYTES as u64;
        let read = self.entries.len() as u64;
        let (offset, length_bytes) = match self.state {
            ReaderState::Header | ReaderState::Check => (0, record),
            // Without offsets the whole log is read at once.
            ReaderState::Entries if !self.can_offset => (0, (self.count + 1) * record),
            ReaderState::Entries => ((read + 1) * record, (self.count - read).min(ENTRIES_PER_PART) * record),
            ReaderState::Done => return None,
        };
        // Only the last read re-arms the event, so that a change after it is reported.
        let rae = self.state != ReaderState::Check;
        Some(GetLogPage { lid: Lid::DISCOVERY, rae, length_bytes, offset, ..GetLogPage::default() })
    }

    /// Processes the part that was read.
    ///
    /// # Errors
    /// [`LogError`].
    pub fn on_part(&mut self, part: &[u8]) -> Result<(), LogError> {
        match self.state {
            ReaderState::Header => {
                let (header, _) = DiscoveryHeader::ref_from_prefix(part).map_err(|_| LogError::Short)?;
                if header.recfmt.get() != 0 {
                    return Err(LogError::Format);
                }
                self.generation = header.genctr.get();
                self.count = header.numrec.get().min(ENTRY_COUNT_MAX);
                self.entries.clear();
                self.state = if self.count == 0 { ReaderState::Check } else { ReaderState::Entries };
            }
            ReaderState::Entries => {
                let entries = if self.can_offset {
                    let whole_count = part.len() / DISCOVERY_RECORD_BYTES;
                    let entries = <[DiscoveryEntry]>::ref_from_prefix_with_elems(part, whole_count);
                    entries.map_err(|_| LogError::Short)?.0
                } else {
                    DiscoveryLog::new(part).ok_or(LogError::Short)?.entries
                };
                if entries.is_empty() {
                    return Err(LogError::Short);
                }
                let count = usize::try_from(self.count).map_err(|_| LogError::Short)?;
                let left = count.saturating_sub(self.entries.len());
                self.entries.extend(entries.iter().take(left));
                if self.entries.len() as u64 == self.count {
                    self.state = ReaderState::Check;
                } else if !self.can_offset {
                    return Err(LogError::Short);
                }
            }
            ReaderState::Check => {
                let (header, _) = DiscoveryHeader::ref_from_prefix(part).map_err(|_| LogError::Short)?;
                if header.genctr.get() != self.generation {
                    return self.begin_anew();
                }
                self.state = ReaderState::Done;
            }
            ReaderState::Done => {}
        }
        Ok(())
    }

    /// The controller refused to read the part. If the log may have become shorter since its header was read, it is
    /// read again; `None` if the refusal has another reason.
    #[must_use]
    pub fn on_refused(&mut self, status: Status) -> Option<Result<(), LogError>> {
        let is_behind_header = self.state == ReaderState::Entries && self.can_offset;
        (is_behind_header && status.is(Status::INVALID_FIELD)).then(|| self.begin_anew())
    }

    /// The log changed during the read: starts again.
    fn begin_anew(&mut self) -> Result<(), LogError> {
        self.attempt_count = self.attempt_count.saturating_add(1);
        if self.attempt_count >= ATTEMPT_COUNT_MAX {
            return Err(LogError::Changing);
        }
        self.state = ReaderState::Header;
        Ok(())
    }

    /// The log.
    #[must_use]
    pub fn into_discovered(self) -> Discovered {
        Discovered { generation: self.generation, entries: self.entries }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::nqn::Nqn;
    use zerocopy::IntoBytes;

    fn log(generation: u64, count: u64, claimed: u64) -> Vec<u8> {
        let nqn: Nqn = "nqn.2016-06.io.nvlane:disk".parse().unwrap();
        let mut log = DiscoveryHeader::new(generation, claimed).as_bytes().to_vec();
        for index in 0..count {
            let mut entry = DiscoveryEntry::tcp([192, 0, 2, 1].into(), 4420, &nqn);
            entry.portid.set(u16::try_from(index).unwrap());
            log.extend_from_slice(entry.as_bytes());
        }
        log
    }

    fn read(mut log: impl FnMut(u32) -> Vec<u8>, can_offset: bool) -> Result<Discovered, LogError> {
        let mut reader = LogReader::new(can_offset);
        let mut number = 0;
        while let Some(part) = reader.next_part() {
            assert!(can_offset || part.offset == 0);
            assert!(part.length_bytes <= (ENTRY_COUNT_MAX + 1) * 1024);
            reader.on_part(part.part_of(&log(number)))?;
            number += 1;
            assert!(number < 1000);
        }
        Ok(reader.into_discovered())
    }

    proptest! {
        #[test]
        fn logs_of_any_length_are_read_whole(count in 0u64..60, can_offset: bool) {
            let found = read(|_| log(7, count, count), can_offset).unwrap();
            let ports: Vec<_> = found.entries.iter().map(|entry| u64::from(entry.portid.get())).collect();
            prop_assert_eq!(ports, (0..count).collect::<Vec<_>>());
            prop_assert_eq!(found.generation, 7);
        }
    }

    #[test]
    fn a_log_that_changes_is_read_again_but_not_for_ever() {
        // Changes once, after the header was read.
        let found = read(|part| if part == 0 { log(1, 3, 3) } else { log(2, 5, 5) }, true).unwrap();
        assert_eq!((found.generation, found.entries.len()), (2, 5));
        let error = read(|part| log(u64::from(part), 3, 3), true).unwrap_err();
        assert_eq!(error, LogError::Changing);
    }

    #[test]
    fn a_log_that_has_become_shorter_than_it_was_is_read_anew() {
        let refused = Status::INVALID_FIELD.with_dnr();
        let mut reader = LogReader::new(true);
        assert_eq!(reader.on_refused(refused), None, "the header");
        reader.on_part(&log(1, 0, 20)[..1024]).unwrap();
        let part = reader.next_part().unwrap();
        reader.on_part(part.part_of(&log(1, 20, 20))).unwrap();
        assert_eq!(reader.next_part().unwrap().offset, 16 * 1024);
        assert_eq!(reader.on_refused(Status::INTERNAL_ERROR), None);
        assert_eq!(reader.on_refused(refused), Some(Ok(())));
        while let Some(part) = reader.next_part() {
            reader.on_part(part.part_of(&log(2, 3, 3))).unwrap();
        }
        let found = reader.into_discovered();
        assert_eq!((found.generation, found.entries.len()), (2, 3));
        let mut reader = LogReader::new(true);
        for _ in 1..ATTEMPT_COUNT_MAX {
            reader.on_part(&log(1, 0, 20)[..1024]).unwrap();
            assert_eq!(reader.on_refused(refused), Some(Ok(())));
        }
        reader.on_part(&log(1, 0, 20)[..1024]).unwrap();
        assert_eq!(reader.on_refused(refused), Some(Err(LogError::Changing)), "not for ever");
    }

    /// hostile H16
    #[test]
    fn absurd_logs_are_refused_or_cut() {
        assert_eq!(
            read(|_| log(1, 3, u64::MAX), true).unwrap_err(),
            LogError::Short,
            "entries that are not there"
        );
        assert_eq!(read(|_| log(1, 3, 4), false).unwrap_err(), LogError::Short);
        assert_eq!(read(|_| log(1, 2000, 2000), true).unwrap().entries.len(), 1024);
        assert_eq!(read(|_| vec![0; 1000], true).unwrap_err(), LogError::Short);
        let mut other = log(1, 0, 0);
        other[16] = 1;
        assert_eq!(read(|_| other.clone(), true).unwrap_err(), LogError::Format);
    }

    #[test]
    fn only_the_last_look_lets_the_event_come_again() {
        let mut reader = LogReader::new(true);
        let mut parts = Vec::new();
        while let Some(part) = reader.next_part() {
            parts.push(part.rae);
            reader.on_part(part.part_of(&log(1, 20, 20))).unwrap();
        }
        assert_eq!(parts, [true, true, true, false]);
    }
}
