//! Attackers: connections that are held open at the target's expense, and operations that are repeated.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use peer::finding::Finding;
use peer::pdu::Draft;
use peer::queue::{Move, Queue, Step};
use peer::raw_host::RawHost;
use probe::target::{Disk, Settings, Target as Peer};
use wire::id::Nsid;
use wire::nqn::HostId;
use wire::pdu::{DataAlignment, Digests, IcReq};
use wire::sqe::Sqe;
use zerocopy::IntoBytes;

use super::PATIENCE;
use crate::target::Target;

/// A kind of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Attack {
    /// Connections that never send a byte
    HalfOpen,
    /// Handshakes, commands and data, a byte a second
    Slow,
    /// Reads whose data is never received, some with a nearly closed window
    Deaf,
    /// Writes whose data never comes
    Owing,
    /// Connects, over and over, each closed at once
    Connect,
    /// Controllers, created over and over and each abandoned at once
    Admin,
    /// Wrong digests, over and over
    Digest,
}

impl Attack {
    /// The operation of an attack that repeats one.
    pub(crate) fn repeated(self) -> Option<fn(&Peer)> {
        match self {
            Self::Connect => Some(|peer| drop(TcpStream::connect(peer.settings.host.address))),
            Self::Admin => Some(|peer| drop(peer.admin(Digests::empty()))),
            Self::Digest => Some(wrong_digest),
            Self::HalfOpen | Self::Slow | Self::Deaf | Self::Owing => None,
        }
    }
}

/// Number of operations of each repeated attack.
#[derive(Debug, Default)]
pub(super) struct Tally([AtomicU64; 3]);

impl Tally {
    pub(super) fn add(&self, of: Attack) {
        if let Some(count) = self.of(of) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Operations per second of each repeated attack over this time.
    pub(super) fn tell(&self, attacks: &[Attack], time: Duration) -> Vec<String> {
        let tell = |&attack: &Attack| {
            let count = self.of(attack)?.load(Ordering::Relaxed);
            Some(format!("{attack:?} {:.0}", count as f64 / time.as_secs_f64()).to_lowercase())
        };
        attacks.iter().filter_map(tell).collect()
    }

    fn of(&self, of: Attack) -> Option<&AtomicU64> {
        match of {
            Attack::Connect => Some(&self.0[0]),
            Attack::Admin => Some(&self.0[1]),
            Attack::Digest => Some(&self.0[2]),
            Attack::HalfOpen | Attack::Slow | Attack::Deaf | Attack::Owing => None,
        }
    }
}

/// A peer of the target, configured before the flood.
pub(crate) fn peer(target: &Target) -> Result<Peer> {
    Peer::new(Settings {
        host: RawHost {
            address: target.place(),
            subsystem: target.address().subsystem.context("a subsystem")?,
            nqn: "nqn.2026-01.io.nvlane:flood".parse()?,
            hostid: HostId::from_bytes([0x17; 16]),
            patience: PATIENCE,
        },
        nsid: Some(Nsid::new(1)),
        may_overwrite: true,
        pause_limit: PATIENCE,
        row_limit: PATIENCE,
        memcached: None,
        removal: None,
        log: None,
        tls: None,
    })
    .map_err(|finding: Finding| anyhow!("{finding}"))
}

/// A capsule with a wrong header digest: the target reports it and closes.
fn wrong_digest(peer: &Peer) {
    let Ok(mut link) = peer.host().link(Digests::all()) else { return };
    let mut bytes = Draft::command(link.form, Sqe::read(Nsid::new(1), 0, 1), &[]).seal();
    if let Some(last) = bytes.last_mut() {
        *last ^= 1;
    }
    let _ = link.send(&bytes);
    let _ = link.receive();
}

/// Connections held open for as long as the target allows.
#[derive(Default)]
pub(crate) struct Held {
    silent: Vec<TcpStream>,
    /// Bytes that each slow connection still has to send, one per second.
    slow: Vec<Slow>,
    deaf: Vec<Queue>,
    owing: Vec<Queue>,
}

impl Held {
    /// A connection that the target refuses is not held: refusals are part of the result.
    pub(crate) fn open(attacks: &[Attack], half_open: usize, of_each: usize, peer: &Peer) -> Self {
        let mut held = Self::default();
        let place = peer.settings.host.address;
        if attacks.contains(&Attack::HalfOpen) {
            held.silent.extend((0..half_open).filter_map(|_| TcpStream::connect(place).ok()));
        }
        let Some(disk) = peer.disk else { return held };
        for at in 0..of_each {
            for attack in attacks {
                match attack {
                    Attack::Slow => {
                        held.slow.extend(slow_handshake(place));
                        held.slow.extend(slow_capsule(peer));
                        held.slow.extend(slow_data(peer, disk));
                    }
                    Attack::Deaf => held.deaf.extend(deaf(peer, disk, at % 2 == 1)),
                    Attack::Owing => held.owing.extend(owing(peer, disk)),
                    Attack::HalfOpen | Attack::Connect | Attack::Admin | Attack::Digest => {}
                }
            }
        }
        held
    }

