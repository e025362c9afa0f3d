//! One connection of a host to the fake target. A reaction may replace the default answer to any event.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use wire::identify::controller::IdentifyController;
use wire::opcode::AdminOpcode;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::controller::{Controller, wanted};
use crate::finding::{Check, Finding, differs, holds};
use crate::link::Term;
use crate::pdu::Form;
use crate::stage::{Outlet, Stage, Waiting};
use crate::target_end::{Reply, TargetEnd};

pub use crate::target_end::Event;

/// Time limit for the rest of a PDU that has begun.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the session does after a reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The default for this event.
    AsUsual,
    /// Nothing: the reaction replaced the default.
    GoOn,
    /// Close the connection.
    End,
}

/// One connection of a host.
#[derive(Debug)]
pub struct Session<'a> {
    outlet: Arc<Outlet>,
    /// PDUs in both directions.
    pub end: TargetEnd,
    /// The controller as this queue sees it.
    pub controller: Controller,
    /// State shared by all sessions of the target.
    pub stage: &'a Stage,
    staging: Vec<u8>,
    /// Events that arrived while data was awaited.
    early: VecDeque<Event>,
    /// When the PDU that is being received began.
    since: Option<Instant>,
    is_cut: bool,
}

impl<'a> Session<'a> {
    /// A session over a connection that nothing was received on.
    pub fn new(stream: TcpStream, stage: &'a Stage) -> Self {
        let _ = stream.set_nodelay(true);
        let _ = stream.set_read_timeout(Some(Duration::from_millis(50)));
        Self {
            outlet: stage.begin(stream),
            end: TargetEnd::new(stage.setup.limits),
            controller: Controller::default(),
            stage,
            staging: vec![0; 64 << 10],
            early: VecDeque::new(),
            since: None,
            is_cut: false,
        }
    }

    /// Layout of PDUs in both directions.
    pub fn form(&self) -> Form {
        self.end.form
    }

    /// Serves the connection to its end. `react` sees each event first.
    ///
    /// # Errors
    /// The host violates the protocol, or as `react` finds.
    pub fn serve(&mut self, react: &dyn Fn(&mut Self, &Event) -> Check<Then>) -> Check {
        let served = self.serve_events(react);
        self.flush();
        let _ = self.outlet.stream.shutdown(Shutdown::Both);
        let ends_controller = self.controller.qid == Some(0);
        self.stage.on_end(&self.outlet, ends_controller.then_some(self.controller.cntlid));
        served
    }

    fn serve_events(&mut self, react: &dyn Fn(&mut Self, &Event) -> Check<Then>) -> Check {
        loop {
            let event = self.receive()?;
            if let Event::TermReq { fes, fei } = event {
                self.stage.state().term_reqs.push((fes, fei));
            }
            if matches!(event, Event::Closed | Event::TermReq { .. }) {
                return Ok(());
            }
            match react(self, &event)? {
                Then::AsUsual => self.as_usual(&event)?,
                Then::GoOn => {}
                Then::End => return Ok(()),
            }
        }
    }

    /// Sends bytes. That the host has closed shows with the next event.
    pub fn send(&mut self, bytes: &[u8]) {
        self.end.stop_counting();
        self.flush();
        self.stage.write(&self.outlet, bytes);
    }

    fn flush(&mut self) {
        while let Some(pdu) = self.end.next_sent() {
            self.is_cut |= !self.stage.send(&self.outlet, &pdu);
            if self.is_cut {
                return;
            }
        }
    }

    /// The next event. Every PDU is checked.
    ///
    /// # Errors
    /// The PDU is malformed, or not one that a host sends.
    pub fn receive(&mut self) -> Check<Event> {
        match self.early.pop_front() {
            Some(event) => Ok(event),
            None => self.receive_event(),
        }
    }

