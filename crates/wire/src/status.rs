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
        $($name:ident = $code:literal, $text:literal;)*
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
    SUCCESS = 0x000, "success";
    INVALID_OPCODE = 0x001, "invalid command opcode";
    INVALID_FIELD = 0x002, "invalid field in command";
    COMMAND_ID_CONFLICT = 0x003, "command id conflict";
    DATA_TRANSFER_ERROR = 0x004, "data transfer error";
    ABORTED_POWER_LOSS = 0x005, "commands aborted due to power loss";
    INTERNAL_ERROR = 0x006, "internal error";
    ABORT_REQUESTED = 0x007, "command abort requested";
    ABORTED_SQ_DELETED = 0x008, "command aborted due to SQ deletion";
    ABORTED_FAILED_FUSED = 0x009, "command aborted due to failed fused command";
    ABORTED_MISSING_FUSED = 0x00A, "command aborted due to missing fused command";
    INVALID_NAMESPACE = 0x00B, "invalid namespace or format";
    COMMAND_SEQUENCE_ERROR = 0x00C, "command sequence error";
    INVALID_SGL_SEGMENT = 0x00D, "invalid SGL segment descriptor";
    INVALID_SGL_COUNT = 0x00E, "invalid number of SGL descriptors";
    DATA_SGL_LENGTH_INVALID = 0x00F, "data SGL length invalid";
    METADATA_SGL_LENGTH_INVALID = 0x010, "metadata SGL length invalid";
    SGL_TYPE_INVALID = 0x011, "SGL descriptor type invalid";
    INVALID_CMB_USE = 0x012, "invalid use of controller memory buffer";
    PRP_OFFSET_INVALID = 0x013, "PRP offset invalid";
    ATOMIC_WRITE_UNIT_EXCEEDED = 0x014, "atomic write unit exceeded";
    OPERATION_DENIED = 0x015, "operation denied";
    SGL_OFFSET_INVALID = 0x016, "SGL offset invalid";
    HOST_ID_INCONSISTENT_FORMAT = 0x018, "host identifier inconsistent format";
    KEEP_ALIVE_EXPIRED = 0x019, "keep alive timer expired";
    KEEP_ALIVE_INVALID = 0x01A, "keep alive timeout invalid";
    ABORTED_PREEMPT = 0x01B, "command aborted due to preempt and abort";
    SANITIZE_FAILED = 0x01C, "sanitize failed";
    SANITIZE_IN_PROGRESS = 0x01D, "sanitize in progress";
    SGL_GRANULARITY_INVALID = 0x01E, "SGL data block granularity invalid";
    UNSUPPORTED_FOR_CMB_QUEUE = 0x01F, "command not supported for queue in CMB";
    NAMESPACE_WRITE_PROTECTED = 0x020, "namespace is write protected";
    COMMAND_INTERRUPTED = 0x021, "command interrupted";
    TRANSIENT_TRANSPORT_ERROR = 0x022, "transient transport error";
    PROHIBITED_BY_LOCKDOWN = 0x023, "command prohibited by command and feature lockdown";
    ADMIN_MEDIA_NOT_READY = 0x024, "admin command media not ready";
    FDP_DISABLED = 0x029, "FDP disabled";
    INVALID_PLACEMENT_HANDLE_LIST = 0x02A, "invalid placement handle list";
    // Linux has this code as generic, libnvme as command specific (0x12C). wire §17
    INVALID_COMMAND_SET_GENERIC = 0x02C, "invalid I/O command set";
    LBA_OUT_OF_RANGE = 0x080, "LBA out of range";
    CAPACITY_EXCEEDED = 0x081, "capacity exceeded";
    NAMESPACE_NOT_READY = 0x082, "namespace not ready";
    RESERVATION_CONFLICT = 0x083, "reservation conflict";
    FORMAT_IN_PROGRESS = 0x084, "format in progress";
    INVALID_VALUE_SIZE = 0x085, "invalid value size";
    INVALID_KEY_SIZE = 0x086, "invalid key size";
    KEY_DOES_NOT_EXIST = 0x087, "KV key does not exist";
    KV_UNRECOVERED_ERROR = 0x088, "unrecovered error";
    KEY_EXISTS = 0x089, "key exists";

    INVALID_CQ = 0x100, "completion queue invalid";
    INVALID_QUEUE_ID = 0x101, "invalid queue identifier";
    INVALID_QUEUE_SIZE = 0x102, "invalid queue size";
    ABORT_LIMIT_EXCEEDED = 0x103, "abort command limit exceeded";
    AER_LIMIT_EXCEEDED = 0x105, "asynchronous event request limit exceeded";
    INVALID_FIRMWARE_SLOT = 0x106, "invalid firmware slot";
    INVALID_FIRMWARE_IMAGE = 0x107, "invalid firmware image";
    INVALID_INTERRUPT_VECTOR = 0x108, "invalid interrupt vector";
    INVALID_LOG_PAGE = 0x109, "invalid log page";
    INVALID_FORMAT = 0x10A, "invalid format";
    FIRMWARE_NEEDS_CONVENTIONAL_RESET = 0x10B, "firmware activation requires conventional reset";
    INVALID_QUEUE_DELETION = 0x10C, "invalid queue deletion";
    FEATURE_NOT_SAVEABLE = 0x10D, "feature identifier not saveable";
    FEATURE_NOT_CHANGEABLE = 0x10E, "feature not changeable";
    FEATURE_NOT_NAMESPACE_SPECIFIC = 0x10F, "feature not namespace specific";
    FIRMWARE_NEEDS_SUBSYSTEM_RESET = 0x110, "firmware activation requires NVM subsystem reset";
    FIRMWARE_NEEDS_CONTROLLER_RESET = 0x111, "firmware activation requires controller level reset";
    FIRMWARE_TIME_VIOLATION = 0x112, "firmware activation requires maximum time violation";
    FIRMWARE_PROHIBITED = 0x113, "firmware activation prohibited";
    OVERLAPPING_RANGE = 0x114, "overlapping range";
    NAMESPACE_INSUFFICIENT_CAPACITY = 0x115, "namespace insufficient capacity";
    NSID_UNAVAILABLE = 0x116, "namespace identifier unavailable";
    NAMESPACE_ALREADY_ATTACHED = 0x118, "namespace already attached";
    NAMESPACE_IS_PRIVATE = 0x119, "namespace is private";
    NAMESPACE_NOT_ATTACHED = 0x11A, "namespace not attached";
    THIN_PROVISIONING_UNSUPPORTED = 0x11B, "thin provisioning not supported";
    CONTROLLER_LIST_INVALID = 0x11C, "controller list invalid";
    INVALID_CONTROLLER_ID = 0x11F, "invalid controller identifier";
    ANA_GROUP_INVALID = 0x124, "ANA group identifier invalid";
    ANA_ATTACH_FAILED = 0x125, "ANA attach failed";
    COMMAND_SET_UNSUPPORTED = 0x129, "I/O command set not supported";
    COMMAND_SET_NOT_ENABLED = 0x12A, "I/O command set not enabled";
    COMMAND_SET_COMBINATION_REJECTED = 0x12B, "I/O command set combination rejected";
    INVALID_COMMAND_SET = 0x12C, "invalid I/O command set";
    IDENTIFIER_UNAVAILABLE = 0x12D, "identifier unavailable";
    INVALID_DISCOVERY_INFORMATION = 0x12F, "invalid discovery information";
    CONFLICTING_ATTRIBUTES = 0x180, "conflicting attributes";
    INVALID_PROTECTION_INFORMATION = 0x181, "invalid protection information";
    WRITE_TO_READ_ONLY_RANGE = 0x182, "attempted write to read only range";
    COMMAND_SIZE_LIMIT_EXCEEDED = 0x183, "command size limit exceeded";

    WRITE_FAULT = 0x280, "write fault";
    UNRECOVERED_READ_ERROR = 0x281, "unrecovered read error";
    GUARD_CHECK_ERROR = 0x282, "end-to-end guard check error";
    APPLICATION_TAG_CHECK_ERROR = 0x283, "end-to-end application tag check error";
    REFERENCE_TAG_CHECK_ERROR = 0x284, "end-to-end reference tag check error";
    COMPARE_FAILURE = 0x285, "compare failure";
    ACCESS_DENIED = 0x286, "access denied";
    DEALLOCATED_OR_UNWRITTEN = 0x287, "deallocated or unwritten logical block";
    STORAGE_TAG_CHECK_ERROR = 0x288, "end-to-end storage tag check error";

    INTERNAL_PATH_ERROR = 0x300, "internal path error";
    ANA_PERSISTENT_LOSS = 0x301, "asymmetric access persistent loss";
    ANA_INACCESSIBLE = 0x302, "asymmetric access inaccessible";
    ANA_TRANSITION = 0x303, "asymmetric access transition";
    CONTROLLER_PATHING_ERROR = 0x360, "controller pathing error";
    HOST_PATHING_ERROR = 0x370, "host pathing error";
    ABORTED_BY_HOST = 0x371, "command aborted by host";
}

statuses! {
    /// Names of the command-specific codes of Fabrics commands. wire §6.3
    fn fabrics_name;
    CONNECT_INCOMPATIBLE_FORMAT = 0x180, "incompatible format";
    CONNECT_CONTROLLER_BUSY = 0x181, "controller busy";
    CONNECT_INVALID_PARAMETERS = 0x182, "connect invalid parameters";
    CONNECT_RESTART_DISCOVERY = 0x183, "connect restart discovery";
    CONNECT_INVALID_HOST = 0x184, "connect invalid host";
    DISCONNECT_INVALID_QUEUE_TYPE = 0x185, "invalid queue type";
    DISCOVERY_RESTART = 0x190, "discovery restart";
    AUTHENTICATION_REQUIRED = 0x191, "authentication required";
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
