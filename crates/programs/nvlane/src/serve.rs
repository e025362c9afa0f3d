//! `nvlane target`: runs a target until a signal ends it.

mod connect_command;
pub(crate) mod control_calls;
mod counters;
mod device_lanes;
mod device_queues;
pub(crate) mod force_request;
mod memcached_options;
mod metrics_server;
mod pools;
pub(crate) mod state_file;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};
use command_line::exit::{Ended, Failure};
use command_line::secret_argument::source_of;
use command_line::values::cores;
use control::Control;
use host::{DoorbellPolicy, Receive, ZeroCopy};
use linux::{CoreList, SignalMask};
use reactor::{EngineKind, SpinPolicy};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use store::{Size, Spec};
use subsystem::config::{
    ConfigFile, ConfigPlace, ListenerConfig, LivePage, MemcachedAddress, MemcachedListenerConfig,
    NamespaceConfig, PoolConfig, Problem, SecretSources, SubsystemConfig, TargetConfig, Threads, TlsPolicy,
    listen_address,
};
use subsystem::identity::default_nqn;
use subsystem::machine::Machine;
use subsystem::operator::{ChangeOutcome, Report, ReportLine, RunningListener};
use subsystem::placement_policy::PlacementPolicy;
use subsystem::server::{StartError, Target};
use subsystem::slow_threshold::SlowThreshold;
use wire::discovery::IO_PORT;
use wire::nqn::Nqn;

use self::control_calls::{Places, WaitingCall};
use self::device_queues::DeviceQueues;
use self::metrics_server::MetricsServer;
use self::pools::Pools;
use self::state_file::{StateFile, monotonic_ns};
use crate::disk_path::disk_path;
use crate::local_address::{from_elsewhere, from_here};
use crate::service_manager::ServiceManager;
use crate::{memory_limit, run};

#[derive(Debug, Args)]
#[command(after_help = "\
Without a configuration file, --namespace lists what is served, under one NQN:
  nvlane target --namespace ram:1G
  nvlane target --listen 0.0.0.0:4420 --namespace 'file:/srv/disk.img?size=100G'
  nvlane target --listen 127.0.0.1:0 --namespace null:1T --run 'nvlane perf $NVLANE_ADDR'

