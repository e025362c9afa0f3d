//! Completion status: type, code, and flags for the host's next step. wire §17

use core::fmt;

/// The status of a completion. wire §5.2, wire §17
///
/// Two statuses are equal when every bit is, so compare codes with [`Status::is`] or match on
/// [`Status::code`] when the flags do not matter. The constants carry no flags:
///
/// ```
/// use nvlane_wire::status::Status;
///
/// let refused = Status::LBA_OUT_OF_RANGE.with_dnr();
/// assert_eq!(refused.to_wire(false), 0x8100);
/// assert!(refused.is(Status::LBA_OUT_OF_RANGE) && refused != Status::LBA_OUT_OF_RANGE);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Status(u16);

/// Which table a status code is looked up in. wire §17
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatusKind {
    /// Type 0.
    Generic,
    /// Type 1: from 0x80 up the meaning depends on the command.
    CommandSpecific,
    /// Type 2: the medium or the data on it.
    Media,
    /// Type 3: the way to the namespace, not the namespace.
    Path,
    /// Type 7.
    Vendor,
    /// Types 4 to 6.
    Reserved(u8),
}

/// Whose command a command-specific status from 0x180 up answered; the codes mean different things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatusTable {
    /// Admin and I/O commands.
    Nvm,
    /// Fabrics commands.
    Fabrics,
}

const PHASE: u16 = 1;
const CODE_SHIFT: u32 = 1;
const CODE_MASK: u16 = 0x7FF;
const CRD_SHIFT: u32 = 12;
const CRD_MASK: u16 = 3 << CRD_SHIFT;
const MORE: u16 = 1 << 14;
const DNR: u16 = 1 << 15;

impl Status {
    /// From `0xTCC`: type << 8 | code, the notation of the wire reference. Higher bits are dropped.
    #[inline]
    #[must_use]
    pub const fn from_code(code: u16) -> Self {
        Self((code & CODE_MASK) << CODE_SHIFT)
    }

    /// From the 16 bits of a completion or an error log entry; the phase bit is dropped.
    #[inline]
    #[must_use]
    pub const fn from_wire(word: u16) -> Self {
        Self(word & !PHASE)
    }

    /// The 16 bits as they travel. Over TCP the phase is always 0. wire §5.2
    #[inline]
    #[must_use]
    pub const fn to_wire(self, phase: bool) -> u16 {
        self.0 | phase as u16
    }

    /// `0xTCC`: type << 8 | code, without the flags.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u16 {
        (self.0 >> CODE_SHIFT) & CODE_MASK
    }

    /// The status code type.
    #[inline]
    #[must_use]
    pub const fn kind(self) -> StatusKind {
        match (self.code() >> 8) as u8 & 7 {
            0 => StatusKind::Generic,
            1 => StatusKind::CommandSpecific,
            2 => StatusKind::Media,
            3 => StatusKind::Path,
            7 => StatusKind::Vendor,
            reserved => StatusKind::Reserved(reserved),
        }
    }

    /// Whether the command succeeded.
    #[inline]
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.code() == 0
    }

    /// Whether type and code equal those of `other`, ignoring the flags.
    #[inline]
    #[must_use]
    pub const fn is(self, other: Self) -> bool {
        self.code() == other.code()
    }

    /// Do Not Retry: the same command can never succeed.
    #[inline]
    #[must_use]
    pub const fn dnr(self) -> bool {
        self.0 & DNR != 0
    }

    /// More: the error log page has an entry about this command.
    #[inline]
    #[must_use]
    pub const fn more(self) -> bool {
        self.0 & MORE != 0
    }

    /// Command Retry Delay: 0, or which of the three CRDT fields the host waits for. wire §5.2
    #[inline]
    #[must_use]
    pub const fn crd(self) -> u8 {
        ((self.0 & CRD_MASK) >> CRD_SHIFT) as u8
    }

    /// With Do Not Retry set.
    #[inline]
    #[must_use]
    pub const fn with_dnr(self) -> Self {
        Self(self.0 | DNR)
    }

    /// With Do Not Retry cleared.
    #[inline]
    #[must_use]
    pub const fn without_dnr(self) -> Self {
        Self(self.0 & !DNR)
    }

    /// With More set.
    #[inline]
    #[must_use]
    pub const fn with_more(self) -> Self {
        Self(self.0 | MORE)
    }

    /// With a Command Retry Delay of 0..=3; higher bits are dropped.
    #[inline]
    #[must_use]
    pub const fn with_crd(self, crd: u8) -> Self {
        Self((self.0 & !CRD_MASK) | (((crd as u16) << CRD_SHIFT) & CRD_MASK))
    }

    /// The name of the code as the answer to a command of `table`; `None` if it has none.
    #[must_use]
    pub const fn name_in(self, table: StatusTable) -> Option<&'static str> {
        let code = self.code();
        match table {
            StatusTable::Fabrics => match fabrics_name(code) {
                Some(name) => Some(name),
                None => nvm_name(code),
            },
            StatusTable::Nvm => nvm_name(code),
        }
    }
}

