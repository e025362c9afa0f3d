//! `nvlane perf`: puts load on a namespace and reports.

pub(crate) mod ceiling;
mod doorbells;
pub(crate) mod live;
mod place;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::{ArgAction, ArgMatches, Args, Subcommand, ValueEnum};
use command_line::connection::{HostOptions, with_subsystem};
use command_line::exit::Ended;
use command_line::exit::{Failure, Kind};
use command_line::host_advice::Advised;
use command_line::output;
use command_line::values::{cores, run_time, seconds};
use host::reconnect::ReconnectSettings;
use host::{Address, Association, BusyPoll, Options, QueueMap, Receive, ReplayPolicy, ZeroCopy};
use linux::CoreList;
use load::account::ProcessAccount;
use load::keys::Distribution;
use load::report::{LaneResult, fio_json, fio_logs, text};
use load::runner::{self, Finished, LocalStorage, RunSettings};
use load::steady::SlopeLimit;
use load::workload::{Arrival, Pace, Pattern, Regions, Sizes, Stop, Workload};
use reactor::{MaxSegment, SpinPolicy};

use doorbells::Doorbells;
use place::Place;

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  nvlane perf 192.0.2.1 -q 128 -w randread -t 10
  nvlane perf ADDR -w randrw -M 70 --rate 50000 -L       open loop, all percentiles
  nvlane perf ADDR -w randrw --verify -o 4k/70:64k/30    every block read is checked
  nvlane perf ADDR -q 128 --ceiling                      compared with plain sockets
  nvlane perf ADDR -w randrw --queues default=1,read=1   reads on a lane of their own
  nvlane perf device:/dev/nvme1n1 -q 128 -c 2,3          the same load on local storage, through io_uring
  nvlane target --listen 127.0.0.1:0 --namespace ram:1G --run 'nvlane perf -q 32'

Patterns with writes, verify and --fill overwrite the namespace, file or device: its data is lost. A device that is mounted, and storage \
that a target serves, is not written.

Ctrl-C (or SIGTERM) ends the load and reports what was measured; a second one ends at once. Operations in flight at the end have \
--timeout seconds to complete (2 after Ctrl-C), closing takes up to 3 more; the report says how many did not complete, and then the \
exit code is 1.

In a closed loop, latency is measured from submission to completion. With --rate it is measured from the moment an operation was due, \
so that a target that falls behind cannot hide it."
)]
pub(crate) struct PerfArguments {
    #[command(subcommand)]
    command: Option<PerfCommand>,
    #[command(flatten)]
    run: RunArguments,
}

#[derive(Debug, Subcommand)]
enum PerfCommand {
    /// Measure plain sockets that move the same bytes without NVMe: the limit of this machine's TCP.
    Ceiling(ceiling::CeilingArguments),
}

