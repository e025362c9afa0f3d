//! The facts about an association that its lanes connect with.

use std::net::SocketAddr;
use std::sync::Arc;

use proto::host_controller::ControllerSettings;
use proto::host_limits::Limits;
use wire::id::{Cntlid, Nsid, Qid};
use wire::log::ana::AnaState;
use wire::status::Status;

use crate::authentication::{Credentials, TlsPsk};
use crate::connection_tls::IdentityOffer;
use crate::failure::Failure;
use crate::link_error::LinkContext;

/// An association that is up, as its lanes need to know it.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// Number of this association: grows by one with each loss.
    pub generation: u64,
    /// The controller.
    pub cntlid: Cntlid,
    /// The target's address.
    pub peer: SocketAddr,
    /// Settings of the admin queue's Connect.
    pub settings: ControllerSettings,
    /// Secrets for authentication.
    pub credentials: Option<Arc<Credentials>>,
    /// The key of TLS that the authentication of the admin queue has generated: it is that of all connections.
    pub generated: Option<Arc<TlsPsk>>,
    /// The identities of a configured key of TLS that the admin queue connected with.
    pub identities: IdentityOffer,
    /// Limits of the controller.
    pub limits: Limits,
    /// I/O queues granted.
    pub queue_pairs: u16,
    /// The most partitions that a key-value namespace tells a map of; 0 if none does.
    pub partition_count: u16,
    /// Whether a key-value namespace has nvlane's commands for long values: then the target is nvlane's, and requests two parts
    /// of a value at once.
    pub has_long_values: bool,
    /// Namespaces that were not accessible when the association came up, or are not the ones known under their ids.
    pub inaccessible: Inaccessible,
}

impl Attachment {
    /// The connection of queue `qid`, for error messages.
    #[must_use]
    pub fn link_context(&self, qid: Qid) -> LinkContext {
        let ControllerSettings { host, subsystem, .. } = self.settings.clone();
        LinkContext { peer: self.peer.to_string(), qid, subsystem, host }
    }
}

/// Why commands of a namespace are not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// The ANA log reports this state: inaccessible, persistent loss or change.
    Ana(AnaState),
    /// Other storage than the known answers under the namespace's id.
    Replaced,
}

impl Barrier {
    /// The state whose end commands wait for.
    ///
    /// # Errors
    /// The failure that they end with, if they are not to wait.
    pub(crate) fn awaited(self) -> Result<AnaState, Failure> {
        match self {
            Self::Ana(AnaState::PERSISTENT_LOSS) => Err(Failure::Status(Status::ANA_PERSISTENT_LOSS)),
            Self::Ana(state) => Ok(state),
            Self::Replaced => Err(Failure::Replaced),
        }
    }
}

/// Namespaces whose commands are not sent, ordered by id.
pub type Inaccessible = Arc<[(Nsid, Barrier)]>;
