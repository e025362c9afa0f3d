//! The fixed newstyle negotiation, server side.
//!
//! ```text
//! ClientFlags ─▶ OptionHead ─▶ OptionData ─▶ OptionHead … ──Go, ExportName──▶ Chosen ──accept──▶ Done
//!                    ▲  └──data too long──▶ Dropping ─┘            ▲              │
//!                    └──────────────────────── refuse (Go) ────────┼──────────────┘
//!                                                Abort, refuse (ExportName) ─▶ Done
//! OptionData ──StartTls──▶ Securing ──on_tls──▶ OptionHead
//! ```
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

use nbd_wire::negotiation::info::{BLOCK_SIZE, DESCRIPTION, EXPORT, NAME};
use nbd_wire::negotiation::option::{
    ABORT, EXPORT_NAME, EXTENDED_HEADERS, GO, INFO, LIST, LIST_META_CONTEXT, SET_META_CONTEXT, STARTTLS,
    STRUCTURED_REPLY,
};
use nbd_wire::negotiation::reply::{
    self, ACK, ERR_EXT_HEADER_REQD, ERR_INVALID, ERR_POLICY, ERR_SHUTDOWN, ERR_TLS_REQD, ERR_TOO_BIG,
    ERR_UNKNOWN, ERR_UNSUP, META_CONTEXT, SERVER,
};
use nbd_wire::negotiation::{FIXED_NEWSTYLE, NO_ZEROES, OPTION_MAGIC, REPLY_MAGIC};
use nbd_wire::{ExportFlags, PAYLOAD_BYTES_MAX, ReplyForm};
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::export::Export;
use super::session::Session;

const GREETING: [u8; 18] = *b"NBDMAGICIHAVEOPT\x00\x03";

/// The only metadata context, and its number.
const ALLOCATION: &[u8] = nbd_wire::block_status::ALLOCATION.as_bytes();
pub(super) const ALLOCATION_ID: u32 = 1;

/// Longest data of an option that is looked at, bytes: a name of 4096 bytes and queries.
pub const OPTION_BYTES_MAX: u32 = 16 << 10;

/// Options of one handshake.
pub const OPTION_COUNT_MAX: u32 = 256;

/// Longest data of options that is received and dropped in one handshake, bytes.
pub const SKIPPED_BYTES_MAX: u64 = 1 << 20;

/// Whether clients use TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsPolicy {
    /// There is none.
    #[default]
    Off,
    /// As they like.
    Allowed,
    /// Without it they learn nothing.
    Required,
}

/// What a handshake has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More bytes are needed.
    Waiting,
    /// The client chose the export with this index: [`Handshake::accept`] or [`Handshake::refuse`] answers.
    Chosen {
        /// Index among the exports.
        index: usize,
    },
    /// The client begins TLS behind the output. Bytes that are left were sent before: they must not be used. Goes on with
    /// [`Handshake::on_tls`].
    StartTls,
    /// The connection ends, once the output is sent.
    Ended,
}

/// The client broke the protocol: the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeViolation {
    /// Flags that the server does not know.
    #[error("client flags {found:#x} are not known")]
    Flags {
        /// The flags.
        found: u32,
    },
    /// Not the beginning of an option.
    #[error("an option begins with {found:#018x}")]
    Magic {
        /// What it begins with.
        found: u64,
    },
    /// More options, or more data of options, than any client needs.
    #[error("too many options")]
    TooMany,
    /// A client that did not ask for the fixed negotiation sends an option of it.
    #[error("option {option} of a client that has not asked for fixed newstyle negotiation")]
    NotFixed {
        /// The option.
        option: u32,
    },
}

#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct OptionHead {
    magic: U64,
    option: U32,
    length: U32,
}
const OPTION_HEAD_BYTES: usize = 16;
const _: () = assert!(size_of::<OptionHead>() == OPTION_HEAD_BYTES);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    ClientFlags,
    OptionHead,
    OptionData {
        option: u32,
        length: u32,
    },
    /// The data of an option that has been answered.
    Dropping {
        left: u32,
    },
    Chosen {
        option: u32,
        index: usize,
    },
    /// TLS begins.
    Securing,
    Done,
}

