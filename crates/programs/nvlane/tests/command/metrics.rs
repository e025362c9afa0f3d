//! Metrics of a loaded target: read by promtool and scraped by Prometheus, which evaluates the packaged alerts and the
//! queries of the packaged dashboard.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use host::{Address, Association, BlockingNamespace, Options};
use peer::port::free_address;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use wire::id::Nsid;

use crate::support::{self, nvlane, run};

const PATIENCE: Duration = Duration::from_secs(60);
const NQN: &str = "nqn.2026-01.io.nvlane:measured";
const OPEN_METRICS: &str = "Accept: application/openmetrics-text; version=1.0.0\r\n";

/// A process, killed on drop.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Self {
        Self(
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("it starts"),
        )
    }

    fn signal(&self, signal: Signal) {
        support::signal(self.0.id(), signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A target with a namespace of each kind.
struct Target {
    process: Process,
    directory: TempDir,
    listen: SocketAddr,
    memcached: SocketAddr,
    metrics: SocketAddr,
}

impl Target {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let [listen, memcached, metrics] = [(); 3].map(|()| free_address().expect("a free port"));
        certificate(directory.path());
        fs::create_dir(directory.path().join("low")).expect("created");
        let config = directory.path().join("nvlane.toml");
        fs::write(&config, text(directory.path(), listen, memcached, metrics)).expect("written");
        let mut command = nvlane();
        command.args(["target", "--engine", "epoll", "--config"]).arg(&config);
        let target = Self { process: Process::start(&mut command), directory, listen, memcached, metrics };
        target.eventually("it is ready", || status(target.metrics, "/readyz") == Some(200));
        target
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn address(&self, nsid: u32) -> String {
        format!("{}/{NQN}?ns={nsid}", self.listen)
    }

    fn perf(&self, nsid: u32) -> Process {
        let words =
            ["perf", &self.address(nsid), "-t", "60", "-q", "4", "-o", "4096", "-w", "randrw", "-M", "50"];
        Process::start(nvlane().args(words))
    }

    fn eventually(&self, what: &str, is_so: impl Fn() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < until, "never: {what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn metrics(&self) -> String {
        get(self.metrics, "/metrics", "").expect("an answer").1
    }

    fn value(&self, series: &str) -> f64 {
        let text = self.metrics();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {series} in {text}")).parse().expect("a number")
    }
}

fn text(directory: &Path, listen: SocketAddr, memcached: SocketAddr, metrics: SocketAddr) -> String {
    let here = directory.display();
    let tls = free_address().expect("a free port");
    let mut text = format!(
        "[reactors]\ncount = 2\n[audit]\nfile = \"{here}/audit\"\n[metrics]\naddress = \"{metrics}\"\n\
         [[listener]]\naddress = \"{listen}\"\n[[memcached]]\naddress = \"{memcached}\"\n\
         [[memcached]]\naddress = \"{tls}\"\ntls_certificate = \"file:{here}/certificate.pem\"\n\
         tls_key = \"file:{here}/key.pem\"\n\
         [[pool]]\nname = \"fast\"\ndir = \"{here}\"\nspace_low = \"0%\"\n\
         [[pool]]\nname = \"low\"\ndir = \"{here}/low\"\nspace_low = \"1000T\"\n[[subsystem]]\nnqn = \"{NQN}\"\nhosts = \"any\"\n"
    );
    for (nsid, storage) in [
        (1, format!("file:{here}/disk?size=8M")),
        (2, "ram:8M".into()),
        (3, "ram:1M?readonly".into()),
        (4, format!("kv:file:{here}/pairs?size=64M&memory=8M&sparse")),
        (5, "ram:1M?error=read:1/1,as=eio".into()),
    ] {
        let _ = write!(text, "[[subsystem.namespace]]\nnsid = {nsid}\nstorage = \"{storage}\"\n");
    }
    text
}

/// A certificate for a day.
pub(crate) fn certificate(directory: &Path) {
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "1",
        ])
        .args(["-subj", "/CN=measured", "-keyout", "key.pem", "-out", "certificate.pem"])
        .current_dir(directory)
        .output()
        .expect("openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// The status and body of an answer; `None` if nothing listens.
fn get(address: SocketAddr, path: &str, headers: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream.write_all(format!("GET {path} HTTP/1.0\r\n{headers}\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

fn status(address: SocketAddr, path: &str) -> Option<u16> {
    get(address, path, "").map(|(status, _)| status)
}

/// Requests keys that are there, and keys that are not, until it is dropped.
struct MemcachedLoad(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl MemcachedLoad {
    fn start(address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work = move || {
            let mut stream = TcpStream::connect(address).expect("it listens");
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
            let mut answers = [0; 4096];
            while !stopped.load(Ordering::Relaxed) {
                stream.write_all(b"set a 0 0 1\r\nx\r\nget a\r\nget b\r\n").expect("taken");
                assert!(stream.read(&mut answers).expect("answers") > 0);
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        Self(stop, Some(std::thread::spawn(work)))
    }
}

impl Drop for MemcachedLoad {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            let _ = thread.join();
        }
    }
}

/// Prometheus, which scrapes a target and evaluates the packaged alerts.
struct Prometheus {
    _process: Process,
    address: SocketAddr,
}

impl Prometheus {
    fn start(target: &Target) -> Self {
        let address = free_address().expect("a free port");
        let config = target.path("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 250ms}}\n\
             rule_files: [{}]\n\
             scrape_configs: [{{job_name: nvlane, static_configs: [{{targets: ['{}']}}]}}]\n",
            packaged("prometheus/nvlane.rules.yml").display(),
            target.metrics
        );
        fs::write(&config, text).expect("written");
        let flag = |name: &str, value: String| format!("--{name}={value}");
        let mut command = Command::new("prometheus");
        command
            .arg(flag("config.file", config.display().to_string()))
            .arg(flag("storage.tsdb.path", target.path("prometheus").display().to_string()))
            .arg(flag("web.listen-address", address.to_string()));
        Self { _process: Process::start(&mut command), address }
    }

    /// The result of a query; an error is its text.
    fn query(&self, query: &str) -> Result<Vec<Value>, String> {
        let mut path = "/api/v1/query?query=".to_owned();
        query.bytes().for_each(|byte| write!(path, "%{byte:02x}").expect("a String"));
        let (_, body) = get(self.address, &path, "").ok_or("no answer")?;
        let answer: Value = serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))?;
        if answer["status"] != "success" {
            return Err(answer["error"].to_string());
        }
        Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default())
    }

    /// The alerts that fire, or will when their time has passed.
    fn alerts(&self) -> BTreeSet<String> {
        let body = get(self.address, "/api/v1/alerts", "").map(|(_, body)| body).unwrap_or_default();
        let answer: Value = serde_json::from_str(&body).unwrap_or_default();
        let alerts = answer["data"]["alerts"].as_array().cloned().unwrap_or_default();
        alerts.iter().filter_map(|alert| Some(alert["labels"]["alertname"].as_str()?.to_owned())).collect()
    }
}

fn packaged(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../packaging").join(name)
}

/// The queries of the packaged dashboard.
fn dashboard_queries() -> Vec<String> {
    fn collect(value: &Value, queries: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                if let Some(query) = fields.get("expr").and_then(Value::as_str) {
                    queries.push(query.replace("$instance", ".*").replace("$__rate_interval", "5s"));
                }
                fields.values().for_each(|field| collect(field, queries));
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, queries)),
            _ => {}
        }
    }
    let text = fs::read(packaged("grafana/nvlane-target.json")).expect("a file");
    let mut queries = Vec::new();
    collect(&serde_json::from_slice(&text).expect("JSON"), &mut queries);
    assert!(queries.len() > 30 && queries.iter().all(|query| query.contains("nvlane_")), "{queries:?}");
    queries
}