#[derive(Debug, Args)]
struct RunArguments {
    /// The namespace, `HOST[:PORT]/NQN[?ns=1]`, or local storage, `file:PATH` or `device:PATH` (with `?lba=BYTES` for its
    /// block size).
    #[arg(env = "NVLANE_ADDR", value_name = "ADDR")]
    place: Option<Place>,
    #[command(flatten)]
    load: LoadArguments,
    #[command(flatten)]
    connection: ConnectionArguments,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Load")]
struct LoadArguments {
    /// Operations in flight on each lane.
    #[arg(short = 'q', long, default_value_t = 32)]
    depth: u32,
    /// Size of an operation, or a mix such as 4k/70:64k/30.
    #[arg(short = 'o', long, value_name = "BYTES", default_value = "4k")]
    io_size: Sizes,
    /// read, write, rw, randread, randwrite, randrw, trim, randtrim, writezeroes, randwritezeroes, verify, randverify.
    #[arg(short = 'w', long, default_value = "randread")]
    pattern: String,
    /// Percentage of reads in rw and randrw. [default: 50]
    #[arg(short = 'M', long, value_name = "READ%")]
    read_percent: Option<u8>,
    /// Duration of the measurement. [default: 10 seconds, unless --operations or --bytes ends it]
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = run_time)]
    time: Option<Duration>,
    /// Time under load before the measurement begins.
    #[arg(short = 'a', long, value_name = "SECONDS", value_parser = seconds, default_value = "1")]
    warm_up: Duration,
    /// End after this number of operations.
    #[arg(short = 'd', long, value_name = "COUNT")]
    operations: Option<u64>,
    /// End after this number of bytes.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    bytes: Option<u64>,
    /// Number of lanes: queue pairs, each on its own connection; on local storage, of queues. [default: one for each core
    /// of -c]
    #[arg(short = 'P', long)]
    lanes: Option<u32>,
    /// Lanes by class instead of -P, such as default=1,read=2,poll=1: reads use read lanes, polled operations use poll
    /// lanes.
    /// -q is then the depth of each thread. The lanes of each class are assigned to cores from the first of -c on.
    #[arg(long, value_name = "MAP", conflicts_with = "lanes")]
    queues: Option<QueueMap>,
    /// Share of operations whose completion is polled for (high priority): they use poll lanes.
    #[arg(long, value_name = "PERCENT", requires = "queues", default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..=100))]
    polled: u8,
    /// One thread on each of these cores, such as 0,2-5; lanes are assigned round robin. [default: one thread, any
    /// core]
    #[arg(short = 'c', long, value_name = "LIST", value_parser = cores)]
    cores: Option<CoreList>,
    /// Open loop: issue OPS per second in total over all lanes, on schedule regardless of completions.
    #[arg(long, value_name = "OPS")]
    rate: Option<f64>,
    /// Spacing of the operations of --rate: poisson or constant.
    #[arg(long, requires = "rate", default_value = "poisson")]
    arrival: Arrival,
    /// Write self-describing blocks and check every block that is read.
    #[arg(long)]
    verify: bool,
    /// Write every block once before anything else.
    #[arg(long)]
    fill: bool,
    /// First block of the range to use.
    #[arg(long, value_name = "LBA", requires = "blocks")]
    first: Option<u64>,
    /// Number of blocks of the range. [default: the whole namespace]
    #[arg(long, value_name = "COUNT")]
    blocks: Option<u64>,
    /// Whether lanes share the range or each own a part of it. [default: own if sequential or verified]
    #[arg(long, value_name = "HOW")]
    regions: Option<RegionsArgument>,
    /// Distribution of random operations over blocks: uniform, or zipf:THETA.
    #[arg(long, default_value = "uniform")]
    distribution: Distribution,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// End as soon as the IOPS change by less than this, such as 0.5% per second.
    #[arg(long, value_name = "SLOPE")]
    steady: Option<SlopeLimit>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Connection")]
