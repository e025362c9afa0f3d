//! Memcached's binary protocol: requests, among them quiet ones, and their responses by opaque.
//!
//! A quiet request has a response only if it finds a value, or fails. That it has none shows with the response to a
//! later one: the last request of each run of quiet ones is a No-op.

// circle with answer.rs: a request of the binary protocol is one of the answers that a client expects
use std::rc::Rc;

use super::MemcachedClient;
use super::answer::Expected;
use crate::coverage::Point;
use crate::pair_model::{Action, Answer, Mode, PairModel};
use crate::pair_settings::PairSettings;
use crate::shared::Shared;

const HEADER_BYTES: usize = 24;
const REQUEST: u8 = 0x80;
const RESPONSE: u8 = 0x81;

/// Statuses of responses.
const SUCCESS: u16 = 0;
const NOT_FOUND: u16 = 1;
const EXISTS: u16 = 2;
const TOO_LARGE: u16 = 3;
const NOT_STORED: u16 = 5;
const NOT_NUMERIC: u16 = 6;
const NO_MEMORY: u16 = 0x82;
const INTERNAL_ERROR: u16 = 0x84;
const TEMPORARY_FAILURE: u16 = 0x86;

/// An expiry with which a counter that is missing is not created.
const NO_CREATION: u32 = u32::MAX;

/// Quiet requests in a row, at most.
const QUIET_COUNT_MAX: u64 = 4;

/// The content of a successful response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Value {
        gives_key: bool,
    },
    Stored(Mode),
    Number,
    /// Success only.
    Done,
    Version,
}

/// A request that has no response yet.
#[derive(Debug)]
pub(super) struct Request {
    opcode: u8,
    opaque: u32,
    is_quiet: bool,
    reply: Reply,
    /// Its command on a key, or on all.
    pub(super) commands: Vec<(usize, u64)>,
    pub(super) is_last_look: bool,
}

/// A response, taken apart.
struct Response<'a> {
    opcode: u8,
    status: u16,
    opaque: u32,
    cas: Option<u64>,
    extras: &'a [u8],
    key: &'a [u8],
    value: &'a [u8],
}

/// The part that was taken from the bytes that have arrived.
pub(super) enum Taken {
    /// More must arrive first.
    Nothing,
    /// This number of bytes.
    Response(usize),
    /// The connection is of no use any more.
    End,
}

impl<'a> Response<'a> {
    /// The next one and its length, if all of it has arrived.
    fn parse(bytes: &'a [u8]) -> Result<Option<(Self, usize)>, String> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        if header[0] != RESPONSE {
            return Err(format!("{:?} instead of a response", String::from_utf8_lossy(bytes)));
        }
        let half = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let word = |at: usize| u32::from(half(at)) << 16 | u32::from(half(at + 2));
        let (key_bytes, extra_bytes, body_bytes) = (half(2) as usize, header[4] as usize, word(8) as usize);
        let Some(body) = rest.get(..body_bytes) else { return Ok(None) };
        let (extras, rest) = body.split_at_checked(extra_bytes).ok_or("extras beyond a response")?;
        let (key, value) = rest.split_at_checked(key_bytes).ok_or("a key beyond a response")?;
        // A value that has expired at once has none.
        let cas = Some(u64::from(word(16)) << 32 | u64::from(word(20))).filter(|cas| *cas != 0);
        let (opcode, status, opaque) = (header[1], half(6), word(12));
        Ok(Some((Self { opcode, status, opaque, cas, extras, key, value }, HEADER_BYTES + body_bytes)))
    }
}

