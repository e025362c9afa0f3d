//! A lane's connection: it is made, secured, lost, closed and made again, as the core decides.

use host_core::connection_tls::TlsKeys;
use host_core::lane_core::LaneAction;
use host_core::link_error::LinkError;
use proto::Violation;
use proto::host_queue::DataBuffer;
use proto::zero_copy::Threshold;
use reactor::{Asked, Socket};

use super::Lane;
use super::link::{CloseReason, LingeringClose, Link, zero_copy_threshold};
use super::tls_buffers::TlsBuffers;
use crate::connect::{Dialer, Dialled};
use crate::messages::AssociationMessage;
use crate::transport::Transport;

impl<B: DataBuffer> Lane<B> {
    #[cold]
    pub(super) fn dial(&mut self) {
        let Link::Dialling(dialer) = &mut self.link else { return };
        match dialer.poll(self.polled_ns) {
            Dialled::Waiting => {}
            Dialled::Connected(socket, _) => {
                self.poll_device_of(&socket);
                let Some(attachment) = self.core.attachment() else { return };
                let settings = &attachment.settings;
                let keys = TlsKeys::of(
                    self.tls_keys.as_deref(),
                    attachment.identities,
                    attachment.generated.as_deref(),
                );
                match Transport::new(socket, keys, &settings.host, &settings.subsystem) {
                    Ok(transport) => {
                        self.link = Link::Securing(transport);
                        self.link_count += 1;
                        self.secure();
                    }
                    Err(cause) => self.lose(cause),
                }
            }
            Dialled::Failed(cause) => self.lose(cause),
        }
    }

    /// Continues the TLS handshake, if there is one; the queue's own comes after it.
    #[cold]
    pub(super) fn secure(&mut self) {
        let Link::Securing(transport) = &mut self.link else { return };
        match transport.secure() {
            Ok(false) => {}
            Ok(true) => {
                let Link::Securing(transport) = std::mem::replace(&mut self.link, Link::None) else {
                    unreachable!("it is, above")
                };
                self.zero_copy = match transport.has_tls() {
                    false => zero_copy_threshold(transport.socket(), self.zero_copy_policy),
                    true => Threshold::NEVER,
                };
                self.tls_buffers = match transport.has_tls() {
                    false => TlsBuffers::None,
                    true => TlsBuffers::Used { at_ns: self.polled_ns },
                };
                self.link = Link::Connected(transport);
                self.is_blocked = false;
                self.core.on_connected(self.polled_ns);
                self.ring();
            }
            Err(cause) => self.lose(cause),
        }
    }

    /// Turns on busy polling of a new socket's device, if configured.
    fn poll_device_of(&mut self, socket: &Socket) {
        match socket.set_busy_poll(self.busy_poll).poll {
            Asked::No => {}
            Asked::Accepted => self.counters.busy_polled_links += 1,
            Asked::Refused(_) => self.counters.busy_poll_refusals += 1,
        }
        self.counters.napi_id = socket.arrival().napi_id.map_or(0, Into::into);
        self.counters.segment_bytes = socket.sent_segment_bytes();
    }

    /// The connection failed, or must be closed.
    #[cold]
    pub(super) fn lose(&mut self, cause: LinkError) {
        if let Link::Lingering(_) = self.link {
            return;
        }
        if let LinkError::Violation(violation) = cause {
            self.send_term_req(violation);
        }
        tracing::debug!(lane = self.number(), %cause, "connection lost");
        let cause = self.link.named(cause);
        self.counters.losses += 1;
        self.watch.forget();
        self.last_loss = Some(cause.clone());
        self.close(CloseReason::Lost(cause));
    }

    /// Sends a TermReq for a violation of the target, if the socket accepts it at once.
    fn send_term_req(&mut self, violation: Violation) {
        if let (Link::Connected(transport), Some(bytes)) = (&mut self.link, self.core.term_req(violation)) {
            let _ = transport.send(&[memory::Segment::new(&bytes)]);
            // A reset would discard it.
            transport.finish();
        }
    }

    /// Releases zero-copy sends that the kernel no longer reads.
    #[cold]
    pub(super) fn take_notices(&mut self) {
        let Some(socket) = self.link.socket() else { return };
        while self.core.awaited_count() > 0
            && let Some(notice) = socket.next_notice()
        {
            self.core.on_notice(notice.first, notice.last);
            if notice.is_copied {
                self.counters.zero_copy_copied += u64::from(notice.send_count());
            }
            if self.zero_copy.on_notice(notice.send_count(), notice.is_copied) {
                tracing::debug!(
                    lane = self.core.qid().get(),
                    "kernel copies zero-copy sends; turned them off"
                );
            }
        }
    }

    /// Closes the connection, once the kernel released all zero-copy sends.
    pub(super) fn close(&mut self, reason: CloseReason) {
        if self.core.awaited_count() == 0 {
            return self.on_closed(reason);
        }
        match std::mem::replace(&mut self.link, Link::None) {
            Link::Connected(transport) => {
                self.link = Link::Lingering(Box::new(LingeringClose::new(transport.into_socket(), reason)));
                self.linger();
            }
            _ => unreachable!("only a connected socket has zero-copy sends"),
        }
    }

    /// Ends a lingering close once the kernel released all zero-copy sends.
    #[cold]
    pub(super) fn linger(&mut self) {
        self.take_notices();
        if self.core.awaited_count() > 0 {
            return;
        }
        if let Link::Lingering(lingering) = std::mem::replace(&mut self.link, Link::None) {
            let LingeringClose { socket, reason, messages } = *lingering;
            drop(socket);
            self.on_closed(reason);
            messages.into_iter().for_each(|message| self.on_message(message));
        }
    }

    /// Ends commands, or keeps them for the next connection, as the reason demands.
    pub(super) fn on_closed(&mut self, reason: CloseReason) {
        match reason {
            CloseReason::Lost(cause) => self.core.on_lost(cause),
            CloseReason::Detached(generation) => {
                self.core.detach(generation);
                if !self.core.is_live() {
                    self.last_loss.get_or_insert(LinkError::Association);
                }
            }
            CloseReason::Ended(error) => {
                self.core.end();
                self.over = Some(error);
            }
        }
        self.act();
    }

    #[inline]
    pub(super) fn act(&mut self) {
        while let Some(action) = self.core.next_action() {
            self.carry_out(action);
        }
    }

    #[cold]
    fn carry_out(&mut self, action: LaneAction) {
        let generation = self.core.generation();
        match action {
            LaneAction::Open(peer) => {
                self.link = Link::Dialling(Dialer::new([peer], self.dial_settings));
                self.dial();
            }
            LaneAction::Close => {
                match std::mem::replace(&mut self.link, Link::None) {
                    Link::Connected(transport) | Link::Securing(transport) => transport.reset(),
                    _ => {}
                }
                self.is_blocked = false;
                self.tls_buffers = TlsBuffers::None;
            }
            LaneAction::Abort { cid } => {
                self.association.post(AssociationMessage::Abort { generation, qid: self.qid(), cid });
            }
            LaneAction::ReadAna => {
                self.association.post(AssociationMessage::ReadAna { generation });
            }
            LaneAction::Report { .. } if !self.was_live => {}
            LaneAction::Report { generation, cause } => {
                self.association.post(AssociationMessage::LaneLost { generation, cause });
            }
        }
    }
}
