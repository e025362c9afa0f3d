//! A study and a study server as users run them, over 127.0.0.1.

#[path = "../../../crates/programs/nvlane/tests/support/mod.rs"]
mod support;
#[allow(dead_code)]
#[path = "../../../crates/programs/nvlane/tests/veth/mod.rs"]
mod veth;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use security::access_token::AccessToken;
use serde_json::{Value, json};

use support::{Ended, nvlane, run};

/// A running study server, ended by SIGTERM.
struct Server {
    process: Child,
    output: BufReader<ChildStdout>,
    address: String,
    token: String,
}

impl Server {
    fn start() -> Self {
        Self::with(&[])
    }

    /// A server with these options.
    fn with(options: &[&str]) -> Self {
        Self::of(nvlane(), options)
    }

    /// A server with these options and the environment of a command.
    fn of(command: Command, options: &[&str]) -> Self {
        Self::at("127.0.0.1", command, options)
    }

    /// The same at this address.
    fn at(ip: &str, mut command: Command, options: &[&str]) -> Self {
        command.args(["study", "serve", "--listen", &format!("{ip}:0")]).args(options).stdout(Stdio::piped());
        let mut process = command.spawn().expect("the server starts");
        let mut output = BufReader::new(process.stdout.take().expect("piped"));
        let mut line = || {
            let mut line = String::new();
            output.read_line(&mut line).expect("a line");
            line.trim().to_owned()
        };
        let listening = line();
        assert!(listening.starts_with(&format!("listening for studies on {ip}:")), "{listening}");
        let words: Vec<String> = line().split(' ').map(str::to_owned).collect();
        let behind = |option: &str| {
            let at = words.iter().position(|word| word == option).expect("the command for the other machine");
            words[at + 1].clone()
        };
        let (address, token) = (behind("--target"), behind("--token"));
        Self { process, output, address, token }
    }

    /// The next line about a study.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }

    /// A study with its targets on this server, with a report in a directory.
    fn study(&self, name: &str, out: &Path) -> Command {
        let mut command = nvlane();
        command.args(["study", name, "--target", &self.address, "--token", &self.token, "--out"]).arg(out);
        command
    }

    /// Its targets that run.
    fn targets(&self) -> Vec<u32> {
        children_of(self.process.id())
    }

    /// A connection that has read the challenge.
    fn connect(&self) -> (BufReader<TcpStream>, Value) {
        let stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
        let mut stream = BufReader::new(stream);
        let challenge = read_line(&mut stream);
        (stream, challenge["challenge"]["challenge"].clone())
    }

    /// Begins a session; returns what sends a request and reads the reply.
    fn session(&self) -> impl FnMut(Value) -> Value + use<> {
        let (mut stream, challenge) = self.connect();
        let hello = self.hello(&study::remote::own_version(), &challenge);
        writeln!(stream.get_mut(), "{hello}").expect("sent");
        assert!(read_line(&mut stream)["done"]["data_address"].is_string());
        move |request| {
            writeln!(stream.get_mut(), "{request}").expect("sent");
            read_line(&mut stream)
        }
    }

    /// The first request of a study of this version of nvlane.
    fn hello(&self, version: &str, challenge: &Value) -> Value {
        let token: AccessToken = self.token.parse().expect("a token");
        let digits = challenge.as_str().expect("hexadecimal");
        let byte = |at: usize| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("hexadecimal");
        let proof = token.prove("nvlane study serve", &std::array::from_fn(byte));
        let proof: String = proof.expose().iter().map(|byte| format!("{byte:02x}")).collect();
        json!({ "hello": { "version": version, "proof": proof } })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        let _ = self.process.wait();
    }
}

fn read_line(stream: &mut BufReader<TcpStream>) -> Value {
    let mut line = String::new();
    stream.read_line(&mut line).expect("a line");
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
}

/// Processes whose parent is this one.
fn children_of(parent: u32) -> Vec<u32> {
    let pids = fs::read_dir("/proc").expect("proc").flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |pid: &u32| {
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        rest.split_ascii_whitespace().nth(1) == Some(&parent.to_string())
    };
    pids.filter(is_child).collect()
}

#[track_caller]
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Processes that still run.
fn alive(pids: &[u32]) -> bool {
    pids.iter().any(|pid| Path::new(&format!("/proc/{pid}/cmdline")).exists())
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("results")).expect("JSON")
}

#[test]
fn a_study_between_two_machines_names_both_and_its_figures() {
    let server = Server::start();
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().join("kv-memory");
    // The memory of a pair does not depend on what else the machine does.
    let told = Ended::of(server.study("kv-memory", &out).args(["--only", "16 + 500 B", "--rounds", "1"]))
        .text_beside_progress();
    assert!(told.contains("Measured between two machines."), "{told}");
    assert!(told.contains("\nhost: Linux ") && told.contains("\ntarget: 127.0.0.1, Linux "), "{told}");
    let results = json_of(&out.join("results.json"));
    let machine = &results["target_machine"];
    assert_eq!((&machine["server"], &machine["data_address"]), (&json!(server.address), &json!("127.0.0.1")));
    let (host, target) = (&results["environment"], &machine["environment"]);
    for name in ["kernel", "nvlane_version", "core_count", "memory_bytes"] {
        assert!(!host[name].is_null() && host[name] == target[name], "{name}: one machine here");
    }
    assert_eq!(machine["cores"].as_array().expect("cores").len(), 1);
    let pair_bytes = results["headline"]["bytes_per_pair_16_500"].as_f64().expect("a figure");
    assert!((516.0..700.0).contains(&pair_bytes), "{pair_bytes}");
    let page = fs::read_to_string(out.join("report.html")).expect("a page");
    assert!(
        page.contains("Measured between two machines.")
            && page.contains("<p class=\"small\">target: 127.0.0.1")
    );
    let rows = fs::read_to_string(out.join("results.csv")).expect("rows");
    assert!(rows.starts_with("experiment,cell,round,value,number,discarded,host,target\n"), "{rows}");
    for file in ["results.json", "report.html", "results.csv"] {
        let text = fs::read_to_string(out.join(file)).expect("a file");
        assert!(!text.contains(&server.token), "{file} has the token");
    }
    wait_until("the target ends with its study", || server.targets().is_empty());
}