impl Request {
    /// The answer about the key in a response.
    fn answer(&self, response: &Response<'_>, model: &PairModel) -> Result<Answer, String> {
        let Response { status, cas, extras, key, value, .. } = *response;
        let wrong = || format!("a response of status {status} and {} bytes to {self:?}", value.len());
        let is_named = self.commands.first().is_some_and(|(at, _)| model.name(*at).as_bytes() == key);
        Ok(match (status, self.reply) {
            (SUCCESS, Reply::Value { gives_key }) if is_named == gives_key => {
                let flags = Some(u32::from_be_bytes(*extras.first_chunk().ok_or_else(wrong)?));
                Answer::Found { value: Some(value.into()), flags, cas }
            }
            (NOT_FOUND, Reply::Value { gives_key: true }) if is_named && !self.is_quiet => Answer::Missing,
            (NOT_FOUND, Reply::Value { gives_key: false }) if !self.is_quiet => Answer::Missing,
            (SUCCESS, _) if self.is_quiet => return Err(wrong()),
            (SUCCESS, Reply::Number) => {
                Answer::Number(u64::from_be_bytes(*value.first_chunk().ok_or_else(wrong)?))
            }
            (SUCCESS, Reply::Version) if value.is_empty() => return Err(wrong()),
            (SUCCESS, Reply::Stored(_) | Reply::Done | Reply::Version) => Answer::Done { cas },
            (EXISTS, Reply::Stored(Mode::Add))
            | (NOT_FOUND, Reply::Stored(Mode::Replace))
            | (NOT_STORED, Reply::Stored(Mode::Append | Mode::Prepend)) => Answer::NotStored,
            (EXISTS, Reply::Stored(Mode::Cas(_))) => Answer::Exists,
            (NOT_FOUND, Reply::Stored(Mode::Cas(_)) | Reply::Number | Reply::Done) => Answer::Missing,
            (TOO_LARGE, Reply::Stored(_)) => Answer::TooLarge,
            (NOT_NUMERIC, Reply::Number) => Answer::NotNumeric,
            // There is no memory, or the log has no space.
            (NO_MEMORY, _) => Answer::NoSpace,
            _ => return Err(wrong()),
        })
    }
}

impl MemcachedClient {
    /// Takes a response from the beginning of `bytes`, and hands its answer to the model.
    pub(super) fn take_response(
        &mut self,
        shared: &mut Shared,
        model: &mut PairModel,
        bytes: &[u8],
    ) -> Result<Taken, String> {
        let Some((response, length)) = Response::parse(bytes)? else { return Ok(Taken::Nothing) };
        if response.status == TEMPORARY_FAILURE {
            return Ok(Taken::End);
        }
        let (actor, Response { opaque, status, cas, .. }) = (self.actor, &response);
        shared
            .say(|| format!("memcached client {actor}: opaque {opaque} ends with {status:#x}, cas {cas:?}"));
        let is_starting = shared.now_ns < shared.started_ns + shared.scenario.order_ns_max();
        if response.status == INTERNAL_ERROR {
            if model.refusals.is_empty() && !is_starting {
                return Err("an internal error without an error of the disk".into());
            }
            self.be_refused(shared, model);
            return Ok(Taken::End);
        }
        loop {
            let Some(Expected::Binary(front)) = self.expected.pop_front() else {
                return Err(format!("a response with opaque {}, which is not awaited", response.opaque));
            };
            self.answer_count += 1;
            if front.opaque != response.opaque {
                if !front.is_quiet {
                    return Err(format!("a response with opaque {} instead of {front:?}", response.opaque));
                }
                let answer = match front.reply {
                    Reply::Value { .. } => Answer::Missing,
                    _ => Answer::Silent,
                };
                shared.coverage.reach(Point::Form("memcached binary request without a response"));
                for (key, command) in front.commands {
                    model.end(key, command, &answer, shared.now_ns)?;
                }
                continue;
            }
            if front.opcode != response.opcode {
                return Err(format!("a response with opcode {:#x} to {front:?}", response.opcode));
            }
            let answer = front.answer(&response, model)?;
            if let (Answer::Found { cas: Some(cas), .. } | Answer::Done { cas: Some(cas) }, [(key, _)]) =
                (&answer, &front.commands[..])
            {
                self.cas[*key] = Some(*cas);
            }
            for (key, command) in front.commands {
                model.end(key, command, &answer, shared.now_ns)?;
            }
            return Ok(Taken::Response(length));
        }
    }

