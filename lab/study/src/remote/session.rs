//! One connection of a study server: a study, and its targets.

use std::any::Any;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use linux::CoreList;
use linux::randomness::Randomness;
use load::account::{Account, ProcessAccount, Reading};
use load::cpu;
use load::environment::Environment;
use load::workload::format_bytes;
use security::access_token::CHALLENGE_BYTES;
use security::secret::Secret;
use security::tls_key::TlsKey;
use serde_json::Value;
use tempfile::TempDir;
use wire::text::{from_hex, to_hex};

use super::device::Device;
use super::far_ceiling::FarCeiling;
use super::far_energy::FarEnergy;
use super::far_sampling::FarSampling;
use super::limits::memory_is_free;
use super::lines::{LineError, Lines};
use super::measuring::Measuring;
use super::memory_reader::memory;
use super::occupancy::Occupancy;
use super::others::FarOthers;
use super::protocol::{
    FileLoadOutcome, MachineDescription, REQUEST_BYTES_MAX, Reply, Request, SentKeys, StartCeiling,
    StartFileLoad, StartMemoryReader, StartTarget, Started, TOKEN_PURPOSE, done, own_version,
};
use super::settings::{Event, ServerSettings};
use super::unproven::Unproven;
use super::{far_file_load, memory_reader};
use crate::descriptors::target_lane_count_max;
use crate::error::Error;
use crate::file_target::FileTarget;
use crate::file_target_kind::FileTargetKind;
use crate::keys::Keys;
use crate::local_target::LocalTarget;
use crate::memory_load::MemoryLoad;
use crate::peers::PeerKind;
use crate::process::{own_memory_bytes, small_mappings_bytes};
use crate::scratch::ScratchFile;
use crate::served_options::ServedOptions;
use crate::target_options::{KeyAccess, NamespaceKind};

/// Time for a connection to prove the token.
const HELLO_TIME: Duration = Duration::from_secs(5);

/// Time without a request after which a study is lost: it sends one every second.
const SILENCE: Duration = Duration::from_secs(15);

/// Duration of the check for disturbances.
const JITTER: Duration = Duration::from_millis(20);

/// Targets of a study at a time.
const TARGET_COUNT_MAX: usize = 32;

/// Namespaces of a target.
const NAMESPACE_COUNT_MAX: usize = 4;

/// Size of the file that a study may have made, bytes.
const SCRATCH_BYTES_MAX: u64 = 1 << 30;

/// Time of an operation on a namespace, us: a target that ends waits for those in flight.
const DELAY_US_MAX: u32 = 1_000_000;

/// Serves one connection until it ends.
pub(super) fn serve(
    settings: &ServerSettings,
    occupancy: &Occupancy,
    unproven: &Unproven,
    stream: TcpStream,
    peer: SocketAddr,
    stops: &AtomicBool,
    on_event: &(dyn Fn(Event) + Sync),
) {
    let is_stopped = || stops.load(Ordering::Relaxed);
    let own_address = stream.local_addr().map(|address| address.ip().to_canonical());
    let lines = own_address.and_then(|own| Ok((own, unproven.admit(&stream, peer)?, Lines::new(stream)?)));
    let (own_address, place, mut lines) = match lines {
        Ok(lines) => lines,
        Err(error) => return on_event(Event::Refused(peer, error.to_string())),
    };
    let refused = |lines: &mut Lines, reason: String| {
        let _ = lines.send(&Reply::Refused(reason.clone()));
        on_event(Event::Refused(peer, reason));
    };
    match greet(settings, &mut lines, &is_stopped) {
        Ok(()) => drop(place),
        // The server reports how many were closed for newer ones.
        Err(_) if place.is_lost() => return,
        Err(reason) => return refused(&mut lines, reason),
    }
    let occupied = match occupancy.occupy(peer) {
        Ok(occupied) => occupied,
        Err(reason) => return refused(&mut lines, reason),
    };
    let data_address = settings.data_address.unwrap_or(own_address);
    on_event(Event::Began(peer));
    let mut session = Session {
        settings,
        data_address,
        targets: BTreeMap::new(),
        device: Device::new(settings, data_address, on_event),
        sampling: FarSampling::default(),
        energy: FarEnergy::default(),
        others: FarOthers::default(),
        beside: BTreeMap::new(),
        count: 0,
        last_port: None,
        file_load: None,
        scratch: None,
        ceiling: None,
        reader: None,
        memory: None,
        lane_count_max: target_lane_count_max(linux::allow_descriptors()),
    };
    let ended = session.run(&mut lines, peer, &is_stopped);
    // The targets have ended before the next study begins.
    drop(session);
    drop(occupied);
    let reason = match ended {
        LineError::Closed => None,
        reason => {
            let _ = lines.send(&Reply::Refused(reason.to_string()));
            Some(reason.to_string())
        }
    };
    on_event(Event::Ended(peer, reason));
}

