//! What was agreed in the handshake, and the judgement of requests by it.
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

use nbd_wire::command::{BLOCK_STATUS, CACHE, DISCONNECT, FLUSH, READ, TRIM, WRITE, WRITE_ZEROES};
use nbd_wire::{CommandFlags, ExportFlags, PAYLOAD_BYTES_MAX, ReplyForm, Request, RequestViolation};

use super::export::Export;
use super::{Errno, Refusal};

/// Longest payload that is received and dropped, bytes, if its request is refused.
const DROPPED_BYTES_MAX: u64 = 64 << 20;

/// What client and server agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The export.
    pub export: Export,
    /// The form of replies.
    pub form: ReplyForm,
    /// The client asked for the block status of `base:allocation`.
    pub has_block_status: bool,
}

/// What a request asks for; its range was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Read the range. If `is_whole`, the data goes out in one piece.
    Read {
        /// In one piece.
        is_whole: bool,
    },
    /// Write the payload.
    Write {
        /// Durable before the reply.
        is_durable: bool,
    },
    /// Make all completed writes durable.
    Flush,
    /// Deallocate the range.
    Trim {
        /// Durable before the reply.
        is_durable: bool,
    },
    /// Write zeroes.
    WriteZeroes {
        /// The blocks may be deallocated.
        may_deallocate: bool,
        /// Durable before the reply.
        is_durable: bool,
    },
    /// Advice that the range will be read.
    Cache,
    /// Tell which parts of the range are allocated.
    BlockStatus {
        /// Only of the first part.
        is_single: bool,
    },
    /// The client ends the connection, without a reply.
    Disconnect,
}

impl Task {
    /// Whether it changes data that only a later Flush makes durable.
    #[inline]
    #[must_use]
    pub fn leaves_unflushed(self) -> bool {
        matches!(
            self,
            Self::Write { is_durable: false }
                | Self::Trim { .. }
                | Self::WriteZeroes { is_durable: false, .. }
        )
    }
}

const UNALIGNED: Refusal =
    Refusal::new(Errno::Inval, "offset and length must be multiples of the block size");
const EMPTY: Refusal = Refusal::new(Errno::Inval, "a length of 0");
const FLAGS: Refusal = Refusal::new(Errno::Inval, "a flag that this command does not have");
const UNKNOWN: Refusal = Refusal::new(Errno::Inval, "an unknown command");
const BEYOND_END: Refusal = Refusal::new(Errno::Inval, "beyond the end of the export");
const NO_ROOM: Refusal = Refusal::new(Errno::NoSpace, "beyond the end of the export");
const TOO_LONG: Refusal = Refusal::new(Errno::Inval, "longer than the maximum that the server has told");
const TOO_LONG_FOR_ONE_CHUNK: Refusal = Refusal::new(Errno::Overflow, "too long for one chunk");
const READ_ONLY: Refusal = Refusal::new(Errno::Perm, "the export is read-only");
const NO_PAYLOAD_LENGTH: Refusal = Refusal::new(Errno::Inval, "a write without the flag of its payload");
const NO_TRIM: Refusal = Refusal::new(Errno::Inval, "the namespace does not support Trim");
const NO_WRITE_ZEROES: Refusal = Refusal::new(Errno::Inval, "the namespace does not support Write Zeroes");
const NOT_FAST: Refusal = Refusal::new(Errno::NotSup, "zeroes would not be faster than a write");
const NO_CONTEXT: Refusal = Refusal::new(Errno::Inval, "no metadata context was negotiated");

impl Session {
    /// Bytes behind the head of a request that belong to it.
    ///
    /// # Errors
    /// [`RequestViolation::Payload`]: more than is received only to be dropped.
    #[inline]
    pub fn payload_bytes(&self, request: &Request) -> Result<u64, RequestViolation> {
        let has_payload = match self.form {
            ReplyForm::Extended => request.flags.has(CommandFlags::PAYLOAD_LEN),
            ReplyForm::Simple | ReplyForm::Structured => request.command == WRITE,
        };
        match request.length {
            _ if !has_payload => Ok(0),
            length if length > DROPPED_BYTES_MAX => {
                Err(RequestViolation::Payload { length, limit: DROPPED_BYTES_MAX })
            }
            length => Ok(length),
        }
    }

