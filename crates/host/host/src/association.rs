//! An association: one controller, its admin queue with a thread of its own, and its lanes.
//!
//! The association's thread sends keep-alives, receives events, runs admin commands, and reconnects after a loss. Lanes
//! stay with the threads that own them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use host_core::association_machine::{
    AdminAnswer, AdminRequest, AssociationMachine, AssociationSettings, ControllerInfo,
};
use host_core::attachment::Attachment;
use host_core::duration::{ms, ns};
use host_core::failure::Failure;
use host_core::key_value::{KeyValueNamespace, PartitionMap};
use host_core::link_error::{LinkContext, LinkError};
use host_core::namespace::Namespace;
use host_core::queue_map::{LaneClass, QueueMap};
use proto::host_controller::ControllerSettings;
use proto::host_namespaces::NamespaceInfo;
use proto::host_queue::DataBuffer;
use reactor::Mailbox;
use wire::id::{Nsid, Qid};
use wire::nqn::Nqn;

use crate::address::Address;
use crate::association_state::AssociationState;
use crate::association_thread::{self, Resolve, ThreadSettings};
use crate::connect::Clock;
use crate::error::Error;
use crate::event::{Events, Subscriber};
use crate::identity::HostIdentity;
use crate::lane::Lane;
use crate::lane_set::LaneSet;
use crate::messages::AssociationMessage;
use crate::options::Options;
use crate::shared_association::{QueueReservation, SharedAssociation};

/// An association with one controller of a subsystem. Clones share it; it ends when the last clone and lane is dropped.
#[derive(Clone, Debug)]
pub struct Association {
    inner: Arc<SharedAssociation>,
}

impl Association {
    /// Connects to the subsystem at `address`: connects the admin queue, brings the controller up and identifies its
    /// namespaces. [`lane`](Self::lane) connects lanes. One attempt is made, on each address of the host name.
    ///
    /// # Errors
    /// Why the attempt failed, with advice where there is any.
    pub fn connect(address: &Address, options: Options) -> Result<Self, Error> {
        let association = Self::begin(address, options)?;
        association.wait_up()?;
        Ok(association)
    }

    /// As [`connect`](Self::connect), without waiting for the target.
    pub(crate) fn begin(address: &Address, options: Options) -> Result<Self, Error> {
        let subsystem = match &address.subsystem {
            Some(subsystem) => subsystem.clone(),
            None => return Err(Error::NoSubsystem { address: address.to_string() }),
        };
        let is_discovery = subsystem.is_discovery();
        Self::begin_to(address, subsystem, is_discovery, options, Address::resolve)
    }

    /// Waits until the association is up for the first time. Each step of the only attempt has a limit of its own.
    pub(crate) fn wait_up(&self) -> Result<(), Error> {
        self.inner.state.wait_up(Duration::MAX).map(drop)
    }

    pub(crate) fn connect_to(
        address: &Address,
        subsystem: Nqn,
        is_discovery: bool,
        options: Options,
    ) -> Result<Self, Error> {
        let association = Self::begin_to(address, subsystem, is_discovery, options, Address::resolve)?;
        association.wait_up()?;
        Ok(association)
    }

    fn begin_to(
        address: &Address,
        subsystem: Nqn,
        is_discovery: bool,
        options: Options,
        resolve: Resolve,
    ) -> Result<Self, Error> {
        options.check_build()?;
        let identity = options.identity.clone().unwrap_or_else(HostIdentity::of_this_machine);
        let tuning = &options.tuning;
        let settings = AssociationSettings {
            controller: ControllerSettings {
                host: identity.nqn,
                hostid: identity.id,
                subsystem: subsystem.clone(),
                is_discovery,
                keep_alive_ms: ms(options.keep_alive),
                queue_pairs: options.queues().count(),
                is_flow_control_disabled: !tuning.flow_control,
            },
            credentials: options.credentials.clone(),
            reauthenticate: options.reauthenticate,
            concat: options.concat,
            offer: options.offer(),
            connect_timeout_ns: ns(options.connect_timeout),
            admin_timeout_ns: ns(tuning.admin_timeout),
            deadline_ns: options.deadline.map(ns),
            reconnect: options.reconnect,
            seed: tuning.seed(),
        };
        let mailbox = Mailbox::new().map_err(|error| Error::system("make a mailbox", error))?;
        let state = Arc::new(AssociationState::default());
        let clock = Clock::new();
        let mailbox_address = mailbox.address();
        let peer = address.clone().with_subsystem(subsystem.clone());
        let context = LinkContext {
            peer: format!("{}:{}", peer.host, peer.port()),
            qid: Qid::ADMIN,
            subsystem,
            host: settings.controller.host.clone(),
        };
        let thread = {
            let (state, context) = (Arc::clone(&state), context.clone());
            let machine = AssociationMachine::new(settings, clock.now_ns());
            let thread_settings = ThreadSettings {
                resolve,
                tls_keys: options.tls.clone(),
                max_segment: tuning.max_segment,
                close_limit_ns: ns(tuning.close_timeout),
            };
            std::thread::Builder::new()
                .name("nvlane-admin".into())
                .spawn(move || {
                    association_thread::run(
                        machine,
                        &peer,
                        &context,
                        clock,
                        &mailbox,
                        &state,
                        thread_settings,
                    );
                })
                .map_err(|error| Error::system("start a thread", error))?
        };
        let inner = SharedAssociation {
            state,
            mailbox: mailbox_address,
            thread: Mutex::new(Some(thread)),
            options,
            address: address.clone(),
            context,
            clock,
            is_detached: AtomicBool::new(false),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The address that was passed to [`connect`](Self::connect).
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.inner.address
    }

    /// The subsystem.
    #[must_use]
    pub fn subsystem(&self) -> &Nqn {
        &self.inner.context.subsystem
    }

    /// The options that were passed to [`connect`](Self::connect).
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// Whether the association is up now.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.inner.state.lock().attachment.is_some()
    }