impl fmt::Display for Status {
    /// Name, code, flags. Where the meaning depends on the command both names are given.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.code();
        match (nvm_name(code), fabrics_name(code)) {
            (Some(nvm), Some(fabrics)) => write!(f, "{nvm} / {fabrics}")?,
            (Some(name), None) | (None, Some(name)) => f.write_str(name)?,
            (None, None) => match self.kind() {
                StatusKind::Generic => f.write_str("unknown generic status")?,
                StatusKind::CommandSpecific => f.write_str("unknown command specific status")?,
                StatusKind::Media => f.write_str("unknown media status")?,
                StatusKind::Path => f.write_str("unknown path status")?,
                StatusKind::Vendor => f.write_str("vendor specific status")?,
                StatusKind::Reserved(_) => f.write_str("status of a reserved type")?,
            },
        }
        write!(f, " ({code:#05x})")?;
        if self.crd() != 0 {
            write!(f, ", retry delay {}", self.crd())?;
        }
        if self.more() {
            f.write_str(", more in the error log")?;
        }
        if self.dnr() {
            f.write_str(", do not retry")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({self})")
    }
}

/// Constants and the function that names their codes.
macro_rules! statuses {
    (
        $(#[$meta:meta])*
        fn $lookup:ident;
        $($code:literal $name:ident, $text:literal;)*
    ) => {
        impl Status {
            $(
                #[doc = concat!("`", stringify!($code), "` ", $text, ".")]
                pub const $name: Self = Self::from_code($code);
            )*
        }

        $(#[$meta])*
        const fn $lookup(code: u16) -> Option<&'static str> {
            match code {
                $($code => Some($text),)*
                _ => None,
            }
        }

        #[cfg(test)]
        mod $lookup {
            /// Every row of the table: constant's name, code, text.
            pub(super) const ROWS: &[(&str, super::Status, &str)] =
                &[$((stringify!($name), super::Status::$name, $text)),*];
        }
    };
}

statuses! {
    /// Names of the codes of admin and I/O commands.
    fn nvm_name;
    0x000 SUCCESS, "success";
    0x001 INVALID_OPCODE, "invalid command opcode";
    0x002 INVALID_FIELD, "invalid field in command";
    0x003 COMMAND_ID_CONFLICT, "command id conflict";
    0x004 DATA_TRANSFER_ERROR, "data transfer error";
    0x005 ABORTED_POWER_LOSS, "commands aborted due to power loss";
    0x006 INTERNAL_ERROR, "internal error";
    0x007 ABORT_REQUESTED, "command abort requested";
    0x008 ABORTED_SQ_DELETED, "command aborted due to SQ deletion";
    0x009 ABORTED_FAILED_FUSED, "command aborted due to failed fused command";
    0x00A ABORTED_MISSING_FUSED, "command aborted due to missing fused command";
    0x00B INVALID_NAMESPACE, "invalid namespace or format";
    0x00C COMMAND_SEQUENCE_ERROR, "command sequence error";
    0x00D INVALID_SGL_SEGMENT, "invalid SGL segment descriptor";
    0x00E INVALID_SGL_COUNT, "invalid number of SGL descriptors";
    0x00F DATA_SGL_LENGTH_INVALID, "data SGL length invalid";
    0x010 METADATA_SGL_LENGTH_INVALID, "metadata SGL length invalid";
    0x011 SGL_TYPE_INVALID, "SGL descriptor type invalid";
    0x012 INVALID_CMB_USE, "invalid use of controller memory buffer";
    0x013 PRP_OFFSET_INVALID, "PRP offset invalid";
    0x014 ATOMIC_WRITE_UNIT_EXCEEDED, "atomic write unit exceeded";
    0x015 OPERATION_DENIED, "operation denied";
    0x016 SGL_OFFSET_INVALID, "SGL offset invalid";
    0x018 HOST_ID_INCONSISTENT_FORMAT, "host identifier inconsistent format";
    0x019 KEEP_ALIVE_EXPIRED, "keep alive timer expired";
    0x01A KEEP_ALIVE_INVALID, "keep alive timeout invalid";
    0x01B ABORTED_PREEMPT, "command aborted due to preempt and abort";
    0x01C SANITIZE_FAILED, "sanitize failed";
    0x01D SANITIZE_IN_PROGRESS, "sanitize in progress";
    0x01E SGL_GRANULARITY_INVALID, "SGL data block granularity invalid";
    0x01F UNSUPPORTED_FOR_CMB_QUEUE, "command not supported for queue in CMB";
    0x020 NAMESPACE_WRITE_PROTECTED, "namespace is write protected";
    0x021 COMMAND_INTERRUPTED, "command interrupted";
    0x022 TRANSIENT_TRANSPORT_ERROR, "transient transport error";
    0x023 PROHIBITED_BY_LOCKDOWN, "command prohibited by command and feature lockdown";
    0x024 ADMIN_MEDIA_NOT_READY, "admin command media not ready";
    0x029 FDP_DISABLED, "FDP disabled";
    0x02A INVALID_PLACEMENT_HANDLE_LIST, "invalid placement handle list";
    // Linux has this code as generic, libnvme as command specific (0x12C). wire §17
    0x02C INVALID_COMMAND_SET_GENERIC, "invalid I/O command set";
    0x080 LBA_OUT_OF_RANGE, "LBA out of range";
    0x081 CAPACITY_EXCEEDED, "capacity exceeded";
    0x082 NAMESPACE_NOT_READY, "namespace not ready";
    0x083 RESERVATION_CONFLICT, "reservation conflict";
    0x084 FORMAT_IN_PROGRESS, "format in progress";
    0x085 INVALID_VALUE_SIZE, "invalid value size";
    0x086 INVALID_KEY_SIZE, "invalid key size";
    0x087 KEY_DOES_NOT_EXIST, "KV key does not exist";
    0x088 KV_UNRECOVERED_ERROR, "unrecovered error";
    0x089 KEY_EXISTS, "key exists";

    0x100 INVALID_CQ, "completion queue invalid";
    0x101 INVALID_QUEUE_ID, "invalid queue identifier";
    0x102 INVALID_QUEUE_SIZE, "invalid queue size";
    0x103 ABORT_LIMIT_EXCEEDED, "abort command limit exceeded";
    0x105 AER_LIMIT_EXCEEDED, "asynchronous event request limit exceeded";
    0x106 INVALID_FIRMWARE_SLOT, "invalid firmware slot";
    0x107 INVALID_FIRMWARE_IMAGE, "invalid firmware image";
    0x108 INVALID_INTERRUPT_VECTOR, "invalid interrupt vector";
    0x109 INVALID_LOG_PAGE, "invalid log page";
    0x10A INVALID_FORMAT, "invalid format";
    0x10B FIRMWARE_NEEDS_CONVENTIONAL_RESET, "firmware activation requires conventional reset";
    0x10C INVALID_QUEUE_DELETION, "invalid queue deletion";
    0x10D FEATURE_NOT_SAVEABLE, "feature identifier not saveable";
    0x10E FEATURE_NOT_CHANGEABLE, "feature not changeable";
    0x10F FEATURE_NOT_NAMESPACE_SPECIFIC, "feature not namespace specific";
    0x110 FIRMWARE_NEEDS_SUBSYSTEM_RESET, "firmware activation requires NVM subsystem reset";
    0x111 FIRMWARE_NEEDS_CONTROLLER_RESET, "firmware activation requires controller level reset";
    0x112 FIRMWARE_TIME_VIOLATION, "firmware activation requires maximum time violation";
    0x113 FIRMWARE_PROHIBITED, "firmware activation prohibited";
    0x114 OVERLAPPING_RANGE, "overlapping range";
    0x115 NAMESPACE_INSUFFICIENT_CAPACITY, "namespace insufficient capacity";
    0x116 NSID_UNAVAILABLE, "namespace identifier unavailable";
    0x118 NAMESPACE_ALREADY_ATTACHED, "namespace already attached";
    0x119 NAMESPACE_IS_PRIVATE, "namespace is private";
    0x11A NAMESPACE_NOT_ATTACHED, "namespace not attached";
    0x11B THIN_PROVISIONING_UNSUPPORTED, "thin provisioning not supported";
    0x11C CONTROLLER_LIST_INVALID, "controller list invalid";
    0x11F INVALID_CONTROLLER_ID, "invalid controller identifier";
    0x124 ANA_GROUP_INVALID, "ANA group identifier invalid";
    0x125 ANA_ATTACH_FAILED, "ANA attach failed";
    0x129 COMMAND_SET_UNSUPPORTED, "I/O command set not supported";
    0x12A COMMAND_SET_NOT_ENABLED, "I/O command set not enabled";
    0x12B COMMAND_SET_COMBINATION_REJECTED, "I/O command set combination rejected";
    0x12C INVALID_COMMAND_SET, "invalid I/O command set";
    0x12D IDENTIFIER_UNAVAILABLE, "identifier unavailable";
    0x12F INVALID_DISCOVERY_INFORMATION, "invalid discovery information";
    0x180 CONFLICTING_ATTRIBUTES, "conflicting attributes";
    0x181 INVALID_PROTECTION_INFORMATION, "invalid protection information";
    0x182 WRITE_TO_READ_ONLY_RANGE, "attempted write to read only range";
    0x183 COMMAND_SIZE_LIMIT_EXCEEDED, "command size limit exceeded";

    0x280 WRITE_FAULT, "write fault";
    0x281 UNRECOVERED_READ_ERROR, "unrecovered read error";
    0x282 GUARD_CHECK_ERROR, "end-to-end guard check error";
    0x283 APPLICATION_TAG_CHECK_ERROR, "end-to-end application tag check error";
    0x284 REFERENCE_TAG_CHECK_ERROR, "end-to-end reference tag check error";
    0x285 COMPARE_FAILURE, "compare failure";
    0x286 ACCESS_DENIED, "access denied";
    0x287 DEALLOCATED_OR_UNWRITTEN, "deallocated or unwritten logical block";
    0x288 STORAGE_TAG_CHECK_ERROR, "end-to-end storage tag check error";

    0x300 INTERNAL_PATH_ERROR, "internal path error";
    0x301 ANA_PERSISTENT_LOSS, "asymmetric access persistent loss";
    0x302 ANA_INACCESSIBLE, "asymmetric access inaccessible";
    0x303 ANA_TRANSITION, "asymmetric access transition";
    0x360 CONTROLLER_PATHING_ERROR, "controller pathing error";
    0x370 HOST_PATHING_ERROR, "host pathing error";
    0x371 ABORTED_BY_HOST, "command aborted by host";
}

statuses! {
    /// Names of the command-specific codes of Fabrics commands. wire §6.3
    fn fabrics_name;
    0x180 CONNECT_INCOMPATIBLE_FORMAT, "incompatible format";
    0x181 CONNECT_CONTROLLER_BUSY, "controller busy";
    0x182 CONNECT_INVALID_PARAMETERS, "connect invalid parameters";
    0x183 CONNECT_RESTART_DISCOVERY, "connect restart discovery";
    0x184 CONNECT_INVALID_HOST, "connect invalid host";
    0x185 DISCONNECT_INVALID_QUEUE_TYPE, "invalid queue type";
    0x190 DISCOVERY_RESTART, "discovery restart";
    0x191 AUTHENTICATION_REQUIRED, "authentication required";
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// wire §17
    #[test]
    fn the_word_has_each_field_where_the_reference_puts_it() {
        assert_eq!(Status::SUCCESS.to_wire(false), 0x0000);
        assert_eq!(Status::SUCCESS.to_wire(true), 0x0001);
        assert_eq!(Status::INVALID_FIELD.to_wire(false), 0x02 << 1);
        assert_eq!(Status::INVALID_FIELD.with_dnr().to_wire(false), 0x8004);
        assert_eq!(Status::COMPARE_FAILURE.to_wire(false), 2 << 9 | 0x85 << 1);
        assert_eq!(Status::ANA_TRANSITION.with_crd(2).to_wire(false), 2 << 12 | 3 << 9 | 3 << 1);
        assert_eq!(Status::INTERNAL_ERROR.with_more().to_wire(false), 1 << 14 | 6 << 1);
    }

    #[test]
    fn kinds_follow_the_type_field() {
        assert_eq!(Status::LBA_OUT_OF_RANGE.kind(), StatusKind::Generic);
        assert_eq!(Status::INVALID_LOG_PAGE.kind(), StatusKind::CommandSpecific);
        assert_eq!(Status::WRITE_FAULT.kind(), StatusKind::Media);
        assert_eq!(Status::ANA_INACCESSIBLE.kind(), StatusKind::Path);
        assert_eq!(Status::from_code(0x7C0).kind(), StatusKind::Vendor);
        assert_eq!(Status::from_code(0x400).kind(), StatusKind::Reserved(4));
    }

    #[test]
    fn codes_from_0x180_up_are_named_by_the_command_they_answer() {
        let status = Status::CONFLICTING_ATTRIBUTES;
        assert_eq!(status, Status::CONNECT_INCOMPATIBLE_FORMAT);
        assert_eq!(status.name_in(StatusTable::Nvm), Some("conflicting attributes"));
        assert_eq!(status.name_in(StatusTable::Fabrics), Some("incompatible format"));
        assert_eq!(Status::INVALID_FIELD.name_in(StatusTable::Fabrics), Some("invalid field in command"));
        assert_eq!(Status::AUTHENTICATION_REQUIRED.name_in(StatusTable::Nvm), None);
    }

    #[test]
    fn display_gives_name_code_and_flags() {
        let shown = [
            Status::SUCCESS,
            Status::INVALID_FIELD.with_dnr(),
            Status::NAMESPACE_NOT_READY.with_crd(1),
            Status::INTERNAL_ERROR.with_more().with_dnr(),
            Status::CONFLICTING_ATTRIBUTES.with_dnr(),
            Status::CONNECT_INVALID_HOST.with_dnr(),
            Status::from_code(0x07F),
            Status::from_code(0x17F),
            Status::from_code(0x2FF),
            Status::from_code(0x3FF),
            Status::from_code(0x4FF),
            Status::from_code(0x7FF),
        ]
        .map(|status| status.to_string())
        .join("\n");
        insta::assert_snapshot!(shown, @r"
        success (0x000)
        invalid field in command (0x002), do not retry
        namespace not ready (0x082), retry delay 1
        internal error (0x006), more in the error log, do not retry
        conflicting attributes / incompatible format (0x180), do not retry
        connect invalid host (0x184), do not retry
        unknown generic status (0x07f)
        unknown command specific status (0x17f)
        unknown media status (0x2ff)
        unknown path status (0x3ff)
        status of a reserved type (0x4ff)
        vendor specific status (0x7ff)
        ");
    }

    #[test]
    fn a_status_is_the_same_whatever_its_flags() {
        assert!(Status::INVALID_FIELD.with_dnr().with_more().is(Status::INVALID_FIELD));
        assert!(!Status::INVALID_FIELD.is(Status::INVALID_OPCODE));
        assert_eq!(format!("{:?}", Status::SUCCESS), "Status(success (0x000))");
    }

    #[test]
    fn every_constant_has_one_code_and_its_own_text() {
        for (constant, status, text) in nvm_name::ROWS {
            assert_eq!(nvm_name(status.code()), Some(*text), "{constant}");
        }
        for (constant, status, text) in fabrics_name::ROWS {
            assert_eq!(fabrics_name(status.code()), Some(*text), "{constant}");
        }
    }

    proptest! {
        #[test]
        fn every_word_comes_back_except_its_phase(word: u16, phase: bool) {
            let status = Status::from_wire(word);
            prop_assert_eq!(status.to_wire(word & 1 != 0), word);
            prop_assert_eq!(Status::from_wire(status.to_wire(phase)), status);
            let mut rebuilt = Status::from_code(status.code()).with_crd(status.crd());
            if status.dnr() { rebuilt = rebuilt.with_dnr(); }
            if status.more() { rebuilt = rebuilt.with_more(); }
            prop_assert_eq!(rebuilt, status);
            prop_assert!(status.with_dnr().dnr() && status.with_more().more());
            prop_assert!(!status.without_dnr().dnr());
            prop_assert_eq!(status.without_dnr().with_dnr(), status.with_dnr());
            let _ = status.to_string();
        }
    }
}
