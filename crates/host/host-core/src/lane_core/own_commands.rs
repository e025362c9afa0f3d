//! The queue's own commands: its Connect, and the authentication that follows, once or repeatedly.

use std::collections::VecDeque;

use proto::host_controller::{ControllerError, Demand, QueueConnect, RequestData};
use proto::host_queue::{DataBuffer, Transfer};
use wire::sqe::Sqe;
use wire::status::Status;
use zerocopy::IntoBytes;

use super::LaneCore;
use super::command::{IS_OWN, KeptCommand, Tag};
use super::phase::Phase;
use crate::attachment::Attachment;
use crate::authentication::{QueueAuthentication, SecureChannel};
use crate::buffer::Data;
use crate::key_value::partition_near;
use crate::link_error::LinkError;
use crate::reauthentication::ends_connection;
use crate::reconnect::Class;

impl<B: DataBuffer> LaneCore<B> {
    fn queue_connect(&self, attachment: &Attachment) -> QueueConnect {
        let entries = attachment.limits.queue_size(self.settings.depth).0;
        let qid = self.settings.qid;
        let queues = self.settings.partition_queues.map(|queues| queues.within(attachment.queue_pairs));
        // Of other classes none asks.
        let lanes = queues.map_or(0, |queues| queues.default);
        let near_partition = partition_near(qid.get(), lanes, attachment.partition_count);
        QueueConnect { qid, cntlid: attachment.cntlid, entries, near_partition }
    }

    /// Sends the Connect.
    pub(super) fn connect(&mut self, now_ns: u64) {
        let Some(attachment) = self.attachment.clone() else { return };
        let (sqe, data) = self.queue_connect(&attachment).command(&attachment.settings);
        let transfer = Transfer::ToController(Data::Own(data.as_bytes().into()));
        self.submit_first(sqe, transfer);
        self.phase = Phase::Connecting { until_ns: self.until(now_ns) };
    }

    /// Submits a command to a queue that has no other.
    fn submit_first(&mut self, sqe: Sqe, transfer: Transfer<Data<B>>) {
        let tag = Tag::new(0, self.sequence, Class::Other, IS_OWN);
        self.queue.submit(sqe, transfer, tag).unwrap_or_else(|_| unreachable!("the queue is empty"));
    }

    /// Handles the completion of one of the queue's own commands; `bytes` is the data that it received.
    ///
    /// # Errors
    /// Why the connection must be closed.
    pub(super) fn on_own_end(
        &mut self,
        status: Status,
        result: u64,
        bytes: &[u8],
        now_ns: u64,
    ) -> Result<(), LinkError> {
        let has_ended = match self.authentication {
            Some(_) => self.on_authentication_end(status, bytes, now_ns)?,
            None => self.on_connect_end(status, result, now_ns)?,
        };
        match self.phase {
            // The command's slot is free.
            Phase::Live => self.pump(),
            _ if has_ended => self.go_live(now_ns),
            _ => {}
        }
        Ok(())
    }

    fn go_live(&mut self, now_ns: u64) {
        self.phase = Phase::Live;
        self.command_timeout.start(now_ns);
        let release = self.backlog.on_live();
        self.release(release);
    }

    /// Returns whether the queue may be used; else its authentication begins.
    fn on_connect_end(&mut self, status: Status, result: u64, now_ns: u64) -> Result<bool, LinkError> {
        let Some(attachment) = self.attachment.clone() else { return Ok(false) };
        let connect = self.queue_connect(&attachment);
        let connected = connect.on_completion(status, result).map_err(LinkError::Controller)?;
        if connected.cntlid != attachment.cntlid {
            let (qid, cntlid) = (self.settings.qid.get(), attachment.cntlid.get());
            tracing::warn!(qid, cntlid, "Connect response of an I/O queue has CNTLID 0: ignored");
        }
        let in_capsule = attachment.limits.in_capsule_bytes.min(self.settings.in_capsule_bytes_max);
        self.queue.set_in_capsule_bytes(in_capsule);
        match connected.demand {
            // Requested on admin queues only: an I/O queue sets up no secure channel.
            Demand::SecureChannel => Err(ControllerError::SecureChannelRequired.into()),
            Demand::Authentication => {
                self.begin_authentication(&attachment, now_ns)?;
                Ok(false)
            }
            // A controller may ask on the admin queue only, on which it has shown its secret.
            Demand::None => Ok(true),
        }
    }

    fn begin_authentication(&mut self, attachment: &Attachment, now_ns: u64) -> Result<(), LinkError> {
        let credentials = attachment.credentials.as_deref();
        let authentication =
            QueueAuthentication::new(credentials, &attachment.settings, SecureChannel::None)?;
        self.authentication = Some(Box::new(authentication));
        self.authenticate(now_ns);
        Ok(())
    }

    /// Begins to authenticate again on the live queue, if that is due.
    ///
    /// # Errors
    /// There are no random numbers.
    pub(super) fn authenticate_again(&mut self, now_ns: u64) -> Result<(), LinkError> {
        if now_ns < self.reauthentication.due_ns() {
            return Ok(());
        }
        let Some(attachment) = self.attachment.clone() else { return Ok(()) };
        self.reauthentication.stop();
        self.begin_authentication(&attachment, now_ns)
    }

    /// Sends the next command of the authentication; on a live queue, before all commands that wait for room.
    fn authenticate(&mut self, now_ns: u64) {
        let next = self.authentication.as_mut().and_then(|authentication| authentication.next_command());
        let Some((sqe, data)) = next else { return };
        let transfer = match data {
            RequestData::None => Transfer::None,
            RequestData::ToController(message) => Transfer::ToController(Data::Own(message.into())),
            RequestData::FromController(length) => Transfer::FromController {
                buffer: Data::Own(vec![0; length as usize].into()),
                is_exact: false,
            },
        };
        if self.phase == Phase::Live {
            // The number of a caller's command would make this one pass for the half of a pair.
            self.sequence = self.sequence.wrapping_add(1);
            let tag = Tag::new(0, self.sequence, Class::Other, IS_OWN);
            self.backlog.push_before(VecDeque::from([KeptCommand { sqe, transfer, tag }]));
            return self.pump();
        }
        self.submit_first(sqe, transfer);
        self.phase = Phase::Authenticating { until_ns: self.until(now_ns) };
    }

    /// Returns whether the authentication has ended, and the queue may be used.
    fn on_authentication_end(
        &mut self,
        status: Status,
        bytes: &[u8],
        now_ns: u64,
    ) -> Result<bool, LinkError> {
        let Some(authentication) = &mut self.authentication else { return Ok(false) };
        match authentication.on_completion(status, bytes) {
            Ok(false) => {
                self.authenticate(now_ns);
                return Ok(false);
            }
            Ok(true) => self.authentication_count += 1,
            Err(cause) if self.is_live() && !ends_connection(&cause) => {
                tracing::warn!(
                    lane = self.qid().get(),
                    %cause,
                    "controller refuses reauthentication of the host"
                );
            }
            Err(cause) => return Err(cause),
        }
        self.authentication = None;
        self.reauthentication.on_ended(now_ns);
        Ok(true)
    }
}
