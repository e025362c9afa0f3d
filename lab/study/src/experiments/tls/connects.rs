//! The time from the first packet of an association to its first completed read, with each protection.

use std::time::{Duration, Instant};

use host::{Address, Association, Completion, Options, ReconnectSettings};
use load::disturbance::Side;
use load::histogram::Histogram;
use security::group::Group;

use super::Targets;
use crate::bench::on_core;
use crate::experiments::prelude::*;
use crate::keys::Keys;
use crate::load_values::us;

/// Time of a connect with authentication (ffdhe2048) and TLS, ms.
pub(super) const TIME: Bar = Bar::Below(20.0);

pub(super) const KIND: &str = "connect";

/// Connects of a measurement, at least.
const COUNT_MIN: u64 = 10;

const PATIENCE: Duration = Duration::from_secs(20);

/// The steps of a host before its first command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protection {
    Clear,
    Tls,
    Authenticated,
    AuthenticatedTls,
    Concatenated,
}

impl Protection {
    const ALL: [Self; 5] =
        [Self::Clear, Self::Tls, Self::Authenticated, Self::AuthenticatedTls, Self::Concatenated];

    const fn name(self) -> &'static str {
        match self {
            Self::Clear => "clear",
            Self::Tls => "tls",
            Self::Authenticated => "ffdhe2048",
            Self::AuthenticatedTls => "ffdhe2048 tls",
            Self::Concatenated => "ffdhe2048 concatenated",
        }
    }

    /// Options of a host with one lane that does not connect again.
    pub(super) fn options(self, keys: &Keys) -> Options {
        let authenticates = matches!(self, Self::Authenticated | Self::AuthenticatedTls | Self::Concatenated);
        Options::default()
            .with_depth(32)
            .with_credentials(authenticates.then(|| keys.credentials(Group::Ffdhe2048)))
            .with_tls(matches!(self, Self::Tls | Self::AuthenticatedTls).then(|| keys.tls()))
            .with_concat(self == Self::Concatenated)
            .with_connect_timeout(PATIENCE)
            .with_reconnect(ReconnectSettings::never())
    }
}

pub(super) fn cells() -> impl Iterator<Item = Cell> {
    Protection::ALL.into_iter().map(|protection| {
        Cell::new(name(protection)).with("kind", KIND).with("protection", protection.name())
    })
}

pub(super) fn measure(targets: &mut Targets, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
    let protection = cell.one_of("protection", Protection::ALL, |one| one.name());
    let options = protection.options(targets.keys()?);
    let served = match protection {
        Protection::Clear => targets.clear(bench)?,
        Protection::Tls => targets.tls(bench)?,
        _ => targets.authenticating(bench)?.0,
    };
    let before = served.reading()?;
    let times = repeat(bench, served.address(), &options)?;
    bench.note_loss(Side::Target, served.reading()?.loss_since(&before));
    let ms = |percent| us(times.percentile(percent)) / 1e3;
    let count = times.count() as f64;
    Ok(Values::from([("connect_ms", ms(50.0)), ("connect_p99_ms", ms(99.0)), ("connects", count)]))
}

/// Connects one association after the other, on the host's core.
fn repeat(bench: &Bench, address: &Address, options: &Options) -> Result<Histogram, Error> {
    on_core(bench.cores.map(|cores| cores.host), || {
        // The target's thread for exponentiations starts with the first.
        once(address, options)?;
        let (mut times, start) = (Histogram::new(), Instant::now());
        while times.count() < COUNT_MIN || start.elapsed() < bench.times.measure {
            if bench.is_stopped() {
                return Err(Error::Stopped);
            }
            let time = once(address, options)?;
            times.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        }
        Ok(times)
    })
}

/// Connects an association with a lane, reads a block, and closes it. Returns the time to the end of the read.
pub(super) fn once(address: &Address, options: &Options) -> Result<Duration, Error> {
    let start = Instant::now();
    let association = Association::connect(address, options.clone())?;
    let time = first_read(&association, start);
    association.close();
    time
}

fn first_read(association: &Association, start: Instant) -> Result<Duration, Error> {
    let mut lane = association.lane()?;
    let namespace = association.addressed_namespace()?;
    let command = namespace.read(0, 1).map_err(host::Error::Command)?;
    let buffer = vec![0; namespace.lba_bytes() as usize];
    lane.submit(command, Some(buffer), 0).map_err(|refused| Error::Load(refused.to_string()))?;
    let mut ended: Vec<Completion<Vec<u8>>> = Vec::new();
    if lane.wait(&mut ended, PATIENCE) == 0 {
        return Err(Error::Load("the first read of a lane has no completion".into()));
    }
    let time = start.elapsed();
    match ended.pop().map(|done| done.result) {
        Some(Err(failure)) => Err(Error::Load(format!("the first read of a lane: {failure}"))),
        _ => Ok(time),
    }
}

pub(super) fn answer(measured: &Measured, headlines: &mut Headlines) {
    for protection in Protection::ALL {
        let bar = (protection == Protection::AuthenticatedTls).then_some(TIME);
        let key = name(protection).replace(' ', "_") + "_ms";
        headlines.push(key, measured.median(&name(protection), "connect_ms"), bar);
    }
}

pub(super) fn figure(measured: &Measured) -> Figure {
    let names = Protection::ALL.map(|protection| protection.name().to_owned()).to_vec();
    let cells = || Protection::ALL.map(name);
    let series =
        vec![bars("p50", measured, cells(), "connect_ms"), bars("p99", measured, cells(), "connect_p99_ms")];
    Figure::new(
        "Time to the first read",
        "From the call that connects an association to the end of its first read: two queues, each with its own \
         authentication and TLS handshake. Lower is better.",
        Plot::bars("", names, Axis::linear("ms"), series).with_mark("goal 20 ms", TIME.limit()),
    )
}

fn name(protection: Protection) -> String {
    format!("connect {}", protection.name())
}

/// Options of a lane that is measured beside others: with TLS, and authenticated.
pub(super) fn healthy_options(keys: &Keys) -> Options {
    let credentials = Some(keys.credentials(Group::Ffdhe2048));
    Options::default().with_credentials(credentials).with_tls(Some(keys.tls()))
}
