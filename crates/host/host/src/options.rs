//! Options of an association.

use std::sync::Arc;
use std::time::Duration;

use host_core::authentication::Credentials;
use host_core::connection_tls::HostKeys;
use host_core::queue_map::{LaneClass, QueueMap};
use host_core::reconnect::{ReconnectSettings, ReplayPolicy};
use proto::doorbell::Policy as DoorbellPolicy;
use proto::handshake::HostOffer;
use proto::host_queue::HOST_SLOT_COUNT_MAX;
use proto::receive::Receive;
use proto::zero_copy::Policy as ZeroCopy;
use reactor::{BusyPoll, MaxSegment};
use wire::pdu::{DataAlignment, Digests};

use crate::error::Error;
use crate::identity::HostIdentity;

/// From this size on, receiving in place costs no more than copying out of the warm staging buffer; from 256 KiB on it
/// costs less (docs/design/socket-path.md).
const IN_PLACE_BYTES: u32 = 64 << 10;

/// Options of an association: start from the default and change single ones.
///
/// ```
/// use nvlane_host::Options;
///
/// let options = Options::default().with_lanes(4).with_depth(32).with_digests();
/// # assert!(options.digests.bits() == 3);
/// ```
///
/// Fields that few programs change are in [`tuning`](Self::tuning):
///
/// ```
/// use nvlane_host::{Options, ZeroCopy};
///
/// let options = Options::default().tuned(|tuning| tuning.zero_copy = ZeroCopy::From(64 << 10));
/// # assert!(options.tuning.zero_copy == ZeroCopy::From(65536));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// I/O lanes of the default class; a controller may grant fewer. 0 for an association without I/O.
    pub lanes: u16,
    /// Additional lanes for reads: a read then does not wait behind a large write.
    pub read_lanes: u16,
    /// Additional lanes for commands marked [`polled`](crate::Command::polled).
    pub poll_lanes: u16,
    /// Maximum outstanding commands per lane, 1 to [`DEPTH_MAX`](Self::DEPTH_MAX); a controller may take fewer.
    pub depth: u16,
    /// Digests on every PDU. A target that does not agree to exactly these is refused.
    pub digests: Digests,
    /// Name and identifier of this host; [`HostIdentity::of_this_machine`] if `None`.
    pub identity: Option<HostIdentity>,
    /// Secrets for targets that ask for authentication.
    pub credentials: Option<Arc<Credentials>>,
    /// Interval at which each connected queue authenticates again, if the controller has asked for authentication; by
    /// default (`None`) each does so once, when it connects. A lane begins in a poll or wait of its owner, and computes
    /// on that thread, as when it connects: longer the larger the group that the controller chooses. The key of
    /// [`concat`](Self::concat) is not generated again, and its connections do not authenticate again.
    ///
    /// If the controller refuses, the queue stays in use unless the controller closes it, and the refusal is reported
    /// ([`Event::AuthenticationFailed`](crate::Event::AuthenticationFailed) for the admin queue, and a warning in the log).
    /// A controller that fails to show its own secret loses the connection.
    pub reauthenticate: Option<Duration>,
    /// The pre-shared key: every connection uses TLS 1.3 with it, and none is unencrypted. `None` for no TLS.
    pub tls: Option<Arc<HostKeys>>,
    /// Generate the key of TLS by the authentication of the admin queue (secure channel concatenation): the first
    /// connection, without TLS, only authenticates, and all others use TLS. Needs [`credentials`](Self::credentials),
    /// and does not go with [`tls`](Self::tls). The discovery service, which does not authenticate, stays unencrypted.
    ///
    /// Without the controller's secret among the credentials the host does not verify the target, and any machine at the
    /// target's address can be the other end of TLS.
    pub concat: bool,
    /// Keep-alive timeout: the target ends the association after this time without a message. Zero for none.
    pub keep_alive: Duration,
    /// Timeout of each step of a connection, by default 10 s: name resolution, TCP connect and TLS together, the ICReq
    /// handshake, Connect, and each further command of the admin queue's bring-up. The first attempt is made once; for
    /// later ones see [`reconnect`](Self::reconnect).
    pub connect_timeout: Duration,
    /// Time without an answer after which an I/O command is aborted, by default 30 s. After half of that time more the
    /// connection is closed, and the association is lost: then the command ends.
    pub command_timeout: Duration,
    /// Maximum lifetime of the association, from the call that begins it; unlimited by default (`None`). When it has
    /// passed, the association ends for good, and each of its calls and commands ends with an error.
    pub deadline: Option<Duration>,
    /// Delays between attempts to reconnect: by default 20 ms at first, growing to 10 s, for 600 s in total, also while
    /// the target refuses the host's key or secret; see [`reconnect`](crate::reconnect#when-attempts-end).
    pub reconnect: ReconnectSettings,
    /// Which commands are submitted again after a reconnect.
    pub replay: ReplayPolicy,
    /// Everything else.
    pub tuning: Tuning,
}