Options of a namespace follow a ?, separated by &. Sizes end in K, M, G or T:
  lba=BYTES      block size, 512 to 65536                        [default: 4096, a device's own]
  size=SIZE      (file, kv:file) create the file with this size if it does not exist; a file of blocks may grow
  uuid=UUID      UUID of the namespace                           [default: kept with the file, else generated]
  readonly       writes are refused
  small          (ram) use small pages only: takes less memory if written sparsely     [default: huge pages if available]
  prefault       (kv) a thread touches the memory ahead of its use, so that no command waits for pages
  evict=none     (kv:ram) a full namespace refuses to store    [default: evict the least used pairs]
  item=SIZE      (kv) longest value of memcached clients, 1K to 256M          [default: 1M]
  flush          (kv) allow memcached clients to remove everything with flush_all
  sparse         (kv:file) a new file gets space when it is written       [default: all of it at once]
  memory=SIZE    (kv:file) memory for the index and cached values [default: a quarter of the file]
                 (kv:rados) memory in front of the pool           [default: 256M]
  sync=WHEN      (kv:file) answer when the change survives a power cut (always), or at once, and it survives
                 some milliseconds later (batch) or after a Flush (none)  [default: always]
  conf=PATH, id=NAME, cluster=NAME, namespace=NAME
                 (rbd, kv:rados) Ceph's configuration file, the user client.NAME, the cluster's name, the namespace of the pool
                 (of keys, unless given: nvlane)
  create=SIZE    (rbd) create the image with this size if it does not exist
  lock=HOW       (rbd) an exclusive lock that another client has: wait up to 45 s until it is given up or its holder
                 is known to be dead (acquire), do not wait (refuse), take it (break)  [default: acquire]
                 (kv:rados) an owner of the keys that does not renew its lease: wait 30 s (acquire), do not wait (refuse)
  socket=PATH    (nbd+unix) the socket of the NBD server
  connections=N  (nbd) connections at most, if the server takes several for one client       [default: 64]
  deadline=TIME  (rbd, nbd, vhost-user) a command that the storage does not answer for so long ends with a path error [default: 25s]
  delay=[KIND:]TIME[-TIME], error=[KIND:]RATE, limit=RATE, trace
                                  filters for tests, such as delay=read:50us-2ms, error=write:1/1000,as=nospace, limit=10000iops,200M/s

Lanes (queue pairs) are placed on reactors (threads) by load: each on the reactor with the fewest lanes. --placement napi keeps all \
lanes of one device queue on one reactor, which with --busy-poll reads that queue itself; cpu places lanes on the core of their \
interrupts; queue places queue n of each host on reactor n - 1. Where the property is unknown (loopback has no device queue), \
placement falls back to load. --state FILE shows the placements, and which busy-poll settings the kernel granted.

--control SOCKET lets `nvlane ctl` see and change everything without an editor: `nvlane ctl namespace add --size 1G`. Changes are kept in \
--changes FILE and made again at the next start; where the configuration file was edited since, the file wins. `nvlane ctl diff` shows what \
differs from the file. --control-tls does the same for callers on other machines, each with a key of its own: \
`--control-tls 192.0.2.1:9421 --control-key csi=/etc/nvlane/csi.key`.

--audit FILE records which hosts were accepted and which were refused: {\"time\":…,\"event\":\"connect_refused\",\"peer\":…,\"host\":…,\"status\":…}. It has \
no secrets, its text is printable ASCII, and each kind of line is limited to 500 at once and 10 per second: lines_omitted counts the \
others. If the file cannot be written, lines are lost and the target continues to serve.

SIGHUP rereads the configuration and all secrets, also those of options, applies the differences, reopens closed namespaces and the audit \
log, and follows files and devices that have grown; `nvlane reload` sends it and prints the outcome. It removes no namespace that hosts \
are connected to (`nvlane reload --force` does). SIGUSR2 only opens the audit log \
again, for logrotate. SIGUSR1 writes the counters and the phases of command latency of each lane \
to the log, and the state to --state FILE. SIGTERM and SIGINT end the target once commands in flight have ended; with --run, \
SIGTERM is passed on to the command, and the target ends with it.")]
pub(crate) struct TargetArguments {
    /// Configuration file (TOML); `nvlane check` finds mistakes in it.
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["nqn", "namespace"])]
    config: Option<PathBuf>,
    /// Address that hosts connect to; port 0 takes a free one, and a link-local address needs its interface, as in
    /// [fe80::1%eth0]:4420. May be given several times. [default: 127.0.0.1:4420, and 127.0.0.1:8009 for discovery] Port
    /// 8009 is for discovery only, unless ?subsystems follows it.
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Vec<String>,
    /// NQN of the subsystem. [default: generated from this machine and the first --listen]
    #[arg(long, value_name = "NQN")]
    nqn: Option<Nqn>,
    /// Identifies this machine in generated NQNs, serial numbers and UUIDs: for containers and cloned machines, which
    /// share /etc/machine-id. [default: a hash of /etc/machine-id and the hardware]
    #[arg(long, value_name = "ID", env = "NVLANE_MACHINE_ID", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    machine: Option<String>,
    /// A namespace: ram:SIZE, null:SIZE, file:PATH?size=SIZE, device:PATH, pool:DIR/VOLUME, rbd:POOL/IMAGE,
    /// nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH, vhost-user:SOCKET, kv:ram:SIZE, kv:file:PATH?size=SIZE or kv:rados:POOL, followed by options such as ?lba=512&readonly (see below). May be given several times.
    #[arg(long, value_name = "SPEC")]
    namespace: Vec<Spec>,
    /// A pool of volumes: a directory, on XFS or btrfs for clones and snapshots. Its volumes are made with `nvlane ctl volume`
    /// and served as pool:NAME/VOLUME. May be given several times; `[[pool]]` of the configuration file has more settings.
    #[arg(long, value_name = "NAME=DIR")]
    pool: Vec<PoolConfig>,
    /// File with a secret (DHHC-1:…, see `nvlane keys generate`) that hosts must have, or keyring:NAME, a key in the
    /// kernel's keyrings: each queue authenticates before anything else. Secrets of single hosts are in the
    /// configuration file.
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    dhchap_secret: Option<PathBuf>,
    /// File with the secret with which the target authenticates to hosts that require it, or keyring:NAME.
    #[arg(long, value_name = "FILE", requires = "dhchap_secret", conflicts_with = "config")]
    dhchap_ctrl_secret: Option<PathBuf>,
    /// Whether hosts use TLS 1.3: off, allowed (cleartext connections are accepted too and are not protected),
    /// concatenated (cleartext only to generate a key), or required. With allowed, hosts with a secret may
    /// generate a key of their own (`--concat`, secure channel concatenation); with concatenated, hosts without another
    /// key must generate one, and discovery-only listeners allow TLS. [default: off]
    #[arg(long, value_name = "POLICY", conflicts_with = "config")]
    tls: Option<TlsPolicy>,
    /// File with the pre-shared key of TLS (NVMeTLSkey-1:…, see `nvlane keys generate`) for all hosts, or keyring:NAME.
    /// Keys of single hosts are in the configuration file.
    #[arg(long, value_name = "FILE", requires = "tls", conflicts_with = "config")]
    tls_key: Option<PathBuf>,
    /// Address that memcached clients connect to, or unix:PATH[?mode=0666] for a Unix socket; they use the first kv
    /// namespace. With ?partitions behind PORT there is a port for each reactor, PORT and those behind it, each with keys
    /// of its own: for clients that spread keys over servers. May be given several times.
    #[arg(long, value_name = "ADDR:PORT")]
    memcached: Vec<MemcachedAddress>,
    #[command(flatten)]
    memcached_trust: memcached_options::MemcachedOptions,
    /// One thread on each of these cores, such as 0,2-5. [default: all, or as many as the target's classes of device
    /// queues have queues]
    #[arg(long, value_name = "LIST", value_parser = cores)]
    cores: Option<CoreList>,
    /// How threads wait and do storage I/O. [default: io_uring if it is available]
    #[arg(long, value_name = "ENGINE")]
    engine: Option<Engine>,
    /// When waiting responses are sent: immediate, turn, `fixed[:COMMANDS,BYTES,MICROSECONDS]` or
    /// `adaptive[:MICROSECONDS]`. [default: adaptive]
    #[arg(long, value_name = "POLICY")]
    doorbell: Option<DoorbellPolicy>,
    /// Whether idle threads spin before they sleep: auto (as long as spinning has paid lately), always, or never.
    /// [default: auto]
    #[arg(long, value_name = "WHEN")]
    spin: Option<SpinPolicy>,
    /// How lanes are assigned to reactors: load, napi, cpu or queue. [default: load]
    #[arg(long, value_name = "POLICY")]
    placement: Option<PlacementPolicy>,
    /// Time that waits poll the network device before they sleep, up to 10000; 0 is off. [default: 0]
    #[arg(long, value_name = "USEC")]
    busy_poll: Option<u32>,
    /// Minimum size of write data that is received straight into its buffer, without a copy. [default: 16K]
    #[arg(long, value_name = "BYTES", value_parser = size)]
    in_place: Option<Size>,
    /// Minimum response size for zero-copy send, such as 64K; `off`; or `auto`: only on routes that leave this machine,
    /// disabled once the kernel reports that it copied anyway. [default: auto]
    #[arg(long, value_name = "SIZE")]
    zero_copy: Option<ZeroCopy>,
    /// Write a JSON snapshot of the target's state and counters to this file: at start, on SIGUSR1 and SIGHUP, when
    /// storage has changed, and at exit. `nvlane reload` finds the target by it.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Append a JSON line to this file for each host that connects, authenticates, is refused (and why) or leaves. SIGUSR2
    /// opens the file again, for logrotate.
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
    /// Unix socket of `nvlane ctl` and of SPDK's tools, which see and change what is served; for this user and root only.
    /// Changes are applied as a reload applies them.
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Address at which callers on other machines do what `nvlane ctl` does, over TLS 1.3: `nvlane ctl --control
    /// tls://NAME@HOST:PORT`. Only callers with a --control-key are admitted. [port: 9421]
    #[arg(long, value_name = "ADDR:PORT", value_parser = control_calls::address)]
    control_tls: Option<SocketAddr>,
    /// A caller of --control-tls and the file with its pre-shared key (NVMeTLSkey-1:…, see `nvlane keys generate --tls`), or
    /// keyring:NAME. May be given several times.
    #[arg(long, value_name = "NAME=FILE")]
    control_key: Vec<String>,
    /// File that keeps the changes made with `nvlane ctl` over the configuration file, which stays untouched.
    /// [default: changes.json in systemd's state directory, else the configuration file's name with .changes behind it]
    #[arg(long, value_name = "FILE")]
    changes: Option<PathBuf>,
    /// Serve metrics for Prometheus at http://ADDR:PORT/metrics, and /healthz and /readyz for probes. They show the NQNs of
    /// hosts to everyone who reaches the address. [default: off; port 9420]
    #[arg(long, value_name = "ADDR:PORT", value_parser = metrics_server::address)]
    metrics: Option<SocketAddr>,
    /// Log each command that takes this long or longer in the target, such as 10ms, with the time of each phase; also
    /// commands that are still under way. [default: off]
    #[arg(long, value_name = "TIME")]
    slow: Option<SlowThreshold>,
    /// Who sees the live page at http://ADDR:PORT/ of --metrics (rates, latency, hosts, namespaces; it changes nothing):
    /// loopback (users of this machine; from another one through ssh -L), any (everyone who reaches the address; there is no
    /// password), or off. [default: loopback]
    #[arg(long, value_name = "WHO")]
    live_page: Option<LivePage>,
    /// Directory with the records of `nvlane adq`: connections get the priority of their recorded class, and the log and
    /// the state file report what is out of line.
    #[arg(long, value_name = "DIR", default_value = adq::journal::DIRECTORY, env = "NVLANE_ADQ_RECORD")]
    adq_record: PathBuf,
    /// How bytes are received, for comparison: everything available into one warm buffer (staging), or PDU by PDU, with
    /// one call per header or data (pdu). [default: staging]
    #[arg(long, value_name = "HOW")]
    receive: Option<Receive>,
    /// Run this command with the target's address in $NVLANE_ADDR, and exit with its exit code. A single word is a line
    /// for the shell.
    #[arg(long, value_name = "CMD", num_args = 1.., allow_hyphen_values = true)]
    run: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Engine {
    /// One io_uring for each thread.
    Uring,
    /// epoll, and worker threads for storage.
    Epoll,
}

/// Interval at which files and devices are checked; an idle target wakes only for that.
const LOOK_INTERVAL: Duration = Duration::from_secs(3);

/// Interval at which the device queues of a layout are compared with it.
const DEVICE_QUEUES_INTERVAL: Duration = Duration::from_secs(30);

/// Events of the target's main thread.
enum Wake {
    Signal(i32),
    CommandEnded(std::io::Result<std::process::ExitStatus>),
    Call(WaitingCall),
}

/// Runs a target in a process whose main thread blocks all signals. `mask` is the one that the process was started with.
pub(crate) fn target(arguments: &TargetArguments, mask: SignalMask) -> Ended {
    let passed = linux::take_passed_sockets();
    let (wakes, wake) = channel();
    let is_started = handle_signals(mask, wakes.clone())?;
    let manager = ServiceManager::of_environment();
    let config_path = arguments.config.clone();
    let file = config_path.as_deref().map(ConfigFile::read).transpose().map_err(Failure::usage)?;
    let base = configure(arguments, file.as_ref())?;
    StateFile::check(arguments.state.as_deref())?;
    let places = Places::open(&base)?;
    let control = control_calls::start(&base, config_path.as_deref())?;
    let config = control.config().clone();
    // Fast while the process has few threads.
    linux::reserve_descriptors(descriptor_count(&config));
    end_with_any_reactor();
    warn_about_memory(&config);
    // Positions are those of the file.
    let located = file.as_ref().filter(|_| config == base);
    // Before storage is opened: probes see that the target is starting.
    let metrics = MetricsServer::start(&config.metrics).map_err(|why| metrics_failure(why, located))?;
    let target = Target::start(&config).map_err(|error| failure(&error, located))?;
    is_started.store(true, Ordering::Relaxed);
    announce(&target, &config);
    crate::service_manager::warn_about_unused(&passed, &target);
    metrics.begin(target.observer());
    if let Some(watch) = manager.watch(target.observer()).context("watchdog of the service manager")? {
        start_thread(watch)?;
    }
    places.serve(&target, &metrics, &wakes)?;

    let serving = Serving { arguments, config: base, mask, manager };
    let device_queues = DeviceQueues::new(&arguments.adq_record);
    let pools = Pools::new(&config.pools);
    let file = StateFile::new(arguments.state.as_deref());
    serving.run(Parts { target, control, places, metrics, file, device_queues, pools }, wakes, &wake)
}

/// Starts the thread that takes the signals of this process: the others, which inherit the mask of the main thread, have
/// none. Until the returned flag is set, SIGTERM and SIGINT end the process at once, whatever its start waits for; the other
/// signals wait for the end of the start.
fn handle_signals(mask: SignalMask, wakes: Sender<Wake>) -> anyhow::Result<Arc<AtomicBool>> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2]).context("signal handlers")?;
    let is_started = Arc::new(AtomicBool::new(false));
    let has_started = Arc::clone(&is_started);
    start_thread(move || {
        mask.restore();
        for signal in signals.forever() {
            if matches!(signal, SIGINT | SIGTERM) && !has_started.load(Ordering::Relaxed) {
                tracing::info!("ending: the target had not started");
                // Returns only if it fails.
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
            let _ = wakes.send(Wake::Signal(signal));
        }
    })?;
    Ok(is_started)
}