#[test]
fn loads_are_measured_with_the_account_of_the_other_machine() {
    let server = Server::start();
    let directory = tempfile::tempdir().expect("a directory");
    let token_file = directory.path().join("token");
    fs::write(&token_file, format!("{}\n", server.token)).expect("a file");
    let out = directory.path().join("all");
    let mut command = nvlane();
    command.args(["study", "all", "--only", "mtu,ceiling,iosize,mixed-lanes,busy-poll", "--rounds", "1"]);
    command.args(["-t", "0.05", "--extra", "0", "--target", &server.address, "--token-file"]);
    let told = Ended::of(command.arg(&token_file).arg("--out").arg(&out)).text_beside_progress();
    assert!(!told.contains("not measured"), "{told}");
    let page = fs::read_to_string(out.join("report.html")).expect("a page");
    assert!(page.contains("NVMe over TCP between two machines"));
    for (name, values) in [
        ("ceiling", ["share", "ceiling_p50_us"]),
        ("iosize", ["iops", "target_us"]),
        ("mixed-lanes", ["iops", "p50_us"]),
        ("busy-poll", ["iops", "target_napi_id"]),
        ("mtu", ["iops", "segment_bytes"]),
    ] {
        let results = json_of(&out.join(name).join("results.json"));
        let cells = results["cells"].as_array().expect("cells");
        assert!(!cells.is_empty(), "{name}");
        for cell in cells {
            // On a busy machine a cell has a reason instead of values, and what others had.
            match &cell["values"] {
                Value::Null => {
                    let losses = cell["rejected"][0]["disturbance"].as_array().expect("losses");
                    assert!(!losses.is_empty(), "{name}: {cell}");
                }
                told => {
                    // Of a host that receives PDU by PDU, the sockets are no ceiling.
                    let has = |value: &str| {
                        let is_number = |value: &str| told[value]["median"].is_number();
                        is_number(value) || value == "share" && is_number("over_sockets")
                    };
                    assert!(values.iter().all(|value| has(value)), "{name}: {cell}");
                    assert_eq!(has("share"), ["ceiling", "iosize"].contains(&name), "{name}: {cell}");
                    assert!(told["line_ns"].is_null(), "{name}: no cache line between two machines");
                }
            }
        }
    }
}

#[test]
fn memory_and_processor_time_of_the_other_machine_decide_verdicts() {
    let server = Server::start();
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path();
    let ended =
        Ended::of(server.study("idle", out).args(["--only", "1000 lanes", "--rounds", "1", "-t", "0.1"]));
    if ended.code != 0 {
        // A low limit on descriptors.
        assert!(ended.complaint(1).contains("ulimit -Hn"));
        return;
    }
    let results = json_of(&out.join("results.json"));
    let bars = results["bars"].as_array().expect("bars");
    let value_of = |key: &str| {
        let bar = bars.iter().find(|bar| bar["key"] == key).unwrap_or_else(|| panic!("{key}: {bars:?}"));
        assert!(bar["is_reached"].is_null(), "one round: {bar}");
        bar["value"].as_f64().expect("a figure")
    };
    // An idle target may use no time that can be counted.
    assert!(value_of("cpu_percent_1000") >= 0.0);
    assert!(value_of("bytes_per_idle_lane") > 0.0);
}

#[test]
fn a_wrong_token_and_another_version_are_refused() {
    let mut server = Server::start();
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().to_str().expect("text").to_owned();
    let study = |address: &str, token: &str| {
        run(["study", "iosize", "--target", address, "--token", token, "--out", &out])
    };
    let complaint = study(&server.address, "0123456789abcdef").complaint(4);
    assert_eq!(complaint, format!("the study server at {}: wrong token", server.address));
    assert_eq!(server.line(), "connection from 127.0.0.1 refused: wrong token");
    assert!(study(&server.address, "short").complaint(2).contains("--token: a token has 16"));

    // Another study.
    let (mut stream, challenge) = server.connect();
    writeln!(stream.get_mut(), "{}", server.hello("0.0.9", &challenge)).expect("sent");
    let refused = read_line(&mut stream)["refused"].as_str().expect("a reason").to_owned();
    let ours = env!("CARGO_PKG_VERSION");
    assert!(refused.contains("nvlane 0.0.9") && refused.contains(&format!("nvlane {ours}")), "{refused}");

    // Another server.
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = other.local_addr().expect("an address").to_string();
    let answer = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().expect("the study");
        let challenge = json!({ "challenge": { "version": "0.0.9", "challenge": "00".repeat(32) } });
        writeln!(stream, "{challenge}").expect("sent");
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "no proof for another version");
    });
    let complaint = study(&address, &server.token).complaint(4);
    assert!(
        complaint.contains("nvlane 0.0.9") && complaint.contains(&format!("nvlane {ours}")),
        "{complaint}"
    );
    answer.join().expect("the server of another version");
}

