//! Messages between a study and a study server: one line of JSON each. The study asks, the server answers.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use host::Address;
use load::ceiling::far_end;
use load::disturbance::Loss;
use load::environment::Environment;
use security::access_token::CHALLENGE_BYTES;
use security::psk::Cipher;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use wire::text::from_hex;

use crate::cell::Values;
use crate::file_target_kind::FileTargetKind;
use crate::load_values::value_named;
use crate::memory_load::Access;
use crate::peers::PeerKind;
use crate::steering::Steering;
use crate::target_options::{KeyAccess, NamespaceKind, TargetTuning};

/// Port of a study server, unless its address names another.
pub const PORT: u16 = 4421;

/// Version of these messages. Builds without a commit have one version of nvlane, so each change of a message raises this.
const REVISION: u32 = 6;

/// Longest line of a study, bytes.
pub(crate) const REQUEST_BYTES_MAX: usize = 16 << 10;

/// Longest line of a server, bytes: the state of a target with thousands of lanes.
pub(crate) const REPLY_BYTES_MAX: usize = 64 << 20;

/// Purpose of the proof of the token.
pub(crate) const TOKEN_PURPOSE: &str = "nvlane study serve";

/// Request of a study.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// The first one, in answer to [`Reply::Challenge`]. Answer: [`MachineDescription`].
    Hello {
        /// Version of nvlane.
        version: String,
        /// Proof of the token, hexadecimal.
        proof: String,
    },
    /// Sent every second, so that both ends notice the loss of the other.
    Ping,
    /// Starts a target. Answer: [`Started`], as of each start of a target or another server.
    Start(StartTarget),
    /// The kernel's account of a target's process. Answer: [`load::account::Reading`], or nothing if it has ended.
    Read {
        /// Number of the target, from [`Started`].
        target: u32,
    },
    /// Private memory of a target's process.
    Memory { target: u32 },
    /// The content of a target's state file.
    State { target: u32 },
    /// Memory of a target's process in mappings of less than 1 GiB.
    SmallMappings { target: u32 },
    /// Counters of a target's process, and of the device on which its packets arrive.
    Counters { target: u32 },
    /// Steers the traffic of a target's memcached listener, or of its only other one, to its core until the target ends: if the
    /// operator of the server has named an interface for that. Answer: the means by which queues are separated: `software`
    /// if the device has no offload.
    Steer {
        target: u32,
        /// The way of steering.
        by: Steering,
    },
    /// Ends a target.
    Stop { target: u32 },
    /// Version of a server to compare with.
    PeerVersion { kind: PeerKind },
    /// Starts a server to compare with, on the first of the server's cores. It counts as a target, and is read and stopped
    /// like one.
    StartPeer {
        kind: PeerKind,
        /// Memory for values, MiB.
        memory_mib: u32,
    },
    /// Whether the server can serve a file by a target of the kernel or of SPDK. Answer: facts about it for the reader, or
    /// the requirements.
    FileTarget { kind: FileTargetKind },
    /// Serves the server's file by such a target. It counts as a target, and is read and stopped like one.
    StartFileTarget {
        kind: FileTargetKind,
        /// Size of the file, bytes.
        bytes: u64,
        /// Number of the server's cores that it may use.
        core_count: u32,
    },
    /// Starts a load on the server's file itself; ends the one before.
    StartFileLoad(StartFileLoad),
    /// The outcome of that load, whose time is over: [`FileLoadOutcome`].
    EndFileLoad,
    /// Starts a program that reads memory, on the second of the server's cores; ends the one before.
    StartMemoryReader(StartMemoryReader),
    /// The outcome of that program, whose time is over: bytes per second, and its loss to other load.
    EndMemoryReader,
    /// Starts to sample the threads of a target, for a measurement of this length; ends the sampling before.
    StartSampling {
        /// Number of the target, of nvlane's own.
        target: u32,
        measure: Duration,
    },
    /// The samples: [`super::sampled::SentSamples`].
    EndSampling,
    /// Energy of the server's machine so far: [`super::energy::RemoteEnergy`].
    Energy,
    /// Begins to count the time of other programs on the server's cores; ends the count before. Answer: the server's process,
    /// and the identifier of the machine since its boot.
    WatchOthers,
    /// The count: [`load::others::Others`].
    Others,
    /// Starts the far end of a ceiling; ends the one before. Answer: its address, and the first bytes of each connection,
    /// hexadecimal.
    StartCeiling(StartCeiling),
    /// Waits until all connections of the ceiling have come and its memory is allocated.
    AwaitCeiling,
    /// Ends the far end of the ceiling. Answer: its processor time, and its loss to other load.
    EndCeiling,
}

