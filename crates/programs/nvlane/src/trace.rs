//! `nvlane trace`: the recent events of a running target, through its control socket.

use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};
use command_line::control_place::ControlOptions;
use command_line::exit::{Ended, Failure};
use command_line::output::escaped_json;
use command_line::values::run_time;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use wire::text::without_hidden;

use crate::ctl::client::Client;

/// Interval at which events are read.
const READ_INTERVAL: Duration = Duration::from_millis(50);

/// Time for each answer.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Limit of events, which are kept in memory until they are printed.
const EVENT_COUNT_MAX: u64 = 1_000_000;

#[derive(Debug, Args)]
#[command(after_help = "\
Each command is one event, when its response has left: its arrival, and how long it was in the socket, waiting for rate limits, for its data, in storage, waiting \
for the doorbell, and being sent. Further events are doorbells, connected and ended queues, and violations of the protocol. Memcached clients are \
not traced.

  nvlane trace --time 2 --nsid 1
  nvlane trace --events 1000 --host nqn.2026-01.com.example:web-1 -o json
  nvlane trace -o chrome > trace.json                   for https://ui.perfetto.dev or chrome://tracing

The target records only while a trace runs, and costs nothing otherwise. Each of its reactors keeps the newest --keep events until they are read, \
about 100 bytes each; events that are lost are counted, and the last line says so. Ctrl-C ends the trace and prints what there is.")]
pub(crate) struct TraceArguments {
    #[command(flatten)]
    control: ControlOptions,
    /// How long to trace, up to an hour.
    #[arg(short, long, value_name = "SECONDS", default_value = "10", value_parser = run_time)]
    time: Duration,
    /// Number of events after which the trace ends, up to 1000000.
    #[arg(short, long, value_name = "NUMBER", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=EVENT_COUNT_MAX))]
    events: u64,
    /// Only what this host does.
    #[arg(long, value_name = "NQN")]
    host: Option<String>,
    /// Only what is done in this subsystem.
    #[arg(long, short, value_name = "NQN")]
    subsystem: Option<String>,
    /// Only commands on this namespace.
    #[arg(long, short, value_name = "NSID", value_parser = clap::value_parser!(u32).range(1..))]
    nsid: Option<u32>,
    /// Events that each reactor keeps until they are read, up to 262144. [default: 16384]
    #[arg(long, value_name = "NUMBER")]
    keep: Option<u32>,
    /// Output format.
    #[arg(
        short = 'o',
        long = "output-format",
        alias = "output",
        value_name = "FORMAT",
        default_value = "text"
    )]
    format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// A table.
    Text,
    /// JSON, with times in ns.
    Json,
    /// The format of Chrome's trace viewer and of Perfetto.
    Chrome,
}

/// An event.
#[derive(Debug, Serialize, Deserialize)]
struct Event {
    at_ns: u64,
    event: String,
    reactor: u16,
    lane: u32,
    qid: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subsystem: Option<String>,
    #[serde(flatten)]
    command: Option<Command>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pdus: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Command {
    nsid: u32,
    cid: u16,
    opcode: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    lba: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<u32>,
    bytes: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    socket_ns: u64,
    limit_ns: u64,
    data_ns: u64,
    storage_ns: u64,
    doorbell_ns: u64,
    send_ns: u64,
}

impl Command {
    fn phases(&self) -> [(&'static str, u64); 6] {
        [
            ("socket", self.socket_ns),
            ("limit", self.limit_ns),
            ("data", self.data_ns),
            ("storage", self.storage_ns),
            ("doorbell", self.doorbell_ns),
            ("send", self.send_ns),
        ]
    }

    fn total_ns(&self) -> u64 {
        self.phases().iter().map(|(_, ns)| ns).sum()
    }
}

/// A trace that was read.
#[derive(Default)]
struct Trace {
    events: Vec<Event>,
    lost_count: u64,
    start_unix_us: u64,
}

pub(crate) fn trace(arguments: &TraceArguments) -> Ended {
    let mut client = Client::connect(&arguments.control, ANSWER_TIME)?;
    let is_interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&is_interrupted)).context("signal handlers")?;
    }
    let trace = read(arguments, &mut client, &is_interrupted)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let written = match arguments.format {
        Format::Text => write_table(&mut out, &trace),
        Format::Json => write_json(&mut out, &trace),
        Format::Chrome => write_chrome(&mut out, &trace),
    };
    written.and_then(|()| out.flush()).map_err(Failure::output)?;
    Ok(ExitCode::SUCCESS)
}