/// A handshake.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    /// What has arrived of the piece that the state needs.
    input: Vec<u8>,
    output: Vec<u8>,
    tls: TlsPolicy,
    has_tls: bool,
    is_fixed: bool,
    omits_zeroes: bool,
    form: ReplyForm,
    /// The export whose allocation the client wants to know.
    context_of: Option<Vec<u8>>,
    option_count: u32,
    skipped_bytes: u64,
    /// Information that the client of GO asked for.
    wanted: Wanted,
}

/// Information about an export that is sent only if asked for.
#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    name: bool,
    description: bool,
}

impl Default for Handshake {
    fn default() -> Self {
        Self::new(TlsPolicy::Off)
    }
}

impl Handshake {
    /// A new connection; the greeting is its first output.
    #[must_use]
    pub fn new(tls: TlsPolicy) -> Self {
        Self {
            state: State::ClientFlags,
            input: Vec::new(),
            output: GREETING.to_vec(),
            tls,
            has_tls: false,
            is_fixed: false,
            omits_zeroes: false,
            form: ReplyForm::Simple,
            context_of: None,
            option_count: 0,
            skipped_bytes: 0,
            wanted: Wanted::default(),
        }
    }

    /// Bytes for the client since the last call.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Accepts bytes, as many as the handshake needs: the rest, after [`Progress::Chosen`], are requests. `exports` are
    /// those of this moment.
    ///
    /// # Errors
    /// [`HandshakeViolation`].
    pub fn on_bytes(
        &mut self,
        input: &mut &[u8],
        exports: &[Export],
    ) -> Result<Progress, HandshakeViolation> {
        loop {
            let needed = match self.state {
                State::ClientFlags => 4,
                State::OptionHead => OPTION_HEAD_BYTES,
                State::OptionData { length, .. } => length as usize,
                State::Dropping { left } => {
                    let count = input.len().min(left as usize);
                    *input = input.get(count..).unwrap_or_default();
                    let left = left.saturating_sub(u32::try_from(count).unwrap_or(left));
                    self.state = if left == 0 { State::OptionHead } else { State::Dropping { left } };
                    if left > 0 {
                        return Ok(Progress::Waiting);
                    }
                    continue;
                }
                State::Chosen { index, .. } => return Ok(Progress::Chosen { index }),
                State::Securing => return Ok(Progress::StartTls),
                State::Done => return Ok(Progress::Ended),
            };
            let count = needed.saturating_sub(self.input.len()).min(input.len());
            let (taken, rest) = input.split_at_checked(count).unwrap_or_default();
            self.input.extend_from_slice(taken);
            *input = rest;
            if self.input.len() < needed {
                return Ok(Progress::Waiting);
            }
            let piece = std::mem::take(&mut self.input);
            self.on_piece(&piece, exports)?;
        }
    }

    fn on_piece(&mut self, piece: &[u8], exports: &[Export]) -> Result<(), HandshakeViolation> {
        match self.state {
            State::ClientFlags => {
                let flags = U32::read_from_bytes(piece).map_or(u32::MAX, U32::get);
                if flags & !(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
                    return Err(HandshakeViolation::Flags { found: flags });
                }
                self.is_fixed = flags & FIXED_NEWSTYLE != 0;
                self.omits_zeroes = flags & NO_ZEROES != 0;
                self.state = State::OptionHead;
                Ok(())
            }
            State::OptionHead => self.on_head(piece),
            State::OptionData { option, .. } => {
                self.state = State::OptionHead;
                self.on_option(option, piece, exports);
                Ok(())
            }
            State::Dropping { .. } | State::Chosen { .. } | State::Securing | State::Done => Ok(()),
        }
    }

    fn on_head(&mut self, piece: &[u8]) -> Result<(), HandshakeViolation> {
        let Ok(head) = OptionHead::read_from_bytes(piece) else { return Ok(()) };
        let (option, length) = (head.option.get(), head.length.get());
        if head.magic.get() != OPTION_MAGIC {
            return Err(HandshakeViolation::Magic { found: head.magic.get() });
        }
        if !self.is_fixed && option != EXPORT_NAME {
            return Err(HandshakeViolation::NotFixed { option });
        }
        self.option_count = self.option_count.saturating_add(1);
        if self.option_count > OPTION_COUNT_MAX {
            return Err(HandshakeViolation::TooMany);
        }
        if length <= OPTION_BYTES_MAX {
            self.state = State::OptionData { option, length };
            return Ok(());
        }
        self.skipped_bytes = self.skipped_bytes.saturating_add(length.into());
        // An ExportName has no reply that could say so.
        if self.skipped_bytes > SKIPPED_BYTES_MAX || option == EXPORT_NAME {
            return Err(HandshakeViolation::TooMany);
        }
        self.fail(option, ERR_TOO_BIG, "too long");
        self.state = State::Dropping { left: length };
        Ok(())
    }

