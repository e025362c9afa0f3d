//! What the kernel's TCP allows: the same bytes over the same kind of sockets in the same batches, with no NVMe at all.
//!
//! Two threads move exactly what a host and a target with one lane would move. Both spin; each takes in whatever has
//! arrived in one call and answers all of it in one vectored send. Payloads come from one warm place and nobody looks
//! at what arrives, so that nothing but the sockets is measured.
//!
//! ```text
//! read              72 ─▶          ◀─ 24 + data + 24      C2HData, CapsuleResp
//! write in capsule  72 + data ─▶   ◀─ 24                  CapsuleResp
//! write by R2T      72 ─▶  ◀─ 24   24 + data ─▶  ◀─ 24    R2T, H2CData, CapsuleResp
//! ```

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use reactor::{Listener, Received, Segment, Sent, Socket};

use crate::cpu::{self, CpuTime};
use crate::histogram::Histogram;
use crate::random::Prng;

/// Bytes of a command capsule without data, and of every other header.
const CAPSULE_BYTES: usize = 72;
const HEADER_BYTES: usize = 24;

/// One receive takes in at most this much. Larger is no faster, and falls out of the nearer caches.
const STAGING_BYTES: usize = 256 * 1024;

/// Pieces of one send.
const SEGMENT_COUNT: usize = 256;

/// What is to be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CeilingSpec {
    /// Operations in flight.
    pub depth: u32,
    /// Bytes of data of each.
    pub io_bytes: u32,
    /// How many of a hundred operations are reads.
    pub read_percent: u8,
    /// Writes up to this size bring their data at once; larger ones are asked for it.
    pub in_capsule_bytes: u32,
    /// How long to measure.
    pub duration: Duration,
    /// How long to run before that.
    pub warm_up: Duration,
    /// Cores of the near (host) and far (target) side, if they are to be tied to any.
    pub cores: Option<(usize, usize)>,
    /// Decides the order of reads and writes.
    pub seed: u64,
}

/// What was moved.
#[derive(Clone, Debug)]
pub struct CeilingResult {
    /// Operations.
    pub operations: u64,
    /// In this time, ns.
    pub elapsed_ns: u64,
    /// From submission to completion, ns.
    pub latency: Histogram,
    /// CPU time of the near (host) side.
    pub near: CpuTime,
    /// CPU time of the far (target) side.
    pub far: CpuTime,
    /// Calls of the near side that sent something.
    pub sends: u64,
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

/// First byte of everything that is sent: what it is, and so how long.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Message {
    Read = 1,
    WriteInCapsule,
    WriteByR2t,
    H2cData,
    ReadResponse,
    WriteResponse,
    R2t,
}

impl Message {
    const ALL: [Self; 7] = [
        Self::Read,
        Self::WriteInCapsule,
        Self::WriteByR2t,
        Self::H2cData,
        Self::ReadResponse,
        Self::WriteResponse,
        Self::R2t,
    ];

    /// # Panics
    /// On a byte that neither side sends.
    fn from_byte(byte: u8) -> Self {
        Self::ALL[usize::from(byte) - 1]
    }

    fn length(self, io_bytes: usize) -> usize {
        match self {
            Self::Read | Self::WriteByR2t => CAPSULE_BYTES,
            Self::WriteInCapsule => CAPSULE_BYTES + io_bytes,
            Self::H2cData => HEADER_BYTES + io_bytes,
            Self::ReadResponse => 2 * HEADER_BYTES + io_bytes,
            Self::WriteResponse | Self::R2t => HEADER_BYTES,
        }
    }
}

/// Moves the bytes for as long as `spec` says, over a loopback connection of its own.
///
/// # Errors
/// What the system says when there is no socket or no such core.
///
/// # Panics
/// If the far side's thread panics.
pub fn measure(spec: &CeilingSpec) -> io::Result<CeilingResult> {
    let listener = Listener::bind("127.0.0.1:0".parse().expect("an address"))?;
    let near = Socket::connect(listener.address())?;
    let far = loop {
        if let Some(fd) = listener.accept()? {
            break Socket::new(fd)?;
        }
    };
    let ends = Arc::new(AtomicBool::new(false));
    let thread = {
        let (spec, ends) = (spec.clone(), Arc::clone(&ends));
        std::thread::Builder::new().name("ceiling-far".into()).spawn(move || answer(&far, &spec, &ends))?
    };
    let result = ask(&near, spec);
    ends.store(true, Ordering::Relaxed);
    drop(near);
    let far = thread.join().expect("the far side does not panic")?;
    Ok(CeilingResult { far, ..result? })
}

