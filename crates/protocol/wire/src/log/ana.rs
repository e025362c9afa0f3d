//! Asymmetric namespace access log (LID 0C): the state of each group on this controller. wire §19

use zerocopy::{FromBytes, IntoBytes};

use crate::id::Nsid;
use crate::{U16, U32, U64};

/// Bytes of the header of the log.
pub const ANA_HEADER_BYTES: usize = 16;
/// Bytes of a group without its namespaces.
pub const ANA_GROUP_BYTES: usize = 32;

/// In the `lsp` of Get Log Page: groups only, no namespaces.
pub const ANA_GROUPS_ONLY: u8 = 0b1;

tables! {
    /// State of an ANA group. wire §19
    pub codes AnaState: u8 {
        0x1 OPTIMIZED, "optimized";
        0x2 NON_OPTIMIZED, "non-optimized";
        0x3 INACCESSIBLE, "inaccessible";
        0x4 PERSISTENT_LOSS, "persistent loss";
        0xF CHANGE, "change";
    }

    /// Header of the log. wire §19
    pub structure AnaHeader: ANA_HEADER_BYTES {
        0 pub change_count: U64, "Changes so far.";
        8 pub group_count: U16, "Groups in the log.";
        10 reserved_10: [u8; 6];
    }

    /// A group, before its namespaces. wire §19
    structure GroupHeader: ANA_GROUP_BYTES {
        0 grpid: U32;
        4 nnsids: U32;
        8 change_count: U64;
        16 state: u8;
        17 reserved_17: [u8; 15];
    }
}

/// Bytes of a log with this many groups and namespaces.
#[must_use]
pub const fn ana_log_bytes(group_count: u16, namespace_count: u32) -> u64 {
    let groups = (group_count as u64).saturating_mul(ANA_GROUP_BYTES as u64);
    let namespaces = (namespace_count as u64).saturating_mul(4);
    (ANA_HEADER_BYTES as u64).saturating_add(groups).saturating_add(namespaces)
}

/// Writes a log into a buffer, group by group in ascending order of their ids.
#[derive(Debug)]
pub struct AnaLogWriter<'a> {
    log: &'a mut [u8],
    end: usize,
    change_count: u64,
    group_count: u16,
}

/// The error for a log without room for another group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room for the group in a log of {length} bytes")]
pub struct AnaLogFull {
    /// Bytes of the buffer.
    pub length: usize,
}

/// Bytes of a group with this number of namespaces.
const fn group_bytes(namespace_count: usize) -> usize {
    namespace_count.saturating_mul(4).saturating_add(ANA_GROUP_BYTES)
}

impl<'a> AnaLogWriter<'a> {
    /// Begins a log.
    ///
    /// # Errors
    /// [`AnaLogFull`] if the buffer has no room for the header.
    pub fn new(log: &'a mut [u8], change_count: u64) -> Result<Self, AnaLogFull> {
        if log.len() < ANA_HEADER_BYTES {
            return Err(AnaLogFull { length: log.len() });
        }
        Ok(Self { log, end: ANA_HEADER_BYTES, change_count, group_count: 0 })
    }

    /// Adds a group and its namespaces, in ascending order; none if groups only are asked for.
    ///
    /// # Errors
    /// [`AnaLogFull`] if it does not fit; the log stays as it was.
    pub fn group(
        &mut self,
        grpid: u32,
        state: AnaState,
        change_count: u64,
        nsids: impl IntoIterator<Item = Nsid>,
    ) -> Result<(), AnaLogFull> {
        let full = AnaLogFull { length: self.log.len() };
        let group_count = self.group_count.checked_add(1).ok_or(full)?;
        let rest = self.log.get_mut(self.end..).ok_or(full)?;
        let (head, slots) = rest.split_first_chunk_mut::<ANA_GROUP_BYTES>().ok_or(full)?;
        let (slots, _) = slots.as_chunks_mut::<4>();
        let mut slots = slots.iter_mut();
        let mut nnsids: u32 = 0;
        for nsid in nsids {
            *slots.next().ok_or(full)? = nsid.get().to_le_bytes();
            nnsids = nnsids.checked_add(1).ok_or(full)?;
        }
        let header = GroupHeader {
            grpid: U32::new(grpid),
            nnsids: U32::new(nnsids),
            change_count: U64::new(change_count),
            state: state.raw() & 0xF,
            reserved_17: [0; 15],
        };
        head.copy_from_slice(header.as_bytes());
        self.end = self.end.saturating_add(group_bytes(nnsids as usize));
        self.group_count = group_count;
        Ok(())
    }

