//! Options of a target that experiments use: a closed set, which the study server takes from another machine.

use host::{DoorbellPolicy, Receive};
use load::workload::{format_bytes, parse_bytes};
use serde::{Deserialize, Serialize};

/// A namespace without a path, which a study may request of another machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum NamespaceKind {
    /// Reads return zeroes, writes are discarded.
    Null {
        /// Size.
        bytes: u64,
        /// Size of a logical block; `None`: the default.
        lba_bytes: Option<u32>,
        /// Time of each operation, µs; `None`: none.
        #[serde(default)]
        delay_us: Option<u32>,
    },
    /// In memory.
    Ram {
        /// Size.
        bytes: u64,
    },
    /// Keys and values in memory.
    KeyValue {
        /// Memory.
        bytes: u64,
        /// Whether values are evicted when it is full.
        evicts: bool,
    },
    /// A file of the server, every block of which has been written.
    Scratch {
        /// Size.
        bytes: u64,
    },
}

impl NamespaceKind {
    /// The kind of an argument of `--namespace`; `None` if it is not of the closed set.
    pub fn of_argument(argument: &str) -> Option<Self> {
        let (place, options) = argument.split_once('?').unwrap_or((argument, ""));
        let (kind, size) = place.rsplit_once(':')?;
        let bytes = parse_bytes(size).ok()?;
        match (kind, options) {
            ("null", options) => {
                let (mut lba_bytes, mut delay_us) = (None, None);
                for option in options.split('&').filter(|option| !option.is_empty()) {
                    match option.split_once('=')? {
                        ("lba", bytes) => lba_bytes = Some(bytes.parse().ok()?),
                        ("delay", time) => delay_us = Some(time.strip_suffix("us")?.parse().ok()?),
                        _ => return None,
                    }
                }
                Some(Self::Null { bytes, lba_bytes, delay_us })
            }
            ("ram", "") => Some(Self::Ram { bytes }),
            ("kv:ram", "") => Some(Self::KeyValue { bytes, evicts: true }),
            ("kv:ram", "evict=none") => Some(Self::KeyValue { bytes, evicts: false }),
            _ => None,
        }
    }

    /// The argument of `--namespace`; `None` for a file, whose path the server chooses.
    pub fn argument(self) -> Option<String> {
        match self {
            Self::Null { bytes, lba_bytes, delay_us } => {
                let lba = lba_bytes.map(|bytes| format!("lba={bytes}"));
                let delay = delay_us.map(|us| format!("delay={us}us"));
                let options: Vec<String> = lba.into_iter().chain(delay).collect();
                let mark = if options.is_empty() { "" } else { "?" };
                Some(format!("null:{bytes}{mark}{}", options.join("&")))
            }
            Self::Ram { bytes } => Some(format!("ram:{bytes}")),
            Self::KeyValue { bytes, evicts: true } => Some(format!("kv:ram:{bytes}")),
            Self::KeyValue { bytes, evicts: false } => Some(format!("kv:ram:{bytes}?evict=none")),
            Self::Scratch { .. } => None,
        }
    }

    /// Memory that it may take, bytes.
    pub const fn memory_bytes(self) -> u64 {
        match self {
            Self::Null { .. } | Self::Scratch { .. } => 0,
            Self::Ram { bytes } | Self::KeyValue { bytes, .. } => bytes,
        }
    }
}

/// Options in the form that they have on the command line.
mod as_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T: Display, S: Serializer>(option: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
        option.as_ref().map(ToString::to_string).serialize(to)
    }

    pub(super) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<T>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

/// Whether the target's reactor spins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "named as `--spin` names them")]
pub enum Spin {
    Always,
    Never,
}

/// Zero-copy send of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SendCopies {
    /// Never without a copy.
    Off,
    /// From this size on, bytes.
    From(u64),
}

/// How lanes are given to reactors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "named as `--placement` names them")]
pub enum Placement {
    Queue,
    Load,
    Cpu,
}

/// The demands of a target with keys on its hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyAccess {
    /// TLS.
    Tls,
    /// Authentication, with TLS or without.
    Authentication,
}

/// Options of the target's data path; absent ones are the defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TargetTuning {
    /// Doorbell policy.
    #[serde(with = "as_text")]
    pub doorbell: Option<DoorbellPolicy>,
    /// How it receives.
    #[serde(with = "as_text")]
    pub receive: Option<Receive>,
    /// Whether its reactor spins.
    pub spin: Option<Spin>,
    /// Size from which write data is received in place, bytes.
    pub in_place_bytes: Option<u64>,
    /// Zero-copy send.
    pub zero_copy: Option<SendCopies>,
    /// How long a socket polls its device, µs; lanes are then placed by NAPI id.
    pub busy_poll_us: Option<u32>,
    /// How lanes are given to reactors, unless `busy_poll_us` decides it.
    pub placement: Option<Placement>,
}

