//! `nvlane study serve`: starts targets for a study on another machine.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use command_line::exit::{Ended, Failure};
use command_line::signals::EndOnSignal;
use command_line::values::cores;
use linux::CoreList;
use linux::randomness::Randomness;
use security::access_token::{AccessToken, RANDOM_BYTES};
use study::experiment::Error;
use study::remote::server::{Event, ServerSettings, StudyServer};
use study::remote::{PORT, PortRange};

use super::failure;
use super::far_targets::token_of_file;
use crate::product::product;

#[derive(Debug, Args)]
#[command(after_help = "\
On the machine of the targets, and on the machine of the load:

    nvlane study serve --listen 192.0.2.2 --cores 2,3               prints the second command, with a token
    nvlane study iosize --target 192.0.2.2 --token TOKEN --cores 1  writes the report

Both machines need the same version of nvlane. One study runs at a time. Its targets listen on the address by which it reached this \
server, and end with its connection, also if the study is killed.

A firewall between the machines has to let the study's machine connect to the port of this server and to those of the targets: any \
port, or with --data-ports those of a range. Each target has a port of its own: 32 are enough for every study.

A study chooses among a fixed set of namespaces and options of nvlane target, and never names a path or a command. kv-peers and \
kv-hit-ratio have this server start memcached and redis, from the path or from $NVLANE_MEMCACHED_BIN and $NVLANE_REDIS_BIN. stacks has it start SPDK's target (nvmf_tgt, from the path or from $NVLANE_SPDK_BIN) and, \
as root and with the modules nvmet, nvmet-tcp and nvmet-rdma loaded, the kernel's; for RDMA the data address has to be that of an RDMA device. Experiments \
that place two things on this machine need a second core. A study may have 32 targets at a time, namespaces in memory of as much as is free, and one file of at most 1 GiB, in a directory of the server in $TMPDIR \
(/tmp), which is removed after the study.

With --interface a study may also set the queues of that interface, and of no other. A layout is recorded in /var/lib/nvlane-adq, or \
where $NVLANE_ADQ_RECORD says: if this server is killed, nvlane adq remove --interface IF removes the layout.

The token is never sent: a study proves that it has it. The connection and the namespaces of the targets are not encrypted, and any \
host that reaches a target uses its namespaces: use a network of your own.")]
pub(crate) struct ServeArguments {
    /// Address to listen on for studies. [default: 127.0.0.1:4421]
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = listen_address)]
    listen: Option<SocketAddr>,
    /// Address on which targets listen. [default: the address by which the study reached this server]
    #[arg(long, value_name = "ADDR")]
    data_address: Option<IpAddr>,
    /// Ports on which targets listen, one for each target. [default: any free port]
    #[arg(long, value_name = "FIRST-LAST")]
    data_ports: Option<PortRange>,
    /// Cores of the targets. [default: the first one available]
    #[arg(short = 'c', long, value_name = "LIST", value_parser = cores)]
    cores: Option<CoreList>,
    /// Let studies set the queues of this network interface, which has the targets' address: adq then applies a layout of nvlane
    /// adq with a queue pair for one target, or turns on aRFS, and this server undoes it when that target ends, the study
    /// ends, or its connection is lost. Needs root.
    #[arg(long, value_name = "IF")]
    interface: Option<String>,
    /// File with the token that studies must know, at least 16 characters. [default: a new one, which is printed]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    match bare.parse() {
        Ok(ip) => Ok(SocketAddr::new(ip, PORT)),
        Err(_) => text.parse().map_err(|_| "expected an IP address, with a port or without".to_owned()),
    }
}

pub(super) fn serve(arguments: &ServeArguments) -> Ended {
    let token = match &arguments.token_file {
        Some(path) => token_of_file(path)?,
        None => {
            let mut random = [0; RANDOM_BYTES];
            Randomness::System.fill(&mut random).context("random numbers for a token")?;
            AccessToken::from_random(&random)
        }
    };
    let cores = match &arguments.cores {
        Some(cores) => cores.clone(),
        None => {
            let allowed = CoreList::allowed().context("cores")?;
            let first = allowed.cores().first().context("no core")?;
            first.to_string().parse().context("cores")?
        }
    };
    let listen = arguments.listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], PORT)));
    let settings = ServerSettings {
        program: product()?,
        listen,
        data_address: arguments.data_address,
        data_ports: arguments.data_ports,
        cores,
        interface: arguments.interface.clone(),
        token,
    };
    let server = StudyServer::bind(settings).map_err(|error| match error {
        Error::Lacking(reason) => Failure::usage(reason),
        error => Failure::usage(format!("{listen}: {error}")),
    })?;
    let stops = Arc::default();
    let _handlers = EndOnSignal::new(&stops)?;
    announcement(arguments, &server)?.lines().for_each(say);
    server.run(&stops, &|event| say(&told(&event))).map_err(failure)?;
    Ok(ExitCode::SUCCESS)
}

/// The address, and the command for the other machine.
fn announcement(arguments: &ServeArguments, server: &StudyServer) -> Result<String, Failure> {
    let address = server.address().map_err(failure)?;
    let target = match (address.ip().is_unspecified(), address.port()) {
        (true, PORT) => "ADDRESS_OF_THIS_MACHINE".to_owned(),
        (true, port) => format!("ADDRESS_OF_THIS_MACHINE:{port}"),
        (false, PORT) => address.ip().to_string(),
        (false, _) => address.to_string(),
    };
    let token = match &arguments.token_file {
        Some(path) => format!("--token-file {}", path.display()),
        None => format!("--token {}", server.settings().token),
    };
    let cores = &server.settings().cores;
    let cores = format!("core{} {cores}", if cores.cores().len() == 1 { "" } else { "s" });
    let ports = arguments.data_ports.map_or(String::new(), |ports| format!(" and ports {ports}"));
    let interface = arguments.interface.as_ref();
    let interface = interface.map_or(String::new(), |name| format!(", studies set the queues of {name}"));
    Ok(format!(
        "listening for studies on {address}, targets on {cores}{ports}{interface}\non the other machine: nvlane study NAME --target {target} {token}"
    ))
}

fn told(event: &Event) -> String {
    match event {
        Event::Began(peer) => format!("study from {} began", peer.ip()),
        Event::Ended(peer, None) => format!("study from {} ended", peer.ip()),
        Event::Ended(peer, Some(reason)) => format!("study from {} ended: {reason}", peer.ip()),
        Event::Refused(peer, reason) => format!("connection from {} refused: {reason}", peer.ip()),
        Event::Crowded(1) => "a connection without a proof of the token was closed for a newer one".into(),
        Event::Crowded(count) => {
            format!("{count} connections without a proof of the token were closed for newer ones")
        }
        Event::Set(interface, how) => format!("{interface}: {how} for a target of the study"),
        Event::TakenBack(interface, true) => format!("{interface}: as before"),
        Event::TakenBack(interface, false) => format!("{interface}: not as before"),
    }
}

/// Writes a line, which may have text of a peer. A server whose output is closed still serves.
fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    let _ = writeln!(output, "{}", wire::text::without_hidden(line, false)).and_then(|()| output.flush());
}