    /// What a request asks for.
    ///
    /// # Errors
    /// [`Refusal`]: what the client is answered. The payload, if there is one, is to be dropped.
    #[inline]
    pub fn judge(&self, request: &Request) -> Result<Task, Refusal> {
        let flags = request.flags;
        let is_durable = flags.has(CommandFlags::FUA);
        let allowed: &[CommandFlags] = match (request.command, self.form) {
            (READ, _) => &[CommandFlags::DF, CommandFlags::FUA],
            (WRITE, ReplyForm::Extended) => &[CommandFlags::FUA, CommandFlags::PAYLOAD_LEN],
            (WRITE_ZEROES, _) => &[CommandFlags::FUA, CommandFlags::NO_HOLE, CommandFlags::FAST_ZERO],
            (BLOCK_STATUS, _) => &[CommandFlags::REQ_ONE, CommandFlags::FUA],
            (DISCONNECT, _) => return Ok(Task::Disconnect),
            // FUA has a meaning for few commands, and is allowed with all.
            _ => &[CommandFlags::FUA],
        };
        if !flags.is_within(allowed) {
            return Err(FLAGS);
        }
        match request.command {
            READ => self.judge_read(request),
            WRITE => {
                if self.form == ReplyForm::Extended && !flags.has(CommandFlags::PAYLOAD_LEN) {
                    return Err(NO_PAYLOAD_LENGTH);
                }
                self.check_writable()?;
                self.check_range(request, NO_ROOM)?;
                self.check_length(request)?;
                Ok(Task::Write { is_durable })
            }
            FLUSH if request.offset == 0 && request.length == 0 => Ok(Task::Flush),
            FLUSH => Err(Refusal::new(Errno::Inval, "a Flush has no range")),
            TRIM => {
                self.check_writable()?;
                self.check_flag(ExportFlags::TRIM, NO_TRIM)?;
                self.check_range(request, BEYOND_END)?;
                Ok(Task::Trim { is_durable })
            }
            CACHE => {
                self.check_range(request, BEYOND_END)?;
                Ok(Task::Cache)
            }
            WRITE_ZEROES => {
                self.check_writable()?;
                self.check_flag(ExportFlags::WRITE_ZEROES, NO_WRITE_ZEROES)?;
                self.check_range(request, NO_ROOM)?;
                let may_deallocate = !flags.has(CommandFlags::NO_HOLE);
                let is_fast = may_deallocate && self.export.zeroes_fast;
                if flags.has(CommandFlags::FAST_ZERO) && !is_fast {
                    return Err(NOT_FAST);
                }
                Ok(Task::WriteZeroes { may_deallocate, is_durable })
            }
            BLOCK_STATUS => {
                if !self.has_block_status {
                    return Err(NO_CONTEXT);
                }
                self.check_range(request, BEYOND_END)?;
                Ok(Task::BlockStatus { is_single: flags.has(CommandFlags::REQ_ONE) })
            }
            _ => Err(UNKNOWN),
        }
    }

    #[inline]
    fn judge_read(&self, request: &Request) -> Result<Task, Refusal> {
        self.check_range(request, BEYOND_END)?;
        self.check_length(request)?;
        let whole_max = u64::from(self.export.whole_read_bytes_max);
        let wants_one_chunk = request.flags.has(CommandFlags::DF);
        match self.form {
            ReplyForm::Simple if wants_one_chunk => Err(FLAGS),
            ReplyForm::Simple if request.length > whole_max => Err(TOO_LONG),
            _ if wants_one_chunk && request.length > whole_max => Err(TOO_LONG_FOR_ONE_CHUNK),
            form => Ok(Task::Read { is_whole: form == ReplyForm::Simple || wants_one_chunk }),
        }
    }

    #[inline]
    fn check_writable(&self) -> Result<(), Refusal> {
        if self.export.flags.has(ExportFlags::READ_ONLY) { Err(READ_ONLY) } else { Ok(()) }
    }

    #[inline]
    fn check_flag(&self, flag: ExportFlags, refusal: Refusal) -> Result<(), Refusal> {
        if self.export.flags.has(flag) { Ok(()) } else { Err(refusal) }
    }

