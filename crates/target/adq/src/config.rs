//! The wanted configuration: an interface, and classes of traffic with their queues and rates.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::control_group::topmost_group;
use crate::rate::Rate;

/// The end of the classes' connections that this machine is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// It listens at the addresses of the classes.
    #[default]
    Target,
    /// It connects to the addresses of the classes.
    Initiator,
}

/// The source of the priority of a class's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrioritySource {
    /// A filter sets it on leaving packets: works with every program.
    #[default]
    Filter,
    /// The program sets `SO_PRIORITY` on each of its sockets, also on those that it accepts; saves the filter's time.
    Program,
    /// A program in the kernel sets it on each socket that connects or is accepted: for programs that do not, without
    /// the filter's time.
    #[serde(rename = "sock_ops")]
    SockOps,
}

/// Address and port of a class's traffic: those of the listening end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Traffic {
    /// The address, or each address of the machine.
    pub address: Option<IpAddr>,
    /// The TCP port.
    pub port: u16,
}

impl Traffic {
    /// Whether packets can match both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.port == other.port
            && match (self.address, other.address) {
                (Some(one), Some(other)) => one == other,
                _ => true,
            }
    }
}

impl FromStr for Traffic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let traffic = match text.strip_prefix("*:") {
            Some(port) => port.parse().ok().map(|port| Self { address: None, port }),
            None => text.parse::<SocketAddr>().ok().map(|socket| Self {
                address: (!socket.ip().is_unspecified()).then(|| socket.ip()),
                port: socket.port(),
            }),
        };
        traffic.filter(|traffic| traffic.port != 0).ok_or_else(|| {
            format!("\"{text}\" is no address and port: 192.0.2.10:4420, [2001:db8::10]:4420, or *:4420 for all addresses")
        })
    }
}

impl TryFrom<String> for Traffic {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Traffic> for String {
    fn from(traffic: Traffic) -> Self {
        traffic.to_string()
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => write!(formatter, "{}", SocketAddr::new(address, self.port)),
            None => write!(formatter, "*:{}", self.port),
        }
    }
}

/// The delay of the interrupts of a class: a reactor that polls needs few.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterruptDelay {
    /// Longest wait for further packets after one has arrived, µs.
    pub receive_us: u32,
    /// Longest wait for further packets after one was sent, µs.
    pub transmit_us: u32,
}

/// One class of traffic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// Number of its queue pairs: as many reactors can serve it.
    pub queues: u16,
    /// Its minimum rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_rate: Option<Rate>,
    /// Its maximum rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rate: Option<Rate>,
    /// Its traffic.
    pub traffic: Vec<Traffic>,
    /// The source of the priority of its packets.
    #[serde(default)]
    pub priority: PrioritySource,
    /// Cores that take its interrupts, one per queue; the interrupts stay where they are if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cores: Vec<u32>,
    /// The delay of its interrupts; as before if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt_delay: Option<InterruptDelay>,
}

impl FromStr for Class {
    type Err = String;

    /// `NAME:QUEUES[:MIN[:MAX]]=ADDR:PORT[,ADDR:PORT...]`.
    fn from_str(text: &str) -> Result<Self, String> {
        let form = "a class is written NAME:QUEUES[:MIN[:MAX]]=ADDR:PORT[,ADDR:PORT...]";
        let (head, traffic) =
            text.split_once('=').ok_or_else(|| format!("\"{text}\" has no traffic: {form}"))?;
        let mut fields = head.split(':');
        let name = fields.next().unwrap_or_default().to_owned();
        let queues = fields.next().ok_or_else(|| format!("\"{text}\" has no number of queues: {form}"))?;
        let queues = queues.parse().map_err(|_| format!("\"{queues}\" is no number of queues: {form}"))?;
        let mut rate = || fields.next().filter(|rate| !rate.is_empty()).map(str::parse::<Rate>).transpose();
        let min_rate = rate().map_err(|error| error.to_string())?;
        let max_rate = rate().map_err(|error| error.to_string())?;
        if let Some(rest) = fields.next() {
            return Err(format!("\"{rest}\" follows the rates: {form}"));
        }
        let traffic = traffic.split(',').map(str::parse).collect::<Result<_, _>>()?;
        Ok(Self {
            name,
            queues,
            min_rate,
            max_rate,
            traffic,
            priority: PrioritySource::default(),
            cores: Vec::new(),
            interrupt_delay: None,
        })
    }
}

/// A wanted layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Name of the network interface.
    pub interface: String,
    /// The end of the connections that this machine is.
    #[serde(default)]
    pub side: Side,
    /// Queue pairs for all other traffic; as many as remain if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_queues: Option<u16>,
    /// The control group (version 2) whose processes get their priority with `priority = "sock_ops"`; all if it is
    /// missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The classes, in order.
    #[serde(rename = "class", default)]
    pub classes: Vec<Class>,
}

