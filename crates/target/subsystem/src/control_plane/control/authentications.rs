//! In-band authentication of queues. wire §22.1
//!
//! ```text
//! Connect accepted ─▶ owed: the lane takes Authentication Send and Receive only
//!   Send, Receive … Exponentiation ─▶ worker ─▶ result … ─▶ News::Authenticated
//!                                                         └▶ failed, or too late: the lane ends, News::Failed
//! later transactions (re-authentication) ─▶ refused: News::FailedAgain
//!                                        └▶ not complete in time: nothing has changed
//! ```
//!
//! A host with TLS by a generated key has authenticated before: it owes nothing, and may authenticate again.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use linux::randomness::Randomness;
use reactor::Source;
use security::controller::{ControllerAuthentication, ControllerSettings, Received};
use security::exponentiation::{Exponentiated, Exponentiation};
use security::fresh::{Fresh, RANDOM_BYTES, SequenceNumbers};
use security::group::Group;
use security::message::Kind;
use security::names::Names;
use security::tls::GeneratedKeys;
use wire::fabrics::AuthenticationCommand;
use wire::id::{Cntlid, Qid};
use wire::nqn::{HostId, HostName, Nqn};
use wire::sqe::Sqe;
use wire::status::Status;
use wire::text::quoted;
use zeroize::Zeroizing;

use super::exponentiations::{Exponentiations, Rank, Ticket};
use super::key_pairs::KeyPairs;
use super::outputs::{MILLISECOND_NS, Outputs};
use crate::audit::{Event, OfQueue};
use crate::control_plane::admin::{AdminOutcome, Reply, room};
use crate::names::allowance::{Allowances, Rate};
use crate::names::lane_end::LaneEnd;
use crate::names::lane_id::{CommandId, LaneId};

/// Time from Connect to the end of the first transaction, ns.
const FIRST_NS: u64 = 30_000 * MILLISECOND_NS;

/// Time of a later transaction, ns.
const LATER_NS: u64 = 120_000 * MILLISECOND_NS;

/// The largest buffer of an Authentication Receive, bytes: hosts have 4096.
const ROOM_BYTES_MAX: usize = 8192;

/// Failures of one source that are logged individually: beyond this they are only counted.
const TOLD_OF_SOURCE: Rate = Rate { burst: 5.0, per_s: 0.1 };

/// As above, of all sources.
const TOLD_OF_ALL: Rate = Rate { burst: 50.0, per_s: 1.0 };

/// The queues whose hosts must authenticate.
pub(super) struct Authentications {
    queues: BTreeMap<LaneId, Queue>,
    random: Randomness,
    sequence: SequenceNumbers,
    generated: Arc<GeneratedKeys>,
    /// Queues with an exponentiation to run.
    exponentiations: Exponentiations,
    key_pairs: KeyPairs,
    news: VecDeque<News>,
    /// Allowances for failures that are logged individually.
    told: Allowances,
}

/// The outcome of an authentication.
pub(super) enum News {
    /// The host of a queue has authenticated as required. It learns that by these answers.
    Authenticated { lane: LaneId, answers: Vec<(CommandId, AdminOutcome)> },
    /// The host of a queue has failed to authenticate; the queue has been ordered to end, or has ended.
    Failed { lane: LaneId, peer: Option<SocketAddr> },
    /// A host that had authenticated before was refused.
    FailedAgain { lane: LaneId, peer: Option<SocketAddr> },
}

/// The host of a queue, for the log.
#[derive(Debug)]
pub(super) struct Who {
    pub(super) peer: Option<SocketAddr>,
    pub(super) host: HostName,
    pub(super) hostid: HostId,
    pub(super) subsystem: Nqn,
    pub(super) cntlid: Cntlid,
    pub(super) qid: Qid,
}

impl Who {
    fn of_queue(&self) -> OfQueue {
        let Self { peer, host, hostid, subsystem, cntlid, qid } = self;
        OfQueue::new(*peer, host, *hostid, subsystem, (*cntlid, qid.get()))
    }

    /// Reports that the host has not authenticated, at least in the audit log. `again` if it had before.
    fn tell_failure(&self, told: &mut Allowances, now_ns: u64, again: bool, reason: &str, outputs: &Outputs) {
        let (peer, host, qid) = (self.peer.map(tracing::field::display), quoted(&self.host), self.qid.get());
        let (kind, text) = if again {
            ("again", "host is refused when it authenticates again")
        } else {
            ("first", "host is not authenticated: closing its connection")
        };
        if told.take(now_ns, kind, Source::from(self.peer)) {
            tracing::warn!(peer, %host, qid, reason, "{text}");
        } else {
            tracing::debug!(peer, %host, qid, reason, "{text}");
        }
        let reason = reason.to_owned();
        outputs.audit.record(|| Event::AuthenticationFailed { queue: self.of_queue(), again, reason });
    }
}

