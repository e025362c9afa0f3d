//! The fixed newstyle negotiation: options, their replies, and information about exports.

/// What a server begins with, before its flags.
pub const GREETING_MAGIC: [u8; 16] = *b"NBDMAGICIHAVEOPT";
/// What an option begins with.
pub const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// What the reply to an option begins with.
pub const REPLY_MAGIC: u64 = 0x3_e889_0455_65a9;

/// Flag of both sides: the fixed newstyle negotiation.
pub const FIXED_NEWSTYLE: u32 = 1;
/// Flag of both sides: no padding behind the reply to [`option::EXPORT_NAME`].
pub const NO_ZEROES: u32 = 1 << 1;

/// Options.
pub mod option {
    /// Use this export, without a reply that could refuse it.
    pub const EXPORT_NAME: u32 = 1;
    /// End the negotiation.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Go on with TLS.
    pub const STARTTLS: u32 = 5;
    /// Tell about an export.
    pub const INFO: u32 = 6;
    /// Tell about an export, and use it.
    pub const GO: u32 = 7;
    /// Reply by chunks.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Heads with lengths of 64 bits.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of replies to options.
pub mod reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export.
    pub const SERVER: u32 = 2;
    /// Information about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The bit of all types that refuse.
    pub const IS_ERROR: u32 = 1 << 31;
    /// The option is not known.
    pub const ERR_UNSUP: u32 = IS_ERROR | 1;
    /// The server does not want to.
    pub const ERR_POLICY: u32 = IS_ERROR | 2;
    /// The option is malformed.
    pub const ERR_INVALID: u32 = IS_ERROR | 3;
    /// TLS is needed.
    pub const ERR_TLS_REQD: u32 = IS_ERROR | 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = IS_ERROR | 6;
    /// The server ends.
    pub const ERR_SHUTDOWN: u32 = IS_ERROR | 7;
    /// The option is too long.
    pub const ERR_TOO_BIG: u32 = IS_ERROR | 9;
    /// Extended headers were agreed on.
    pub const ERR_EXT_HEADER_REQD: u32 = IS_ERROR | 10;
}

/// Kinds of information about an export.
pub mod info {
    /// Its size and flags.
    pub const EXPORT: u16 = 0;
    /// Its name.
    pub const NAME: u16 = 1;
    /// A text for people.
    pub const DESCRIPTION: u16 = 2;
    /// Its block sizes.
    pub const BLOCK_SIZE: u16 = 3;
}