/// Sends a challenge, and checks the proof of the token and the version.
fn greet(settings: &ServerSettings, lines: &mut Lines, is_stopped: &dyn Fn() -> bool) -> Result<(), String> {
    let told = |error: LineError| error.to_string();
    let mut challenge = [0; CHALLENGE_BYTES];
    Randomness::System.fill(&mut challenge).map_err(|error| format!("no random numbers: {error}"))?;
    let ours = own_version();
    lines.send(&Reply::Challenge { version: ours.clone(), challenge: to_hex(&challenge) }).map_err(told)?;
    let Request::Hello { version, proof } =
        lines.receive(REQUEST_BYTES_MAX, HELLO_TIME, is_stopped).map_err(told)?
    else {
        return Err("the first request has to prove the token".to_owned());
    };
    let proof = from_hex(proof.as_bytes()).unwrap_or_default();
    if !settings.token.is_proven(TOKEN_PURPOSE, &challenge, &proof) {
        return Err("wrong token".to_owned());
    }
    if version != ours {
        return Err(format!(
            "the study is of nvlane {version}, the server of nvlane {ours}: use one version"
        ));
    }
    Ok(())
}

/// A study and its targets.
struct Session<'a> {
    settings: &'a ServerSettings,
    /// Address of its targets.
    data_address: IpAddr,
    /// Before the targets that it samples.
    sampling: FarSampling,
    energy: FarEnergy,
    others: FarOthers,
    targets: BTreeMap<u32, StartedTarget>,
    // Its setting goes after the targets.
    device: Device<'a>,
    /// Other servers, and targets of the kernel and of SPDK, with numbers among those of the targets.
    beside: BTreeMap<u32, Beside>,
    /// Number of targets and other servers that it has started.
    count: u32,
    /// Port of the last one, if a range is set.
    last_port: Option<u16>,
    file_load: Option<Measuring<FileLoadOutcome>>,
    // After the targets and the load that have it open.
    scratch: Option<Scratch>,
    ceiling: Option<FarCeiling>,
    reader: Option<Measuring<memory_reader::Read>>,
    /// The memory of the reader.
    memory: Option<Arc<MemoryLoad>>,
    /// Lanes of a target and connections of a ceiling, by the limit on descriptors.
    lane_count_max: u64,
}

