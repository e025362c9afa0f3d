//! `nvlane kv bench`: load on a key-value namespace, and its results.

mod prompts;

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use command_line::connection::with_subsystem;
use command_line::exit::{Failure, Kind};
use command_line::output;
use command_line::signals::EndOnSignal;
use command_line::values::{cores, run_time, seconds};
use host::{Address, Association, Options};
use linux::CoreList;
use load::account::{Account, ProcessAccount};
use load::environment::Environment;
use load::key_value::{KeyValueError, KeyValueLoad, Mix, Report, run};
use load::keys::Distribution;
use load::workload::Sizes;
use serde::Serialize;

use self::prompts::{Profile, PromptArguments};
use super::{Ended, Way};
use crate::perf::local_pid;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nvlane kv bench ADDR                          gets of 32 bytes, 32 in flight
  nvlane kv bench ADDR --batch 256 --depth 4    the same in batches
  nvlane kv bench ADDR --mix get=90,set=10 --distribution zipf:0.99 -o 16/50:1k/50
  nvlane kv bench ADDR --mix ycsb-a --verify    every value is checked
  nvlane target --listen 127.0.0.1:0 --namespace kv:ram:1G --run 'nvlane kv bench --batch 64'
  nvlane kv bench ADDR --profile kv-cache -o 10M -P 2   prompts of a language model, in chunks of 10 MiB

Mixes: get, set, add (increments a counter), modify (get, then set), insert (a new key) and update (increments every 64-bit number \
of a value in place), alone or with percentages; ycsb-a (half sets), -b (5 % sets), -c (gets), -d (5 % inserts), -f (half modifies). \
With --batch, the latency is that of the whole batch.

The stored keys remain, beside those already there.")]
pub(super) struct BenchArguments {
    /// The namespace: `HOST[:PORT]/NQN[?ns=1]`.
    #[arg(env = "NVLANE_ADDR", value_name = "ADDR")]
    address: Option<Address>,
    #[command(flatten)]
    way: Way,
    /// The mix of operations.
    #[arg(short = 'w', long, default_value = "get", help_heading = "Load")]
    mix: Mix,
    /// Number of keys, of 16 bytes each.
    #[arg(short = 'k', long, default_value_t = 100_000, help_heading = "Load")]
    keys: u64,
    /// Distribution of the keys used, or of the documents of prompts: uniform, or zipf:THETA, such as zipf:0.99.
    /// [default: uniform, for prompts zipf:0.99]
    #[arg(long, help_heading = "Load")]
    distribution: Option<Distribution>,
    /// Size of a value, or a mix such as 16/70:4k/30. [default: 32, for prompts 4M]
    #[arg(short = 'o', long, value_name = "BYTES", help_heading = "Load")]
    value_size: Option<Sizes>,
    /// Operations per batch; 1 for single commands.
    #[arg(short = 'b', long, default_value_t = 1, help_heading = "Load")]
    batch: u16,
    /// Batches or commands in flight on each lane.
    #[arg(short = 'q', long, default_value_t = 32, help_heading = "Load")]
    depth: u16,
    /// Lanes: queue pairs, each on its own connection with its own thread.
    #[arg(short = 'P', long, default_value_t = 1, help_heading = "Load")]
    lanes: u16,
    /// Send any key on any lane. Without this, each lane has the keys of the target's reactor that it is placed on, if the
    /// target tells how it divides keys (nvlane, in memory) and there is a lane for each reactor.
    #[arg(long, help_heading = "Load")]
    no_partition_map: bool,
    /// Cores for the lanes' threads, such as 0,2-5, assigned round robin. [default: any]
    #[arg(short = 'c', long, value_name = "LIST", value_parser = cores, help_heading = "Load")]
    cores: Option<CoreList>,
    /// How long to measure.
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = run_time, default_value = "10", help_heading = "Load")]
    time: Duration,
    /// Time under load before the measurement begins.
    #[arg(short = 'a', long, value_name = "SECONDS", value_parser = seconds, default_value = "1", help_heading = "Load")]
    warm_up: Duration,
    /// Do not store every key first: use existing pairs.
    #[arg(long, help_heading = "Load")]
    no_fill: bool,
    /// Store self-describing values, and check every retrieved value.
    #[arg(long, help_heading = "Load")]
    verify: bool,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 0, help_heading = "Load")]
    seed: u64,
    /// Write JSON to this file, or to standard output instead of the table if it is -.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    json: Option<PathBuf>,
    #[command(flatten)]
    prompts: PromptArguments,
}