    pub(crate) fn count(&self) -> usize {
        self.silent.len() + self.slow.len() + self.deaf.len() + self.owing.len()
    }

    /// Sends one byte on each slow connection.
    pub(crate) fn drip(&mut self) {
        for Slow { line, bytes } in &mut self.slow {
            let Some(byte) = bytes.next() else { continue };
            // The target may have closed it.
            let _ = match line {
                Line::Bare(stream) => stream.write_all(&[byte]).is_ok(),
                Line::Queue(queue) => queue.link.send(&[byte]).is_ok(),
            };
        }
    }
}

/// A connection that sends one byte at a time.
struct Slow {
    line: Line,
    /// Bytes left to send.
    bytes: std::vec::IntoIter<u8>,
}

enum Line {
    Bare(TcpStream),
    /// Keeps its association open.
    Queue(Box<Queue>),
}

fn slow_handshake(place: SocketAddr) -> Option<Slow> {
    let request = IcReq::new(DataAlignment::NONE, Digests::empty(), 1);
    let bytes = request.as_bytes().to_vec().into_iter();
    Some(Slow { line: Line::Bare(TcpStream::connect(place).ok()?), bytes })
}

/// A complete association on which a command arrives byte by byte.
fn slow_capsule(peer: &Peer) -> Option<Slow> {
    let queue = peer.io(Digests::empty()).ok()?;
    let bytes = Draft::command(queue.form(), Sqe::read(Nsid::new(1), 0, 1), &[]).seal().into_iter();
    Some(Slow { line: Line::Queue(Box::new(queue)), bytes })
}

/// A complete association on which requested write data arrives byte by byte.
fn slow_data(peer: &Peer, disk: Disk) -> Option<Slow> {
    let mut queue = peer.io(Digests::empty()).ok()?;
    let data = disk.fill(8, 1);
    let cid = queue.submit(disk.write(0, 8), Move::Asked(&data)).ok()?;
    let Step::Wants(window) = queue.step(cid).ok()? else { return None };
    let bytes = Draft::h2c_data(queue.form(), cid, window.ttag, 0, &data, true).seal().into_iter();
    Some(Slow { line: Line::Queue(Box::new(queue)), bytes })
}

/// A queue full of reads whose data is never received; the receive window may be nearly closed from the start.
fn deaf(peer: &Peer, disk: Disk, is_narrow: bool) -> Option<Queue> {
    let mut queue = peer.io(Digests::empty()).ok()?;
    if is_narrow {
        // The kernel raises it to its minimum.
        rustix::net::sockopt::set_socket_recv_buffer_size(queue.link.stream(), 1).ok()?;
    }
    // More than both sockets buffer.
    for at in 0..31 {
        let read = disk.read(at * 256, 256);
        queue.submit(read, Move::Back(disk.block_bytes * 256)).ok()?;
    }
    Some(queue)
}

/// A queue full of writes whose data never arrives.
fn owing(peer: &Peer, disk: Disk) -> Option<Queue> {
    let mut queue = peer.io(Digests::empty()).ok()?;
    let data = vec![0; disk.block_bytes as usize * 256];
    for at in 0..31 {
        queue.submit(disk.write(at * 256, 256), Move::Asked(&data)).ok()?;
    }
    Some(queue)
}