/// A target to start: a closed set of options without paths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartTarget {
    /// Namespaces; the first is NSID 1.
    pub(crate) namespaces: Vec<NamespaceKind>,
    /// Options of the data path.
    pub(crate) tuning: TargetTuning,
    /// Whether its state will be requested.
    pub(crate) tells: bool,
    /// Number of the server's cores that it may use; absent: all.
    #[serde(default)]
    pub(crate) core_count: Option<u32>,
    /// Number of the server's cores before the first one that it may use.
    #[serde(default)]
    pub(crate) first_core: u32,
    /// Whether it serves memcached, too.
    #[serde(default)]
    pub(crate) memcached: bool,
    /// Keys, and its demands on its hosts.
    #[serde(default)]
    pub(crate) keys: Option<SentKeys>,
}

/// Keys of a target, which the server writes into files of its own.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SentKeys {
    /// The key of TLS, in its text form.
    pub(crate) tls_key: String,
    /// The host's secret, in its text form.
    pub(crate) secret: String,
    /// The target's demands on its hosts.
    pub(crate) access: KeyAccess,
}

impl fmt::Debug for SentKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentKeys").field("access", &self.access).finish_non_exhaustive()
    }
}

/// A program that reads memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartMemoryReader {
    /// The order of its reads.
    pub(crate) access: Access,
    pub(crate) warm_up: Duration,
    pub(crate) measure: Duration,
}

/// A load on the server's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartFileLoad {
    /// Size of the file, bytes.
    pub(crate) bytes: u64,
    /// Name of its pattern.
    pub(crate) pattern: String,
    /// Percent of reads, if the pattern mixes them with writes.
    pub(crate) read_percent: u8,
    /// Bytes of an operation.
    pub(crate) io_bytes: u32,
    /// Queues.
    pub(crate) jobs: u32,
    /// Operations in flight on each.
    pub(crate) depth: u32,
    pub(crate) warm_up: Duration,
    pub(crate) measure: Duration,
    /// Number of the server's cores that it may use.
    pub(crate) core_count: u32,
}

/// The far end of a ceiling to start, on the first of the server's cores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartCeiling {
    /// Operations in flight on all connections together.
    pub(crate) depth: u32,
    pub(crate) connections: u32,
    /// Data of an operation, bytes.
    pub(crate) io_bytes: u32,
    /// Memory of each connection's payloads, bytes; 0: one warm place for all.
    pub(crate) memory_bytes: u64,
    /// Memory that reads come from and writes go to, bytes; 0: none.
    pub(crate) far_memory_bytes: u64,
    /// Cipher suite of TLS.
    pub(crate) tls: Option<CipherSuite>,
    /// Time before the measurement.
    pub(crate) warm_up: Duration,
    /// Whether it sleeps when there is nothing to do.
    pub(crate) sleeps: bool,
}

/// A cipher suite of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CipherSuite {
    Aes128GcmSha256,
    Aes256GcmSha384,
}

impl From<Cipher> for CipherSuite {
    fn from(cipher: Cipher) -> Self {
        match cipher {
            Cipher::Aes128GcmSha256 => Self::Aes128GcmSha256,
            Cipher::Aes256GcmSha384 => Self::Aes256GcmSha384,
        }
    }
}

impl From<CipherSuite> for Cipher {
    fn from(suite: CipherSuite) -> Self {
        match suite {
            CipherSuite::Aes128GcmSha256 => Self::Aes128GcmSha256,
            CipherSuite::Aes256GcmSha384 => Self::Aes256GcmSha384,
        }
    }
}

/// Reply of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    /// The first line of a connection.
    Challenge {
        /// Version of nvlane.
        version: String,
        /// Random bytes, hexadecimal.
        challenge: String,
    },
    /// The answer to the request, whose type follows from the request.
    Done(Value),
    /// The request cannot be fulfilled.
    Refused(String),
}

/// The answer to a request that is fulfilled.
pub(crate) fn done(answer: impl Serialize) -> Result<Value, String> {
    serde_json::to_value(answer).map_err(|error| error.to_string())
}

/// A target or another server that listens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Started {
    /// Its number.
    pub(crate) target: u32,
    /// Its address, with its subsystem if it is a target.
    pub(crate) address: String,
    /// Address of its memcached listener, if it has one.
    #[serde(default)]
    pub(crate) memcached: Option<String>,
}

/// The outcome of a load on the server's file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FileLoadOutcome {
    /// Throughput, latency and processor time, by name.
    #[serde(deserialize_with = "known")]
    pub(crate) values: Values,
    /// Latencies, us, and their numbers of operations.
    pub(crate) bins: Vec<(f64, u64)>,
    /// Its loss to other load.
    pub(crate) loss: Option<Loss>,
}

/// The values with names that this program knows: it has the server's version.
fn known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Values, D::Error> {
    let values = BTreeMap::<String, f64>::deserialize(deserializer)?;
    Ok(values.into_iter().filter_map(|(name, value)| Some((value_named(&name)?, value))).collect())
}