/// A queue that is to begin.
pub(super) struct Beginning {
    pub(super) settings: ControllerSettings,
    pub(super) who: Who,
    /// Identity of the generated key that its connection uses.
    pub(super) key_in_use: Option<String>,
    /// Its authentication must generate a key of TLS.
    pub(super) must_generate_key: bool,
    /// When former secrets are accepted no more, ns.
    pub(super) former_end_ns: Option<u64>,
}

/// A queue whose host must authenticate, or has.
struct Queue {
    machine: ControllerAuthentication,
    names: Names,
    /// Identity of the generated key that its connection uses, or that its last transaction has generated: the next one
    /// replaces it.
    key: Option<String>,
    /// When former secrets are accepted no more, ns.
    former_end_ns: Option<u64>,
    who: Who,
    /// No transaction has succeeded yet.
    is_owed: bool,
    /// The failure of its host was reported.
    has_failed: bool,
    /// When the first transaction, or the present one, must have ended, ns. Nothing extends it.
    deadline_ns: Option<u64>,
    /// An Authentication Receive that waits for an exponentiation, and the bytes of its buffer.
    receive: Option<(CommandId, usize)>,
    /// Its exponentiation waits.
    waits: Option<Ticket>,
}

impl Authentications {
    /// Queues that authenticate, or have to.
    pub(super) fn count(&self) -> usize {
        self.queues.len()
    }

    pub(super) fn new(mut random: Randomness) -> Self {
        let mut first = [0; 4];
        // Sequence numbers are no secret: any will do.
        let _ = random.fill(&mut first);
        Self {
            queues: BTreeMap::new(),
            sequence: SequenceNumbers::new(u32::from_le_bytes(first)),
            random,
            generated: Arc::default(),
            exponentiations: Exponentiations::default(),
            key_pairs: KeyPairs::default(),
            news: VecDeque::new(),
            told: Allowances::new(TOLD_OF_SOURCE, TOLD_OF_ALL),
        }
    }

    /// The next outcome of an authentication, in order.
    pub(super) fn next_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    pub(super) fn set_generated_keys(&mut self, keys: Arc<GeneratedKeys>) {
        self.generated = keys;
    }

    pub(super) fn generated_keys(&self) -> &GeneratedKeys {
        &self.generated
    }

    /// Whether a transaction on this lane, or on one before it, has generated a key of TLS.
    pub(super) fn has_generated(&self, lane: LaneId) -> bool {
        self.queues.get(&lane).is_some_and(|queue| queue.key.is_some())
    }

    /// A lane has connected whose host must authenticate, or has a key that an authentication has generated.
    pub(super) fn begin(&mut self, now_ns: u64, lane: LaneId, beginning: Beginning, outputs: &mut Outputs) {
        let Beginning { settings, who, key_in_use: key, must_generate_key, former_end_ns } = beginning;
        let is_owed = key.is_none();
        let deadline_ns = is_owed.then(|| now_ns.saturating_add(FIRST_NS));
        deadline_ns.into_iter().for_each(|deadline_ns| outputs.wake_about(deadline_ns));
        self.queues.insert(
            lane,
            Queue {
                names: settings.names.clone(),
                machine: if must_generate_key {
                    ControllerAuthentication::new(settings).with_secure_channel_required()
                } else if is_owed {
                    ControllerAuthentication::new(settings)
                } else {
                    ControllerAuthentication::of_secure_channel(settings)
                },
                key,
                former_end_ns,
                who,
                is_owed,
                has_failed: false,
                deadline_ns,
                receive: None,
                waits: None,
            },
        );
    }

    /// A host that has authenticated sends this message: if it begins a transaction, the one before is over, ended or not.
    pub(super) fn restart(&mut self, lane: LaneId, message: &[u8]) {
        if let Some(queue) = self.queues.get_mut(&lane).filter(|queue| !queue.is_owed)
            && Kind::of(message).is_ok_and(|(kind, _)| kind == Kind::Negotiate)
        {
            queue.machine.restart();
            if !queue.machine.is_running() {
                queue.deadline_ns = None;
            }
        }
    }