/// Where one side's outgoing bytes come from: a header of each kind, and one payload for all.
struct Material {
    headers: Vec<[u8; CAPSULE_BYTES]>,
    payload: Vec<u8>,
}

impl Material {
    fn new(io_bytes: usize) -> Self {
        let headers = Message::ALL.map(|message| {
            let mut header = [0; CAPSULE_BYTES];
            header[0] = message as u8;
            header
        });
        Self { headers: headers.into(), payload: vec![0x5a; io_bytes] }
    }
}

/// Messages that wait to be sent, as pieces. What fits into one call leaves in one.
struct Outgoing<'a> {
    material: &'a Material,
    segments: Vec<Segment<'a>>,
    /// Bytes of the first piece that are sent.
    sent: usize,
}

impl<'a> Outgoing<'a> {
    fn push(&mut self, message: Message) {
        let header = &self.material.headers[message as usize - 1];
        let payload = Segment::new(&self.material.payload);
        match message {
            Message::Read | Message::WriteByR2t => self.segments.push(Segment::new(header)),
            Message::WriteInCapsule => self.segments.extend([Segment::new(header), payload]),
            Message::H2cData => {
                self.segments.extend([Segment::new(&header[..HEADER_BYTES]), payload]);
            }
            Message::ReadResponse => {
                let trailer = Segment::new(&header[HEADER_BYTES..2 * HEADER_BYTES]);
                self.segments.extend([Segment::new(&header[..HEADER_BYTES]), payload, trailer]);
            }
            Message::WriteResponse | Message::R2t => {
                self.segments.push(Segment::new(&header[..HEADER_BYTES]));
            }
        }
    }

    /// Sends as much as the socket takes.
    fn flush(&mut self, socket: &Socket) -> io::Result<()> {
        let mut done = 0;
        while done < self.segments.len() {
            let count = (self.segments.len() - done).min(SEGMENT_COUNT);
            let batch = &mut self.segments[done..done + count];
            let whole = batch[0];
            if self.sent > 0 {
                batch[0] = whole.after(self.sent);
            }
            let sent = socket.send(batch, false);
            batch[0] = whole;
            let mut bytes = match sent {
                Sent::Bytes(bytes) => bytes + self.sent,
                Sent::Blocked => break,
                Sent::Failed(error) => return Err(error),
            };
            let first = done;
            while done < first + count && bytes >= self.segments[done].len() {
                bytes -= self.segments[done].len();
                done += 1;
            }
            self.sent = bytes;
            if done < first + count {
                break;
            }
        }
        self.segments.drain(..done);
        Ok(())
    }
}

/// Cuts received bytes into messages, whose content means nothing.
struct Incoming {
    staging: Vec<u8>,
    /// Bytes of a message that has begun and not ended.
    left: usize,
    /// What that is.
    message: Message,
}

impl Incoming {
    fn new() -> Self {
        Self { staging: vec![0; STAGING_BYTES], left: 0, message: Message::Read }
    }

    /// Receives once and calls `each` for each message that is complete. `None` when the other side has gone.
    fn receive(
        &mut self,
        socket: &Socket,
        io_bytes: usize,
        mut each: impl FnMut(Message),
    ) -> io::Result<Option<bool>> {
        let count = match socket.receive(&mut self.staging) {
            Received::Bytes(count) => count,
            Received::Dry => return Ok(Some(false)),
            Received::Ended => return Ok(None),
            Received::Failed(error) => return Err(error),
        };
        let mut at = 0;
        while at < count {
            if self.left == 0 {
                self.message = Message::from_byte(self.staging[at]);
                self.left = self.message.length(io_bytes);
            }
            let taken = self.left.min(count - at);
            (self.left, at) = (self.left - taken, at + taken);
            if self.left == 0 {
                each(self.message);
            }
        }
        Ok(Some(true))
    }
}