/// The machine of a study server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineDescription {
    /// Address on which its targets listen.
    pub data_address: IpAddr,
    /// Cores of the targets.
    pub cores: Vec<usize>,
    /// Lanes that a target may have, by the limit on descriptors.
    pub lane_count_max: u64,
    /// Processor, kernel, memory, nvlane's version.
    pub environment: Environment,
    /// The interface whose queues a study may give to a target, if the server's operator allows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steering: Option<SteeringInterface>,
}

/// An interface of a study server's machine that can steer the traffic of its targets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SteeringInterface {
    /// Its name.
    pub interface: String,
    /// Whether it can do aRFS.
    pub has_arfs: bool,
}

/// Version of this program, with the commit if the build knew it, and of these messages.
pub fn own_version() -> String {
    format!("{} with study protocol {REVISION}", Environment::version())
}

/// The bytes of a challenge.
pub(crate) fn challenge_of(text: &str) -> Option<[u8; CHALLENGE_BYTES]> {
    from_hex(text.as_bytes())?.try_into().ok()
}

/// The key of a ceiling's connections.
pub(crate) fn ceiling_key_of(text: &str) -> Option<far_end::Key> {
    from_hex(text.as_bytes())?.try_into().ok()
}

/// The address of a target that a server has started, which must be the one that it announced.
pub(crate) fn data_address(text: &str, announced: IpAddr) -> Option<Address> {
    let address: Address = text.parse().ok()?;
    let host = address.host.to_string();
    // An IPv6 address stands in brackets.
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&host);
    let is_announced = bare.parse::<IpAddr>().is_ok_and(|ip| ip == announced);
    is_announced.then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_a_form_of_their_own_and_no_room_for_more() {
        let start = Request::Start(StartTarget {
            namespaces: vec![NamespaceKind::of_argument("null:1T").unwrap()],
            tuning: TargetTuning::default(),
            tells: false,
            core_count: Some(2),
            first_core: 1,
            memcached: true,
            keys: Some(SentKeys {
                tls_key: "a key".to_owned(),
                secret: "a secret".to_owned(),
                access: KeyAccess::Tls,
            }),
        });
        assert!(!format!("{start:?}").contains("a key") && !format!("{start:?}").contains("a secret"));
        let sent = serde_json::to_string(&start).unwrap();
        assert!(sent.starts_with(r#"{"start":{"namespaces":[{"null":{"bytes":1099511627776,"#), "{sent}");
        assert_eq!(serde_json::from_str::<Request>(&sent).unwrap(), start);
        assert_eq!(serde_json::from_str::<Request>("\"ping\"").unwrap(), Request::Ping);
        for wrong in [
            r#"{"start":{"namespaces":[{"file":{"path":"/etc/passwd"}}],"tuning":{},"tells":false}}"#,
            r#"{"start":{"namespaces":[],"tuning":{},"tells":false,"run":"id"}}"#,
            r#"{"read":{"target":-1}}"#,
            r#"{"exec":"id"}"#,
            r#"{"start_peer":{"kind":"sh","memory_mib":1}}"#,
            r#"{"start_peer":{"kind":"redis","memory_mib":1,"arguments":["--dir","/etc"]}}"#,
            r#"{"start_file_target":{"kind":"sh","bytes":1,"core_count":1}}"#,
            r#"{"start_file_target":{"kind":"kernel_tcp","bytes":1,"core_count":1,"path":"/dev/vda"}}"#,
            r#"{"start_file_load":{"path":"/dev/vda"}}"#,
            r#"{"start_sampling":{"pid":1,"measure":{"secs":1,"nanos":0}}}"#,
            r#"{"energy":{"directory":"/etc"}}"#,
            r#"{"start_ceiling":{"depth":1,"connections":1,"io_bytes":1}}"#,
            r#"{"steer":{"target":1,"by":"mqprio"}}"#,
            r#"{"steer":{"target":1,"by":"own_queues","interface":"eth0"}}"#,
            r#"{"counters":{"pid":1}}"#,
            "GET / HTTP/1.1",
        ] {
            assert!(serde_json::from_str::<Request>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_challenge_has_its_length() {
        assert!(challenge_of("00").is_none() && challenge_of("zz").is_none());
        assert_eq!(challenge_of(&"ab".repeat(32)), Some([0xab; 32]));
    }

    #[test]
    fn a_target_is_where_its_server_said() {
        let announced = IpAddr::from([192, 0, 2, 7]);
        assert!(data_address("192.0.2.7:4420/nqn.2024-01.example:x", announced).is_some());
        assert!(data_address("192.0.2.8:4420/nqn.2024-01.example:x", announced).is_none());
        assert!(data_address("", announced).is_none());
        let announced: IpAddr = "2001:db8::2".parse().unwrap();
        assert!(data_address("[2001:db8::2]:4420/nqn.2024-01.example:x", announced).is_some());
        assert!(data_address("[2001:db8::3]:4420/nqn.2024-01.example:x", announced).is_none());
    }
}
