//! One queue of a host with separate queues, and its connection.

use std::io::IoSliceMut;

use host_core::LinkError;
use proto::HostQueue;
use proto::handshake::HostOffer;
use proto::host_queue::{HostEvent, Unfinished};
use reactor::Received;
use security::tls::IdentityOffer;
use wire::nqn::Nqn;

use crate::host_link::{Dialled, HostLink};
use crate::shared::{Actor, Shared};
use crate::tls_right::Channel;

/// Received in one call.
const STAGING_BYTES: usize = 16 << 10;

/// A queue on a connection. `U` identifies a command to its owner.
pub(super) struct QueueEnd<U> {
    link: HostLink,
    pub(super) machine: HostQueue<Vec<u8>, U>,
}

impl<U: Copy> QueueEnd<U> {
    /// Connects to the target.
    pub(super) fn dial(shared: &mut Shared, actor: Actor, offer: HostOffer, depth: u16) -> Self {
        let mut link = HostLink::default();
        link.dial(shared, actor, Channel::Clear);
        Self { link, machine: HostQueue::new(offer, depth) }
    }

    /// Its connection.
    pub(super) fn id(&self) -> Option<usize> {
        self.link.id()
    }

    /// Goes on to connect, sends and receives. The received events are in `events`, also if the connection is lost.
    pub(super) fn exchange(
        &mut self,
        shared: &mut Shared,
        (host, subsystem): (&Nqn, &Nqn),
        events: &mut Vec<HostEvent<Vec<u8>, U>>,
    ) -> Result<(), LinkError> {
        if let Dialled::Failed(cause) = self.link.connect(shared, host, subsystem, IdentityOffer::Both, None)
        {
            return Err(cause);
        }
        if self.link.connected().is_none() {
            return Ok(());
        }
        self.send(shared)?;
        let mut staging = [0; STAGING_BYTES];
        loop {
            let mut input = match self.link.receive(shared, &mut [IoSliceMut::new(&mut staging)]) {
                Received::Bytes(count) => &staging[..count],
                Received::Dry => break,
                Received::Ended => return Err(LinkError::Closed { during: "operation" }),
                Received::Failed(error) => return Err(error.into()),
            };
            while let Some(event) = self.machine.next_event(&mut input)? {
                events.push(event);
            }
        }
        self.send(shared)?;
        while let Some(event) = self.machine.next_event(&mut &[][..])? {
            events.push(event);
        }
        Ok(())
    }

    pub(super) fn send(&mut self, shared: &mut Shared) -> Result<(), LinkError> {
        while self.link.connected().is_some() && (self.machine.ring() || self.machine.caravan().is_leaving())
        {
            let machine = &self.machine;
            let (count, total) = self.link.transmit(shared, |each| machine.for_each_piece(each))?;
            if count > 0 {
                self.machine.on_sent(count);
            }
            if count < total {
                break;
            }
        }
        Ok(())
    }

    /// Ends the connection: in good order, or at once. Returns the commands that have not ended.
    pub(super) fn hang_up(mut self, shared: &mut Shared, at_once: bool) -> Vec<Unfinished<Vec<u8>, U>> {
        self.link.hang_up(shared, at_once);
        std::iter::from_fn(|| self.machine.next_unfinished_command()).collect()
    }
}

/// A target breaks the protocol only where a bit on the way was wrong.
pub(super) fn check_loss(shared: &mut Shared, id: Option<usize>, cause: &LinkError) {
    let is_damaged = id.is_some_and(|id| shared.connection(id).damaged_ns.is_some());
    if matches!(cause, LinkError::Violation(_)) && !is_damaged {
        shared.find(format!("a host with separate queues: {cause}, and no bit on the connection was wrong"));
    }
}
