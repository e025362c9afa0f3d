//! An association: one controller, its admin queue with a thread that keeps it, and the lanes that belong to it.
//!
//! The machine's thread sends keep-alives, takes in events, carries admin commands, and brings everything up again when the
//! association was lost. Lanes stay with the threads that own them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use proto::host_controller::ControllerSettings;
use proto::host_namespaces::NamespaceInfo;
use proto::host_queue::DataBuffer;
use reactor::{Address as Post, Mailbox};
use wire::async_event::AsyncEvent;
use wire::id::{Nsid, Qid};
use wire::nqn::Nqn;

use crate::address::Address;
use crate::association_machine::{
    AdminAnswer, AdminRequest, AssociationMachine, AssociationSettings, ControllerInfo,
};
use crate::association_thread::{self, Resolve, ThreadSettings};
use crate::connect::Clock;
use crate::error::{Error, LinkContext, LinkError};
use crate::identity::HostIdentity;
use crate::key_value::KeyValueNamespace;
use crate::lane::{Lane, LaneMessage};
use crate::lane_core::Attachment;
use crate::lane_set::LaneSet;
use crate::namespace::Namespace;
use crate::options::{Options, ms, ns};
use crate::queue_map::{LaneClass, QueueMap};
use crate::submit::Failure;

/// An association with one controller of a subsystem. Clones share it; it ends with the last of them and of its lanes.
#[derive(Clone, Debug)]
pub struct Association {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    shared: Arc<Shared>,
    machine: Post<AssociationMessage>,
    thread: Mutex<Option<JoinHandle<()>>>,
    options: Options,
    address: Address,
    subsystem: Nqn,
    clock: Clock,
    /// Dropping the last handle does not wait for the association's end.
    is_detached: AtomicBool,
}

/// What the machine's thread and the handles share.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
pub(crate) struct State {
    /// Present while the association is up.
    pub(crate) attachment: Option<Arc<Attachment>>,
    /// As of the last time it was up.
    pub(crate) controller: Option<Arc<ControllerInfo>>,
    pub(crate) namespaces: Arc<[NamespaceInfo]>,
    pub(crate) over: Option<Arc<Error>>,
    qids: BTreeSet<u16>,
}

/// What is sent to the machine's thread.
#[derive(Debug)]
pub(crate) enum AssociationMessage {
    Admin {
        request: AdminRequest,
        reply: Sender<Result<AdminAnswer, Failure>>,
    },
    Lane {
        address: Post<LaneMessage>,
        generation: u64,
    },
    LaneLost {
        generation: u64,
        cause: LinkError,
    },
    Abort {
        generation: u64,
        qid: Qid,
        cid: u16,
    },
    /// The name resolution that was begun last has ended.
    Resolved(std::io::Result<Vec<SocketAddr>>),
    /// A lane of this association has met a status that the ANA log explains.
    ReadAna {
        generation: u64,
    },
    Subscribe(Sender<Event>),
    Rescan,
    Close,
}