/// Begins a trace, and reads it until its end.
fn read(
    arguments: &TraceArguments,
    client: &mut Client,
    is_interrupted: &AtomicBool,
) -> Result<Trace, Failure> {
    let mut params = Map::from_iter([
        ("ms".to_owned(), u64::try_from(arguments.time.as_millis()).unwrap_or(u64::MAX).into()),
        ("events".to_owned(), arguments.events.into()),
    ]);
    for (name, value) in [
        ("host", arguments.host.clone().map(Value::from)),
        ("subsystem", arguments.subsystem.clone().map(Value::from)),
        ("nsid", arguments.nsid.map(Value::from)),
        ("keep", arguments.keep.map(Value::from)),
    ] {
        if let Some(value) = value {
            params.insert(name.into(), value);
        }
    }
    let started = client.call("trace_start", &params)?;
    let params = Map::from_iter([("id".to_owned(), started["id"].clone())]);
    let mut trace = Trace::default();
    // A reactor that hangs does not end its trace.
    let until = Instant::now() + arguments.time + ANSWER_TIME;
    loop {
        let is_late = is_interrupted.load(Ordering::Relaxed) || Instant::now() >= until;
        let mut answer = client.call(if is_late { "trace_stop" } else { "trace_read" }, &params)?;
        let part: Vec<Event> =
            serde_json::from_value(answer["events"].take()).context("events of the target")?;
        let is_empty = part.is_empty();
        trace.events.extend(part);
        trace.lost_count += answer["lost"].as_u64().unwrap_or(0);
        if let Some(unix_us) = answer["start_unix_us"].as_u64().filter(|unix_us| *unix_us > 0) {
            trace.start_unix_us = unix_us;
        }
        if let Some(count) = answer["silent_reactors"].as_u64().filter(|count| *count > 0) {
            eprintln!("nvlane: {count} reactors do not answer, their events are missing");
        }
        if answer["goes_on"] != true || (is_late && is_empty) {
            trace.events.sort_by_key(|event| event.at_ns);
            return Ok(trace);
        }
        if is_empty {
            std::thread::sleep(READ_INTERVAL);
        }
    }
}

/// Times of a table, us.
fn us(ns: u64) -> String {
    format!("{}.{}", ns / 1000, ns / 100 % 10)
}

