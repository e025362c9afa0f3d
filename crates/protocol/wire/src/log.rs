//! Log pages: the command, and in the folder beside it the pages. wire §11

pub mod ana;
pub mod error;
pub mod health;
pub mod namespaces;
pub mod partition_map;
pub mod reservation;
pub mod support;

use crate::bits::{byte, dword, high16, high32, low16, low32};
use crate::id::{Csi, Nsid};
use crate::opcode::AdminOpcode;
use crate::sqe::Sqe;

const DWORD_BYTES: u64 = 4;

tables! {
    /// Log page identifier. wire §11
    pub codes Lid: u8 {
        0x00 SUPPORTED_PAGES, "supported log pages";
        0x01 ERROR, "error information";
        0x02 SMART, "SMART or health";
        0x03 FIRMWARE_SLOTS, "firmware slots";
        0x04 CHANGED_NAMESPACES, "changed namespaces";
        0x05 COMMANDS_AND_EFFECTS, "commands supported and effects";
        0x07 TELEMETRY_HOST, "telemetry, host initiated";
        0x08 TELEMETRY_CONTROLLER, "telemetry, controller initiated";
        0x0C ANA, "asymmetric namespace access";
        0x0D PERSISTENT_EVENTS, "persistent events";
        0x12 FEATURES_AND_EFFECTS, "feature identifiers supported and effects";
        0x70 DISCOVERY, "discovery";
        0x80 RESERVATION_NOTIFICATION, "reservation notification";
        0x81 SANITIZE_STATUS, "sanitize status";
        0xC0 PARTITION_MAP, "partition map";
    }
}

/// Fields of a Get Log Page. wire §11
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetLogPage {
    /// Page asked for.
    pub lid: Lid,
    /// Specific to the page, 0..=127.
    pub lsp: u8,
    /// Retain asynchronous event: reading does not re-arm the page's event.
    pub rae: bool,
    /// Bytes asked for: a dword multiple from 4 to 2^34.
    pub length_bytes: u64,
    /// Identifier whose meaning depends on the page.
    pub specific_id: u16,
    /// First byte asked for; a dword multiple by the specification, not checked here.
    pub offset: u64,
    /// Command set, for the pages that take one.
    pub csi: Csi,
}

impl GetLogPage {
    /// Reads the fields of a Get Log Page.
    #[must_use]
    pub const fn from_sqe(sqe: &Sqe) -> Self {
        let (cdw10, cdw11) = (sqe.cdw10.get(), sqe.cdw11.get());
        let last_dword = dword(high16(cdw10), low16(cdw11));
        Self {
            lid: Lid::from_raw(byte(cdw10, 0)),
            lsp: byte(cdw10, 1) & 0x7F,
            rae: byte(cdw10, 1) & 0x80 != 0,
            length_bytes: (last_dword as u64).saturating_add(1).saturating_mul(DWORD_BYTES),
            specific_id: high16(cdw11),
            offset: sqe.cdw12_13(),
            csi: Csi::from_raw(byte(sqe.cdw14.get(), 3)),
        }
    }

    /// A Get Log Page with these fields; the data pointer is left to the caller.
    /// The length is rounded up to a dword and clamped to its range.
    #[must_use]
    pub fn to_sqe(&self, nsid: Nsid) -> Sqe {
        let last_dword = self.length_bytes.div_ceil(DWORD_BYTES).saturating_sub(1).min(u64::from(u32::MAX));
        let last_dword = low32(last_dword);
        let mut sqe = Sqe::new(AdminOpcode::GET_LOG_PAGE.raw(), nsid);
        let specific = self.lsp & 0x7F | if self.rae { 0x80 } else { 0 };
        sqe.cdw10.set(dword(u16::from_le_bytes([self.lid.raw(), specific]), low16(last_dword)));
        sqe.cdw11.set(dword(high16(last_dword), self.specific_id));
        sqe.cdw12.set(low32(self.offset));
        sqe.cdw13.set(high32(self.offset));
        sqe.cdw14.set(u32::from_le_bytes([0, 0, 0, self.csi.raw()]));
        sqe
    }

    /// The requested part of a whole page. Shorter than `length_bytes` where the page ends, empty past its end: missing
    /// bytes read as zero.
    #[must_use]
    pub fn part_of<'a>(&self, page: &'a [u8]) -> &'a [u8] {
        let Some(rest) = usize::try_from(self.offset).ok().and_then(|offset| page.get(offset..)) else {
            return &[];
        };
        let length = usize::try_from(self.length_bytes).unwrap_or(usize::MAX);
        rest.get(..length).unwrap_or(rest)
    }
}

