//! Reservations: Register, Acquire, Release, and the Report's data. wire §15

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::id::{Cntlid, Nsid};
use crate::nqn::HostId;
use crate::opcode::NvmOpcode;
use crate::sqe::Sqe;
use crate::{U16, U32, U64};

const DWORD_BYTES: u64 = 4;

tables! {
    /// Type of a reservation. wire §15
    pub codes ReservationType: u8 {
        0 NONE, "none";
        1 WRITE_EXCLUSIVE, "write exclusive";
        2 EXCLUSIVE_ACCESS, "exclusive access";
        3 WRITE_EXCLUSIVE_REGISTRANTS, "write exclusive, registrants only";
        4 EXCLUSIVE_ACCESS_REGISTRANTS, "exclusive access, registrants only";
        5 WRITE_EXCLUSIVE_ALL, "write exclusive, all registrants";
        6 EXCLUSIVE_ACCESS_ALL, "exclusive access, all registrants";
    }

    /// The action of a Register. wire §15
    pub codes RegisterAction: u8 {
        0 REGISTER, "register";
        1 UNREGISTER, "unregister";
        2 REPLACE, "replace";
    }

    /// The change of persistence through power loss by a Register. wire §15
    pub codes PersistenceChange: u8 {
        0 NONE, "no change";
        2 CLEAR, "clear";
        3 SET, "set";
    }

    /// The action of an Acquire. wire §15
    pub codes AcquireAction: u8 {
        0 ACQUIRE, "acquire";
        1 PREEMPT, "preempt";
        2 PREEMPT_AND_ABORT, "preempt and abort";
    }

    /// The action of a Release. wire §15
    pub codes ReleaseAction: u8 {
        0 RELEASE, "release";
        1 CLEAR, "clear";
    }

    /// Dword 10 of a Register. wire §15
    pub bits RegisterCommand: u32 {
        [2:0] action, with_action: RegisterAction, "Its action.";
        [3] ignore_existing_key, with_ignore_existing_key: bool, "The current key need not match.";
        [31:30] persistence, with_persistence: PersistenceChange, "Its change of persistence.";
    }

    /// Dword 10 of an Acquire. wire §15
    pub bits AcquireCommand: u32 {
        [2:0] action, with_action: AcquireAction, "Its action.";
        [3] ignore_existing_key, with_ignore_existing_key: bool, "To be refused from version 1.3 on.";
        [15:8] kind, with_kind: ReservationType, "Type of reservation wanted.";
    }

    /// Dword 10 of a Release. wire §15
    pub bits ReleaseCommand: u32 {
        [2:0] action, with_action: ReleaseAction, "Its action.";
        [3] ignore_existing_key, with_ignore_existing_key: bool, "To be refused from version 1.3 on.";
        [15:8] kind, with_kind: ReservationType, "Type of reservation held.";
    }
}

/// The three commands whose fields are dword 10.
macro_rules! dword_commands {
    ($($command:ident: $opcode:ident;)*) => {$(
        impl $command {
            /// Reads the fields of the command.
            #[must_use]
            pub const fn from_sqe(sqe: &Sqe) -> Self {
                Self::from_bits(sqe.cdw10.get())
            }

            /// The command with these fields; the data pointer is left to the caller.
            #[must_use]
            pub fn to_sqe(&self, nsid: Nsid) -> Sqe {
                let mut sqe = Sqe::new(NvmOpcode::$opcode.raw(), nsid);
                sqe.cdw10.set(self.bits());
                sqe
            }
        }
    )*};
}

dword_commands! {
    RegisterCommand: RESERVATION_REGISTER;
    AcquireCommand: RESERVATION_ACQUIRE;
    ReleaseCommand: RESERVATION_RELEASE;
}

tables! {
    /// Data of a Register. wire §15
    pub structure RegisterData: 16 {
        0 pub crkey: U64, "Current key.";
        8 pub nrkey: U64, "New key.";
    }

    /// Data of an Acquire. wire §15
    pub structure AcquireData: 16 {
        0 pub crkey: U64, "Current key.";
        8 pub prkey: U64, "Key to preempt.";
    }

    /// Data of a Release; Linux sends 8 bytes more. wire §15
    pub structure ReleaseData: 8 {
        0 pub crkey: U64, "Current key.";
    }
}

/// Fields of a Report. wire §15
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportCommand {
    /// Bytes asked for: a dword multiple from 4 to 2^34.
    pub length_bytes: u64,
    /// Extended data, which holds 16-byte host identifiers.
    pub extended: bool,
}