    #[inline]
    fn check_range(&self, request: &Request, beyond: Refusal) -> Result<(), Refusal> {
        let block_bytes = u64::from(self.export.block_bytes);
        if request.length == 0 {
            return Err(EMPTY);
        }
        if !request.offset.is_multiple_of(block_bytes) || !request.length.is_multiple_of(block_bytes) {
            return Err(UNALIGNED);
        }
        match request.offset.checked_add(request.length) {
            Some(end) if end <= self.export.size_bytes => Ok(()),
            _ => Err(beyond),
        }
    }

    #[inline]
    fn check_length(&self, request: &Request) -> Result<(), Refusal> {
        if request.length > PAYLOAD_BYTES_MAX.into() { Err(TOO_LONG) } else { Ok(()) }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 1 MiB of 4096-byte blocks.
    pub(crate) fn export() -> Export {
        let flags = ExportFlags::BASE.with(ExportFlags::TRIM).with(ExportFlags::WRITE_ZEROES);
        Export {
            name: "disk".into(),
            description: "a disk".into(),
            size_bytes: 1 << 20,
            block_bytes: 4096,
            preferred_bytes: 4096,
            whole_read_bytes_max: 64 << 10,
            flags: flags.with(ExportFlags::DF).with(ExportFlags::FAST_ZERO).with(ExportFlags::CACHE),
            zeroes_fast: true,
        }
    }

    fn session(form: ReplyForm) -> Session {
        Session { export: export(), form, has_block_status: form != ReplyForm::Simple }
    }

    fn request(command: u16, flags: u16, offset: u64, length: u64) -> Request {
        Request { flags: CommandFlags(flags), command, cookie: 1, offset, length }
    }

    fn errno(session: &Session, request: &Request) -> Option<Errno> {
        session.judge(request).err().map(|refusal| refusal.errno)
    }

    #[test]
    fn each_command_has_its_task() {
        let structured = session(ReplyForm::Structured);
        let judge = |command, flags| structured.judge(&request(command, flags, 4096, 8192));
        assert_eq!(judge(READ, 0), Ok(Task::Read { is_whole: false }));
        assert_eq!(judge(READ, 4), Ok(Task::Read { is_whole: true }));
        assert_eq!(judge(WRITE, 1), Ok(Task::Write { is_durable: true }));
        assert_eq!(judge(TRIM, 0), Ok(Task::Trim { is_durable: false }));
        let zeroes = |may_deallocate| Ok(Task::WriteZeroes { may_deallocate, is_durable: false });
        assert_eq!(judge(WRITE_ZEROES, 0), zeroes(true));
        assert_eq!(judge(WRITE_ZEROES, 2), zeroes(false));
        assert_eq!(judge(WRITE_ZEROES, 16), zeroes(true));
        assert_eq!(judge(CACHE, 0), Ok(Task::Cache));
        assert_eq!(judge(BLOCK_STATUS, 0), Ok(Task::BlockStatus { is_single: false }));
        assert_eq!(judge(BLOCK_STATUS, 8), Ok(Task::BlockStatus { is_single: true }));
        assert_eq!(judge(DISCONNECT, 0), Ok(Task::Disconnect));
        assert_eq!(structured.judge(&request(FLUSH, 0, 0, 0)), Ok(Task::Flush));
        let simple = session(ReplyForm::Simple);
        assert_eq!(simple.judge(&request(READ, 0, 0, 4096)), Ok(Task::Read { is_whole: true }));
        let extended = session(ReplyForm::Extended);
        assert_eq!(extended.judge(&request(WRITE, 32, 0, 4096)), Ok(Task::Write { is_durable: false }));
    }

    #[test]
    fn what_cannot_be_done_gets_its_error() {
        let structured = session(ReplyForm::Structured);
        let simple = session(ReplyForm::Simple);
        let extended = session(ReplyForm::Extended);
        for (session, request, expected) in [
            (&structured, request(READ, 0, 512, 4096), Errno::Inval),
            (&structured, request(WRITE, 0, 0, 512), Errno::Inval),
            (&structured, request(READ, 0, 0, 0), Errno::Inval),
            (&structured, request(READ, 0, 1 << 20, 4096), Errno::Inval),
            (&structured, request(WRITE, 0, 1 << 20, 4096), Errno::NoSpace),
            (&structured, request(WRITE, 0, u64::MAX - 4095, 4096), Errno::NoSpace),
            (&structured, request(WRITE_ZEROES, 0, 0, 2 << 20), Errno::NoSpace),
            (&structured, request(TRIM, 0, 0, 2 << 20), Errno::Inval),
            (&structured, request(WRITE_ZEROES, 18, 0, 4096), Errno::NotSup),
            (&structured, request(READ, 4, 0, 128 << 10), Errno::Overflow),
            (&structured, request(READ, 8, 0, 4096), Errno::Inval),
            (&structured, request(FLUSH, 0, 0, 4096), Errno::Inval),
            (&structured, request(8, 0, 0, 4096), Errno::Inval),
            (&structured, request(WRITE, 32, 0, 4096), Errno::Inval),
            (&simple, request(READ, 0, 0, 128 << 10), Errno::Inval),
            (&simple, request(READ, 4, 0, 4096), Errno::Inval),
            (&simple, request(BLOCK_STATUS, 0, 0, 4096), Errno::Inval),
            (&structured, request(BLOCK_STATUS, 0, 0, 0), Errno::Inval),
            (&structured, request(BLOCK_STATUS, 8, 1 << 20, 4096), Errno::Inval),
            (&structured, request(BLOCK_STATUS, 4, 0, 4096), Errno::Inval),
            (&extended, request(BLOCK_STATUS, 0, 4096, u64::MAX - 4095), Errno::Inval),
            (&extended, request(WRITE, 0, 0, 4096), Errno::Inval),
            (&extended, request(BLOCK_STATUS, 32, 0, 4096), Errno::Inval),
        ] {
            assert_eq!(errno(session, &request), Some(expected), "{request:?}");
        }
        let mut read_only = session(ReplyForm::Structured);
        read_only.export.flags = read_only.export.flags.with(ExportFlags::READ_ONLY);
        for command in [WRITE, TRIM, WRITE_ZEROES] {
            assert_eq!(errno(&read_only, &request(command, 0, 0, 4096)), Some(Errno::Perm));
        }
        assert_eq!(errno(&read_only, &request(READ, 0, 0, 4096)), None);
        let mut plain = session(ReplyForm::Structured);
        plain.export.flags = ExportFlags::BASE;
        for command in [TRIM, WRITE_ZEROES] {
            assert_eq!(errno(&plain, &request(command, 0, 0, 4096)), Some(Errno::Inval));
        }
    }

    #[test]
    fn a_payload_is_that_of_a_write_or_of_its_flag() {
        let structured = session(ReplyForm::Structured);
        assert_eq!(structured.payload_bytes(&request(WRITE, 0, 1, 5)), Ok(5));
        assert_eq!(structured.payload_bytes(&request(READ, 32, 0, 5)), Ok(0));
        let extended = session(ReplyForm::Extended);
        assert_eq!(extended.payload_bytes(&request(WRITE, 0, 0, 5)), Ok(0));
        assert_eq!(extended.payload_bytes(&request(BLOCK_STATUS, 32, 0, 5)), Ok(5));
        assert!(extended.payload_bytes(&request(WRITE, 32, 0, u64::MAX)).is_err());
    }

    proptest! {
        /// Whatever is let through lies in the export, in whole blocks.
        #[test]
        fn a_task_has_a_range_of_the_export(
            (command, flags) in (0u16..10, 0u16..64),
            (offset, length) in (0u64..520, 0u64..520),
            shift in prop::sample::select(vec![0u32, 9, 12, 55]),
            form in prop::sample::select(vec![
                ReplyForm::Simple, ReplyForm::Structured, ReplyForm::Extended,
            ]),
        ) {
            let session = session(form);
            let request = request(command, flags, offset << shift, length << shift);
            match session.judge(&request) {
                Ok(Task::Flush | Task::Disconnect) | Err(_) => {}
                Ok(_) => {
                    prop_assert!(request.length > 0 && request.length.is_multiple_of(4096));
                    prop_assert!(request.offset.is_multiple_of(4096));
                    prop_assert!(request.offset + request.length <= 1 << 20);
                }
            }
        }
    }
}