fn write_table(out: &mut impl Write, trace: &Trace) -> io::Result<()> {
    let first_ns = trace.events.first().map_or(0, |event| event.at_ns);
    let mut hosts: Vec<&str> = Vec::new();
    writeln!(
        out,
        "{:>12} {:>3} {:>5} {:>4} {:>4} {:>5} {:<20} {:>12} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "us",
        "rct",
        "lane",
        "qid",
        "host",
        "nsid",
        "event",
        "lba",
        "blocks",
        "total",
        "socket",
        "limit",
        "data",
        "storage",
        "doorbell",
        "send"
    )?;
    for event in &trace.events {
        let mut line = String::new();
        let host = event.host.as_deref().map_or_else(
            || "-".to_owned(),
            |host| {
                let known = hosts.iter().position(|known| *known == host);
                let at = known.unwrap_or_else(|| {
                    hosts.push(host);
                    hosts.len() - 1
                });
                format!("h{}", at + 1)
            },
        );
        let _ = write!(
            line,
            "{:>12} {:>3} {:>5} {:>4} {host:>4}",
            us(event.at_ns.saturating_sub(first_ns)),
            event.reactor,
            event.lane,
            event.qid
        );
        match &event.command {
            Some(command) => {
                let number =
                    |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
                let _ = write!(
                    line,
                    " {:>5} {:<20} {:>12} {:>6} {:>9}",
                    command.nsid,
                    command.opcode,
                    number(command.lba),
                    number(command.blocks.map(u64::from)),
                    us(command.total_ns())
                );
                for (_, ns) in command.phases() {
                    let _ = write!(line, " {:>9}", us(ns));
                }
                if let Some(status) = &command.status {
                    let _ = write!(line, " {status}");
                }
            }
            None => {
                let _ = write!(line, " {:>5} {}", "-", event.event);
                if let Some(pdus) = event.pdus {
                    let _ = write!(line, ", {pdus} PDUs");
                }
                if let Some(reason) = &event.reason {
                    let _ = write!(line, ": {reason}");
                }
            }
        }
        writeln!(out, "{}", without_hidden(line.trim_end(), false))?;
    }
    for (at, host) in hosts.iter().enumerate() {
        writeln!(out, "h{} is {}", at + 1, without_hidden(host, false))?;
    }
    writeln!(out, "{} events, {} lost", trace.events.len(), trace.lost_count)
}

fn write_json(out: &mut impl Write, trace: &Trace) -> io::Result<()> {
    write!(out, "{{\"start_unix_us\":{},\"lost\":{},\"events\":[", trace.start_unix_us, trace.lost_count)?;
    write_list(out, trace.events.iter().map(|event| json!(event)))?;
    writeln!(out, "]}}")
}

/// Values with commas between them, a line each.
fn write_list(out: &mut impl Write, values: impl Iterator<Item = Value>) -> io::Result<()> {
    for (at, value) in values.enumerate() {
        out.write_all(if at == 0 { b"\n" } else { b",\n" })?;
        // They have names of hosts, and the output may go to a terminal.
        out.write_all(escaped_json(&value.to_string()).as_bytes())?;
    }
    Ok(())
}

/// Chrome's trace events: a command is an asynchronous slice with its phases inside, since commands of a lane overlap.
fn write_chrome(out: &mut impl Write, trace: &Trace) -> io::Result<()> {
    write!(
        out,
        "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"start_unix_us\":{},\"lost\":{}}},\"traceEvents\":[",
        trace.start_unix_us, trace.lost_count
    )?;
    let named = trace.events.iter().map(|event| (event.reactor, event.lane, event.qid, &event.host));
    let mut lanes: Vec<_> = named.filter(|(.., host)| host.is_some()).collect();
    lanes.sort_unstable();
    lanes.dedup();
    let names = lanes.iter().flat_map(|(reactor, lane, qid, host)| {
        let name = format!("lane {lane}, queue {qid} of {}", host.as_deref().unwrap_or_default());
        [
            json!({ "ph": "M", "name": "process_name", "pid": reactor, "args": { "name": format!("reactor {reactor}") } }),
            json!({ "ph": "M", "name": "thread_name", "pid": reactor, "tid": lane, "args": { "name": name } }),
        ]
    });
    let slices = trace.events.iter().enumerate().flat_map(|(at, event)| chrome_events(at, event));
    write_list(out, names.chain(slices))?;
    writeln!(out, "]}}")
}