impl ReportCommand {
    /// Reads the fields of a Report.
    #[must_use]
    pub const fn from_sqe(sqe: &Sqe) -> Self {
        Self {
            length_bytes: (sqe.cdw10.get() as u64).saturating_add(1).saturating_mul(DWORD_BYTES),
            extended: sqe.cdw11.get() & 1 != 0,
        }
    }

    /// A Report with these fields; the data pointer is left to the caller.
    /// The length is rounded up to a dword and clamped to its range.
    #[must_use]
    pub fn to_sqe(&self, nsid: Nsid) -> Sqe {
        let last_dword = self.length_bytes.div_ceil(DWORD_BYTES).saturating_sub(1);
        let mut sqe = Sqe::new(NvmOpcode::RESERVATION_REPORT.raw(), nsid);
        sqe.cdw10.set(u32::try_from(last_dword).unwrap_or(u32::MAX));
        sqe.cdw11.set(u32::from(self.extended));
        sqe
    }
}

tables! {
    /// Header of a Report's data; 40 more zero bytes follow when it is extended. wire §15
    pub structure ReportHeader: 24 {
        0 pub generation: U32, "Generation: grows when a registrant is added or removed.";
        4 pub kind: ReservationType, "Type of the reservation held.";
        5 pub registrant_count: U16, "Registrants, unaligned.";
        7 reserved_7: [u8; 2];
        9 pub ptpls: u8, "1 if persistent through power loss.";
        10 reserved_10: [u8; 14];
    }
}

impl ReportHeader {
    /// A header whose registrants are counted by [`write_report`].
    #[must_use]
    pub fn new(generation: u32, kind: ReservationType, persistent: bool) -> Self {
        Self { generation: U32::new(generation), kind, ptpls: u8::from(persistent), ..Self::new_zeroed() }
    }
}

/// A registrant in a Report's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registrant {
    /// Controller, [`Cntlid::DYNAMIC`] if it is dynamic or unknown.
    pub cntlid: Cntlid,
    /// Whether it holds the reservation.
    pub is_holder: bool,
    /// Host; in plain data only its first 8 bytes, the others zero.
    pub hostid: HostId,
    /// Its key.
    pub key: u64,
}

tables! {
    /// A registrant in plain data. wire §15
    structure PlainEntry: 24 {
        0 cntlid: U16;
        2 rcsts: u8;
        3 reserved_3: [u8; 5];
        8 hostid: [u8; 8];
        16 rkey: U64;
    }

    /// A registrant in extended data. wire §15
    structure ExtendedEntry: 64 {
        0 cntlid: U16;
        2 rcsts: u8;
        3 reserved_3: [u8; 5];
        8 rkey: U64;
        16 hostid: [u8; 16];
        32 reserved_32: [u8; 32];
    }
}

const EXTENDED_HEADER_BYTES: usize = 64;
const HOLDER: u8 = 0b1;

impl Registrant {
    fn plain(&self) -> PlainEntry {
        let [h0, h1, h2, h3, h4, h5, h6, h7, ..] = self.hostid.to_bytes();
        PlainEntry {
            cntlid: U16::new(self.cntlid.get()),
            rcsts: u8::from(self.is_holder),
            reserved_3: [0; 5],
            hostid: [h0, h1, h2, h3, h4, h5, h6, h7],
            rkey: U64::new(self.key),
        }
    }

    fn extended(&self) -> ExtendedEntry {
        ExtendedEntry {
            cntlid: U16::new(self.cntlid.get()),
            rcsts: u8::from(self.is_holder),
            reserved_3: [0; 5],
            rkey: U64::new(self.key),
            hostid: self.hostid.to_bytes(),
            reserved_32: [0; 32],
        }
    }

    fn from_plain(entry: &PlainEntry) -> Self {
        let mut hostid = [0; 16];
        hostid[..8].copy_from_slice(&entry.hostid);
        Self {
            cntlid: Cntlid::new(entry.cntlid.get()),
            is_holder: entry.rcsts & HOLDER != 0,
            hostid: HostId::from_bytes(hostid),
            key: entry.rkey.get(),
        }
    }

    fn from_extended(entry: &ExtendedEntry) -> Self {
        Self {
            cntlid: Cntlid::new(entry.cntlid.get()),
            is_holder: entry.rcsts & HOLDER != 0,
            hostid: HostId::from_bytes(entry.hostid),
            key: entry.rkey.get(),
        }
    }
}

