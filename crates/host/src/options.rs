//! How an association is to be.

use std::time::Duration;

use proto::doorbell::Policy as DoorbellPolicy;
use proto::handshake::HostOffer;
use proto::host_queue::HOST_SLOT_COUNT_MAX;
use proto::receive::Receive;
use proto::zero_copy::Policy as ZeroCopy;
use reactor::BusyPoll;
use wire::pdu::{DataAlignment, Digests};

use crate::identity::HostIdentity;
use crate::queue_map::{LaneClass, QueueMap};
use crate::reconnect::{ReconnectSettings, ReplayPolicy};

/// From this size on data that is copied out of a warm buffer costs no less than the receives of its own that it takes to have it come in
/// place; from 256 KiB on more (docs/design/socket-path.md).
const IN_PLACE_BYTES: u32 = 64 << 10;

/// How an association is to be. Start from the default and change what must be different:
///
/// ```
/// use nvlane_host::Options;
///
/// let options = Options { lanes: 4, depth: 32, ..Options::default() }.with_digests();
/// # assert!(options.digests.bits() == 3);
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    /// I/O lanes wanted, of the default class; a controller may grant fewer. 0 for an association that is only asked about.
    pub lanes: u16,
    /// Lanes wanted for reads, beside those: then a read does not wait behind what is being written.
    pub read_lanes: u16,
    /// Lanes wanted for commands that are [polled](crate::Command::polled) for, beside those.
    pub poll_lanes: u16,
    /// Commands outstanding on one lane at most, 1 to [`DEPTH_MAX`](Self::DEPTH_MAX); a controller may take fewer.
    pub depth: u16,
    /// Digests on every PDU. A target that does not agree to exactly these is refused.
    pub digests: Digests,
    /// Where data begins in PDUs to us. nvmet takes no other than the default.
    pub alignment: DataAlignment,
    /// Windows of one write that a target may open at once. nvmet and SPDK open one.
    pub r2t_limit: u32,
    /// Keep SQ flow control. Without it (the default) a read needs no completion of its own, which nvmet, SPDK and nvlane
    /// know how to do.
    pub flow_control: bool,
    /// Longest data of a write that goes in its command's capsule, bytes: no more than the target takes, in any case.
    /// nvmet (6.12) never answers a write that could have gone there and did not: lower it for experiments only.
    pub in_capsule_bytes_max: u32,
    /// Our keep-alive timeout: a target that does not hear from us for so long ends the association. Zero for none.
    pub keep_alive: Duration,
    /// Who we are; [`HostIdentity::of_this_machine`] if not given.
    pub identity: Option<HostIdentity>,
    /// Longest wait for each step of a connection, by default 10 s: name resolution and TCP connect together, handshake (ICReq), Connect,
    /// and on the admin queue each further command that brings the controller up. The first attempt is made once; for later ones see
    /// [`reconnect`](Self::reconnect).
    pub connect_timeout: Duration,
    /// Time without an answer after which an I/O command is aborted, by default 30 s. Without an answer for half of that
    /// time more its connection is given up, and with it the association: then the command ends.
    pub command_timeout: Duration,
    /// Longest wait for the answer to an admin command, by default 60 s, after which the association is recovered; longest time that an admin
    /// command of a caller waits for a lost association before it ends; and longest time from the Connect of the admin queue until
    /// the controller and its namespaces are known.
    pub admin_timeout: Duration,
    /// Longest time that a command is held while its namespace cannot be reached, by default 30 s, from the first status that says so:
    /// ANA inaccessible or in transition, a path error, namespace not ready. Zero ends it with the first such status. See
    /// [`retry`](crate::retry).
    pub path_timeout: Duration,
    /// Times that a command is submitted again after a transient status (command interrupted, transient transport error), by
    /// default 5, as Linux does by default (`nvme_core.max_retries`).
    pub retries: u8,
    /// Longest time that I/O commands wait for a lost association, by default none (`None`): they wait until it is back or
    /// given up ([`ReconnectSettings::give_up_ns`], 600 s). Linux's `fast_io_fail_tmo`.
    pub fast_io_fail: Option<Duration>,
    /// Longest time for the orderly shutdown when an association is closed or dropped, by default 3 s.
    pub close_timeout: Duration,
    /// Longest life of the association, from the call that begins it, by default unlimited (`None`). When it is over the association
    /// ends for good, whatever it does then, and every call and command of it with an error: for a
    /// tool that is to end in a stated time.
    pub deadline: Option<Duration>,
    /// When to connect again after the association was lost: by default after 20 ms, then less and less often, at least every 10 s, for
    /// 600 s.
    pub reconnect: ReconnectSettings,
    /// What is submitted again after that.
    pub replay: ReplayPolicy,
    /// When what is submitted leaves.
    pub doorbell: DoorbellPolicy,
    /// The same on read lanes, if it is another there.
    pub read_doorbell: Option<DoorbellPolicy>,
    /// The same on poll lanes, if it is another there.
    pub poll_doorbell: Option<DoorbellPolicy>,
    /// Whether what is submitted to an idle lane leaves at once, from the submitter's call, instead of with its next poll: for callers
    /// who have other things to do in between.
    pub inline_send: bool,
    /// The longest time a wait spins before it sleeps. It spins only as long as that has paid lately: zero never
    /// spins, `Duration::MAX` always.
    pub spin: Duration,
    /// Whether lanes poll the devices that their packets come in through, and how long a wait does so before it sleeps, whether or
    /// not spinning has paid. Off unless asked for; without such a device (loopback) it only spins.
    pub busy_poll: BusyPoll,
    /// Read data that comes in PDUs of this size and more is received where it belongs, without a copy.
    pub in_place_bytes: u32,
    /// Which write data is sent from where it lies, without a copy. The completion of such a write waits until the kernel is done with
    /// its buffer, which may be after the target has answered.
    pub zero_copy: ZeroCopy,
    /// How received bytes are asked for. Anything but the default is for measuring what that is worth.
    pub receive: Receive,
    /// What jitter is drawn from; taken from the system if not given.
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
            alignment: DataAlignment::NONE,
            r2t_limit: 1,
            flow_control: false,
            in_capsule_bytes_max: u32::MAX,
            keep_alive: Duration::from_secs(10),
            identity: None,
            connect_timeout: Duration::from_secs(10),
            command_timeout: Duration::from_secs(30),
            admin_timeout: Duration::from_secs(60),
            path_timeout: Duration::from_secs(30),
            retries: 5,
            fast_io_fail: None,
            close_timeout: Duration::from_secs(3),
            deadline: None,
            reconnect: ReconnectSettings::default(),
            replay: ReplayPolicy::default(),
            doorbell: DoorbellPolicy::default(),
            read_doorbell: None,
            poll_doorbell: None,
            spin: Duration::from_nanos(reactor::spin_ns_max()),
            busy_poll: BusyPoll::OFF,
            inline_send: false,
            in_place_bytes: IN_PLACE_BYTES,
            zero_copy: ZeroCopy::default(),
            receive: Receive::default(),
            seed: None,
        }
    }
}

