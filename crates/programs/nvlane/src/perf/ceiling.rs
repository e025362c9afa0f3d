//! `nvlane perf ceiling`: the limit that the kernel's TCP sets on this machine.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use command_line::exit::Ended;
use command_line::exit::Failure;
use command_line::output;
use command_line::values::{cores, run_time, seconds};
use host::{Options, Receive};
use linux::CoreList;
use load::ceiling::{CeilingResult, CeilingSpec, measure};
use load::environment::Environment;
use load::report::Report;
use load::workload::{Mix, Pace, Pattern, Workload};
use security::psk::Cipher;
use serde_json::{Value, json};

/// Default limit of in-capsule data, bytes: the usual one of targets.
pub(crate) const IN_CAPSULE_BYTES: u32 = 8192;

#[derive(Debug, Args)]
#[command(after_help = "\
Two threads move the bytes that a host and a target would exchange over loopback connections, in as few calls as possible, both \
spinning, without NVMe. No NVMe/TCP implementation with the same number of lanes on this kernel's TCP can be sustainably faster.

  nvlane perf ceiling -q 1,4,32,128 -w randrw -M 70
  nvlane perf ceiling -q 32 -o 128k --tls              the ceiling of lanes with TLS
  nvlane perf ceiling -q 1023 -P 1,1024 --sleep        the cost of more lanes when no commands share a send")]
pub(crate) struct CeilingArguments {
    /// Operations in flight over all connections together; several depths such as 1,32,128 are measured in turn.
    #[arg(short = 'q', long, value_delimiter = ',', default_value = "1,4,32,128")]
    depth: Vec<u32>,
    /// Connections that share the operations; several counts such as 1,16,1024 are measured in turn.
    #[arg(short = 'P', long, value_delimiter = ',', default_value = "1")]
    lanes: Vec<u32>,
    /// Size of an operation.
    #[arg(short = 'o', long, value_name = "BYTES", default_value = "4k", value_parser = io_bytes)]
    io_size: u32,
    /// read, write or rw; their random forms mean the same here.
    #[arg(short = 'w', long, default_value = "randread")]
    pattern: String,
    /// Percentage of reads in rw. [default: 50]
    #[arg(short = 'M', long, value_name = "READ%")]
    read_percent: Option<u8>,
    /// Duration of each measurement.
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = run_time, default_value = "3")]
    time: Duration,
    /// Time under load before each measurement begins.
    #[arg(short = 'a', long, value_name = "SECONDS", value_parser = seconds, default_value = "0.5")]
    warm_up: Duration,
    /// Two cores: one for the host's side, one for the target's. [default: any]
    #[arg(short = 'c', long, value_name = "LIST", value_parser = cores)]
    cores: Option<CoreList>,
    /// Writes up to this size carry their data in the capsule; the data of larger ones is requested (R2T).
    #[arg(long, value_name = "BYTES", default_value_t = IN_CAPSULE_BYTES)]
    in_capsule: u32,
    /// Memory that each connection reads its data from and writes it to, at both ends; larger than the caches shows
    /// their effect. [default: one warm page for all]
    #[arg(long, value_name = "BYTES", value_parser = load::workload::parse_bytes, default_value = "0", hide_default_value = true)]
    memory: u64,
    /// Memory on the target's side that reads come from and writes are copied to, a random block for each, as in a
    /// namespace in RAM. [default: none]
    #[arg(long, value_name = "BYTES", value_parser = load::workload::parse_bytes, default_value = "0", hide_default_value = true)]
    target_memory: u64,
    /// How the host's side receives: everything that has arrived (staging), or PDU by PDU, with one call per header or
    /// data (pdu).
    #[arg(long, value_name = "HOW", default_value = "staging")]
    receive: Receive,
    /// TLS on each connection, through the streams that lanes use: aes128 (TLS_AES_128_GCM_SHA256) or aes256
    /// (TLS_AES_256_GCM_SHA384). [default without a value: aes128]
    #[arg(long, value_name = "CIPHER", num_args = 0..=1, require_equals = true, default_missing_value = "aes128",
          value_parser = cipher)]
    tls: Option<Cipher>,
    /// Let the target's side sleep when it has nothing to do, so that its processor time is that of its work.
    #[arg(long)]
    sleep: bool,
    /// Write JSON to this file, or to standard output instead of the table if it is -.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn ceiling(arguments: &CeilingArguments) -> Ended {
    let pattern = Pattern::named(&arguments.pattern, arguments.read_percent).map_err(Failure::usage)?;
    let read_percent = read_percent(&pattern).ok_or_else(|| {
        Failure::usage(
            "the ceiling covers reads and writes only: use read, write, rw, randread, randwrite or randrw",
        )
    })?;
    let cores = match arguments.cores.as_ref().map(CoreList::cores) {
        None => None,
        Some(&[near, far]) => Some((near, far)),
        Some(_) => return Err(Failure::usage("-c takes two cores here: one for each side")),
    };
    if arguments.depth.iter().any(|depth| !(1..=65_535).contains(depth)) {
        return Err(Failure::usage("-q takes depths from 1 to 65535"));
    }
    if arguments.lanes.iter().any(|lanes| !(1..=65_535).contains(lanes)) {
        return Err(Failure::usage("-P takes 1 to 65535 connections"));
    }
    let mut rows = Vec::new();
    output::check_file(arguments.json.as_deref())?;
    let is_table = !arguments.json.as_deref().is_some_and(output::is_standard);
    if is_table {
        output::write(format!(
            "{:>5}{:>6}{:>10}{:>10}{:>9}{:>9}{:>13}{:>14}\n",
            "lanes", "depth", "IOPS", "MiB/s", "p50 us", "p99 us", "host us/op", "target us/op"
        ))?;
    }
    let pairs =
        arguments.lanes.iter().flat_map(|&lanes| arguments.depth.iter().map(move |&depth| (lanes, depth)));
    for (connections, depth) in pairs {
        let spec = CeilingSpec {
            depth,
            connections,
            io_bytes: arguments.io_size,
            read_percent,
            in_capsule_bytes: arguments.in_capsule,
            memory_bytes: usize::try_from(arguments.memory).unwrap_or(usize::MAX),
            far_memory_bytes: usize::try_from(arguments.target_memory).unwrap_or(usize::MAX),
            near_receives: arguments.receive,
            tls: arguments.tls,
            duration: arguments.time,
            warm_up: arguments.warm_up,
            cores,
            far_sleeps: arguments.sleep,
            seed: 1,
        };
        let result = measure(&spec).context("the ceiling")?;
        if is_table {
            output::write(row(&spec, &result) + "\n")?;
        }
        rows.push(value(&spec, &result));
    }
    let json = || {
        let environment = Environment::collect(None, Duration::from_millis(20));
        serde_json::to_string_pretty(&json!({ "environment": environment, "ceiling": rows }))
    };
    // The table has been printed already.
    output::tell(String::new, json, arguments.json.as_deref())?;
    Ok(ExitCode::SUCCESS)
}