/// Writes a Report's data, cut off where the buffer ends, and zeroes the rest of the buffer.
///
/// The header counts every registrant given (65535 at most), whether or not there was room for it. Returns the
/// bytes of the whole.
pub fn write_report(
    buffer: &mut [u8],
    mut header: ReportHeader,
    extended: bool,
    registrants: impl IntoIterator<Item = Registrant>,
) -> usize {
    buffer.fill(0);
    let mut end = if extended { EXTENDED_HEADER_BYTES } else { size_of::<ReportHeader>() };
    let mut count: u16 = 0;
    for registrant in registrants.into_iter().take(usize::from(u16::MAX)) {
        let used = if extended {
            put(buffer, end, registrant.extended().as_bytes())
        } else {
            put(buffer, end, registrant.plain().as_bytes())
        };
        end = end.saturating_add(used);
        count = count.saturating_add(1);
    }
    header.registrant_count.set(count);
    put(buffer, 0, header.as_bytes());
    end
}

/// Puts the part of a record that lies in the buffer there; gives the record's length.
fn put(buffer: &mut [u8], at: usize, record: &[u8]) -> usize {
    if let Some(room) = buffer.get_mut(at..) {
        for (place, byte) in room.iter_mut().zip(record) {
            *place = *byte;
        }
    }
    record.len()
}

