//! What all bridges have in common: options of their lanes, signals, the command of `--run`, the end.

use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use command_line::connection::HostOptions;
use command_line::exit::{Ended, Failure, Kind};
use command_line::values::seconds;
use host::reconnect::ReconnectSettings;
use host::{Address, DoorbellPolicy, Options, Receive, ReplayPolicy};
use linux::private_socket::PrivateSocket;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::run;
use crate::serve::start_thread;

/// Time for the requests under way after SIGTERM; a second signal ends at once.
pub(super) const END_TIME: Duration = Duration::from_secs(30);

/// Timeout of one command. A network that is gone without a word is noticed before, after 15 s: a command that is late by then
/// would fail instead of waiting for the target.
const ANSWER: Duration = Duration::from_secs(30);

/// Longest time without an answer to a Keep Alive, which is sent every 5 s.
const KEEP_ALIVE_ANSWER: Duration = Duration::from_secs(10);

/// Longest pause between two attempts to reach a lost target.
const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(2);

/// When commands are sent, and what becomes of requests while the target is lost.
#[derive(Debug, Args)]
pub(super) struct LaneArguments {
    /// Seconds to try to reconnect to a lost target before the bridge ends.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "600", help_heading = "Connection")]
    ctrl_loss_timeout: Duration,
    /// Seconds that requests wait for a lost target, or for a namespace that the target does not reach, before they fail with
    /// EIO.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "60", help_heading = "Connection")]
    fast_io_fail: Duration,
    /// Which commands are resubmitted after a reconnect: all, as kernels do, or only reads; an interrupted write then fails
    /// with EIO.
    #[arg(long, default_value = "all", help_heading = "Connection")]
    replay: Replay,
    /// When submitted commands are sent: immediate, turn, `fixed[:COMMANDS,BYTES,MICROSECONDS]` or
    /// `adaptive[:MICROSECONDS]`. [default: adaptive]
    #[arg(
        long,
        value_name = "POLICY",
        default_value = "adaptive",
        hide_default_value = true,
        help_heading = "Connection"
    )]
    doorbell: DoorbellPolicy,
    /// How bytes are received, for comparison: everything available into one warm buffer (staging), or PDU by PDU, with
    /// one call per header or data (pdu).
    #[arg(long, value_name = "HOW", default_value = "staging", help_heading = "Connection")]
    receive: Receive,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Replay {
    All,
    Reads,
}

impl LaneArguments {
    /// A bridge's options for this address and number of lanes.
    ///
    /// # Errors
    /// As [`HostOptions::options`].
    pub(super) fn options(
        &self,
        host: &HostOptions,
        address: &Address,
        lanes: u16,
    ) -> Result<Options, Failure> {
        let reconnect = ReconnectSettings::default()
            .with_delay_max(RECONNECT_PAUSE_MAX)
            .with_give_up_after(self.ctrl_loss_timeout);
        let replay = match self.replay {
            Replay::All => ReplayPolicy::Idempotent,
            Replay::Reads => ReplayPolicy::ReadsOnly,
        };
        let options = host.options(ANSWER, address)?;
        let answer = options.command_timeout;
        let options =
            options.with_lanes(lanes).with_reconnect(reconnect).with_replay(replay).tuned(|tuning| {
                tuning.fast_io_fail = Some(self.fast_io_fail);
                tuning.path_timeout = self.fast_io_fail;
                tuning.doorbell = self.doorbell;
                tuning.receive = self.receive;
                tuning.admin_timeout = answer.min(KEEP_ALIVE_ANSWER);
            });
        Ok(options)
    }
}

/// What the main thread waits for.
pub(super) enum Wake {
    Signal(i32),
    CommandEnded(std::io::Result<ExitStatus>),
    /// The association ended for good.
    Over(String),
    /// The user of the bridge has detached it.
    Detached(String),
}

/// The addresses of the command line.
pub(super) fn parse_addresses(texts: &[String]) -> Result<Vec<Address>, Failure> {
    let parse =
        |text: &String| text.parse().map_err(|error| Failure::usage(format!("address {text}: {error}")));
    texts.iter().map(parse).collect()
}

/// Opens the socket of `--socket`.
pub(super) fn open_socket(path: &Path) -> Result<PrivateSocket, Failure> {
    let shown = path.display();
    let path =
        std::path::absolute(path).map_err(|error| Failure::usage(format!("--socket {shown}: {error}")))?;
    let socket = PrivateSocket::open(&path, "bridge");
    socket.map_err(|why| Failure::usage(format!("--socket {shown}: {why}")))
}

/// Starts the thread that takes SIGINT and SIGTERM. The second one ends the process.
pub(super) fn handle_signals(wakes: Sender<Wake>) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("signal handlers")?;
    start_thread(move || {
        for (index, signal) in signals.forever().enumerate() {
            if index > 0 {
                // Returns only if it fails.
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
            let _ = wakes.send(Wake::Signal(signal));
        }
    })
}

/// Starts the command of `--run`, if there is one, and a thread that waits for its end.
pub(super) fn start_command(
    words: &[String],
    device: Option<&String>,
    wakes: Sender<Wake>,
) -> anyhow::Result<Option<Pid>> {
    if words.is_empty() {
        return Ok(None);
    }
    let device = device.cloned().unwrap_or_default();
    let mut child = run::start(words, &[("NVLANE_DEVICE", device)])?;
    let command = Pid::from_raw(i32::try_from(child.id()).unwrap_or(0));
    start_thread(move || drop(wakes.send(Wake::CommandEnded(child.wait()))))?;
    Ok(command)
}

/// Waits for the end: a signal, the command's end, or that of the association.
pub(super) fn wait(wake: &Receiver<Wake>, command: Option<Pid>) -> Ended {
    loop {
        match wake.recv() {
            Ok(Wake::Signal(signal)) => match command {
                // Of SIGINT the terminal has told the command.
                Some(command) if signal == SIGTERM => drop(kill_process(command, Signal::TERM)),
                Some(_) => {}
                None => {
                    tracing::info!("ending: requests under way are answered first");
                    return Ok(ExitCode::SUCCESS);
                }
            },
            Ok(Wake::CommandEnded(status)) => {
                return Ok(ExitCode::from(run::code(status.context("the command")?)));
            }
            Ok(Wake::Detached(why)) => {
                tracing::info!("ending: {why}");
                if command.is_none() {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            Ok(Wake::Over(why)) => return Err(Failure::new(Kind::Unreachable, why)),
            Err(_) => return Ok(ExitCode::SUCCESS),
        }
    }
}