/// JSON output: the result and its environment.
#[derive(Debug, Serialize)]
struct Document<'a, R> {
    environment: Environment,
    result: &'a R,
}

pub(super) fn bench(arguments: &BenchArguments) -> Ended {
    let address = arguments.address.as_ref().ok_or_else(|| {
        Failure::usage(
            "no namespace given: write HOST:PORT/NQN, or set NVLANE_ADDR; `nvlane discover` lists subsystems",
        )
    })?;
    output::check_file(arguments.json.as_deref())?;
    if arguments.prompts.profile == Some(Profile::KvCache) {
        return prompts::bench(arguments, address);
    }
    let load = arguments.load();
    let depth = load.lane_depth();
    if depth > Options::DEPTH_MAX {
        let limit = Options::DEPTH_MAX;
        return Err(Failure::usage(format!(
            "--depth {} makes {depth} commands in flight on a lane, but at most {limit} are possible: a batch is two",
            load.depth
        )));
    }
    let (address, options) = with_subsystem(address.clone(), |address| arguments.way.options(address))?;
    let (address, options) = (&address, options.with_lanes(load.lanes).with_depth(depth.max(2)));
    let options = options.tuned(|tuning| tuning.follows_partitions = load.follows_partitions);
    let association = Association::connect(address, options)?;
    let namespace = association.addressed_key_value()?;
    let target = address.resolve().ok().and_then(|peers| local_pid(&peers)).map(ProcessAccount);
    let target = target.as_ref().map(|target| target as &dyn Account);
    let stops = Arc::new(AtomicBool::new(false));
    let _handlers = EndOnSignal::new(&stops)?;
    let cores = arguments.cores.as_ref().map_or(&[][..], CoreList::cores);
    let result = run(&association, &namespace, &load, cores, target, &mut || stops.load(Ordering::Relaxed));
    association.close();
    let result = result.map_err(failure)?;
    let report = Report::new(&load, &result);
    arguments.write(address, &report)?;
    if result.mismatch_count > 0 {
        let message = format!("{} values differ from what was stored", result.mismatch_count);
        return Err(Failure::new(Kind::Mismatch, message));
    }
    if result.failed_count > 0 {
        let first = result.first_failure.unwrap_or_default();
        let message = format!("{} operations failed; the first: {first}", result.failed_count);
        return Err(Failure::new(Kind::Failed, message));
    }
    Ok(ExitCode::SUCCESS)
}

fn failure(error: KeyValueError) -> Failure {
    match error {
        KeyValueError::Load(_) | KeyValueError::Unverifiable | KeyValueError::NoVector { .. } => {
            Failure::usage(error)
        }
        KeyValueError::Host(error) => error.into(),
        other => Failure::new(Kind::Failed, other),
    }
}

impl BenchArguments {
    fn load(&self) -> KeyValueLoad {
        KeyValueLoad {
            mix: self.mix.clone(),
            keys: self.keys,
            distribution: self.distribution.unwrap_or(Distribution::Uniform),
            sizes: self.value_size.clone().unwrap_or_else(|| Sizes::one(32)),
            batch: self.batch,
            depth: self.depth,
            lanes: self.lanes,
            follows_partitions: !self.no_partition_map,
            fill: !self.no_fill,
            verify: self.verify,
            warm_up: self.warm_up,
            runtime: self.time,
            drain: self.way.answer(),
            seed: self.seed,
        }
    }

    fn write<R: Serialize + fmt::Display>(&self, address: &Address, report: &R) -> Result<(), Failure> {
        let json = || {
            let peer = address.resolve().ok().and_then(|peers| peers.first().map(std::net::SocketAddr::ip));
            let environment = Environment::collect(peer, Duration::from_millis(20));
            serde_json::to_string_pretty(&Document { environment, result: report })
        };
        output::tell(|| report.to_string(), json, self.json.as_deref())
    }
}