/// Percentage of reads, if the pattern has reads and writes only.
pub(crate) fn read_percent(pattern: &Pattern) -> Option<u8> {
    let shares = pattern.shares();
    let is_of_both = shares.read + shares.write == 100 && pattern.mix != Mix::WriteThenRead;
    is_of_both.then_some(shares.read)
}

fn cipher(text: &str) -> Result<Cipher, String> {
    match text {
        "aes128" => Ok(Cipher::Aes128GcmSha256),
        "aes256" => Ok(Cipher::Aes256GcmSha384),
        _ => Err("there are aes128 and aes256".into()),
    }
}

/// The cipher suite of a load's connections. A key that an authentication generates is one of SHA-256, as each end prefers.
pub(crate) fn cipher_of(options: &Options) -> Option<Cipher> {
    match &options.tls {
        Some(keys) => Some(keys.key.cipher()),
        None => options.concat.then_some(Cipher::Aes128GcmSha256),
    }
}

fn io_bytes(text: &str) -> Result<u32, String> {
    let bytes = load::workload::parse_bytes(text).map_err(|error| error.to_string())?;
    let fits = u32::try_from(bytes).ok().filter(|bytes| (1..=4 << 20).contains(bytes));
    fits.ok_or_else(|| format!("{text} is not a size from 1 byte to 4 MiB"))
}

