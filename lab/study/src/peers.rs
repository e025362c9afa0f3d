//! Other servers to compare with: their programs, versions and processes.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use load::account::{Account, ProcessAccount};
use peer::port::free_address;
use serde::{Deserialize, Serialize};

use crate::error::{Doing, Error};
use crate::text_load::Protocol;

/// Time limit until a peer listens.
const START_TIME: Duration = Duration::from_secs(10);

/// Another server, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PeerKind {
    Memcached,
    Redis,
}

impl PeerKind {
    /// Its description.
    pub(crate) const fn peer(self) -> Peer {
        match self {
            Self::Memcached => MEMCACHED,
            Self::Redis => REDIS,
        }
    }
}

/// Another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) kind: PeerKind,
    pub(crate) name: &'static str,
    pub(crate) protocol: Protocol,
    /// Environment variable with the path of its program; without it, the program is searched in `PATH`.
    variable: &'static str,
    program: &'static str,
    /// Oldest version that is a fair comparison, and why.
    oldest: (&'static [u32], &'static str),
    hint: &'static str,
}

pub(crate) const MEMCACHED: Peer = Peer {
    kind: PeerKind::Memcached,
    name: "memcached",
    protocol: Protocol::Memcached,
    variable: "NVLANE_MEMCACHED_BIN",
    program: "memcached",
    oldest: (&[1, 6, 40], "it answers pipelined gets with a send each"),
    hint: "build one from https://memcached.org/downloads",
};

pub(crate) const REDIS: Peer = Peer {
    kind: PeerKind::Redis,
    name: "redis",
    protocol: Protocol::Redis,
    variable: "NVLANE_REDIS_BIN",
    program: "redis-server",
    oldest: (&[6], "it is long out of use"),
    hint: "apt install redis-server",
};

/// Arguments of a redis that other machines reach: it takes commands without a password, and only those of the load,
/// since others write files and load programs.
const REDIS_FOR_OTHERS: &str = "--protected-mode no --user default on nopass ~* -@all +get +set +mget +incr";

impl Peer {
    fn program(&self) -> String {
        std::env::var(self.variable).unwrap_or_else(|_| self.program.to_owned())
    }

    /// Version of the program on this machine, of whatever age.
    ///
    /// # Errors
    /// [`Error::Lacking`]: the program is missing.
    pub(crate) fn any_version(&self) -> Result<String, Error> {
        let program = self.program();
        let Self { variable, hint, .. } = self;
        let said = Command::new(&program).arg("--version").output();
        let said = said.ok().filter(|said| said.status.success()).map(|said| said.stdout);
        let said = said.ok_or_else(|| {
            Error::Lacking(format!("{program} cannot be run: {hint}, or name it in {variable}"))
        })?;
        let said = String::from_utf8_lossy(&said).into_owned();
        let version = version_in(&said)
            .ok_or_else(|| Error::Lacking(format!("{program} prints no version: {said}")))?;
        Ok(version.to_owned())
    }

    /// Version of the program on this machine.
    ///
    /// # Errors
    /// [`Error::Lacking`]: the program is missing or too old.
    pub(crate) fn version(&self) -> Result<String, Error> {
        let version = self.any_version()?;
        let (program, Self { variable, hint, .. }) = (self.program(), self);
        let (oldest, why) = self.oldest;
        if numbers(&version).as_slice() < oldest {
            let oldest = oldest.iter().map(u32::to_string).collect::<Vec<_>>().join(".");
            return Err(Error::Lacking(format!(
                "{program} is {version}: {why}; take {oldest} or newer: {hint}, and name it in {variable}"
            )));
        }
        Ok(version)
    }

    /// Starts the server at this address, with a thread for each of these cores (redis: one); without any, one thread that the
    /// system places. Values are held in `memory_mib`.
    pub(crate) fn start(
        &self,
        place: SocketAddr,
        cores: &[usize],
        memory_mib: u32,
    ) -> Result<PeerServer, Error> {
        self.start_with(place, cores, memory_mib, &[])
    }