    fn request(
        &mut self,
        shared: &mut Shared,
        request: Request,
        cas: u64,
        (key, extras, value): (&str, &[u8], &[u8]),
    ) {
        let Request { opcode, opaque, .. } = request;
        let actor = self.actor;
        shared.say(|| format!("memcached client {actor}: {request:?}"));
        let body_bytes = extras.len() + key.len() + value.len();
        let bytes = &mut self.to_send;
        bytes.extend_from_slice(&[REQUEST, opcode]);
        bytes.extend_from_slice(&(key.len() as u16).to_be_bytes());
        bytes.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
        bytes.extend_from_slice(&(body_bytes as u32).to_be_bytes());
        bytes.extend_from_slice(&opaque.to_be_bytes());
        bytes.extend_from_slice(&cas.to_be_bytes());
        [extras, key.as_bytes(), value].into_iter().for_each(|part| bytes.extend_from_slice(part));
        self.sent_count += 1;
        self.expected.push_back(Expected::Binary(request));
    }

    /// Sends a request, or a few quiet ones and a No-op.
    pub(super) fn choose_binary(
        &mut self,
        shared: &mut Shared,
        model: &mut PairModel,
        settings: &PairSettings,
    ) {
        let quiet_count = if self.choice.one_in(4) { self.choice.between(1, QUIET_COUNT_MAX) } else { 0 };
        for _ in 0..quiet_count.max(1) {
            match self.key(model, settings) {
                Some(key) => self.request_on(shared, model, settings, key, quiet_count > 0),
                None => self.sent_count += 1,
            }
        }
        if quiet_count > 0 {
            self.request_without_key(shared, 0x0a, Reply::Done);
        } else if self.choice.one_in(20) {
            self.rare_request(shared, model, settings);
        }
    }

    fn opaque(&mut self) -> u32 {
        self.next_opaque = self.next_opaque.wrapping_add(1);
        self.next_opaque
    }

    fn request_without_key(&mut self, shared: &mut Shared, opcode: u8, reply: Reply) {
        let opaque = self.opaque();
        let (commands, is_quiet, is_last_look) = (Vec::new(), false, false);
        let request = Request { opcode, opaque, is_quiet, reply, commands, is_last_look };
        self.request(shared, request, 0, ("", &[], &[]));
    }

    /// A request on no key, or on all.
    fn rare_request(&mut self, shared: &mut Shared, model: &mut PairModel, settings: &PairSettings) {
        if self.choice.one_in(2) {
            return self.request_without_key(shared, 0x0b, Reply::Version);
        }
        if settings.allows_flush && (0..settings.key_count).all(|key| model.has_room(key)) {
            shared.coverage.reach(Point::Form("memcached binary flush"));
            let keys = 0..settings.key_count;
            let commands = keys.map(|key| (key, self.begin(shared, model, key, Action::Clear, true)));
            let commands = commands.collect();
            let (opaque, is_quiet, is_last_look) = (self.opaque(), false, false);
            let request =
                Request { opcode: 0x08, opaque, is_quiet, reply: Reply::Done, commands, is_last_look };
            self.request(shared, request, 0, ("", &[], &[]));
        }
    }

    /// Reads a key when nothing changes any more.
    pub(super) fn request_in_the_end(&mut self, shared: &mut Shared, model: &mut PairModel, key: usize) {
        let commands = vec![(key, self.begin(shared, model, key, Action::Get, true))];
        let (opaque, reply) = (self.opaque(), Reply::Value { gives_key: false });
        let request = Request { opcode: 0, opaque, is_quiet: false, reply, commands, is_last_look: true };
        self.request(shared, request, 0, (&model.name(key), &[], &[]));
    }

