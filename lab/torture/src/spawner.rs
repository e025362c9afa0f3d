//! Processes that end with this one, however it ends.
//!
//! The kernel sends a parent-death signal when the thread that has started the process ends, not when its process does. So all
//! are started by one thread, which lives as long as this process.

use std::io;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{LazyLock, Mutex, PoisonError};

type Order = (Command, Sender<io::Result<Child>>);

static SPAWNER: LazyLock<Mutex<Sender<Order>>> = LazyLock::new(|| {
    let (orders, received) = channel::<Order>();
    std::thread::spawn(move || {
        for (mut command, answer) in received {
            let _ = answer.send(command.spawn());
        }
    });
    Mutex::new(orders)
});

/// A command that is killed when the thread that starts it ends.
pub(crate) fn command(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

/// Starts a process, from the one thread.
pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    let (answer, answered) = channel();
    let gone = || io::Error::other("the thread that starts processes has ended");
    SPAWNER.lock().unwrap_or_else(PoisonError::into_inner).send((command, answer)).map_err(|_| gone())?;
    answered.recv().map_err(|_| gone())?
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::process::Stdio;
    use std::time::Duration;

    use super::*;

    /// In the environment of the process that is to die.
    const DIES: &str = "NVLANE_TEST_DIES";

    /// Starts one from a thread that ends, tells its id, and waits for a signal.
    #[test]
    #[ignore = "ends with its process: the next test runs it in a child process"]
    fn the_process_that_dies() {
        if std::env::var_os(DIES).is_none() {
            return;
        }
        let start = || {
            let mut sleep = command(Path::new("sleep"));
            sleep.arg("1000");
            spawn(sleep).expect("it starts")
        };
        let mut child = std::thread::spawn(start).join().expect("no panic");
        eprintln!("started {}", child.id());
        child.wait().expect("a process");
    }

    #[test]
    fn a_process_that_dies_leaves_none_behind() {
        for signal in [rustix::process::Signal::TERM, rustix::process::Signal::KILL] {
            let mut dies = Command::new(std::env::current_exe().expect("this program"));
            dies.args(["--ignored", "--exact", "--nocapture", "spawner::tests::the_process_that_dies"]);
            let mut dies =
                dies.env(DIES, "1").stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
            let mut said = BufReader::new(dies.stderr.take().expect("piped"));
            let mut line = String::new();
            said.read_line(&mut line).expect("told");
            let id = line.trim().strip_prefix("started ").expect("an id").to_owned();
            let name = || std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
            // It has outlived the thread that asked for it. setpriv asks for the signal, and becomes it.
            while name() != "sleep\n" {
                assert_eq!(name(), "setpriv\n");
                std::thread::sleep(Duration::from_millis(1));
            }
            rustix::process::kill_process(rustix::process::Pid::from_child(&dies), signal).expect("it runs");
            dies.wait().expect("it ends");
            // It has this end of the pipe, too: the end of the text is that of both.
            said.read_to_end(&mut Vec::new()).expect("both have ended");
        }
    }
}
