//! One queue pair over one connection: command identifiers, R2Ts, data and completions, kept apart by command.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use wire::cqe::Cqe;
use wire::pdu::PduFlags;
use wire::sgl::Sgl;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::finding::{Check, differs, holds};
use crate::link::{Got, Link, Window};
use crate::pdu::{Draft, Form};

/// A connected queue pair.
#[derive(Debug)]
pub struct Queue {
    /// Its connection.
    pub link: Link,
    /// Entries in its Connect.
    pub entries: u32,
    next_cid: u16,
    /// Identifiers of outstanding commands.
    open: HashSet<u16>,
    /// Answers that arrived while another command was awaited.
    early: HashMap<u16, Answer>,
    partial: HashMap<u16, Vec<u8>>,
    windows: HashMap<u16, Vec<Window>>,
    /// The admin queue of an I/O queue that nothing else keeps open.
    #[allow(dead_code)] // Only held: the association ends with it.
    admin: Option<Box<Queue>>,
}

/// The end of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The completion; synthesized if C2HData carried SUCCESS.
    pub cqe: Cqe,
    /// Data that the controller sent.
    pub data: Vec<u8>,
}

impl Answer {
    /// Its status.
    pub fn status(&self) -> Status {
        self.cqe.status()
    }
}

/// Data transfer of a command.
#[derive(Clone, Copy, Debug)]
pub enum Move<'a> {
    /// None.
    None,
    /// Host to controller, in the capsule.
    InCapsule(&'a [u8]),
    /// Host to controller, after R2Ts.
    Asked(&'a [u8]),
    /// Controller to host, up to this many bytes.
    Back(u32),
}

impl Move<'_> {
    fn pointer(&self) -> Sgl {
        let length = |data: &[u8]| u32::try_from(data.len()).expect("short data");
        match self {
            Self::None => Sgl::none(),
            Self::InCapsule(data) => Sgl::in_capsule(length(data)),
            Self::Asked(data) => Sgl::transport(length(data)),
            Self::Back(length) => Sgl::transport(*length),
        }
    }
}

/// The next event of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// An R2T.
    Wants(Window),
    /// Its completion.
    Over(Answer),
}

impl Queue {
    /// A queue over a connection whose handshake is done; it still needs its Connect.
    pub fn new(link: Link, entries: u32) -> Self {
        Self {
            link,
            entries,
            next_cid: 0x4000,
            open: HashSet::new(),
            early: HashMap::new(),
            partial: HashMap::new(),
            windows: HashMap::new(),
            admin: None,
        }
    }

    /// Keeps the admin queue of its controller open as long as this queue.
    #[must_use]
    pub fn keeping(self, admin: Self) -> Self {
        Self { admin: Some(Box::new(admin)), ..self }
    }

    /// Replaces the time limit of each answer.
    #[must_use]
    pub fn patient_for(self, patience: Duration) -> Self {
        Self { link: self.link.patient(patience), ..self }
    }

    /// Layout of PDUs to the target.
    pub fn form(&self) -> Form {
        self.link.form
    }

    /// Allocates a command identifier.
    pub fn cid(&mut self) -> u16 {
        self.next_cid = self.next_cid.wrapping_add(1);
        self.open.insert(self.next_cid);
        self.next_cid
    }

    /// Sends a command unchanged, identifier and data pointer included.
    ///
    /// # Errors
    /// As [`Link::send`].
    pub fn send(&mut self, sqe: Sqe, data: &[u8]) -> Check {
        self.open.insert(sqe.cid.get());
        let bytes = Draft::command(self.form(), sqe, data).seal();
        self.link.send(&bytes)
    }

    /// Sends a command with this data transfer. Returns its identifier.
    ///
    /// # Errors
    /// As [`Link::send`].
    pub fn submit(&mut self, sqe: Sqe, data: Move<'_>) -> Check<u16> {
        let cid = self.cid();
        let in_capsule = if let Move::InCapsule(data) = data { data } else { &[] };
        self.send(sqe.with_cid(cid).with_data(data.pointer()), in_capsule)?;
        Ok(cid)
    }

    /// Waits for the next event of a command; events of others are kept for later calls.
    ///
    /// # Errors
    /// Nothing arrives, or something that belongs to no command.
    pub fn step(&mut self, cid: u16) -> Check<Step> {
        loop {
            if let Some(window) = self.windows.get_mut(&cid).and_then(|windows| {
                let is_there = !windows.is_empty();
                is_there.then(|| windows.remove(0))
            }) {
                return Ok(Step::Wants(window));
            }
            if let Some(answer) = self.early.remove(&cid) {
                return Ok(Step::Over(answer));
            }
            self.take_in()?;
        }
    }

