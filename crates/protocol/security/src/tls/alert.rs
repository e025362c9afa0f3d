//! Alerts.

use core::fmt;

/// A fatal alert, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alert(pub u8);

impl Alert {
    /// The end of a session in good order.
    pub const CLOSE_NOTIFY: Self = Self(0);
    /// A message that does not belong here.
    pub const UNEXPECTED_MESSAGE: Self = Self(10);
    /// A record that is not what the peer sealed.
    pub const BAD_RECORD_MAC: Self = Self(20);
    /// A record with more than 16 KiB.
    pub const RECORD_OVERFLOW: Self = Self(22);
    /// Nothing in common, or anything else that TLS does not allow.
    pub const HANDSHAKE_FAILURE: Self = Self(40);
    /// A field with a value that the message does not have.
    pub const ILLEGAL_PARAMETER: Self = Self(47);
    /// A certificate that is not valid now.
    pub const CERTIFICATE_EXPIRED: Self = Self(45);
    /// A certificate that leads to no trusted authority.
    pub const UNKNOWN_CA: Self = Self(48);
    /// A message that cannot be read.
    pub const DECODE_ERROR: Self = Self(50);
    /// A proof that does not fit the key.
    pub const DECRYPT_ERROR: Self = Self(51);
    /// A version of TLS that is not spoken here.
    pub const PROTOCOL_VERSION: Self = Self(70);
    /// A failure of this end.
    pub const INTERNAL_ERROR: Self = Self(80);
    /// Something that TLS 1.3 asks for is not there.
    pub const MISSING_EXTENSION: Self = Self(109);
    /// No key of this identity.
    pub const UNKNOWN_PSK_IDENTITY: Self = Self(115);
    /// A client without a certificate, where one is required.
    pub const CERTIFICATE_REQUIRED: Self = Self(116);

    /// The alert as a record without encryption, for before there are keys.
    pub(super) const fn record(self) -> [u8; 7] {
        const ALERT_RECORD: u8 = 21;
        const FATAL: u8 = 2;
        [ALERT_RECORD, 3, 3, 0, 2, FATAL, self.0]
    }
}

impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            0 => "close_notify",
            10 => "unexpected_message",
            20 => "bad_record_mac",
            22 => "record_overflow",
            40 => "handshake_failure",
            42 => "bad_certificate",
            45 => "certificate_expired",
            46 => "certificate_unknown",
            47 => "illegal_parameter",
            48 => "unknown_ca",
            49 => "access_denied",
            50 => "decode_error",
            51 => "decrypt_error",
            70 => "protocol_version",
            71 => "insufficient_security",
            80 => "internal_error",
            90 => "user_canceled",
            109 => "missing_extension",
            110 => "unsupported_extension",
            115 => "unknown_psk_identity",
            116 => "certificate_required",
            other => return write!(f, "alert {other}"),
        };
        f.pad(name)
    }
}