/// Options that few programs change: details of the protocol, retries, and how threads send, receive and wait.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Tuning {
    /// Alignment of the data in PDUs that the controller sends (HPDA). nvmet takes only the default.
    pub alignment: DataAlignment,
    /// Maximum outstanding R2Ts per write. nvmet and SPDK send one.
    pub r2t_limit: u32,
    /// Keep SQ flow control. Without it (the default) a read needs no response capsule; nvmet, SPDK and nvlane support
    /// that.
    pub flow_control: bool,
    /// Maximum in-capsule data of a write, bytes; the target's own limit applies as well. nvmet (6.12) never answers a
    /// write that would have fit into its capsule and was sent by R2T: lower it only for experiments.
    pub in_capsule_bytes_max: u32,
    /// Timeout of an admin command, by default 60 s; the association is recovered after it. Also the maximum time that
    /// a caller's admin command waits for a lost association, and that the bring-up takes from the admin queue's
    /// Connect until the controller and its namespaces are known.
    pub admin_timeout: Duration,
    /// Maximum time that a command is held while its namespace cannot be reached, by default 30 s from the first such
    /// status: ANA inaccessible or in transition, a path error, namespace not ready. Zero ends it with that status. See
    /// [`retry`](crate::retry).
    pub path_timeout: Duration,
    /// Maximum retries of a command after a status that may pass (command interrupted, transient transport error,
    /// internal error), by default 5 as on Linux (`nvme_core.max_retries`); zero ends it with that status. The
    /// controller's retry delay (CRD) is observed. See [`retry`](crate::retry).
    pub retries: u8,
    /// Maximum time that I/O commands wait for a lost association; by default (`None`) they wait until it is back or
    /// given up ([`ReconnectSettings::give_up_after`], 600 s). Linux's `fast_io_fail_tmo`.
    pub fast_io_fail: Option<Duration>,
    /// Maximum time of the orderly shutdown when an association is closed or dropped, by default 3 s.
    pub close_timeout: Duration,
    /// When submitted commands are sent.
    pub doorbell: DoorbellPolicy,
    /// Replaces `doorbell` on read lanes.
    pub read_doorbell: Option<DoorbellPolicy>,
    /// Replaces `doorbell` on poll lanes.
    pub poll_doorbell: Option<DoorbellPolicy>,
    /// Send a command submitted to an idle lane at once, in the call that submits it, instead of with the lane's next
    /// poll: for callers that do other work in between.
    pub inline_send: bool,
    /// Maximum time that a wait spins before it sleeps. It spins only as long as that has paid off recently; zero never
    /// spins, `Duration::MAX` always.
    pub spin: Duration,
    /// Busy polling of the network device that a lane's packets arrive on, and the time that a wait does so before it
    /// sleeps. Off by default; without such a device (loopback) the wait only spins.
    pub busy_poll: BusyPoll,
    /// Maximum segment size of TCP on the admin queue and the lanes, in both directions; by default (`None`) that of the route's
    /// MTU. RFC 9293 section 3.7.1.
    pub max_segment: Option<MaxSegment>,
    /// Read data in PDUs of at least this size is received into the command's buffer, without a copy.
    pub in_place_bytes: u32,
    /// Which write data is sent without a copy. Such a write completes when the kernel has released its buffer, which
    /// may be after the target's answer.
    pub zero_copy: ZeroCopy,
    /// Ask a target that tells how it divides the keys of a namespace to place each lane near one of the partitions, and
    /// send commands on a key on the lane near its partition, if there is a lane for each. On by default; see
    /// [`PartitionMap`](crate::PartitionMap).
    pub follows_partitions: bool,
    /// How receives are cut. Values other than the default serve measurements.
    pub receive: Receive,
    /// Seed of the jitter between attempts to reconnect; random if `None`.
    pub seed: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lanes: 1,
            read_lanes: 0,
            poll_lanes: 0,
            depth: 128,
            digests: Digests::empty(),
            identity: None,
            credentials: None,
            reauthenticate: None,
            tls: None,
            concat: false,
            keep_alive: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            command_timeout: Duration::from_secs(30),
            deadline: None,
            reconnect: ReconnectSettings::default(),
            replay: ReplayPolicy::default(),
            tuning: Tuning::default(),
        }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            alignment: DataAlignment::NONE,
            r2t_limit: 1,
            flow_control: false,
            in_capsule_bytes_max: u32::MAX,
            admin_timeout: Duration::from_secs(60),
            path_timeout: Duration::from_secs(30),
            retries: 5,
            fast_io_fail: None,
            close_timeout: Duration::from_secs(3),
            doorbell: DoorbellPolicy::default(),
            read_doorbell: None,
            poll_doorbell: None,
            inline_send: false,
            spin: Duration::from_nanos(reactor::spin_ns_max()),
            busy_poll: BusyPoll::OFF,
            max_segment: None,
            in_place_bytes: IN_PLACE_BYTES,
            zero_copy: ZeroCopy::default(),
            follows_partitions: true,
            receive: Receive::default(),
            seed: None,
        }
    }
}

