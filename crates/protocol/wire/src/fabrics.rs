//! Fabrics commands (opcode 0x7F): Connect, Property Get and Set, Disconnect, Authentication Send and
//! Receive. wire §6

use zerocopy::FromZeros;

use crate::U16;
use crate::bits::{byte, dword, high16, low16, low32, zero_based16};
use crate::id::{Cntlid, Nsid, Qid};
use crate::nqn::{HostId, HostName, NQN_FIELD_BYTES, Nqn, NqnError};
use crate::opcode::{AdminOpcode, FabricsType};
use crate::property::{Property, PropertySize};
use crate::sgl::Sgl;
use crate::sqe::Sqe;

/// Bytes of Connect data.
pub const CONNECT_DATA_BYTES: u32 = 1024;

tables! {
    /// Attributes of a Connect. wire §6.1
    pub bits ConnectAttributes: u8 {
        [1:0] priority, with_priority: u8, "Priority class of the queue.";
        [2] disable_sq_flow_control, with_disable_sq_flow_control: bool,
            "No SQ flow control: completions carry no head, and SUCCESS may end reads.";
        [3] individual_queue_deletion, with_individual_queue_deletion: bool, "The host can delete single I/O queues.";
    }
}

/// Fields of a Connect command. wire §6.1
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectCommand {
    /// Record format, 0.
    pub recfmt: u16,
    /// Queue to connect.
    pub qid: Qid,
    /// Entries of the queue, 1..=65536.
    pub queue_entries: u32,
    /// Attributes.
    pub attributes: ConnectAttributes,
    /// Keep-alive timeout in milliseconds, 0 for none; admin queue only.
    pub kato_ms: u32,
    /// Partition of key-value namespaces that an I/O queue is to be near. docs/kv-commands.md §6.2
    pub near_partition: Option<u16>,
}

impl ConnectCommand {
    /// Reads the fields of a Connect.
    #[must_use]
    pub const fn from_sqe(sqe: &Sqe) -> Self {
        let (cdw10, cdw11) = (sqe.cdw10.get(), sqe.cdw11.get());
        Self {
            recfmt: low16(cdw10),
            qid: Qid::new(high16(cdw10)),
            queue_entries: (low16(cdw11) as u32).saturating_add(1),
            attributes: ConnectAttributes::from_bits(byte(cdw11, 2)),
            kato_ms: sqe.cdw12.get(),
            near_partition: low16(sqe.cdw13.get()).checked_sub(1),
        }
    }

    /// A Connect with these fields, its data in capsule; `queue_entries` is clamped to its range.
    #[must_use]
    pub fn to_sqe(&self) -> Sqe {
        let mut sqe = fabrics(FabricsType::CONNECT);
        sqe.cdw10.set(dword(self.recfmt, self.qid.get()));
        sqe.cdw11.set(dword(zero_based16(self.queue_entries), u16::from(self.attributes.bits())));
        sqe.cdw12.set(self.kato_ms);
        // 0 for none, also where the number does not fit.
        sqe.cdw13.set(self.near_partition.map_or(0, |partition| u32::from(partition.wrapping_add(1))));
        sqe.with_data(Sgl::in_capsule(CONNECT_DATA_BYTES))
    }
}

tables! {
    /// Data of a Connect, always in capsule. wire §6.2
    pub structure ConnectData: CONNECT_DATA_BYTES {
        0 pub hostid: HostId, "Identifier of the host.";
        16 pub cntlid: U16 as cntlid: Cntlid, "Controller to connect to.";
        18 reserved_18: [u8; 238];
        256 pub subnqn: [u8; NQN_FIELD_BYTES] as subsystem: nqn,
            "Name of the subsystem, NUL-terminated. Answer to a malformed one with [`InvalidParameter::SUBNQN`].";
        512 pub hostnqn: [u8; NQN_FIELD_BYTES], "Name of the host, NUL-terminated.";
        768 reserved_768: [u8; 256];
    }
}

impl ConnectData {
    /// Data that connects `host` to a controller of `subsystem`: [`Cntlid::DYNAMIC`] on the admin queue.
    #[must_use]
    pub fn new(hostid: HostId, cntlid: Cntlid, subsystem: &Nqn, host: &Nqn) -> Self {
        Self {
            hostid,
            cntlid: U16::new(cntlid.get()),
            subnqn: subsystem.to_wire(),
            hostnqn: host.to_wire(),
            ..Self::new_zeroed()
        }
    }