    /// A request on one key.
    fn request_on(
        &mut self,
        shared: &mut Shared,
        model: &mut PairModel,
        settings: &PairSettings,
        key: usize,
        is_quiet: bool,
    ) {
        let expiry = |client: &mut Self| client.exptime().max(0) as u32;
        let quiet = |loud: u8, quiet: u8| if is_quiet { quiet } else { loud };
        let mut form = |form| shared.coverage.reach(Point::Form(form));
        let mut condition = 0;
        let (opcode, reply, action, extras, value): (u8, Reply, Action, Vec<u8>, Rc<[u8]>) = match self
            .choice
            .below(14)
        {
            0..5 => {
                let gives_key = self.choice.one_in(2);
                let opcode = if gives_key { quiet(0x0c, 0x0d) } else { quiet(0x00, 0x09) };
                form("memcached binary get");
                (opcode, Reply::Value { gives_key }, Action::Get, Vec::new(), Rc::default())
            }
            5 => {
                let exptime = expiry(self);
                let gives_key = self.choice.one_in(2);
                let opcode = if gives_key { quiet(0x23, 0x24) } else { quiet(0x1d, 0x1e) };
                let action = Action::GetAndTouch { exptime: exptime.into() };
                form("memcached binary get and touch");
                (opcode, Reply::Value { gives_key }, action, exptime.to_be_bytes().into(), Rc::default())
            }
            6..9 => {
                let (mode, ..) = self.mode(key);
                let opcode = match mode {
                    Mode::Set | Mode::Cas(_) => quiet(0x01, 0x11),
                    Mode::Add => quiet(0x02, 0x12),
                    Mode::Replace => quiet(0x03, 0x13),
                    Mode::Append => quiet(0x0e, 0x19),
                    Mode::Prepend => quiet(0x0f, 0x1a),
                };
                let (value, exptime) = (self.value(model, settings), expiry(self));
                let flags = if self.choice.one_in(3) { self.choice.next() as u32 } else { 0 };
                condition = if let Mode::Cas(cas) = mode { cas } else { 0 };
                let extras = match mode {
                    Mode::Append | Mode::Prepend => Vec::new(),
                    _ => [flags.to_be_bytes(), exptime.to_be_bytes()].concat(),
                };
                form("memcached binary store");
                let exptime = exptime.into();
                let action = Action::Store { mode, value: Rc::clone(&value), flags, exptime };
                (opcode, Reply::Stored(mode), action, extras, value)
            }
            9 => {
                let action = Action::Delete { is_told: true };
                form("memcached binary delete");
                (quiet(0x04, 0x14), Reply::Done, action, Vec::new(), Rc::default())
            }
            10 => {
                // It has no quiet form.
                let exptime = expiry(self);
                let action = Action::Touch { exptime: exptime.into() };
                form("memcached binary touch");
                (0x1c, Reply::Done, action, exptime.to_be_bytes().into(), Rc::default())
            }
            _ => {
                let is_decrement = self.choice.one_in(3);
                let opcode = if is_decrement { quiet(0x06, 0x16) } else { quiet(0x05, 0x15) };
                let delta = self.choice.next() >> self.choice.below(64);
                let create = match self.choice.one_in(2) {
                    true => Some((self.choice.next() >> self.choice.below(64), expiry(self))),
                    false => None,
                };
                let (initial, exptime) = create.unwrap_or((0, NO_CREATION));
                let extras =
                    [&delta.to_be_bytes()[..], &initial.to_be_bytes(), &exptime.to_be_bytes()].concat();
                let create = create.map(|(initial, exptime)| (initial, exptime.into()));
                form("memcached binary counter");
                (opcode, Reply::Number, Action::Count { delta, is_decrement, create }, extras, Rc::default())
            }
        };
        let is_quiet = is_quiet && opcode != 0x1c;
        let commands = vec![(key, self.begin(shared, model, key, action, true))];
        let opaque = self.opaque();
        let request = Request { opcode, opaque, is_quiet, reply, commands, is_last_look: false };
        self.request(shared, request, condition, (&model.name(key), &extras, &value));
    }
}
