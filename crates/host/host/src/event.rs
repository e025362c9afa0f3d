//! Events of an association.

use std::sync::Arc;

use host_core::link_error::LinkError;
use wire::async_event::AsyncEvent;
use wire::id::Nsid;

use crate::error::Error;

/// A change of an association or of its controller; see [`Association::events`](crate::Association::events).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The association is up, for the first time or again.
    Up,
    /// The association is lost; reconnecting begins.
    Down {
        /// Why.
        cause: LinkError,
    },
    /// An attempt to reconnect failed; another follows.
    AttemptFailed {
        /// Attempts so far.
        attempts: u32,
        /// Why the last one failed.
        cause: LinkError,
    },
    /// The admin queue was to authenticate again ([`Options::reauthenticate`](crate::Options::reauthenticate)), and the
    /// controller has refused. The host tries again after the interval, unless the controller ends the association.
    AuthenticationFailed {
        /// Why.
        cause: LinkError,
    },
    /// These namespaces were added, removed or changed: get them again.
    NamespacesChanged(Vec<Nsid>),
    /// The discovery log changed: read it again.
    DiscoveryChanged,
    /// Any other asynchronous event of the controller.
    Controller(AsyncEvent),
    /// The association ended for good.
    Over(Arc<Error>),
}
