//! One command on one key, in whichever encoding it came.

use crate::number;

/// How a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In any case.
    Set,
    /// If there is none.
    Add,
    /// If there is one.
    Replace,
    /// Behind the one there.
    Append,
    /// Before the one there.
    Prepend,
}

/// What a command does. Times are as the client gave them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `get`, `gets`, `gat`, `gats`: one of the keys.
    Get {
        /// `gets`, `gats`.
        with_cas: bool,
        /// `gat`, `gats`.
        touch: Option<i64>,
    },
    /// `set` and its like.
    Store {
        /// Which of them.
        mode: Mode,
        /// Of `cas`.
        cas: Option<u64>,
        /// The client's.
        flags: u32,
        /// When the value ends.
        exptime: i64,
        /// No answer.
        is_quiet: bool,
    },
    /// `delete`.
    Delete {
        /// No answer.
        is_quiet: bool,
    },
    /// `incr`, `decr`.
    Arithmetic {
        /// `decr`.
        is_decrement: bool,
        /// By how much.
        delta: u64,
        /// No answer.
        is_quiet: bool,
    },
    /// `touch`.
    Touch {
        /// When the value ends.
        exptime: i64,
        /// No answer.
        is_quiet: bool,
    },
    /// A value that was too large, or that there is no memory for: the old one goes, if it was a `set`.
    Refused {
        /// Whether it was.
        removes: bool,
        /// Whether it is memory that there is not enough of.
        is_memory: bool,
        /// No answer.
        is_quiet: bool,
    },
    /// A meta command, by its second letter. Its flags are in the command's `extra`.
    Meta(u8),
    /// A command of the binary protocol.
    Binary(Header),
}

/// What an answer of the binary protocol repeats, and what else its request's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What is asked for.
    pub opcode: u8,
    /// Repeated in the answer.
    pub opaque: u32,
    /// The number the value must have, or 0.
    pub cas: u64,
}

/// One command on one key.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    /// What it does.
    pub verb: Verb,
    /// On which key, as it came.
    pub key: &'a [u8],
    /// The value it brings.
    pub value: &'a [u8],
    /// Meta: the flags as they came. Binary: the extras.
    pub extra: &'a [u8],
    /// Meta: whether the key came in base64, and is given back so.
    pub is_base64: bool,
}

impl Verb {
    /// Whether it cannot be carried out without the value that is there.
    #[must_use]
    pub fn needs_value(&self) -> bool {
        !matches!(
            self,
            Self::Store { mode: Mode::Set | Mode::Add | Mode::Replace, .. }
                | Self::Delete { .. }
                | Self::Refused { .. }
        )
    }
}

impl<'a> Command<'a> {
    /// Room for one.
    pub const NONE: Command<'static> = Command {
        verb: Verb::Get { with_cas: false, touch: None },
        key: &[],
        value: &[],
        extra: &[],
        is_base64: false,
    };

    /// The key as it is stored. `room` is for one that has to be decoded.
    #[inline]
    #[must_use]
    pub fn stored_key<'r>(&self, room: &'r mut [u8; kv::KEY_BYTES_MAX]) -> &'r [u8]
    where
        'a: 'r,
    {
        if !self.is_base64 {
            return self.key;
        }
        // The decoder has let it pass.
        let length = number::decode_base64(self.key, room).unwrap_or(0);
        &room[..length]
    }
}
