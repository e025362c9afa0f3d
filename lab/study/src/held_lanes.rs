//! Thousands of mostly idle lanes, held by child processes: the descriptor limit of one process may be too low.
//!
//! ```text
//! study                          holder (this program, with `study --hold ADDR COUNT DEPTH [TLS_KEY]`)
//!   ◀──── "connected" ────────   all lanes are connected
//!   ───── a line ────────────▶
//!   ◀──── "exercised" ────────   every lane has executed a few commands
//!   ───── end of input ──────▶   ends
//! ```

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use host::{Address, Options};

use crate::descriptors::host_lane_count_max;
use crate::error::{Doing, Error};
use crate::keys;
use crate::lanes::Lanes;
use crate::served::Served;

/// Keep-alive timeout, as Linux hosts have it. Two keep-alives are sent in this time.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

const CONNECTED: &str = "connected";
const EXERCISED: &str = "exercised";

/// Lanes held by child processes.
#[derive(Debug)]
pub(crate) struct HeldLanes {
    holders: Vec<Holder>,
}

/// A process that holds lanes, and its output.
#[derive(Debug)]
struct Holder {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl HeldLanes {
    /// Connects `count` lanes of `depth` commands each, with TLS if there is a file with its key.
    ///
    /// # Errors
    /// A lane does not connect; its process has written the reason to the standard error of this process.
    pub(crate) fn connect(
        served: &Served,
        count: u64,
        depth: u16,
        tls_key: Option<&Path>,
    ) -> Result<Self, Error> {
        let most = host_lane_count_max(linux::allow_descriptors());
        let mut held_lanes = Self { holders: Vec::new() };
        let mut left = count;
        while left > 0 {
            let part = left.min(most);
            held_lanes.holders.push(Holder::start(served, part, depth, tls_key)?);
            left -= part;
        }
        held_lanes.expect(CONNECTED)?;
        Ok(held_lanes)
    }

    /// Executes a few reads at once on each lane, so that it allocates the memory of a used lane.
    pub(crate) fn exercise(&mut self) -> Result<(), Error> {
        for holder in &mut self.holders {
            if let Some(input) = &mut holder.child.stdin {
                writeln!(input).doing("a process that holds lanes")?;
            }
        }
        self.expect(EXERCISED)
    }

    fn expect(&mut self, word: &'static str) -> Result<(), Error> {
        for holder in &mut self.holders {
            let mut line = String::new();
            let read = holder.output.read_line(&mut line);
            read.doing("a process that holds lanes")?;
            if line.trim() != word {
                return Err(Error::Load("idle lanes were lost".into()));
            }
        }
        Ok(())
    }
}

impl Holder {
    fn start(served: &Served, count: u64, depth: u16, tls_key: Option<&Path>) -> Result<Self, Error> {
        let program = std::env::current_exe().doing("which program this is")?;
        let mut command = Command::new(program);
        command.args(["study", "--hold"]).arg(served.address().to_string());
        command
            .args([count.to_string(), depth.to_string()])
            .args(tls_key)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().doing("cannot start a process that holds lanes")?;
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Ok(Self { child, output })
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Holds lanes for the study that started this process, until its input ends; with TLS if there is a file with its key.
pub fn hold(address: &Address, count: u64, depth: u16, tls_key: Option<&Path>) -> Result<(), Error> {
    linux::allow_descriptors();
    let tls = tls_key.map(keys::tls_of_file).transpose()?;
    let options = Options::default().with_depth(depth).with_keep_alive(KEEP_ALIVE).with_tls(tls);
    let mut lanes = Lanes::connect(address, usize::try_from(count).unwrap_or(usize::MAX), &options)?;
    let say = |word: &str| {
        let mut output = std::io::stdout().lock();
        writeln!(output, "{word}").and_then(|()| output.flush())
    };
    let lost = |error| Error::system("the study that wants these lanes", error);
    say(CONNECTED).map_err(lost)?;
    for line in std::io::stdin().lines() {
        line.map_err(lost)?;
        lanes.exercise()?;
        say(EXERCISED).map_err(lost)?;
    }
    Ok(())
}