fn warn_about_memory(config: &TargetConfig) {
    if let Some(warning) = memory_limit::warning(config) {
        tracing::warn!("{warning}");
    }
}

/// Starts a thread beside the reactors.
pub(crate) fn start_thread(work: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    std::thread::Builder::new()
        .spawn(work)
        .context("cannot start a thread: check the user's limit (ulimit -u)")?;
    Ok(())
}

/// Descriptors that a target may need: its files, and all connections that the limits allow.
pub(crate) fn descriptor_count(config: &TargetConfig) -> u64 {
    const FILES: u64 = 1024;
    let limits = &config.limits;
    FILES + u64::from(limits.connection_count_max) + u64::from(limits.memcached_connection_count_max)
}

/// Ends the process if a reactor panics: the other reactors would wait for it forever. A supervisor can restart the
/// target.
fn end_with_any_reactor() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        if std::thread::current().name().is_some_and(|name| name.starts_with("reactor-")) {
            std::process::abort();
        }
    }));
}

/// A started target in its process.
struct Serving<'a> {
    arguments: &'a TargetArguments,
    /// As it was started, without the changes of control calls.
    config: TargetConfig,
    /// The signal mask that the process was started with.
    mask: SignalMask,
    manager: ServiceManager,
}

/// What signals and calls change.
struct Parts {
    target: Target,
    control: Control,
    places: Places,
    metrics: MetricsServer,
    file: StateFile,
    device_queues: DeviceQueues,
    pools: Pools,
}

