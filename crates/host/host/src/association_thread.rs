//! The thread of an association: drives its state machine with a socket, a mailbox and a clock.

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use host_core::association_machine::{AdminAnswer, AssociationAction, AssociationMachine, MachineEvent};
use host_core::attachment::{Attachment, Barrier, Inaccessible};
use host_core::connection_tls::{HostKeys, TlsKeys};
use host_core::failure::Failure;
use host_core::link_error::{LinkContext, LinkError};
use proto::SendBudget;
use reactor::{Address as Post, Mailbox, MaxSegment, Received};
use wire::log::ana::AnaState;

use crate::address::Address;
use crate::association_state::AssociationState;
use crate::connect::{Clock, DialSettings, Dialer, Dialled, send};
use crate::error::Error;
use crate::event::Event;
use crate::messages::{AssociationMessage, LaneMessage};
use crate::transport::{TLS_HANDSHAKE, Transport};
use crate::waiting::{Interest, sleep};

/// Maximum sleep, ns.
const SLEEP_NS_MAX: u64 = 60_000_000_000;

/// Receive buffer, bytes: admin queues are not busy.
const RECEIVE_BYTES: usize = 32 << 10;

struct Driver<'a> {
    machine: AssociationMachine,
    address: &'a Address,
    context: &'a LinkContext,
    clock: Clock,
    state: &'a AssociationState,
    link: Link,
    is_blocked: bool,
    replies: HashMap<u64, Sender<Result<AdminAnswer, Failure>>>,
    next_request: u64,
    lanes: Vec<Post<LaneMessage>>,
    attachment: Option<Arc<Attachment>>,
    /// Content of the ANA log, of the association that is up.
    inaccessible: Inaccessible,
    /// Cause of the last attempt to reconnect that failed, as it was logged.
    failure: Option<String>,
    resolver: Resolver,
    /// For TLS.
    tls_keys: Option<Arc<HostKeys>>,
    max_segment: Option<MaxSegment>,
    /// Maximum time of an orderly shutdown, ns.
    close_limit_ns: u64,
    /// When an orderly shutdown is given up, ns.
    close_ns: Option<u64>,
}

enum Link {
    None,
    /// A thread resolves the target's name.
    Resolving,
    Dialling(Dialer),
    /// TLS negotiates.
    Securing(Transport, SocketAddr),
    Connected(Transport),
}

/// Resolves a target's name; blocks as long as the system's resolver does.
pub(crate) type Resolve = fn(&Address) -> io::Result<Vec<SocketAddr>>;

/// Resolves names on threads of their own: the system's resolver blocks without limit.
struct Resolver {
    resolve: Resolve,
    answers: Post<AssociationMessage>,
    /// A resolution is running. A further attempt waits for its answer.
    is_out: bool,
}

/// Settings of the thread.
#[derive(Clone, Debug)]
pub(crate) struct ThreadSettings {
    pub(crate) resolve: Resolve,
    /// For TLS.
    pub(crate) tls_keys: Option<Arc<HostKeys>>,
    /// Maximum segment size of TCP, if it is not the route's.
    pub(crate) max_segment: Option<MaxSegment>,
    /// Maximum time of an orderly shutdown, ns.
    pub(crate) close_limit_ns: u64,
}