    /// Writes the header, zeroes the rest of the buffer and returns the bytes of the log.
    #[must_use = "the length of the log"]
    pub fn finish(self) -> usize {
        let header = AnaHeader {
            change_count: U64::new(self.change_count),
            group_count: U16::new(self.group_count),
            reserved_10: [0; 6],
        };
        if let Some(place) = self.log.get_mut(..ANA_HEADER_BYTES) {
            place.copy_from_slice(header.as_bytes());
        }
        if let Some(rest) = self.log.get_mut(self.end..) {
            rest.fill(0);
        }
        self.end
    }
}

/// A group as read. wire §19
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnaGroup<'a> {
    /// Id of the group.
    pub grpid: u32,
    /// Its state on this controller.
    pub state: AnaState,
    /// Changes so far.
    pub change_count: u64,
    nsids: &'a [[u8; 4]],
}

impl<'a> AnaGroup<'a> {
    /// Its namespaces.
    pub fn nsids(&self) -> impl Iterator<Item = Nsid> + use<'a> {
        self.nsids.iter().map(|nsid| Nsid::new(u32::from_le_bytes(*nsid)))
    }
}

/// The log ends in the middle of its header or of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("log of {length} bytes ends in what begins at byte {offset}")]
pub struct AnaLogTruncated {
    /// Where the incomplete part begins.
    pub offset: usize,
    /// Bytes that were read.
    pub length: usize,
}

/// Reads the groups of a log within its bounds, whatever its header claims. The iteration ends after an error.
#[derive(Clone, Debug)]
pub struct AnaLog<'a> {
    log: &'a [u8],
    offset: usize,
    header: AnaHeader,
    left: u16,
}

impl<'a> AnaLog<'a> {
    /// Reads the header.
    ///
    /// # Errors
    /// [`AnaLogTruncated`] if there are fewer bytes than it has.
    pub fn new(log: &'a [u8]) -> Result<Self, AnaLogTruncated> {
        match AnaHeader::read_from_prefix(log) {
            Ok((header, _)) => {
                Ok(Self { log, offset: ANA_HEADER_BYTES, header, left: header.group_count.get() })
            }
            Err(_) => Err(AnaLogTruncated { offset: 0, length: log.len() }),
        }
    }

    /// The header.
    #[must_use]
    pub const fn header(&self) -> &AnaHeader {
        &self.header
    }

    /// The group at the offset; `None` if the log ends in it.
    fn group(&self) -> Option<AnaGroup<'a>> {
        let (header, slots) = GroupHeader::read_from_prefix(self.log.get(self.offset..)?).ok()?;
        let (slots, _) = slots.as_chunks::<4>();
        Some(AnaGroup {
            grpid: header.grpid.get(),
            state: AnaState::from_raw(header.state & 0xF),
            change_count: header.change_count.get(),
            nsids: slots.get(..usize::try_from(header.nnsids.get()).ok()?)?,
        })
    }
}

