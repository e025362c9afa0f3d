//! `nvlane attach nbd`: an NBD server of a target's namespaces.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use anyhow::Context;
use bridge::nbd::Export;
use bridge::{ExportSettings, Listener, NbdServer, NbdTls, NoExport, keep_memory, leave_io_flusher};
use clap::{Args, ValueEnum};
use command_line::connection::{Connection, with_subsystem};
use command_line::exit::{Ended, Failure};
use command_line::output::write;
use command_line::secret_argument::source_of;
use host::{Address, Association, Event, Events, Options};
use subsystem::config::{ClientCertificates, ServerTlsConfig};

use super::process::{END_TIME, LaneArguments, Wake, handle_signals, open_socket, start_command, wait};
use super::running::Entry;
use crate::human_size::HumanSize;
use crate::serve::start_thread;
use crate::service_manager::ServiceManager;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nvlane attach nbd 192.0.2.1 --socket /run/disk.sock
  nbdinfo 'nbd+unix:///?socket=/run/disk.sock'
  nvlane attach nbd ADDR --run 'nbdcopy disk.img \"$NVLANE_DEVICE\"'            copy an image to the namespace
  nvlane attach nbd ADDR --run 'qemu-img convert -p \"$NVLANE_DEVICE\" d.qcow2'  and from it
  nvlane attach nbd ADDR --run 'fio --name=a --ioengine=nbd --uri=\"$NVLANE_DEVICE\" --rw=randread'
  nvlane attach nbd ADDR --listen 10809 & nbd-client -b 4096 -C 4 127.0.0.1 /dev/nbd0   as root, with the nbd module

An address that names a namespace (?ns=1), or a subsystem with one block namespace, gives one export, with the name of --name or none. \
Otherwise each block namespace is an export, named by its id: nbd+unix:///2?socket=PATH.

Requests must be multiples of the block size, which clients are told; others fail with EINVAL. --socket is for this user and root alone. \
Whoever reaches the port of --listen may read and write, and sees what others do, unless clients use TLS: \
--nbd-tls-certificate and --nbd-tls-key, and --nbd-tls-client-ca to tell who they are.

While the target is lost, requests wait: up to --fast-io-fail, then they fail with EIO, and after --ctrl-loss-timeout the bridge ends. \
After a reconnect, the next flush of every connection fails with EIO once if the target has a volatile write cache: writes that were not \
flushed before may be lost.

SIGTERM and Ctrl-C end the bridge once the requests under way are answered, after 30 s at most; a second one ends it at once.")]
pub(crate) struct NbdArguments {
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    export: ExportArguments,
    #[command(flatten)]
    tls: TlsArguments,
    #[command(flatten)]
    lanes: LaneArguments,
}

/// TLS between NBD clients and the bridge.
#[derive(Debug, Args)]
#[command(next_help_heading = "TLS of NBD clients")]
struct TlsArguments {
    /// File with the certificate of the bridge (PEM, with the chain to its root): clients use TLS 1.3 or 1.2, nbds:// in URIs.
    #[arg(long, value_name = "FILE", requires = "nbd_tls_key")]
    nbd_tls_certificate: Option<PathBuf>,
    /// File with the private key of the certificate (PEM, not encrypted), or a reference such as credential:NAME.
    #[arg(long, value_name = "FILE", requires = "nbd_tls_certificate")]
    nbd_tls_key: Option<PathBuf>,
    /// File with the certificates of authorities (PEM): clients must present a certificate signed by one of them.
    #[arg(long, value_name = "FILE", requires = "nbd_tls_certificate")]
    nbd_tls_client_ca: Option<PathBuf>,
    /// Whether clients without TLS are refused.
    #[arg(long, value_name = "POLICY", requires = "nbd_tls_certificate", default_value = "required")]
    nbd_tls: TlsDemand,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TlsDemand {
    Required,
    Allowed,
}

impl TlsArguments {
    fn read(&self) -> Result<Option<NbdTls>, Failure> {
        let (Some(certificate), Some(key)) = (&self.nbd_tls_certificate, &self.nbd_tls_key) else {
            return Ok(None);
        };
        let config = ServerTlsConfig {
            certificate: source_of(certificate)?,
            key: source_of(key)?,
            client_ca: self.nbd_tls_client_ca.as_deref().map(source_of).transpose()?,
            clients: ClientCertificates::Required,
        };
        let certificate = Arc::new(config.read().map_err(Failure::usage)?);
        Ok(Some(NbdTls { certificate, is_required: self.nbd_tls == TlsDemand::Required }))
    }

