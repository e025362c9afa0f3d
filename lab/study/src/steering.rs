//! How a network device steers the traffic of a target to the target's core: a layout of `nvlane adq`, or aRFS. Both are taken
//! back with their value.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::error::{Doing, Error};

/// Entries of the kernel's table of flows, and of each queue's: as its documentation advises for a few thousand flows.
const FLOW_TABLE: (&str, &str) = ("32768", "4096");

/// The kernel's table of flows, of all devices. Only the network namespace that the machine has started with shows it.
const FLOW_TABLE_PATH: &str = "/proc/sys/net/core/rps_sock_flow_entries";

/// The ways of steering that a study may request of another machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Steering {
    /// By a layout of `nvlane adq` with one class: the target has a queue pair of its own.
    OwnQueues,
    /// By accelerated receive flow steering: the device follows the core on which a connection is read.
    Arfs,
}

/// A device to steer by.
pub(crate) struct SteeredDevice<'a> {
    pub(crate) interface: &'a str,
    /// The nvlane program.
    pub(crate) program: &'a Path,
    /// Command prefix, such as `ip netns exec NAME`, if the device is in another network namespace.
    pub(crate) launcher: &'a [String],
    /// Directory for the record of a layout; `None`: the default one.
    pub(crate) record: Option<&'a Path>,
}

/// A setting of a device, and the commands that take it back.
#[derive(Debug)]
pub(crate) struct Setting {
    undo: Vec<Words>,
}

type Words = Vec<String>;

impl Setting {
    /// Takes it back; returns whether the device is as before, and writes why not to the standard error.
    pub(crate) fn take_back(mut self) -> bool {
        self.undo()
    }

    fn undo(&mut self) -> bool {
        let mut is_done = true;
        for words in self.undo.drain(..) {
            if let Err(error) = run(&words, None) {
                eprintln!("{error}: the device is not as before");
                is_done = false;
            }
        }
        is_done
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        self.undo();
    }
}

impl SteeredDevice<'_> {
    /// Applies a layout with one class, of the traffic of a listener. Returns the setting, which takes it back, and the
    /// means by which the queues are separated: `software` if the driver has no offload.
    pub(crate) fn apply_layout(
        &self,
        listener: SocketAddr,
        core: Option<usize>,
    ) -> Result<(Setting, String), Error> {
        let layout = layout_of(self.interface, listener, core);
        let apply = self.adq(&["apply", "--config", "/dev/stdin", "-o", "json"]);
        let applied = run(&apply, Some(&layout))?;
        let setting = Setting { undo: vec![self.adq(&["remove", "--interface", self.interface])] };
        let applied: serde_json::Value = serde_json::from_str(&applied).doing("nvlane adq")?;
        let means = applied["plan"]["layout"]["means"].as_str().unwrap_or("unknown").to_owned();
        Ok((setting, means))
    }

    /// Checks that a layout for an address could be applied now.
    pub(crate) fn check_layout(&self, address: IpAddr, core: Option<usize>) -> Result<(), Error> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Lacking("only root may set the queues of an interface".into()));
        }
        if run(&self.adq(&["status", "--interface", self.interface]), None).is_ok() {
            let Self { interface, .. } = self;
            return Err(Error::Lacking(format!(
                "{interface} has a layout already: `nvlane adq remove --interface {interface}` takes it back"
            )));
        }
        let layout = layout_of(self.interface, SocketAddr::new(address, 4420), core);
        run(&self.adq(&["plan", "--config", "/dev/stdin"]), Some(&layout)).map(drop)
    }

    pub(crate) fn turn_on_arfs(&self) -> Result<Setting, Error> {
        let before = fs::read_to_string(FLOW_TABLE_PATH).doing("aRFS: the kernel's table of flows")?;
        let switch = if features(self.launcher, self.interface)?.is_on { "on" } else { "off" };
        let counts = run(&self.for_each_queue("cat \"$queue/rps_flow_cnt\"", &[]), None)?;
        let counts: Vec<&str> = counts.lines().collect();
        let undo = vec![
            self.ethtool(switch),
            self.for_each_queue("echo \"$1\" >\"$queue/rps_flow_cnt\"; shift", &counts),
            // Of the whole machine: without the prefix.
            write_table(before.trim()),
        ];
        // From here on dropping it takes the settings back.
        let setting = Setting { undo };
        run(&self.ethtool("on"), None)?;
        run(&write_table(FLOW_TABLE.0), None)?;
        run(&self.for_each_queue("echo \"$1\" >\"$queue/rps_flow_cnt\"", &[FLOW_TABLE.1]), None)?;
        Ok(setting)
    }

    fn adq(&self, arguments: &[&str]) -> Words {
        let mut words = self.launcher.to_vec();
        words.extend([self.program.display().to_string(), "adq".to_owned()]);
        words.extend(arguments.iter().map(|word| (*word).to_owned()));
        words.extend(self.record.iter().flat_map(|path| ["--record".to_owned(), path.display().to_string()]));
        words
    }

    fn ethtool(&self, switch: &str) -> Words {
        let words = ["ethtool", "-K", self.interface, "ntuple", switch].map(str::to_owned);
        [self.launcher, &words].concat()
    }

    /// A command of the shell for each receive queue, in the order of their names, which may use arguments.
    fn for_each_queue(&self, command: &str, arguments: &[&str]) -> Words {
        let script = format!("for queue in \"/sys/class/net/$0/queues/\"rx-*; do {command}; done");
        let words = ["sh", "-ec", &script, self.interface];
        let words = words.iter().chain(arguments).map(|word| (*word).to_owned());
        self.launcher.iter().cloned().chain(words).collect()
    }
}