fn chrome_events(at: usize, event: &Event) -> Vec<Value> {
    // Microseconds, with fractions.
    let time = |ns: u64| ns as f64 / 1000.0;
    let (pid, tid) = (event.reactor, event.lane);
    let Some(command) = &event.command else {
        let name = match &event.reason {
            Some(reason) => format!("{}: {reason}", event.event),
            None => event.event.clone(),
        };
        let args = json!({ "pdus": event.pdus, "qid": event.qid, "host": event.host });
        return vec![
            json!({ "ph": "i", "s": "t", "name": name, "cat": event.event, "ts": time(event.at_ns), "pid": pid, "tid": tid, "args": args }),
        ];
    };
    let slice = |phase: &str, name: &str, ns: u64, args: Value| json!({ "ph": phase, "cat": "command", "id": at, "name": name, "ts": time(ns), "pid": pid, "tid": tid, "args": args });
    let args = json!({
        "nsid": command.nsid, "cid": command.cid, "lba": command.lba, "blocks": command.blocks, "bytes": command.bytes,
        "status": command.status, "qid": event.qid, "host": event.host, "subsystem": event.subsystem,
    });
    let end_ns = event.at_ns + command.total_ns();
    let mut slices = vec![slice("b", &command.opcode, event.at_ns, args)];
    let mut since_ns = event.at_ns;
    for (name, ns) in command.phases().into_iter().filter(|(_, ns)| *ns > 0) {
        slices.push(slice("b", name, since_ns, json!({})));
        since_ns += ns;
        slices.push(slice("e", name, since_ns, json!({})));
    }
    slices.push(slice("e", &command.opcode, end_ns, json!({})));
    slices
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> Trace {
        let events = json!([
            { "at_ns": 5_000, "event": "connected", "reactor": 0, "lane": 3, "qid": 1, "host": "nqn.h" },
            { "at_ns": 1_005_000, "event": "command", "reactor": 0, "lane": 3, "qid": 1, "host": "nqn.h", "subsystem": "nqn.s",
              "nsid": 2, "cid": 7, "opcode": "Read", "lba": 8, "blocks": 1, "bytes": 4096,
              "socket_ns": 1_000, "limit_ns": 0, "data_ns": 0, "storage_ns": 20_500, "doorbell_ns": 100, "send_ns": 3_000 },
            { "at_ns": 1_026_600, "event": "doorbell", "reactor": 0, "lane": 3, "qid": 1, "host": "nqn.h", "pdus": 1, "reason": "idle" },
        ]);
        Trace { events: serde_json::from_value(events).expect("events"), lost_count: 9, start_unix_us: 77 }
    }

    fn written(write: impl Fn(&mut Vec<u8>, &Trace) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out, &trace()).expect("written");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_table_has_a_line_for_each_event_and_says_what_was_lost() {
        let text = written(write_table);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 6, "{text}");
        assert!(lines[1].contains("connected") && lines[3].ends_with("doorbell, 1 PDUs: idle"), "{text}");
        let words: Vec<&str> = lines[2].split_whitespace().collect();
        let expected = [
            "1000.0", "0", "3", "1", "h1", "2", "Read", "8", "1", "24.6", "1.0", "0.0", "0.0", "20.5", "0.1",
            "3.0",
        ];
        assert_eq!(words, expected);
        assert_eq!(lines[4..], ["h1 is nqn.h", "3 events, 9 lost"]);
    }

    #[test]
    fn chrome_s_events_are_nested_and_closed() {
        let value: Value = serde_json::from_str(&written(write_chrome)).expect("JSON");
        let events = value["traceEvents"].as_array().expect("a list");
        let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).collect::<Vec<_>>();
        let (begun, ended) = (of("b"), of("e"));
        assert_eq!((begun.len(), ended.len(), of("i").len()), (5, 5, 2));
        for begin in &begun {
            let end = ended.iter().find(|end| end["name"] == begin["name"]).expect("it ends");
            let [from, to] = [begin, end].map(|event| event["ts"].as_f64().expect("a time"));
            assert!(to >= from && from >= 1005.0 && to <= 1029.61, "{begin} {end}");
        }
        assert_eq!(value["otherData"]["lost"], 9);
    }

    #[test]
    fn json_has_the_events_as_the_target_gave_them() {
        let value: Value = serde_json::from_str(&written(write_json)).expect("JSON");
        assert_eq!((&value["lost"], &value["events"][1]["storage_ns"]), (&json!(9), &json!(20_500)));
        assert!(value["events"][0].get("nsid").is_none());
    }
}