    /// Whether clients have to show who they are.
    fn authenticates(&self) -> bool {
        self.nbd_tls_client_ca.is_some() && self.nbd_tls == TlsDemand::Required
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Export")]
struct ExportArguments {
    /// Serve on this Unix socket, for this user and root. [default for --run: one in a temporary directory]
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    socket: Option<PathBuf>,
    /// Serve on this TCP address; a port alone is one of 127.0.0.1. NBD's own port is 10809; port 0 takes a free one.
    #[arg(long, value_name = "[HOST:]PORT")]
    listen: Option<String>,
    /// Name of the export, for a single namespace. [default: none, the default export]
    #[arg(long, value_name = "EXPORT", default_value = "", hide_default_value = true, value_parser = export_name)]
    name: String,
    /// Refuse what changes data.
    #[arg(long)]
    read_only: bool,
    /// NBD connections at one time. Each takes a queue pair of the target, and up to 8 MiB of memory.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// Run this command with the NBD URI in $NVLANE_DEVICE, and exit with its exit code. A single word is a line for the
    /// shell.
    #[arg(long, value_name = "COMMAND", num_args = 1.., allow_hyphen_values = true)]
    run: Vec<String>,
}

/// NBD's strings have 4096 bytes at most.
fn export_name(text: &str) -> Result<String, String> {
    match text.len() {
        0..=4096 => Ok(text.to_owned()),
        bytes => Err(format!("it has {bytes} bytes: those of NBD have 4096 at most")),
    }
}

pub(crate) fn nbd(arguments: &NbdArguments) -> Ended {
    let export = &arguments.export;
    if export.socket.is_none() && export.listen.is_none() && export.run.is_empty() {
        return Err(Failure::usage(
            "say where to serve: --socket PATH, --listen PORT, or --run COMMAND for a socket of its own",
        ));
    }
    let tls = arguments.tls.read()?;
    let has_tls = tls.as_ref().is_some_and(|tls| tls.is_required);
    let (wakes, wake) = channel();
    // Before the socket is there: a signal then removes it.
    handle_signals(wakes.clone())?;
    if !keep_memory() {
        tracing::debug!(
            "memory is not locked, or not that of an I/O flusher: that takes CAP_IPC_LOCK and CAP_SYS_RESOURCE"
        );
    }
    let (address, options) =
        with_subsystem(arguments.connection.address()?, |address| arguments.options(address))?;
    let association = Association::connect(&address, options)?;
    let granted = association.queues().default;
    if granted < export.connections {
        tracing::warn!(
            wanted = export.connections,
            granted,
            "target grants fewer queue pairs: more NBD connections are refused"
        );
    }
    let settings = ExportSettings { name: export.name.clone(), is_read_only: export.read_only };
    let server = NbdServer::new(association.clone(), settings, tls).map_err(|error| match error {
        NoExport::Host(error) => error.into(),
        NoExport::NameForSeveral { .. } => Failure::usage(error),
    })?;
    let events = association.events();
    let over = wakes.clone();
    start_thread(move || report_events(&events, &over))?;
    // Removed with the socket in it.
    let directory = (export.socket.is_none() && export.listen.is_none()).then(|| {
        tempfile::Builder::new().prefix("nvlane-nbd-").tempdir().context("no directory for the socket")
    });
    let directory = directory.transpose()?;
    let place = export.socket.clone().or_else(|| Some(directory.as_ref()?.path().join("nbd.sock")));
    let listener = Arc::new(match (&export.listen, &place) {
        (None, Some(path)) => Listener::Unix(open_socket(path)?),
        (listen, _) => open_port(listen.as_deref().unwrap_or_default(), &arguments.tls)?,
    });
    server.serve(Arc::clone(&listener)).context("cannot start a thread")?;
    let exports = server.exports();
    let uris = announce(&listener, &exports, has_tls, !export.run.is_empty())?;
    ServiceManager::of_environment().tell(format_args!(
        "READY=1\nSTATUS={} exports at {}",
        exports.len(),
        uris.join(", ")
    ));
    let _entry = Entry::make("nbd", &[address.to_string()], &uris);
    leave_io_flusher();
    let ended = start_command(&export.run, uris.first(), wakes)
        .map_err(Failure::from)
        .and_then(|command| wait(&wake, command));
    if let Listener::Unix(socket) = &*listener {
        // The thread that accepts keeps the listener to the end of the process.
        socket.remove();
    }
    let is_ended = server.end(END_TIME);
    if !is_ended {
        tracing::warn!(limit_s = END_TIME.as_secs(), "NBD connections are cut: they have not ended in time");
    }
    association.close();
    ended
}

impl NbdArguments {
    fn options(&self, address: &Address) -> Result<Options, Failure> {
        self.lanes.options(self.connection.host(), address, self.export.connections)
    }
}

fn open_port(text: &str, tls: &TlsArguments) -> Result<Listener, Failure> {
    let failed = |why: &dyn std::fmt::Display| {
        Failure::usage(format!("--listen {text}: {why}; write HOST:PORT, or a port of 127.0.0.1"))
    };
    let bound = match text.parse::<u16>() {
        Ok(port) => TcpListener::bind(("127.0.0.1", port)),
        Err(_) => TcpListener::bind(text),
    };
    let listener = bound.map_err(|error| failed(&error))?;
    if let Ok(address) = listener.local_addr()
        && !address.ip().is_loopback()
        && !tls.authenticates()
    {
        let unencrypted = if tls.nbd_tls_certificate.is_some() { "" } else { ", unencrypted" };
        tracing::warn!(%address, "NBD port is open to other machines: whoever reaches it may read and write{unencrypted}");
    }
    Ok(Listener::Tcp(listener))
}

/// Tells the exports, on standard output unless that is a command's. Returns their URIs.
fn announce(
    listener: &Listener,
    exports: &[Export],
    has_tls: bool,
    has_command: bool,
) -> Result<Vec<String>, Failure> {
    let mut uris = Vec::new();
    let mut lines = String::new();
    for export in exports {
        let uri = listener.uri(&export.name, has_tls).context("address of the socket")?;
        let size = HumanSize(export.size_bytes.into()).to_string();
        tracing::info!(%uri, %size, block_bytes = export.block_bytes, "NBD export");
        lines += &format!("{uri}\n");
        uris.push(uri);
    }
    if !has_command {
        write(lines)?;
    }
    Ok(uris)
}

/// Logs what changes for clients, until the association's end. The host library logs its loss and return.
fn report_events(events: &Events, wakes: &Sender<Wake>) {
    while let Ok(event) = events.recv() {
        match event {
            Event::NamespacesChanged(nsids) => {
                let nsids: Vec<String> = nsids.iter().map(ToString::to_string).collect();
                tracing::info!(
                    namespaces = nsids.join(", "),
                    "namespaces changed: new NBD connections see it"
                );
            }
            Event::Over(error) => drop(wakes.send(Wake::Over(error.to_string()))),
            _ => {}
        }
    }
}