    /// Why the association ended for good, if it has.
    #[must_use]
    pub fn over(&self) -> Option<Arc<Error>> {
        self.inner.state.over()
    }

    /// The controller, as of the last time the association came up.
    ///
    /// # Panics
    /// Never: [`connect`](Self::connect) returns associations that were up.
    #[must_use]
    pub fn controller(&self) -> Arc<ControllerInfo> {
        self.inner.state.lock().controller.clone().expect("was up once")
    }

    /// The namespaces of the controller, by id, as of the last scan.
    #[must_use]
    pub fn namespaces(&self) -> Arc<[NamespaceInfo]> {
        Arc::clone(&self.inner.state.lock().namespaces)
    }

    /// A block namespace.
    ///
    /// # Errors
    /// [`Error::NoNamespace`], or [`Error::UnusableNamespace`].
    pub fn namespace(&self, nsid: Nsid) -> Result<Namespace, Error> {
        let info = self.namespace_info(nsid)?;
        let namespace = Namespace::new(info, self.controller().limits);
        namespace.map_err(|cause| Error::UnusableNamespace { nsid, cause })
    }

    /// The namespace that the address names, else the only block namespace.
    ///
    /// # Errors
    /// As [`namespace`](Self::namespace), and [`Error::WhichNamespace`] if there are several.
    pub fn addressed_namespace(&self) -> Result<Namespace, Error> {
        self.namespace(self.addressed(|info| info.geometry.is_ok())?)
    }

    /// A key-value namespace.
    ///
    /// # Errors
    /// [`Error::NoNamespace`], or [`Error::UnusableNamespace`] if it is a block namespace.
    pub fn key_value(&self, nsid: Nsid) -> Result<KeyValueNamespace, Error> {
        let info = self.namespace_info(nsid)?;
        let namespace = KeyValueNamespace::new(&info, &self.controller().limits);
        namespace.map_err(|cause| Error::UnusableNamespace { nsid, cause })
    }

    /// The number of scans of the namespaces so far.
    pub(crate) fn scan_count(&self) -> u64 {
        self.inner.state.scan_count()
    }

    /// How a key-value namespace divides its keys now, and the number of lanes with the numbers from 1 that share them:
    /// if the target tells that, and there is a lane for each partition.
    pub(crate) fn key_lanes(&self, nsid: Nsid) -> Option<(PartitionMap, u16)> {
        let map = self.key_value(nsid).ok()?.partition_map()?;
        let lanes = self.queues().default;
        let is_usable =
            self.inner.options.tuning.follows_partitions && map.count() > 1 && lanes >= map.count();
        is_usable.then_some((map, lanes))
    }

    /// The key-value namespace that the address names, else the only one.
    ///
    /// # Errors
    /// As [`key_value`](Self::key_value), and [`Error::WhichNamespace`] if there are several.
    pub fn addressed_key_value(&self) -> Result<KeyValueNamespace, Error> {
        self.key_value(self.addressed(|info| info.keys.is_some())?)
    }

