//! SPDK's host: `spdk_nvme_perf` makes the load, and prints its results.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use host::Address;
use load::account::{Account, Reading};
use load::cpu;
use load::disturbance::{Disturbance, Side};

use crate::bench::Bench;
use crate::cell::Values;
use crate::distribution::Distribution;
use crate::error::Error;
use crate::load_values::PERCENTILES;
use crate::queue_load::QueueLoad;
use crate::spdk::{HOST_PROGRAM, command, core_mask, host_program, memory_options};

/// It prints this right before the load begins.
const BEGINS: &str = "Initialization complete";

/// Its warm-up: it counts in whole seconds.
const WARM_UP: Duration = Duration::from_secs(1);

/// Runs a load on a subsystem with one namespace, from as many cores of the host's side as it has queues, and measures
/// processor time while it runs.
pub(crate) fn run(
    bench: &Bench,
    target: &Address,
    account: Option<&Arc<dyn Account>>,
    load: QueueLoad,
) -> Result<Values, Error> {
    let failed = |error| Error::system("SPDK's host", error);
    let seconds = bench.times.measure.as_secs_f64().ceil().max(1.0);
    let mut cores = bench.host_side(bench.core_count_for(load.jobs));
    if cores.is_empty() {
        cores.push(0);
    }
    // Its depth is that of all queues of a core together.
    let queues = load.jobs.div_ceil(u32::try_from(cores.len()).unwrap_or(u32::MAX));
    let depth = load.depth * queues;
    let mut command = command(&host_program().map_err(Error::Lacking)?);
    command
        .args(["-c", &core_mask(&cores), "-w", load.pattern, "-q", &depth.to_string()])
        .args(["-P", &queues.to_string()])
        .args([
            "-o",
            &load.io_bytes.to_string(),
            "-a",
            &WARM_UP.as_secs().to_string(),
            "-t",
            &seconds.to_string(),
        ])
        .args(["-LL", "-r", &transport_id(target)?]);
    memory_options(&mut command);
    // One pipe for output and errors: neither can fill up while the other is read.
    let (output, input) = std::io::pipe().map_err(failed)?;
    command.stdin(Stdio::null()).stdout(input.try_clone().map_err(failed)?).stderr(input);
    let mut running = Running(command.spawn().map_err(failed)?);
    // Its copies of the writing end are closed, so the output ends with the program.
    drop(command);
    let mut output = BufReader::new(output);
    let mut text = String::new();
    while !text.contains(BEGINS) {
        if output.read_line(&mut text).map_err(failed)? == 0 {
            let status = running.0.wait().map_err(failed)?;
            return Err(ended(status, &text));
        }
    }
    sleep(WARM_UP);
    let pid = running.0.id();
    let before = Moment::now(pid, account);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    // Ends a little before its measurement does, so that none of its end is counted.
    while Instant::now() + Duration::from_millis(50) < end && !bench.is_stopped() {
        sleep(Duration::from_millis(10));
    }
    let after = Moment::now(pid, account);
    if bench.is_stopped() {
        return Err(Error::Stopped);
    }
    output.read_to_string(&mut text).map_err(failed)?;
    let status = running.0.wait().map_err(failed)?;
    let parsed = parse(&text).filter(|_| status.success());
    let (mut values, distribution) = parsed.ok_or_else(|| ended(status, &text))?;
    bench.note_latency(distribution);
    if let Some((before, after)) = before.zip(after) {
        bench.note(&before.disturbance_until(&after));
        values.extend(before.processor_times(&after, values["iops"]));
    }
    Ok(values)
}

/// The error of a program that ended without a result.
fn ended(status: ExitStatus, text: &str) -> Error {
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    Error::Load(format!("{HOST_PROGRAM} ended without a result ({status}): {last}"))
}

/// A target in SPDK's words.
fn transport_id(target: &Address) -> Result<String, Error> {
    let ip = target.host.to_string().parse::<std::net::IpAddr>();
    let (Ok(ip), Some(port), Some(nqn)) = (ip, target.port, &target.subsystem) else {
        return Err(Error::Target(format!("has the address {target}")));
    };
    let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
    Ok(format!("trtype:TCP adrfam:{family} traddr:{ip} trsvcid:{port} subnqn:{nqn}"))
}