/// A configuration that contradicts itself, before any device is looked at.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text is no configuration.
    #[error("{0}")]
    Syntax(String),
    /// There is nothing to do.
    #[error("no class: name at least one, with --class NAME:QUEUES=ADDR:PORT or [[class]]")]
    NoClass,
    /// The interface has no valid name.
    #[error("\"{0}\" is no name of a network interface: 1 to 15 characters without \"/\", \":\" and spaces")]
    Interface(String),
    /// More classes than a socket's priority can name.
    #[error("{0} classes: a device has at most 16, and the first is for all other traffic")]
    TooMany(usize),
    /// Two classes of one name, or an empty name.
    #[error("class name \"{0}\" is empty, used twice, or \"other\"")]
    Name(String),
    /// A class without queues or without traffic.
    #[error("class \"{0}\" needs at least one queue and one address and port")]
    Empty(String),
    /// A class whose rates contradict each other.
    #[error("class \"{name}\": the minimum rate {min} is above the maximum rate {max}")]
    Rates {
        /// The class.
        name: String,
        /// Its minimum.
        min: Rate,
        /// Its maximum.
        max: Rate,
    },
    /// The same packets in two classes.
    #[error(
        "{one} of class \"{one_class}\" and {other} of class \"{other_class}\" match the same packets: some devices would deliver them twice"
    )]
    Overlap {
        /// Traffic of one.
        one: Traffic,
        /// Its class.
        one_class: String,
        /// Traffic of the other.
        other: Traffic,
        /// Its class.
        other_class: String,
    },
    /// A class with too few or too many cores.
    #[error("class \"{name}\" has {queues} queues and {cores} cores: give one core per queue, or none")]
    Cores {
        /// The class.
        name: String,
        /// Its queues.
        queues: u16,
        /// Its cores.
        cores: usize,
    },
}

impl Config {
    /// Reads and checks a TOML text.
    ///
    /// # Errors
    /// [`ConfigError`] with the problem.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|error| ConfigError::Syntax(error.to_string()))?;
        config.check()?;
        Ok(config)
    }

    /// The control groups that the layout would have programs in.
    #[must_use]
    pub fn groups(&self) -> Vec<String> {
        let is_wanted = self.classes.iter().any(|class| class.priority == PrioritySource::SockOps);
        let group = || self.cgroup.clone().or_else(topmost_group);
        is_wanted.then(group).flatten().into_iter().collect()
    }

    /// Checks what can be checked without a device.
    ///
    /// # Errors
    /// [`ConfigError`] with the problem.
    pub fn check(&self) -> Result<(), ConfigError> {
        let is_invalid = |sign: char| sign == '/' || sign == ':' || sign.is_whitespace();
        let name = &self.interface;
        if name.is_empty() || name.len() > 15 || name == "." || name == ".." || name.contains(is_invalid) {
            return Err(ConfigError::Interface(name.clone()));
        }
        match self.classes.len() {
            0 => return Err(ConfigError::NoClass),
            count if count > 15 => return Err(ConfigError::TooMany(count)),
            _ => {}
        }
        let mut names = BTreeSet::from(["", "other"]);
        let mut seen: Vec<(&Class, &Traffic)> = Vec::new();
        for class in &self.classes {
            if !names.insert(&class.name) {
                return Err(ConfigError::Name(class.name.clone()));
            }
            if class.queues == 0 || class.traffic.is_empty() {
                return Err(ConfigError::Empty(class.name.clone()));
            }
            if let (Some(min), Some(max)) = (class.min_rate, class.max_rate)
                && min > max
            {
                return Err(ConfigError::Rates { name: class.name.clone(), min, max });
            }
            if !class.cores.is_empty() && class.cores.len() != usize::from(class.queues) {
                let (name, queues, cores) = (class.name.clone(), class.queues, class.cores.len());
                return Err(ConfigError::Cores { name, queues, cores });
            }
            for traffic in &class.traffic {
                if let Some((other_class, other)) = seen.iter().find(|(_, other)| traffic.overlaps(other)) {
                    return Err(ConfigError::Overlap {
                        one: **other,
                        one_class: other_class.name.clone(),
                        other: *traffic,
                        other_class: class.name.clone(),
                    });
                }
                seen.push((class, traffic));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_and_options_say_the_same() {
        let file = r#"
            interface = "eth0"
            [[class]]
            name = "nvme"
            queues = 4
            min_rate = "1Gbit"
            max_rate = "10Gbit"
            traffic = ["192.0.2.10:4420", "[2001:db8::10]:4420"]
            [[class]]
            name = "memcached"
            queues = 2
            traffic = ["*:11211"]
        "#;
        let config = Config::parse(file).unwrap();
        let classes: Vec<Class> =
            ["nvme:4:1Gbit:10Gbit=192.0.2.10:4420,[2001:db8::10]:4420", "memcached:2=*:11211"]
                .map(|text| text.parse().unwrap())
                .into();
        assert_eq!(config.classes, classes);
        let written = toml::to_string(&config).unwrap();
        assert_eq!(Config::parse(&written).unwrap(), config, "{written}");
    }

    #[test]
    fn contradictions_are_named() {
        let refusal = |classes: &[&str]| {
            let classes = classes.iter().map(|text| text.parse().unwrap()).collect();
            let config = Config {
                interface: "eth0".into(),
                side: Side::Target,
                other_queues: None,
                cgroup: None,
                classes,
            };
            config.check().unwrap_err().to_string()
        };
        assert!(refusal(&[]).contains("no class"));
        assert!(refusal(&["a:0=*:1"]).contains("at least one queue"));
        assert!(refusal(&["a:1=*:1", "a:1=*:2"]).contains("used twice"));
        assert!(refusal(&["a:1:2Gbit:1Gbit=*:1"]).contains("above the maximum"));
        assert!(refusal(&["a:1=*:4420", "b:1=192.0.2.1:4420"]).contains("match the same packets"));
        assert!(refusal(&["a:1=0.0.0.0:4420", "b:1=[::1]:4420"]).contains("match the same packets"));
        for text in ["a", "a=1:2", "a:x=*:1", "a:1=*:0", "a:1=host:1", "a:1:1G:2G:3G=*:1", "a:1:fast=*:1"] {
            assert!(text.parse::<Class>().is_err(), "{text}");
        }
    }
}