    fn on_option(&mut self, option: u32, data: &[u8], exports: &[Export]) {
        if self.tls == TlsPolicy::Required && !self.has_tls && !matches!(option, STARTTLS | ABORT) {
            if option == EXPORT_NAME {
                self.state = State::Done;
            } else {
                self.fail(option, ERR_TLS_REQD, "this server needs TLS");
            }
            return;
        }
        match option {
            EXPORT_NAME => match index_of(exports, data) {
                Some(index) => self.state = State::Chosen { option, index },
                // The only way to say no.
                None => self.state = State::Done,
            },
            ABORT => {
                self.reply(option, ACK, &[]);
                self.state = State::Done;
            }
            LIST if data.is_empty() => {
                for export in exports {
                    let name = export.name.as_bytes();
                    let length = u32::try_from(name.len()).unwrap_or(0).to_be_bytes();
                    self.reply(option, SERVER, &[&length, name, export.description.as_bytes()]);
                }
                self.reply(option, ACK, &[]);
            }
            INFO | GO => self.on_info(option, data, exports),
            STRUCTURED_REPLY if data.is_empty() && self.form == ReplyForm::Extended => {
                self.fail(option, ERR_EXT_HEADER_REQD, "extended headers were agreed on");
            }
            STRUCTURED_REPLY if data.is_empty() => {
                self.form = ReplyForm::Structured;
                self.reply(option, ACK, &[]);
            }
            EXTENDED_HEADERS if data.is_empty() => {
                self.form = ReplyForm::Extended;
                self.reply(option, ACK, &[]);
            }
            LIST_META_CONTEXT | SET_META_CONTEXT => self.on_contexts(option, data, exports),
            STARTTLS if self.tls == TlsPolicy::Off => {
                self.fail(option, ERR_UNSUP, "this server has no TLS");
            }
            STARTTLS if self.has_tls => self.fail(option, ERR_INVALID, "TLS has begun already"),
            STARTTLS if data.is_empty() => {
                self.reply(option, ACK, &[]);
                self.state = State::Securing;
            }
            LIST | STARTTLS | STRUCTURED_REPLY | EXTENDED_HEADERS => {
                self.fail(option, ERR_INVALID, "this option has no data");
            }
            _ => self.fail(option, ERR_UNSUP, "unknown option"),
        }
    }

    /// TLS has begun: what was agreed on before is void, since anybody may have said it.
    pub fn on_tls(&mut self) {
        if self.state == State::Securing {
            self.state = State::OptionHead;
            self.has_tls = true;
            self.form = ReplyForm::Simple;
            self.context_of = None;
            self.wanted = Wanted::default();
        }
    }

    fn on_info(&mut self, option: u32, data: &[u8], exports: &[Export]) {
        let Some((name, wanted)) = read_info(data) else {
            return self.fail(option, ERR_INVALID, "malformed");
        };
        let Some(index) = index_of(exports, name) else {
            return self.fail(option, ERR_UNKNOWN, "there is no export of this name");
        };
        self.wanted = wanted;
        match exports.get(index) {
            Some(export) if option == INFO => self.tell(option, export),
            _ => self.state = State::Chosen { option, index },
        }
    }

    /// The replies to INFO and GO.
    fn tell(&mut self, option: u32, export: &Export) {
        let size = export.size_bytes.to_be_bytes();
        let flags = self.flags_of(export).bits().to_be_bytes();
        self.reply(option, reply::INFO, &[&EXPORT.to_be_bytes(), &size, &flags]);
        if self.wanted.name {
            self.reply(option, reply::INFO, &[&NAME.to_be_bytes(), export.name.as_bytes()]);
        }
        if self.wanted.description {
            let text = export.description.as_bytes();
            self.reply(option, reply::INFO, &[&DESCRIPTION.to_be_bytes(), text]);
        }
        // Also to clients that do not ask: smaller requests are refused.
        let minimum = export.block_bytes.to_be_bytes();
        let preferred = export.preferred_bytes.to_be_bytes();
        let maximum = match self.form {
            ReplyForm::Simple => export.whole_read_bytes_max,
            ReplyForm::Structured | ReplyForm::Extended => PAYLOAD_BYTES_MAX,
        };
        let sizes: [&[u8]; 4] = [&BLOCK_SIZE.to_be_bytes(), &minimum, &preferred, &maximum.to_be_bytes()];
        self.reply(option, reply::INFO, &sizes);
        self.reply(option, ACK, &[]);
    }