    /// Receives one PDU.
    fn take_in(&mut self) -> Check {
        match self.link.receive()? {
            Got::R2t(window) => self.windows.entry(window.cid).or_default().push(window),
            Got::Data { cid, offset, flags, data, .. } => {
                let all = self.partial.entry(cid).or_default();
                let have = u32::try_from(all.len()).unwrap_or(u32::MAX);
                holds(have == offset, format!("data at {offset} after {have} bytes"))?;
                all.extend_from_slice(&data);
                if flags.contains(PduFlags::SUCCESS) {
                    holds(flags.contains(PduFlags::LAST), "SUCCESS without LAST")?;
                    self.over(Cqe::new(wire::U16::new(cid), 0, Status::SUCCESS))?;
                }
            }
            Got::Completion(cqe) => self.over(cqe)?,
            got => return differs(format!("{got}, not a completion")),
        }
        Ok(())
    }

    /// Waits for all of these commands, answering the R2Ts of each from its own data.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn finish_all(&mut self, commands: &[(u16, &[u8])]) -> Check<Vec<Answer>> {
        while !commands.iter().all(|(cid, _)| self.early.contains_key(cid)) {
            for (cid, data) in commands {
                for window in self.windows.remove(cid).unwrap_or_default() {
                    self.serve(&window, data)?;
                }
            }
            if !commands.iter().all(|(cid, _)| self.early.contains_key(cid)) {
                self.take_in()?;
            }
        }
        Ok(commands.iter().filter_map(|(cid, _)| self.early.remove(cid)).collect())
    }

    fn over(&mut self, cqe: Cqe) -> Check {
        let cid = cqe.cid.get();
        holds(
            self.open.remove(&cid),
            format!("a completion for {cid:#06x}, which is no command or has ended"),
        )?;
        let data = self.partial.remove(&cqe.cid.get()).unwrap_or_default();
        self.early.insert(cid, Answer { cqe, data });
        Ok(())
    }

    /// Waits for a command's completion, answering R2Ts from `data`.
    ///
    /// # Errors
    /// As [`step`](Self::step), or an R2T reaches beyond `data`.
    pub fn finish(&mut self, cid: u16, data: &[u8]) -> Check<Answer> {
        loop {
            match self.step(cid)? {
                Step::Over(answer) => return Ok(answer),
                Step::Wants(window) => self.serve(&window, data)?,
            }
        }
    }

    /// Sends the part of `data` that a window asks for.
    ///
    /// # Errors
    /// The window is beyond the data.
    pub fn serve(&mut self, window: &Window, data: &[u8]) -> Check {
        let (start, end) = (window.offset as usize, window.offset as usize + window.length as usize);
        holds(window.length > 0, "an R2T for nothing")?;
        let Some(data) = data.get(start..end) else {
            return differs(format!("an R2T for bytes {start} to {end} of {}", data.len()));
        };
        let limit = self.link.h2c_data_bytes_max as usize;
        let mut offset = window.offset;
        for part in data.chunks(limit) {
            let length = u32::try_from(part.len()).expect("within a window");
            let is_last = offset + length == window.offset + window.length;
            let pdu = Draft::h2c_data(self.form(), window.cid, window.ttag, offset, part, is_last);
            self.link.send(&pdu.seal())?;
            offset += length;
        }
        Ok(())
    }

    /// Runs a command to its completion.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn run(&mut self, sqe: Sqe, data: Move<'_>) -> Check<Answer> {
        let cid = self.submit(sqe, data)?;
        let asked = if let Move::Asked(data) = data { data } else { &[] };
        let answer = self.finish(cid, asked)?;
        if let Move::Back(length) = data {
            let have = answer.data.len();
            holds(have <= length as usize, format!("{have} bytes of data for {length}"))?;
        }
        Ok(answer)
    }

    /// Runs a command that must succeed.
    ///
    /// # Errors
    /// As [`run`](Self::run), or it fails.
    pub fn must(&mut self, sqe: Sqe, data: Move<'_>) -> Check<Answer> {
        let answer = self.run(sqe, data)?;
        expect_status(&answer, &[Status::SUCCESS])?;
        Ok(answer)
    }

    /// Runs a command that must end with one of these statuses.
    ///
    /// # Errors
    /// As [`run`](Self::run), or it ends otherwise.
    pub fn must_end(&mut self, sqe: Sqe, data: Move<'_>, rights: &[Status]) -> Check<Answer> {
        let answer = self.run(sqe, data)?;
        expect_status(&answer, rights)?;
        Ok(answer)
    }
}

/// Checks that a command ended with one of these statuses, and that one that failed has neither result nor data.
///
/// # Errors
/// It ended with another status, or failed with a result or data.
pub fn expect_status(answer: &Answer, rights: &[Status]) -> Check {
    let status = answer.status();
    if !rights.iter().any(|right| right.is(status)) {
        let wanted: Vec<_> = rights.iter().map(|right| format!("{:#05x} {right}", right.code())).collect();
        return differs(format!("ends with {:#05x} {status}, not {}", status.code(), wanted.join(" or ")));
    }
    if !status.is_success() && !status.is(Status::CONNECT_INVALID_PARAMETERS) {
        holds(
            answer.cqe.result.get() == 0,
            format!("a failed command has a result, {:#x}", answer.cqe.result),
        )?;
        holds(answer.data.is_empty(), "a failed command has sent data")?;
    }
    Ok(())
}