impl TargetTuning {
    /// The arguments of `nvlane target`.
    pub fn arguments(&self) -> Vec<String> {
        let mut words = Vec::new();
        let mut add = |option: &str, value: String| words.extend([option.to_owned(), value]);
        if let Some(doorbell) = self.doorbell {
            add("--doorbell", doorbell.to_string());
        }
        if let Some(receive) = self.receive {
            add("--receive", receive.to_string());
        }
        if let Some(spin) = self.spin {
            add("--spin", if spin == Spin::Always { "always" } else { "never" }.to_owned());
        }
        if let Some(bytes) = self.in_place_bytes {
            add("--in-place", bytes.to_string());
        }
        match self.zero_copy {
            Some(SendCopies::Off) => add("--zero-copy", "off".to_owned()),
            Some(SendCopies::From(bytes)) => add("--zero-copy", format_bytes(bytes)),
            None => {}
        }
        if let Some(us) = self.busy_poll_us {
            add("--busy-poll", us.to_string());
            add("--placement", "napi".to_owned());
        } else if let Some(placement) = self.placement {
            let name = match placement {
                Placement::Queue => "queue",
                Placement::Load => "load",
                Placement::Cpu => "cpu",
            };
            add("--placement", name.to_owned());
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_of_the_closed_set_are_known_and_others_are_not() {
        for (argument, expected) in [
            ("null:1T", "null:1099511627776"),
            ("null:1T?lba=512", "null:1099511627776?lba=512"),
            ("null:1T?delay=100us", "null:1099511627776?delay=100us"),
            ("null:1M?lba=512&delay=5us", "null:1048576?lba=512&delay=5us"),
            ("ram:256M", "ram:268435456"),
            ("kv:ram:512M", "kv:ram:536870912"),
            ("kv:ram:64M?evict=none", "kv:ram:67108864?evict=none"),
        ] {
            let kind = NamespaceKind::of_argument(argument).unwrap();
            assert_eq!(kind.argument().as_deref(), Some(expected));
            let sent = serde_json::to_string(&kind).unwrap();
            assert_eq!(serde_json::from_str::<NamespaceKind>(&sent).unwrap(), kind, "{sent}");
        }
        for argument in [
            "file:/etc/passwd",
            "device:/dev/sda",
            "ram:1G?small",
            "kv:file:/x?size=1G",
            "null",
            "null:1T?error=1%",
            "null:1T?delay=100",
        ] {
            assert_eq!(NamespaceKind::of_argument(argument), None, "{argument}");
        }
    }

    #[test]
    fn tuning_is_a_closed_set_of_options() {
        let tuning = TargetTuning {
            doorbell: "turn".parse().ok(),
            receive: Some(Receive::Pdu),
            spin: Some(Spin::Never),
            in_place_bytes: Some(1),
            zero_copy: Some(SendCopies::From(4096)),
            busy_poll_us: Some(50),
            placement: Some(Placement::Load),
        };
        assert_eq!(
            tuning.arguments().join(" "),
            "--doorbell turn --receive pdu --spin never --in-place 1 --zero-copy 4k --busy-poll 50 --placement napi"
        );
        let sent = serde_json::to_string(&tuning).unwrap();
        assert_eq!(serde_json::from_str::<TargetTuning>(&sent).unwrap(), tuning);
        assert!(serde_json::from_str::<TargetTuning>(r#"{"run":"id"}"#).is_err());
        assert!(TargetTuning::default().arguments().is_empty());
        let placed = TargetTuning { placement: Some(Placement::Cpu), ..TargetTuning::default() };
        assert_eq!(placed.arguments(), ["--placement", "cpu"]);
    }

    #[test]
    fn a_doorbell_may_have_numbers_of_its_own() {
        let tuning = TargetTuning { doorbell: "fixed:16,65536,50".parse().ok(), ..TargetTuning::default() };
        assert_eq!(tuning.arguments(), ["--doorbell", "fixed:16,65536,50"]);
        let sent = serde_json::to_string(&tuning).unwrap();
        assert_eq!(serde_json::from_str::<TargetTuning>(&sent).unwrap(), tuning);
        for wrong in ["fixed:16", "fixed:16,1,2,3", "fixed:16,,50", "fixed:16,65536,-1", "sometimes"] {
            let sent = format!(r#"{{"doorbell":"{wrong}"}}"#);
            assert!(serde_json::from_str::<TargetTuning>(&sent).is_err(), "{wrong}");
        }
    }
}
