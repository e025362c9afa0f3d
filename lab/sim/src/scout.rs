//! A host of the discovery service: reads the log as `host::Discovery` does, after it connects and after each change
//! event.

use host_core::Failure;
use host_core::association_machine::{AdminAnswer, AdminRequest, ControllerInfo};
use host_core::discovery_log::{Discovered, LogError, LogReader};
use host_core::reconnect::Class;
use proto::host_controller::RequestData;
use wire::id::Nsid;
use wire::identify::capabilities::Lpa;
use wire::log::GetLogPage;
use wire::status::Status;

use crate::scenario::MS;
use crate::shared::Shared;

/// A log that was read.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) log: Discovered,
    /// When the first part of it was asked for, at the earliest, ns.
    pub(crate) begin_ns: u64,
}

/// The reader of the log, without its connection.
#[derive(Debug, Default)]
pub(crate) struct Scout {
    /// The log may have changed since it was read.
    is_due: bool,
    /// It is read again not before, ns.
    rests_until_ns: u64,
    reader: Option<LogReader>,
    begin_ns: u64,
    /// The command that asks for a part.
    asked: Option<u64>,
    next_request: u64,
    can_offset: bool,
    transfer_bytes_max: u32,
    up_count: u32,
    /// Logs that were read and not judged.
    pub(crate) readings: Vec<Reading>,
}

impl Scout {
    /// It is connected, perhaps again: events missed meanwhile are not repeated.
    pub(crate) fn on_up(&mut self, controller: &ControllerInfo) {
        self.can_offset = controller.identify.lpa.contains(Lpa::EXTENDED_DATA);
        self.transfer_bytes_max = controller.limits.transfer_bytes_max;
        self.up_count += 1;
        self.is_due = true;
    }

    /// An event says that the log has changed.
    pub(crate) fn on_changed(&mut self) {
        self.is_due = true;
    }

    /// When there is something to do without anything happening, ns.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        (self.is_due && self.reader.is_none() && self.up_count > 0).then_some(self.rests_until_ns)
    }

    /// The next command, once the connection stands.
    pub(crate) fn next_request(&mut self, now_ns: u64) -> Option<AdminRequest> {
        if self.up_count == 0 || self.asked.is_some() {
            return None;
        }
        if self.reader.is_none() && self.is_due && self.rests_until_ns <= now_ns {
            self.is_due = false;
            self.begin_ns = now_ns;
            self.reader = Some(LogReader::new(self.can_offset));
        }
        let part = self.reader.as_ref()?.next_part()?;
        let length = u32::try_from(part.length_bytes).unwrap_or(u32::MAX).min(self.transfer_bytes_max);
        let part = GetLogPage { length_bytes: length.into(), ..part };
        self.next_request += 1;
        self.asked = Some(self.next_request);
        let data = RequestData::FromController(length);
        Some(AdminRequest {
            id: self.next_request,
            sqe: part.to_sqe(Nsid::NONE),
            data,
            class: Class::ReadOnly,
        })
    }

    /// A command has ended.
    pub(crate) fn on_answer(&mut self, shared: &mut Shared, id: u64, answer: Result<AdminAnswer, Failure>) {
        if self.asked.take_if(|asked| *asked == id).is_none() {
            return shared.find(format!("part {id} of a discovery log ends, and is not out"));
        }
        let Some(mut reader) = self.reader.take() else { return };
        let outcome = match answer {
            Ok(AdminAnswer { data, .. }) => reader.on_part(&data),
            Err(failure) => match failure.status().and_then(|status| reader.on_refused(status)) {
                Some(outcome) => outcome,
                None => {
                    shared.say(|| format!("a part of the discovery log is not to be had: {failure:?}"));
                    // A log page damaged in transit is read again.
                    if failure.status().is_some_and(Status::dnr) {
                        shared.find(format!("a part of the discovery log was refused: {failure:?}"));
                    }
                    return self.begin_again(shared);
                }
            },
        };
        match outcome {
            Ok(()) if reader.next_part().is_some() => self.reader = Some(reader),
            Ok(()) => {
                let log = reader.into_discovered();
                shared
                    .say(|| format!("generation {} was read: {} entries", log.generation, log.entries.len()));
                self.readings.push(Reading { log, begin_ns: self.begin_ns });
            }
            Err(LogError::Changing) => self.begin_again(shared),
            Err(error) => shared.find(format!("a discovery log makes no sense: {error}")),
        }
    }

    /// Schedules another attempt a little later.
    fn begin_again(&mut self, shared: &Shared) {
        self.is_due = true;
        self.rests_until_ns = shared.now_ns + 100 * MS;
    }

    /// Whether it has read every change that was announced to it.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.up_count > 0 && !self.is_due && self.reader.is_none()
    }
}
