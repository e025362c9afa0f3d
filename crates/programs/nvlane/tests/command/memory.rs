//! The memory of key-value namespaces, which changes while they are used.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::support::{nvlane, run};
use tempfile::TempDir;

const MEBIBYTE: u64 = 1 << 20;

/// A target with one key-value namespace and a memcached listener.
struct Target {
    process: Child,
    directory: TempDir,
    memcached: String,
    reactor_count: usize,
}

impl Target {
    fn start(reactor_count: usize, spec: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        configure(&directory, reactor_count, spec);
        let at = |name: &str| directory.path().join(name);
        let mut command = nvlane();
        command.env("NVLANE_LOG", "info");
        command.args(["target", "--memcached", "127.0.0.1:0", "--config"]).arg(at("nvlane.toml"));
        let mut process =
            command.arg("--state").arg(at("state.json")).stderr(Stdio::piped()).spawn().expect("a target");
        let mut lines = BufReader::new(process.stderr.take().expect("piped")).lines();
        let mut line_with = |text: &str| {
            lines.find_map(|line| line.ok().filter(|line| line.contains(text))).expect("it says so")
        };
        let line = line_with("for memcached clients");
        let (_, fields) = line.split_once("address=").expect("an address");
        let memcached = fields.split_ascii_whitespace().next().expect("an address").to_owned();
        line_with("ready");
        // Its log is read to the end.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, directory, memcached, reactor_count }
    }

    /// The output of a reload with this namespace.
    fn reload(&self, spec: &str) -> crate::support::Ended {
        configure(&self.directory, self.reactor_count, spec);
        let state = self.directory.path().join("state.json");
        run(["reload".as_ref(), "--state".as_ref(), state.as_os_str()])
    }

