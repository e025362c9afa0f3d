//! `nvlane top`: what a running target does, once per second.

mod draw;
mod screen;
mod source;
mod view;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use command_line::control_place::CONTROL_SOCKET;
use command_line::exit::{Ended, Failure};
use command_line::output::{Output, write, write_json};
use metrics::live::Live;
use ratatui_core::backend::Backend;
use ratatui_core::terminal::Terminal;

use self::draw::{Around, Choice, draw};
use self::screen::{Event, Screen};
use self::source::{Place, Source};
use self::view::{View, age};
use crate::serve::start_thread;

#[derive(Debug, Args)]
#[command(after_help = "\
  nvlane target --config nvlane.toml --control /run/nvlane/control.sock --metrics 127.0.0.1:9420
  nvlane top                            the target at /run/nvlane/control.sock
  nvlane top 127.0.0.1:9420             the same target, by its metrics port
  nvlane top --once -o json             rates of one second, for a script

Keys: 1 to 4 or Tab choose a table (namespaces, hosts, lanes, reactors), left and right the column that it is sorted by, r reverses the \
order, up and down scroll, space pauses, q ends. Tables have the 64 busiest of each kind; sums are of all.
p50 and p99 are of the phases of one command in 64: queue (from the beginning of the turn that received it), storage, doorbell (until \
its response is sent), send (until the socket has it); those of tables are of storage. BATCH is PDUs per send. A target that ends is \
waited for.

Without a terminal, everything is printed once, as text.")]
pub(crate) struct TopArguments {
    /// The control socket of the target (a path), its port for calls from other machines (tls://NAME@HOST:PORT), or its
    /// metrics port; that of another machine only if it was started with --live-page any.
    #[arg(value_name = "SOCKET|ADDR:PORT|tls://NAME@HOST:PORT", env = "NVLANE_CONTROL", default_value = CONTROL_SOCKET)]
    target: String,
    /// The same, as an option as other commands have it. It takes precedence over the argument.
    #[arg(long, value_name = "SOCKET|ADDR:PORT|tls://NAME@HOST:PORT")]
    control: Option<String>,
    /// File with the key of the caller in tls://NAME@HOST:PORT.
    #[arg(long, value_name = "FILE", env = "NVLANE_CONTROL_KEY")]
    control_key: Option<PathBuf>,
    /// Seconds between two looks, 0.1 to 3600.
    #[arg(long, short = 'i', value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Print everything once, after one interval, and end.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    output: Output,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "write 0.1 to 3600 seconds".into())
}

pub(crate) fn top(arguments: &TopArguments) -> Ended {
    let target = arguments.control.as_ref().unwrap_or(&arguments.target);
    let place = Place::named(target, arguments.control_key.clone())?;
    let mut source = Source::new(place.clone());
    // What is wrong with the place is told before the terminal is taken.
    let first = source.ask()?;
    if arguments.once || arguments.output.is_json() || !screen::is_there() {
        std::thread::sleep(arguments.interval);
        let now = source.ask()?;
        let view = View::new(&now, Some(&first));
        match arguments.output.is_json() {
            true => write_json(&view.to_json())?,
            false => write(draw::text(&view, &title(&now, &place)))?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let screen = Screen::enter().context("the terminal cannot be set")?;
    watch(screen, source, &place, first, arguments.interval).map_err(Failure::output)?;
    Ok(ExitCode::SUCCESS)
}

fn title(live: &Live, place: &Place) -> String {
    format!(
        "nvlane {}  {place}  up {}  connections: {} NVMe, {} memcached",
        live.version,
        age(live.age_ns / 1_000_000_000),
        live.connection_count,
        live.memcached_connection_count
    )
}

/// A document, or why there is none.
type Answer = Result<Live, Failure>;

/// Asks a target on a thread of its own: a target that does not answer keeps no key waiting.
fn ask_elsewhere(mut source: Source) -> anyhow::Result<(Sender<()>, Receiver<Answer>)> {
    let (ask, asked) = channel();
    let (answer, answers) = channel();
    start_thread(move || {
        while asked.recv().is_ok() {
            if answer.send(source.ask()).is_err() {
                return;
            }
        }
    })?;
    Ok((ask, answers))
}

/// Shows a target until a person or a signal ends it.
fn watch(
    screen: Screen,
    source: Source,
    place: &Place,
    first: Live,
    interval: Duration,
) -> std::io::Result<()> {
    let (ask, answers) = ask_elsewhere(source).map_err(std::io::Error::other)?;
    let mut terminal = Terminal::new(screen)?;
    terminal.clear()?;
    let mut choice = Choice::new();
    let mut view = View::new(&first, None);
    let mut now = first;
    let mut trouble: Option<String> = None;
    let mut next = Instant::now() + interval;
    let mut is_asked = false;
    loop {
        let around = Around { title: title(&now, place), trouble: trouble.as_deref() };
        terminal.draw(|frame| draw(frame.buffer_mut(), &mut view, &mut choice, &around))?;
        let until = if is_asked { Instant::now() + Duration::from_millis(20) } else { next };
        match terminal.backend().wait(until) {
            Event::End => return Ok(()),
            Event::Time => {}
            Event::Keys(keys) => {
                let width = usize::from(terminal.backend().size()?.width);
                keys.into_iter().for_each(|key| choice.take(key, &view.tables, width));
            }
        }
        if choice.wants_end {
            return Ok(());
        }
        if terminal.backend().is_resized() {
            terminal.autoresize()?;
            terminal.clear()?;
        }
        match answers.try_recv() {
            Ok(Ok(live)) => {
                (is_asked, trouble) = (false, None);
                view = View::new(&live, Some(&now));
                now = live;
            }
            Ok(Err(failure)) => (is_asked, trouble) = (false, Some(one_line(&failure))),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
        }
        if !is_asked && !choice.is_paused && Instant::now() >= next {
            is_asked = ask.send(()).is_ok();
            next = Instant::now() + interval;
        }
    }
}

fn one_line(failure: &Failure) -> String {
    failure.to_string().lines().next().unwrap_or("no answer").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_bounds() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "x", "nan", "1e9", "inf"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