#[test]
fn malformed_long_and_silent_input_is_refused_and_the_server_stays() {
    let server = Server::start();
    for (input, reason) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "no message"),
        (b"\"ping\"\n".to_vec(), "prove the token"),
        (b"{\"hello\":{\"version\":\"1\",\"proof\":\"zz\"}}\n".to_vec(), "wrong token"),
        (b"\xff\xfe\n".to_vec(), "no message"),
        (vec![b'['; 100_000], "more than 16384 bytes"),
        (Vec::new(), "nothing came for 5 s"),
    ] {
        let (mut stream, _) = server.connect();
        // The server may have closed the connection before it has taken all.
        let _ = stream.get_mut().write_all(&input);
        let mut line = String::new();
        let read = stream.read_line(&mut line);
        assert!(line.contains(reason) || input.len() > 50_000 && read.is_err(), "{line}: {reason}");
    }
    let directory = tempfile::tempdir().expect("a directory");
    Ended::of(server.study("kv-memory", directory.path()).args(["--only", "16 + 500 B", "--rounds", "1"]))
        .text_beside_progress();
}

#[test]
fn silent_connections_keep_no_study_out() {
    let server = Server::start();
    // Held open; the server closes the oldest ones for newer ones, and all of them when they have proven nothing.
    let silent: Vec<_> = (0..200).map(|_| TcpStream::connect(&server.address).expect("accepted")).collect();
    let directory = tempfile::tempdir().expect("a directory");
    Ended::of(server.study("kv-memory", directory.path()).args(["--only", "16 + 500 B", "--rounds", "1"]))
        .text_beside_progress();
    drop(silent);
}

#[test]
fn targets_take_the_ports_of_a_range_and_its_end_is_told() {
    let used = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let first = used.local_addr().expect("an address").port();
    let free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let Some(last) = (first..=first.saturating_add(50)).filter(|port| free(*port)).nth(1) else {
        panic!("no two free ports above {first}");
    };
    let range = format!("{first}-{last}");
    let server = Server::with(&["--data-ports", &range]);
    let mut ask = server.session();
    let start = json!({ "start": { "namespaces": [{ "null": { "bytes": 1 << 30, "lba_bytes": null } }], "tuning": {}, "tells": false } });
    let port_of = |started: &Value| -> u16 {
        let address = started["done"]["address"].as_str().unwrap_or_else(|| panic!("{started}"));
        let address = address.split('/').next().expect("an address");
        address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("a port")
    };
    // Others may take ports of the range meanwhile, so fewer targets than it has ports may fit.
    let mut targets = Vec::new();
    let refused = loop {
        let answer = ask(start.clone());
        if answer["refused"].is_string() {
            break answer["refused"].as_str().map(str::to_owned).expect("a reason");
        }
        let port = port_of(&answer);
        assert!(
            (first + 1..=last).contains(&port) && !targets.contains(&port),
            "{port} of {range}: {targets:?}"
        );
        targets.push(port);
    };
    assert!(!targets.is_empty());
    let expected = format!("of --data-ports {range} are in use on 127.0.0.1");
    assert!(refused.contains(&expected), "{refused}");
    assert_eq!(ask(json!({ "stop": { "target": 1 } }))["done"], Value::Null);
    let again = port_of(&ask(start.clone()));
    assert!((first + 1..=last).contains(&again) && !targets[1..].contains(&again), "{again} of {range}");
}

#[test]
fn keys_placements_and_cores_of_the_other_machine_are_used() {
    let server = Server::start();
    let directory = tempfile::tempdir().expect("a directory");
    // One core of the server: of affinity those without a placement among reactors.
    for (name, only, value, count) in [
        ("tls", "connect ffdhe2048 tls", "connect_ms", 1),
        ("tls", "write 4k qd1 tls", "share", 1),
        ("affinity", "qd1", "iops", 2),
        ("kv-scaling", "1 reactor", "whole_cores_ops", 2),
    ] {
        let out = directory.path().join(format!("{name} {only}"));
        let mut command = server.study(name, &out);
        Ended::of(command.args(["--only", only, "--rounds", "1", "-t", "0.05", "--extra", "0"]))
            .text_beside_progress();
        let results = json_of(&out.join("results.json"));
        assert!(results["target_machine"].is_object(), "{name}: {results}");
        let cells = results["cells"].as_array().expect("cells");
        assert_eq!(cells.len(), count, "{name}");
        for cell in cells {
            let is_measured = cell["values"][value]["median"].is_number();
            assert!(is_measured || !cell["rejected"][0]["disturbance"].is_null(), "{name}: {cell}");
        }
    }
    wait_until("the targets end with their study", || server.targets().is_empty());
}

#[test]
fn experiments_without_a_target_run_on_the_machine_of_the_load() {
    let server = Server::start();
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = server.study("kv-accesses", directory.path());
    let told = Ended::of(command.args(["--only", "4 + 4 B, 10 %", "--rounds", "1"])).text_beside_progress();
    assert!(told.contains("Measured on this machine alone: "), "{told}");
    let results = json_of(&directory.path().join("results.json"));
    assert!(results["target_machine"].is_null() && results["only_here"].is_string());
    let page = fs::read_to_string(directory.path().join("report.html")).expect("a page");
    assert!(page.contains("Measured on this machine alone: ") && !page.contains("between two machines</li>"));
}