    /// Its state, once that has so many pairs.
    fn state_with(&self, pair_count: usize) -> serde_json::Value {
        let path = self.directory.path().join("state.json");
        let pid = rustix::process::Pid::from_child(&self.process);
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            rustix::process::kill_process(pid, rustix::process::Signal::USR1).expect("it runs");
            sleep(Duration::from_millis(20));
            assert!(Instant::now() < until, "no state with {pair_count} pairs");
            // A busy machine has not written it yet.
            let Ok(text) = fs::read(&path) else { continue };
            let state: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
            if state["subsystems"][0]["namespaces"][0]["pairs"]["count"] == pair_count {
                return state;
            }
        }
    }

    fn client(&self) -> Client {
        let stream = TcpStream::connect(&self.memcached).expect("a connection");
        // The end of a batch does not wait for the acknowledgement of what is before it.
        stream.set_nodelay(true).expect("a socket");
        Client { stream: BufReader::new(stream) }
    }

    /// Resident memory without pages of files, bytes.
    fn resident_bytes(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.process.id())).expect("it runs");
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a figure");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }

    fn await_resident(&self, is_it: impl Fn(u64) -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !is_it(self.resident_bytes()) {
            assert!(Instant::now() < until, "{} bytes are resident", self.resident_bytes());
            sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Writes a configuration with one namespace; `DIR` in it is the directory.
fn configure(directory: &TempDir, reactor_count: usize, spec: &str) {
    let text = format!(
        "[reactors]\ncount = {reactor_count}\n[[listener]]\naddress = \"127.0.0.1:0\"\n[[subsystem]]\n\
         nqn = \"nqn.2026-01.io.nvlane:memory\"\nhosts = \"any\"\n[[subsystem.namespace]]\nstorage = \"{}\"\n",
        spec.replace("DIR", directory.path().to_str().expect("text"))
    );
    fs::write(directory.path().join("nvlane.toml"), text).expect("written");
}

struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    fn ask(&mut self, command: &str) -> String {
        self.stream.get_mut().write_all(format!("{command}\r\n").as_bytes()).expect("sent");
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("an answer");
        line.trim_end().to_owned()
    }

    fn stat(&mut self, kind: &str, name: &str) -> u64 {
        let mut line = self.ask(kind);
        let mut value = None;
        while line != "END" {
            let words: Vec<&str> = line.split(' ').collect();
            if words[1] == name {
                value = words[2].parse().ok();
            }
            line = self.line();
        }
        value.expect("a number")
    }

    /// Stores values of `length` bytes; each key is repeated in front of its value.
    fn fill(&mut self, keys: std::ops::Range<usize>, length: usize) {
        for first in keys.clone().step_by(100) {
            let some = first..(first + 100).min(keys.end);
            let mut commands = String::new();
            for key in some.clone() {
                let name = format!("key{key} ");
                write!(commands, "set {name}0 0 {length}\r\n{name}").expect("text");
                commands.push_str(&"x".repeat(length - name.len()));
                commands.push_str("\r\n");
            }
            self.stream.get_mut().write_all(commands.as_bytes()).expect("sent");
            some.for_each(|key| assert_eq!(self.line(), "STORED", "key {key}"));
        }
    }

    /// Keys that are present; each has its value.
    fn present(&mut self, keys: std::ops::Range<usize>) -> usize {
        let mut count = 0;
        for first in keys.clone().step_by(100) {
            let mut command = "get".to_owned();
            for key in first..(first + 100).min(keys.end) {
                write!(command, " key{key}").expect("text");
            }
            let mut line = self.ask(&command);
            while line != "END" {
                let key = line.split(' ').nth(1).expect("a key").to_owned();
                assert_eq!(self.line().split(' ').next(), Some(key.as_str()));
                count += 1;
                line = self.line();
            }
        }
        count
    }
}

#[test]
fn cache_memlimit_gives_memory_back_and_takes_more() {
    for reactor_count in [1, 2] {
        let target = Target::start(reactor_count, "kv:ram:64M");
        let mut client = target.client();
        assert!(client.ask("version").starts_with("VERSION "));
        let idle_bytes = target.resident_bytes();
        client.fill(0..60_000, 1500);
        let full_bytes = target.resident_bytes();
        assert!(full_bytes - idle_bytes > 55 * MEBIBYTE, "{full_bytes}, {idle_bytes} while empty");
        assert_eq!(client.ask("cache_memlimit 8"), "OK");
        target.await_resident(|bytes| bytes + 50 * MEBIBYTE < full_bytes);
        assert_eq!(client.stat("stats", "limit_maxbytes"), 8 * MEBIBYTE);
        assert_eq!(client.stat("stats settings", "maxbytes"), 8 * MEBIBYTE);
        let present = client.present(0..60_000);
        assert!(present > 4000, "{present} values of 1500 bytes in 8 MiB");
        assert_eq!(client.ask("cache_memlimit 96"), "OK");
        client.fill(0..100_000, 1500);
        let present = client.present(0..100_000);
        assert!(present > 58_000, "{present} values of 1500 bytes in 96 MiB");
        let full_bytes = target.resident_bytes();
        assert_eq!(client.ask("cache_memlimit 8"), "OK");
        target.await_resident(|bytes| bytes + 80 * MEBIBYTE < full_bytes);
        // The configuration has not changed, and is what a reload puts in place.
        let text = target.reload("kv:ram:64M").text();
        assert_eq!(text, "give nqn.2026-01.io.nvlane:memory namespace 1 64M of memory: done\n");
        assert_eq!(client.stat("stats", "limit_maxbytes"), 64 * MEBIBYTE);
    }
}

#[test]
fn a_reload_resizes_memory_unless_pairs_would_be_lost() {
    let target = Target::start(2, "kv:ram:32M?evict=none");
    let mut client = target.client();
    client.fill(0..10_000, 1500);
    let refused = target.reload("kv:ram:12M?evict=none");
    assert_eq!(refused.code, 1);
    assert!(refused.stdout.contains("namespace 1 to 12M: not done, its pairs need "), "{}", refused.stdout);
    assert!(client.ask("cache_memlimit 12").starts_with("MEMLIMIT_ADJUST_FAILED "));
    assert_eq!(client.stat("stats", "limit_maxbytes"), 32 * MEBIBYTE);
    let text = target.reload("kv:ram:24M?evict=none").text();
    assert_eq!(text, "resize nqn.2026-01.io.nvlane:memory namespace 1 to 24M: done\n");
    assert_eq!(client.stat("stats", "limit_maxbytes"), 24 * MEBIBYTE);
    assert_eq!(client.present(0..10_000), 10_000);
}

#[test]
fn a_log_keeps_what_leaves_memory() {
    let target = Target::start(1, "kv:file:DIR/keys?size=256M&memory=48M&sync=none");
    let mut client = target.client();
    client.fill(0..20_000, 1500);
    let text = target.reload("kv:file:DIR/keys?size=256M&memory=8M&sync=none").text();
    assert_eq!(text, "give nqn.2026-01.io.nvlane:memory namespace 1 8M of memory: done\n");
    assert_eq!(client.stat("stats", "limit_maxbytes"), 8 * MEBIBYTE);
    assert_eq!(client.present(0..20_000), 20_000);
}

#[test]
fn a_full_log_says_so_in_answers_statistics_the_state_and_the_list() {
    let target = Target::start(1, "kv:file:DIR/keys?size=32M&memory=8M&sync=none");
    let mut client = target.client();
    let value = "v".repeat(4000);
    let mut store = |key: usize| client.ask(&format!("set key{key} 0 0 4000\r\n{value}"));
    let count = (0..9000).find(|&key| store(key) != "STORED").expect("it becomes full");
    assert!(count * 4043 > (32 << 20) / 100 * 89, "{count} values of 4000 bytes in 32 MiB");
    let refused = "SERVER_ERROR log is full, the rest is headroom for cleaning";
    assert_eq!(store(count), refused);
    assert_eq!(store(count / 2), "STORED", "in place of one that is as long");
    let [used, limit, headroom] =
        ["log_bytes", "log_limit_bytes", "log_headroom_bytes"].map(|name| client.stat("stats", name));
    assert!(
        used <= limit && used + 4043 > limit && limit + headroom <= 32 << 20,
        "{used}, {limit}, {headroom}"
    );
    assert_eq!(client.stat("stats", "curr_items"), count as u64);
    assert_eq!((client.stat("stats", "store_log_full"), client.stat("stats", "store_no_memory")), (2, 0));
    let state = target.state_with(count);
    let pairs = &state["subsystems"][0]["namespaces"][0]["pairs"];
    let pair_bytes = (0..count).map(|key| 4000 + format!("key{key}").len() as u64).sum::<u64>();
    assert_eq!((&pairs["count"], &pairs["bytes"]), (&count.into(), &pair_bytes.into()), "{pairs}");
    assert_eq!((&pairs["log"]["used_bytes"], &pairs["log"]["usable_bytes"]), (&used.into(), &limit.into()));
    assert_eq!((&pairs["log"]["refused_count"], &pairs["refused_memory_count"]), (&2.into(), &0.into()));
    let address = state["listeners"][0]["address"].as_str().expect("an address");
    let list = run(["list", "-o", "json", address]).json();
    let device = &list["Devices"][0];
    assert_eq!((&device["UsedBytes"], &device["PhysicalSize"]), (&pair_bytes.into(), &(32 << 20).into()));
}

/// Pairs of a few bytes are in the index itself.
#[test]
fn pairs_in_the_index_and_in_memory_are_counted() {
    let target = Target::start(2, "kv:ram:8M");
    let mut client = target.client();
    assert_eq!(client.stat("stats", "bytes"), 0);
    assert_eq!(client.ask("set k 0 0 1\r\nv"), "STORED");
    let bytes = client.stat("stats", "bytes");
    assert!((2..64).contains(&bytes), "{bytes}");
    let state = target.state_with(1);
    let pairs = &state["subsystems"][0]["namespaces"][0]["pairs"];
    assert_eq!(
        (&pairs["count"], &pairs["bytes"], &pairs["log"]),
        (&1.into(), &2.into(), &serde_json::Value::Null)
    );
    let address = state["listeners"][0]["address"].as_str().expect("an address");
    assert_eq!(run(["list", "-o", "json", address]).json()["Devices"][0]["UsedBytes"], 2);
}

#[test]
fn a_key_value_file_keeps_its_size() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("keys");
    let start = |options: &str| {
        let spec = format!("kv:file:{}{options}", path.display());
        run(["target", "--listen", "127.0.0.1:0", "--namespace", &spec, "--run", "true"])
    };
    assert_eq!(start("?size=8M&memory=8M").code, 0);
    let refused = start("?size=16M&memory=8M");
    assert_eq!((refused.code, refused.stderr.contains("keeps its size")), (2, true), "{refused:?}");
    assert_eq!(fs::metadata(&path).expect("the file").len(), 8 << 20);
    assert_eq!(start("?size=8M&memory=8M").code, 0);
    assert_ne!(start("?size=4M&memory=8M").code, 0);
    // An earlier version made it longer, and did not use that.
    fs::File::options().write(true).open(&path).and_then(|file| file.set_len(16 << 20)).expect("longer");
    for options in ["?memory=8M", "?size=8M&memory=8M", "?size=16M&memory=8M"] {
        assert_eq!(start(options).code, 0, "{options}");
    }
}