impl<'a> Iterator for AnaLog<'a> {
    type Item = Result<AnaGroup<'a>, AnaLogTruncated>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        match self.group() {
            Some(group) => {
                self.offset = self.offset.saturating_add(group_bytes(group.nsids.len()));
                Some(Ok(group))
            }
            None => {
                self.left = 0;
                Some(Err(AnaLogTruncated { offset: self.offset, length: self.log.len() }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// wire §19
    #[test]
    fn a_log_has_the_bytes_of_the_reference() {
        let mut log = [0xAA; 96];
        let mut writer = AnaLogWriter::new(&mut log, 5).expect("room");
        writer.group(1, AnaState::OPTIMIZED, 3, [1, 0x0102].map(Nsid::new)).expect("room");
        writer.group(2, AnaState::CHANGE, 5, []).expect("room");
        assert_eq!(writer.finish(), 88);
        assert_eq!(ana_log_bytes(2, 2), 88);
        assert_eq!(log[..16], [5, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(log[16..33], [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(log[33..48], [0; 15]);
        assert_eq!(log[48..56], [1, 0, 0, 0, 2, 1, 0, 0]);
        assert_eq!(log[56..73], [2, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0xF]);
        assert_eq!(log[73..], [0; 23]);
    }

    #[test]
    fn a_group_without_room_leaves_the_log_as_it_was() {
        let mut log = [0xAA; 16 + 32 + 4];
        assert_eq!(AnaLogWriter::new(&mut log[..15], 0).expect_err("too short"), AnaLogFull { length: 15 });
        let mut writer = AnaLogWriter::new(&mut log, 0).expect("room");
        let full = Err(AnaLogFull { length: 52 });
        assert_eq!(writer.group(1, AnaState::OPTIMIZED, 0, [1, 2].map(Nsid::new)), full);
        assert_eq!(writer.group(1, AnaState::OPTIMIZED, 0, [Nsid::new(1)]), Ok(()));
        assert_eq!(writer.group(2, AnaState::OPTIMIZED, 0, []), full);
        assert_eq!(writer.finish(), 52);
        assert_eq!(AnaLog::new(&log).expect("header").count(), 1);
    }

    #[test]
    fn a_log_that_ends_in_a_group_says_where() {
        let mut log = [0; 16 + 32 + 8];
        let mut writer = AnaLogWriter::new(&mut log, 0).expect("room");
        writer.group(1, AnaState::OPTIMIZED, 0, [1, 2].map(Nsid::new)).expect("room");
        assert_eq!(writer.finish(), 56);
        for (length, offset) in [(15, 0), (16, 16), (47, 16), (48, 16), (55, 16)] {
            let truncated = AnaLogTruncated { offset, length };
            let read: Result<Vec<_>, _> = AnaLog::new(&log[..length]).and_then(Iterator::collect);
            assert_eq!(read, Err(truncated));
        }
        // A count of namespaces whose bytes wrap 32 bits.
        log[20..24].copy_from_slice(&[0x01, 0, 0, 0x40]);
        let read: Result<Vec<_>, _> = AnaLog::new(&log).and_then(Iterator::collect);
        assert_eq!(read, Err(AnaLogTruncated { offset: 16, length: 56 }));
    }

    proptest! {
        #[test]
        fn any_log_is_read_within_its_bounds(log in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(reader) = AnaLog::new(&log) {
                let groups: Vec<_> = reader.collect();
                prop_assert!(groups.len() <= log.len() / ANA_GROUP_BYTES + 1);
                let nsids: usize = groups.iter().flatten().map(|group| group.nsids().count()).sum();
                prop_assert!(nsids <= log.len() / 4);
            }
        }

        #[test]
        fn a_log_reads_back(
            change_count: u64,
            groups in prop::collection::vec(
                (any::<u32>(), 0u8..16, any::<u64>(), prop::collection::vec(any::<u32>(), 0..9)), 0..9,
            ),
        ) {
            let nsid_count: usize = groups.iter().map(|group| group.3.len()).sum();
            let group_count = u16::try_from(groups.len()).expect("few");
            let nsid_count = u32::try_from(nsid_count).expect("few");
            let mut log = vec![0xAA; usize::try_from(ana_log_bytes(group_count, nsid_count)).expect("small")];
            let mut writer = AnaLogWriter::new(&mut log, change_count).expect("room");
            for (grpid, state, count, nsids) in &groups {
                let nsids = nsids.iter().copied().map(Nsid::new);
                writer.group(*grpid, AnaState::from_raw(*state), *count, nsids).expect("room");
            }
            prop_assert_eq!(writer.finish(), log.len());
            let reader = AnaLog::new(&log).expect("header");
            prop_assert_eq!(reader.header().change_count.get(), change_count);
            prop_assert_eq!(reader.header().group_count.get(), group_count);
            let mut read = Vec::new();
            for group in reader {
                let group = group.expect("whole");
                let nsids: Vec<u32> = group.nsids().map(Nsid::get).collect();
                read.push((group.grpid, group.state.raw(), group.change_count, nsids));
            }
            prop_assert_eq!(read, groups);
        }
    }
}
