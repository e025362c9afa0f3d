//! The limit that the kernel's TCP sets: the same bytes over the same kind of sockets in the same batches, without
//! NVMe.
//!
//! Two threads move exactly the bytes that a host and a target would move, on one lane or on several in turn. Both
//! spin; each receives everything that has arrived on a connection in one call and answers all of it in one vectored
//! send. Payloads come from one warm place and received bytes are not read, so only the sockets are measured. Data
//! larger than all caches moves slower for every program: for such sizes, payloads come from and go to memory of each
//! connection's own. For comparison with a namespace in RAM, the far side's payloads come from and go to random blocks
//! of memory like that of the namespace. With a cipher suite, the bytes pass through the TLS streams that lanes use.
//!
//! ```text
//! read              72 ─▶          ◀─ 24 + data + 24      C2HData, CapsuleResp
//! write in capsule  72 + data ─▶   ◀─ 24                  CapsuleResp
//! write by R2T      72 ─▶  ◀─ 24   24 + data ─▶  ◀─ 24    R2T, H2CData, CapsuleResp
//! ```

mod blocks;
mod channel;
mod connection;
pub mod far_end;
mod watch;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use blocks::Blocks;
use channel::Channel;
use connection::{Incoming, Material, Message, Outgoing, Sender, Took, wrong};
use host::Receive;
use reactor::{Listener, Socket};
use security::psk::Cipher;
use watch::Watch;

use crate::cpu::{self, CpuTime};
use crate::disturbance::{self, Disturbance, Loss, Side};
use crate::histogram::Histogram;
use crate::random::Prng;

/// Maximum size of one receive, bytes. Larger is no faster, and falls out of the nearer caches.
const STAGING_BYTES: usize = 256 * 1024;

/// Pieces of the far side's answer to one operation: header, data and response of a read.
const PIECE_COUNT_MAX: usize = 3;

/// The load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CeilingSpec {
    /// Operations in flight on all connections together.
    pub depth: u32,
    /// Connections that they go round.
    pub connections: u32,
    /// Bytes of data of each.
    pub io_bytes: u32,
    /// Percentage of reads.
    pub read_percent: u8,
    /// Writes up to this size carry their data in the capsule; the data of larger ones is requested.
    pub in_capsule_bytes: u32,
    /// Memory that each connection's payloads come from and go to at either end, bytes, one after the other; 0: one
    /// warm place for all.
    pub memory_bytes: usize,
    /// Memory on the far side that reads come from and writes are copied to, a random block for each, bytes; 0: none.
    pub far_memory_bytes: usize,
    /// How the near side receives.
    pub near_receives: Receive,
    /// The cipher suite of TLS on each connection; `None` for no TLS.
    pub tls: Option<Cipher>,
    /// How long to measure.
    pub duration: Duration,
    /// Warm-up before the measurement.
    pub warm_up: Duration,
    /// Cores of the near (host) and far (target) side, if they are pinned.
    pub cores: Option<(usize, usize)>,
    /// Whether the far side sleeps when there is nothing to do: then its processor time is that of its work.
    pub far_sleeps: bool,
    /// Decides the order of reads and writes.
    pub seed: u64,
}

impl CeilingSpec {
    /// Memory that the far side takes for data, bytes.
    #[must_use]
    pub const fn far_bytes(&self) -> u64 {
        let connections = if self.connections == 0 { 1 } else { self.connections as u64 };
        let each = self.memory_bytes as u64;
        // One place for all to send from, or one each to send from and one to receive into.
        let payloads = if each == 0 {
            self.io_bytes as u64
        } else {
            let sent = if each > self.io_bytes as u64 { each } else { self.io_bytes as u64 };
            connections.saturating_mul(sent.saturating_add(each))
        };
        payloads.saturating_add(self.far_memory_bytes as u64)
    }
}

/// Results of a measurement.
#[derive(Clone, Debug)]
pub struct CeilingResult {
    /// Operations.
    pub operations: u64,
    /// Duration, ns.
    pub elapsed_ns: u64,
    /// From submission to completion, ns.
    pub latency: Histogram,
    /// CPU time of the near (host) side.
    pub near: CpuTime,
    /// CPU time of the far (target) side.
    pub far: CpuTime,
    /// Calls of the near side that sent something.
    pub sends: u64,
    /// Time that both sides lost to other load on this machine.
    pub disturbance: Disturbance,
}

impl CeilingResult {
    /// Operations per second.
    #[must_use]
    pub fn iops(&self) -> f64 {
        #[allow(clippy::cast_precision_loss)] // A rate.
        let (operations, elapsed_ns) = (self.operations as f64, self.elapsed_ns.max(1) as f64);
        operations * 1e9 / elapsed_ns
    }
}