#[test]
fn what_the_other_machine_lacks_is_told_with_its_name() {
    let mut command = nvlane();
    command.env("NVLANE_MEMCACHED_BIN", "/no/such/memcached");
    let server = Server::of(command, &[]);
    let directory = tempfile::tempdir().expect("a directory");
    let complaint = Ended::of(&mut server.study("kv-peers", directory.path())).complaint(1);
    let expected = "on the targets' machine, 127.0.0.1: /no/such/memcached cannot be run: ";
    assert!(complaint.contains(expected) && complaint.contains("NVLANE_MEMCACHED_BIN"), "{complaint}");
    let complaint = Ended::of(&mut server.study("kv-neighbour", directory.path())).complaint(1);
    assert!(complaint.contains("a second core of the study server"), "{complaint}");
}

/// A program that takes memcached's options, and serves its protocol.
const MEMCACHED: &str = r#"#!/bin/sh
set -eu
case "$*" in
    --version) echo "memcached 1.6.40"; exit ;;
    *"-U 0 -t 1 -m 1024"*) ;;
    *) exit 2 ;;
esac
while getopts l:p:U:t:m:c:u: option; do
    case $option in
        l) host=$OPTARG ;;
        p) port=$OPTARG ;;
        *) ;;
    esac
done
exec "$NVLANE" target --listen 127.0.0.1:0 --memcached "$host:$port" --namespace kv:ram:512M
"#;

#[test]
fn another_server_runs_on_the_machine_of_the_targets() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).expect("a program");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("that can run");
        path
    };
    let mut command = nvlane();
    let nvlane = command.get_program().to_owned();
    command.env("NVLANE", nvlane).env("NVLANE_MEMCACHED_BIN", program("memcached", MEMCACHED));
    command.env("NVLANE_REDIS_BIN", program("redis", "#!/bin/sh\necho Redis server v=7.0.15\n"));
    let server = Server::of(command, &[]);
    let out = directory.path().join("kv-peers");
    let mut study = server.study("kv-peers", &out);
    study.args(["--only", "get in 64, memcached", "--rounds", "1", "-t", "0.05", "--extra", "0"]);
    Ended::of(&mut study).text_beside_progress();
    let results = json_of(&out.join("results.json"));
    let cells = results["cells"].as_array().expect("cells");
    assert_eq!(cells.len(), 1, "{cells:?}");
    for value in ["ops", "ops_per_cpu", "server_ns"] {
        // Discarded numbers of a busy machine are kept.
        let discarded = &cells[0]["rejected"][0]["values"][value];
        let number = cells[0]["values"][value]["median"].as_f64().or(discarded.as_f64());
        assert!(number.is_some_and(|number| number > 0.0), "{value}: {cells:?}");
    }
    assert!(results["seen"].to_string().contains("memcached 1.6.40"), "{results}");
    wait_until("the other server ends with its study", || server.targets().is_empty());
}

#[test]
fn a_program_that_reads_memory_runs_on_the_second_core_of_the_server() {
    let server = Server::with(&["--cores", "0,1"]);
    let mut ask = server.session();
    let start = json!({ "start_memory_reader": { "access": "sequential", "warm_up": time(1000), "measure": time(20000) } });
    for _ in 0..2 {
        assert_eq!(ask(start.clone()), json!({ "done": null }));
        let read = ask(json!("end_memory_reader"));
        assert!(read["done"][0].as_f64().is_some_and(|rate| rate > 1e6), "{read}");
    }
    assert!(ask(json!("end_memory_reader"))["refused"].is_string());
}

/// SPDK's target, as far as a study needs it: it prints its version, and serves the file of its configuration.
const SPDKS_TARGET: &str = r#"#!/usr/bin/python3
import json, os, sys
if "--version" in sys.argv:
    print("SPDK v26.05 git sha1 0")
    sys.exit()
calls = {}
for subsystem in json.load(open(sys.argv[sys.argv.index("-c") + 1]))["subsystems"]:
    calls.update({call["method"]: call["params"] for call in subsystem["config"]})
at = calls["nvmf_subsystem_add_listener"]["listen_address"]
os.execv(os.environ["NVLANE"], [
    "nvlane", "target", "--listen", at["traddr"] + ":" + at["trsvcid"],
    "--nqn", calls["nvmf_create_subsystem"]["nqn"], "--namespace", "file:" + calls["bdev_aio_create"]["filename"],
])
"#;

/// That each cell with this parameter has this value, or on a busy machine what others had.
fn measured_or_disturbed(results: &Value, parameter: &str, of: &str, value: &str) {
    let cells = results["cells"].as_array().expect("cells");
    let cells = cells.iter().filter(|cell| cell["parameters"][parameter] == of);
    let cells: Vec<_> = cells.collect();
    assert!(!cells.is_empty(), "{of}: {results}");
    for cell in cells {
        if cell["values"].is_null() {
            let losses = cell["rejected"][0]["disturbance"].as_array().expect("losses");
            assert!(!losses.is_empty(), "{of}: {cell}");
            continue;
        }
        assert!(cell["values"][value]["median"].as_f64().is_some_and(|median| median > 0.0), "{of}: {cell}");
    }
}

