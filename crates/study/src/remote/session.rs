//! One connection of a study server: a study, and its targets.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use load::account::Reading;
use load::cpu;
use load::environment::Environment;
use load::workload::format_bytes;
use reactor::CoreList;
use reactor::randomness::Randomness;
use security::access_token::CHALLENGE_BYTES;
use wire::text::{from_hex, to_hex};

use super::far_ceiling::FarCeiling;
use super::lines::{LineError, Lines};
use super::occupancy::Occupancy;
use super::protocol::{
    MachineDescription, REQUEST_BYTES_MAX, Reply, Request, StartCeiling, StartTarget, TOKEN_PURPOSE,
    own_version,
};
use super::settings::{Event, ServerSettings};
use crate::descriptors::target_lane_count_max;
use crate::local_target::LocalTarget;
use crate::process::{available_bytes, small_mappings_bytes};
use crate::scratch::ScratchFile;
use crate::served_options::ServedOptions;
use crate::target_options::NamespaceKind;

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
    stream: TcpStream,
    peer: SocketAddr,
    stops: &AtomicBool,
    on_event: &(dyn Fn(Event) + Sync),
) {
    let is_stopped = || stops.load(Ordering::Relaxed);
    let own_address = stream.local_addr().map(|address| address.ip().to_canonical());
    let lines = own_address.and_then(|own| Ok((own, Lines::new(stream)?)));
    let (own_address, mut lines) = match lines {
        Ok(lines) => lines,
        Err(error) => return on_event(Event::Refused(peer, error.to_string())),
    };
    let refused = |lines: &mut Lines, reason: String| {
        let _ = lines.send(&Reply::Refused(reason.clone()));
        on_event(Event::Refused(peer, reason));
    };
    if let Err(reason) = greet(settings, &mut lines, &is_stopped) {
        return refused(&mut lines, reason);
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
        count: 0,
        last_port: None,
        scratch: None,
        ceiling: None,
        lane_count_max: target_lane_count_max(reactor::allow_descriptors()),
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
    targets: BTreeMap<u32, LocalTarget>,
    /// Number of targets that it has started.
    count: u32,
    /// Port of the last one, if a range is set.
    last_port: Option<u16>,
    // After the targets that have it open.
    scratch: Option<Scratch>,
    ceiling: Option<FarCeiling>,
    /// Lanes of a target and connections of a ceiling, by the limit on descriptors.
    lane_count_max: u64,
}

impl Session<'_> {
    /// Answers requests until the connection ends; returns why it ended.
    fn run(&mut self, lines: &mut Lines, peer: SocketAddr, is_stopped: &dyn Fn() -> bool) -> LineError {
        let environment = Environment::collect(Some(peer.ip().to_canonical()), JITTER);
        let mut reply = Reply::Welcome(Box::new(MachineDescription {
            data_address: self.data_address,
            cores: self.settings.cores.cores().to_vec(),
            lane_count_max: self.lane_count_max,
            environment,
        }));
        loop {
            if let Err(error) = lines.send(&reply) {
                return error;
            }
            reply = match lines.receive(REQUEST_BYTES_MAX, SILENCE, is_stopped) {
                Ok(request) => self.answer(request).unwrap_or_else(Reply::Refused),
                Err(error) => return error,
            };
        }
    }

    fn answer(&mut self, request: Request) -> Result<Reply, String> {
        match request {
            Request::Hello { .. } => Err("the study has begun already".to_owned()),
            Request::Ping => Ok(Reply::Pong),
            Request::Start(start) => self.start(&start),
            Request::Read { target } => {
                let reading = self.target(target)?.account().read();
                let machine_busy_ns = cpu::of_machine().ok().map(|time| time.busy_ns());
                Ok(Reply::Account(reading.map(|reading| Reading { machine_busy_ns, ..reading })))
            }
            Request::Memory { target } => {
                let bytes = self.target(target)?.own_memory_bytes();
                bytes.map(Reply::Memory).map_err(|error| error.to_string())
            }
            Request::State { target } => {
                self.target(target)?.state().map(Reply::State).map_err(|error| error.to_string())
            }
            Request::SmallMappings { target } => {
                let bytes = small_mappings_bytes(self.target(target)?.pid());
                bytes.map(Reply::Memory).map_err(|error| error.to_string())
            }
            Request::StartCeiling(start) => self.start_ceiling(&start),
            Request::AwaitCeiling => self.ceiling.as_mut().ok_or_else(no_ceiling)?.await_ready(),
            Request::EndCeiling => self.ceiling.take().ok_or_else(no_ceiling)?.end(),
            Request::Stop { target } => {
                let stopped = self.targets.remove(&target).ok_or_else(|| no_target(target))?.stop();
                stopped.map(|()| Reply::Stopped).map_err(|error| error.to_string())
            }
        }
    }

    fn target(&self, target: u32) -> Result<&LocalTarget, String> {
        self.targets.get(&target).ok_or_else(|| no_target(target))
    }

    fn start(&mut self, start: &StartTarget) -> Result<Reply, String> {
        if self.targets.len() >= TARGET_COUNT_MAX {
            return Err(format!("a study has at most {TARGET_COUNT_MAX} targets at a time"));
        }
        if start.namespaces.is_empty() || start.namespaces.len() > NAMESPACE_COUNT_MAX {
            return Err(format!("a target has 1 to {NAMESPACE_COUNT_MAX} namespaces"));
        }
        let wanted_bytes =
            start.namespaces.iter().fold(0, |sum: u64, kind| sum.saturating_add(kind.memory_bytes()));
        let free_bytes = available_bytes().map_err(|error| error.to_string())?;
        if wanted_bytes > free_bytes {
            return Err(format!(
                "namespaces in memory ask for {}, and {} MiB are free",
                format_bytes(wanted_bytes),
                free_bytes >> 20
            ));
        }
        let arguments: Result<Vec<String>, String> =
            start.namespaces.iter().map(|kind| self.argument(*kind)).collect();
        let settings = self.settings;
        let cores = first_cores(&settings.cores, start.core_count)?;
        let port = self.free_port()?;
        let options = ServedOptions {
            tells: start.tells,
            listen: SocketAddr::new(self.data_address, port).to_string(),
            arguments: vec!["--cores".to_owned(), cores],
            ..ServedOptions::of(arguments?).tuned(start.tuning)
        };
        let target = LocalTarget::start(&settings.program, &options).map_err(|error| error.to_string())?;
        let address = target.address().to_string();
        self.count = self.count.wrapping_add(1);
        self.targets.insert(self.count, target);
        Ok(Reply::Started { target: self.count, address })
    }

    /// A port of the range for what listens next; 0 without a range.
    fn free_port(&mut self) -> Result<u16, String> {
        let port = match self.settings.data_ports {
            Some(range) => range.free_port(self.data_address, self.last_port)?,
            None => 0,
        };
        self.last_port = Some(port);
        Ok(port)
    }

    fn start_ceiling(&mut self, start: &StartCeiling) -> Result<Reply, String> {
        // The one before has its port, core and memory.
        self.ceiling = None;
        let listen = SocketAddr::new(self.data_address, self.free_port()?);
        let core = self.settings.cores.cores().first().copied();
        let (ceiling, reply) = FarCeiling::start(start, listen, core, self.lane_count_max)?;
        self.ceiling = Some(ceiling);
        Ok(reply)
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
        let path = self.scratch.as_ref().map(|scratch| scratch.file.path().to_owned()).unwrap_or_default();
        Ok(format!("file:{}", path.display()))
    }
}

