//! Heads of replies, and of their chunks: what precedes the data, or all there is.
// Data from a client must not cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

use nbd_wire::ReplyForm;
use nbd_wire::chunk::{
    BLOCK_STATUS, BLOCK_STATUS_EXT, CHUNK_MAGIC, DONE, ERROR, ERROR_OFFSET, EXTENDED_MAGIC, NONE,
    OFFSET_DATA, SIMPLE_MAGIC,
};

use super::Refusal;

/// Longest text of an error, bytes.
const REASON_BYTES_MAX: usize = 80;

/// Longest head, bytes.
pub const REPLY_HEAD_BYTES_MAX: usize = 32 + 6 + REASON_BYTES_MAX + 8;

/// The head of a reply or chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReplyHead {
    bytes: [u8; REPLY_HEAD_BYTES_MAX],
    length: u8,
}

impl std::fmt::Debug for ReplyHead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReplyHead({:02x?})", self.as_bytes())
    }
}

impl ReplyHead {
    const fn empty() -> Self {
        Self { bytes: [0; REPLY_HEAD_BYTES_MAX], length: 0 }
    }

    /// The bytes.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }

    /// Adds bytes, of which there is room for all by [`REPLY_HEAD_BYTES_MAX`].
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let start = usize::from(self.length);
        let end = start.saturating_add(bytes.len());
        debug_assert!(end <= REPLY_HEAD_BYTES_MAX, "a head of {end} bytes");
        if let (Some(room), Ok(length)) = (self.bytes.get_mut(start..end), u8::try_from(end)) {
            room.copy_from_slice(bytes);
            self.length = length;
        }
    }

    fn simple(cookie: u64, errno: u32) -> Self {
        let mut head = Self::empty();
        head.put(&SIMPLE_MAGIC.to_be_bytes());
        head.put(&errno.to_be_bytes());
        head.put(&cookie.to_be_bytes());
        head
    }

    /// The head of a chunk with `length` bytes of payload. `offset` is that of the request.
    fn chunk(form: ReplyForm, cookie: u64, offset: u64, kind: u16, is_last: bool, length: u64) -> Self {
        let mut head = Self::empty();
        let flags = if is_last { DONE } else { 0 };
        let is_extended = form == ReplyForm::Extended;
        let magic = if is_extended { EXTENDED_MAGIC } else { CHUNK_MAGIC };
        head.put(&magic.to_be_bytes());
        head.put(&flags.to_be_bytes());
        head.put(&kind.to_be_bytes());
        head.put(&cookie.to_be_bytes());
        if is_extended {
            head.put(&offset.to_be_bytes());
            head.put(&length.to_be_bytes());
        } else {
            // No payload of ours is longer.
            head.put(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        }
        head
    }

    /// A reply without data: the request is done.
    #[must_use]
    pub fn done(form: ReplyForm, cookie: u64, offset: u64) -> Self {
        match form {
            ReplyForm::Simple => Self::simple(cookie, 0),
            _ => Self::chunk(form, cookie, offset, NONE, true, 0),
        }
    }

    /// A reply, or its last chunk: the request failed.
    #[must_use]
    pub fn failed(form: ReplyForm, cookie: u64, offset: u64, refusal: Refusal) -> Self {
        Self::error(form, cookie, offset, refusal, None, true)
    }

    /// A chunk of a read: the data from `at` on could not be read. Simple replies have no chunks.
    #[must_use]
    pub fn failed_at(
        form: ReplyForm,
        cookie: u64,
        offset: u64,
        refusal: Refusal,
        at: u64,
        is_last: bool,
    ) -> Self {
        Self::error(form, cookie, offset, refusal, Some(at), is_last)
    }

    #[expect(clippy::arithmetic_side_effects, reason = "a text of at most 80 bytes")]
    fn error(
        form: ReplyForm,
        cookie: u64,
        offset: u64,
        refusal: Refusal,
        at: Option<u64>,
        is_last: bool,
    ) -> Self {
        let errno = refusal.errno as u32;
        if form == ReplyForm::Simple {
            return Self::simple(cookie, errno);
        }
        let end = refusal.reason.floor_char_boundary(REASON_BYTES_MAX);
        let reason = refusal.reason.get(..end).unwrap_or_default();
        let at_bytes = if at.is_some() { 8 } else { 0 };
        let kind = if at.is_some() { ERROR_OFFSET } else { ERROR };
        let length = 6 + reason.len() as u64 + at_bytes;
        let mut head = Self::chunk(form, cookie, offset, kind, is_last, length);
        head.put(&errno.to_be_bytes());
        head.put(&u16::try_from(reason.len()).unwrap_or(0).to_be_bytes());
        head.put(reason.as_bytes());
        if let Some(at) = at {
            head.put(&at.to_be_bytes());
        }
        head
    }

    /// What precedes `length` bytes of read data: those from `at` on. A simple reply has all data of its request.
    #[inline]
    #[must_use]
    pub fn data(form: ReplyForm, cookie: u64, offset: u64, at: u64, length: u32, is_last: bool) -> Self {
        if form == ReplyForm::Simple {
            return Self::simple(cookie, 0);
        }
        let payload = u64::from(length).saturating_add(8);
        let mut head = Self::chunk(form, cookie, offset, OFFSET_DATA, is_last, payload);
        head.put(&at.to_be_bytes());
        head
    }

    /// What precedes the `bytes` of extents in `context`, which are the block status of a request.
    #[must_use]
    pub fn extents(form: ReplyForm, cookie: u64, offset: u64, context: u32, bytes: u32) -> Self {
        if form == ReplyForm::Extended {
            let length = u64::from(bytes).saturating_add(8);
            let mut head = Self::chunk(form, cookie, offset, BLOCK_STATUS_EXT, true, length);
            head.put(&context.to_be_bytes());
            head.put(&(bytes / 16).to_be_bytes());
            return head;
        }
        let length = u64::from(bytes).saturating_add(4);
        let mut head = Self::chunk(form, cookie, offset, BLOCK_STATUS, true, length);
        head.put(&context.to_be_bytes());
        head
    }

    /// The block status of the whole range of a request: one extent in `context` with these status bits. Of a longer range
    /// than the form can say, the beginning.
    #[must_use]
    pub fn one_extent(
        form: ReplyForm,
        cookie: u64,
        offset: u64,
        context: u32,
        length: u64,
        status: u32,
    ) -> Self {
        if form == ReplyForm::Extended {
            let mut head = Self::chunk(form, cookie, offset, BLOCK_STATUS_EXT, true, 24);
            head.put(&context.to_be_bytes());
            head.put(&1u32.to_be_bytes());
            head.put(&length.to_be_bytes());
            head.put(&u64::from(status).to_be_bytes());
            return head;
        }
        let mut head = Self::chunk(form, cookie, offset, BLOCK_STATUS, true, 12);
        head.put(&context.to_be_bytes());
        head.put(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        head.put(&status.to_be_bytes());
        head
    }
}

#[cfg(test)]
mod tests {
    use super::super::Errno;
    use super::*;

    const LONG: Refusal = Refusal::new(
        Errno::Inval,
        "a reason that is longer than the room that a head has for it, so that only its beginning is sent to the client",
    );

    #[test]
    fn heads_are_as_the_specification_draws_them() {
        let simple = ReplyHead::done(ReplyForm::Simple, 7, 512);
        assert_eq!(simple.as_bytes(), b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x07");
        let chunk = ReplyHead::data(ReplyForm::Structured, 7, 512, 1024, 512, true);
        let golden = b"\x66\x8e\x33\xef\0\x01\0\x01\0\0\0\0\0\0\0\x07\0\0\x02\x08\0\0\0\0\0\0\x04\0";
        assert_eq!(chunk.as_bytes(), golden);
        let extended = ReplyHead::done(ReplyForm::Extended, 7, 512);
        let golden = b"\x6e\x8a\x27\x8c\0\x01\0\0\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\0";
        assert_eq!(extended.as_bytes(), golden);
        let status = ReplyHead::one_extent(ReplyForm::Structured, 7, 0, 1, 4096, 0);
        let golden = b"\x66\x8e\x33\xef\0\x01\0\x05\0\0\0\0\0\0\0\x07\0\0\0\x0c\0\0\0\x01\0\0\x10\0\0\0\0\0";
        assert_eq!(status.as_bytes(), golden);
    }

    #[test]
    fn the_length_of_a_chunk_is_that_of_its_payload() {
        for (form, head_bytes) in [(ReplyForm::Structured, 20), (ReplyForm::Extended, 32)] {
            let refusal = Refusal::new(Errno::Io, "it failed");
            for head in [
                ReplyHead::done(form, 1, 2),
                ReplyHead::failed(form, 1, 2, refusal),
                ReplyHead::failed(form, 1, 2, LONG),
                ReplyHead::failed_at(form, 1, 2, LONG, 3, false),
                ReplyHead::one_extent(form, 1, 2, 1, u64::MAX, 0),
                ReplyHead::data(form, 1, 2, 3, 0, false),
            ] {
                let bytes = head.as_bytes();
                let length = u32::from_be_bytes(bytes[head_bytes - 4..head_bytes].try_into().unwrap());
                assert_eq!(bytes.len(), head_bytes + length as usize, "{head:?}");
            }
        }
    }

    #[test]
    fn extents_follow_their_head_as_in_a_reply_of_one() {
        for (form, extent) in [
            (ReplyForm::Structured, &b"\0\0\x10\0\0\0\0\x03"[..]),
            (ReplyForm::Extended, b"\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\x03"),
        ] {
            let mut whole =
                ReplyHead::extents(form, 7, 512, 1, u32::try_from(extent.len()).unwrap()).as_bytes().to_vec();
            whole.extend(extent);
            assert_eq!(whole, ReplyHead::one_extent(form, 7, 512, 1, 4096, 3).as_bytes());
        }
    }

    #[test]
    fn simple_replies_have_the_error_alone() {
        let failed = ReplyHead::failed(ReplyForm::Simple, 9, 0, LONG);
        assert_eq!(failed.as_bytes(), b"\x67\x44\x66\x98\0\0\0\x16\0\0\0\0\0\0\0\x09");
    }
}