impl Parts {
    fn write_state(&mut self) {
        self.file.write(&self.target, &self.device_queues, self.pools.states());
    }

    /// Whether something can change without the target.
    fn has_storage_to_watch(&self) -> bool {
        self.target.has_storage_to_watch() || self.pools.has_any()
    }

    /// Returns whether anything has changed.
    fn look_after_storage(&mut self) -> bool {
        let of_pools = log_report("storage", &self.pools.look());
        self.metrics.note_pools(self.pools.states());
        log_report("storage", &self.target.look_after_storage()) || of_pools
    }

    /// Returns whether anything has changed.
    fn look_at_device_queues(&mut self) -> bool {
        self.device_queues.look(&self.target)
    }
}

impl Serving<'_> {
    /// Waits for signals and the end of `--run`'s command, if there is one.
    fn run(&self, mut parts: Parts, wakes: Sender<Wake>, wake: &Receiver<Wake>) -> Ended {
        let mut code = ExitCode::SUCCESS;
        parts.look_at_device_queues();
        if parts.pools.has_any() {
            parts.look_after_storage();
        }
        parts.write_state();
        self.tell_ready(&parts.target, "");
        // It may read the state.
        let command = self.start_command(&parts.target, parts.control.config(), wakes)?;
        let mut next_look = Instant::now() + LOOK_INTERVAL;
        let mut next_device_look = Instant::now() + DEVICE_QUEUES_INTERVAL;
        loop {
            if parts.has_storage_to_watch() && Instant::now() >= next_look {
                if parts.look_after_storage() {
                    parts.write_state();
                }
                next_look = Instant::now() + LOOK_INTERVAL;
            }
            if parts.device_queues.has_any() && Instant::now() >= next_device_look {
                if parts.look_at_device_queues() {
                    parts.write_state();
                }
                next_device_look = Instant::now() + DEVICE_QUEUES_INTERVAL;
            }
            let looks = [
                parts.has_storage_to_watch().then_some(next_look),
                parts.device_queues.has_any().then_some(next_device_look),
            ];
            match next_wake(wake, looks.into_iter().flatten().min())? {
                None => {}
                Some(Wake::Signal(SIGHUP)) => {
                    let is_forced = force_request::take(self.arguments.state.as_deref());
                    self.reload_with(&mut parts, is_forced);
                }
                Some(Wake::Call(waiting)) => {
                    let answer = match waiting.call.is_reload() {
                        true => waiting.call.reload_is_forced().map(|is_forced| {
                            let report = self.reload_with(&mut parts, is_forced);
                            parts.control.answer_reload(&report)
                        }),
                        false => control_calls::perform(&waiting, &mut parts),
                    };
                    if waiting.call.is_change() && answer.is_ok() {
                        self.tell_ready(&parts.target, "");
                        parts.write_state();
                    }
                    waiting.answer(answer);
                }
                Some(Wake::Signal(SIGUSR1)) => {
                    counters::log(&parts.target);
                    parts.write_state();
                }
                Some(Wake::Signal(SIGUSR2)) => {
                    if !log_report("SIGUSR2", &parts.target.reopen_audit()) {
                        tracing::info!("SIGUSR2: audit log reopened if configured");
                    }
                    parts.write_state();
                }
                Some(Wake::Signal(signal)) => match command {
                    None => break,
                    // The target ends with the command. The terminal sends SIGINT to both, but SIGTERM only reaches the
                    // parts.target.
                    Some(command) if signal == SIGTERM => drop(kill_process(command, Signal::TERM)),
                    Some(_) => {}
                },
                Some(Wake::CommandEnded(status)) => {
                    code = ExitCode::from(run::code(status.context("the command")?));
                    break;
                }
            }
        }
        parts.metrics.begin_end();
        self.manager.tell(format_args!("STOPPING=1\nSTATUS=waiting for commands in flight"));
        parts.write_state();
        // Refused and closed connections are reported even if no state was requested.
        if let Some(state) = parts.target.state().filter(|state| !state.connections.complaints.is_empty()) {
            counters::tell_connections(&state);
        }
        tracing::info!("ending: waiting for commands in flight");
        let lanes_left = parts.target.stop().context("target failed")?;
        if lanes_left > 0 {
            tracing::warn!(lanes_left, "some lanes did not end in time and were closed");
        }
        Ok(code)
    }

    /// Reloads, and notifies everyone of the outcome.
    fn reload_with(&self, parts: &mut Parts, is_forced: bool) -> Report {
        self.manager.tell(format_args!("RELOADING=1\nMONOTONIC_USEC={}", monotonic_ns() / 1000));
        parts.file.begin_reload();
        parts.target.keep_used(!is_forced);
        let report = self.reload(parts);
        parts.file.end_reload(&report);
        parts.metrics.note_reload(report.is_complete());
        parts.look_at_device_queues();
        // Before the outcome is there: `nvlane reload`, the reload of a systemd unit, ends with that.
        let told = if report.is_complete() { "" } else { "; the last reload left changes undone" };
        self.tell_ready(&parts.target, told);
        parts.write_state();
        report
    }

    /// Starts the command of `--run`, if there is one, and a thread that waits for its end.
    fn start_command(
        &self,
        target: &Target,
        config: &TargetConfig,
        wakes: Sender<Wake>,
    ) -> anyhow::Result<Option<Pid>> {
        if self.arguments.run.is_empty() {
            return Ok(None);
        }
        let memcached = target.memcached().first().map_or_else(String::new, |address| {
            address.ip().map_or_else(|| address.to_string(), |ip| from_here(ip).to_string())
        });
        let variables = [("NVLANE_ADDR", address(target, config)), ("NVLANE_MEMCACHED", memcached)];
        let mut child = self.mask.with(|| run::start(&self.arguments.run, &variables))?;
        let command = Pid::from_raw(i32::try_from(child.id()).unwrap_or(0));
        start_thread(move || drop(wakes.send(Wake::CommandEnded(child.wait()))))?;
        Ok(command)
    }

    /// Notifies the service manager that the target serves, with the address.
    fn tell_ready(&self, target: &Target, more: &str) {
        let subsystems = target.running().subsystems.values();
        let namespace_count: usize = subsystems.map(|subsystem| subsystem.namespaces.len()).sum();
        let addresses: Vec<String> =
            target.listeners().iter().map(|listener| listener.address.to_string()).collect();
        let addresses = addresses.join(", ");
        self.manager.tell(format_args!("READY=1\nSTATUS={namespace_count} namespaces at {addresses}{more}"));
    }

    fn reload(&self, Parts { target, control, places, metrics, pools, .. }: &mut Parts) -> Report {
        let wanted = match &self.arguments.config {
            Some(path) => ConfigFile::read(path).map_err(|errors| errors.to_string()).and_then(|file| {
                configure(self.arguments, Some(&file)).map_err(|failure| failure.to_string())
            }),
            // The options stay as they are, but not the files with secrets that they name.
            None => Ok(self.config.clone()),
        };
        let wanted = wanted.and_then(|wanted| control.rebase(&wanted));
        let report = match wanted {
            Ok(dropped) => {
                warn_about_memory(control.config());
                let mut report = target.reload(control.config());
                let line = |text| ReportLine { outcome: ChangeOutcome::Done, text };
                report.lines.splice(..0, dropped.iter().map(control_calls::dropped_line).map(line));
                report.lines.extend(places.follow(control.config()));
                report.lines.extend(metrics.follow(&control.config().metrics));
                report.lines.extend(pools.refusals(&control.config().pools));
                report.lines.extend(pools.follow(&control.config().pools));
                report
            }
            Err(errors) => {
                let failed =
                    |text: &str| ReportLine { outcome: ChangeOutcome::Failed, text: text.to_owned() };
                let mut lines: Vec<ReportLine> = errors.lines().map(failed).collect();
                lines.push(failed("the configuration was not changed"));
                // Closed namespaces are reopened whether or not the file can be read.
                lines.append(&mut target.reopen_closed().lines);
                Report { lines }
            }
        };
        if !log_report("reload", &report) {
            tracing::info!("reload: the configuration is unchanged");
        }
        if !report.is_complete() {
            tracing::warn!("reload: not every change is in place");
        }
        report
    }
}