/// What happens to an association.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// It is up: again, or for the first time.
    Up,
    /// It was lost; attempts to have it back begin.
    Down {
        /// Why.
        cause: LinkError,
    },
    /// An attempt has failed; another follows.
    AttemptFailed {
        /// Attempts so far.
        attempts: u32,
        /// Why.
        cause: LinkError,
    },
    /// These namespaces were added, removed or changed: ask for them again.
    NamespacesChanged(Vec<Nsid>),
    /// The discovery log has changed: read it again.
    DiscoveryChanged,
    /// Another event of the controller.
    Controller(AsyncEvent),
    /// It has ended for good.
    Over(Arc<Error>),
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves every field whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Why the association has ended, if it has.
    pub(crate) fn over(&self) -> Option<Arc<Error>> {
        self.lock().over.clone()
    }

    /// Waits until the association is up, or over.
    fn wait_up(&self) -> Result<Arc<Attachment>, Error> {
        let mut state = self.lock();
        loop {
            if let Some(over) = &state.over {
                return Err(Error::clone(over));
            }
            if let Some(attachment) = &state.attachment {
                return Ok(Arc::clone(attachment));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A lane's number, until the lane is gone; it also keeps the association.
#[derive(Debug)]
pub(crate) struct Claim {
    qid: u16,
    class: LaneClass,
    association: Arc<Inner>,
}

impl Claim {
    pub(crate) fn qid(&self) -> Qid {
        Qid::new(self.qid)
    }

    pub(crate) fn class(&self) -> LaneClass {
        self.class
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let qid = self.qid;
        self.association.shared.change(|state| {
            state.qids.remove(&qid);
        });
    }
}

impl Association {
    /// Connects to the subsystem at `address`: admin queue, bring-up, and a look at its namespaces. Lanes are made with
    /// [`lane`](Self::lane). One attempt is made, on each address the host name has.
    ///
    /// # Errors
    /// What keeps us from it, and what to do about it.
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

    /// Waits until it is up.
    pub(crate) fn wait_up(&self) -> Result<(), Error> {
        self.inner.shared.wait_up().map(drop)
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
        let identity = options.identity.clone().unwrap_or_else(HostIdentity::of_this_machine);
        let settings = AssociationSettings {
            controller: ControllerSettings {
                host: identity.nqn,
                hostid: identity.id,
                subsystem: subsystem.clone(),
                is_discovery,
                keep_alive_ms: ms(options.keep_alive),
                queue_pairs: options.queues().count(),
                is_flow_control_disabled: !options.flow_control,
            },
            offer: options.offer(),
            connect_timeout_ns: ns(options.connect_timeout),
            admin_timeout_ns: ns(options.admin_timeout),
            deadline_ns: options.deadline.map(ns),
            reconnect: options.reconnect,
            seed: options.seed(),
        };
        let mailbox = Mailbox::new().map_err(|error| Error::system("make a mailbox", error))?;
        let state = State {
            attachment: None,
            controller: None,
            namespaces: Arc::new([]),
            over: None,
            qids: BTreeSet::new(),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let clock = Clock::new();
        let machine = mailbox.address();
        let peer = address.clone().with_subsystem(subsystem.clone());
        let thread = {
            let shared = Arc::clone(&shared);

            let context = LinkContext {
                peer: format!("{}:{}", peer.host, peer.port()),
                qid: Qid::ADMIN,
                subsystem: subsystem.clone(),
                host: settings.controller.host.clone(),
            };
            let machine = AssociationMachine::new(settings, clock.now_ns());
            let thread_settings = ThreadSettings { resolve, close_limit_ns: ns(options.close_timeout) };
            std::thread::Builder::new()
                .name("nvlane-machine".into())
                .spawn(move || {
                    association_thread::run(
                        machine,
                        &peer,
                        &context,
                        clock,
                        &mailbox,
                        &shared,
                        thread_settings,
                    );
                })
                .map_err(|error| Error::system("start a thread", error))?
        };
        let inner = Inner {
            shared,
            machine,
            thread: Mutex::new(Some(thread)),
            options,
            address: address.clone(),
            subsystem,
            clock,
            is_detached: AtomicBool::new(false),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The address it was connected by.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.inner.address
    }

    /// The subsystem.
    #[must_use]
    pub fn subsystem(&self) -> &Nqn {
        &self.inner.subsystem
    }

    /// How it was asked to be.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// Whether it is up now.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.inner.shared.lock().attachment.is_some()
    }

    /// Why it has ended for good, if it has.
    #[must_use]
    pub fn over(&self) -> Option<Arc<Error>> {
        self.inner.shared.over()
    }

    /// The controller, as it was when the association came up last.
    ///
    /// # Panics
    /// Never: an association that was made was up once.
    #[must_use]
    pub fn controller(&self) -> Arc<ControllerInfo> {
        self.inner.shared.lock().controller.clone().expect("was up once")
    }

    /// The namespaces of the controller, by id, as of the last look at them.
    #[must_use]
    pub fn namespaces(&self) -> Arc<[NamespaceInfo]> {
        Arc::clone(&self.inner.shared.lock().namespaces)
    }

    /// One namespace.
    ///
    /// # Errors
    /// [`Error::NoNamespace`], or [`Error::UnusableNamespace`] with the reason.
    pub fn namespace(&self, nsid: Nsid) -> Result<Namespace, Error> {
        let (namespaces, limits) = (self.namespaces(), self.controller().limits);
        let Some(info) = namespaces.iter().find(|info| info.nsid == nsid) else {
            let available = namespaces.iter().map(|info| info.nsid).collect();
            return Err(Error::NoNamespace { subsystem: self.inner.subsystem.to_string(), nsid, available });
        };
        Namespace::new(*info, limits).map_err(|cause| Error::UnusableNamespace { nsid, cause })
    }

    /// The namespace that the address names; without one there, the only one for blocks.
    ///
    /// # Errors
    /// As [`namespace`](Self::namespace), and [`Error::WhichNamespace`] if there are several.
    pub fn addressed_namespace(&self) -> Result<Namespace, Error> {
        if let Some(nsid) = self.inner.address.nsid {
            return self.namespace(nsid);
        }
        let namespaces = self.namespaces();
        let mut usable = namespaces.iter().filter(|info| info.geometry.is_ok());
        match (usable.next(), usable.next(), namespaces.first()) {
            (Some(info), None, _) => self.namespace(info.nsid),
            (None, _, Some(info)) => self.namespace(info.nsid),
            (None, _, None) => self.namespace(Nsid::new(1)),
            (Some(_), Some(_), _) => {
                let available = namespaces.iter().map(|info| info.nsid).collect();
                Err(Error::WhichNamespace { subsystem: self.inner.subsystem.to_string(), available })
            }
        }
    }

    /// Lanes that there can be of each class: what was asked for, as far as the controller grants it.
    #[must_use]
    pub fn queues(&self) -> QueueMap {
        self.inner.options.queues().within(self.controller().queue_pairs)
    }

    /// One namespace of keys and values.
    ///
    /// # Errors
    /// [`Error::NoNamespace`], or [`Error::UnusableNamespace`] if it is one of blocks.
    pub fn key_value(&self, nsid: Nsid) -> Result<KeyValueNamespace, Error> {
        let (namespaces, limits) = (self.namespaces(), self.controller().limits);
        let Some(info) = namespaces.iter().find(|info| info.nsid == nsid) else {
            let available = namespaces.iter().map(|info| info.nsid).collect();
            return Err(Error::NoNamespace { subsystem: self.inner.subsystem.to_string(), nsid, available });
        };
        KeyValueNamespace::new(info, &limits).map_err(|cause| Error::UnusableNamespace { nsid, cause })
    }

    /// The namespace of keys and values that the address names; without one there, the only one.
    ///
    /// # Errors
    /// As [`key_value`](Self::key_value), and [`Error::WhichNamespace`] if there are several.
    pub fn addressed_key_value(&self) -> Result<KeyValueNamespace, Error> {
        if let Some(nsid) = self.inner.address.nsid {
            return self.key_value(nsid);
        }
        let namespaces = self.namespaces();
        let mut with_keys = namespaces.iter().filter(|info| info.keys.is_some());
        match (with_keys.next(), with_keys.next(), namespaces.first()) {
            (Some(info), None, _) | (None, _, Some(info)) => self.key_value(info.nsid),
            (None, _, None) => self.key_value(Nsid::new(1)),
            (Some(_), Some(_), _) => {
                let available = namespaces.iter().map(|info| info.nsid).collect();
                Err(Error::WhichNamespace { subsystem: self.inner.subsystem.to_string(), available })
            }
        }
    }

    /// Connects a lane of the default class, for the calling thread or any other one. Its number is the lowest that is free. While
    /// the association is lost this waits until it is back, or given up.
    ///
    /// # Errors
    /// [`Error::TooFewQueues`], [`Error::NoLane`], or what keeps it from connecting.
    pub fn lane<B: DataBuffer>(&self) -> Result<Lane<B>, Error> {
        self.lane_of(LaneClass::Default)
    }

    /// As [`lane`](Self::lane), of any class that was asked for.
    ///
    /// # Errors
    /// As [`lane`](Self::lane).
    pub fn lane_of<B: DataBuffer>(&self, class: LaneClass) -> Result<Lane<B>, Error> {
        let attachment = self.inner.shared.wait_up()?;
        let claim = self.claim(class, attachment.queue_pairs)?;
        let mailbox = Mailbox::new().map_err(|error| Error::system("make a mailbox", error))?;
        let message =
            AssociationMessage::Lane { address: mailbox.address(), generation: attachment.generation };
        self.inner.machine.post(message);
        // A machine that ended before it saw the message has said so here before.
        if let Some(over) = self.inner.shared.over() {
            return Err(Error::clone(&over));
        }
        let lane =
            Lane::new(&self.inner.options, self.inner.clock, mailbox, self.inner.machine.clone(), claim);
        lane.connect(&attachment)
    }

    /// Connects as many lanes as were asked for, to be waited for together: those of the default class first, then read, then poll.
    ///
    /// # Errors
    /// As [`lane`](Self::lane).
    pub fn lanes<B: DataBuffer>(&self) -> Result<LaneSet<B>, Error> {
        LaneSet::new(self.every_lane()?)
    }

    /// As many lanes of each class as were asked for.
    pub(crate) fn every_lane<B: DataBuffer>(&self) -> Result<Vec<Lane<B>>, Error> {
        let queues = self.inner.options.queues();
        let classes = LaneClass::ALL.into_iter().flat_map(|class| (0..queues.of(class)).map(move |_| class));
        classes.map(|class| self.lane_of(class)).collect()
    }

    fn claim(&self, class: LaneClass, granted: u16) -> Result<Claim, Error> {
        let wanted = self.inner.options.queues();
        let queues = wanted.within(granted);
        let is_of_one_class = wanted == QueueMap::from(wanted.default);
        let mut state = self.inner.shared.lock();
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
        Ok(Claim { qid, class, association: Arc::clone(&self.inner) })
    }

    /// What happens from now on. Whoever does not want it any more drops it.
    #[must_use]
    pub fn events(&self) -> Receiver<Event> {
        let (sender, receiver) = channel();
        self.inner.machine.post(AssociationMessage::Subscribe(sender));
        receiver
    }

    /// Looks at all namespaces again, as after an event; what has changed is told by [`Event::NamespacesChanged`].
    pub fn rescan(&self) {
        self.inner.machine.post(AssociationMessage::Rescan);
    }

    /// Ends the association for all its handles and lanes: shuts the controller down, then closes.
    pub fn close(&self) {
        self.inner.close();
    }

    /// Ends the association without waiting for that.
    pub(crate) fn close_soon(&self) {
        self.inner.machine.post(AssociationMessage::Close);
    }

    /// From now on dropping the last handle does not wait for the association's end.
    pub(crate) fn detach(&self) {
        self.inner.is_detached.store(true, Ordering::Relaxed);
    }

    /// Runs an admin command and waits for its answer.
    pub(crate) fn run_admin(&self, request: AdminRequest) -> Result<AdminAnswer, Failure> {
        let (reply, answer) = channel();
        if !self.inner.machine.post(AssociationMessage::Admin { request, reply }) {
            return Err(Failure::Unreachable);
        }
        answer.recv().unwrap_or(Err(Failure::Unreachable))
    }
}

impl Inner {
    fn close(&self) {
        self.machine.post(AssociationMessage::Close);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The thread bounds its own end. Its panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_detached.load(Ordering::Relaxed) {
            self.machine.post(AssociationMessage::Close);
        } else {
            self.close();
        }
    }
}

/// What to say about a connection of a lane.
pub(crate) fn context(attachment: &Attachment, qid: Qid) -> LinkContext {
    let peer: SocketAddr = attachment.peer;
    let ControllerSettings { host, subsystem, .. } = attachment.settings.clone();
    LinkContext { peer: peer.to_string(), qid, subsystem, host }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

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