    /// Whether the next Send on this lane begins a transaction.
    pub(super) fn is_between_transactions(&self, lane: LaneId) -> bool {
        self.queues.get(&lane).is_some_and(|queue| !queue.machine.is_running() && !queue.machine.is_over())
    }

    /// The names that the host of a lane authenticates by.
    pub(super) fn names(&self, lane: LaneId) -> Option<&Names> {
        self.queues.get(&lane).map(|queue| &queue.names)
    }

    /// Sets the secrets for the transactions to come of a lane, by the present configuration; see
    /// [`ControllerAuthentication::set_secrets`].
    pub(super) fn set_secrets(
        &mut self,
        lane: LaneId,
        settings: Option<&ControllerSettings>,
        former_end_ns: Option<u64>,
    ) {
        if let Some(queue) = self.queues.get_mut(&lane) {
            queue.machine.set_secrets(settings);
            queue.former_end_ns = former_end_ns;
        }
    }

    /// A lane has ended: an authentication that it owed has failed.
    pub(super) fn on_lane_ended(&mut self, now_ns: u64, lane: LaneId, end: LaneEnd, outputs: &mut Outputs) {
        self.give_up(now_ns, lane, end.reason(), outputs);
        if let Some(ticket) = self.queues.remove(&lane).and_then(|queue| queue.waits) {
            self.exponentiations.remove(&ticket);
        }
    }

    /// A queue ends before its host has authenticated. The caller orders its end.
    pub(super) fn give_up(&mut self, now_ns: u64, lane: LaneId, reason: &str, outputs: &Outputs) {
        let Some(queue) = self.queues.get_mut(&lane).filter(|queue| queue.is_owed && !queue.has_failed)
        else {
            return;
        };
        queue.has_failed = true;
        let peer = queue.who.peer;
        queue.who.tell_failure(&mut self.told, now_ns, false, reason, outputs);
        self.news.push_back(News::Failed { lane, peer });
    }

    /// How the host of a lane was authenticated, for the operator.
    pub(super) fn describe(&self, lane: LaneId) -> Option<String> {
        let queue = self.queues.get(&lane)?;
        let Some(authenticated) = queue.machine.authenticated() else {
            return queue.key.as_ref().map(|_| "TLS with a generated key".into());
        };
        let ways = if authenticated.is_bidirectional { ", both ways" } else { "" };
        Some(format!("{}, {}{ways}", authenticated.hash, authenticated.group))
    }

    /// Handles an Authentication Send: the command succeeds whatever its message is.
    pub(super) fn on_send(
        &mut self,
        now_ns: u64,
        command: CommandId,
        sqe: &Sqe,
        message: &[u8],
        outputs: &mut Outputs,
    ) {
        let Some(queue) = self.queues.get_mut(&command.lane) else {
            return outputs.answer(command, Err(Status::INVALID_FIELD.with_dnr()));
        };
        let fields = AuthenticationCommand::from_sqe(sqe);
        let is_whole = !message.is_empty() && usize::try_from(fields.length) == Ok(message.len());
        if !fields.is_known_protocol() || !is_whole {
            return outputs.answer(command, Err(Status::INVALID_FIELD.with_dnr()));
        }
        let mut random = Zeroizing::new([0; RANDOM_BYTES]);
        if let Err(error) = self.random.fill(&mut *random) {
            tracing::error!(%error, "the system has no random numbers");
            return outputs.answer(command, Err(Status::INTERNAL_ERROR));
        }
        queue.machine.on_send(message, Fresh::new(&random, self.sequence.take()));
        if queue.deadline_ns.is_none() && queue.machine.is_running() {
            let deadline_ns = now_ns.saturating_add(LATER_NS);
            queue.deadline_ns = Some(deadline_ns);
            outputs.wake_about(deadline_ns);
        }
        self.go_on(now_ns, command.lane, outputs, Some((command, Ok(Reply::default()))));
    }

    /// Handles an Authentication Receive.
    pub(super) fn on_receive(&mut self, now_ns: u64, command: CommandId, sqe: &Sqe, outputs: &mut Outputs) {
        let room = match self.check_receive(command, sqe) {
            Ok(room) => room,
            Err(status) => return outputs.answer(command, Err(status)),
        };
        if let Some(queue) = self.queues.get_mut(&command.lane) {
            queue.receive = Some((command, room));
        }
        self.go_on(now_ns, command.lane, outputs, None);
    }

