//! Somebody who changes a target all day: by its control socket, and by an editor and a reload. What was answered has to
//! be there, also after a kill.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use load::random::Prng;
use peer::port::free_address;
use serde_json::{Value, json};

use super::{BASE_NSID_MAX, OPEN_NSID, Round, configuration};
use crate::target::{NQN, Target};

/// Time limit for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The subsystem whose hosts change.
const OTHER_NQN: &str = "nqn.2026-01.io.nvlane:torture-other";

/// Numbers that are used in turn for namespaces.
const NSID_COUNT: u64 = 500;

/// Namespaces beside those of the configuration file, at most.
const SCRATCH_COUNT_MAX: usize = 6;

/// The pool of volumes.
const POOL: &str = "soak";

/// Values that take all rate limits off a namespace.
static NO_LIMITS: LazyLock<Value> =
    LazyLock::new(|| json!({ "iops": null, "burst_ms": null, "read_bytes_per_s": null, "min_iops": null }));

pub(super) struct Operator {
    directory: PathBuf,
    metrics: SocketAddr,
    random: Prng,
    /// Namespaces that were added, with their storage.
    scratch: BTreeMap<u64, String>,
    /// Namespaces added so far.
    namespace_count: u64,
    /// A call that was not answered.
    is_unanswered: bool,
    listeners: Vec<String>,
    changes: u64,
    refusals: u64,
}

/// Outcome of a call.
enum Answer {
    Result(Value),
    Refused(String),
}

impl Operator {
    /// Writes the configuration file.
    pub(super) fn new(directory: &Path, metrics: SocketAddr, seed: u64) -> Result<Self> {
        let operator = Self {
            directory: directory.to_owned(),
            metrics,
            random: Prng::new(seed),
            scratch: BTreeMap::new(),
            namespace_count: 0,
            is_unanswered: false,
            listeners: Vec::new(),
            changes: 0,
            refusals: 0,
        };
        std::fs::create_dir_all(directory.join("pool"))?;
        operator.edit("turn")?;
        Ok(operator)
    }

    /// Options of the target.
    pub(super) fn arguments(&self) -> Vec<String> {
        let path = |name: &str| self.directory.join(name).display().to_string();
        let (config, control, audit) = (path("nvlane.toml"), path("control.sock"), path("audit.log"));
        let metrics = self.metrics.to_string();
        ["--config", &config, "--control", &control, "--audit", &audit, "--metrics", &metrics]
            .map(str::to_owned)
            .into()
    }