/// Waits for the next event, or until `until`, when something is to be checked.
fn next_wake(wake: &Receiver<Wake>, until: Option<Instant>) -> anyhow::Result<Option<Wake>> {
    const GONE: &str = "the main thread has lost its event sources";
    let Some(until) = until else { return wake.recv().context(GONE).map(Some) };
    match wake.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(wake) => Ok(Some(wake)),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(error @ RecvTimeoutError::Disconnected) => Err(error).context(GONE),
    }
}

/// Logs the outcome of each change. Returns whether there was any.
fn log_report(what: &str, report: &Report) -> bool {
    for line in &report.lines {
        match line.outcome {
            ChangeOutcome::Done => tracing::info!("{what}: {}", line.text),
            ChangeOutcome::Failed | ChangeOutcome::NeedsRestart => tracing::warn!("{what}: {}", line.text),
        }
    }
    !report.lines.is_empty()
}

/// Merges the options into the file's configuration; options take precedence.
fn configure(arguments: &TargetArguments, file: Option<&ConfigFile>) -> Result<TargetConfig, Failure> {
    let mut config = match file {
        Some(file) => file.config.clone(),
        None => {
            if arguments.namespace.is_empty() && arguments.pool.is_empty() {
                return Err(Failure::usage(
                    "nothing to serve: give --namespace (ram:1G, say) or --config FILE",
                ));
            }
            let listeners = listeners(arguments)?
                .unwrap_or_else(|| ListenerConfig::usual(IpAddr::V4(Ipv4Addr::LOCALHOST)));
            let mut subsystem = SubsystemConfig::new(nqn(arguments, &listeners)?);
            subsystem.namespaces = arguments.namespace.iter().cloned().map(NamespaceConfig::new).collect();
            if let Some(host) = &arguments.dhchap_secret {
                let controller = arguments.dhchap_ctrl_secret.as_deref().map(source_of).transpose()?;
                subsystem.authentication.others = Some(SecretSources { host: source_of(host)?, controller });
            }
            let tls = arguments.tls.unwrap_or_default();
            if tls != TlsPolicy::Off {
                if let Some(lacking) = lacking_key(tls, arguments) {
                    return Err(Failure::usage(format!("--tls {tls}: {lacking}")));
                }
                subsystem.tls_keys.others = arguments.tls_key.as_deref().map(source_of).transpose()?;
            }
            TargetConfig { listeners, subsystems: vec![subsystem], ..TargetConfig::default() }
        }
    };
    if let Some(listeners) = listeners(arguments)? {
        config.listeners = listeners;
    }
    if let Some(tls) = arguments.tls {
        for listener in &mut config.listeners {
            // Discovery does not authenticate, so no host generates a key there.
            let generates_none = tls == TlsPolicy::Concatenated && !listener.subsystems;
            listener.tls = if generates_none { TlsPolicy::Allowed } else { tls };
        }
    }
    if let Some(machine) = &arguments.machine {
        config.machine = Some(machine.clone());
    }
    if !arguments.memcached.is_empty() {
        config.memcached = arguments.memcached.iter().cloned().map(MemcachedListenerConfig::from).collect();
    }
    arguments.memcached_trust.apply(&mut config.memcached)?;
    if let Some(cores) = &arguments.cores {
        config.reactors.threads = Threads::Cores(cores.clone());
    }
    if let Some(engine) = arguments.engine {
        config.reactors.engine = Some(match engine {
            Engine::Uring => EngineKind::Uring,
            Engine::Epoll => EngineKind::Epoll,
        });
    }
    if let Some(policy) = arguments.doorbell {
        config.reactors.doorbell = policy;
    }
    if let Some(policy) = arguments.spin {
        config.reactors.spin = policy;
    }
    if let Some(policy) = arguments.placement {
        config.reactors.placement = policy;
    }
    if let Some(wait_us) = arguments.busy_poll {
        config.reactors.busy_poll.wait_us = wait_us;
    }
    if let Some(receive) = arguments.receive {
        config.reactors.receive = receive;
    }
    if let Some(Size(bytes)) = arguments.in_place {
        config.reactors.in_place_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    }
    if let Some(zero_copy) = arguments.zero_copy {
        config.reactors.zero_copy = zero_copy;
    }
    if let Some(file) = &arguments.audit {
        config.audit.file = Some(file.clone());
    }
    for (given, path) in
        [(&arguments.control, &mut config.control.socket), (&arguments.changes, &mut config.control.changes)]
    {
        if let Some(given) = given {
            *path = Some(std::path::absolute(given).map_err(Failure::usage)?);
        }
    }
    if let Some(address) = arguments.control_tls {
        config.control.tls = Some(address);
    }
    for text in &arguments.control_key {
        let (name, source) = control_calls::caller_key(text).map_err(Failure::usage)?;
        config.control.tls_keys.insert(name, source);
    }
    if let Some(slow) = arguments.slow {
        config.log.slow = slow;
    }
    if let Some(address) = arguments.metrics {
        config.metrics.address = Some(address);
    }
    if let Some(live_page) = arguments.live_page {
        config.metrics.live_page = live_page;
    }
    config.pools.extend(arguments.pool.iter().cloned());
    config.resolve_pools();
    let problems = config.check();
    if problems.is_empty() {
        take_reactors_of_layouts(&mut config, &arguments.adq_record);
        return Ok(config);
    }
    let lines: Vec<String> = problems.into_iter().map(|problem| problem.message).collect();
    Err(Failure::usage(lines.join("\n")))
}

