//! The Identify command; the structures it returns are in the folder beside this file. wire §10

pub mod capabilities;
pub mod command_set;
pub mod controller;
pub mod descriptors;
pub mod lists;
pub mod namespace;

use crate::bits::{byte, dword, high16, low16};
use crate::id::{Cntlid, Csi, Nsid};
use crate::opcode::AdminOpcode;
use crate::sqe::Sqe;

/// Bytes every Identify returns.
pub const IDENTIFY_BYTES: u32 = 4096;

codes! {
    /// CNS: the structure that an Identify returns. wire §10
    pub struct Cns: u8 {
        NAMESPACE = 0x00, "namespace";
        CONTROLLER = 0x01, "controller";
        ACTIVE_NAMESPACES = 0x02, "active namespace list";
        NAMESPACE_DESCRIPTORS = 0x03, "namespace identification descriptors";
        COMMAND_SET_NAMESPACE = 0x05, "I/O command set specific namespace";
        COMMAND_SET_CONTROLLER = 0x06, "I/O command set specific controller";
        COMMAND_SET_ACTIVE_NAMESPACES = 0x07, "active namespace list of a command set";
        INDEPENDENT_NAMESPACE = 0x08, "command set independent namespace";
        ALLOCATED_NAMESPACES = 0x10, "allocated namespace list";
        ALLOCATED_NAMESPACE = 0x11, "namespace even if inactive";
        NAMESPACE_CONTROLLERS = 0x12, "controllers attached to a namespace";
        SUBSYSTEM_CONTROLLERS = 0x13, "controllers of the subsystem";
        PRIMARY_CAPABILITIES = 0x14, "primary controller capabilities";
        SECONDARY_CONTROLLERS = 0x15, "secondary controller list";
        NAMESPACE_GRANULARITY = 0x16, "namespace granularity list";
        UUIDS = 0x17, "UUID list";
        DOMAINS = 0x18, "domain list";
        ENDURANCE_GROUPS = 0x19, "endurance group list";
        COMMAND_SET_ALLOCATED_NAMESPACES = 0x1A, "allocated namespace list of a command set";
        COMMAND_SET_ALLOCATED_NAMESPACE = 0x1B, "namespace of a command set even if inactive";
        COMMAND_SETS = 0x1C, "I/O command set vectors";
    }
}

/// Fields of an Identify command. wire §10
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdentifyCommand {
    /// The structure to return.
    pub cns: Cns,
    /// Controller the list begins with, for the CNS that take one.
    pub cntid: Cntlid,
    /// Identifier whose meaning depends on the CNS.
    pub specific_id: u16,
    /// Command set, for the CNS that take one.
    pub csi: Csi,
    /// Index into the UUID list, 0..=127.
    pub uuid_index: u8,
}

impl IdentifyCommand {
    /// Reads the fields of an Identify.
    #[must_use]
    pub const fn from_sqe(sqe: &Sqe) -> Self {
        let (cdw10, cdw11) = (sqe.cdw10.get(), sqe.cdw11.get());
        Self {
            cns: Cns::from_raw(byte(cdw10, 0)),
            cntid: Cntlid::new(high16(cdw10)),
            specific_id: low16(cdw11),
            csi: Csi::from_raw(byte(cdw11, 3)),
            uuid_index: byte(sqe.cdw14.get(), 0) & 0x7F,
        }
    }

    /// An Identify with these fields; the data pointer is left to the caller.
    #[must_use]
    pub fn to_sqe(&self, nsid: Nsid) -> Sqe {
        let mut sqe = Sqe::new(AdminOpcode::IDENTIFY.raw(), nsid);
        sqe.cdw10.set(dword(u16::from(self.cns.raw()), self.cntid.get()));
        sqe.cdw11.set(dword(self.specific_id, u16::from_le_bytes([0, self.csi.raw()])));
        sqe.cdw14.set(u32::from(self.uuid_index & 0x7F));
        sqe
    }
}

impl Sqe {
    /// An Identify of the NVM command set or of none: the CNS decides whether `nsid` is the namespace,
    /// the start of a list, or [`Nsid::NONE`].
    #[must_use]
    pub fn identify(cns: Cns, nsid: Nsid) -> Self {
        IdentifyCommand { cns, ..IdentifyCommand::default() }.to_sqe(nsid)
    }

    /// Identifies something of one command set.
    #[must_use]
    pub fn identify_in(csi: Csi, cns: Cns, nsid: Nsid) -> Self {
        IdentifyCommand { cns, csi, ..IdentifyCommand::default() }.to_sqe(nsid)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn an_identify_has_its_fields_where_the_reference_says() {
        let sqe = Sqe::identify(Cns::CONTROLLER, Nsid::NONE);
        let mut expected = [0; 64];
        (expected[0], expected[1], expected[39], expected[40]) = (0x06, 0x40, 0x5A, 0x01);
        assert_eq!(sqe.as_bytes(), expected);

        let command = IdentifyCommand {
            cns: Cns::SUBSYSTEM_CONTROLLERS,
            cntid: Cntlid::new(0x0203),
            specific_id: 0x0405,
            csi: Csi::KV,
            uuid_index: 0x7F,
        };
        let sqe = command.to_sqe(Nsid::new(9));
        assert_eq!(sqe.as_bytes()[4..8], [9, 0, 0, 0]);
        assert_eq!(sqe.as_bytes()[40..48], [0x13, 0, 0x03, 0x02, 0x05, 0x04, 0, 1]);
        assert_eq!(sqe.as_bytes()[56..60], [0x7F, 0, 0, 0]);
    }

    #[test]
    fn a_command_set_is_named_in_the_last_byte_of_cdw11() {
        let sqe = Sqe::identify_in(Csi::KV, Cns::COMMAND_SET_NAMESPACE, Nsid::new(1));
        assert_eq!(sqe.as_bytes()[40..48], [0x05, 0, 0, 0, 0, 0, 0, 1]);
    }

    proptest! {
        #[test]
        fn the_command_gives_back_what_it_was_made_of(
            cns: u8, cntid: u16, specific_id: u16, csi: u8, uuid_index in 0u8..128, nsid: u32,
        ) {
            let command = IdentifyCommand {
                cns: Cns::from_raw(cns),
                cntid: Cntlid::new(cntid),
                specific_id,
                csi: Csi::from_raw(csi),
                uuid_index,
            };
            let sqe = command.to_sqe(Nsid::new(nsid));
            prop_assert_eq!(IdentifyCommand::from_sqe(&sqe), command);
            prop_assert_eq!(sqe.nsid(), Nsid::new(nsid));
        }
    }
}