    /// Name of the host.
    ///
    /// # Errors
    /// The errors of [`HostName::from_wire`]; answer with [`InvalidParameter::HOSTNQN`].
    pub fn host(&self) -> Result<HostName, NqnError> {
        HostName::from_wire(&self.hostnqn)
    }
}

tables! {
    /// Result dword of a successful Connect. wire §6.3
    pub bits ConnectResult: u32 {
        [15:0] cntlid, with_cntlid: u16, "Id of the controller.";
        [17] authentication_required, with_authentication_required: bool, "The queue must authenticate.";
        [18] secure_channel_required, with_secure_channel_required: bool,
            "The queue must authenticate and set up a secure channel by it.";
    }

    /// Result dword of a Connect refused with invalid parameters: which one. wire §6.3
    pub bits InvalidParameter: u32 {
        [15:0] offset, with_offset: u16, "Byte offset of the parameter.";
        [16] in_data, with_in_data: bool, "The offset is in the data, else in the command.";
    }
}

impl InvalidParameter {
    /// Host identifier.
    pub const HOSTID: Self = Self::data(0);
    /// Controller id.
    pub const CNTLID: Self = Self::data(16);
    /// Subsystem name.
    pub const SUBNQN: Self = Self::data(256);
    /// Host name.
    pub const HOSTNQN: Self = Self::data(512);
    /// Queue id.
    pub const QID: Self = Self::command(42);
    /// Queue size.
    pub const SQSIZE: Self = Self::command(44);
    /// Keep-alive timeout.
    pub const KATO: Self = Self::command(48);

    /// The parameter at this byte of the data.
    #[must_use]
    pub const fn data(offset: u16) -> Self {
        Self::from_bits(0).with_offset(offset).with_in_data(true)
    }

    /// The parameter at this byte of the command.
    #[must_use]
    pub const fn command(offset: u16) -> Self {
        Self::from_bits(0).with_offset(offset)
    }

    /// Its name, if it is one of those above.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::HOSTID => "host identifier",
            Self::CNTLID => "controller id",
            Self::SUBNQN => "subsystem name",
            Self::HOSTNQN => "host name",
            Self::QID => "queue id",
            Self::SQSIZE => "queue size",
            Self::KATO => "keep-alive timeout",
            _ => return None,
        })
    }
}

tables! {
    /// Fields of a Property Get; the value comes as the 8-byte result. wire §6.4
    pub command PropertyGet: FabricsType::PROPERTY_GET {
        cdw10 [2:0] size: PropertySize, "Size asked for.";
        cdw11 [31:0] property: Property, "Property asked for.";
    }

    /// Fields of a Property Set. wire §6.4
    pub command PropertySet: FabricsType::PROPERTY_SET {
        cdw10 [2:0] size: PropertySize, "Size of the value.";
        cdw11 [31:0] property: Property, "Property to set.";
        cdw12_13 [63:0] value: u64, "Value; the low half if the size is 4.";
    }

    /// Fields of a Disconnect. wire §6.5
    pub command Disconnect: FabricsType::DISCONNECT {
        cdw10 [15:0] recfmt: u16, "Record format, 0.";
    }

    /// Fields of an Authentication Send or Receive. wire §6.6
    pub command AuthenticationCommand {
        cdw10 [15:8] spsp0: u8, "Protocol specific, 1.";
        cdw10 [23:16] spsp1: u8, "Protocol specific, 1.";
        cdw10 [31:24] secp: u8, "Security protocol, 0xE9.";
        cdw11 [31:0] length: u32, "Bytes sent, or bytes the host has room for.";
    }
}

impl PropertySet {
    /// The value of a property of 4 bytes: the upper half of the field is reserved then.
    #[must_use]
    pub const fn value_of_four(&self) -> u32 {
        low32(self.value)
    }
}

impl AuthenticationCommand {
    /// A message, or room for one, of this many bytes.
    #[must_use]
    pub const fn new(length: u32) -> Self {
        Self { spsp0: 1, spsp1: 1, secp: 0xE9, length }
    }

    /// Whether the protocol fields hold their only valid values.
    #[must_use]
    pub const fn is_known_protocol(&self) -> bool {
        self.spsp0 == 1 && self.spsp1 == 1 && self.secp == 0xE9
    }

    /// An Authentication Send with these fields; the data pointer is left to the caller.
    #[must_use]
    pub fn to_send_sqe(&self) -> Sqe {
        self.fill(fabrics(FabricsType::AUTHENTICATION_SEND))
    }