/// As many reactors as the target's classes of device queues have queues, unless their number or cores are given.
fn take_reactors_of_layouts(config: &mut TargetConfig, directory: &Path) {
    if config.reactors.threads != Threads::Auto {
        return;
    }
    let listeners = config.listeners.iter().map(|listener| listener.address);
    let addresses =
        listeners.chain(config.memcached.iter().filter_map(|listener| listener.address.ip())).collect();
    let allowed = CoreList::allowed().map(|list| list.cores().to_vec()).unwrap_or_default();
    if let Some(cores) = device_queues::cores_of_layouts(directory, addresses, &allowed) {
        tracing::info!(%cores, "starting one reactor per device queue of the layout's classes");
        config.reactors.threads = Threads::Cores(cores);
    }
}

/// The key or secret that a policy of TLS needs and the options do not name.
fn lacking_key(tls: TlsPolicy, arguments: &TargetArguments) -> Option<&'static str> {
    let (has_key, has_secret) = (arguments.tls_key.is_some(), arguments.dhchap_secret.is_some());
    match tls {
        TlsPolicy::Concatenated if !has_secret => {
            Some("hosts generate a key with a secret: add --dhchap-secret FILE")
        }
        TlsPolicy::Allowed if !has_key && !has_secret => {
            Some("name the file with the key: add --tls-key FILE, or --dhchap-secret FILE")
        }
        TlsPolicy::Required if !has_key => Some("name the file with the key: add --tls-key FILE"),
        _ => None,
    }
}