/// A layout whose only class has one queue pair for the traffic of a listener.
fn layout_of(interface: &str, listener: SocketAddr, core: Option<usize>) -> String {
    let cores = core.map(|core| format!("cores = [{core}]\n")).unwrap_or_default();
    format!(
        "interface = \"{interface}\"\n[[class]]\nname = \"application\"\nqueues = 1\n{cores}traffic = [\"{listener}\"]\npriority = \"program\"\n"
    )
}

fn write_table(entries: &str) -> Words {
    let script = format!("echo $0 >{FLOW_TABLE_PATH}");
    ["sh", "-ec", &script, entries].map(str::to_owned).to_vec()
}

/// Rules for flows of a device, which aRFS needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rules {
    is_on: bool,
    /// Whether the driver leaves a choice.
    is_open: bool,
}

fn features(launcher: &[String], interface: &str) -> Result<Rules, Error> {
    let words = ["ethtool", "-k", interface].map(str::to_owned);
    Ok(rules_of(&run(&[launcher, &words].concat(), None)?))
}

/// `ntuple-filters` in the output of `ethtool -k`.
fn rules_of(features: &str) -> Rules {
    let line = features.lines().find_map(|line| line.trim().strip_prefix("ntuple-filters:"));
    let words = line.unwrap_or("off [fixed]");
    Rules { is_on: words.trim().starts_with("on"), is_open: !words.contains("[fixed]") }
}

/// Whether a device of this network namespace can do aRFS, and this network namespace has the kernel's table of flows.
pub(crate) fn has_arfs(interface: &str) -> bool {
    features(&[], interface).is_ok_and(|rules| rules.is_open) && Path::new(FLOW_TABLE_PATH).exists()
}

/// The interface of this network namespace that has an address; `None` without one, or without `ip`.
pub(crate) fn interface_with(address: IpAddr) -> Option<String> {
    let words = ["ip", "-o", "address", "show", "to", &address.to_string()].map(str::to_owned);
    interface_of_line(&run(&words, None).ok()?)
}

/// The interface in a line of `ip -o address`: `2: eth0    inet 192.0.2.2/24 ...`.
fn interface_of_line(line: &str) -> Option<String> {
    let name = line.split_ascii_whitespace().nth(1)?;
    name.split('@').next().map(str::to_owned)
}

/// The device of an interface in sysfs, if it has one: a virtual interface has none.
pub(crate) fn device_of(interface: &str) -> Option<PathBuf> {
    fs::canonicalize(format!("/sys/class/net/{interface}/device")).ok()
}

/// Runs a command with a text as its input, and returns its output.
pub(crate) fn run(words: &[String], input: Option<&str>) -> Result<String, Error> {
    let told = words.join(" ");
    let Some((program, arguments)) = words.split_first() else { return Ok(String::new()) };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Ctrl-C on a terminal is for the study, which then takes everything back.
    command.process_group(0);
    let failed = |reason: &str| Error::Lacking(format!("`{told}` failed: {reason}"));
    let mut child = command.spawn().map_err(|error| failed(&error.to_string()))?;
    if let Some(mut pipe) = child.stdin.take()
        && let Some(input) = input
    {
        // If it has ended already, its output says why.
        let _ = pipe.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| failed(&error.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(&reason_of(&String::from_utf8_lossy(&output.stderr))))
}

/// The last message of a program; of nvlane all lines of its error, behind those of its progress.
fn reason_of(said: &str) -> String {
    match said.find("nvlane: ") {
        Some(at) => said[at + "nvlane: ".len()..].trim().replace('\n', "; "),
        None => said.lines().next_back().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_has_one_class_for_the_listener() {
        let listener = "[2001:db8::2]:4420".parse().unwrap();
        let expected = "interface = \"eth1\"\n[[class]]\nname = \"application\"\nqueues = 1\ncores = [3]\n\
                        traffic = [\"[2001:db8::2]:4420\"]\npriority = \"program\"\n";
        assert_eq!(layout_of("eth1", listener, Some(3)), expected);
        assert_eq!(layout_of("eth1", listener, None), expected.replace("cores = [3]\n", ""));
    }

    #[test]
    fn rules_for_flows_are_known() {
        let of =
            |words: &str| rules_of(&format!("Features for eth1:\nntuple-filters: {words}\nrxvlan: on\n"));
        assert_eq!(of("off"), Rules { is_on: false, is_open: true });
        assert_eq!(of("on"), Rules { is_on: true, is_open: true });
        assert_eq!(of("off [fixed]"), Rules::default());
        assert_eq!(rules_of(""), Rules::default());
    }

    #[test]
    fn an_interface_is_found_by_its_address() {
        let line =
            "2: eth0    inet 192.0.2.2/24 brd 192.0.2.255 scope global eth0\\       valid_lft forever\n";
        assert_eq!(interface_of_line(line).as_deref(), Some("eth0"));
        assert_eq!(interface_of_line("7: near0@if6  inet6 2001:db8::2/64").as_deref(), Some("near0"));
        assert_eq!(interface_of_line(""), None);
    }

    #[test]
    fn a_program_that_fails_is_told_with_its_reason() {
        let sh = |script: &str| run(&["sh", "-c", script].map(str::to_owned), Some("text"));
        assert_eq!(sh("cat").unwrap(), "text");
        let failed = sh("echo 1/3 a step >&2; echo nvlane: one >&2; echo two >&2; exit 1").unwrap_err();
        assert!(failed.to_string().ends_with("failed: one; two"), "{failed}");
        let failed = sh("echo first >&2; echo last >&2; exit 1").unwrap_err();
        assert!(failed.to_string().ends_with("failed: last"), "{failed}");
        assert!(run(&["/no/such".to_owned()], None).unwrap_err().to_string().contains("/no/such"));
    }
}