    fn flags_of(&self, export: &Export) -> ExportFlags {
        match self.form {
            ReplyForm::Simple => export.flags.without(ExportFlags::DF),
            ReplyForm::Structured | ReplyForm::Extended => export.flags.with(ExportFlags::DF),
        }
    }

    fn on_contexts(&mut self, option: u32, data: &[u8], exports: &[Export]) {
        let is_set = option == SET_META_CONTEXT;
        if is_set {
            self.context_of = None;
        }
        if self.form == ReplyForm::Simple {
            return self.fail(option, ERR_INVALID, "structured replies first");
        }
        let Some((name, queries)) = read_queries(data) else {
            return self.fail(option, ERR_INVALID, "malformed");
        };
        if index_of(exports, name).is_none() {
            return self.fail(option, ERR_UNKNOWN, "there is no export of this name");
        }
        let is_meant = match &queries[..] {
            [] => !is_set,
            queries => queries.iter().any(|query| *query == ALLOCATION || (!is_set && *query == b"base:")),
        };
        if is_meant {
            // The number has no meaning in a list.
            let id = if is_set { ALLOCATION_ID } else { 0 };
            self.reply(option, META_CONTEXT, &[&id.to_be_bytes(), ALLOCATION]);
            if is_set {
                self.context_of = Some(name.to_vec());
            }
        }
        self.reply(option, ACK, &[]);
    }

    /// The server serves the chosen export: the transmission begins after the output. `export` is the one that was chosen.
    #[must_use]
    pub fn accept(&mut self, export: Export) -> Option<Session> {
        let State::Chosen { option, .. } = self.state else { return None };
        if option == EXPORT_NAME {
            self.output.extend_from_slice(&export.size_bytes.to_be_bytes());
            self.output.extend_from_slice(&self.flags_of(&export).bits().to_be_bytes());
            if !self.omits_zeroes {
                self.output.extend_from_slice(&[0; 124]);
            }
        } else {
            self.tell(option, &export);
        }
        self.state = State::Done;
        let has_block_status = self.context_of.as_deref() == Some(export.name.as_bytes());
        Some(Session { export, form: self.form, has_block_status })
    }

    /// The server cannot serve the chosen export: a client of GO may go on with other options. `is_ending` if the server
    /// ends.
    pub fn refuse(&mut self, why: &str, is_ending: bool) {
        let State::Chosen { option, .. } = self.state else { return };
        if option == EXPORT_NAME {
            self.state = State::Done;
        } else {
            self.state = State::OptionHead;
            self.fail(option, if is_ending { ERR_SHUTDOWN } else { ERR_POLICY }, why);
        }
    }

    fn fail(&mut self, option: u32, kind: u32, why: &str) {
        self.reply(option, kind, &[why.as_bytes()]);
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[&[u8]]) {
        let length = data.iter().fold(0usize, |sum, part| sum.saturating_add(part.len()));
        self.output.extend_from_slice(&REPLY_MAGIC.to_be_bytes());
        for number in [option, kind, u32::try_from(length).unwrap_or(u32::MAX)] {
            self.output.extend_from_slice(&number.to_be_bytes());
        }
        for part in data {
            self.output.extend_from_slice(part);
        }
    }
}

fn index_of(exports: &[Export], name: &[u8]) -> Option<usize> {
    exports.iter().position(|export| export.name.as_bytes() == name)
}

/// A number of 32 bits, and what follows.
fn take_u32(data: &[u8]) -> Option<(u32, &[u8])> {
    let (bytes, rest) = data.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*bytes), rest))
}

/// A text with its length before it, and what follows.
fn take_text(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = take_u32(data)?;
    rest.split_at_checked(length as usize)
}

/// The name and the information of INFO and GO.
fn read_info(data: &[u8]) -> Option<(&[u8], Wanted)> {
    let (name, rest) = take_text(data)?;
    let (count, rest) = rest.split_first_chunk::<2>()?;
    let (kinds, left) = rest.as_chunks::<2>();
    if kinds.len() != usize::from(u16::from_be_bytes(*count)) || !left.is_empty() {
        return None;
    }
    let mut wanted = Wanted::default();
    for kind in kinds {
        match u16::from_be_bytes(*kind) {
            NAME => wanted.name = true,
            DESCRIPTION => wanted.description = true,
            _ => {}
        }
    }
    Some((name, wanted))
}

