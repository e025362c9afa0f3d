//! Volumes of an nvlane target for Kubernetes, by the Container Storage Interface: the program `nvlane-csi`.
//!
//! ```text
//! endpoint ▶ route ▶ services ▶ identity
//!                             ▶ controller ▶ target ▶ control_call            the target's control socket or port
//!                             ▶ node ▶ node/linux                             the kernel's host, mounts
//! authentication: secrets of nodes, and where the target has them
//! csi_v1: messages of the interface; name, capability, topology, pending, refusal: what both sides need
//! ```
//!
//! docs/design/csi.md
#![forbid(unsafe_code)]
// All methods of the interface have one form (route.rs), whether they keep parts of the request or not.
#![allow(clippy::needless_pass_by_value)]

mod authentication;
mod capability;
mod context;
mod control_call;
mod controller;
/// Written by `cargo xtask csi-proto`.
#[rustfmt::skip]
#[allow(missing_docs, unreachable_pub, clippy::all)]
mod csi_v1;
mod endpoint;
mod identity;
mod name;
mod node;
mod pending;
mod refusal;
mod route;
mod services;
mod target;
mod timestamp;
mod topology;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use command_line::control_place::ControlOptions;
use command_line::exit::{Ended, Failure, Kind};
use command_line::logging::LogOptions;
use command_line::secret_argument::source_of;
use command_line::{exit, logging, manual};
use linux::private_socket::PrivateSocket;
use wire::nqn::Nqn;

use self::authentication::OwnSecrets;
use self::control_call::ControlCaller;
use self::controller::Controller;
use self::node::{LinuxMachine, Node};
use self::services::Services;
use self::target::Target;

/// What the NQNs of served volumes begin with.
const NQN_PREFIX: &str = "nqn.2026-01.io.nvlane:csi";

/// Limit of that: the rest of an NQN is a volume's id, of 128 bytes at most.
const NQN_PREFIX_BYTES_MAX: usize = 90;

/// Files of nvme-cli with the host's NQN and id.
const HOST_NQN: &str = "/etc/nvme/hostnqn";
const HOST_ID: &str = "/etc/nvme/hostid";

const HELP: &str = "\
  nvlane-csi csi --endpoint unix:/csi/csi.sock --control /run/nvlane/control.sock --mode controller
  nvlane-csi csi --endpoint unix:/csi/csi.sock --control tls://csi@192.0.2.1:9421 --control-key csi.key --mode controller
  nvlane-csi csi --endpoint unix:/csi/csi.sock --mode node

The controller creates volumes in the target's pools (nvlane ctl pool add fast --dir /srv/fast) and serves each to the nodes that have \
it. Nodes connect by the kernel's nvme-tcp. Kubernetes' manifests are in packaging/kubernetes; docs/guide/kubernetes.md leads through.

Exit codes: 0 ended by a signal, 1 failed, 2 wrong options.";

/// Volumes of an nvlane target for Kubernetes. `nvlane csi` starts this program.
#[derive(Debug, Parser)]
#[command(name = "nvlane-csi", version, max_term_width = 110)]
struct Cli {
    #[command(flatten)]
    log: LogOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)] // One value exists per process.
enum Command {
    /// Serve the Container Storage Interface at a Unix socket.
    #[command(after_help = HELP)]
    Csi(CsiArguments),
    /// Write a completion script for a shell.
    Completions(manual::CompletionsArguments),
    /// Write the manual pages.
    Man(manual::ManArguments),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Creates volumes on the target: once in a cluster.
    Controller,
    /// Mounts volumes: on each node.
    Node,
    /// Both in one process: a cluster of one machine.
    Both,
}

