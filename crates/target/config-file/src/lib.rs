//! The tables and keys of a target's configuration file, as they are written: `nvlane-subsystem` converts and checks them.
//!
//! `examples/nvlane.toml` of that crate documents them. They are apart from it because deserialization is derived for
//! each of them: much code, which runs once per file and is optimized for size (`Cargo.toml` of the workspace).
#![forbid(unsafe_code)]
#![expect(missing_docs, reason = "the example documents the keys")]

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use toml::Spanned;

/// Reads a file's text.
///
/// # Errors
/// The first mistake: invalid TOML, an unknown or missing key, or a value of another type.
pub fn parse(text: &str) -> Result<RawFile, toml::de::Error> {
    toml::from_str(text)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawFile {
    pub machine: Option<Spanned<String>>,
    #[serde(default)]
    pub reactors: RawReactors,
    #[serde(default)]
    pub limits: RawLimits,
    #[serde(default)]
    pub timeouts: RawTimeouts,
    #[serde(default)]
    pub discovery: RawDiscovery,
    pub listener: Option<Vec<Spanned<RawListener>>>,
    #[serde(default)]
    pub memcached: Vec<Spanned<RawMemcached>>,
    #[serde(default)]
    pub pool: Vec<Spanned<RawPool>>,
    #[serde(default)]
    pub subsystem: Vec<Spanned<RawSubsystem>>,
    #[serde(default)]
    pub audit: RawAudit,
    #[serde(default)]
    pub control: RawControl,
    #[serde(default)]
    pub metrics: RawMetrics,
    #[serde(default)]
    pub log: RawLog,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawLog {
    pub slow: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawMetrics {
    pub address: Option<Spanned<String>>,
    pub live_page: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawControl {
    pub socket: Option<Spanned<PathBuf>>,
    pub changes: Option<Spanned<PathBuf>>,
    pub tls: Option<Spanned<String>>,
    #[serde(default)]
    pub tls_keys: BTreeMap<Spanned<String>, Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawAudit {
    pub file: Option<Spanned<PathBuf>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawReactors {
    pub cores: Option<Spanned<String>>,
    pub count: Option<Spanned<u16>>,
    pub engine: Option<Spanned<String>>,
    pub doorbell: Option<Spanned<String>>,
    pub spin: Option<Spanned<String>>,
    pub placement: Option<Spanned<String>>,
    pub busy_poll_us: Option<Spanned<u32>>,
    pub prefer_busy_poll: Option<Spanned<bool>>,
    pub busy_poll_budget: Option<Spanned<u16>>,
    pub receive: Option<Spanned<String>>,
    pub in_place: Option<Spanned<RawSize>>,
    pub zero_copy: Option<Spanned<String>>,
    pub pool: Option<Spanned<RawSize>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawLimits {
    pub transfer: Option<Spanned<RawSize>>,
    pub in_capsule: Option<Spanned<RawSize>>,
    pub kv_in_capsule: Option<Spanned<RawSize>>,
    pub h2c_data: Option<Spanned<RawSize>>,
    pub window: Option<Spanned<RawSize>>,
    pub windows: Option<Spanned<u8>>,
    pub alignment: Option<Spanned<u8>>,
    pub queue_entries: Option<Spanned<u16>>,
    pub io_queues: Option<Spanned<u16>>,
    pub controllers: Option<Spanned<u16>>,
    pub controllers_per_host: Option<Spanned<u16>>,
    pub connections: Option<Spanned<u32>>,
    pub connections_per_address: Option<Spanned<u32>>,
    pub memcached_connections: Option<Spanned<u32>>,
    pub memcached_connections_per_address: Option<Spanned<u32>>,
    pub unconnected: Option<Spanned<u32>>,
    pub connections_per_s: Option<Spanned<u32>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawTimeouts {
    pub connect_s: Option<Spanned<u32>>,
    pub pdu_s: Option<Spanned<u32>>,
    pub send_s: Option<Spanned<u32>>,
    pub data_s: Option<Spanned<u32>>,
    /// Configurations of earlier versions say `pressed_s`.
    #[serde(alias = "pressed_s")]
    pub contended_s: Option<Spanned<u32>>,
    pub stop_s: Option<Spanned<u32>>,
    pub memcached_idle_s: Option<Spanned<u32>>,
    pub secret_overlap_s: Option<Spanned<u32>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawDiscovery {
    pub nqn: Option<Spanned<String>>,
    #[serde(default)]
    pub referral: Vec<RawReferral>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawReferral {
    pub address: Spanned<String>,
    pub nqn: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawListener {
    pub address: Spanned<String>,
    pub advertise: Option<Spanned<String>>,
    pub subsystems: Option<bool>,
    pub discovery: Option<bool>,
    pub doorbell: Option<Spanned<String>>,
    pub tls: Option<Spanned<String>>,
    pub allow: Option<Spanned<Vec<String>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawPool {
    pub name: Spanned<String>,
    pub dir: Spanned<PathBuf>,
    pub quota: Option<Spanned<RawSize>>,
    pub space_low: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawSubsystem {
    pub nqn: Spanned<String>,
    pub serial: Option<Spanned<String>>,
    pub model: Option<Spanned<String>>,
    pub hosts: Option<Spanned<RawHosts>>,
    pub memcached: Option<Spanned<String>>,
    pub cntlids: Option<Spanned<(u16, u16)>>,
    pub doorbell: Option<Spanned<String>>,
    pub dhchap_secret: Option<Spanned<String>>,
    pub dhchap_ctrl_secret: Option<Spanned<String>>,
    pub dhchap_hash: Option<Spanned<Vec<String>>>,
    pub dhchap_dhgroup: Option<Spanned<Vec<String>>>,
    pub refused_reauthentication: Option<Spanned<String>>,
    pub tls_key: Option<Spanned<String>>,
    #[serde(default)]
    pub host: Vec<Spanned<RawHost>>,
    #[serde(default)]
    pub namespace: Vec<Spanned<RawNamespace>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawHost {
    pub nqn: Spanned<String>,
    pub dhchap_secret: Option<Spanned<String>>,
    pub dhchap_ctrl_secret: Option<Spanned<String>>,
    pub tls_key: Option<Spanned<String>>,
    pub iops: Option<Spanned<u64>>,
    pub read_iops: Option<Spanned<u64>>,
    pub write_iops: Option<Spanned<u64>>,
    pub bytes_per_s: Option<Spanned<RawSize>>,
    pub read_bytes_per_s: Option<Spanned<RawSize>>,
    pub write_bytes_per_s: Option<Spanned<RawSize>>,
    pub burst_ms: Option<Spanned<u32>>,
    pub min_iops: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawNamespace {
    pub nsid: Option<Spanned<u32>>,
    pub storage: Spanned<String>,
    pub uuid: Option<Spanned<String>>,
    pub nguid: Option<Spanned<String>>,
    pub hosts: Option<Spanned<RawHosts>>,
    pub write_hosts: Option<Spanned<RawHosts>>,
    pub key_prefixes: Option<Spanned<BTreeMap<String, Vec<String>>>>,
    pub iops: Option<Spanned<u64>>,
    pub read_iops: Option<Spanned<u64>>,
    pub write_iops: Option<Spanned<u64>>,
    pub bytes_per_s: Option<Spanned<RawSize>>,
    pub read_bytes_per_s: Option<Spanned<RawSize>>,
    pub write_bytes_per_s: Option<Spanned<RawSize>>,
    pub burst_ms: Option<Spanned<u32>>,
    pub min_iops: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected \"any\" or a list of host NQNs")]
pub enum RawHosts {
    Word(String),
    List(Vec<String>),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a size: a number of bytes, or text such as \"64M\"")]
pub enum RawSize {
    Bytes(u64),
    Text(String),
}

/// A listener as it is written.
pub enum RawMemcached {
    /// `"ADDR:PORT"`.
    Address(String),
    /// `[[memcached]]`, or `{ address = … }`.
    Table(Box<RawTable>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawTable {
    pub address: Spanned<String>,
    pub tls_certificate: Option<Spanned<String>>,
    pub tls_key: Option<Spanned<String>>,
    pub tls_client_ca: Option<Spanned<String>>,
    pub tls_clients: Option<Spanned<String>>,
    pub users: Option<Spanned<String>>,
    pub allow: Option<Spanned<Vec<String>>>,
}

impl<'de> Deserialize<'de> for RawMemcached {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = RawMemcached;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address, such as \"127.0.0.1:11211\", or a table with an address")
            }

            fn visit_str<E>(self, text: &str) -> Result<RawMemcached, E> {
                Ok(RawMemcached::Address(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawMemcached, A::Error> {
                RawTable::deserialize(MapAccessDeserializer::new(map)).map(Box::new).map(RawMemcached::Table)
            }
        }

        deserializer.deserialize_any(Either)
    }
}