/// The expressions of the packaged alerts, by name.
fn rules() -> Vec<(String, String)> {
    let text = fs::read_to_string(packaged("prometheus/nvlane.rules.yml")).expect("a file");
    let field = |key: &str| {
        let values = text.lines().filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix(key));
        values.map(|value| value.trim().to_owned()).collect::<Vec<_>>()
    };
    let (names, expressions) = (field("alert:"), field("expr:"));
    assert!(names.len() == expressions.len() && names.len() > 10, "{names:?}");
    names.into_iter().zip(expressions).collect()
}

/// The names of metrics in a query.
fn names(query: &str) -> BTreeSet<&str> {
    let words = query.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("nvlane_")).collect()
}

fn has_prometheus() -> bool {
    let has = |program| Command::new(program).arg("--version").output().is_ok();
    has("prometheus") && has("promtool")
}

#[test]
fn prometheus_has_data_for_every_alert_and_every_panel() {
    if !has_prometheus() {
        eprintln!("skipped: prometheus and promtool are not installed (apt-get install prometheus)");
        return;
    }
    let target = Target::start();
    let prometheus = Prometheus::start(&target);
    let (_load, lost) = (target.perf(2), target.perf(1));
    let _memcached = MemcachedLoad::start(target.memcached);
    // A refused Connect, and a failed command.
    assert_ne!(run(["identify", &format!("{}/nqn.2026-01.io.nvlane:none", target.listen)]).code, 0);
    let mut readonly = write_access(&target, 3);
    assert!(readonly.write_at(&[0; 4096], 0).is_err());
    // What the alerts are for: a lost host, a closed namespace, a medium with errors, a pool without space, a reload that
    // fails, a certificate about to expire.
    target.eventually("two loads", || target.value("nvlane_commands_total{op=\"write\"}") > 1000.0);
    // From a scrape on: an increase is between two of them.
    target.eventually("a scrape", || {
        prometheus.query("nvlane_ended_associations_total").is_ok_and(|all| !all.is_empty())
    });
    drop(lost);
    let mut broken = write_access(&target, 5);
    assert!(broken.read_at(&mut [0; 4096], 0).is_err());
    OpenOptions::new()
        .write(true)
        .open(target.path("disk"))
        .and_then(|disk| disk.set_len(1 << 20))
        .expect("cut");
    fs::write(target.path("nvlane.toml"), "[reactors]\ncores = \"none\"\n").expect("written");
    target.process.signal(Signal::HUP);

    let lint = promtool(&["check", "metrics"], &target.metrics());
    assert_eq!(lint, (Some(0), String::new()));
    let rules_file = packaged("prometheus/nvlane.rules.yml").display().to_string();
    assert_eq!(promtool(&["check", "rules", &rules_file], "").0, Some(0));

    let expected = [
        "NvlaneCertificateExpires",
        "NvlaneMediaErrors",
        "NvlaneNamespaceClosed",
        "NvlanePathLost",
        "NvlanePoolSpaceLow",
        "NvlaneReloadFailed",
    ];
    let until = Instant::now() + PATIENCE;
    let alerts = loop {
        let alerts = prometheus.alerts();
        if expected.iter().all(|&alert| alerts.contains(alert)) {
            break alerts;
        }
        assert!(Instant::now() < until, "only {alerts:?} of {expected:?}");
        std::thread::sleep(Duration::from_millis(100));
    };
    // On a busy machine a scrape may take longer than its time limit.
    let of_situation = ["NvlaneHostLost", "NvlaneTargetDown"];
    let has_reason = |alert: &str| expected.contains(&alert) || of_situation.contains(&alert);
    let others: Vec<&String> = alerts.iter().filter(|alert| !has_reason(alert)).collect();
    assert!(others.is_empty(), "without a reason: {others:?}");
    let closed = format!("nvlane_namespace_closed_reason{{subsystem=\"{NQN}\",nsid=\"1\",reason=\"cut\"}}");
    assert_eq!(target.value(&closed), 1.0);
    // After such a scrape there is no data until the next one.
    let has_data = |query: &str, what: &str| {
        let until = Instant::now() + PATIENCE;
        loop {
            let result = prometheus.query(query).unwrap_or_else(|error| panic!("{what}: {error}"));
            if !result.is_empty() {
                break;
            }
            assert!(Instant::now() < until, "{what}: no data of {query}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    for (name, expression) in rules() {
        prometheus.query(&expression).unwrap_or_else(|error| panic!("{name}: {error}"));
        names(&expression).iter().for_each(|metric| has_data(metric, &name));
    }
    dashboard_queries().iter().for_each(|query| has_data(query, "dashboard"));
    let up = prometheus.query("avg_over_time(up[1m]) > 0.5").expect("data");
    assert_eq!(up.len(), 1, "most scrapes succeed");
}

fn write_access(target: &Target, nsid: u32) -> BlockingNamespace {
    let address: Address = format!("{}/{NQN}", target.listen).parse().expect("an address");
    let association = Association::connect(&address, Options::default()).expect("connected");
    let namespace = association.namespace(Nsid::new(nsid)).expect("a namespace");
    BlockingNamespace::new(&association, namespace).expect("a lane")
}

/// The exit code and the output of promtool.
fn promtool(arguments: &[&str], input: &str) -> (Option<i32>, String) {
    let mut command = Command::new("promtool");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().expect("promtool");
    process.stdin.take().expect("piped").write_all(input.as_bytes()).expect("taken");
    let output = process.wait_with_output().expect("it ends");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn counters_add_up_and_outlive_hosts() {
    let target = Target::start();
    let host = write_access(&target, 2);
    let (mut host, block) = (host, [7; 4096]);
    (0..200).for_each(|at| host.write_at(&block, at * 4096).expect("written"));
    let series = |name: &str, labels: &str| format!("{name}{{subsystem=\"{NQN}\",nsid=\"2\",{labels}}}");
    let writes = series("nvlane_namespace_commands_total", "op=\"write\"");
    assert_eq!(target.value(&writes), 200.0);
    assert_eq!(target.value(&series("nvlane_namespace_data_bytes_total", "op=\"write\"")), 200.0 * 4096.0);
    assert_eq!(target.value("nvlane_commands_total{op=\"write\"}"), 200.0);
    assert_eq!(target.value("nvlane_data_bytes_total{op=\"write\"}"), 200.0 * 4096.0);
    // One in 64: the first, and so on, unless the one before is still followed.
    let followed = target.value(&series("nvlane_command_phase_seconds_count", "phase=\"storage\""));
    assert!((2.0..=4.0).contains(&followed), "{followed}");
    let text = target.metrics();
    let of_host =
        text.lines().find(|line| line.starts_with("nvlane_host_commands_total") && line.contains("write"));
    assert!(of_host.is_some_and(|line| line.ends_with(" 200")), "{of_host:?}");
    drop(host);
    target.eventually("the host is gone", || !target.metrics().contains("nvlane_host_commands_total"));
    assert_eq!(target.value("nvlane_commands_total{op=\"write\"}"), 200.0, "what it has done is not");
    assert_eq!(target.value(&writes), 200.0);

    let (_, text) = get(target.metrics, "/metrics", OPEN_METRICS).expect("an answer");
    assert!(text.ends_with("# EOF\n") && text.contains("# UNIT nvlane_data_bytes bytes\n"), "{text}");
    assert_eq!((status(target.metrics, "/healthz"), status(target.metrics, "/none")), (Some(200), Some(404)));
    let mut process = target.process;
    process.signal(Signal::TERM);
    assert!(process.0.wait().expect("it ends").success());
}

#[test]
fn a_reload_moves_the_metrics() {
    let target = Target::start();
    let elsewhere = free_address().expect("a free port");
    let config = target.path("nvlane.toml");
    let text = fs::read_to_string(&config).expect("a file");
    fs::write(&config, text.replace(&target.metrics.to_string(), &elsewhere.to_string())).expect("written");
    target.process.signal(Signal::HUP);
    target.eventually("served there", || status(elsewhere, "/readyz") == Some(200));
    target.eventually("closed here", || status(target.metrics, "/readyz").is_none());
    let value = |series: &str| {
        let (_, text) = get(elsewhere, "/metrics", "").expect("an answer");
        text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse::<f64>().ok())
    };
    target.eventually("a reload", || value("nvlane_config_reloads_total{outcome=\"complete\"}") == Some(1.0));
    assert_eq!(value("nvlane_config_last_reload_successful"), Some(1.0));
}

#[test]
fn the_guide_and_the_alerts_have_every_metric_by_its_name() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/guide/metrics.md");
    let guide = fs::read_to_string(guide).expect("a file");
    let begin = guide.find("| Metric |").expect("a table");
    let rows: Vec<&str> = guide[begin..].lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    let metrics = metrics::metric::METRICS;
    let expected: Vec<String> = metrics.iter().map(|metric| row(metric)).collect();
    assert_eq!(
        rows.join("\n"),
        expected.join("\n"),
        "docs/guide/metrics.md: replace its table with\n{}",
        expected.join("\n")
    );
    let known: BTreeSet<String> = metrics.iter().map(|metric| metric.sample_name()).collect();
    let queries = rules().into_iter().map(|(_, expression)| expression).chain(dashboard_queries());
    for query in queries {
        for name in names(&query) {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
            assert!(known.contains(name) || base.is_some_and(|base| known.contains(base)), "{name}: {query}");
        }
    }
}

fn row(metric: &metrics::metric::Metric) -> String {
    let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
    format!(
        "| `{}` | {} | {} | {} |",
        metric.sample_name(),
        metric.kind.name(),
        labels.join(", "),
        metric.help
    )
}