#[test]
fn targets_of_others_and_the_file_itself_are_measured_on_the_other_machine() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("nvmf_tgt");
    fs::write(&path, SPDKS_TARGET).expect("a program");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("that can run");
    let mut command = nvlane();
    let nvlane = command.get_program().to_owned();
    command.env("NVLANE", nvlane).env("NVLANE_SPDK_BIN", directory.path());
    let server = Server::of(command, &[]);
    let out = directory.path().join("stacks");
    let mut study = server.study("stacks", &out);
    // The programs of the load's machine are others.
    study.env("NVLANE_SPDK_BIN", "/no/such/directory");
    study.args(["--only", "read qd32", "--rounds", "1", "-t", "0.05", "--extra", "0"]);
    let told = Ended::of(&mut study).text_beside_progress();
    let results = json_of(&out.join("results.json"));
    for stack in ["the file itself", "nvlane", "nvlane host, SPDK target"] {
        measured_or_disturbed(&results, "stack", stack, "iops");
    }
    assert!(results["seen"].to_string().contains("SPDK v26.05"), "{results}");
    assert!(told.contains("Measured between two machines."), "{told}");
    let lacking = results["lacking"].to_string();
    assert!(lacking.contains("spdk_nvme_perf"), "of the load's machine: {lacking}");
    assert!(lacking.contains("on the targets' machine, 127.0.0.1"), "{lacking}");

    let out = directory.path().join("ceiling");
    let mut study = server.study("ceiling", &out);
    study.args(["--storage", "file", "--only", "file read qd8"]);
    study.args(["--rounds", "1", "-t", "0.05", "--extra", "0"]);
    Ended::of(&mut study).text_beside_progress();
    let results = json_of(&out.join("results.json"));
    measured_or_disturbed(&results, "storage", "file", "ceiling_iops");
    wait_until("all targets end with their study", || server.targets().is_empty());
}

#[test]
fn a_study_gets_no_more_than_its_bounds_and_names_no_program() {
    let server = Server::start();
    let mut ask = server.session();
    let ceiling = |name: &str, value: u64| {
        let mut start = json!({
            "depth": 1, "connections": 1, "io_bytes": 4096, "memory_bytes": 0, "far_memory_bytes": 0, "tls": null,
            "warm_up": time(1), "sleeps": true,
        });
        start[name] = json!(value);
        json!({ "start_ceiling": start })
    };
    let reader =
        json!({ "start_memory_reader": { "access": "random", "warm_up": time(0), "measure": time(1) } });
    let file_target = |kind: &str, bytes: u64, core_count: u32| json!({ "start_file_target": { "kind": kind, "bytes": bytes, "core_count": core_count } });
    let file_load = |name: &str, value: Value| {
        let mut start = json!({
            "bytes": 1 << 20, "pattern": "randread", "read_percent": 100, "io_bytes": 4096, "jobs": 1, "depth": 1,
            "warm_up": time(1), "measure": time(1), "core_count": 1,
        });
        start[name] = value;
        json!({ "start_file_load": start })
    };
    for (request, reason) in [
        (ceiling("connections", 4_000_000_000), "connections of a ceiling: 1 to "),
        (ceiling("depth", 0), "operations in flight of a ceiling: 1 to "),
        (ceiling("far_memory_bytes", 1 << 60), "MiB are free"),
        (json!("await_ceiling"), "there is no far end of a ceiling"),
        (json!({ "start_peer": { "kind": "redis", "memory_mib": 4_000_000_000_u32 } }), "MiB are free"),
        (json!({ "start_peer": { "kind": "redis", "memory_mib": 0 } }), "at least 1 MiB"),
        (reader, "a second core of this server"),
        (json!("end_file_load"), "no load runs on the file"),
        (file_target("spdk", 1 << 31, 1), "the file of a study has at most 1g bytes"),
        (file_target("spdk", 4096, 0), "a core of the server"),
        (file_load("jobs", json!(4_000_000_000_u32)), "queues of a load on the file: 1 to 1024"),
        (file_load("bytes", json!(0)), "the file of a study has at most 1g bytes"),
        (json!("end_memory_reader"), "no program reads memory"),
        (json!({ "counters": { "target": 1 } }), "there is no target 1"),
        (json!({ "steer": { "target": 1, "by": "own_queues" } }), "there is no target 1"),
        (json!({ "start_sampling": { "target": 7, "measure": time(1) } }), "there is no target 7"),
        (json!("end_sampling"), "no target is sampled"),
    ] {
        let refused = ask(request.clone());
        let told = refused["refused"].as_str().unwrap_or_else(|| panic!("{request}: {refused}"));
        assert!(told.contains(reason), "{request}: {told}");
    }
    assert_eq!(ask(json!("ping")), json!({ "done": null }));
    // One at a time: the second takes the place of the first.
    for _ in 0..2 {
        assert!(ask(ceiling("depth", 4))["done"][1].is_string());
    }
    for _ in 0..2 {
        assert_eq!(ask(file_load("measure", time(500_000_000))), json!({ "done": null }));
    }
    let refused = ask(json!({ "start_peer": { "kind": "/bin/sh", "memory_mib": 1 } }));
    assert!(refused["refused"].as_str().is_some_and(|told| told.contains("no message")), "{refused}");
}

/// A time as messages have it.
fn time(us: u64) -> Value {
    json!(Duration::from_micros(us))
}

