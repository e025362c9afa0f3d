//! Hosts that nobody knows: short visits, attacks, nonsense; and one that reads steadily, for its latency.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use host::{Address, HostIdentity, Options};
use load::histogram::Histogram;
use load::random::Prng;
use probe::target::Target as Peer;
use wire::id::Nsid;
use wire::nqn::Nqn;

use super::{OPEN_NSID, Round, connect};
use crate::flood::Attack;
use crate::flood::attack::Held;
use crate::reader::{Reader, ns};

/// Names that visiting hosts choose from: more than a target lists one by one.
const NAME_COUNT: u64 = 300;

/// Connections that a round holds open without an aim: half-open ones, and each kind of slow ones.
const HALF_OPEN: usize = 20;
const SLOW: usize = 2;

/// Starts the visitors of a round. Each returns the number of its visits.
pub(super) fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    address: &'scope Address,
    places: [SocketAddr; 2],
    peer: &'scope Peer,
    number: u64,
    round: &'scope Round,
) -> Vec<ScopedJoinHandle<'scope, u64>> {
    vec![
        scope.spawn(move || hosts(address, number, round)),
        scope.spawn(move || attacks(peer, number, round)),
        scope.spawn(move || nonsense(places, number, round)),
    ]
}

/// Hosts with ever new names that read something and go, every second one without a word.
fn hosts(address: &Address, number: u64, round: &Round) -> u64 {
    let mut random = Prng::new(number);
    let mut visits = 0;
    while !round.is_over() {
        let visited = (|| -> Result<()> {
            let name =
                format!("nqn.2026-01.io.nvlane:visitor-{}", random.below(NAME_COUNT)).parse::<Nqn>()?;
            let lanes = 1 + u16::try_from(random.below(3))?;
            let options = Options::default()
                .with_lanes(lanes)
                .with_depth(8)
                .with_identity(Some(HostIdentity::of_name(name)));
            let Some(association) = connect(address, &options, round)? else { return Ok(()) };
            let namespace = association.namespace(Nsid::new(OPEN_NSID))?;
            let mut reader = Reader::new(association.lane()?, 8);
            for _ in 0..random.below(50) {
                reader.submit_all(&namespace)?;
                reader.take(|_| {})?;
            }
            if random.below(2) == 0 {
                association.close();
            }
            Ok(())
        })();
        round.judge("a visiting host", visited);
        visits += 1;
        round.pause(Duration::from_millis(random.below(300)));
    }
    visits
}

/// Attacks that are cheap for a peer, at a pace at which others can live.
fn attacks(peer: &Peer, number: u64, round: &Round) -> u64 {
    let mut random = Prng::new(number ^ 1);
    let mut held = Held::open(Attack::value_variants(), HALF_OPEN, SLOW, peer);
    let mut visits = u64::try_from(held.count()).unwrap_or(0);
    let repeated: Vec<_> = Attack::value_variants().iter().filter_map(|attack| attack.repeated()).collect();
    while !round.is_over() {
        let at = usize::try_from(random.below(repeated.len() as u64)).expect("few attacks");
        repeated[at](peer);
        held.drip();
        visits += 1;
        round.pause(Duration::from_millis(20 + random.below(200)));
    }
    visits
}

/// Bytes that mean nothing, to NVMe/TCP and to memcached.
fn nonsense(places: [SocketAddr; 2], number: u64, round: &Round) -> u64 {
    let mut random = Prng::new(number ^ 2);
    let mut visits = 0;
    while !round.is_over() {
        let place = places[usize::from(random.below(2) == 0)];
        if let Ok(mut stream) = TcpStream::connect(place) {
            let bytes: Vec<u8> = (0..random.below(3000)).map(|_| random.draw().to_le_bytes()[0]).collect();
            // The target closes when it likes.
            let _ = stream.set_read_timeout(Some(Duration::from_millis(50)));
            let _ = stream.write_all(&bytes);
            let _ = stream.read(&mut [0; 512]);
        }
        visits += 1;
        round.pause(Duration::from_millis(random.below(100)));
    }
    visits
}

/// Reads a block at a time, with pauses, and returns the latencies in nanoseconds.
pub(super) fn read_steadily(address: &Address, round: &Round) -> Result<Histogram> {
    let mut latencies = Histogram::new();
    let options = Options::default().with_depth(8).with_lanes(1);
    let Some(association) = connect(address, &options, round)? else { return Ok(latencies) };
    let namespace = association.namespace(Nsid::new(OPEN_NSID))?;
    let mut reader = Reader::new(association.lane()?, 1);
    while !round.is_over() {
        reader.submit_all(&namespace)?;
        reader.take(|latency| latencies.record(ns(latency)))?;
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(reader);
    association.close();
    Ok(latencies)
}