/// The name and the queries of a list or choice of metadata contexts.
fn read_queries(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let (name, rest) = take_text(data)?;
    let (count, mut rest) = take_u32(rest)?;
    let mut queries = Vec::new();
    for _ in 0..count {
        // Ends with the data, whatever the count says.
        let (query, left) = take_text(rest)?;
        queries.push(query);
        rest = left;
    }
    rest.is_empty().then_some((name, queries))
}

#[cfg(test)]
mod tests {
    use super::super::session::tests::export;
    use super::*;
    use proptest::prelude::*;

    /// An option as a client sends it.
    fn option(number: u32, data: &[u8]) -> Vec<u8> {
        let length = u32::try_from(data.len()).unwrap();
        [&b"IHAVEOPT"[..], &number.to_be_bytes(), &length.to_be_bytes(), data].concat()
    }

    fn info(name: &str, kinds: &[u16]) -> Vec<u8> {
        let mut data = text(name);
        data.extend(u16::try_from(kinds.len()).unwrap().to_be_bytes());
        data.extend(kinds.iter().flat_map(|kind| kind.to_be_bytes()));
        data
    }

    fn text(text: &str) -> Vec<u8> {
        [&u32::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
    }

    fn queries(name: &str, queries: &[&str]) -> Vec<u8> {
        let count = u32::try_from(queries.len()).unwrap().to_be_bytes();
        [text(name), count.to_vec(), queries.iter().flat_map(|query| text(query)).collect()].concat()
    }

    /// Kinds of the replies, with the data of each.
    fn replies(mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            assert_eq!(bytes[..8], REPLY_MAGIC.to_be_bytes());
            let kind = u32::from_be_bytes(bytes[12..16].try_into().unwrap());
            let length = u32::from_be_bytes(bytes[16..20].try_into().unwrap()) as usize;
            found.push((kind, bytes[20..20 + length].to_vec()));
            bytes = &bytes[20 + length..];
        }
        found
    }

    fn begun(flags: u32) -> Handshake {
        let mut handshake = Handshake::default();
        assert_eq!(handshake.take_output(), b"NBDMAGICIHAVEOPT\0\x03");
        assert_eq!(feed(&mut handshake, &flags.to_be_bytes()), Ok(Progress::Waiting));
        handshake
    }

    fn feed(handshake: &mut Handshake, mut bytes: &[u8]) -> Result<Progress, HandshakeViolation> {
        let progress = handshake.on_bytes(&mut bytes, &[export()]);
        assert!(bytes.is_empty() || progress != Ok(Progress::Waiting));
        progress
    }

    /// The replies to one option.
    fn ask(handshake: &mut Handshake, number: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        feed(handshake, &option(number, data)).unwrap();
        replies(&handshake.take_output())
    }

    fn kinds(replies: &[(u32, Vec<u8>)]) -> Vec<u32> {
        replies.iter().map(|(kind, _)| *kind).collect()
    }

    #[test]
    fn a_modern_client_gets_what_it_asks_for() {
        let mut handshake = begun(3);
        assert_eq!(kinds(&ask(&mut handshake, STARTTLS, &[])), [ERR_UNSUP]);
        assert_eq!(kinds(&ask(&mut handshake, STRUCTURED_REPLY, &[])), [ACK]);
        let listed = ask(&mut handshake, LIST, &[]);
        assert_eq!(listed, [(SERVER, b"\0\0\0\x04diska disk".to_vec()), (ACK, Vec::new())]);
        let contexts = ask(&mut handshake, LIST_META_CONTEXT, &queries("disk", &[]));
        assert_eq!(contexts[0], (META_CONTEXT, b"\0\0\0\0base:allocation".to_vec()));
        let set = queries("disk", &["qemu:dirty-bitmap:x", "base:allocation"]);
        let contexts = ask(&mut handshake, SET_META_CONTEXT, &set);
        assert_eq!(contexts[0], (META_CONTEXT, b"\0\0\0\x01base:allocation".to_vec()));
        let told = ask(&mut handshake, INFO, &info("disk", &[1, 2, 3, 77]));
        assert_eq!(kinds(&told), [reply::INFO, reply::INFO, reply::INFO, reply::INFO, ACK]);
        assert_eq!(told[0].1, b"\0\0\0\0\0\0\0\x10\0\0\x0d\xed");
        assert_eq!(told[3].1, b"\0\x03\0\0\x10\0\0\0\x10\0\x02\0\0\0");
        let mut input = &[option(GO, &info("disk", &[])), b"request".to_vec()].concat()[..];
        let progress = handshake.on_bytes(&mut input, &[export()]);
        assert_eq!((progress, input), (Ok(Progress::Chosen { index: 0 }), &b"request"[..]));
        let session = handshake.accept(export()).unwrap();
        assert!(session.has_block_status && session.form == ReplyForm::Structured);
        assert_eq!(kinds(&replies(&handshake.take_output())), [reply::INFO, reply::INFO, ACK]);
    }