/// Moves the bytes for as long as `spec` says, over loopback connections of its own.
///
/// # Errors
/// A system call fails, for want of a socket or of such a core for example, or a TLS handshake does.
///
/// # Panics
/// If the far side's thread panics.
pub fn measure(spec: &CeilingSpec) -> io::Result<CeilingResult> {
    let listener = Listener::bind("127.0.0.1:0".parse().expect("an address"))?;
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for _ in 0..spec.connections.max(1) {
        let connected = Socket::connect(listener.address())?;
        let accepted = loop {
            if let Some(fd) = listener.accept()? {
                break Socket::new(fd)?;
            }
        };
        let (near_end, far_end) = Channel::pair(connected, accepted, spec.tls)?;
        near.push(near_end);
        far.push(far_end);
    }
    let ends = Arc::new(AtomicBool::new(false));
    let (tells_ready, is_ready) = mpsc::channel();
    let thread = {
        let (spec, ends) = (spec.clone(), Arc::clone(&ends));
        let answers = move || answer(&mut far, &spec, &tells_ready, &ends);
        std::thread::Builder::new().name("ceiling-far".into()).spawn(answers)?
    };
    let mut await_far = || is_ready.recv().map_err(|_| io::ErrorKind::UnexpectedEof.into());
    let result = ask(&mut near, spec, &mut await_far);
    ends.store(true, Ordering::Relaxed);
    drop(near);
    let far = thread.join().expect("the far side does not panic")?;
    let (far, loss) = far;
    let mut result = result?;
    result.disturbance.add(Side::Ceiling, loss);
    Ok(CeilingResult { far, ..result })
}

/// One end of one connection.
struct End<'a> {
    channel: &'a mut Channel,
    incoming: Incoming<'a>,
    outgoing: Outgoing<'a>,
}

impl<'a> End<'a> {
    /// With one of `materials` for all, or one for each.
    fn all(
        channels: &'a mut [Channel],
        materials: &'a [Material],
        blocks: Option<&'a Blocks>,
        receives: Receive,
        spec: &CeilingSpec,
        sender: Sender,
    ) -> Vec<Self> {
        let io_bytes = spec.io_bytes as usize;
        let of = |((number, channel), material): ((u64, _), _)| End {
            channel,
            incoming: Incoming::new(
                sender,
                spec.memory_bytes,
                receives,
                blocks.map(|blocks| blocks.walk(2 * number)),
            ),
            outgoing: Outgoing::new(material, io_bytes, blocks.map(|blocks| blocks.walk(2 * number + 1))),
        };
        (0..).zip(channels).zip(materials.iter().cycle()).map(of).collect()
    }
}

/// The far side: answers until the near side closes. It signals when its memory is allocated, which may take long.
fn answer(
    channels: &mut [Channel],
    spec: &CeilingSpec,
    tells_ready: &mpsc::Sender<()>,
    ends: &AtomicBool,
) -> io::Result<(CpuTime, Option<Loss>)> {
    if let Some((_, core)) = spec.cores {
        linux::pin(core)?;
    }
    let io_bytes = spec.io_bytes as usize;
    let materials = Material::of(spec);
    let blocks = Blocks::new(spec)?;
    let mut staging = vec![0; STAGING_BYTES];
    let mut watch = Watch::new(channels.iter().map(Channel::socket))?;
    let mut connections =
        End::all(channels, &materials, blocks.as_ref(), Receive::Staging, spec, Sender::Near);
    let mut ready = Vec::new();
    // Pieces that wait to be sent on all connections: the near side bounds them by its depth.
    let (mut piece_count, piece_count_max) = (0, spec.depth as usize * PIECE_COUNT_MAX);
    let (mut measured_from, mut account) = (None, None);
    let _ = tells_ready.send(());
    let start = Instant::now();
    'turns: loop {
        ready.clear();
        ready.extend_from_slice(watch.next()?);
        let mut worked = false;
        for &index in &ready {
            let End { channel, incoming, outgoing } = &mut connections[index];
            piece_count -= outgoing.piece_count();
            let took = incoming.receive(channel, &mut staging, io_bytes, |message| {
                outgoing.push(match message {
                    Message::Read => Message::ReadResponse,
                    Message::WriteByR2t => Message::R2t,
                    _ => Message::WriteResponse,
                });
            });
            // The near side closes as soon as it is done.
            let is_over = || ends.load(Ordering::Relaxed);
            match took {
                Ok(Took::Ended) => break 'turns,
                Err(_) if is_over() => break 'turns,
                Err(error) => return Err(error),
                Ok(took) => {
                    worked |= took != Took::Nothing;
                    if took == Took::Full {
                        watch.look_again(index);
                    }
                }
            }
            match outgoing.flush(channel) {
                Ok(()) => {}
                Err(_) if is_over() => break 'turns,
                Err(error) => return Err(error),
            }
            piece_count += outgoing.piece_count();
            if piece_count > piece_count_max {
                return Err(wrong("more operations are in flight than were announced"));
            }
        }
        if !worked {
            if ends.load(Ordering::Relaxed) {
                break;
            }
            if spec.far_sleeps && connections.iter().all(|end| end.outgoing.is_empty()) {
                watch.sleep(connections.iter().map(|end| end.channel.socket()))?;
            } else {
                std::hint::spin_loop();
            }
        }
        if measured_from.is_none() && start.elapsed() >= spec.warm_up {
            measured_from = Some(cpu::of_thread()?);
            account = Some(disturbance::Watch::thread());
        }
    }
    let used = cpu::of_thread()?;
    Ok((used - measured_from.unwrap_or(used), account.and_then(|account| account.loss())))
}