    fn namespace_info(&self, nsid: Nsid) -> Result<NamespaceInfo, Error> {
        let namespaces = self.namespaces();
        let found = namespaces.iter().find(|info| info.nsid == nsid).copied();
        found.ok_or_else(|| Error::NoNamespace {
            subsystem: self.inner.context.subsystem.to_string(),
            nsid,
            available: namespaces.iter().map(|info| info.nsid).collect(),
        })
    }

    /// The id in the address, else of the only namespace that `is_meant` selects. If it selects none, the first
    /// namespace, or 1: the caller then fails with the reason.
    fn addressed(&self, is_meant: impl Fn(&NamespaceInfo) -> bool) -> Result<Nsid, Error> {
        if let Some(nsid) = self.inner.address.nsid {
            return Ok(nsid);
        }
        let namespaces = self.namespaces();
        let mut meant = namespaces.iter().filter(|info| is_meant(info));
        match (meant.next(), meant.next()) {
            (Some(_), Some(_)) => Err(Error::WhichNamespace {
                subsystem: self.inner.context.subsystem.to_string(),
                available: namespaces.iter().map(|info| info.nsid).collect(),
            }),
            (only, _) => Ok(only.or(namespaces.first()).map_or(Nsid::new(1), |info| info.nsid)),
        }
    }

    /// Maximum lanes of each class: the requested lanes, as far as the controller grants queues.
    #[must_use]
    pub fn queues(&self) -> QueueMap {
        self.inner.options.queues().within(self.controller().queue_pairs)
    }

    /// Connects a lane of the default class, for any thread. Its number is the lowest free one. If the association is lost,
    /// the call waits until it is back, at most [`Options::connect_timeout`], or
    /// [`Tuning::fast_io_fail`](crate::Tuning::fast_io_fail) if that is shorter.
    ///
    /// # Errors
    /// [`Error::TooFewQueues`], [`Error::NoLane`], or why the connection failed.
    pub fn lane<B: DataBuffer>(&self) -> Result<Lane<B>, Error> {
        self.lane_of(LaneClass::Default)
    }

    /// As [`lane`](Self::lane), of any class that the options request.
    ///
    /// # Errors
    /// As [`lane`](Self::lane).
    pub fn lane_of<B: DataBuffer>(&self, class: LaneClass) -> Result<Lane<B>, Error> {
        self.lane_at(class, &self.attachment()?)
    }

    /// As [`lane`](Self::lane), but waits at most this long while the association is lost: `None` if it is not back by then.
    ///
    /// # Errors
    /// As [`lane`](Self::lane).
    pub fn lane_within<B: DataBuffer>(&self, limit: Duration) -> Result<Option<Lane<B>>, Error> {
        let attachment = self.inner.state.wait_up(limit)?;
        attachment.map(|attachment| self.lane_at(LaneClass::Default, &attachment)).transpose()
    }

    fn lane_at<B: DataBuffer>(
        &self,
        class: LaneClass,
        attachment: &Arc<Attachment>,
    ) -> Result<Lane<B>, Error> {
        let claim = self.claim(class, attachment.queue_pairs)?;
        let mailbox = Mailbox::new().map_err(|error| Error::system("make a mailbox", error))?;
        let message =
            AssociationMessage::Lane { address: mailbox.address(), generation: attachment.generation };
        self.inner.mailbox.post(message);
        // A thread that ended before it read the message has published the end before.
        if let Some(over) = self.inner.state.over() {
            return Err(Error::clone(&over));
        }
        let lane =
            Lane::new(&self.inner.options, self.inner.clock, mailbox, self.inner.mailbox.clone(), claim);
        lane.connect(attachment)
    }

    /// The association that is up, or will be within the time that a lane may wait for it.
    fn attachment(&self) -> Result<Arc<Attachment>, Error> {
        let Options { connect_timeout, tuning, .. } = &self.inner.options;
        let limit = tuning.fast_io_fail.map_or(*connect_timeout, |limit| limit.min(*connect_timeout));
        self.inner.state.wait_up(limit)?.ok_or_else(|| {
            let context = Box::new(self.inner.context.clone());
            Error::Link { context, cause: LinkError::Lost { waited: limit } }
        })
    }

    /// Connects all requested lanes, as a set: lanes of the default class first, then read, then poll.
    ///
    /// # Errors
    /// As [`lane`](Self::lane).
    pub fn lanes<B: DataBuffer>(&self) -> Result<LaneSet<B>, Error> {
        LaneSet::new(self.every_lane()?)
    }

    /// All requested lanes of each class.
    pub(crate) fn every_lane<B: DataBuffer>(&self) -> Result<Vec<Lane<B>>, Error> {
        let queues = self.inner.options.queues();
        let classes = LaneClass::ALL.into_iter().flat_map(|class| (0..queues.of(class)).map(move |_| class));
        classes.map(|class| self.lane_of(class)).collect()
    }