/// Drives a machine until the association ends for good.
pub(crate) fn run(
    machine: AssociationMachine,
    address: &Address,
    context: &LinkContext,
    clock: Clock,
    mailbox: &Mailbox<AssociationMessage>,
    state: &AssociationState,
    settings: ThreadSettings,
) {
    let mut driver = Driver {
        machine,
        address,
        context,
        clock,
        state,
        link: Link::None,
        is_blocked: false,
        replies: HashMap::new(),
        next_request: 0,
        lanes: Vec::new(),
        attachment: None,
        inaccessible: Arc::new([]),
        failure: None,
        resolver: Resolver { resolve: settings.resolve, answers: mailbox.address(), is_out: false },
        tls_keys: settings.tls_keys,
        max_segment: settings.max_segment,
        close_limit_ns: settings.close_limit_ns,
        close_ns: None,
    };
    let mut staging = vec![0; RECEIVE_BYTES];
    while !driver.machine.is_over() {
        while let Some(message) = mailbox.next_message() {
            driver.on_message(message);
        }
        driver.turn(&mut staging);
        mailbox.announce_sleep();
        // A message posted before the announcement did not wake the thread.
        if let Some(message) = mailbox.next_message() {
            mailbox.announce_awake();
            driver.on_message(message);
            continue;
        }
        if !driver.machine.is_over() {
            driver.sleep(mailbox);
        }
        mailbox.announce_awake();
    }
    driver.act();
    // Lanes that are not registered yet read the shared state afterwards: see `Association::lane`. Callers that wait
    // for an answer see the end of the channel.
    let over = state.over();
    while let Some(message) = mailbox.next_message() {
        if let (AssociationMessage::Lane { address, .. }, Some(over)) = (message, &over) {
            address.post(LaneMessage::Over(Arc::clone(over)));
        }
    }
}