/// Start times of a connection's operations in flight: those of one kind end in the order in which they began.
#[derive(Default)]
struct Begun {
    reads: VecDeque<u64>,
    writes: VecDeque<u64>,
    /// Writes whose data the far side has requested.
    asked: usize,
}

/// The near side: keeps `depth` operations in flight and times them. `await_far` returns once the far side's memory is allocated.
fn ask(
    channels: &mut [Channel],
    spec: &CeilingSpec,
    await_far: &mut dyn FnMut() -> io::Result<()>,
) -> io::Result<CeilingResult> {
    if let Some((core, _)) = spec.cores {
        linux::pin(core)?;
    }
    let io_bytes = spec.io_bytes as usize;
    let materials = Material::of(spec);
    let mut staging = vec![0; STAGING_BYTES];
    let mut watch = Watch::new(channels.iter().map(Channel::socket))?;
    let mut connections = End::all(channels, &materials, None, spec.near_receives, spec, Sender::Far);
    let mut begun: Vec<Begun> = connections.iter().map(|_| Begun::default()).collect();
    // Connections with something to send, and those that are looked at in this turn.
    let (mut dirty, mut ready): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut turn = 0;
    let mut random = Prng::new(spec.seed);
    let write =
        if spec.io_bytes <= spec.in_capsule_bytes { Message::WriteInCapsule } else { Message::WriteByR2t };
    let mut next = || match spec.read_percent {
        100 => Message::Read,
        0 => write,
        percent => {
            if random.below(100) < percent.into() {
                Message::Read
            } else {
                write
            }
        }
    };
    let mut latency = Histogram::new();
    let (mut operations, mut sends, mut free) = (0, 0, spec.depth);
    await_far()?;
    let start = Instant::now();
    let now_ns = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let end_of = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let (mut measured_from, mut used, mut account) = (0, CpuTime::default(), None);
    let mut ends_ns = end_of(spec.warm_up);
    let mut is_warm = false;
    loop {
        let time_ns = now_ns();
        if time_ns >= ends_ns {
            if is_warm {
                let mut disturbance = Disturbance::default();
                disturbance
                    .add(Side::Ceiling, account.and_then(|account: disturbance::Watch| account.loss()));
                return Ok(CeilingResult {
                    operations,
                    elapsed_ns: time_ns - measured_from,
                    latency,
                    near: cpu::of_thread()? - used,
                    far: CpuTime::default(),
                    sends,
                    disturbance,
                });
            }
            is_warm = true;
            (measured_from, ends_ns) = (time_ns, time_ns + end_of(spec.duration));
            used = cpu::of_thread()?;
            account = Some(disturbance::Watch::thread());
            (operations, sends) = (0, 0);
            latency.clear();
        }
        for _ in 0..std::mem::take(&mut free) {
            let message = next();
            let begun = &mut begun[turn];
            if message == Message::Read { &mut begun.reads } else { &mut begun.writes }.push_back(time_ns);
            let outgoing = &mut connections[turn].outgoing;
            if outgoing.is_empty() {
                dirty.push(turn);
            }
            outgoing.push(message);
            turn = if turn + 1 < connections.len() { turn + 1 } else { 0 };
        }
        for index in dirty.drain(..) {
            let End { channel, outgoing, .. } = &mut connections[index];
            outgoing.flush(channel)?;
            sends += 1;
            if !outgoing.is_empty() {
                watch.look_again(index);
            }
        }
        ready.clear();
        ready.extend_from_slice(watch.next()?);
        let mut received_ns = 0;
        let mut worked = false;
        let mut is_answered = true;
        for &index in &ready {
            let End { channel, incoming, outgoing } = &mut connections[index];
            let begun = &mut begun[index];
            // Continue with the rest that the socket did not take.
            let mut is_dirty = !outgoing.is_empty();
            let took = incoming.receive(channel, &mut staging, io_bytes, |message| {
                if received_ns == 0 {
                    received_ns = now_ns();
                }
                let begun = match message {
                    Message::R2t if begun.asked < begun.writes.len() => {
                        begun.asked += 1;
                        is_dirty = true;
                        return outgoing.push(Message::H2cData);
                    }
                    Message::R2t => None,
                    Message::ReadResponse => begun.reads.pop_front(),
                    _ => {
                        begun.asked = begun.asked.saturating_sub(1);
                        begun.writes.pop_front()
                    }
                };
                let Some(begun) = begun else {
                    is_answered = false;
                    return;
                };
                latency.record(received_ns - begun);
                operations += 1;
                free += 1;
            })?;
            match took {
                Took::Ended => return Err(io::ErrorKind::UnexpectedEof.into()),
                Took::Full => watch.look_again(index),
                Took::All | Took::Nothing => {}
            }
            worked |= took != Took::Nothing;
            if is_dirty {
                dirty.push(index);
            }
        }
        if !is_answered {
            return Err(wrong("the far side sent an answer without a request"));
        }
        if !worked {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_operations_on_a_few_connections_are_within_the_far_sides_bound() {
        // The near side may close at any point of the far side's turn.
        for _ in 0..20 {
            assert!(longer(&spec(1024, 4, 4096, 100)).any(|spec| measure(&spec).unwrap().operations > 0));
        }
    }

    pub(super) fn spec(depth: u32, connections: u32, io_bytes: u32, read_percent: u8) -> CeilingSpec {
        CeilingSpec {
            depth,
            connections,
            io_bytes,
            read_percent,
            in_capsule_bytes: 8192,
            memory_bytes: 0,
            far_memory_bytes: 0,
            near_receives: Receive::Staging,
            tls: None,
            duration: Duration::from_millis(50),
            warm_up: Duration::from_millis(5),
            cores: None,
            far_sleeps: connections == 32,
            seed: 1,
        }
    }

    #[test]
    fn every_kind_of_operation_goes_round() {
        for (read_percent, io_bytes) in
            [(100, 4096), (0, 4096), (0, 65536), (70, 4096), (50, 131_072), (0, 512)]
        {
            for (depth, connections) in [(1, 1), (32, 1), (32, 5), (48, 32)] {
                goes_round(&spec(depth, connections, io_bytes, read_percent));
            }
        }
    }

    /// The same for a time that doubles: on a busy machine it takes longer until operations have ended.
    pub(super) fn longer(spec: &CeilingSpec) -> impl Iterator<Item = CeilingSpec> {
        (0..6).map(|times| CeilingSpec { duration: spec.duration * (1 << times), ..spec.clone() })
    }

    #[track_caller]
    fn goes_round(spec: &CeilingSpec) {
        let result = longer(spec)
            .map(|spec| measure(&spec).unwrap())
            .find(|result| result.operations > u64::from(spec.depth))
            .unwrap_or_else(|| panic!("does not go round: {spec:?}"));
        assert!(result.latency.percentile(50.0) > 0);
        assert!(result.iops() > 0.0);
    }

    #[test]
    fn a_host_receives_pdu_by_pdu_and_a_target_has_memory_of_its_own() {
        for (near_receives, far_memory_bytes) in
            [(Receive::Pdu, 0), (Receive::Staging, 1 << 20), (Receive::Pdu, 700_000)]
        {
            for (read_percent, io_bytes) in [(100, 4096), (0, 4096), (0, 65_536), (70, 4096), (50, 600_000)] {
                let spec = spec(12, 3, io_bytes, read_percent);
                goes_round(&CeilingSpec { near_receives, far_memory_bytes, ..spec });
            }
        }
    }

    #[test]
    fn tls_carries_every_kind_of_operation() {
        for cipher in [Cipher::Aes128GcmSha256, Cipher::Aes256GcmSha384] {
            for (read_percent, io_bytes) in [(100, 4096), (0, 4096), (70, 512), (50, 131_072), (50, 600_000)]
            {
                for (depth, connections) in [(1, 1), (32, 1), (48, 32)] {
                    let spec = spec(depth, connections, io_bytes, read_percent);
                    goes_round(&CeilingSpec { tls: Some(cipher), ..spec });
                }
            }
        }
        let spec = spec(12, 3, 65_536, 70);
        goes_round(&CeilingSpec { tls: Some(Cipher::Aes128GcmSha256), near_receives: Receive::Pdu, ..spec });
    }

    #[test]
    fn connections_have_memory_of_their_own() {
        for io_bytes in [4096, 600_000, 1_000_000] {
            let duration = Duration::from_millis(200);
            let spec = CeilingSpec { memory_bytes: 700_000, duration, ..spec(3, 2, io_bytes, 50) };
            assert!(longer(&spec).any(|spec| measure(&spec).unwrap().operations > 0), "{spec:?}");
        }
    }
}