struct ConnectionArguments {
    #[command(flatten)]
    host: HostOptions,
    /// Seconds to try to reconnect to a lost target before the load ends; at most until the end of -t.
    #[arg(long, value_name = "SECONDS", alias = "ctrl-loss-tmo", value_parser = seconds, default_value = "60")]
    ctrl_loss_timeout: Duration,
    /// When submitted commands are sent: immediate, turn, `fixed[:COMMANDS,BYTES,MICROSECONDS]` or
    /// `adaptive[:MICROSECONDS]`; or policies by class of --queues, such as default=adaptive,read=immediate,poll=turn.
    /// [default: adaptive]
    #[arg(long, value_name = "POLICY", default_value = "adaptive", hide_default_value = true)]
    doorbell: Doorbells,
    /// Which thread sends: the submitting one with its next poll (turn), the submitting one at once if the lane is idle
    /// (inline), or one thread per lane that receives commands by mailbox (mailbox).
    #[arg(long, value_name = "HOW", default_value = "turn")]
    submit: Submit,
    /// How bytes are received, for comparison: everything available into one warm buffer (staging), or PDU by PDU, with
    /// one call per header or data (pdu).
    #[arg(long, value_name = "HOW", default_value = "staging")]
    receive: Receive,
    /// Minimum PDU size of read data that is received straight into its buffer, without a copy. [default: 64K]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    in_place: Option<u64>,
    /// Minimum send size for zero-copy send of write data, such as 64K; `off`; or `auto`: only on routes that leave
    /// this machine, disabled once the kernel reports that it copied anyway.
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    zero_copy: ZeroCopy,
    /// Whether idle threads spin before they sleep: auto (as long as spinning has paid lately), always, or never.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    spin: SpinPolicy,
    /// Time that a waiting lane polls the network device before it sleeps, up to 10000; 0 is off. The lanes' counters
    /// in the JSON show what the kernel granted. It has no effect without a device queue, as over loopback.
    #[arg(long, value_name = "USEC", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(0..=i64::from(reactor::BUSY_POLL_US_MAX)))]
    busy_poll: u32,
    /// Maximum segment size of TCP in both directions, 88 to 32767: 1460 for packets of 1500 bytes over IPv4, 1440 over IPv6. The
    /// lanes' counters in the JSON show the data of a full segment (segment_bytes). [default: that of the route's MTU]
    #[arg(long, value_name = "BYTES", value_parser = mss)]
    mss: Option<MaxSegment>,
    /// Which commands are resubmitted after a reconnect: all, as kernels do, or only reads; an interrupted write then
    /// fails.
    #[arg(long, default_value = "all")]
    replay: Replay,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
struct OutputArguments {
    /// Print all percentiles and counters; given twice, the histogram too.
    #[arg(short = 'L', action = ArgAction::Count)]
    latency: u8,
    /// Write JSON in fio's format with additions to this file, or to standard output instead of the table if it is -.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Include histograms in the JSON, in the form of fio's json+.
    #[arg(long, requires = "json")]
    bins: bool,
    /// Write fio's logs of IOPS, bandwidth and latency, a row per second and direction, to this directory, for programs
    /// such as fio-plot.
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
    /// Measure the ceiling afterwards, and report the share of it (one thread, one size, reads and writes).
    #[arg(long)]
    ceiling: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RegionsArgument {
    Shared,
    Own,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Submit {
    Turn,
    Inline,
    Mailbox,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Replay {
    All,
    Reads,
}

/// `given`: the options on the command line.
pub(crate) fn perf(arguments: &PerfArguments, given: &ArgMatches) -> Ended {
    match &arguments.command {
        Some(PerfCommand::Ceiling(arguments)) => ceiling::ceiling(arguments),
        None => run(&arguments.run, given),
    }
}

fn run(arguments: &RunArguments, given: &ArgMatches) -> Ended {
    match &arguments.place {
        Some(Place::Target(address)) => run_remote(arguments, address),
        Some(Place::Local(storage)) => {
            place::refuse_options_of_targets(given)?;
            run_local(arguments, storage)
        }
        None => Err(Failure::usage(
            "no namespace given: write HOST:PORT/NQN, file:PATH or device:PATH, or set NVLANE_ADDR; \
             `nvlane discover` lists subsystems",
        )),
    }
}

fn run_local(arguments: &RunArguments, storage: &LocalStorage) -> Ended {
    let RunArguments { load, connection, output, .. } = arguments;
    output.check()?;
    let workload = load.workload()?;
    let storage = LocalStorage { spin: connection.spin, ..storage.clone() };
    let settings = RunSettings {
        cores: load.core_list().to_vec(),
        steady: load.steady,
        drain: connection.host.answer(HostOptions::ANSWER),
        ..RunSettings::default()
    };
    let mut live = live::Live::new(&workload)?;
    let finished = runner::run_local(&storage, &workload, &settings, &mut live);
    live.clear();
    let finished = finished?;
    output.write(&finished)?;
    ended(&finished)
}

fn run_remote(arguments: &RunArguments, address: &Address) -> Ended {
    let RunArguments { load, connection, output, .. } = arguments;
    output.check()?;
    let workload = load.workload()?;
    let cores = load.core_list();
    if let Some(class) = connection.doorbell.lacking(load.queues) {
        let doorbell = connection.doorbell;
        let lacking = format!("--doorbell {doorbell}: there are no {class} lanes: add them to --queues");
        return Err(Failure::usage(lacking));
    }
    let (address, options) =
        with_subsystem(address.clone(), |address| connection.options(&workload, address))?;
    let address = &address;
    let options = match load.queues {
        Some(queues) => options.with_queues(queues),
        None => options,
    };
    let tls = ceiling::cipher_of(&options);
    let association = Association::connect(address, options)?;
    let namespace = association.addressed_namespace()?;
    let peers = address.resolve().unwrap_or_default();
    let target = local_pid(&peers);
    let settings = RunSettings {
        cores: cores.to_vec(),
        queues: load.queues,
        polled_percent: load.polled,
        hand_over: connection.submit == Submit::Mailbox,
        steady: load.steady,
        target: target.map(|pid| Arc::new(ProcessAccount(pid)) as _),
        // A target of this machine without a process is the kernel's.
        beside_kernel_threads: target.is_none() && peers.iter().any(|peer| load::cpu::is_local(peer.ip())),
        drain: connection.host.answer(HostOptions::ANSWER),
    };
    let mut live = live::Live::new(&workload)?;
    let finished = runner::run(&association, &namespace, &workload, &settings, &mut live);
    live.clear();
    association.close();
    let mut finished = finished?;
    if connection.busy_poll > 0 {
        tell_unpolled(&finished);
    }
    if output.ceiling {
        let share = ceiling::beside(&workload, &namespace, &finished.report, cores, tls)?;
        finished.report.extra.insert("ceiling".into(), share);
    }
    output.write(&finished)?;
    ended(&finished)
}

/// Reports lanes that could not poll a device.
fn tell_unpolled(finished: &Finished) {
    let count = |lane: &LaneResult, name: &str| {
        lane.counters.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0)
    };
    let lanes = &finished.report.lanes;
    let refused = lanes.iter().filter(|lane| count(lane, "busy_poll_refusals") > 0).count();
    let without = lanes.iter().filter(|lane| count(lane, "napi_id") == 0).count();
    if refused > 0 {
        tracing::warn!(lanes = refused, "busy polling: refused by the kernel; waits only spun");
    } else if without > 0 {
        tracing::info!(
            lanes = without,
            "busy polling: packets came through no device that can be polled; waits only spun"
        );
    }
}

/// The process that listens at the address, if it is another process of this machine.
pub(crate) fn local_pid(peers: &[std::net::SocketAddr]) -> Option<u32> {
    let pid = peers.iter().find_map(|peer| load::cpu::pid_of_listener(*peer).ok().flatten())?;
    (pid != std::process::id()).then_some(pid)
}

/// Exit code of a run with a report.
fn ended(finished: &Finished) -> Ended {
    let report = &finished.report;
    if report.counters.mismatch_count > 0 {
        let message = format!("{} blocks differ from what was written", report.counters.mismatch_count);
        return Err(Failure::new(Kind::Mismatch, message));
    }
    if finished.unanswered > 0 {
        let (count, s) = (finished.unanswered, finished.drain.as_secs_f64());
        let who = if report.storage.is_some() { "storage" } else { "target" };
        let message = format!("the {who} did not answer {count} operations within {s} s of the load's end");
        return Err(Failure::new(Kind::Failed, message));
    }
    if let Some(error) = &finished.error {
        let kind = if report.storage.is_some() { Kind::Failed } else { Kind::Unreachable };
        return Err(Failure::new(kind, format!("the load ended early: {}", Advised(error))));
    }
    if report.total.error_count > 0 {
        let message = format!("{} operations failed", report.total.error_count);
        return Err(Failure::new(Kind::Failed, message));
    }
    Ok(ExitCode::SUCCESS)
}

impl LoadArguments {
    /// The cores of -c; none without it.
    fn core_list(&self) -> &[usize] {
        self.cores.as_ref().map_or(&[], CoreList::cores)
    }

    /// Checks that the queue map fits the threads and the operations.
    fn check_queues(&self, core_count: usize) -> Result<(), Failure> {
        let Some(queues) = self.queues else { return Ok(()) };
        if usize::from(queues.default) < core_count {
            let lacking =
                format!("--queues {queues}: each of the {core_count} cores of -c needs a default lane");
            return Err(Failure::usage(lacking));
        }
        match (queues.poll > 0, self.polled > 0) {
            (true, false) => Err(Failure::usage("poll lanes need polled operations: add --polled PERCENT")),
            (false, true) => {
                Err(Failure::usage("--polled needs poll lanes: add them to --queues, as poll=1"))
            }
            _ => Ok(()),
        }
    }

    fn workload(&self) -> Result<Workload, Failure> {
        let is_ended = self.operations.is_some() || self.bytes.is_some();
        let runtime = self.time.or((!is_ended).then_some(Duration::from_secs(10)));
        let core_count = self.cores.as_ref().map_or(1, |cores| cores.cores().len());
        self.check_queues(core_count)?;
        let lanes = self.lanes.unwrap_or(u32::try_from(core_count).unwrap_or(u32::MAX));
        Ok(Workload {
            pattern: Pattern::named(&self.pattern, self.read_percent).map_err(Failure::usage)?,
            sizes: self.io_size.clone(),
            depth: self.depth,
            lanes,
            range: self.blocks.map(|blocks| (self.first.unwrap_or(0), blocks)),
            regions: self.regions.map(|regions| match regions {
                RegionsArgument::Shared => Regions::Shared,
                RegionsArgument::Own => Regions::Own,
            }),
            distribution: self.distribution,
            pace: match self.rate {
                Some(rate_per_s) => Pace::Open { rate_per_s, arrival: self.arrival },
                None => Pace::Closed,
            },
            stop: Stop { runtime, operations: self.operations, bytes: self.bytes },
            warm_up: self.warm_up,
            verify: self.verify,
            fill: self.fill,
            seed: self.seed,
        })
    }
}

impl ConnectionArguments {
    fn options(&self, workload: &Workload, address: &Address) -> Result<Options, Failure> {
        let too_many = |what: &str, count: u32, limit: u16| {
            Failure::usage(format!("{what} is {count}, but at most {limit} is possible"))
        };
        let limit = Options::DEPTH_MAX;
        let depth = u16::try_from(workload.depth).ok().filter(|depth| *depth <= limit);
        let reconnect = ReconnectSettings::default().with_give_up_after(self.ctrl_loss_timeout);
        let replay = match self.replay {
            Replay::All => ReplayPolicy::Idempotent,
            Replay::Reads => ReplayPolicy::ReadsOnly,
        };
        let options = self
            .host
            .options(HostOptions::ANSWER, address)?
            .with_lanes(u16::try_from(workload.lanes).map_err(|_| too_many("-P", workload.lanes, u16::MAX))?)
            .with_depth(depth.ok_or_else(|| too_many("-q", workload.depth, limit))?)
            .with_reconnect(reconnect)
            .with_replay(replay)
            .tuned(|tuning| {
                tuning.doorbell = self.doorbell.default;
                tuning.read_doorbell = self.doorbell.read;
                tuning.poll_doorbell = self.doorbell.poll;
                tuning.inline_send = self.submit == Submit::Inline;
                tuning.in_place_bytes = self.in_place.map_or(tuning.in_place_bytes, clamped);
                tuning.zero_copy = self.zero_copy;
                tuning.receive = self.receive;
                tuning.spin = match self.spin {
                    SpinPolicy::Always => Duration::MAX,
                    limited => Duration::from_nanos(limited.limit_ns()),
                };
                tuning.busy_poll = BusyPoll::us(self.busy_poll);
                tuning.max_segment = self.mss;
            });
        Ok(options)
    }
}

impl OutputArguments {
    /// Checks that the results can be written, before the work begins.
    fn check(&self) -> Result<(), Failure> {
        output::check_file(self.json.as_deref())?;
        let Some(logs) = &self.logs else { return Ok(()) };
        std::fs::create_dir_all(logs)
            .map_err(|error| Failure::usage(format!("--logs: cannot make {}: {error}", logs.display())))?;
        output::check_file(Some(&logs.join("_iops.1.log")))
    }

    fn write(&self, finished: &Finished) -> Result<(), Failure> {
        let report = &finished.report;
        let detail = match self.latency {
            0 => text::Detail::Summary,
            1 => text::Detail::Percentiles,
            _ => text::Detail::Histogram,
        };
        let json = || Ok(fio_json::to_string(report, self.bins));
        let table = || {
            let share = ceiling::share_line(report).map_or_else(String::new, |line| line + "\n");
            text::table(report, detail) + &share
        };
        output::tell(table, json, self.json.as_deref())?;
        let Some(logs) = &self.logs else { return Ok(()) };
        for log in fio_logs::of(report) {
            let path = logs.join(&log.name);
            std::fs::write(&path, log.text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

/// A length in bytes, limited to 32 bits: no transfer is longer.
fn clamped(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn mss(text: &str) -> Result<MaxSegment, String> {
    text.parse().ok().and_then(MaxSegment::new).ok_or_else(|| {
        format!("expected a number of bytes, {} to {}", MaxSegment::BYTES_MIN, MaxSegment::BYTES_MAX)
    })
}

fn bytes(text: &str) -> Result<u64, load::workload::Invalid> {
    load::workload::parse_bytes(text)
}
