//! A lane beside hosts that connect and authenticate: 100 connects a second, and a flood of ffdhe4096 exponentiations that
//! cost the attackers nothing.
//!
//! The same connects to a second target, beside the attackers, show their cost for the lane's host on a machine with
//! two cores, whatever target they are for.

use std::num::NonZeroU32;
use std::time::Duration;

use host::{Address, HostIdentity};
use linux::randomness::Randomness;
use linux::step_back;
use load::disturbance::{Disturbance, Side};
use load::workload::{Arrival, Pace};
use peer::finding::{Check, Finding};
use peer::queue::Move;
use peer::raw_host::RawHost;
use security::fresh::{Fresh, RANDOM_BYTES};
use security::group::Group;
use security::hash::HashFunction;
use security::host::{HostAuthentication, HostSettings};
use security::names::Names;
use security::secure_channel::SecureChannel;
use wire::fabrics::AuthenticationCommand;
use wire::pdu::Digests;

use super::Targets;
use super::connects::{Protection, healthy_options, once};
use crate::bench::{Load, on_core};
use crate::experiments::prelude::*;
use crate::keys::Keys;
use crate::load_values::values;
use crate::side_load::{Place, beside};

/// IOPS of a lane beside 100 connects a second, over those alone.
pub(super) const KEPT: Bar = Bar::AtLeast(0.8);

const CONNECTS_PER_S: f64 = 100.0;
/// Share of that rate from which on a measurement is valid.
const CONNECTED_SHARE: f64 = 0.95;
/// Threads that connect: as many associations are under way at once.
const CONNECTING_COUNT: usize = 8;
/// Connections of the flood that have an exponentiation computed or wait for one.
const FLOODING_COUNT: usize = 16;

/// Depth of the closed loop.
const DEPTH: u32 = 32;
/// Rate of the scheduled reads: far below what a core carries.
const PACED_PER_S: f64 = 10_000.0;

pub(super) const KIND: &str = "beside";
const PATIENCE: Duration = Duration::from_secs(20);
/// Room for a challenge, bytes.
const ROOM_BYTES: u32 = 4096;

/// The activity beside the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// Connects to a second target.
    Decoy,
    /// Connects to the lane's own target.
    Target,
}

impl Beside {
    const ALL: [Self; 3] = [Self::Nothing, Self::Decoy, Self::Target];

    const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "alone",
            Self::Decoy => "other target",
            Self::Target => "same target",
        }
    }
}

/// The two disturbances.
const CONNECTS: &str = "100 connects/s";
const FLOOD: &str = "ffdhe4096 flood";

pub(super) fn cells() -> impl Iterator<Item = Cell> {
    [CONNECTS, FLOOD].into_iter().flat_map(|what| {
        Beside::ALL.map(|beside| {
            Cell::new(name(what, beside)).with("kind", KIND).with("what", what).with("beside", beside.name())
        })
    })
}

/// Whether there is a core for the second target.
pub(super) fn suits(cell: &Cell, bench: &Bench) -> bool {
    let Some(server) = &bench.server else { return true };
    let has_decoy = cell.text("kind") == KIND && cell.text("beside") == Beside::Decoy.name();
    !has_decoy || server.machine.cores.len() > 1
}

pub(super) fn measure(targets: &mut Targets, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
    let place = Place::of(bench)?;
    let side = cell.one_of("beside", Beside::ALL, |side| side.name());
    let is_flood = cell.text("what") == FLOOD;
    let attacked = match side {
        Beside::Decoy => targets.decoy(bench, &place)?.address().clone(),
        _ => targets.authenticating(bench)?.0.address().clone(),
    };
    let (served, keys) = targets.authenticating(bench)?;
    let load = if is_flood { paced(bench, keys) } else { closed(bench, keys) };
    let steps_back = !is_flood && place.is_shared();
    let run = || run(bench, served, load, steps_back);
    let (mut values, per_second) = match side {
        Beside::Nothing => (run()?, None),
        _ if is_flood => {
            let attack = Attack::new(&attacked, keys)?;
            let (values, done) = beside(&place, FLOODING_COUNT, None, || attack.once(), run)?;
            (values, Some(done.per_second))
        }
        _ => {
            let options = Protection::AuthenticatedTls.options(keys);
            let connect = || once(&attacked, &options).map(|_| true);
            let (values, done) = beside(&place, CONNECTING_COUNT, Some(CONNECTS_PER_S), connect, run)?;
            (values, Some(done.per_second))
        }
    };
    values.extend(per_second.map(|rate| ("beside_per_s", rate)));
    Ok(values)
}

/// Reads on schedule: their latency counts from the moment each was due.
fn paced(bench: &Bench, keys: &Keys) -> Load {
    let mut load = bench.load("randread", None, IO_BYTES, DEPTH);
    load.workload.pace = Pace::Open { rate_per_s: PACED_PER_S, arrival: Arrival::Poisson };
    // Between reads the core is for the attackers, if they share it.
    let options = healthy_options(keys).tuned(|tuning| tuning.spin = Duration::ZERO);
    Load { options, ..load }
}

/// Reads as fast as completions arrive. The host spins, so that its processor time per read is the time that a read takes
/// while it has the core.
fn closed(bench: &Bench, keys: &Keys) -> Load {
    let load = bench.load("randread", None, IO_BYTES, DEPTH);
    Load { options: healthy_options(keys).tuned(|tuning| tuning.spin = Duration::MAX), ..load }
}