/// The far side: answers until the near side has gone.
fn answer(socket: &Socket, spec: &CeilingSpec, ends: &AtomicBool) -> io::Result<CpuTime> {
    if let Some((_, core)) = spec.cores {
        reactor::pin(core)?;
    }
    let io_bytes = spec.io_bytes as usize;
    let material = Material::new(io_bytes);
    let mut incoming = Incoming::new();
    let mut outgoing = Outgoing { material: &material, segments: Vec::new(), sent: 0 };
    let mut measured_from = None;
    let start = Instant::now();
    loop {
        let received = incoming.receive(socket, io_bytes, |message| {
            outgoing.push(match message {
                Message::Read => Message::ReadResponse,
                Message::WriteByR2t => Message::R2t,
                _ => Message::WriteResponse,
            });
        });
        match received {
            Ok(Some(true)) => {}
            Ok(Some(false)) => {
                if ends.load(Ordering::Relaxed) {
                    break;
                }
                std::hint::spin_loop();
            }
            Ok(None) | Err(_) if ends.load(Ordering::Relaxed) => break,
            Ok(None) => break,
            Err(error) => return Err(error),
        }
        if !outgoing.segments.is_empty() {
            match outgoing.flush(socket) {
                Err(error) if !ends.load(Ordering::Relaxed) => return Err(error),
                _ => {}
            }
        }
        if measured_from.is_none() && start.elapsed() >= spec.warm_up {
            measured_from = Some(cpu::of_thread()?);
        }
    }
    let used = cpu::of_thread()?;
    Ok(used - measured_from.unwrap_or(used))
}

/// The near side: keeps `depth` operations in flight and times them.
fn ask(socket: &Socket, spec: &CeilingSpec) -> io::Result<CeilingResult> {
    if let Some((core, _)) = spec.cores {
        reactor::pin(core)?;
    }
    socket.connected()?;
    let io_bytes = spec.io_bytes as usize;
    let material = Material::new(io_bytes);
    let mut incoming = Incoming::new();
    let mut outgoing = Outgoing { material: &material, segments: Vec::new(), sent: 0 };
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
    // Operations of one kind end in the order they began.
    let (mut reads, mut writes) = (VecDeque::new(), VecDeque::new());
    let mut latency = Histogram::new();
    let (mut operations, mut sends, mut free) = (0, 0, spec.depth);
    let start = Instant::now();
    let now_ns = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let end_of = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let (mut measured_from, mut used) = (0, CpuTime::default());
    let mut ends_ns = end_of(spec.warm_up);
    let mut is_warm = false;
    loop {
        let time_ns = now_ns();
        if time_ns >= ends_ns {
            if is_warm {
                return Ok(CeilingResult {
                    operations,
                    elapsed_ns: time_ns - measured_from,
                    latency,
                    near: cpu::of_thread()? - used,
                    far: CpuTime::default(),
                    sends,
                });
            }
            is_warm = true;
            (measured_from, ends_ns) = (time_ns, time_ns + end_of(spec.duration));
            used = cpu::of_thread()?;
            (operations, sends) = (0, 0);
            latency.clear();
        }
        for _ in 0..std::mem::take(&mut free) {
            let message = next();
            if message == Message::Read { &mut reads } else { &mut writes }.push_back(time_ns);
            outgoing.push(message);
        }
        if !outgoing.segments.is_empty() {
            outgoing.flush(socket)?;
            sends += 1;
        }
        let mut received_ns = 0;
        let received = incoming.receive(socket, io_bytes, |message| {
            if received_ns == 0 {
                received_ns = now_ns();
            }
            let begun = match message {
                Message::R2t => return outgoing.push(Message::H2cData),
                Message::ReadResponse => reads.pop_front(),
                _ => writes.pop_front(),
            };
            latency.record(received_ns - begun.unwrap_or(received_ns));
            operations += 1;
            free += 1;
        })?;
        match received {
            Some(true) => {}
            Some(false) => std::hint::spin_loop(),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_operation_goes_round() {
        for (read_percent, io_bytes) in
            [(100, 4096), (0, 4096), (0, 65536), (70, 4096), (50, 131_072), (0, 512)]
        {
            for depth in [1, 32] {
                let spec = CeilingSpec {
                    depth,
                    io_bytes,
                    read_percent,
                    in_capsule_bytes: 8192,
                    duration: Duration::from_millis(50),
                    warm_up: Duration::from_millis(5),
                    cores: None,
                    seed: 1,
                };
                let result = measure(&spec).unwrap();
                assert!(result.operations > u64::from(depth), "{spec:?}");
                assert!(result.latency.percentile(50.0) > 0);
                assert!(result.iops() > 0.0);
            }
        }
    }
}