impl Options {
    /// Commands that can be outstanding on one lane at most.
    pub const DEPTH_MAX: u16 = HOST_SLOT_COUNT_MAX - 1;

    /// With header and data digests.
    #[must_use]
    pub fn with_digests(self) -> Self {
        Self { digests: Digests::all(), ..self }
    }

    /// For a connection that is only asked about: no I/O lanes.
    #[must_use]
    pub fn without_lanes(self) -> Self {
        Self { lanes: 0, read_lanes: 0, poll_lanes: 0, ..self }
    }

    /// With lanes of these classes.
    #[must_use]
    pub fn with_queues(self, queues: QueueMap) -> Self {
        Self { lanes: queues.default, read_lanes: queues.read, poll_lanes: queues.poll, ..self }
    }

    /// Lanes wanted of each class.
    #[must_use]
    pub fn queues(&self) -> QueueMap {
        QueueMap { default: self.lanes, read: self.read_lanes, poll: self.poll_lanes }
    }

    /// When what is submitted to lanes of this class leaves.
    pub(crate) fn doorbell_of(&self, class: LaneClass) -> DoorbellPolicy {
        let own = match class {
            LaneClass::Default => None,
            LaneClass::Read => self.read_doorbell,
            LaneClass::Poll => self.poll_doorbell,
        };
        own.unwrap_or(self.doorbell)
    }

    /// The depth, within what a queue can have.
    pub(crate) fn depth(&self) -> u16 {
        self.depth.clamp(1, Self::DEPTH_MAX)
    }

    pub(crate) fn offer(&self) -> HostOffer {
        HostOffer { alignment: self.alignment, digests: self.digests, r2t_limit: self.r2t_limit.max(1) }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| {
            let mut bytes = [0; 8];
            // Without randomness there is no jitter, which harms nobody.
            let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
            u64::from_le_bytes(bytes)
        })
    }
}

/// A duration in ns, as far as 64 bits go.
pub(crate) fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A duration in ms, as far as 32 bits go; what is not zero does not become zero.
pub(crate) fn ms(duration: Duration) -> u32 {
    let ms = u32::try_from(duration.as_millis()).unwrap_or(u32::MAX);
    if ms == 0 && !duration.is_zero() { 1 } else { ms }
}
