//! The events of the audit log, each with the fields of its line.

use std::net::SocketAddr;

use security::group::Group;
use security::hash::HashFunction;
use security::psk::{Cipher, Derivation, IdentityVersion};
use wire::id::Cntlid;
use wire::nqn::{HostId, HostName, Nqn};

use super::line::Line;

/// What TLS a connection uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsInUse {
    /// The cipher suite.
    pub cipher: Cipher,
    /// The version of the identity of the key.
    pub version: IdentityVersion,
    /// How the key was derived.
    pub derivation: Derivation,
}

/// An event. docs/audit-log.md
#[derive(Debug)]
pub(crate) enum Event {
    /// The target starts.
    Started {
        /// Version of nvlane.
        version: &'static str,
    },
    /// The target has stopped.
    Stopped {},
    /// A queue has connected. The admin queue, 0, begins an association.
    Connected {
        queue: OfQueue,
        listener: Option<SocketAddr>,
        tls: Option<TlsInUse>,
        /// Whether the host must authenticate before anything else.
        must_authenticate: bool,
    },
    /// A Connect was refused.
    ConnectRefused {
        peer: Option<SocketAddr>,
        listener: Option<SocketAddr>,
        host: Option<String>,
        host_id: Option<String>,
        subsystem: Option<String>,
        queue: Option<u16>,
        tls: Option<TlsInUse>,
        /// Name of the status.
        status: String,
        /// The parameter that was refused.
        parameter: Option<&'static str>,
    },
    /// A connection was refused or closed.
    ConnectionRefused { peer: Option<SocketAddr>, reason: &'static str, detail: Option<String> },
    /// The host of a queue has authenticated.
    Authenticated {
        queue: OfQueue,
        hash: HashFunction,
        group: Group,
        /// The controller has authenticated, too.
        both_ways: bool,
    },
    /// The host of a queue has not authenticated.
    AuthenticationFailed { queue: OfQueue, reason: String },
    /// Commands of a host that has no right to write to the namespace.
    WriteRefused { queue: OfQueue, namespace: u32, command_count: usize },
    /// An association ends.
    Disconnected { queue: OfQueue, reason: &'static str },
}

/// A queue and its host.
#[derive(Debug)]
pub(crate) struct OfQueue {
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) host: String,
    pub(crate) host_id: String,
    pub(crate) subsystem: String,
    /// Id of the controller.
    pub(crate) controller: u16,
    /// Id of the queue.
    pub(crate) queue: u16,
}

impl OfQueue {
    pub(crate) fn new(
        peer: Option<SocketAddr>,
        host: &HostName,
        hostid: HostId,
        subsystem: &Nqn,
        (controller, queue): (Cntlid, u16),
    ) -> Self {
        Self {
            peer,
            host: host.to_string(),
            host_id: hostid.to_string(),
            subsystem: subsystem.to_string(),
            controller: controller.get(),
            queue,
        }
    }

    fn write(&self, line: &mut Line<'_>) {
        line.optional("peer", self.peer);
        line.text("host", &self.host);
        line.text("host_id", &self.host_id);
        line.text("subsystem", &self.subsystem);
        line.number("controller", self.controller.into());
        line.number("queue", self.queue.into());
    }
}

impl TlsInUse {
    fn write(tls: Option<Self>, line: &mut Line<'_>) {
        let Some(Self { cipher, version, derivation }) = tls else { return line.null("tls") };
        line.object("tls", |line| {
            line.shown("cipher", cipher);
            line.number(
                "identity_version",
                match version {
                    IdentityVersion::Zero => 0,
                    IdentityVersion::One => 1,
                },
            );
            line.shown("derivation", derivation);
        });
    }
}

impl Event {
    /// The kind by which its rate is limited: the reason of a refused connection, else the event.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Started { .. } => "started",
            Self::Stopped {} => "stopped",
            Self::Connected { queue, .. } if queue.queue == 0 => "connected",
            Self::Connected { .. } => "queue connected",
            Self::ConnectRefused { .. } => "connect refused",
            Self::ConnectionRefused { reason, .. } => reason,
            Self::Authenticated { .. } => "authenticated",
            Self::AuthenticationFailed { .. } => "authentication failed",
            Self::WriteRefused { .. } => "write refused",
            Self::Disconnected { .. } => "disconnected",
        }
    }

    /// The name of the event in its line.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Started { .. } => "started",
            Self::Stopped {} => "stopped",
            Self::Connected { .. } => "connected",
            Self::ConnectRefused { .. } => "connect_refused",
            Self::ConnectionRefused { .. } => "connection_refused",
            Self::Authenticated { .. } => "authenticated",
            Self::AuthenticationFailed { .. } => "authentication_failed",
            Self::WriteRefused { .. } => "write_refused",
            Self::Disconnected { .. } => "disconnected",
        }
    }

    /// Writes the fields of its line.
    pub(super) fn write(&self, line: &mut Line<'_>) {
        match self {
            Self::Started { version } => line.text("version", version),
            Self::Stopped {} => {}
            Self::Connected { queue, listener, tls, must_authenticate } => {
                queue.write(line);
                line.optional("listener", *listener);
                TlsInUse::write(*tls, line);
                line.flag("must_authenticate", *must_authenticate);
            }
            Self::ConnectRefused {
                peer,
                listener,
                host,
                host_id,
                subsystem,
                queue,
                tls,
                status,
                parameter,
            } => {
                line.optional("peer", *peer);
                line.optional("listener", *listener);
                line.optional("host", host.as_deref());
                line.optional("host_id", host_id.as_deref());
                line.optional("subsystem", subsystem.as_deref());
                if let Some(queue) = queue {
                    line.number("queue", (*queue).into());
                }
                TlsInUse::write(*tls, line);
                line.text("status", status);
                line.optional("parameter", *parameter);
            }
            Self::ConnectionRefused { peer, reason, detail } => {
                line.optional("peer", *peer);
                line.text("reason", reason);
                line.optional("detail", detail.as_deref());
            }
            Self::Authenticated { queue, hash, group, both_ways } => {
                queue.write(line);
                line.shown("hash", hash);
                line.shown("group", group);
                line.flag("both_ways", *both_ways);
            }
            Self::AuthenticationFailed { queue, reason } => {
                queue.write(line);
                line.text("reason", reason);
            }
            Self::WriteRefused { queue, namespace, command_count } => {
                queue.write(line);
                line.number("namespace", (*namespace).into());
                line.number("command_count", *command_count as u64);
            }
            Self::Disconnected { queue, reason } => {
                queue.write(line);
                line.text("reason", reason);
            }
        }
    }
}