impl Sqe {
    /// Get Log Page of the first bytes with RAE clear, which re-arms the page's event.
    #[must_use]
    pub fn get_log_page(lid: Lid, nsid: Nsid, length_bytes: u64) -> Self {
        GetLogPage { lid, length_bytes, ..GetLogPage::default() }.to_sqe(nsid)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn a_get_log_page_has_its_fields_where_the_reference_says() {
        let command = GetLogPage {
            lid: Lid::ANA,
            lsp: 0x01,
            rae: true,
            length_bytes: 0x0004_0304 * 4,
            specific_id: 0x0605,
            offset: 0x0102_0304_0506_0708,
            csi: Csi::KV,
        };
        let sqe = command.to_sqe(Nsid::ALL);
        let mut expected = [0; 64];
        expected[..8].copy_from_slice(&[0x02, 0x40, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]);
        expected[39] = 0x5A;
        expected[40..48].copy_from_slice(&[0x0C, 0x81, 0x03, 0x03, 0x04, 0x00, 0x05, 0x06]);
        expected[48..56].copy_from_slice(&[8, 7, 6, 5, 4, 3, 2, 1]);
        expected[59] = 1;
        assert_eq!(sqe.as_bytes(), expected);

        // The first bytes of a page, without RAE.
        let sqe = Sqe::get_log_page(Lid::SMART, Nsid::ALL, 512);
        let mut expected = [0; 64];
        expected[..8].copy_from_slice(&[0x02, 0x40, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]);
        expected[39] = 0x5A;
        expected[40..44].copy_from_slice(&[0x02, 0, 127, 0]);
        assert_eq!(sqe.as_bytes(), expected);
    }

    #[test]
    fn lengths_are_dwords_on_the_wire() {
        for (bytes, stored) in
            [(0, 0), (1, 0), (4, 0), (5, 1), (512, 127), (1 << 34, u32::MAX), (u64::MAX, u32::MAX)]
        {
            let sqe = Sqe::get_log_page(Lid::SMART, Nsid::ALL, bytes);
            assert_eq!(dword(high16(sqe.cdw10.get()), low16(sqe.cdw11.get())), stored, "{bytes}");
        }
        let sqe = Sqe::get_log_page(Lid::SMART, Nsid::ALL, u64::MAX);
        assert_eq!(GetLogPage::from_sqe(&sqe).length_bytes, 1 << 34);
    }

    #[test]
    fn a_part_never_leaves_its_page() {
        let page: Vec<u8> = (0..100).collect();
        let part = |offset, length_bytes| {
            GetLogPage { offset, length_bytes, ..GetLogPage::default() }.part_of(&page).to_vec()
        };
        assert_eq!(part(0, 4), [0, 1, 2, 3]);
        assert_eq!(part(96, 8), [96, 97, 98, 99]);
        assert_eq!(part(100, 4), []);
        assert_eq!(part(101, 4), []);
        assert_eq!(part(u64::MAX, 1 << 34), []);
        assert_eq!(part(0, u64::MAX), page);
    }

    proptest! {
        #[test]
        fn the_command_gives_back_what_it_was_made_of(
            lid: u8, lsp in 0u8..128, rae: bool, last_dword: u32, specific_id: u16, offset: u64, csi: u8,
        ) {
            let command = GetLogPage {
                lid: Lid::from_raw(lid),
                lsp,
                rae,
                length_bytes: (u64::from(last_dword) + 1) * 4,
                specific_id,
                offset,
                csi: Csi::from_raw(csi),
            };
            prop_assert_eq!(GetLogPage::from_sqe(&command.to_sqe(Nsid::NONE)), command);
        }

        #[test]
        fn a_part_is_what_lies_there(
            page in prop::collection::vec(any::<u8>(), 0..64), offset: u64, length_bytes: u64,
        ) {
            for offset in [offset, offset % 80] {
                let command = GetLogPage { offset, length_bytes, ..GetLogPage::default() };
                let part = command.part_of(&page);
                prop_assert!(part.len() as u64 <= length_bytes);
                let rest = usize::try_from(offset).ok().and_then(|offset| page.get(offset..));
                prop_assert!(rest.unwrap_or(&[]).starts_with(part));
            }
        }
    }
}