/// NQN of the subsystem that --namespace creates.
fn nqn(arguments: &TargetArguments, listeners: &[ListenerConfig]) -> Result<Nqn, Failure> {
    if let Some(nqn) = &arguments.nqn {
        return Ok(nqn.clone());
    }
    let first = listeners.iter().find(|listener| listener.subsystems).or(listeners.first());
    let first = first.map_or_else(|| SocketAddr::from(([0; 4], 0)), |listener| listener.address);
    let machine = Machine::chosen(arguments.machine.as_deref());
    let machine =
        machine.map_err(|error| Failure::usage(format!("{error}. Or name the subsystem with --nqn")))?;
    Ok(default_nqn(machine, first))
}

fn listeners(arguments: &TargetArguments) -> Result<Option<Vec<ListenerConfig>>, Failure> {
    if arguments.listen.is_empty() {
        return Ok(None);
    }
    let listeners: Vec<_> =
        arguments.listen.iter().map(|text| parse_listener(text)).collect::<Result<_, _>>()?;
    if !listeners.iter().any(|listener| listener.subsystems) {
        let only = &arguments.listen[0];
        return Err(Failure::usage(format!(
            "--listen {only}: port 8009 is for discovery only: add a --listen with port 4420, or write {only}?subsystems"
        )));
    }
    Ok(Some(listeners))
}

fn parse_listener(text: &str) -> Result<ListenerConfig, Failure> {
    let (place, is_for_subsystems) = match text.split_once('?') {
        None => (text, false),
        Some((place, "subsystems")) => (place, true),
        Some((_, option)) => {
            return Err(Failure::usage(format!(
                "--listen {text}: there is no option {option}: only ?subsystems can follow the port"
            )));
        }
    };
    let address =
        listen_address(place, IO_PORT).map_err(|message| Failure::usage(format!("--listen: {message}")))?;
    let mut listener = ListenerConfig::new(address);
    listener.subsystems |= is_for_subsystems;
    Ok(listener)
}

fn size(text: &str) -> Result<Size, String> {
    Size::parse(text).map_err(|(_, why)| why)
}

fn metrics_failure(message: String, file: Option<&ConfigFile>) -> Failure {
    let problem = Problem { place: ConfigPlace::Metrics, message };
    match file {
        Some(file) => Failure::usage(file.located(&[problem])),
        None => Failure::usage(problem),
    }
}

fn failure(error: &StartError, file: Option<&ConfigFile>) -> Failure {
    match (error, file) {
        (StartError::Config { problems }, Some(file)) => Failure::usage(file.located(problems)),
        (StartError::Config { .. } | StartError::Engine { .. }, _) => Failure::usage(error),
        _ => Failure::from(anyhow::anyhow!("{error}")),
    }
}