impl Session<'_> {
    /// Answers requests until the connection ends; returns why it ended.
    fn run(&mut self, lines: &mut Lines, peer: SocketAddr, is_stopped: &dyn Fn() -> bool) -> LineError {
        let environment = Environment::collect(Some(peer.ip().to_canonical()), JITTER);
        let mut answer = done(MachineDescription {
            data_address: self.data_address,
            cores: self.settings.cores.cores().to_vec(),
            lane_count_max: self.lane_count_max,
            environment,
            steering: self.device.steering(),
        });
        loop {
            if let Err(error) = lines.send(&answer.map_or_else(Reply::Refused, Reply::Done)) {
                return error;
            }
            answer = match lines.receive(REQUEST_BYTES_MAX, SILENCE, is_stopped) {
                Ok(request) => self.answer(request),
                Err(error) => return error,
            };
        }
    }

    fn answer(&mut self, request: Request) -> Result<Value, String> {
        match request {
            Request::Hello { .. } => Err("the study has begun already".to_owned()),
            Request::Ping => done(()),
            Request::Start(start) => done(self.start(&start)?),
            Request::Read { target } => {
                let reading = match self.beside.get(&target) {
                    Some(Beside { account: Some(account), .. }) => account.read(),
                    Some(Beside { account: None, .. }) => Some(Reading::of_kernel()),
                    None => ProcessAccount(self.target(target)?.pid()).read(),
                };
                let machine_busy_ns = cpu::of_machine().ok().map(|time| time.busy_ns());
                done(reading.map(|reading| Reading { machine_busy_ns, ..reading }))
            }
            Request::Memory { target } => done(told(own_memory_bytes(self.target(target)?.pid()))?),
            Request::State { target } => told(self.target(target)?.state()),
            Request::SmallMappings { target } => {
                done(told(small_mappings_bytes(self.target(target)?.pid()))?)
            }
            Request::Counters { target } => done(self.device.counters(self.target(target)?)?),
            Request::Steer { target: number, by } => {
                let started = self.targets.get(&number).ok_or_else(|| no_target(number))?;
                done(self.device.steer(number, &started.target, by)?)
            }
            Request::StartCeiling(start) => done(self.start_ceiling(&start)?),
            Request::AwaitCeiling => done(self.ceiling.as_mut().ok_or_else(no_ceiling)?.await_ready()?),
            Request::EndCeiling => done(self.ceiling.take().ok_or_else(no_ceiling)?.end()?),
            Request::PeerVersion { kind } => done(told(kind.peer().version())?),
            Request::StartPeer { kind, memory_mib } => done(self.start_peer(kind, memory_mib)?),
            Request::FileTarget { kind } => {
                let at = Some(self.data_address);
                done(kind.check(at).map(|_| kind.described(at)))
            }
            Request::StartFileTarget { kind, bytes, core_count } => {
                done(self.start_file_target(kind, bytes, core_count)?)
            }
            Request::StartFileLoad(start) => done(self.start_file_load(&start)?),
            Request::EndFileLoad => done(self.file_load.take().ok_or("no load runs on the file")?.end()?),
            Request::StartMemoryReader(start) => done(self.start_reader(start)?),
            Request::EndMemoryReader => done(self.reader.take().ok_or("no program reads memory")?.end()?),
            Request::StartSampling { target, measure } => {
                let pid = self.target(target)?.pid();
                done(self.sampling.start(target, pid, measure)?)
            }
            Request::EndSampling => done(self.sampling.end()?),
            Request::Energy => done(self.energy.read()?),
            Request::WatchOthers => done(self.others.watch()),
            Request::Others => done(self.others.end(self.settings.cores.cores())?),
            Request::Stop { target } if self.beside.remove(&target).is_some() => done(()),
            Request::Stop { target: number } => {
                self.sampling.end_of(number);
                let StartedTarget { target, _keys } =
                    self.targets.remove(&number).ok_or_else(|| no_target(number))?;
                let stopped = target.stop();
                self.device.release(number);
                done(told(stopped)?)
            }
        }
    }

    fn target(&self, target: u32) -> Result<&LocalTarget, String> {
        self.targets.get(&target).map(|started| &started.target).ok_or_else(|| no_target(target))
    }

    fn start(&mut self, start: &StartTarget) -> Result<Started, String> {
        self.check_count()?;
        if start.namespaces.is_empty() || start.namespaces.len() > NAMESPACE_COUNT_MAX {
            return Err(format!("a target has 1 to {NAMESPACE_COUNT_MAX} namespaces"));
        }
        let wanted_bytes =
            start.namespaces.iter().fold(0, |sum: u64, kind| sum.saturating_add(kind.memory_bytes()));
        memory_is_free("the namespaces ask", wanted_bytes)?;
        let arguments: Result<Vec<String>, String> =
            start.namespaces.iter().map(|kind| self.argument(*kind)).collect();
        let settings = self.settings;
        let cores = some_cores(&settings.cores, start.first_core, start.core_count)?;
        let port = self.free_port()?;
        let keys = start.keys.as_ref().map(kept_keys).transpose()?;
        let options = ServedOptions {
            tells: start.tells,
            memcached: if start.memcached { Some(self.free_place()?) } else { None },
            keys: keys.as_ref().map(|(keys, access)| keys.files(*access)),
            listen: SocketAddr::new(self.data_address, port).to_string(),
            arguments: vec!["--cores".to_owned(), cores],
            ..ServedOptions::of(arguments?).tuned(start.tuning)
        };
        let target = told(LocalTarget::start(&settings.program, &options))?;
        let address = target.address().to_string();
        let memcached = target.memcached.map(|place| place.to_string());
        self.count = self.count.wrapping_add(1);
        self.targets.insert(self.count, StartedTarget { target, _keys: keys.map(|(keys, _)| keys) });
        Ok(Started { target: self.count, address, memcached })
    }

    fn start_peer(&mut self, kind: PeerKind, memory_mib: u32) -> Result<Started, String> {
        self.check_count()?;
        if memory_mib == 0 {
            return Err("another server gets at least 1 MiB of memory".to_owned());
        }
        memory_is_free("another server asks", u64::from(memory_mib) << 20)?;
        let place = self.free_place()?;
        let core = self.settings.cores.cores().first().copied();
        let peer = told(kind.peer().start(place, core.as_slice(), memory_mib))?;
        Ok(self.keep(place.to_string(), Some(peer.account()), peer))
    }

    /// Keeps another server that was started. Returns what its study gets.
    fn keep(&mut self, address: String, account: Option<Arc<dyn Account>>, process: impl Any) -> Started {
        self.count = self.count.wrapping_add(1);
        self.beside.insert(self.count, Beside { account, _process: Box::new(process) });
        Started { target: self.count, address, memcached: None }
    }

    fn start_file_target(
        &mut self,
        kind: FileTargetKind,
        bytes: u64,
        core_count: u32,
    ) -> Result<Started, String> {
        self.check_count()?;
        let cores = first_cores(&self.settings.cores, core_count)?;
        let place = self.free_place()?;
        let file = self.scratch_file(bytes)?.path().to_owned();
        let target = told(FileTarget::serve(kind, (Some(place.ip()), place.port()), &file, &cores))?;
        Ok(self.keep(target.address.to_string(), target.account(), target))
    }

    fn start_file_load(&mut self, start: &StartFileLoad) -> Result<(), String> {
        self.file_load = None;
        let cores = first_cores(&self.settings.cores, start.core_count)?;
        let storage = self.scratch_file(start.bytes)?.storage();
        self.file_load = Some(far_file_load::start(start, storage, cores)?);
        Ok(())
    }

    fn start_reader(&mut self, start: StartMemoryReader) -> Result<(), String> {
        // The one before has the core.
        self.reader = None;
        let cores = self.settings.cores.cores();
        let core = *cores.get(1).ok_or("a program beside the target needs a second core of this server")?;
        let memory = memory(&mut self.memory)?;
        self.reader = Some(memory_reader::start(start, memory, core)?);
        Ok(())
    }

    fn check_count(&self) -> Result<(), String> {
        if self.targets.len() + self.beside.len() >= TARGET_COUNT_MAX {
            return Err(format!("a study has at most {TARGET_COUNT_MAX} targets at a time"));
        }
        Ok(())
    }

    /// An address for a program that does not choose a port itself.
    fn free_place(&mut self) -> Result<SocketAddr, String> {
        match self.free_port()? {
            0 => {
                let place = TcpListener::bind((self.data_address, 0)).and_then(|free| free.local_addr());
                place.map_err(|error| format!("no free port of {}: {error}", self.data_address))
            }
            port => Ok(SocketAddr::new(self.data_address, port)),
        }
    }

    /// A port of the range for the next listener; 0 without a range.
    fn free_port(&mut self) -> Result<u16, String> {
        let port = match self.settings.data_ports {
            Some(range) => range.free_port(self.data_address, self.last_port)?,
            None => 0,
        };
        self.last_port = Some(port);
        Ok(port)
    }

    fn start_ceiling(&mut self, start: &StartCeiling) -> Result<(String, String), String> {
        // The one before has its port, core and memory.
        self.ceiling = None;
        let listen = SocketAddr::new(self.data_address, self.free_port()?);
        let core = self.settings.cores.cores().first().copied();
        let (ceiling, place) = FarCeiling::start(start, listen, core, self.lane_count_max)?;
        self.ceiling = Some(ceiling);
        Ok(place)
    }

    /// The argument of `--namespace`; makes the file that it needs, unless there is one of this size.
    fn argument(&mut self, kind: NamespaceKind) -> Result<String, String> {
        if let NamespaceKind::Null { delay_us: Some(delay_us), .. } = kind
            && delay_us > DELAY_US_MAX
        {
            return Err(format!(
                "an operation takes at most {DELAY_US_MAX} us, and this asks for {delay_us}"
            ));
        }
        let NamespaceKind::Scratch { bytes } = kind else {
            return kind.argument().ok_or_else(|| "no namespace".to_owned());
        };
        Ok(format!("file:{}", self.scratch_file(bytes)?.path().display()))
    }

    /// The file of the study with this size; makes it, unless it is there.
    fn scratch_file(&mut self, bytes: u64) -> Result<&ScratchFile, String> {
        if !(1..=SCRATCH_BYTES_MAX).contains(&bytes) {
            return Err(format!(
                "the file of a study has at most {} bytes, and this asks for {bytes}",
                format_bytes(SCRATCH_BYTES_MAX)
            ));
        }
        if self.scratch.as_ref().is_none_or(|scratch| scratch.bytes != bytes) {
            // The old one goes first: there is one at a time.
            self.scratch = None;
            self.scratch = Some(Scratch::new(bytes)?);
        }
        self.scratch.as_ref().map(|scratch| &scratch.file).ok_or_else(|| "no file".to_owned())
    }
}

