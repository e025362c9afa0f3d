//! Log pages of supported log pages (LID 00), commands (LID 05) and features (LID 12). wire §11

use crate::U32;
use crate::log::Lid;

tables! {
    /// An entry of the supported pages log. wire §11
    pub bits PageSupport: u32 {
        [0] supported, with_supported: bool, "The page is supported.";
        [1] index_offset, with_index_offset: bool, "The offset is an index.";
        [31:16] specific, with_specific: u16, "Specific to the page.";
    }

    /// Supported log pages. wire §11
    pub structure SupportedPages: 1024 {
        0 pages: [U32; 256];
    }
}

#[allow(clippy::indexing_slicing, reason = "one entry for each value of a byte")]
impl SupportedPages {
    /// Support of one log page.
    #[must_use]
    pub const fn page(&self, lid: Lid) -> PageSupport {
        PageSupport::from_bits(self.pages[lid.raw() as usize].get())
    }

    /// Sets [`Self::page`].
    pub fn set_page(&mut self, lid: Lid, support: PageSupport) {
        self.pages[usize::from(lid.raw())].set(support.bits());
    }
}

tables! {
    /// Effects of a command. Linux freezes its queues for a passthrough command with effects other than on
    /// content, so be truthful. wire §11
    pub bits CommandEffects: u32 {
        [0] supported, with_supported: bool, "The command is supported.";
        [1] changes_content, with_changes_content: bool, "It may change the content of blocks.";
        [2] changes_capabilities, with_changes_capabilities: bool, "It may change capabilities of a namespace.";
        [3] changes_inventory, with_changes_inventory: bool, "It may change which namespaces there are.";
        [4] changes_controller, with_changes_controller: bool, "It may change capabilities of the controller.";
        [18:16] exclusivity, with_exclusivity: u8, "Commands that must not run at the same time, raw value.";
        [19] uuid_index, with_uuid_index: bool, "It takes a UUID index.";
    }

    /// Commands supported and effects, of one command set. wire §11
    pub structure CommandsAndEffects: 4096 {
        0 admin: [U32; 256];
        1024 io: [U32; 256];
        2048 reserved_2048: [u8; 2048];
    }
}

#[allow(clippy::indexing_slicing, reason = "one entry for each value of a byte")]
impl CommandsAndEffects {
    /// Effects of an admin command.
    #[must_use]
    pub const fn admin(&self, opcode: u8) -> CommandEffects {
        CommandEffects::from_bits(self.admin[opcode as usize].get())
    }

    /// Effects of an I/O command.
    #[must_use]
    pub const fn io(&self, opcode: u8) -> CommandEffects {
        CommandEffects::from_bits(self.io[opcode as usize].get())
    }

    /// Sets [`Self::admin`].
    pub fn set_admin(&mut self, opcode: u8, effects: CommandEffects) {
        self.admin[usize::from(opcode)].set(effects.bits());
    }

    /// Sets [`Self::io`].
    pub fn set_io(&mut self, opcode: u8, effects: CommandEffects) {
        self.io[usize::from(opcode)].set(effects.bits());
    }
}

tables! {
    /// Feature identifiers supported and effects: an entry per feature, whose bits the reference leaves open.
    /// wire §11
    pub structure FeaturesAndEffects: 1024 {
        0 pub features: [U32; 256], "Entries by feature identifier, as the wire has them.";
    }
}

default_zeroed! { SupportedPages CommandsAndEffects FeaturesAndEffects }

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;
    use crate::opcode::{AdminOpcode, NvmOpcode};

    /// wire §11
    #[test]
    fn effects_lie_at_four_times_the_opcode() {
        let mut log = CommandsAndEffects::default();
        let supported = CommandEffects::default().with_supported(true);
        log.set_admin(AdminOpcode::IDENTIFY.raw(), supported);
        log.set_io(NvmOpcode::WRITE.raw(), supported.with_changes_content(true));
        log.set_io(0xFF, supported.with_exclusivity(1).with_uuid_index(true));
        let raw = log.as_bytes();
        assert_eq!(raw[0x06 * 4..][..4], [1, 0, 0, 0]);
        assert_eq!(raw[1024 + 4..][..4], [3, 0, 0, 0]);
        assert_eq!(raw[1024 + 0xFF * 4..][..4], [1, 0, 0b1001, 0]);
        assert!(log.io(NvmOpcode::WRITE.raw()).changes_content());
        assert!(!log.admin(AdminOpcode::ABORT.raw()).supported());
    }

    #[test]
    fn page_support_lies_at_four_times_the_page() {
        let mut log = SupportedPages::default();
        log.set_page(Lid::DISCOVERY, PageSupport::default().with_supported(true).with_specific(0x0102));
        assert_eq!(log.as_bytes()[0x70 * 4..][..4], [1, 0, 0x02, 0x01]);
        assert_eq!(log.page(Lid::DISCOVERY).specific(), 0x0102);
        assert!(!log.page(Lid::ANA).supported());
    }

    proptest! {
        #[test]
        fn every_entry_comes_back_alone(bits: u32, index: u8) {
            let mut pages = SupportedPages::default();
            pages.set_page(Lid::from_raw(index), PageSupport::from_bits(bits));
            prop_assert_eq!(pages.page(Lid::from_raw(index)).bits(), bits);
            let mut commands = CommandsAndEffects::default();
            commands.set_admin(index, CommandEffects::from_bits(bits));
            commands.set_io(index, CommandEffects::from_bits(!bits));
            prop_assert_eq!((commands.admin(index).bits(), commands.io(index).bits()), (bits, !bits));
        }
    }
}