    #[test]
    fn an_old_client_gets_its_export_by_name() {
        let mut handshake = begun(0);
        assert_eq!(feed(&mut handshake, &option(EXPORT_NAME, b"disk")), Ok(Progress::Chosen { index: 0 }));
        let session = handshake.accept(export()).unwrap();
        assert_eq!((session.form, session.has_block_status), (ReplyForm::Simple, false));
        let output = handshake.take_output();
        assert_eq!((output.len(), &output[..10]), (134, &b"\0\0\0\0\0\x10\0\0\x0d\x6d"[..]));
        let mut handshake = begun(NO_ZEROES);
        assert_eq!(feed(&mut handshake, &option(EXPORT_NAME, b"other")), Ok(Progress::Ended));
        let mut handshake = begun(0);
        let refused = feed(&mut handshake, &option(LIST, &[]));
        assert_eq!(refused, Err(HandshakeViolation::NotFixed { option: LIST }));
    }

    #[test]
    fn options_that_cannot_be_met_are_answered_and_the_next_one_is_read() {
        let mut handshake = begun(1);
        let mut ask = |number, data: &[u8]| kinds(&ask(&mut handshake, number, data));
        assert_eq!(ask(SET_META_CONTEXT, &queries("disk", &["base:allocation"])), [ERR_INVALID]);
        assert_eq!(ask(GO, &info("other", &[])), [ERR_UNKNOWN]);
        assert_eq!(ask(GO, b"\0\0\0\x09disk\0\0"), [ERR_INVALID]);
        assert_eq!(ask(INFO, &info("disk", &[])[..9]), [ERR_INVALID]);
        assert_eq!(ask(LIST, b"x"), [ERR_INVALID]);
        assert_eq!(ask(99, b"x"), [ERR_UNSUP]);
        assert_eq!(ask(GO, &vec![0; OPTION_BYTES_MAX as usize + 1]), [ERR_TOO_BIG]);
        assert_eq!(ask(EXTENDED_HEADERS, &[]), [ACK]);
        assert_eq!(ask(STRUCTURED_REPLY, &[]), [ERR_EXT_HEADER_REQD]);
        assert_eq!(ask(LIST_META_CONTEXT, &queries("other", &[])), [ERR_UNKNOWN]);
        assert_eq!(ask(LIST_META_CONTEXT, b"\0\0\0\x04disk\xff\xff\xff\xff"), [ERR_INVALID]);
        assert_eq!(ask(SET_META_CONTEXT, &queries("disk", &["base:"])), [ACK]);
        assert_eq!(ask(LIST_META_CONTEXT, &queries("disk", &["base:"])), [META_CONTEXT, ACK]);
        assert_eq!(ask(ABORT, &[]), [ACK]);
        assert_eq!(feed(&mut handshake, &option(LIST, &[])), Ok(Progress::Ended));
    }

    #[test]
    fn a_refused_go_leaves_the_client_its_other_options() {
        let mut handshake = begun(1);
        feed(&mut handshake, &option(GO, &info("disk", &[]))).unwrap();
        handshake.refuse("no queue is left", false);
        assert_eq!(replies(&handshake.take_output()), [(ERR_POLICY, b"no queue is left".to_vec())]);
        assert_eq!(kinds(&ask(&mut handshake, LIST, &[])), [SERVER, ACK]);
        assert!(handshake.accept(export()).is_none());
    }

