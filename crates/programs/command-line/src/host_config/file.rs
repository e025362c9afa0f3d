//! The format of the file, as libnvme reads and writes it: an array of hosts, or as its schema says an object with them.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};
use zeroize::Zeroizing;

/// A larger file is not one of libnvme's.
const BYTES_MAX: u64 = 4 << 20;

/// Why a file cannot be used.
#[derive(Debug)]
pub(super) enum Problem {
    /// It cannot be read.
    Read(io::Error),
    /// It is not in libnvme's format.
    Format(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => write!(f, "cannot be read: {error}"),
            Self::Format(message) => f.write_str(message),
        }
    }
}

/// A secret or key, as text. It is wiped when dropped, and never shown.
#[derive(Deserialize)]
#[serde(from = "String")]
pub(super) struct Key(Zeroizing<String>);

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self(Zeroizing::new(text))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    pub(super) fn parse<K: FromStr>(&self) -> Result<K, K::Err> {
        self.0.trim().parse()
    }
}

/// A name by which this machine connects.
#[derive(Debug, Deserialize)]
pub(super) struct Host {
    #[serde(default)]
    pub(super) hostnqn: String,
    pub(super) hostid: Option<String>,
    pub(super) dhchap_key: Option<Key>,
    #[serde(default)]
    pub(super) subsystems: Vec<Subsystem>,
}

/// A subsystem that it connects to.
#[derive(Debug, Deserialize)]
pub(super) struct Subsystem {
    #[serde(default)]
    pub(super) nqn: String,
    pub(super) dhchap_key: Option<Key>,
    #[serde(default)]
    pub(super) ports: Vec<Port>,
}

/// An address of a subsystem.
#[derive(Debug, Deserialize)]
pub(super) struct Port {
    #[serde(default)]
    pub(super) transport: String,
    pub(super) traddr: Option<String>,
    #[serde(default, deserialize_with = "text_or_number")]
    pub(super) trsvcid: Option<String>,
    pub(super) dhchap_key: Option<Key>,
    pub(super) dhchap_ctrl_key: Option<Key>,
    pub(super) tls: Option<bool>,
    pub(super) tls_key: Option<Key>,
    pub(super) concat: Option<bool>,
    pub(super) hdr_digest: Option<bool>,
    pub(super) data_digest: Option<bool>,
    pub(super) discovery: Option<bool>,
}

/// libnvme takes numbers for texts.
fn text_or_number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Value {
        Text(String),
        Number(u64),
    }
    Ok(Option::<Value>::deserialize(from)?.map(|value| match value {
        Value::Text(text) => text,
        Value::Number(number) => number.to_string(),
    }))
}

#[derive(Deserialize)]
struct Object {
    hosts: Vec<Host>,
}

/// Reads a file. Warns if it has keys that other users can read.
pub(super) fn read(path: &Path) -> Result<Vec<Host>, Problem> {
    let file = File::open(path).map_err(Problem::Read)?;
    let metadata = file.metadata().map_err(Problem::Read)?;
    let length = usize::try_from(metadata.len().min(BYTES_MAX)).unwrap_or(0);
    // Of the full size at once: a buffer that grows would leave copies of keys behind.
    let mut text = Zeroizing::new(String::with_capacity(length.saturating_add(1)));
    file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(Problem::Read)?;
    if text.len() as u64 > BYTES_MAX {
        return Err(Problem::Format(format!(
            "has more than {BYTES_MAX} bytes: not a configuration of libnvme"
        )));
    }
    let hosts = parse(&text)?;
    if metadata.permissions().mode() & 0o044 != 0 && hosts.iter().any(Host::has_key) {
        tracing::warn!("other users can read the keys in {}; run chmod 600 on it", path.display());
    }
    Ok(hosts)
}

impl Host {
    fn has_key(&self) -> bool {
        let of_port = |port: &Port| {
            port.dhchap_key.is_some() || port.dhchap_ctrl_key.is_some() || port.tls_key.is_some()
        };
        let of_subsystem =
            |subsystem: &Subsystem| subsystem.dhchap_key.is_some() || subsystem.ports.iter().any(of_port);
        self.dhchap_key.is_some() || self.subsystems.iter().any(of_subsystem)
    }
}

/// Reads the text of a file.
pub(super) fn parse(text: &str) -> Result<Vec<Host>, Problem> {
    let parsed = if text.trim_start().starts_with('{') {
        serde_json::from_str::<Object>(text).map(|object| object.hosts)
    } else {
        serde_json::from_str(text)
    };
    parsed.map_err(|error| {
        let (line, column) = (error.line(), error.column());
        Problem::Format(match error.classify() {
            // The messages of serde repeat values, which may be keys.
            serde_json::error::Category::Data => format!(
                "line {line}, column {column}: a value of another type than libnvme's format has here (an array of hosts with hostnqn, \
                 subsystems with nqn, and ports with transport, traddr, trsvcid)"
            ),
            _ => format!("this is not JSON: {error}"),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_and_an_object_of_hosts_are_read_and_unknown_keys_are_not_minded() {
        let host = r#"{"hostnqn": "nqn.h", "hostsymname": "x", "subsystems": [{"nqn": "nqn.s", "application": "a",
            "ports": [{"transport": "tcp", "trsvcid": 4420, "nr_io_queues": 4, "tls": null}]}]}"#;
        for text in [format!(" [{host}]"), format!("{{\"owner\": \"o\", \"hosts\": [{host}]}}")] {
            let hosts = parse(&text).expect("the format");
            assert_eq!(hosts[0].hostnqn, "nqn.h");
            assert_eq!(hosts[0].subsystems[0].ports[0].trsvcid.as_deref(), Some("4420"));
        }
        assert!(parse("[]").expect("nothing").is_empty());
    }

    #[test]
    fn mistakes_have_a_line_and_never_a_key() {
        for (text, part) in [
            ("", "this is not JSON"),
            ("[\n{\"hostnqn\": \"nqn.h\",}]", "line 2"),
            ("[{\"subsystems\":\n[{\"ports\": [{\"tls\": \"NVMeTLSkey-1:01:secret\"}]}]}]", "line 2"),
            ("{\"hosts\": {}}", "another type"),
            ("{\"hostnqn\": \"nqn.h\"}", "another type"),
            ("3", "another type"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(part) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_key_is_not_shown() {
        let hosts = parse(r#"[{"hostnqn": "nqn.h", "dhchap_key": "DHHC-1:00:secret"}]"#).expect("the format");
        assert!(hosts[0].has_key() && !format!("{hosts:?}").contains("secret"));
    }
}