impl Driver<'_> {
    fn on_message(&mut self, message: AssociationMessage) {
        let now_ns = self.clock.now_ns();
        match message {
            AssociationMessage::Admin { mut request, reply } => {
                request.id = self.next_request;
                self.next_request += 1;
                self.replies.insert(request.id, reply);
                self.machine.submit(request, now_ns);
            }
            AssociationMessage::Lane { address, generation } => {
                // The association may have changed since the lane was made.
                let is_current =
                    self.attachment.as_ref().is_some_and(|attachment| attachment.generation == generation);
                if !is_current {
                    address.post(LaneMessage::Down(generation));
                    if let Some(attachment) = &self.attachment {
                        address.post(LaneMessage::Up(Arc::clone(attachment)));
                    }
                }
                // The lane knows those of the moment at which the association came up.
                address.post(LaneMessage::Inaccessible(Arc::clone(&self.inaccessible)));
                self.lanes.push(address);
            }
            AssociationMessage::LaneLost { generation, cause } => {
                self.machine.on_lane_lost(generation, cause, now_ns);
            }
            AssociationMessage::Abort { generation, qid, cid } => self.machine.abort(generation, qid, cid),
            AssociationMessage::Resolved(found) => self.on_resolved(found, now_ns),
            AssociationMessage::ReadAna { generation } => self.machine.read_ana(generation),
            AssociationMessage::Rescan => self.machine.rescan(),
            AssociationMessage::Close => {
                self.close_ns.get_or_insert(now_ns.saturating_add(self.close_limit_ns));
                self.machine.close();
            }
        }
    }

    /// Does all work that is possible without blocking.
    fn turn(&mut self, staging: &mut [u8]) {
        loop {
            let now_ns = self.clock.now_ns();
            self.dial(now_ns);
            if let Err(cause) = self.exchange(staging, now_ns) {
                self.lose(cause, now_ns);
            }
            if self.close_ns.is_some_and(|close_ns| close_ns <= now_ns) {
                let waited = Duration::from_nanos(self.close_limit_ns);
                self.lose(LinkError::TimedOut { to: "the shutdown", waited }, now_ns);
            }
            // An action may have enabled other work, for example a socket that connected at once.
            if !self.act() {
                return;
            }
        }
    }

    fn exchange(&mut self, staging: &mut [u8], now_ns: u64) -> Result<(), LinkError> {
        self.machine.advance(now_ns)?;
        let Link::Connected(transport) = &mut self.link else { return Ok(()) };
        loop {
            flush(&mut self.machine, transport, &mut self.is_blocked)?;
            if self.machine.has_finished() {
                self.machine.on_bytes(&mut &[][..], now_ns)?;
            }
            if self.machine.opens_again() {
                return Ok(());
            }
            let count = match transport.receive(&mut [IoSliceMut::new(staging)]) {
                Received::Bytes(count) => count,
                Received::Dry => return Ok(()),
                Received::Ended => return Err(LinkError::Closed { during: self.machine.doing() }),
                Received::Failed(error) => return Err(error.into()),
            };
            self.machine.on_bytes(&mut &staging[..count], now_ns)?;
            self.machine.advance(now_ns)?;
        }
    }

    fn dial(&mut self, now_ns: u64) {
        if let Link::Dialling(dialer) = &mut self.link {
            match dialer.poll(now_ns) {
                Dialled::Waiting => {}
                Dialled::Connected(socket, peer) => {
                    let LinkContext { host, subsystem, .. } = self.context;
                    let (identities, generated) = (self.machine.identities(), self.machine.generated_key());
                    let keys = TlsKeys::of(self.tls_keys.as_deref(), identities, generated);
                    match Transport::new(socket, keys, host, subsystem) {
                        Ok(transport) => self.link = Link::Securing(transport, peer),
                        Err(cause) => self.lose(cause, now_ns),
                    }
                }
                Dialled::Failed(cause) => self.lose(cause, now_ns),
            }
        }
        let Link::Securing(transport, peer) = &mut self.link else { return };
        let peer = *peer;
        match transport.secure() {
            Ok(false) => {}
            Ok(true) => {
                if let Link::Securing(transport, _) = std::mem::replace(&mut self.link, Link::None) {
                    self.link = Link::Connected(transport);
                }
                self.is_blocked = false;
                self.machine.on_connected(peer, now_ns);
            }
            Err(cause) => self.lose(cause, now_ns),
        }
    }

    fn lose(&mut self, cause: LinkError, now_ns: u64) {
        let cause = match (cause, &self.link) {
            (LinkError::TimedOut { to: "TCP connect", waited }, Link::Resolving) => {
                LinkError::TimedOut { to: "the name resolution", waited }
            }
            (LinkError::TimedOut { waited, .. }, Link::Securing(..)) => {
                LinkError::TimedOut { to: TLS_HANDSHAKE, waited }
            }
            (cause, _) => cause,
        };
        if let (LinkError::Violation(violation), Link::Connected(transport)) = (&cause, &mut self.link)
            && let Some(bytes) = self.machine.term_req(*violation)
        {
            let _ = transport.send(&[memory::Segment::new(&bytes)]);
            // A reset would discard it.
            transport.finish();
        }
        self.machine.on_lost(cause, now_ns);
    }

    /// Carries out the machine's actions. Returns whether there were any.
    fn act(&mut self) -> bool {
        let mut has_acted = false;
        while let Some(action) = self.machine.next_action() {
            has_acted = true;
            match action {
                AssociationAction::Open => self.open(),
                AssociationAction::Close { at_once } => match std::mem::replace(&mut self.link, Link::None) {
                    Link::Connected(transport) | Link::Securing(transport, _) if at_once => transport.reset(),
                    _ => {}
                },
                AssociationAction::Answer { id, answer } => {
                    if let Some(reply) = self.replies.remove(&id) {
                        // The caller may have stopped waiting.
                        let _ = reply.send(answer);
                    }
                }
                AssociationAction::Publish(event) => self.tell(event),
            }
        }
        has_acted
    }

    fn open(&mut self) {
        // An IP address needs no resolver and does not block.
        if !self.address.is_name() {
            let found = self.address.resolve();
            self.link = Link::Resolving;
            return self.on_resolved(found, self.clock.now_ns());
        }
        self.link = Link::Resolving;
        if !self.resolver.is_out
            && let Err(error) = self.resolver.begin(self.address)
        {
            self.on_resolved(Err(error), self.clock.now_ns());
        }
    }

    fn on_resolved(&mut self, found: io::Result<Vec<SocketAddr>>, now_ns: u64) {
        self.resolver.is_out = false;
        let Link::Resolving = self.link else { return };
        match found {
            Ok(addresses) => {
                let timeout_ns = self.machine.connect_timeout_ns();
                let settings = DialSettings { timeout_ns, max_segment: self.max_segment };
                self.link = Link::Dialling(Dialer::new(addresses, settings));
            }
            Err(error) => {
                self.link = Link::None;
                self.machine.on_lost(LinkError::Resolve(error.into()), now_ns);
            }
        }
    }

    fn tell(&mut self, event: MachineEvent) {
        let subsystem = &self.context.subsystem;
        match event {
            MachineEvent::Up { attachment, controller, namespaces } => {
                tracing::info!(%subsystem, peer = %attachment.peer, cntlid = %attachment.cntlid, "association up");
                self.set_inaccessible(&attachment.inaccessible);
                self.failure = None;
                self.attachment = Some(Arc::clone(&attachment));
                let told = self.state.change_namespaces(|state| {
                    state.attachment = Some(Arc::clone(&attachment));
                    state.controller = Some(controller);
                    state.namespaces = namespaces;
                });
                self.tell_lanes(|| LaneMessage::Up(Arc::clone(&attachment)));
                self.state.tell(&told, &Event::Up);
            }
            MachineEvent::Down { generation, cause } => {
                tracing::warn!(%subsystem, peer = %self.context.peer, %cause, "association lost");
                self.attachment = None;
                self.inaccessible = Arc::new([]);
                let told = self.state.change(|state| state.attachment = None);
                self.tell_lanes(|| LaneMessage::Down(generation));
                self.state.tell(&told, &Event::Down { cause });
            }
            MachineEvent::Failed { attempts, cause } => {
                // The attempts may fail until an operator changes keys: shown at the level of commands, once for each
                // cause.
                let told = cause.to_string();
                let is_new = self.failure.as_ref() != Some(&told);
                self.failure = Some(told);
                if cause.is_refusal_of_trust() && is_new {
                    tracing::warn!(%subsystem, peer = %self.context.peer, attempts, %cause, "attempt to reconnect failed");
                } else {
                    tracing::info!(%subsystem, peer = %self.context.peer, attempts, %cause, "attempt to reconnect failed");
                }
                self.state.publish(&Event::AttemptFailed { attempts, cause });
            }
            MachineEvent::Namespaces { changed, namespaces } => {
                let told = self.state.change_namespaces(|state| state.namespaces = namespaces);
                self.state.tell(&told, &Event::NamespacesChanged(changed));
            }
            MachineEvent::AuthenticationFailed { cause } => {
                tracing::warn!(%subsystem, peer = %self.context.peer, %cause, "controller refuses reauthentication of the host");
                self.state.publish(&Event::AuthenticationFailed { cause });
            }
            MachineEvent::Inaccessible(inaccessible) => self.tell_inaccessible(&inaccessible),
            MachineEvent::Discovery => self.state.publish(&Event::DiscoveryChanged),
            MachineEvent::Event(event) => self.state.publish(&Event::Controller(event)),
            MachineEvent::Over { attempts, cause } => self.tell_over(attempts, cause),
        }
    }

    /// The ANA log or the namespaces were read.
    fn tell_inaccessible(&mut self, inaccessible: &Inaccessible) {
        self.set_inaccessible(inaccessible);
        self.tell_lanes(|| LaneMessage::Inaccessible(Arc::clone(inaccessible)));
    }

    /// Sets which namespaces are inaccessible, and logs changes.
    fn set_inaccessible(&mut self, inaccessible: &Inaccessible) {
        let subsystem = &self.context.subsystem;
        for (nsid, barrier) in inaccessible.iter().filter(|entry| !self.inaccessible.contains(entry)) {
            match barrier {
                Barrier::Ana(AnaState::PERSISTENT_LOSS) => {
                    tracing::error!(%subsystem, %nsid, "namespace is lost (ANA): its commands fail");
                }
                Barrier::Ana(state) => {
                    tracing::warn!(%subsystem, %nsid, %state, "namespace is not accessible (ANA): its commands wait");
                }
                // Logged with both identifiers when it was found.
                Barrier::Replaced => {}
            }
        }
        let is_in = |nsid| inaccessible.iter().any(|(other, _)| *other == nsid);
        for (nsid, _) in self.inaccessible.iter().filter(|(nsid, _)| !is_in(*nsid)) {
            tracing::info!(%subsystem, %nsid, "namespace is accessible again");
        }
        self.inaccessible = Arc::clone(inaccessible);
    }

    fn tell_over(&mut self, attempts: u32, cause: Option<LinkError>) {
        let error = match cause {
            None => Arc::new(Error::Ended),
            Some(cause) => {
                let last = Error::Link { context: Box::new(self.context.clone()), cause };
                match attempts {
                    0 => Arc::new(last),
                    _ => Arc::new(Error::GaveUp { attempts, last: Arc::new(last) }),
                }
            }
        };
        self.attachment = None;
        let told = self.state.change(|state| {
            state.attachment = None;
            state.over = Some(Arc::clone(&error));
        });
        self.tell_lanes(|| LaneMessage::Over(Arc::clone(&error)));
        self.state.tell(&told, &Event::Over(error));
        self.state.lock().subscribers.clear();
    }

    fn tell_lanes(&mut self, message: impl Fn() -> LaneMessage) {
        self.lanes.retain(|lane| lane.post(message()));
    }

    fn sleep(&mut self, mailbox: &Mailbox<AssociationMessage>) {
        // Admin commands are rare.
        if let Link::Connected(transport) = &mut self.link {
            transport.shrink();
        }
        let now_ns = self.clock.now_ns();
        let (link, dial_ns) = match &self.link {
            Link::None | Link::Resolving => (None, None),
            Link::Dialling(dialer) => (dialer.interest(), dialer.deadline_ns()),
            Link::Securing(transport, _) => (Some(transport.interest(false)), None),
            Link::Connected(transport) => (Some(transport.interest(self.is_blocked)), None),
        };
        let deadline_ns = [self.machine.next_deadline(), dial_ns, self.close_ns].into_iter().flatten().min();
        let timeout_ns = deadline_ns.map_or(SLEEP_NS_MAX, |at| at.saturating_sub(now_ns).min(SLEEP_NS_MAX));
        let mailbox = Interest { fd: mailbox.as_fd(), writable: false, readable: true };
        sleep([Some(mailbox), link], timeout_ns);
    }
}

impl Resolver {
    /// Resolves the name on another thread; the answer arrives as a message.
    fn begin(&mut self, address: &Address) -> io::Result<()> {
        let (resolve, answers, address) = (self.resolve, self.answers.clone(), address.clone());
        let thread = std::thread::Builder::new().name("nvlane-resolve".into());
        let spawned = thread.spawn(move || answers.post(AssociationMessage::Resolved(resolve(&address))));
        spawned.map_err(|error| io::Error::new(error.kind(), format!("cannot start a thread: {error}")))?;
        self.is_out = true;
        Ok(())
    }
}

/// Sends as much as the socket accepts.
fn flush(
    machine: &mut AssociationMachine,
    transport: &mut Transport,
    is_blocked: &mut bool,
) -> Result<(), LinkError> {
    *is_blocked = false;
    while machine.ring() {
        // Admin data is short: few pieces.
        let sender: &AssociationMachine = machine;
        let progress =
            send(transport, 0, &SendBudget::UNLIMITED, |each| sender.for_each_piece(each), |_| false)?;
        machine.on_sent(progress.sent_bytes);
        if progress.is_blocked {
            *is_blocked = true;
            break;
        }
    }
    Ok(())
}