#[derive(Debug, clap::Args)]
struct CsiArguments {
    /// Socket that Kubernetes' programs call; only this user and root may.
    #[arg(long, value_name = "unix:PATH", env = "CSI_ENDPOINT", value_parser = endpoint::parse)]
    endpoint: PathBuf,
    /// Services of this process.
    #[arg(long, value_name = "MODE")]
    mode: Mode,
    /// Name of the driver, as CSIDriver and StorageClass have it.
    #[arg(long, value_name = "NAME", default_value = "csi.nvlane.io", value_parser = driver_name)]
    driver_name: String,
    /// What the NQNs of served volumes begin with: the same for controller and nodes.
    #[arg(long, value_name = "NQN", default_value = NQN_PREFIX, value_parser = nqn_prefix)]
    nqn_prefix: String,
    /// A segment of the topology from which the target is reached, such as topology.kubernetes.io/zone=a. May be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = topology::segment)]
    topology: Vec<(String, String)>,
    #[command(flatten, next_help_heading = "Controller")]
    control: ControlOptions,
    /// A pool that volumes may be in; the first one is the usual one. May be repeated. [default: all of the target]
    #[arg(long, value_name = "NAME", help_heading = "Controller")]
    pool: Vec<String>,
    /// Address that nodes connect to. May be repeated, for several paths. [default: those of the target's listeners]
    #[arg(long, value_name = "ADDR:PORT", help_heading = "Controller")]
    portal: Vec<SocketAddr>,
    /// Host NQN of this node, its name for the controller. [default: that in /etc/nvme/hostnqn]
    #[arg(long, value_name = "NQN", value_parser = node_id, help_heading = "Node")]
    node_id: Option<String>,
    /// File with this node's secret (DHHC-1:…, see `nvlane keys generate`), or keyring:NAME: for volumes whose class has
    /// dhchapSecret, and no secret in Kubernetes.
    #[arg(long, value_name = "FILE", help_heading = "Node")]
    dhchap_secret: Option<PathBuf>,
    /// File with the secret with which the target authenticates to this node, or keyring:NAME: for dhchapCtrlSecret.
    #[arg(long, value_name = "FILE", requires = "dhchap_secret", help_heading = "Node")]
    dhchap_ctrl_secret: Option<PathBuf>,
    /// Volumes that this node may have at one time; 0 for any number.
    #[arg(long, value_name = "COUNT", default_value_t = 0, help_heading = "Node")]
    max_volumes: u32,
}

fn driver_name(text: &str) -> Result<String, String> {
    let bytes = text.as_bytes();
    let is_letter = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let is_good = is_letter(bytes.first()) && is_letter(bytes.last()) && bytes.len() <= 63;
    match is_good && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(byte)) {
        true => Ok(text.into()),
        false => {
            Err("write a name as domains have, of at most 63 characters, such as csi.example.com".into())
        }
    }
}

fn nqn_prefix(text: &str) -> Result<String, String> {
    let is_good =
        text.parse::<Nqn>().is_ok() && text.starts_with("nqn.") && !text.contains(',') && text.contains(':');
    match is_good && text.len() <= NQN_PREFIX_BYTES_MAX {
        true => Ok(text.into()),
        false => {
            Err(format!("write an NQN of at most {NQN_PREFIX_BYTES_MAX} characters, such as {NQN_PREFIX}"))
        }
    }
}

/// Options of the kernel have commas between them.
fn node_id(text: &str) -> Result<String, String> {
    match text.starts_with("nqn.") && text.parse::<Nqn>().is_ok() && !text.contains(',') {
        true => Ok(text.into()),
        false => Err("write a host NQN, such as nqn.2014-08.org.nvmexpress:uuid:… (nvme gen-hostnqn)".into()),
    }
}

/// The program: reads the command line, and serves until a signal ends it.
#[must_use]
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::wrong_options(&error),
    };
    logging::start(&cli.log, "info");
    let result = match cli.command {
        Command::Csi(arguments) => serve(arguments),
        Command::Completions(arguments) => manual::completions(&arguments, &mut Cli::command()),
        Command::Man(arguments) => manual::man(&arguments, Cli::command()),
    };
    match result {
        Ok(code) => code,
        Err(failure) => exit::report(&failure),
    }
}