    /// Changes made, and calls that were refused as they should be.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.changes, self.refusals)
    }

    /// Changes and looks until the round is over.
    pub(super) fn run(&mut self, pid: u32, round: &Round) -> Result<()> {
        while !round.is_over() {
            let acted = self.act(pid);
            if round.is_killed() {
                return Ok(());
            }
            acted?;
            let pause = Duration::from_millis(50 + self.random.below(700));
            round.pause(pause);
        }
        Ok(())
    }

    fn act(&mut self, pid: u32) -> Result<()> {
        match self.random.below(14) {
            0 | 1 if self.scratch.len() < SCRATCH_COUNT_MAX => self.add_namespace(),
            0..=2 => self.remove_namespace(),
            3 => self.resize(),
            4 => self.change_hosts(),
            5 => self.change_listeners(),
            6 => {
                let doorbell = self.doorbell();
                self.set("subsystem", NQN, &json!({ "doorbell": doorbell }))
            }
            7 => self.reload(pid),
            8 | 9 => self.mistype(),
            10 => self.scrape(),
            11 | 12 => self.limit(),
            _ => self.look(),
        }
    }

    fn doorbell(&mut self) -> &'static str {
        ["immediate", "turn", "adaptive:50", "fixed:8,16384,50"]
            [usize::try_from(self.random.below(4)).expect("few")]
    }

    fn add_namespace(&mut self) -> Result<()> {
        let mib = 1 + self.random.below(32);
        let storage = match self.random.below(3) {
            0 => format!("ram:{mib}M"),
            1 => {
                let path = self.directory.join(format!("scratch-{}", self.namespace_count));
                format!("file:{}?size={mib}M", path.display())
            }
            _ => {
                let name = format!("{POOL}/volume-{}", self.namespace_count);
                self.change("volume_create", &json!({ "name": name, "size": format!("{mib}M") }))?;
                format!("pool:{name}")
            }
        };
        // A number that hosts of other rounds know may come back as something else, which they would report.
        let first = u64::from(BASE_NSID_MAX) + 1;
        let nsid = first + self.namespace_count % NSID_COUNT;
        self.namespace_count += 1;
        let values = json!({ "nsid": nsid, "storage": storage });
        self.change("add", &json!({ "noun": "namespace", "subsystem": NQN, "values": values }))?;
        self.scratch.insert(nsid, storage);
        Ok(())
    }

    fn remove_namespace(&mut self) -> Result<()> {
        let Some(nsid) = self.some_scratch() else { return Ok(()) };
        self.change(
            "remove",
            &json!({ "noun": "namespace", "subsystem": NQN, "name": nsid, "force": true }),
        )?;
        let storage = self.scratch.remove(&nsid).unwrap_or_default();
        match storage.strip_prefix("pool:") {
            Some(_) => self.delete_volume(&storage),
            None => {
                discard(&storage);
                Ok(())
            }
        }
    }

    fn resize(&mut self) -> Result<()> {
        let Some(nsid) = self.some_scratch() else { return Ok(()) };
        let Some(storage) = self.scratch.get(&nsid) else { return Ok(()) };
        if storage.starts_with("pool:") {
            let name = volume_of(storage);
            let size = self.call("volume_show", &json!({ "name": name }))?;
            let Answer::Result(Value::Object(volume)) = size else { bail!("volume {name} is not shown") };
            let bytes = volume["size"].as_u64().unwrap_or(0) + (self.random.below(8) << 20);
            return self.change("volume_resize", &json!({ "name": name, "size": bytes })).map(|_| ());
        }
        let Some((name, mib)) = storage.rsplit_once([':', '=']) else { return Ok(()) };
        let mib: u64 = mib.trim_end_matches('M').parse()?;
        // A file only grows.
        let mib = if name == "ram" { 1 + self.random.below(48) } else { mib + self.random.below(8) };
        let storage = format!("{name}{}{mib}M", if name == "ram" { ':' } else { '=' });
        self.set("namespace", &nsid.to_string(), &json!({ "storage": storage }))?;
        self.scratch.insert(nsid, storage);
        Ok(())
    }

    /// Keeps the content of a volume for a moment, where the file system can, and deletes the volume.
    fn delete_volume(&mut self, storage: &str) -> Result<()> {
        let name = volume_of(storage);
        let snapshot = format!("{name}-kept");
        if let Answer::Result(_) =
            self.call("snapshot_create", &json!({ "name": snapshot, "volume": name }))?
        {
            self.change("snapshot_delete", &json!({ "name": snapshot }))?;
        }
        self.change("volume_delete", &json!({ "name": name })).map(|_| ())
    }

    /// Limits the namespace that strangers read, or ends that.
    fn limit(&mut self) -> Result<()> {
        let values = match self.random.below(3) {
            0 => json!({ "iops": 5000 + self.random.below(50_000), "burst_ms": 20 }),
            1 => json!({ "read_bytes_per_s": "64M", "min_iops": 1000 }),
            _ => NO_LIMITS.clone(),
        };
        self.set("namespace", &OPEN_NSID.to_string(), &values)
    }

    fn some_scratch(&mut self) -> Option<u64> {
        let count = self.scratch.len() as u64;
        let at = usize::try_from(self.random.below(count.max(1))).ok()?;
        self.scratch.keys().nth(at).copied()
    }

    fn change_hosts(&mut self) -> Result<()> {
        let host = format!("nqn.2026-01.io.nvlane:guest-{}", self.random.below(20));
        let named = json!({ "noun": "host", "subsystem": OTHER_NQN, "name": host });
        self.change("add", &named)?;
        self.change("remove", &named)?;
        Ok(())
    }

    fn change_listeners(&mut self) -> Result<()> {
        if let Some(address) = self.listeners.pop() {
            self.change("remove", &json!({ "noun": "listener", "name": address }))?;
            return Ok(());
        }
        let address = free_address()?.to_string();
        self.change("add", &json!({ "noun": "listener", "name": address }))?;
        self.listeners.push(address);
        Ok(())
    }

    /// Edits the configuration file, and has it read again.
    fn reload(&mut self, pid: u32) -> Result<()> {
        let doorbell = self.doorbell();
        self.edit(doorbell)?;
        self.changes += 1;
        if self.random.below(2) == 0 {
            return Target::reload(pid);
        }
        self.call("reload", &json!({})).map(|_| ())
    }

    /// Calls that have to be refused, and to change nothing.
    fn mistype(&mut self) -> Result<()> {
        let namespace = |values: Value| json!({ "noun": "namespace", "subsystem": NQN, "values": values });
        let (method, params) = match self.random.below(6) {
            0 => ("add", namespace(json!({ "storage": "ram:2X" }))),
            1 => ("add", namespace(json!({ "storage": "file:/nowhere/at/all?size=1M" }))),
            2 => ("add", namespace(json!({ "nsid": 1, "storage": "ram:1M" }))),
            3 => ("remove", json!({ "noun": "namespace", "subsystem": NQN, "name": 999_999 })),
            4 => ("set", json!({ "noun": "subsystem", "name": NQN, "values": { "dorbell": "turn" } })),
            _ => {
                ("remove", json!({ "noun": "host", "subsystem": OTHER_NQN, "name": "nobody", "revision": 0 }))
            }
        };
        match self.call(method, &params)? {
            Answer::Refused(_) => self.refusals += 1,
            Answer::Result(result) => bail!("{method} {params} was not refused: {result}"),
        }
        Ok(())
    }

    fn scrape(&mut self) -> Result<()> {
        let mut stream = TcpStream::connect(self.metrics)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: soak\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        ensure!(text.starts_with("HTTP/1.1 200"), "a scrape: {}", text.lines().next().unwrap_or_default());
        Ok(())
    }

    fn look(&mut self) -> Result<()> {
        let (method, params) = match self.random.below(4) {
            0 => ("diff", json!({})),
            1 => ("export", json!({})),
            2 => ("state", json!({})),
            _ => ("list", json!({ "noun": "listener" })),
        };
        match self.call(method, &params)? {
            Answer::Result(_) => Ok(()),
            Answer::Refused(error) => bail!("{method} was refused: {error}"),
        }
    }

    /// After a kill: what was answered is there, and what was not is or is not.
    pub(super) fn after_kill(&mut self, round: &Round) -> Result<()> {
        let there = self.namespaces()?;
        for (nsid, storage) in &self.scratch {
            if !there.contains_key(nsid) && !self.is_unanswered {
                round.find(format!("namespace {nsid} ({storage}) was added, and is gone after a kill"));
            }
        }
        let added = there.keys().filter(|nsid| !self.scratch.contains_key(*nsid)).count();
        if added > usize::from(self.is_unanswered) {
            round.find(format!("{added} namespaces are there after a kill that were removed or never added"));
        }
        self.scratch = there;
        self.listeners = self
            .objects("listener")?
            .iter()
            .filter_map(|object| object["name"].as_str().map(str::to_owned))
            .filter(|address| self.is_own_listener(address))
            .collect();
        Ok(())
    }

    /// Whether the operator has added it: it differs from the configuration, which the command line names.
    fn is_own_listener(&self, address: &str) -> bool {
        let changes = std::fs::read_to_string(self.directory.join("nvlane.toml.changes")).unwrap_or_default();
        changes.contains(address)
    }

    /// Takes everything back: nothing differs from the configuration file then.
    pub(super) fn settle(&mut self, round: &Round) -> Result<()> {
        while !self.scratch.is_empty() {
            self.remove_namespace()?;
        }
        for address in std::mem::take(&mut self.listeners) {
            self.change("remove", &json!({ "noun": "listener", "name": address }))?;
        }
        for object in self.objects("host")? {
            if object["subsystem"] == OTHER_NQN {
                let named = json!({ "noun": "host", "subsystem": OTHER_NQN, "name": object["name"] });
                self.change("remove", &named)?;
            }
        }
        self.set("subsystem", NQN, &json!({ "doorbell": Value::Null }))?;
        self.set("namespace", &OPEN_NSID.to_string(), &NO_LIMITS)?;
        self.edit("turn")?;
        self.call("reload", &json!({}))?;
        if let Answer::Result(diff) = self.call("diff", &json!({}))?
            && diff["differences"].as_array().is_none_or(|differences| !differences.is_empty())
        {
            round.find(format!("changes that were taken back are still there: {diff}"));
        }
        self.is_unanswered = false;
        Ok(())
    }

    fn edit(&self, doorbell: &str) -> Result<()> {
        let text = format!(
            "[[pool]]\nname = \"{POOL}\"\ndir = \"{}\"\n{}\n[[subsystem]]\nnqn = \"{OTHER_NQN}\"\nhosts = []\ndoorbell = \"{doorbell}\"\n",
            self.directory.join("pool").display(),
            configuration(&self.directory)
        );
        // As editors do it: a reload reads the old file or the new one.
        let (path, beside) = (self.directory.join("nvlane.toml"), self.directory.join("nvlane.toml.new"));
        std::fs::write(&beside, text)?;
        Ok(std::fs::rename(beside, path)?)
    }

    /// Namespaces beside those of the configuration file.
    fn namespaces(&mut self) -> Result<BTreeMap<u64, String>> {
        let objects = self.objects("namespace")?;
        let named = objects.iter().filter_map(|object| {
            let nsid = object["name"].as_str()?.parse().ok()?;
            Some((nsid, object["values"]["storage"].as_str()?.to_owned()))
        });
        Ok(named.filter(|(nsid, _)| *nsid > u64::from(BASE_NSID_MAX)).collect())
    }

    fn objects(&mut self, noun: &str) -> Result<Vec<Value>> {
        match self.call("list", &json!({ "noun": noun }))? {
            Answer::Result(result) => Ok(result["objects"].as_array().cloned().unwrap_or_default()),
            Answer::Refused(error) => bail!("list {noun} was refused: {error}"),
        }
    }

    fn set(&mut self, noun: &str, name: &str, values: &Value) -> Result<()> {
        let mut params = json!({ "noun": noun, "name": name, "values": values });
        if noun == "namespace" {
            params["subsystem"] = NQN.into();
        }
        self.change("set", &params).map(|_| ())
    }

    /// A change that has to be made.
    fn change(&mut self, method: &str, params: &Value) -> Result<Value> {
        match self.call(method, params)? {
            Answer::Result(result) => {
                self.changes += 1;
                Ok(result)
            }
            Answer::Refused(error) => bail!("{method} {params} was refused: {error}"),
        }
    }

    fn call(&mut self, method: &str, params: &Value) -> Result<Answer> {
        self.is_unanswered = true;
        let until = Instant::now() + PATIENCE;
        let mut connection = BufReader::new(UnixStream::connect(self.directory.join("control.sock"))?);
        connection.get_ref().set_read_timeout(Some(PATIENCE))?;
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        connection.get_mut().write_all(format!("{request}\n").as_bytes())?;
        let mut line = String::new();
        connection.read_line(&mut line)?;
        ensure!(Instant::now() < until && !line.is_empty(), "{method} was not answered");
        let mut answer: Value = serde_json::from_str(&line)?;
        self.is_unanswered = false;
        match answer.get("error") {
            Some(error) => Ok(Answer::Refused(error.to_string())),
            None => Ok(Answer::Result(answer["result"].take())),
        }
    }
}

/// The name of a volume in the storage of its namespace, which has the directory of the pool once it was listed.
fn volume_of(storage: &str) -> String {
    let name = storage.rsplit('/').next().unwrap_or_default();
    format!("{POOL}/{name}")
}

/// Deletes the file of a removed namespace.
fn discard(storage: &str) {
    let path = storage.strip_prefix("file:").and_then(|rest| rest.split('?').next());
    if let Some(path) = path {
        // A kill may have come between the answer and this.
        let _ = std::fs::remove_file(path);
    }
}