/// Address at which the command of --run reaches the first subsystem.
pub(crate) fn address(target: &Target, config: &TargetConfig) -> String {
    let serves = |listener: &&RunningListener| listener.config.subsystems;
    let listener = target.listeners().iter().find(serves).or_else(|| target.listeners().first());
    let address = listener.map_or_else(String::new, |listener| from_here(listener.address).to_string());
    match config.subsystems.first() {
        Some(subsystem) => format!("{address}/{}", subsystem.nqn),
        None => address,
    }
}

/// Logs what is served, and how a host connects to it.
fn announce(target: &Target, config: &TargetConfig) {
    for listener in target.listeners() {
        tracing::info!(
            address = %listener.address,
            subsystems = listener.config.subsystems,
            discovery = listener.config.discovery,
            "listening"
        );
    }
    for listener in target.memcached_listeners() {
        let state = listener.state();
        let (tls, authentication) = (state.tls, state.user_count.is_some());
        let client_certificates = state.client_certificates;
        tracing::info!(
            address = %state.address,
            partition = state.partition,
            tls,
            client_certificates,
            authentication,
            "listening for memcached clients"
        );
    }
    for subsystem in target.running().subsystems.values() {
        tracing::info!(nqn = %subsystem.nqn, serial = subsystem.serial, "serving");
        for (nsid, namespace) in &subsystem.namespaces {
            let storage = &namespace.spec;
            if storage.is_key_value() {
                tracing::info!(nsid = nsid.get(), %storage, uuid = %namespace.uuid, "keys and values");
            } else {
                let path = disk_path(Some(namespace.uuid), Some(namespace.nguid), None).unwrap_or_default();
                tracing::info!(nsid = nsid.get(), %storage, "on Linux hosts: {path}");
            }
        }
    }
    let engine = match target.engine() {
        EngineKind::Uring => "io_uring",
        EngineKind::Epoll => "epoll",
    };
    tracing::info!(reactors = target.reactor_count(), engine, discovery = %target.discovery_nqn(), "ready");
    let listener = target.listeners().iter().find(|listener| listener.config.subsystems);
    if let (Some(listener), Some(subsystem)) = (listener, config.subsystems.first()) {
        let address = advertised(listener);
        let (ip, port, nqn) = (address.ip(), address.port(), &subsystem.nqn);
        let namespaces = &subsystem.namespaces;
        if !namespaces.is_empty() && namespaces.iter().all(|namespace| namespace.storage.is_key_value()) {
            // With a port for each partition hosts do not see the keys.
            if !config.memcached.iter().any(|listener| listener.address.is_by_partition()) {
                tracing::info!("use it with: nvlane kv list {address}/{nqn}");
            }
        } else {
            let options = connect_command::options(listener.config.tls, subsystem);
            if let Some(command) = connect_command::insert_key(listener.config.tls, subsystem) {
                tracing::info!("give the host's kernel the TLS key with: {command}");
            }
            tracing::info!("connect with: nvme connect -t tcp -a {ip} -s {port} -n {nqn}{options}");
        }
    }
}

/// Address at which hosts reach a listener.
fn advertised(listener: &RunningListener) -> SocketAddr {
    match listener.config.advertise {
        Some(advertised) => {
            SocketAddr::new(advertised.ip, advertised.port.unwrap_or(listener.address.port()))
        }
        None => from_elsewhere(listener.address),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpStream;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use tracing::{Event, Subscriber};
    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::{Context, SubscriberExt};
    use tracing_subscriber::util::SubscriberInitExt;

    use super::*;

    const SIGABRT: i32 = 6;

    static IS_ARMED: AtomicBool = AtomicBool::new(false);

    /// Panics on the first reactor thread that logs.
    struct Trap;

    impl<S: Subscriber> Layer<S> for Trap {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            let is_reactor = std::thread::current().name().is_some_and(|name| name.starts_with("reactor-"));
            assert!(!(is_reactor && IS_ARMED.swap(false, Ordering::SeqCst)), "sprung by a reactor");
        }
    }

    #[test]
    #[ignore = "ends its process: the next test runs it in a child process"]
    fn a_target_one_of_whose_reactors_panics() {
        tracing_subscriber::registry().with(Trap).init();
        end_with_any_reactor();
        let mut subsystem = SubsystemConfig::new("nqn.2026-01.io.nvlane:disks".parse().expect("well formed"));
        subsystem.namespaces = vec![NamespaceConfig::new("ram:1M".parse().expect("well formed"))];
        let config = TargetConfig {
            listeners: vec![ListenerConfig::new("127.0.0.1:0".parse().expect("well formed"))],
            subsystems: vec![subsystem],
            ..TargetConfig::default()
        };
        let target = Target::start(&config).expect("a free port");
        IS_ARMED.store(true, Ordering::SeqCst);
        let mut peer = TcpStream::connect(target.listeners()[0].address).expect("it listens");
        // Not the start of any PDU, so the reactor logs it.
        peer.write_all(&[0xFF; 128]).expect("taken in");
        std::thread::sleep(Duration::from_secs(60));
    }

    #[test]
    fn a_target_ends_when_a_reactor_panics() {
        let name = "serve::tests::a_target_one_of_whose_reactors_panics";
        let itself = std::env::current_exe().expect("this test");
        let ended = Command::new(itself).args([name, "--exact", "--ignored", "--nocapture"]).output();
        let ended = ended.expect("it runs");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.signal(), Some(SIGABRT), "{said}");
        assert!(said.contains("sprung by a reactor"), "what panicked is said first: {said}");
    }
}