/// One method for each option, with its name and type.
macro_rules! setters {
    ($($method:ident: $field:ident as $type:ty,)*) => {$(
        #[doc = concat!("With [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
        #[must_use]
        pub fn $method(mut self, $field: $type) -> Self {
            self.$field = $field.into();
            self
        }
    )*};
}

impl Options {
    /// Maximum depth of a lane.
    pub const DEPTH_MAX: u16 = HOST_SLOT_COUNT_MAX - 1;

    setters! {
        with_lanes: lanes as u16,
        with_read_lanes: read_lanes as u16,
        with_poll_lanes: poll_lanes as u16,
        with_depth: depth as u16,
        with_only_digests: digests as Digests,
        with_identity: identity as impl Into<Option<HostIdentity>>,
        with_credentials: credentials as impl Into<Option<Arc<Credentials>>>,
        with_reauthenticate: reauthenticate as impl Into<Option<Duration>>,
        with_tls: tls as impl Into<Option<Arc<HostKeys>>>,
        with_concat: concat as bool,
        with_keep_alive: keep_alive as Duration,
        with_connect_timeout: connect_timeout as Duration,
        with_command_timeout: command_timeout as Duration,
        with_deadline: deadline as impl Into<Option<Duration>>,
        with_reconnect: reconnect as ReconnectSettings,
        with_replay: replay as ReplayPolicy,
        with_tuning: tuning as Tuning,
    }

    /// With header and data digests.
    #[must_use]
    pub fn with_digests(self) -> Self {
        Self { digests: Digests::all(), ..self }
    }

    /// Without I/O lanes: for discovery and administration.
    #[must_use]
    pub fn without_lanes(self) -> Self {
        Self { lanes: 0, read_lanes: 0, poll_lanes: 0, ..self }
    }

    /// With lanes of these classes.
    #[must_use]
    pub fn with_queues(self, queues: QueueMap) -> Self {
        Self { lanes: queues.default, read_lanes: queues.read, poll_lanes: queues.poll, ..self }
    }

    /// With changes of [`tuning`](Self::tuning).
    #[must_use]
    pub fn tuned(mut self, change: impl FnOnce(&mut Tuning)) -> Self {
        change(&mut self.tuning);
        self
    }

    /// Requested lanes of each class.
    #[must_use]
    pub fn queues(&self) -> QueueMap {
        QueueMap { default: self.lanes, read: self.read_lanes, poll: self.poll_lanes }
    }

    /// Checks that this build of the library has what is demanded. Keys and secrets need no check: in a build without
    /// their features there are none.
    ///
    /// # Errors
    /// [`Error::NotBuilt`].
    pub(crate) fn check_build(&self) -> Result<(), Error> {
        if self.concat && cfg!(not(feature = "tls")) {
            return Err(Error::NotBuilt { needed: "TLS with a generated key", feature: "tls" });
        }
        if self.reauthenticate.is_some() && cfg!(not(feature = "authentication")) {
            return Err(Error::NotBuilt { needed: "in-band authentication", feature: "authentication" });
        }
        Ok(())
    }

    /// The depth, limited to what a queue can have.
    pub(crate) fn depth(&self) -> u16 {
        self.depth.clamp(1, Self::DEPTH_MAX)
    }

    /// Parameters of the ICReq.
    pub(crate) fn offer(&self) -> HostOffer {
        let Tuning { alignment, r2t_limit, .. } = self.tuning;
        HostOffer { alignment, digests: self.digests, r2t_limit: r2t_limit.max(1) }
    }
}

impl Tuning {
    /// The doorbell policy of lanes of this class.
    pub(crate) fn doorbell_of(&self, class: LaneClass) -> DoorbellPolicy {
        let own = match class {
            LaneClass::Default => None,
            LaneClass::Read => self.read_doorbell,
            LaneClass::Poll => self.poll_doorbell,
        };
        own.unwrap_or(self.doorbell)
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| {
            let mut bytes = [0; 8];
            // Without randomness there is no jitter, which does no harm.
            let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
            u64::from_le_bytes(bytes)
        })
    }
}

#[cfg(all(test, not(feature = "authentication")))]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_built_is_said() {
        let concat = Options { concat: true, ..Options::default() }.check_build().expect_err("no TLS");
        assert!(concat.to_string().ends_with("needs the feature `tls` of nvlane-host"), "{concat}");
        let again = Options { reauthenticate: Some(Duration::ZERO), ..Options::default() };
        let again = again.check_build().expect_err("no authentication");
        assert!(again.to_string().ends_with("needs the feature `authentication` of nvlane-host"), "{again}");
    }
}
