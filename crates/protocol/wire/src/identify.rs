//! The Identify command; the structures it returns are in the folder beside this file. wire §10

pub mod capabilities;
pub mod command_set;
pub mod controller;
pub mod descriptors;
pub mod lists;
pub mod namespace;

use crate::id::{Cntlid, Csi, Nsid};
use crate::sqe::Sqe;

/// Bytes every Identify returns.
pub const IDENTIFY_BYTES: u32 = 4096;

tables! {
    /// CNS: the structure that an Identify returns. wire §10
    pub codes Cns: u8 {
        0x00 NAMESPACE, "namespace";
        0x01 CONTROLLER, "controller";
        0x02 ACTIVE_NAMESPACES, "active namespace list";
        0x03 NAMESPACE_DESCRIPTORS, "namespace identification descriptors";
        0x05 COMMAND_SET_NAMESPACE, "I/O command set specific namespace";
        0x06 COMMAND_SET_CONTROLLER, "I/O command set specific controller";
        0x07 COMMAND_SET_ACTIVE_NAMESPACES, "active namespace list of a command set";
        0x08 INDEPENDENT_NAMESPACE, "command set independent namespace";
        0x10 ALLOCATED_NAMESPACES, "allocated namespace list";
        0x11 ALLOCATED_NAMESPACE, "namespace even if inactive";
        0x12 NAMESPACE_CONTROLLERS, "controllers attached to a namespace";
        0x13 SUBSYSTEM_CONTROLLERS, "controllers of the subsystem";
        0x14 PRIMARY_CAPABILITIES, "primary controller capabilities";
        0x15 SECONDARY_CONTROLLERS, "secondary controller list";
        0x16 NAMESPACE_GRANULARITY, "namespace granularity list";
        0x17 UUIDS, "UUID list";
        0x18 DOMAINS, "domain list";
        0x19 ENDURANCE_GROUPS, "endurance group list";
        0x1A COMMAND_SET_ALLOCATED_NAMESPACES, "allocated namespace list of a command set";
        0x1B COMMAND_SET_ALLOCATED_NAMESPACE, "namespace of a command set even if inactive";
        0x1C COMMAND_SETS, "I/O command set vectors";
    }

    /// Fields of an Identify command. wire §10
    #[derive(Default)]
    pub command IdentifyCommand: AdminOpcode::IDENTIFY {
        cdw10 [7:0] cns: Cns, "The structure to return.";
        cdw10 [31:16] cntid: Cntlid, "Controller the list begins with, for the CNS that take one.";
        cdw11 [15:0] specific_id: u16, "Identifier whose meaning depends on the CNS.";
        cdw11 [31:24] csi: Csi, "Command set, for the CNS that take one.";
        cdw14 [6:0] uuid_index: u8, "Index into the UUID list, 0..=127.";
    }
}

impl Sqe {
    /// An Identify of the NVM command set or of none: the CNS decides whether `nsid` is the namespace,
    /// the start of a list, or [`Nsid::NONE`].
    #[must_use]
    pub fn identify(cns: Cns, nsid: Nsid) -> Self {
        IdentifyCommand { cns, ..IdentifyCommand::default() }.to_sqe(nsid)
    }

    /// An Identify for one command set.
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