    /// The bytes of the buffer of an Authentication Receive.
    fn check_receive(&self, command: CommandId, sqe: &Sqe) -> Result<usize, Status> {
        let queue = self.queues.get(&command.lane).ok_or(Status::INVALID_FIELD.with_dnr())?;
        let fields = AuthenticationCommand::from_sqe(sqe);
        let room = room(sqe)?;
        if !fields.is_known_protocol() || usize::try_from(fields.length) != Ok(room) {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        if room > ROOM_BYTES_MAX {
            return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
        }
        if queue.receive.is_some() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
        }
        Ok(room)
    }

    /// The next exponentiation to run on another thread, and its lane; each result comes to
    /// [`on_exponentiated`](Self::on_exponentiated).
    pub(super) fn next_exponentiation(&mut self) -> Option<(LaneId, Exponentiation)> {
        while let Some(lane) = self.exponentiations.next() {
            let queue = self.queues.get_mut(&lane);
            let exponentiation = queue.and_then(|queue| {
                queue.waits = None;
                queue.machine.next_exponentiation()
            });
            match exponentiation {
                Some(exponentiation) => return Some((lane, exponentiation)),
                // Its transaction was abandoned.
                None => self.exponentiations.on_done(),
            }
        }
        None
    }

    /// A key pair to make on another thread while nothing else is to be computed.
    pub(super) fn next_key_pair(&mut self) -> Option<Exponentiation> {
        if !self.exponentiations.is_idle() {
            return None;
        }
        let group = self.key_pairs.next()?;
        let mut random = Zeroizing::new([0; RANDOM_BYTES]);
        if self.random.fill(&mut *random).is_err() {
            self.key_pairs.on_failed();
            return None;
        }
        Some(Exponentiation::of_key_pair(group, &Fresh::new(&random, self.sequence.take())))
    }

    pub(super) fn on_key_pair(&mut self, result: Exponentiated) {
        self.key_pairs.on_made(result.into_key_pair());
    }

    pub(super) fn on_exponentiated(
        &mut self,
        now_ns: u64,
        lane: LaneId,
        result: Exponentiated,
        outputs: &mut Outputs,
    ) {
        self.exponentiations.on_done();
        if let Some(queue) = self.queues.get_mut(&lane) {
            queue.machine.on_exponentiated(result);
            self.go_on(now_ns, lane, outputs, None);
        }
    }

    /// Ends queues whose hosts have not authenticated in time, and abandons later transactions that take too long.
    pub(super) fn expire(&mut self, now_ns: u64, outputs: &mut Outputs) {
        for (lane, queue) in &mut self.queues {
            match queue.deadline_ns {
                Some(deadline_ns) if deadline_ns > now_ns => outputs.wake_about(deadline_ns),
                Some(_) => {
                    queue.deadline_ns = None;
                    queue.machine.on_timeout();
                    if let Some((command, _)) = queue.receive.take() {
                        outputs.answer(command, Err(Status::INTERNAL_ERROR));
                    }
                    let peer = queue.who.peer;
                    if queue.is_owed && !queue.has_failed {
                        queue.has_failed = true;
                        queue.who.tell_failure(&mut self.told, now_ns, false, "not in time", outputs);
                        outputs.end_lane(*lane);
                        self.news.push_back(News::Failed { lane: *lane, peer });
                    } else if let Some(reason) = queue.machine.take_refusal() {
                        queue.who.tell_failure(&mut self.told, now_ns, true, &reason.to_string(), outputs);
                        self.news.push_back(News::FailedAgain { lane: *lane, peer });
                    }
                }
                None => {}
            }
        }
    }