    fn claim(&self, class: LaneClass, granted: u16) -> Result<QueueReservation, Error> {
        let wanted = self.inner.options.queues();
        let queues = wanted.within(granted);
        let is_of_one_class = wanted == QueueMap::from(wanted.default);
        let mut state = self.inner.state.lock();
        let numbers = if is_of_one_class { 1..=u16::MAX } else { queues.numbers(class) };
        let free = numbers.clone().find(|qid| !state.qids.contains(qid));
        let qid = match free {
            Some(qid) if qid <= granted => qid,
            _ if !is_of_one_class || class != LaneClass::Default => {
                return Err(Error::NoLane { class, queues });
            }
            free => return Err(Error::TooFewQueues { lane: free.unwrap_or(u16::MAX), granted }),
        };
        state.qids.insert(qid);
        Ok(QueueReservation { qid, class, association: Arc::clone(&self.inner) })
    }

    /// Subscribes to events from now on. Dropping the receiver unsubscribes.
    #[must_use]
    pub fn events(&self) -> Events {
        let (subscriber, events) = Subscriber::new();
        let mut state = self.inner.state.lock();
        if state.over.is_none() {
            state.subscribers.push(Arc::new(subscriber));
        }
        drop(state);
        events
    }

    /// Identifies all namespaces again, as after an event; [`Event::NamespacesChanged`](crate::Event::NamespacesChanged) reports changes.
    pub fn rescan(&self) {
        self.inner.mailbox.post(AssociationMessage::Rescan);
    }

    /// Ends the association for all its handles and lanes: shuts the controller down, then disconnects.
    pub fn close(&self) {
        self.inner.close();
    }

    /// As [`close`](Self::close), without waiting.
    pub(crate) fn close_soon(&self) {
        self.inner.mailbox.post(AssociationMessage::Close);
    }

    /// Makes the drop of the last handle return without waiting for the association's end.
    pub(crate) fn detach(&self) {
        self.inner.is_detached.store(true, Ordering::Relaxed);
    }

    /// Runs an admin command and waits for its answer.
    pub(crate) fn run_admin(&self, request: AdminRequest) -> Result<AdminAnswer, Failure> {
        let (reply, answer) = channel();
        if !self.inner.mailbox.post(AssociationMessage::Admin { request, reply }) {
            return Err(Failure::Unreachable);
        }
        answer.recv().unwrap_or(Err(Failure::Unreachable))
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::SocketAddr;

    use super::*;

    fn begin(resolve: Resolve, mut options: Options) -> Association {
        let address: Address = "target.example/nqn.2016-06.io.nvlane:disk".parse().unwrap();
        options.identity = Some(HostIdentity::from_uuid(wire::uuid::Uuid::NIL));
        let subsystem = address.subsystem.clone().unwrap();
        Association::begin_to(&address, subsystem, false, options, resolve).unwrap()
    }

    /// A resolver whose servers do not answer.
    fn never(_: &Address) -> io::Result<Vec<SocketAddr>> {
        loop {
            std::thread::park();
        }
    }

    #[test]
    fn a_resolver_that_does_not_answer_costs_no_more_than_the_connect_timeout() {
        let connect_timeout = Duration::from_millis(30);
        let association = begin(never, Options { connect_timeout, ..Options::default() });
        let error = association.wait_up().unwrap_err().to_string();
        assert!(error.contains("no answer to the name resolution in 30 ms"), "{error}");
    }

    #[test]
    fn closing_and_deadlines_do_not_wait_for_a_resolver() {
        let association = begin(never, Options::default());
        association.close();
        assert!(matches!(association.wait_up(), Err(Error::Ended)));
        let deadline = Some(Duration::from_millis(30));
        let association = begin(never, Options { deadline, ..Options::default() });
        let error = association.wait_up().unwrap_err().to_string();
        assert!(error.contains("the deadline of 30 ms has passed during"), "{error}");
    }

    #[test]
    fn what_the_resolver_says_is_told() {
        let fails: Resolve = |_| Err(io::Error::new(io::ErrorKind::NotFound, "no such name"));
        let error = begin(fails, Options::default()).wait_up().unwrap_err().to_string();
        assert!(error.contains("cannot resolve the name: no such name"), "{error}");
        let finds: Resolve = |_| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
            Ok(vec![listener.local_addr()?])
        };
        let error = begin(finds, Options::default()).wait_up().unwrap_err().to_string();
        assert!(error.contains("nothing listens there"), "{error}");
    }
}