/// The accounts of both sides and of the machine at one moment.
struct Moment {
    at: Instant,
    host: Reading,
    target: Reading,
    machine: cpu::MachineTime,
}

impl Moment {
    fn now(host_pid: u32, target: Option<&Arc<dyn Account>>) -> Option<Self> {
        Some(Self {
            at: Instant::now(),
            host: Reading::of_process(host_pid)?,
            target: target?.read()?,
            machine: cpu::of_machine().ok()?,
        })
    }

    fn disturbance_until(&self, later: &Self) -> Disturbance {
        let mut disturbance = Disturbance::default();
        disturbance.add(Side::Host, later.host.loss_since(&self.host));
        disturbance.add(Side::Target, later.target.loss_since(&self.target));
        disturbance
    }

    /// Processor time per operation, µs, of host, target and machine.
    fn processor_times(&self, later: &Self, iops: f64) -> Vec<(&'static str, f64)> {
        let operations = iops * later.at.duration_since(self.at).as_secs_f64();
        if operations <= 0.0 {
            return Vec::new();
        }
        let there = later.target.machine_busy_ns.zip(self.target.machine_busy_ns);
        let there_ns = there.map_or(0, |(after, before)| after.saturating_sub(before)) as f64;
        let host = SideTime::between(&self.host, &later.host);
        let target = SideTime::between(&self.target, &later.target);
        [
            ("host_us", host.whole_ns()),
            ("host_user_us", host.user_ns),
            ("host_kernel_us", host.kernel_ns),
            ("target_us", target.whole_ns()),
            ("target_user_us", target.user_ns),
            ("target_kernel_us", target.kernel_ns),
            ("machine_us", later.machine.busy_ns_since(&self.machine) + there_ns),
        ]
        .map(|(name, ns)| (name, ns / operations / 1e3))
        .to_vec()
    }
}

/// Processor time of a side, ns.
struct SideTime {
    user_ns: f64,
    kernel_ns: f64,
}

impl SideTime {
    /// The time that passed between two readings: the sum is that of the threads, to the nanosecond, and the ticks in which the
    /// kernel counts the process's time in user mode and in the kernel divide it.
    fn between(before: &Reading, after: &Reading) -> Self {
        let run_ns = after.run_ns().saturating_sub(before.run_ns()) as f64;
        let counted = after.time.unwrap_or_default() - before.time.unwrap_or_default();
        let kernel_part = match counted.total_ns() {
            0 => 0.0,
            total_ns => counted.system_ns as f64 / total_ns as f64,
        };
        Self { user_ns: run_ns * (1.0 - kernel_part), kernel_ns: run_ns * kernel_part }
    }

    fn whole_ns(&self) -> f64 {
        self.user_ns + self.kernel_ns
    }
}

/// A process that ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Throughput and latency, from its tables: a line `Total : IOPS MiB/s average min max`, and of the histogram of each core lines
/// `FROM - TO: CUMULATIVE% ( COUNT)`, in microseconds.
fn parse(text: &str) -> Option<(Values, Option<Distribution>)> {
    let total = text.lines().find_map(|line| line.trim().strip_prefix("Total")?.trim().strip_prefix(':'))?;
    let iops = total.split_ascii_whitespace().next()?.parse().ok().filter(|iops: &f64| *iops > 0.0)?;
    let mut bins: Vec<Bin> = text.lines().filter_map(parse_bin).collect();
    bins.sort_by(|a, b| a.to_us.total_cmp(&b.to_us));
    let mut values = Values::from([("iops", iops)]);
    values.extend(
        PERCENTILES.iter().filter_map(|&(name, percent)| Some((name, percentile_us(&bins, percent)?))),
    );
    Some((values, Distribution::of(bins.iter().map(|bin| (bin.to_us, bin.count)))))
}

/// A range of latencies of its histogram.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bin {
    to_us: f64,
    count: u64,
}

fn parse_bin(line: &str) -> Option<Bin> {
    let (range, rest) = line.split_once(':')?;
    let (_, to) = range.split_once(" - ")?;
    let (_, count) = rest.split_once("% ")?;
    let count = count.trim().strip_prefix('(')?.strip_suffix(')')?;
    Some(Bin { to_us: to.trim().parse().ok()?, count: count.trim().parse().ok()? })
}