    /// Starts a cache of large values: like [`start`](Self::start), with values of up to 128 MiB, of which those that were not
    /// used for the longest time make room for others.
    pub(crate) fn start_for_chunks(
        &self,
        place: SocketAddr,
        cores: &[usize],
        memory_mib: u32,
    ) -> Result<PeerServer, Error> {
        let memory = format!("{memory_mib}mb");
        let arguments: &[&str] = match self.protocol {
            Protocol::Memcached => &["-I", "128m"],
            Protocol::Redis => &["--maxmemory", &memory, "--maxmemory-policy", "allkeys-lru"],
        };
        self.start_with(place, cores, memory_mib, arguments)
    }

    fn start_with(
        &self,
        place: SocketAddr,
        cores: &[usize],
        memory_mib: u32,
        arguments: &[&str],
    ) -> Result<PeerServer, Error> {
        let (host, port) = (place.ip().to_string(), place.port().to_string());
        let memory = memory_mib.to_string();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        let threads = cores.len().max(1).to_string();
        if !cores.is_empty() {
            let list = cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            command.args(["taskset", "--cpu-list", &list]);
        }
        command.arg(self.program());
        match self.protocol {
            Protocol::Memcached => {
                command
                    .args(["-l", &host, "-p", &port, "-U", "0", "-t", &threads, "-m", &memory, "-c", "2048"]);
                if rustix::process::geteuid().is_root() {
                    command.args(["-u", "root"]);
                }
            }
            Protocol::Redis => {
                command.args(["--bind", &host, "--port", &port, "--save", "", "--appendonly", "no"]);
                if !place.ip().is_loopback() {
                    command.args(REDIS_FOR_OTHERS.split(' '));
                    command.args(["--maxmemory", &format!("{memory}mb")]);
                }
            }
        }
        command.args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).current_dir(std::env::temp_dir());
        let child = command.spawn().doing("cannot run setpriv (util-linux)")?;
        let mut server = PeerServer { place, child };
        let until = Instant::now() + START_TIME;
        while TcpStream::connect(place).is_err() {
            let status = server.child.try_wait().doing("a peer")?;
            if status.is_some() || Instant::now() > until {
                return Err(Error::Lacking(format!("{} does not listen", self.name)));
            }
            sleep(Duration::from_millis(10));
        }
        Ok(server)
    }
}

/// A running peer. It ends with this value, and with this process.
#[derive(Debug)]
pub(crate) struct PeerServer {
    pub(crate) place: SocketAddr,
    child: Child,
}

impl PeerServer {
    /// The account of its process.
    pub(crate) fn account(&self) -> Arc<dyn Account> {
        Arc::new(ProcessAccount(self.child.id()))
    }
}

impl Drop for PeerServer {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A free port.
pub(crate) fn free_place() -> Result<SocketAddr, Error> {
    free_address().doing("a free port")
}

/// The first word of numbers with dots between them: `memcached 1.6.45`, `Redis server v=7.0.15 sha=…`.
fn version_in(said: &str) -> Option<&str> {
    let mut words = said.split_whitespace().map(|word| word.trim_start_matches("v="));
    words.find(|word| word.contains('.') && word.starts_with(|first: char| first.is_ascii_digit()))
}

fn numbers(version: &str) -> Vec<u32> {
    let parts = version.split(['.', '-', '_']);
    parts.map_while(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_and_compared() {
        assert_eq!(version_in("memcached 1.6.45\n"), Some("1.6.45"));
        assert_eq!(version_in("Redis server v=7.0.15 sha=00000000:0 malloc=x bits=64"), Some("7.0.15"));
        assert_eq!(version_in("none"), None);
        assert!(numbers("1.6.18") < numbers("1.6.40") && numbers("1.6.45-2-gabc") > numbers("1.6.40"));
    }

    #[test]
    fn a_peer_that_is_missing_is_told_with_a_hint() {
        let peer = Peer { program: "no-such-server", variable: "NVLANE_NO_SUCH_BIN", ..REDIS };
        let error = peer.version().unwrap_err().to_string();
        assert!(
            error.contains("no-such-server")
                && error.contains("apt install")
                && error.contains("NVLANE_NO_SUCH_BIN")
        );
    }
}