#[allow(clippy::cast_precision_loss)] // Nanoseconds and counts of a run.
fn row(spec: &CeilingSpec, result: &CeilingResult) -> String {
    let iops = result.iops();
    let us = |ns: u64| ns as f64 / 1e3;
    let per_operation = |ns: u64| us(ns) / result.operations.max(1) as f64;
    let lost = match result.disturbance.judge(None, None) {
        Ok(()) => String::new(),
        Err(reason) => format!("\n  disturbed: {reason}"),
    };
    format!(
        "{:>5}{:>6}{iops:>10.0}{:>10.1}{:>9.2}{:>9.2}{:>13.3}{:>14.3}{lost}",
        spec.connections,
        spec.depth,
        iops * f64::from(spec.io_bytes) / f64::from(1 << 20),
        us(result.latency.percentile(50.0)),
        us(result.latency.percentile(99.0)),
        per_operation(result.near.total_ns()),
        per_operation(result.far.total_ns()),
    )
}

fn value(spec: &CeilingSpec, result: &CeilingResult) -> Value {
    json!({
        "depth": spec.depth,
        "lanes": spec.connections,
        "io_bytes": spec.io_bytes,
        "read_percent": spec.read_percent,
        "memory_bytes": spec.memory_bytes,
        "target_memory_bytes": spec.far_memory_bytes,
        "receive": spec.near_receives.to_string(),
        "tls": spec.tls.map(|cipher| cipher.to_string()),
        "operations": result.operations,
        "elapsed_ns": result.elapsed_ns,
        "iops": result.iops(),
        "mean_ns": result.latency.mean(),
        "p50_ns": result.latency.percentile(50.0),
        "p99_ns": result.latency.percentile(99.0),
        "p999_ns": result.latency.percentile(99.9),
        "sends": result.sends,
        "host_cpu_ns": result.near.total_ns(),
        "target_cpu_ns": result.far.total_ns(),
        "disturbance": result.disturbance,
    })
}

/// Measures the ceiling of the same load now, and computes the load's share of it.
pub(crate) fn beside(
    workload: &Workload,
    namespace: &host::Namespace,
    report: &Report,
    cores: &[usize],
    tls: Option<Cipher>,
) -> Result<Value, Failure> {
    let read_percent = read_percent(&workload.pattern);
    let (Some(read_percent), 0..=1, &[(io_bytes, _)], Pace::Closed) =
        (read_percent, cores.len(), workload.sizes.entries(), workload.pace)
    else {
        return Err(Failure::usage(
            "--ceiling compares lanes of one thread with operations of one size, reads and writes, in a closed loop",
        ));
    };
    let allowed = CoreList::allowed().context("cores")?;
    let other = |near: usize| allowed.cores().iter().copied().find(|core| *core != near);
    let spec = CeilingSpec {
        depth: workload.depth.saturating_mul(workload.lanes),
        connections: workload.lanes,
        io_bytes,
        read_percent,
        in_capsule_bytes: namespace.limits().in_capsule_bytes,
        memory_bytes: 0,
        far_memory_bytes: 0,
        near_receives: Receive::default(),
        tls,
        duration: Duration::from_secs(2),
        warm_up: Duration::from_millis(300),
        cores: cores.first().and_then(|&near| Some((near, other(near)?))),
        far_sleeps: false,
        seed: workload.seed,
    };
    let result = measure(&spec).context("the ceiling")?;
    let mut value = value(&spec, &result);
    let share = report.total.iops / result.iops();
    let mut disturbance = report.disturbance.clone();
    disturbance.merge(&result.disturbance);
    value["disturbance"] = json!(disturbance);
    // A disturbed measurement has no share.
    match disturbance.judge(Some(report.total.iops), Some(share)) {
        Ok(()) => value["share"] = json!(share),
        Err(reason) => {
            value["share"] = Value::Null;
            value["reason"] = json!(reason);
        }
    }
    Ok(value)
}

/// The line of a report about its ceiling.
pub(crate) fn share_line(report: &Report) -> Option<String> {
    let ceiling = report.extra.get("ceiling")?;
    let number = |name: &str| ceiling.get(name).and_then(Value::as_f64);
    if let Some(reason) = ceiling.get("reason").and_then(Value::as_str) {
        return Some(format!("share of the ceiling: n/a, {reason}"));
    }
    let (share, iops, p50_ns) = (number("share")?, number("iops")?, number("p50_ns")?);
    let sockets = if ceiling["tls"].is_null() { "plain sockets" } else { "sockets with the same TLS" };
    Some(format!("{share:.2} of the ceiling: {sockets} reach {iops:.0} IOPS at p50 {:.2} us", p50_ns / 1e3))
}