/// A target and the files of its keys, which go after it.
struct StartedTarget {
    target: LocalTarget,
    _keys: Option<Keys>,
}

/// Another server. It ends with this value.
struct Beside {
    /// The account of its process; `None` of the kernel's target.
    account: Option<Arc<dyn Account>>,
    _process: Box<dyn Any>,
}

/// The keys that a study has sent, in files.
fn kept_keys(sent: &SentKeys) -> Result<(Keys, KeyAccess), String> {
    let wrong = |what: &str, error: &dyn std::error::Error| format!("{what} of a target: {error}");
    let tls = sent.tls_key.parse::<TlsKey>().map_err(|error| wrong("the key of TLS", &error))?;
    let secret = sent.secret.parse::<Secret>().map_err(|error| wrong("the secret", &error))?;
    let keys = Keys::keep(tls, secret).map_err(|error| format!("no files for keys: {error}"))?;
    Ok((keys, sent.access))
}

/// A number of cores of a list from one of them on, as an argument; all that follow without a number.
fn some_cores(cores: &CoreList, first: u32, count: Option<u32>) -> Result<String, String> {
    let all = cores.cores();
    let rest = all.get(first as usize..).unwrap_or_default();
    let some = match count {
        Some(count) => rest.get(..count as usize).unwrap_or_default(),
        None => rest,
    };
    if some.is_empty() {
        let wanted = match (first, count) {
            (0, Some(count)) => format!("{count} cores"),
            (_, Some(count)) => format!("{count} cores behind the first {first}"),
            (_, None) => format!("cores behind the first {first}"),
        };
        return Err(format!("a target on {wanted}: this server has {} for targets", all.len()));
    }
    Ok(some.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
}

/// The first cores of a list, this number of them or all that there are.
fn first_cores(cores: &CoreList, count: u32) -> Result<Vec<usize>, String> {
    if count == 0 {
        return Err("this needs a core of the server".to_owned());
    }
    Ok(cores.cores().iter().copied().take(count as usize).collect())
}

/// The result of a request, with its error as the text that the study receives.
fn told<T>(result: Result<T, Error>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

fn no_ceiling() -> String {
    "there is no far end of a ceiling".to_owned()
}

fn no_target(target: u32) -> String {
    format!("there is no target {target}")
}

/// A file of a study, in a directory that only this user can read.
struct Scratch {
    // Before its directory.
    file: ScratchFile,
    _directory: TempDir,
    bytes: u64,
}

impl Scratch {
    fn new(bytes: u64) -> Result<Self, String> {
        let directory = tempfile::Builder::new().prefix("nvlane-study-serve-").tempdir();
        let directory = directory.map_err(|error| format!("no directory for a file: {error}"))?;
        let file = ScratchFile::new(directory.path(), bytes).map_err(|error| error.to_string())?;
        Ok(Self { file, _directory: directory, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_gets_cores_of_the_list_and_no_more_than_there_are() {
        let cores: CoreList = "5,2,7".parse().unwrap();
        let of = |first, count| some_cores(&cores, first, count);
        assert_eq!(of(0, None).unwrap(), "5,2,7");
        assert_eq!(of(0, Some(2)).unwrap(), "5,2");
        assert_eq!(of(1, Some(1)).unwrap(), "2");
        assert_eq!(of(2, None).unwrap(), "7");
        for count in [0, 4, u32::MAX] {
            let refused = of(0, Some(count)).unwrap_err();
            assert_eq!(refused, format!("a target on {count} cores: this server has 3 for targets"));
        }
        let refused = "a target on 1 cores behind the first 3: this server has 3 for targets";
        assert_eq!(of(3, Some(1)).unwrap_err(), refused);
        assert!(of(u32::MAX, None).is_err() && of(2, Some(2)).is_err());
    }

    #[test]
    fn keys_that_are_none_are_refused() {
        let sent = |tls_key: &str, secret: &str| {
            let (tls_key, secret) = (tls_key.to_owned(), secret.to_owned());
            kept_keys(&SentKeys { tls_key, secret, access: KeyAccess::Tls }).map(drop)
        };
        let own = Keys::generate().unwrap();
        let files = own.files(KeyAccess::Tls);
        let own = [files.tls_key, files.secret].map(|path| std::fs::read_to_string(path).unwrap());
        let own = (own[0].trim(), own[1].trim());
        assert!(sent(own.0, own.1).is_ok());
        assert!(sent("--run id", own.1).unwrap_err().starts_with("the key of TLS of a target: "));
        assert!(sent(own.0, "../../etc/passwd").unwrap_err().starts_with("the secret of a target: "));
    }
}
