//! The machines of a study whose targets ran on another machine than its load.

use std::net::SocketAddr;

use load::environment::Environment;
use serde::Serialize;

use crate::bench::Bench;
use crate::experiment::{About, Machines};
use crate::format::bytes;
use crate::remote::MachineDescription;

/// The machine of the targets, and the measurements that the study lacks because of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TargetMachine {
    /// The study server.
    pub server: SocketAddr,
    /// Its machine: address and cores of the targets, processor, kernel, memory, nvlane's version.
    #[serde(flatten)]
    pub machine: MachineDescription,
    /// Cores of the load, on this machine.
    pub host_cores: Vec<usize>,
    /// Measurements that are missing between two machines, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without: Option<&'static str>,
}

impl TargetMachine {
    /// The machine of a bench's study server, if it has one and the experiment uses it.
    pub fn of(bench: &Bench, about: &About) -> Option<Self> {
        let server = bench.server.as_ref()?;
        let without = match about.machines {
            Machines::Here(_) => return None,
            Machines::TwoWithout(what) => Some(what),
            Machines::OneOrTwo => None,
        };
        Some(Self {
            server: server.address,
            machine: server.machine.clone(),
            host_cores: bench.host_cores.clone(),
            without,
        })
    }

    /// The host's machine, in a line.
    pub fn host_in_words(&self, host: &Environment) -> String {
        in_words(host, &self.host_cores)
    }

    /// The targets' machine, in a line.
    pub fn target_in_words(&self) -> String {
        let MachineDescription { environment, cores, data_address, .. } = &self.machine;
        format!("{data_address}, {}", in_words(environment, cores))
    }

    /// The remark that it was measured between two machines, and on which, in lines.
    pub fn lines(&self, host: &Environment) -> Vec<String> {
        let mut lines = vec![
            "Measured between two machines.".to_owned(),
            format!("host: {}", self.host_in_words(host)),
            format!("target: {}", self.target_in_words()),
        ];
        lines.extend(self.without.map(|without| format!("n/a between two machines: {without}.")));
        lines
    }
}

/// The remark that an experiment ran on this machine alone although a study server was named, in a sentence.
pub fn only_here(bench: &Bench, about: &About) -> Option<String> {
    match about.machines {
        Machines::Here(reason) if bench.is_remote() => {
            Some(format!("Measured on this machine alone: {reason}."))
        }
        _ => None,
    }
}

fn in_words(environment: &Environment, cores: &[usize]) -> String {
    let numbers: Vec<String> = cores.iter().map(usize::to_string).collect();
    let memory = environment.memory_bytes.map(|memory| format!("{} of memory", bytes(memory as f64)));
    let parts = [
        environment.kernel.as_ref().map(|kernel| format!("Linux {kernel}")),
        environment.cpu_model.clone(),
        Some(match numbers.as_slice() {
            [] => "any core".to_owned(),
            [core] => format!("core {core}"),
            cores => format!("cores {}", cores.join(",")),
        }),
        memory,
        environment
            .interface
            .as_ref()
            .map(|interface| format!("{} with an MTU of {} bytes", interface.name, interface.mtu)),
        Some(format!("nvlane {}", environment.nvlane_version)),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
pub(crate) mod example {
    use load::environment::Interface;

    use super::*;

    /// An invented second machine.
    pub(crate) fn machine() -> TargetMachine {
        TargetMachine {
            server: "192.0.2.2:4421".parse().unwrap(),
            machine: MachineDescription {
                data_address: [192, 0, 2, 2].into(),
                cores: vec![2, 3],
                lane_count_max: 1000,
                steering: None,
                environment: Environment {
                    kernel: Some("6.1.9".into()),
                    cpu_model: Some("A <Processor>".into()),
                    nvlane_version: "0.1.0".into(),
                    interface: Some(Interface { name: "eth0".into(), mtu: 9000 }),
                    ..Environment::default()
                },
            },
            host_cores: vec![0],
            without: Some("the ceiling, because of the method"),
        }
    }
}