    fn receive_event(&mut self) -> Check<Event> {
        loop {
            if self.is_cut {
                return Ok(Event::Closed);
            }
            if let Some(event) = self.end.next_event()? {
                self.since = None;
                self.stage.count_pdu();
                return Ok(event);
            }
            self.flush();
            if !self.end.is_within_pdu() {
                self.since = None;
            } else if self.since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Err(Finding::Hangs("it stops within a PDU".into()));
            }
            if self.stage.is_over() {
                return Ok(Event::Closed);
            }
            match (&self.outlet.stream).read(&mut self.staging) {
                Ok(0) => return Ok(Event::Closed),
                Ok(count) => self.end.on_bytes(&self.staging[..count]),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    _ => return Ok(Event::Closed),
                },
            }
        }
    }

    /// Expects one of these TermReqs. Commands and data that were in flight may precede it.
    ///
    /// # Errors
    /// The host does something else.
    pub fn expect_term_req(&mut self, rights: &[Term]) -> Check<Then> {
        for _ in 0..1000 {
            match self.receive()? {
                Event::TermReq { fes, fei } => {
                    let is_right =
                        |right: &Term| right.fes.raw() == fes && right.fei.is_none_or(|wanted| wanted == fei);
                    holds(
                        rights.iter().any(is_right),
                        format!("a TermReq ({fes:#04x}, {fei:#x}), not {rights:?}"),
                    )?;
                    return Ok(Then::End);
                }
                Event::Closed => return differs("the host closes without a TermReq"),
                Event::Command { .. } | Event::Asked { .. } | Event::Data { .. } | Event::IcReq(_) => {}
            }
        }
        differs("the host goes on as if nothing were wrong")
    }

    /// Expects the host to close without a TermReq.
    ///
    /// # Errors
    /// The host does something else.
    pub fn expect_closed(&mut self) -> Check<Then> {
        for _ in 0..1000 {
            match self.receive()? {
                Event::TermReq { fes, fei } => {
                    return differs(format!("a TermReq ({fes:#04x}, {fei:#x}) in answer to one"));
                }
                Event::Closed => return Ok(Then::End),
                _ => {}
            }
        }
        differs("the host goes on as if nothing were wrong")
    }

    /// Completes a command.
    pub fn complete(&mut self, sqe: &Sqe, status: Status, result: u64) {
        self.end.complete(sqe, status, result);
        self.flush();
    }

    /// Sends the data of a read, without a completion.
    pub fn send_data(&mut self, sqe: &Sqe, data: &[u8]) {
        self.end.send_data(sqe, data);
        self.flush();
    }

    /// The default behaviour.
    fn as_usual(&mut self, event: &Event) -> Check {
        match event {
            Event::Command { sqe, data } if wanted(sqe).is_none() => self.execute(sqe, data),
            Event::Asked { sqe, data } => self.execute(sqe, data),
            event => self.controller.serve(self.stage, &mut self.end, event),
        }
    }

    /// Executes a command whose data is there, and answers it.
    ///
    /// # Errors
    /// The command is not one that a host may send.
    pub fn execute(&mut self, sqe: &Sqe, data: &[u8]) -> Check {
        if self.is_admin(sqe, AdminOpcode::ABORT) && self.stage.setup.abort_works {
            let [low, high, cid @ ..] = sqe.cdw10.get().to_le_bytes();
            let qid = u16::from_le_bytes([low, high]);
            self.stage.abort((self.controller.cntlid, qid, u16::from_le_bytes(cid)));
            self.end.reply(sqe, &Reply::DONE);
            return Ok(());
        }
        if self.is_admin(sqe, AdminOpcode::ASYNC_EVENT_REQUEST) {
            let waiting = self.set_aside(sqe);
            self.stage.await_event(waiting);
            return Ok(());
        }
        self.controller.answer(self.stage, &mut self.end, sqe, data)
    }

    /// Whether `sqe` is this command of the admin queue.
    pub fn is_admin(&self, sqe: &Sqe, opcode: AdminOpcode) -> bool {
        self.controller.qid == Some(0) && sqe.opcode == opcode.raw()
    }

    fn set_aside(&mut self, sqe: &Sqe) -> Waiting {
        self.end.set_aside(sqe);
        // Its completion follows what was sent before.
        self.flush();
        Waiting { outlet: Arc::clone(&self.outlet), form: self.end.form, sqe: *sqe }
    }

    /// Does not answer a command until it is aborted.
    pub fn hold(&mut self, sqe: &Sqe) {
        let waiting = self.set_aside(sqe);
        let qid = self.controller.qid.unwrap_or(0);
        self.stage.hold((self.controller.cntlid, qid, sqe.cid.get()), waiting);
    }

    /// The default Identify Controller data.
    pub fn identify_controller(&self) -> IdentifyController {
        self.controller.identify_controller(self.stage)
    }

    /// Asks for a part of a command's data and waits for it; `None` if the host closes.
    ///
    /// # Errors
    /// The H2CData PDUs do not match the R2T.
    pub fn ask(&mut self, sqe: &Sqe, offset: u32, length: u32) -> Check<Option<Vec<u8>>> {
        self.end.ask(sqe, offset, length);
        let mut others = VecDeque::new();
        let data = loop {
            match self.receive()? {
                Event::Asked { sqe: of, data } if of.cid == sqe.cid => break data,
                Event::Closed | Event::TermReq { .. } => return Ok(None),
                other => others.push_back(other),
            }
        };
        self.early.append(&mut others);
        Ok(Some(data))
    }
}