/// A Report's data as read: the registrants that are wholly there, whatever the header counts.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// The header.
    pub header: &'a ReportHeader,
    entries: Entries<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Entries<'a> {
    Plain(&'a [PlainEntry]),
    Extended(&'a [ExtendedEntry]),
}

impl<'a> Report<'a> {
    /// Reads data that was asked for as plain or extended; `None` if not even the header is whole.
    #[must_use]
    pub fn new(data: &'a [u8], extended: bool) -> Option<Self> {
        let (header, rest) = ReportHeader::ref_from_prefix(data).ok()?;
        let counted = usize::from(header.registrant_count.get());
        let entries = if extended {
            let rest = data.get(EXTENDED_HEADER_BYTES..).unwrap_or(&[]);
            let count = counted.min(rest.len().checked_div(size_of::<ExtendedEntry>())?);
            Entries::Extended(<[ExtendedEntry]>::ref_from_prefix_with_elems(rest, count).ok()?.0)
        } else {
            let count = counted.min(rest.len().checked_div(size_of::<PlainEntry>())?);
            Entries::Plain(<[PlainEntry]>::ref_from_prefix_with_elems(rest, count).ok()?.0)
        };
        Some(Self { header, entries })
    }

    /// The registrants.
    pub fn registrants(&self) -> impl Iterator<Item = Registrant> + use<'a> {
        let (plain, extended): (&[PlainEntry], &[ExtendedEntry]) = match self.entries {
            Entries::Plain(entries) => (entries, &[]),
            Entries::Extended(entries) => (&[], entries),
        };
        plain.iter().map(Registrant::from_plain).chain(extended.iter().map(Registrant::from_extended))
    }

    /// Whether every registrant the header counts was there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        usize::from(self.header.registrant_count.get()) == self.registrants().count()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOLDER_ONE: Registrant = Registrant {
        cntlid: Cntlid::new(0x0102),
        is_holder: true,
        hostid: HostId::from_bytes([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
        key: 0xA0B0,
    };

    /// wire §15
    #[test]
    fn commands_have_the_bytes_of_the_reference() {
        let register = RegisterCommand::default()
            .with_action(RegisterAction::REPLACE)
            .with_ignore_existing_key(true)
            .with_persistence(PersistenceChange::SET);
        let sqe = register.to_sqe(Nsid::new(1));
        assert_eq!((sqe.opcode, sqe.cdw10.get()), (0x0D, 0xC000_000A));
        let acquire = AcquireCommand::default()
            .with_action(AcquireAction::PREEMPT_AND_ABORT)
            .with_kind(ReservationType::EXCLUSIVE_ACCESS_ALL);
        let sqe = acquire.to_sqe(Nsid::new(1));
        assert_eq!((sqe.opcode, sqe.cdw10.get()), (0x11, 0x0602));
        let release = ReleaseCommand::default()
            .with_action(ReleaseAction::CLEAR)
            .with_kind(ReservationType::WRITE_EXCLUSIVE);
        let sqe = release.to_sqe(Nsid::new(1));
        assert_eq!((sqe.opcode, sqe.cdw10.get()), (0x15, 0x0101));
        let report = ReportCommand { length_bytes: 4096, extended: true };
        let sqe = report.to_sqe(Nsid::new(1));
        assert_eq!((sqe.opcode, sqe.cdw10.get(), sqe.cdw11.get()), (0x0E, 1023, 1));
    }

    #[test]
    fn a_plain_report_has_the_bytes_of_the_reference() {
        let mut buffer = [0xAA; 56];
        let header = ReportHeader::new(7, ReservationType::WRITE_EXCLUSIVE, true);
        assert_eq!(write_report(&mut buffer, header, false, [HOLDER_ONE]), 48);
        assert_eq!(buffer[..12], [7, 0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0]);
        assert_eq!(buffer[24..40], [0x02, 0x01, 1, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(buffer[40..], [0xB0, 0xA0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn an_extended_report_has_the_bytes_of_the_reference() {
        let mut buffer = [0xAA; 128];
        let header = ReportHeader::new(7, ReservationType::WRITE_EXCLUSIVE, false);
        assert_eq!(write_report(&mut buffer, header, true, [HOLDER_ONE]), 128);
        assert_eq!(buffer[..12], [7, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(buffer[24..64], [0; 40]);
        assert_eq!(buffer[64..80], [0x02, 0x01, 1, 0, 0, 0, 0, 0, 0xB0, 0xA0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(buffer[80..96], HOLDER_ONE.hostid.to_bytes());
        assert_eq!(buffer[96..], [0; 32]);
        let read = Report::new(&buffer, true).expect("a header");
        assert_eq!(read.registrants().collect::<Vec<_>>(), [HOLDER_ONE]);
    }

    #[test]
    fn a_report_is_cut_off_where_the_buffer_ends() {
        let header = ReportHeader::new(7, ReservationType::WRITE_EXCLUSIVE, true);
        let mut whole = [0; 72];
        assert_eq!(write_report(&mut whole, header, false, [HOLDER_ONE; 2]), 72);
        for length in [0, 1, 23, 24, 25, 47, 64, 71] {
            let mut part = vec![0xAA; length];
            assert_eq!(write_report(&mut part, header, false, [HOLDER_ONE; 2]), 72);
            assert_eq!(part, whole[..length]);
            match Report::new(&part, false) {
                Some(read) => {
                    assert_eq!(read.registrants().count(), (length - 24) / 24);
                    assert!(!read.is_complete());
                }
                None => assert!(length < 24),
            }
        }
    }

    proptest! {
        #[test]
        fn commands_give_back_what_they_were_made_of(bits: u32, last_dword: u32, extended: bool) {
            let nsid = Nsid::new(1);
            let register = RegisterCommand::from_bits(bits);
            prop_assert_eq!(RegisterCommand::from_sqe(&register.to_sqe(nsid)), register);
            let acquire = AcquireCommand::from_bits(bits);
            prop_assert_eq!(AcquireCommand::from_sqe(&acquire.to_sqe(nsid)), acquire);
            let release = ReleaseCommand::from_bits(bits);
            prop_assert_eq!(ReleaseCommand::from_sqe(&release.to_sqe(nsid)), release);
            let report = ReportCommand { length_bytes: (u64::from(last_dword) + 1) * 4, extended };
            prop_assert_eq!(ReportCommand::from_sqe(&report.to_sqe(nsid)), report);
        }

        #[test]
        fn any_report_is_read_within_its_bounds(
            data in prop::collection::vec(any::<u8>(), 0..300), extended: bool,
        ) {
            if let Some(report) = Report::new(&data, extended) {
                prop_assert!(report.registrants().count() <= data.len() / 24);
            }
        }

        #[test]
        fn a_report_reads_back(
            generation: u32, kind: u8, persistent: bool, extended: bool,
            registrants in prop::collection::vec(
                (any::<u16>(), any::<bool>(), any::<[u8; 16]>(), any::<u64>()), 0..9,
            ),
        ) {
            let registrants: Vec<_> = registrants.into_iter().map(|(cntlid, is_holder, mut hostid, key)| {
                if !extended {
                    hostid[8..].fill(0);
                }
                Registrant { cntlid: Cntlid::new(cntlid), is_holder, hostid: HostId::from_bytes(hostid), key }
            }).collect();
            let header = ReportHeader::new(generation, ReservationType::from_raw(kind), persistent);
            let mut buffer = [0xAA; 1024];
            write_report(&mut buffer, header, extended, registrants.iter().copied());
            let read = Report::new(&buffer, extended).expect("a header");
            prop_assert_eq!((read.header.generation.get(), read.header.kind.raw()), (generation, kind));
            prop_assert_eq!(read.header.ptpls, u8::from(persistent));
            prop_assert!(read.is_complete());
            prop_assert_eq!(read.registrants().collect::<Vec<_>>(), registrants);
        }
    }
}