fn null_target() -> Value {
    json!({ "start": { "namespaces": [{ "null": { "bytes": 1 << 30, "lba_bytes": null } }], "tuning": {}, "tells": true } })
}

#[test]
fn device_queues_and_packet_sizes_are_measured_between_two_machines() {
    let server = Server::start();
    let directory = tempfile::tempdir().expect("a directory");
    for (name, only, values) in [
        ("adq-memcached", "1 connections", &["ops", "server_ns", "switches", "softirqs"][..]),
        ("adq", "memcached, 32 connections, on", &["ops", "server_ns", "switches"]),
        ("adq", "nvme, neighbour, off", &["ops", "server_ns", "switches"]),
        ("mtu", "4k mtu 1500", &["iops", "segment_bytes"]),
    ] {
        let out = directory.path().join(format!("{name} {only}"));
        let mut command = server.study(name, &out);
        command.args(["--only", only, "--rounds", "1", "-t", "0.05", "--extra", "0"]);
        let ended = Ended::of(&mut command);
        if name == "adq" && ended.code != 0 {
            // A low limit on descriptors.
            assert!(ended.complaint(1).contains("ulimit -Hn"));
            continue;
        }
        let told = ended.text_beside_progress();
        let results = json_of(&out.join("results.json"));
        assert!(results["target_machine"].is_object(), "{name}: {results}");
        let cells = results["cells"].as_array().expect("cells");
        assert!(!cells.is_empty(), "{name}");
        for cell in cells {
            let median = |value: &&str| cell["values"][*value]["median"].as_f64();
            let is_measured = values.iter().all(|value| median(value).is_some());
            assert!(is_measured || !cell["rejected"][0]["disturbance"].is_null(), "{name}: {cell}");
            if let Some(bytes) = median(&"segment_bytes") {
                assert!((1420.0..=1460.0).contains(&bytes), "packets of 1500 bytes: {cell}");
            }
        }
        let condition = match name {
            "adq" => "On is polling alone: ",
            "mtu" => "TCP's maximum segment size limits packets",
            _ => "",
        };
        assert!(told.contains(condition), "{name}: {told}");
    }
    wait_until("the targets end with their study", || server.targets().is_empty());
}

#[test]
fn a_server_without_an_interface_sets_none() {
    let server = Server::start();
    let mut ask = server.session();
    let started = ask(null_target());
    let number = &started["done"]["target"];
    let counters = ask(json!({ "counters": { "target": number } }));
    assert!(counters["done"]["run_ns"].as_u64().is_some_and(|ns| ns > 0), "{counters}");
    assert!(counters["done"]["interrupts"].is_null(), "loopback has no interrupts: {counters}");
    for by in ["own_queues", "arfs"] {
        let refused = ask(json!({ "steer": { "target": number, "by": by } }));
        let told = refused["refused"].as_str().unwrap_or_else(|| panic!("{refused}"));
        assert!(told.contains("the operator of this server allows no change of an interface"), "{told}");
    }
    let named = json!({ "steer": { "target": number, "by": "own_queues", "interface": "eth0" } });
    assert!(ask(named)["refused"].as_str().is_some_and(|told| told.contains("no message")));
}

/// A server in a network namespace, which may set the queues of its virtual device. Needs root, `ip` and `ethtool`.
#[test]
fn an_interface_of_the_server_is_set_for_a_target_and_is_then_as_before() {
    let Some(network) = veth::Network::new(0) else { return };
    let (records, reports) =
        (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let within = || {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &network.namespace]).arg(nvlane().get_program());
        command.env("NVLANE_ADQ_RECORD", records.path());
        command
    };
    let refused = |options: &[&str]| {
        let mut command = within();
        command.args(["study", "serve", "--listen", &network.address]).args(options);
        Ended::of(&mut command).complaint(2)
    };
    let complaint = refused(&["--interface", "lo"]);
    let expected = format!("{}, and that is of {}", network.address, network.far);
    assert!(complaint.contains(&expected), "{complaint}");

    let server = Server::at(&network.address, within(), &["--interface", &network.far]);
    let mut study = server.study("mtu", reports.path());
    let told = Ended::of(study.args(["--only", "4k", "--rounds", "1", "-t", "0.05", "--extra", "0"]))
        .text_beside_progress();
    let expected = "jumbo frames need an MTU of 9000 on both machines, here it is 1500.";
    assert!(told.contains(expected), "{told}");
    let results = json_of(&reports.path().join("results.json"));
    assert_eq!(results["cells"].as_array().map(Vec::len), Some(1), "{results}");
    let steering = &results["target_machine"]["steering"];
    assert_eq!(steering, &json!({ "interface": network.far, "has_arfs": false }));

    let disciplines = || {
        let shown = Command::new("ip")
            .args(["netns", "exec", &network.namespace, "tc", "qdisc", "show", "dev", &network.far])
            .output();
        String::from_utf8(shown.expect("tc").stdout).expect("text")
    };
    let before = disciplines();
    let has_record = || fs::read_dir(records.path()).expect("a directory").next().is_some();
    let steer = |number: &Value, by: &str| json!({ "steer": { "target": number, "by": by } });
    let mut ask = server.session();
    let first = ask(null_target())["done"]["target"].clone();
    let second = ask(null_target())["done"]["target"].clone();
    let arfs = ask(steer(&first, "arfs"));
    assert!(
        arfs["refused"].as_str().is_some_and(|told| told.contains("failed: ") || told.contains("aRFS")),
        "{arfs}"
    );
    let steered = ask(steer(&first, "own_queues"));
    if let Some(told) = steered["refused"].as_str() {
        assert!(told.contains("this kernel has no mqprio"), "{told}");
        assert!(!has_record() && disciplines() == before);
        assert_eq!(ask(json!("ping")), json!({ "done": null }));
        eprintln!("skipped: {told}");
        return;
    }
    assert_eq!(steered["done"], "software", "{steered}");
    assert!(has_record() && disciplines().contains("mqprio"));
    let taken = ask(steer(&second, "own_queues"));
    let told = taken["refused"].as_str().unwrap_or_else(|| panic!("{taken}"));
    assert!(told.contains("are set for target 1 already"), "{told}");
    assert_eq!(ask(json!({ "stop": { "target": first } })), json!({ "done": null }));
    assert!(!has_record() && disciplines() == before, "it ends with its target");
    assert!(ask(steer(&second, "own_queues"))["done"].is_string());
    drop(ask);
    wait_until("it ends with its study", || !has_record() && disciplines() == before);
}