/// Runs the lane's load. `steps_back`: with no more right to the core than the threads beside it, so that its
/// throughput counts per second of processor time, and its wait for the core is no disturbance.
fn run(bench: &Bench, served: &Served, load: Load, steps_back: bool) -> Result<Values, Error> {
    let measured = on_core(None, || {
        if steps_back {
            step_back().doing("lower the load's priority")?;
        }
        let mut values = values(&bench.run(served, load)?.report);
        let spun = values.get("host_us").filter(|us| **us > 0.0).map(|us| 1e6 / us);
        values.extend(spun.map(|iops| ("iops_per_host_s", iops)));
        Ok(values)
    });
    if steps_back {
        let mut others = Disturbance::default();
        let noted = bench.take_noted();
        for &(side, loss) in noted.losses().iter().filter(|(side, _)| *side != Side::Host) {
            others.add(side, Some(loss));
        }
        bench.note(&others);
    }
    measured
}

pub(super) fn answer(measured: &Measured, headlines: &mut Headlines) {
    let connects = |beside| name(CONNECTS, beside);
    let is_full = |beside| {
        let rate = measured.median(&connects(beside), "beside_per_s");
        rate.is_some_and(|rate| rate >= CONNECTS_PER_S * CONNECTED_SHARE)
    };
    let kept = |below| measured.ratio(&connects(Beside::Target), &connects(below), "iops_per_host_s");
    let at_rate = is_full(Beside::Target);
    headlines.push(
        "iops_beside_100_connects_over_alone",
        kept(Beside::Nothing).filter(|_| at_rate),
        Some(KEPT),
    );
    let beside_decoy = kept(Beside::Decoy).filter(|_| at_rate && is_full(Beside::Decoy));
    headlines.tell("iops_beside_100_connects_over_other_target", beside_decoy);
    let flood = |beside| name(FLOOD, beside);
    let attacks = measured.median(&flood(Beside::Target), "beside_per_s");
    let slower = |below| {
        attacks.filter(|rate| *rate > 0.0)?;
        measured.ratio(&flood(Beside::Target), &flood(below), "p99_us")
    };
    headlines.tell("p99_beside_ffdhe4096_flood_over_alone", slower(Beside::Nothing));
    headlines.tell("p99_beside_ffdhe4096_flood_over_other_target", slower(Beside::Decoy));
    headlines.tell("ffdhe4096_exponentiations_per_s", attacks);
}

pub(super) fn figures(measured: &Measured) -> Vec<Figure> {
    let names = || Beside::ALL.map(|beside| beside.name().to_owned()).to_vec();
    let of = |label, what, value| bars(label, measured, Beside::ALL.map(|beside| name(what, beside)), value);
    let kept = vec![of("reads", CONNECTS, "iops_per_host_s")];
    let late = vec![of("p50", FLOOD, "p50_us"), of("p99", FLOOD, "p99_us")];
    vec![
        Figure::new(
            "A lane beside 100 connects a second",
            "Reads of 4 KiB per second of the host's processor time: alone, and beside connects with authentication and TLS \
             to a second target and to its own. Higher is better.",
            Plot::bars("connects", names(), Axis::linear("reads per second"), kept),
        ),
        Figure::new(
            "A lane beside a flood of authentications",
            "Scheduled reads of 4 KiB: alone, and beside a flood that has a second target or its own compute with \
             ffdhe4096. Lower is better.",
            Plot::bars("flood", names(), Axis::log("µs"), late),
        ),
    ]
}

fn name(what: &str, beside: Beside) -> String {
    format!("{what} {}", beside.name())
}

/// A host that offers ffdhe4096 alone, and leaves once the target has computed its public value.
struct Attack {
    host: RawHost,
    settings: HostSettings,
}

impl Attack {
    fn new(address: &Address, keys: &Keys) -> Result<Self, Error> {
        let places = address.resolve().doing("the target's address")?;
        let (place, subsystem) = places
            .first()
            .copied()
            .zip(address.subsystem.clone())
            .ok_or_else(|| Error::Target(format!("has an address without a subsystem: {address}")))?;
        let HostIdentity { nqn, id } = HostIdentity::of_this_machine();
        let names = Names { host: nqn.clone().into(), subsystem: subsystem.clone() };
        let settings = HostSettings {
            names,
            host: keys.secret.clone(),
            controller: None,
            hashes: HashFunction::ALL.to_vec(),
            groups: vec![Group::Ffdhe4096],
            secure_channel: SecureChannel::None,
        };
        let host = RawHost { address: place, subsystem, nqn, hostid: id, patience: PATIENCE };
        Ok(Self { host, settings })
    }

    /// Whether the target has computed. Where others have all cores, it may not in time.
    fn once(&self) -> Result<bool, Error> {
        let mut random = [0; RANDOM_BYTES];
        Randomness::System.fill(&mut random).doing("random numbers")?;
        let mut machine =
            HostAuthentication::new(self.settings.clone(), 1, Fresh::new(&random, NonZeroU32::MIN));
        let negotiate = machine.next_send().expect("the first message");
        match self.challenged(&negotiate) {
            Ok(()) => Ok(true),
            Err(Finding::Hangs(_)) => Ok(false),
            Err(finding) => Err(Error::Load(format!("the flood: {finding}"))),
        }
    }

    /// Connects an admin queue, sends an offer, and waits for the challenge.
    fn challenged(&self, negotiate: &[u8]) -> Check {
        let mut queue = self.host.queue(Digests::empty())?;
        self.host.connect_admin(&mut queue)?;
        let length = u32::try_from(negotiate.len()).expect("a short message");
        let send = AuthenticationCommand::new(length).to_send_sqe();
        queue.must(send, Move::InCapsule(negotiate))?;
        let receive = AuthenticationCommand::new(ROOM_BYTES).to_receive_sqe();
        queue.must(receive, Move::Back(ROOM_BYTES))?;
        Ok(())
    }
}