/// The first cores of a list, as an argument; all of them without a number.
fn first_cores(cores: &CoreList, count: Option<u32>) -> Result<String, String> {
    let Some(count) = count else { return Ok(cores.to_string()) };
    let all = cores.cores();
    match all.get(..count as usize) {
        None | Some([]) => {
            Err(format!("a target on {count} cores: this server has {} for targets", all.len()))
        }
        Some(first) => Ok(first.iter().map(usize::to_string).collect::<Vec<_>>().join(",")),
    }
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
    _directory: ScratchDirectory,
    bytes: u64,
}

impl Scratch {
    fn new(bytes: u64) -> Result<Self, String> {
        let directory =
            ScratchDirectory::new().map_err(|error| format!("no directory for a file: {error}"))?;
        let file = ScratchFile::new(&directory.0, bytes).map_err(|error| error.to_string())?;
        Ok(Self { file, _directory: directory, bytes })
    }
}

/// A directory of the server, removed with this value.
struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    fn new() -> std::io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("nvlane-study-serve-{}-{count}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let path: &Path = &self.0;
        if let Err(error) = std::fs::remove_dir_all(path) {
            eprintln!("cannot remove {}: {error}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_gets_the_first_cores_and_no_more_than_there_are() {
        let cores: CoreList = "5,2,7".parse().unwrap();
        assert_eq!(first_cores(&cores, None).unwrap(), "5,2,7");
        assert_eq!(first_cores(&cores, Some(2)).unwrap(), "5,2");
        for count in [0, 4, u32::MAX] {
            let refused = first_cores(&cores, Some(count)).unwrap_err();
            assert_eq!(refused, format!("a target on {count} cores: this server has 3 for targets"));
        }
    }
}