/// Runs a command that the kernel refuses perf_event_open, as one with a paranoid level of 3 does.
const UNSAMPLED: &str = r#"
import ctypes, os, platform, struct, sys
number = {"x86_64": 298, "aarch64": 241}[platform.machine()]
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | 13), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
class Filter(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
asked = Filter(len(steps), ctypes.addressof(code))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(asked), 0, 0):
    sys.exit(os.strerror(ctypes.get_errno()))
os.execv(sys.argv[1], sys.argv[1:])
"#;

/// Runs a cell of `layers`; its results, unless this machine does not permit samples.
fn layers(server: &Server, out: &Path) -> Option<Value> {
    let mut study = server.study("layers", out);
    study.args(["--only", "read qd32 single", "--rounds", "1", "-t", "0.2", "--extra", "0"]);
    let ended = Ended::of(&mut study);
    if ended.code != 0 {
        let complaint = ended.complaint(1);
        assert!(
            complaint.contains("on the host's machine: samples of threads are not permitted"),
            "{complaint}"
        );
        return None;
    }
    Some(json_of(&out.join("results.json")))
}

#[test]
fn each_side_is_sampled_on_its_machine() {
    let server = Server::start();
    let directory = tempfile::tempdir().expect("a directory");
    let Some(results) = layers(&server, directory.path()) else { return };
    assert!(results["target_machine"]["without"].is_null(), "{results}");
    measured_or_disturbed(&results, "workload", "read", "target_samples");
    let conditions = results["conditions"].as_str().expect("the numbers of samples");
    assert!(!conditions.contains("n/a"), "{conditions}");
    // Where something has no name, the machine is named.
    assert!(!conditions.contains("Not complete:"), "{conditions}");
    let functions = &results["functions"]["target"];
    let percents = functions.as_object().expect("layers").values().map(|layer| layer["percent"].as_f64());
    let sum: f64 = percents.map(Option::unwrap_or_default).sum();
    assert!((sum - 100.0).abs() < 0.1, "{functions}");
    wait_until("the target ends with its study", || server.targets().is_empty());
}

#[test]
fn a_server_that_may_not_sample_leaves_the_layers_of_the_host() {
    let mut command = Command::new("python3");
    command.args(["-c", UNSAMPLED]).arg(nvlane().get_program());
    let server = Server::of(command, &[]);
    let directory = tempfile::tempdir().expect("a directory");
    let Some(results) = layers(&server, directory.path()) else { return };
    let conditions = results["conditions"].as_str().expect("the reason");
    let expected = "The layers of the target are n/a: on the targets' machine, 127.0.0.1: samples of threads are not permitted";
    assert!(conditions.contains(expected) && conditions.contains("n/a of the target"), "{conditions}");
    measured_or_disturbed(&results, "workload", "read", "host_samples");
    assert!(results["cells"][0]["values"]["target_samples"].is_null(), "{results}");
}

#[test]
fn a_sampling_ends_with_its_target_and_with_its_study() {
    let server = Server::start();
    let server_id = server.process.id();
    let samplers = || {
        let tasks = fs::read_dir(format!("/proc/{server_id}/task")).expect("its threads").flatten();
        let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| name.trim_end() == "nvlane-sampler").count()
    };
    // A thread has its name a moment after its start, and is listed a moment after its end.
    let wait_for = |count: usize| wait_until("threads that sample", || samplers() == count);
    let mut ask = server.session();
    let start = json!({ "start": { "namespaces": [{ "null": { "bytes": 1 << 30, "lba_bytes": null } }], "tuning": {}, "tells": false } });
    let mut target = || ask(start.clone())["done"]["target"].as_u64().expect("a target");
    let (first, second) = (target(), target());
    let sample = |target: u64, measure_us: u64| json!({ "start_sampling": { "target": target, "measure": time(measure_us) } });
    let refused = ask(sample(first, 601_000_000));
    assert_eq!(refused["refused"], "threads are sampled for 600 s at most");
    let started = ask(sample(first, 1_000_000));
    if let Some(refused) = started["refused"].as_str() {
        assert!(refused.contains("not permitted"), "{refused}");
        return;
    }
    assert_eq!(started, json!({ "done": null }));
    wait_for(1);
    // One at a time: the second takes the place of the first.
    assert_eq!(ask(sample(second, 1_000_000)), json!({ "done": null }));
    wait_for(1);
    let sampled = ask(json!("end_sampling"));
    assert!(sampled["done"]["functions"].is_array(), "{sampled}");
    wait_for(0);
    assert_eq!(ask(sample(first, 1_000_000)), json!({ "done": null }));
    assert_eq!(ask(json!({ "stop": { "target": second } })), json!({ "done": null }));
    wait_for(1);
    assert_eq!(ask(json!({ "stop": { "target": first } })), json!({ "done": null }));
    wait_for(0);
    assert_eq!(ask(json!("end_sampling"))["refused"], "no target is sampled");
    let third = ask(start.clone())["done"]["target"].as_u64().expect("a target");
    assert_eq!(ask(sample(third, 600_000_000)), json!({ "done": null }));
    drop(ask);
    wait_until("the sampling ends with its connection", || samplers() == 0 && server.targets().is_empty());
}