    /// An Authentication Receive with these fields; the data pointer is left to the caller.
    #[must_use]
    pub fn to_receive_sqe(&self) -> Sqe {
        self.fill(fabrics(FabricsType::AUTHENTICATION_RECEIVE))
    }
}

impl Sqe {
    /// Reads a property in its own size.
    #[must_use]
    pub fn property_get(property: Property) -> Self {
        PropertyGet { size: property.size().unwrap_or_default(), property }.to_sqe()
    }

    /// Sets a property in its own size.
    #[must_use]
    pub fn property_set(property: Property, value: u64) -> Self {
        PropertySet { size: property.size().unwrap_or_default(), property, value }.to_sqe()
    }
}

/// A Fabrics command without fields: the type lies where others have the namespace.
pub(crate) fn fabrics(fctype: FabricsType) -> Sqe {
    Sqe::new(AdminOpcode::FABRICS.raw(), Nsid::new(u32::from(fctype.raw())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;
    use crate::property::{Cc, CommandSetSelection};

    /// The 64 bytes with these at their offsets.
    fn bytes(parts: &[(usize, &[u8])]) -> [u8; 64] {
        let mut bytes = [0; 64];
        for (at, part) in parts {
            bytes[*at..at + part.len()].copy_from_slice(part);
        }
        bytes
    }

    /// wire §6.1
    #[test]
    fn a_connect_of_the_admin_queue_is_what_linux_sends() {
        let sqe = ConnectCommand {
            recfmt: 0,
            qid: Qid::ADMIN,
            queue_entries: 32,
            attributes: ConnectAttributes::default(),
            kato_ms: 5000,
            near_partition: None,
        }
        .to_sqe();
        let expected = bytes(&[
            (0, &[0x7F, 0x40]),
            (4, &[0x01]),
            (32, &[0x00, 0x04]),
            (39, &[0x01]),
            (44, &[31]),
            (48, &[0x88, 0x13]),
        ]);
        assert_eq!(sqe.as_bytes(), expected);
    }

    /// wire §6.1
    #[test]
    fn a_connect_of_an_io_queue_names_queue_size_and_attributes() {
        let command = ConnectCommand {
            recfmt: 0,
            qid: Qid::new(0x0102),
            queue_entries: 128,
            attributes: ConnectAttributes::default().with_disable_sq_flow_control(true),
            kato_ms: 0,
            near_partition: None,
        };
        assert_eq!(command.to_sqe().as_bytes()[40..52], [0, 0, 0x02, 0x01, 127, 0, 0x04, 0, 0, 0, 0, 0]);
        assert_eq!(command.to_sqe().as_bytes()[52..64], [0; 12]);
    }

    /// docs/kv-commands.md §6.2
    #[test]
    fn a_connect_asks_for_a_partition_by_its_number_plus_one() {
        let command = ConnectCommand {
            near_partition: Some(0x0102),
            ..ConnectCommand::from_sqe(&Sqe::new(AdminOpcode::FABRICS.raw(), Nsid::NONE))
        };
        let mut sqe = command.to_sqe();
        assert_eq!(sqe.as_bytes()[52..64], [3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        sqe.cdw13.set(0xFFFF_0000);
        assert_eq!(ConnectCommand::from_sqe(&sqe).near_partition, None, "the upper half is reserved");
    }

    /// wire §6.2
    #[test]
    fn connect_data_names_host_and_subsystem() {
        let host: Nqn = "nqn.2016-06.io.nvlane:host".parse().expect("well formed");
        let subsystem: Nqn = "nqn.2016-06.io.nvlane:sub1".parse().expect("well formed");
        let data = ConnectData::new(HostId::from_bytes([7; 16]), Cntlid::DYNAMIC, &subsystem, &host);
        let raw = data.as_bytes();
        assert_eq!(raw[..19], [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0xFF, 0xFF, 0]);
        assert_eq!(&raw[256..283], b"nqn.2016-06.io.nvlane:sub1\0");
        assert_eq!(&raw[512..539], b"nqn.2016-06.io.nvlane:host\0");
        assert!(raw[18..256].iter().chain(&raw[768..]).all(|byte| *byte == 0));
        assert_eq!(data.subsystem(), Ok(subsystem));
        assert_eq!(data.host(), Ok(host.into()));
        assert_eq!(data.cntlid(), Cntlid::DYNAMIC);
    }

    /// wire §6.3
    #[test]
    fn connect_results_have_the_bits_of_the_reference() {
        let result = ConnectResult::default().with_cntlid(0x0102).with_authentication_required(true);
        assert_eq!(result.bits(), 0x0002_0102);
        assert_eq!(result.with_secure_channel_required(true).bits(), 0x0006_0102);
        for (parameter, bits, name) in [
            (InvalidParameter::HOSTID, 0x0001_0000, Some("host identifier")),
            (InvalidParameter::CNTLID, 0x0001_0010, Some("controller id")),
            (InvalidParameter::SUBNQN, 0x0001_0100, Some("subsystem name")),
            (InvalidParameter::HOSTNQN, 0x0001_0200, Some("host name")),
            (InvalidParameter::QID, 42, Some("queue id")),
            (InvalidParameter::SQSIZE, 44, Some("queue size")),
            (InvalidParameter::KATO, 48, Some("keep-alive timeout")),
            (InvalidParameter::data(4), 0x0001_0004, None),
            (InvalidParameter::command(4), 4, None),
        ] {
            assert_eq!((parameter.bits(), parameter.name()), (bits, name), "{parameter:?}");
        }
    }

    /// wire §6.4
    #[test]
    fn properties_are_read_and_set_in_their_own_size() {
        let expected = bytes(&[(0, &[0x7F, 0x40]), (4, &[0x04]), (39, &[0x5A]), (40, &[1])]);
        assert_eq!(Sqe::property_get(Property::CAP).as_bytes(), expected);
        let expected = bytes(&[(0, &[0x7F, 0x40]), (4, &[0x04]), (39, &[0x5A]), (44, &[0x1C])]);
        assert_eq!(Sqe::property_get(Property::CSTS).as_bytes(), expected);
        let cc = Cc::new(CommandSetSelection::NVM).with_en(true);
        let expected = bytes(&[(0, &[0x7F, 0x40]), (39, &[0x5A]), (44, &[0x14]), (48, &[1, 0, 0x46, 0])]);
        assert_eq!(Sqe::property_set(Property::CC, u64::from(cc.bits())).as_bytes(), expected);
    }

    /// wire §6.6
    #[test]
    fn authentication_names_its_protocol_and_length() {
        let command = AuthenticationCommand::new(0x48);
        let expected = bytes(&[(0, &[0x7F, 0x40]), (4, &[0x05]), (39, &[0x5A]), (41, &[1, 1, 0xE9, 0x48])]);
        assert_eq!(command.to_send_sqe().as_bytes(), expected);
        assert_eq!(command.to_receive_sqe().fctype(), FabricsType::AUTHENTICATION_RECEIVE);
        assert!(command.is_known_protocol());
        assert!(!AuthenticationCommand { secp: 0xE8, ..command }.is_known_protocol());
    }

    /// wire §6.5
    #[test]
    fn a_disconnect_has_only_its_format() {
        let expected = bytes(&[(0, &[0x7F, 0x40]), (4, &[0x08]), (39, &[0x5A])]);
        assert_eq!(Disconnect { recfmt: 0 }.to_sqe().as_bytes(), expected);
    }

    proptest! {
        #[test]
        fn commands_give_back_what_they_were_made_of(
            recfmt: u16, qid: u16, queue_entries in 1u32..=65_536, attributes: u8, kato_ms: u32,
            size in 0u8..8, offset: u32, value: u64, protocol: [u8; 3],
            near_partition in prop::option::of(0u16..0xFFFF),
        ) {
            let connect = ConnectCommand {
                recfmt,
                qid: Qid::new(qid),
                queue_entries,
                attributes: ConnectAttributes::from_bits(attributes),
                kato_ms,
                near_partition,
            };
            prop_assert_eq!(ConnectCommand::from_sqe(&connect.to_sqe()), connect);
            let (size, property) = (PropertySize::from_raw(size), Property::from_raw(offset));
            let get = PropertyGet { size, property };
            prop_assert_eq!(PropertyGet::from_sqe(&get.to_sqe()), get);
            let set = PropertySet { size, property, value };
            prop_assert_eq!(PropertySet::from_sqe(&set.to_sqe()), set);
            let disconnect = Disconnect { recfmt };
            prop_assert_eq!(Disconnect::from_sqe(&disconnect.to_sqe()), disconnect);
            let [spsp0, spsp1, secp] = protocol;
            let authentication = AuthenticationCommand { spsp0, spsp1, secp, length: kato_ms };
            prop_assert_eq!(AuthenticationCommand::from_sqe(&authentication.to_send_sqe()), authentication);
            let received = AuthenticationCommand::from_sqe(&authentication.to_receive_sqe());
            prop_assert_eq!(received, authentication);
        }
    }
}