    #[test]
    fn with_tls_everything_is_negotiated_anew() {
        let mut handshake = Handshake::new(TlsPolicy::Allowed);
        handshake.take_output();
        feed(&mut handshake, &3u32.to_be_bytes()).expect("flags");
        assert_eq!(kinds(&ask(&mut handshake, STRUCTURED_REPLY, &[])), [ACK]);
        assert_eq!(kinds(&ask(&mut handshake, STARTTLS, b"x")), [ERR_INVALID]);
        let mut bytes = option(STARTTLS, &[]);
        bytes.extend(option(LIST, &[]));
        let mut input = &bytes[..];
        assert_eq!(handshake.on_bytes(&mut input, &[export()]), Ok(Progress::StartTls));
        assert_eq!(input.len(), 16, "what was sent before TLS is left");
        assert_eq!(kinds(&replies(&handshake.take_output())), [ACK]);
        handshake.on_tls();
        let contexts = queries("disk", &["base:allocation"]);
        assert_eq!(kinds(&ask(&mut handshake, SET_META_CONTEXT, &contexts)), [ERR_INVALID]);
        assert_eq!(kinds(&ask(&mut handshake, STARTTLS, &[])), [ERR_INVALID]);
        assert_eq!(kinds(&ask(&mut handshake, STRUCTURED_REPLY, &[])), [ACK]);
    }

    #[test]
    fn where_tls_is_needed_nothing_is_told_without() {
        let begun = || {
            let mut handshake = Handshake::new(TlsPolicy::Required);
            handshake.take_output();
            feed(&mut handshake, &3u32.to_be_bytes()).expect("flags");
            handshake
        };
        let mut handshake = begun();
        for (number, data) in
            [(LIST, vec![]), (GO, info("disk", &[])), (STRUCTURED_REPLY, vec![]), (77, vec![])]
        {
            assert_eq!(kinds(&ask(&mut handshake, number, &data)), [ERR_TLS_REQD], "option {number}");
        }
        assert_eq!(feed(&mut handshake, &option(STARTTLS, &[])), Ok(Progress::StartTls));
        handshake.take_output();
        handshake.on_tls();
        assert_eq!(feed(&mut handshake, &option(GO, &info("disk", &[]))), Ok(Progress::Chosen { index: 0 }));
        assert_eq!(feed(&mut begun(), &option(EXPORT_NAME, b"disk")), Ok(Progress::Ended));
        assert_eq!(feed(&mut begun(), &option(ABORT, &[])), Ok(Progress::Ended));
    }

    #[test]
    fn what_is_no_handshake_ends_it() {
        let mut handshake = Handshake::default();
        assert!(feed(&mut handshake, &[0, 0, 0, 4]).is_err());
        let mut handshake = begun(1);
        assert!(feed(&mut handshake, b"GET / HTTP/1.1\r\n").is_err());
        let mut handshake = begun(1);
        let many = option(99, &[]).repeat(OPTION_COUNT_MAX as usize + 1);
        assert_eq!(feed(&mut handshake, &many), Err(HandshakeViolation::TooMany));
        let mut handshake = begun(1);
        let head = [&b"IHAVEOPT"[..], &99u32.to_be_bytes(), &u32::MAX.to_be_bytes()].concat();
        assert_eq!(feed(&mut handshake, &head), Err(HandshakeViolation::TooMany));
    }

    proptest! {
        /// However the bytes are cut, the answers are the same.
        #[test]
        fn cuts_change_nothing(
            options in prop::collection::vec(
                (0u32..12, prop::collection::vec(any::<u8>(), 0..24)), 0..6,
            ),
            cuts in prop::collection::vec(1usize..40, 1..20),
        ) {
            let mut bytes = 1u32.to_be_bytes().to_vec();
            for (number, data) in &options {
                bytes.extend(option(*number, data));
                bytes.extend(option(GO, &info("other", &[1])));
                bytes.extend(option(LIST_META_CONTEXT, &queries("disk", &["base:"])));
            }
            let mut whole = Handshake::default();
            let mut input = &bytes[..];
            let expected = whole.on_bytes(&mut input, &[export()]);
            let mut cut = Handshake::default();
            let mut left = &bytes[..];
            let mut got = Ok(Progress::Waiting);
            for length in cuts.iter().cycle() {
                let (mut piece, rest) = left.split_at((*length).min(left.len()));
                got = cut.on_bytes(&mut piece, &[export()]);
                left = rest;
                if left.is_empty() || got != Ok(Progress::Waiting) {
                    break;
                }
            }
            prop_assert_eq!(got, expected);
            prop_assert_eq!(cut.take_output(), whole.take_output());
        }
    }
}