#[test]
fn power_is_that_of_both_machines_or_the_one_without_counters_is_named() {
    let server = Server::start();
    let directory = tempfile::tempdir().expect("a directory");
    let mut study = server.study("cost", directory.path());
    study.args(["--only", "write 4k qd128", "--rounds", "1", "-t", "0.05", "--extra", "0"]);
    Ended::of(&mut study).text_beside_progress();
    let results = json_of(&directory.path().join("results.json"));
    assert!(results["target_machine"]["without"].is_null(), "{results}");
    measured_or_disturbed(&results, "load", "write 4k qd128", "both_ops_per_cpu");
    let conditions = results["conditions"].as_str().expect("a sentence");
    if conditions.contains("n/a") {
        for machine in ["on the host's machine: ", "on the targets' machine, 127.0.0.1: "] {
            assert!(conditions.contains(machine), "{conditions}");
        }
    } else {
        // Both are this machine, which counts once.
        assert!(conditions.contains("those of one machine"), "{conditions}");
        measured_or_disturbed(&results, "load", "write 4k qd128", "watts");
    }
}

/// A study that runs until it is killed, and has a target.
fn endless(server: &Server, out: &Path) -> Child {
    let mut command = server.study("iosize", out);
    command.args(["--only", "read 4k", "--rounds", "1000", "-t", "0.1"]);
    let study = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    wait_until("the study has a target", || !server.targets().is_empty());
    study
}

#[test]
fn targets_end_with_a_study_that_is_killed_and_one_study_runs_at_a_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server::start();
    let mut study = endless(&server, directory.path());
    let other = directory.path().join("other");
    let second =
        || Ended::of(server.study("kv-memory", &other).args(["--only", "16 + 500 B", "--rounds", "1"]));
    let complaint = second().complaint(4);
    assert!(complaint.contains("a study from 127.0.0.1 runs since"), "{complaint}");
    let targets = server.targets();
    study.kill().expect("SIGKILL");
    study.wait().expect("it has ended");
    wait_until("the target ends", || !alive(&targets) && server.targets().is_empty());
    second().text_beside_progress();
}

#[test]
fn a_study_whose_server_is_killed_says_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = Server::start();
    let study = endless(&server, directory.path());
    let targets = server.targets();
    server.process.kill().expect("SIGKILL");
    let ended = study.wait_with_output().expect("it ends");
    let complaint = String::from_utf8(ended.stderr).expect("text");
    // 4 while the study is still agreeing with its server.
    assert!([Some(1), Some(4)].contains(&ended.status.code()), "{complaint}");
    let expected = format!("nvlane: the study server at {}: ", server.address);
    assert!(complaint.lines().any(|line| line.starts_with(&expected)), "{complaint}");
    wait_until("the target ends", || !alive(&targets));
}

#[test]
fn what_cannot_be_measured_between_two_machines_says_why_and_what_can() {
    let study = |words: &[&str]| run(["study"].iter().chain(words)).complaint(2);
    let far = ["--target", "192.0.2.2", "--token", "0123456789abcdef"];
    let complaint = study(&[&["adq", "--interface", "eth1", "--peer", "eth2"][..], &far].concat());
    assert!(
        complaint.contains("`nvlane study serve --interface IF` names that of the targets"),
        "{complaint}"
    );
    let complaint = study(&["serve", "--listen", "127.0.0.1:0", "--interface", "eth1"]);
    assert!(complaint.contains("--interface eth1: targets have the address 127.0.0.1"), "{complaint}");
    let complaint = study(&["serve", "--listen", "0.0.0.0:0", "--interface", "eth1"]);
    assert!(complaint.contains("--listen or --data-address has to name it"), "{complaint}");
    assert!(study(&["iosize", "--target", "192.0.2.2"]).contains("--token-file"));
    let complaint = study(&["iosize", "--target", "192.0.2.2", "--token-file", "/no/such"]);
    assert!(complaint.contains("--token-file /no/such: No such file"), "{complaint}");
    assert!(study(&["serve", "--token-file", "/no/such"]).contains("--token-file /no/such"));
    assert!(study(&["serve", "--listen", "nowhere"]).contains("expected an IP address"));
    assert!(
        study(&["serve", "--data-ports", "5000"]).contains("expected FIRST-LAST, two ports of 1 to 65535")
    );
    let complaint = study(&["serve", "--data-ports", "5031-5000"]);
    assert!(complaint.contains("the last port, 5000, is below the first, 5031"), "{complaint}");
}