fn serve(arguments: CsiArguments) -> Ended {
    let topology: topology::Segments = arguments.topology.into_iter().collect();
    let controller = (arguments.mode != Mode::Node).then(|| Controller {
        target: Target::new(ControlCaller::new(arguments.control)),
        pools: arguments.pool,
        nqn_prefix: arguments.nqn_prefix.clone(),
        portals: arguments.portal.iter().map(ToString::to_string).collect(),
        topology: topology.clone(),
        pending: Default::default(),
    });
    let node = match arguments.mode {
        Mode::Controller => None,
        Mode::Node | Mode::Both => {
            let host_nqn = arguments.node_id.map_or_else(host_nqn, Ok).map_err(Failure::usage)?;
            let host_id = host_id(&host_nqn);
            Some(Node {
                machine: Box::new(LinuxMachine { host_nqn: host_nqn.clone(), host_id }),
                node_id: host_nqn,
                nqn_prefix: arguments.nqn_prefix,
                volume_count_max: arguments.max_volumes,
                secrets: OwnSecrets {
                    host: arguments.dhchap_secret.as_deref().map(source_of).transpose()?,
                    controller: arguments.dhchap_ctrl_secret.as_deref().map(source_of).transpose()?,
                },
                topology: topology.clone(),
                pending: Default::default(),
            })
        }
    };
    let services = Services {
        driver_name: arguments.driver_name,
        has_topology: !topology.is_empty(),
        controller,
        node,
        was_ready: false.into(),
    };
    let socket = PrivateSocket::open(&arguments.endpoint, "driver")
        .map_err(|why| Failure::usage(format!("--endpoint {}: {why}", arguments.endpoint.display())))?;
    tracing::info!(
        endpoint = %arguments.endpoint.display(),
        mode = ?arguments.mode,
        driver = %services.driver_name,
        node = services.node.as_ref().map(|node| node.node_id.as_str()),
        "driver serves"
    );
    endpoint::serve(&socket, Arc::new(services))
        .map_err(|error| Failure::new(Kind::Failed, format!("{error:#}")))?;
    Ok(ExitCode::SUCCESS)
}

/// The NQN of this machine as a host.
fn host_nqn() -> Result<String, String> {
    let how = "create it with nvme gen-hostnqn > /etc/nvme/hostnqn, or name it with --node-id";
    let text = std::fs::read_to_string(HOST_NQN).map_err(|error| format!("{HOST_NQN}: {error}: {how}"))?;
    node_id(text.trim()).map_err(|why| format!("{HOST_NQN}: {why}: {how}"))
}

/// The UUID of this machine as a host. The kernel wants one NQN to have one: that of nvme-cli, or the UUID in the NQN.
fn host_id(host_nqn: &str) -> Option<String> {
    let of_file = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let is_file_of_nqn = of_file(HOST_NQN).is_some_and(|nqn| nqn == host_nqn);
    let id = of_file(HOST_ID).filter(|_| is_file_of_nqn);
    let id = id.or_else(|| host_nqn.rsplit_once(":uuid:").map(|(_, uuid)| uuid.to_owned()));
    let is_uuid =
        |id: &String| id.len() == 36 && id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    id.filter(is_uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn names_that_nothing_can_have_are_refused_with_an_example() {
        assert!(
            driver_name("csi.nvlane.io").is_ok()
                && driver_name("csi_nvlane").is_err()
                && driver_name("").is_err()
        );
        assert!(nqn_prefix(NQN_PREFIX).is_ok() && nqn_prefix("nqn.2026-01.io.nvlane:a,b").is_err());
        assert!(nqn_prefix(&format!("{NQN_PREFIX}{}", "x".repeat(90))).is_err());
        assert!(node_id("node-1").is_err_and(|why| why.contains("nvme gen-hostnqn")));
        let uuid = "8f2b0c3e-5d3a-4b6e-9d57-0a2f3f1c7e11";
        assert_eq!(host_id(&format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}")).as_deref(), Some(uuid));
        assert_eq!(host_id("nqn.2026-01.com.example:node"), None);
    }
}