/// The end of the range with which this percentage of the operations is reached, as SPDK's own summary counts.
fn percentile_us(bins: &[Bin], percent: f64) -> Option<f64> {
    let wanted = bins.iter().map(|bin| bin.count).sum::<u64>() as f64 * percent / 100.0;
    let mut seen = 0;
    let reached = bins.iter().find(|bin| {
        seen += bin.count;
        seen as f64 >= wanted
    });
    reached.map(|bin| bin.to_us)
}

#[cfg(test)]
mod tests {
    use load::cpu::CpuTime;

    use super::*;

    #[test]
    fn throughput_and_latency_are_read_from_the_tables() {
        let text = "Device Information         :       IOPS      MiB/s    Average        min        max\n\
            TCP (addr:127.0.0.1) NSID 1 from core  0:    9000.50      35.16     111.00      34.00    4800.00\n\
            Total                                   :    9000.50      35.16     111.00      34.00    4800.00\n\
            Summary latency data for TCP (addr:127.0.0.1) NSID 1 from core 0:\n\
            ==========\n \
            50.00000% :   168.211us\n\
            Latency histogram for TCP (addr:127.0.0.1) NSID 1 from core 0:\n\
            ==========\n       \
            Range in us     Cumulative    IO count\n   \
            34.331 -    34.600:    0.5000%  (        5)\n  \
            167.280 -   168.211:   50.0000%  (      495)\n \
            4796.1 -  4800.0:  100.0000%  (      500)\n\
            Latency histogram for TCP (addr:127.0.0.1) NSID 1 from core 1:\n  \
            284.000 -   284.349:  100.0000%  (     1000)\n\n";
        let (values, distribution) = parse(text).unwrap();
        let expected = [
            ("iops", 9000.5),
            ("p50_us", 284.349),
            ("p90_us", 4800.0),
            ("p99_us", 4800.0),
            ("p999_us", 4800.0),
            ("p9999_us", 4800.0),
        ];
        assert_eq!(values, Values::from(expected));
        let bins = [(34.6, 5), (168.211, 495), (284.349, 1000), (4800.0, 500)];
        assert_eq!(distribution, Distribution::of(bins));
        let without = parse("Total : 10.00 0.04 1.00 1.00 1.00\n").unwrap();
        assert_eq!(without, (Values::from([("iops", 10.0)]), None));
        assert_eq!(parse("Total : 0.00 0.00 0.00 0.00 0.00\n"), None);
        assert_eq!(parse("Initializing NVMe Controllers\n"), None);
        let bin = |line| parse_bin(line);
        assert_eq!(
            bin("   167.280 -   168.211:   50.0000%  (      495)"),
            Some(Bin { to_us: 168.211, count: 495 })
        );
        assert_eq!(bin("       Range in us     Cumulative    IO count"), None);
        assert_eq!(bin("  1.00000% :    48.176us"), None);
    }

    #[test]
    fn the_time_of_a_side_is_divided_as_the_kernel_counts_it() {
        let reading = |user_ns, system_ns| Reading {
            time: Some(CpuTime { user_ns, system_ns, ..CpuTime::default() }),
            threads: None,
            machine_busy_ns: None,
        };
        let time = SideTime::between(&reading(100, 100), &reading(400, 1000));
        assert_eq!((time.user_ns, time.kernel_ns, time.whole_ns()), (300.0, 900.0, 1200.0));
        let none = SideTime::between(&reading(100, 100), &reading(100, 100));
        assert_eq!((none.user_ns, none.kernel_ns), (0.0, 0.0));
    }

    #[test]
    fn a_target_is_named_in_spdks_words() {
        let target: Address = "192.0.2.1:4420/nqn.2026-01.test:a".parse().unwrap();
        let expected = "trtype:TCP adrfam:IPv4 traddr:192.0.2.1 trsvcid:4420 subnqn:nqn.2026-01.test:a";
        assert_eq!(transport_id(&target).unwrap(), expected);
        assert!(transport_id(&"192.0.2.1:4420".parse().unwrap()).is_err());
    }
}