    /// Answers what can be answered, `answer` last, and ends the queue if its host has failed.
    fn go_on(
        &mut self,
        now_ns: u64,
        lane: LaneId,
        outputs: &mut Outputs,
        answer: Option<(CommandId, AdminOutcome)>,
    ) {
        // It may be this lane: its command is answered first.
        let refused = self.ask_for_exponentiation(lane);
        let Some(queue) = self.queues.get_mut(&lane) else { return };
        let mut answers: Vec<_> = answer.into_iter().collect();
        if let Some((command, room)) = queue.receive.take() {
            match queue.machine.on_receive(room) {
                Received::Pending => queue.receive = Some((command, room)),
                Received::TooShort => answers.push((command, Err(Status::INVALID_FIELD.with_dnr()))),
                Received::Message(mut message) => {
                    // All of the buffer is written.
                    message.resize(room, 0);
                    answers.push((command, Ok(Reply { result: 0, data: Some(message.into()) })));
                }
            }
        }
        // Before the answer: the host's next connection may use the key at once.
        queue.keep_generated(now_ns, &self.generated);
        if !queue.machine.is_running() && !queue.is_owed {
            queue.deadline_ns = None;
        }
        if let Some(authenticated) = queue.machine.authenticated().filter(|_| queue.is_owed) {
            (queue.is_owed, queue.deadline_ns) = (false, None);
            let Who { peer, host, qid, .. } = &queue.who;
            tracing::info!(
                peer = peer.map(tracing::field::display),
                host = %quoted(host),
                qid = qid.get(),
                hash = %authenticated.hash,
                group = %authenticated.group,
                both_ways = authenticated.is_bidirectional,
                "host authenticated"
            );
            outputs.audit.record(|| Event::Authenticated {
                queue: queue.who.of_queue(),
                hash: authenticated.hash,
                group: authenticated.group,
                both_ways: authenticated.is_bidirectional,
            });
            return self.news.push_back(News::Authenticated { lane, answers });
        }
        for (command, outcome) in answers {
            outputs.answer(command, outcome);
        }
        let peer = queue.who.peer;
        if let Some(reason) = queue.machine.take_refusal() {
            queue.who.tell_failure(&mut self.told, now_ns, true, &reason.to_string(), outputs);
            self.news.push_back(News::FailedAgain { lane, peer });
        }
        if queue.machine.is_over() && !queue.has_failed {
            let reason =
                queue.machine.failure().map_or_else(|| "ended".to_owned(), |reason| reason.to_string());
            let offered = queue.machine.unusable_groups().map_or_else(String::new, |groups| {
                let names: Vec<String> = groups.iter().map(Group::to_string).collect();
                format!(
                    ": the host offers only {}, which dhchap_dhgroup of the subsystem does not list",
                    names.join(", ")
                )
            });
            self.give_up(now_ns, lane, &format!("{reason}{offered}"), outputs);
            outputs.end_lane(lane);
        }
        if let Some(refused) = refused {
            self.refuse(now_ns, refused, outputs);
        }
    }
}

impl Authentications {
    /// Queues the exponentiation of a lane's queue, or takes a key pair that is ready. Returns the lane whose
    /// exponentiation must leave the queue because its address has too many.
    fn ask_for_exponentiation(&mut self, lane: LaneId) -> Option<LaneId> {
        let queue = self.queues.get_mut(&lane)?;
        let source = Source::from(queue.who.peer);
        let rank = queue.machine.exponentiation().map(|exponentiation| Rank {
            is_stranger: queue.is_owed,
            time: exponentiation.group().time(),
            is_key_pair: exponentiation.is_key_pair(),
        });
        if queue.waits.map(|ticket| ticket.rank) == rank {
            return None;
        }
        if let Some(before) = queue.waits.take() {
            self.exponentiations.remove(&before);
        }
        let exponentiation = queue.machine.exponentiation()?;
        if exponentiation.is_key_pair()
            && !self.exponentiations.has_waiting(source)
            && let Some(pair) = self.key_pairs.take(exponentiation.group())
        {
            queue.machine.use_key_pair(pair);
            return None;
        }
        let (ticket, refused) = self.exponentiations.add(lane, source, rank?);
        queue.waits = Some(ticket);
        refused
    }

    /// Ends a queue because too many of its address wait to authenticate.
    fn refuse(&mut self, now_ns: u64, lane: LaneId, outputs: &mut Outputs) {
        if let Some(queue) = self.queues.get_mut(&lane) {
            queue.waits = None;
            queue.machine.on_timeout();
        }
        self.give_up(now_ns, lane, "too many of its address authenticate at once", outputs);
        outputs.end_lane(lane);
    }
}

impl Queue {
    /// Adds the key that the last transaction has generated, in place of the one before.
    fn keep_generated(&mut self, now_ns: u64, keys: &GeneratedKeys) {
        let Some(psk) = self.machine.take_generated() else { return };
        let by_former =
            self.machine.authenticated().is_some_and(|authenticated| authenticated.by_former_secret);
        let end_ns = self.former_end_ns.filter(|_| by_former).unwrap_or(u64::MAX);
        let identity = keys.insert(now_ns, &self.names, &psk, end_ns);
        let Who { peer, host, qid, .. } = &self.who;
        tracing::info!(
            peer = peer.map(tracing::field::display),
            host = %quoted(host),
            qid = qid.get(),
            cipher = %psk.cipher(),
            is_kept = identity.is_some(),
            "key of TLS generated"
        );
        // An empty identity for a host whose name no identity can have: its I/O queues must not be unencrypted either.
        if let Some(before) = self.key.replace(identity.unwrap_or_default()) {
            keys.remove(&before);
        }
    }
}
