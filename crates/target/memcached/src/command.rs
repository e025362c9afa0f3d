//! One command on one key, in any of the encodings.

use crate::number;
use kv::Stored;

/// How a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Unconditionally.
    Set,
    /// If the key is absent.
    Add,
    /// If the key is present.
    Replace,
    /// Append to the present value.
    Append,
    /// Prepend to the present value.
    Prepend,
}

impl Mode {
    /// Whether it stores a value longer than that of the request.
    pub(crate) fn extends(self) -> bool {
        matches!(self, Self::Append | Self::Prepend)
    }

    /// Whether the whole value of an extension would be too long, which is answered as a missing one is.
    pub(crate) fn is_too_long(self, stored: Stored) -> bool {
        self.extends() && stored == Stored::TooLarge
    }
}

/// The operation of a command. Times are as the client sent them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `get`, `gets`, `gat`, `gats`: one key of the line.
    Get {
        /// Whether the answer has the CAS number: `gets`, `gats`.
        with_cas: bool,
        /// The new expiry: `gat`, `gats`.
        touch: Option<i64>,
    },
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`.
    Store {
        /// The mode.
        mode: Mode,
        /// The expected CAS number of `cas`.
        cas: Option<u64>,
        /// The client's flags.
        flags: u32,
        /// Expiry of the value.
        exptime: i64,
        /// Whether there is no answer.
        is_quiet: bool,
    },
    /// `delete`.
    Delete {
        /// Whether there is no answer.
        is_quiet: bool,
    },
    /// `incr`, `decr`.
    Arithmetic {
        /// Whether it is `decr`.
        is_decrement: bool,
        /// The amount.
        delta: u64,
        /// Whether there is no answer.
        is_quiet: bool,
    },
    /// `touch`.
    Touch {
        /// The new expiry.
        exptime: i64,
        /// Whether there is no answer.
        is_quiet: bool,
    },
    /// A store whose value is too large, or for which there is no memory. A `set` removes the old value.
    Refused {
        /// Whether it removes the old value.
        removes: bool,
        /// Whether the reason is a lack of memory.
        is_memory: bool,
        /// Whether there is no answer.
        is_quiet: bool,
        /// The header, if it came in the binary protocol.
        binary: Option<Header>,
    },
    /// A meta command; its second letter. Its flags are in the command's `extra`.
    Meta(u8),
    /// A command of the binary protocol.
    Binary(Header),
    /// A piece of a dump. In place of a key, the command has the position at which it begins.
    Dump(DumpForm),
}

/// The fields of a binary request's header that its execution and response need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The opcode.
    pub opcode: u8,
    /// The opaque field, repeated in the response.
    pub opaque: u32,
    /// The CAS number that the value must have, or 0.
    pub cas: u64,
}

/// The form of a dump of all keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpForm {
    /// `metadump`: a line of fields for each key.
    Fields,
    /// `mgdump`: an `mg` command for each key.
    Commands,
    /// `stats cachedump`: length and expiry of each key that a line of text can have.
    Items {
        /// How many keys are left to list; `None` for all.
        left: Option<u32>,
    },
}

impl DumpForm {
    /// The answer to a dump while earlier commands are not answered yet; `None` if it may follow them.
    pub(crate) fn refusal(self) -> Option<&'static [u8]> {
        match self {
            Self::Fields => Some(b"ERROR cannot pipeline other commands before metadump\r\n"),
            Self::Commands => Some(b"ERROR cannot pipeline other commands before mgdump\r\n"),
            Self::Items { .. } => None,
        }
    }

    /// The line before all keys.
    pub(crate) fn start(self) -> &'static [u8] {
        match self {
            Self::Fields | Self::Commands => b"OK\r\n",
            Self::Items { .. } => b"",
        }
    }

    /// The line after all keys.
    pub(crate) fn end(self) -> &'static [u8] {
        match self {
            Self::Fields | Self::Items { .. } => b"END\r\n",
            Self::Commands => b"EN\r\n",
        }
    }
}

/// One command on one key.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    /// The operation.
    pub verb: Verb,
    /// The key as received.
    pub key: &'a [u8],
    /// The value of the request.
    pub value: &'a [u8],
    /// Meta: the flags as received. Binary: the extras.
    pub extra: &'a [u8],
    /// Meta: whether the key is in base64, in the request and the response.
    pub is_base64: bool,
}

impl Verb {
    /// Whether there is no answer, not even to an error: `noreply`. The meta protocol answers errors in spite of its
    /// flag `q`.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        match *self {
            Self::Store { is_quiet, .. }
            | Self::Delete { is_quiet }
            | Self::Arithmetic { is_quiet, .. }
            | Self::Touch { is_quiet, .. }
            | Self::Refused { is_quiet, .. } => is_quiet,
            Self::Get { .. } | Self::Meta(_) | Self::Binary(_) | Self::Dump(_) => false,
        }
    }

    /// Whether execution needs the present value.
    #[must_use]
    pub fn needs_value(&self) -> bool {
        !matches!(
            self,
            Self::Store { mode: Mode::Set | Mode::Add | Mode::Replace, .. }
                | Self::Delete { .. }
                | Self::Refused { .. }
                | Self::Dump(_)
        )
    }

    /// Whether execution depends on whether there is a value.
    #[must_use]
    pub fn needs_presence(&self) -> bool {
        !matches!(
            self,
            Self::Store { mode: Mode::Set, .. } | Self::Refused { removes: false, .. } | Self::Dump(_)
        )
    }
}

impl<'a> Command<'a> {
    /// An empty command, to be overwritten.
    pub const NONE: Command<'static> = Command {
        verb: Verb::Get { with_cas: false, touch: None },
        key: &[],
        value: &[],
        extra: &[],
        is_base64: false,
    };

    /// Whether execution may change the pair, apart from the marks of a stale value.
    #[must_use]
    pub fn may_change(&self) -> bool {
        match self.verb {
            Verb::Get { touch, .. } => touch.is_some(),
            Verb::Refused { removes, .. } => removes,
            Verb::Dump(_) => false,
            // Of the flags, those with a time may create or touch it. A letter in another one's token does no harm.
            Verb::Meta(b'g') => self.extra.iter().any(|letter| b"NT".contains(letter)),
            _ => true,
        }
    }

    /// The key as it is stored. `room` receives a key that must be decoded.
    #[inline]
    #[must_use]
    pub fn stored_key<'r>(&self, room: &'r mut [u8; kv::KEY_BYTES_MAX]) -> &'r [u8]
    where
        'a: 'r,
    {
        if !self.is_base64 {
            return self.key;
        }
        // The decoder has checked it.
        let length = number::decode_base64(self.key, room).unwrap_or(0);
        &room[..length]
    }
}
