//! The forms for people: tables at the end, a line per second meanwhile.

use std::fmt::Write;

use super::{CpuShare, KindResult, Latency, Report, Sample};

/// Detail of the latency in a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Mean, extremes and a few percentiles.
    #[default]
    Summary,
    /// Every percentile (`-L`).
    Percentiles,
    /// The cumulative histogram too (`-LL`).
    Histogram,
}

/// The whole report as text, each line ended.
pub fn table(report: &Report, detail: Detail) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_table(&mut out, report, detail);
    out
}

fn write_table(out: &mut String, report: &Report, detail: Detail) -> std::fmt::Result {
    write_heading(out, report)?;
    if report.workload.arrival.is_some() {
        writeln!(out, "latency is response time: from when an operation was due to its completion\n")?;
    }
    write!(out, "{:<13}{:>9}{:>8}{:>7}", "latency in us", "IOPS", "MiB/s", "errors")?;
    let columns = ["mean", "min", "p50", "p99", "p99.9", "max"];
    columns.iter().try_for_each(|column| write!(out, "{column:>7}"))?;
    writeln!(out)?;
    let several = report.kinds.len() > 1;
    for result in report.kinds.iter().chain(several.then_some(&report.total)) {
        write_result(out, result)?;
    }
    writeln!(out)?;
    write_processor(out, report)?;
    write_remarks(out, report)?;
    if detail >= Detail::Percentiles {
        write_percentiles(out, report)?;
        write_lanes(out, report)?;
        write_lane_sums(out, report)?;
    }
    if detail >= Detail::Histogram {
        for result in &report.kinds {
            write_histogram(out, result.kind, result.latency())?;
        }
    }
    Ok(())
}

fn write_heading(out: &mut String, report: &Report) -> std::fmt::Result {
    let workload = &report.workload;
    write!(out, "{} {}", workload.pattern, workload.sizes)?;
    let shares = [
        ("read", workload.read_percent),
        ("write", workload.write_percent),
        ("trim", workload.trim_percent),
        ("write zeroes", workload.write_zeroes_percent),
    ];
    if shares.iter().all(|&(_, percent)| percent < 100) {
        let told = shares.iter().filter(|&&(_, percent)| percent > 0);
        let told: Vec<String> = told.map(|(name, percent)| format!("{percent} % {name}")).collect();
        write!(out, " ({})", told.join(", "))?;
    }
    let lanes = match (&report.storage, workload.lanes) {
        (None, 1) => "lane",
        (None, _) => "lanes",
        (Some(_), 1) => "queue",
        (Some(_), _) => "queues",
    };
    match &workload.queues {
        None => write!(out, ", {} {lanes} at depth {}", workload.lanes, workload.depth)?,
        Some(queues) => write!(out, ", lanes {queues} at depth {}", workload.depth)?,
    }
    if let (Some(rate), Some(arrival)) = (workload.rate_per_s, workload.arrival) {
        write!(out, ", {arrival} {rate}/s")?;
    }
    if workload.distribution != "uniform" {
        write!(out, ", {}", workload.distribution)?;
    }
    writeln!(out, ", {:.1} s", report.elapsed_ns as f64 / 1e9)?;
    let environment = &report.environment;
    writeln!(out, "{}", report.target)?;
    if let Some(interface) = &environment.interface {
        write!(out, "over {} (MTU {}), ", interface.name, interface.mtu)?;
    }
    let kernel = environment.kernel.as_deref().unwrap_or("?");
    let cpu = environment.cpu_model.as_deref().unwrap_or(&environment.architecture);
    writeln!(out, "kernel {kernel}\n{} cores of {cpu}\n", environment.core_count)
}

fn write_result(out: &mut String, result: &KindResult) -> std::fmt::Result {
    let latency = result.latency();
    let percentile = |percent| latency.percentile_ns(percent).unwrap_or(0) as f64;
    let mib_per_s = result.bytes_per_s / f64::from(1 << 20);
    write!(out, "{:<13}{:>9.0}{mib_per_s:>8.1}{:>7}", result.kind, result.iops, result.error_count)?;
    let (min, max) = (latency.min_ns as f64, latency.max_ns as f64);
    for ns in [latency.mean_ns, min, percentile(50.0), percentile(99.0), percentile(99.9), max] {
        write!(out, "{:>7}", short_us(ns))?;
    }
    writeln!(out)
}

/// A latency in microseconds in at most six characters; from a tenth of a second on with its own unit.
fn short_us(ns: f64) -> String {
    let us = ns / 1e3;
    match us {
        ..100.0 => format!("{us:.2}"),
        ..1000.0 => format!("{us:.1}"),
        ..100_000.0 => format!("{us:.0}"),
        ..10_000_000.0 => format!("{:.0}ms", us / 1e3),
        ..1_000_000_000.0 => format!("{:.1}s", us / 1e6),
        _ => format!("{:.0}s", us / 1e6),
    }
}

fn write_processor(out: &mut String, report: &Report) -> std::fmt::Result {
    let cpu = &report.cpu;
    for (name, share) in [("generator", &cpu.generator), ("target", &cpu.target)] {
        let Some(share) = share else { continue };
        let CpuShare { user_ns_per_operation: user, system_ns_per_operation: system, .. } = share;
        writeln!(
            out,
            "{name:<10} {:.2} us/op (user {:.2}, system {:.2}), {:.0} % of a core, {} switches",
            share.ns_per_operation() / 1e3,
            user / 1e3,
            system / 1e3,
            share.user_percent + share.system_percent,
            share.voluntary_switches + share.involuntary_switches,
        )?;
    }
    write_storage(out, report)
}

/// How local storage was used.
fn write_storage(out: &mut String, report: &Report) -> std::fmt::Result {
    let Some(storage) = &report.storage else { return Ok(()) };
    let path = if storage.is_direct { "direct" } else { "through the page cache" };
    let registered = match (storage.has_registered_buffers, storage.has_registered_file) {
        (true, true) => "buffers and file registered",
        (true, false) => "buffers registered, file not",
        (false, true) => "file registered, buffers not (limit of locked memory)",
        (false, false) => "neither buffers nor file registered",
    };
    let per_call = storage.operation_count as f64 / storage.call_count.max(1) as f64;
    writeln!(
        out,
        "{:<10} {path}, {registered}; {per_call:.1} operations per call, {} calls slept",
        "io_uring", storage.sleep_count
    )
}

/// Remarks that the reader needs before trusting the numbers.
fn write_remarks(out: &mut String, report: &Report) -> std::fmt::Result {
    let counters = &report.counters;
    for result in &report.kinds {
        for (failure, count) in &result.errors {
            writeln!(out, "{count} {} failed: {failure}", result.kind)?;
        }
    }
    if counters.overdue > 0 {
        let overdue = counters.overdue;
        let who = if report.storage.is_some() { "storage" } else { "target" };
        writeln!(out, "the {who} fell behind: {overdue} operations that were due were never sent")?;
    }
    if counters.unanswered > 0 {
        writeln!(out, "{} operations were in flight at the end and not answered", counters.unanswered)?;
    }
    if report.workload.verify || counters.blocks_checked > 0 {
        let (checked, wrong) = (counters.blocks_checked, counters.mismatch_count);
        writeln!(out, "{checked} blocks checked, {wrong} wrong")?;
    }
    report.mismatches.iter().try_for_each(|mismatch| writeln!(out, "  {mismatch}"))?;
    if let Some((side, loss)) = report.disturbance.worst()
        && loss.percent() > crate::disturbance::LOST_PERCENT_MAX
    {
        let percent = loss.percent();
        writeln!(out, "other load took {percent:.0} % of the {side}'s core: these numbers mean little")?;
    }
    if let Some(steal) = report.cpu.steal_percent.filter(|&steal| steal >= 1.0) {
        writeln!(out, "the hypervisor took {steal:.1} % of the machine meanwhile")?;
    }
    match report.steady {
        Some(steady) if !steady.attained => {
            writeln!(out, "not steady: the slope stayed above {} % per second", steady.limit_percent)
        }
        _ => Ok(()),
    }
}

fn write_percentiles(out: &mut String, report: &Report) -> std::fmt::Result {
    let mut columns: Vec<(String, &Latency)> = Vec::new();
    for result in &report.kinds {
        match &result.response {
            None => columns.push((format!("{} us", result.kind), &result.service)),
            Some(response) => {
                columns.push((format!("{} response", result.kind), response));
                columns.push((format!("{} service", result.kind), &result.service));
            }
        }
    }
    // Three columns may have the longest name, four have shorter ones.
    let width = if columns.len() > 3 { 16 } else { 22 };
    write!(out, "\n{:<12}", "percentile")?;
    columns.iter().try_for_each(|(name, _)| write!(out, "{name:>width$}"))?;
    writeln!(out)?;
    for (i, percent) in super::PERCENTAGES.iter().enumerate() {
        write!(out, "{:<12}", format!("{percent}"))?;
        for (_, latency) in &columns {
            let ns = latency.percentiles.get(i).map_or(0, |&(_, ns)| ns);
            write!(out, "{:>width$.3}", ns as f64 / 1e3)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Counters of each lane.
fn write_lanes(out: &mut String, report: &Report) -> std::fmt::Result {
    if report.lanes.is_empty() {
        return Ok(());
    }
    let columns = ["commands", "sends", "receives", "sleeps"];
    write!(out, "\n{:<6}{:<9}{:>5}", "lane", "class", "core")?;
    columns.iter().try_for_each(|name| write!(out, "{name:>11}"))?;
    writeln!(out, "{:>15}", "commands/send")?;
    for lane in &report.lanes {
        let core = lane.core.map_or_else(|| "any".to_owned(), |core| core.to_string());
        let count = |name: &str| lane.counters.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0);
        write!(out, "{:<6}{:<9}{core:>5}", lane.lane, lane.class)?;
        columns.iter().try_for_each(|name| write!(out, "{:>11}", count(name)))?;
        writeln!(out, "{:>15.2}", count("commands") as f64 / count("sends").max(1) as f64)?;
    }
    Ok(())
}

/// Counters of all lanes, and the time of commands by phase.
fn write_lane_sums(out: &mut String, report: &Report) -> std::fmt::Result {
    let sum = |counter: &str| -> u64 {
        report.lanes.iter().filter_map(|lane| lane.counters.get(counter)?.as_u64()).sum()
    };
    let (commands, caravans) = (sum("commands"), sum("caravans"));
    if caravans == 0 {
        return Ok(());
    }
    let (per_caravan, bytes) = (commands as f64 / caravans as f64, sum("sent_bytes") / caravans);
    writeln!(out, "\ncaravans    {caravans} of {per_caravan:.1} commands and {bytes}  bytes on average")?;
    write!(out, "doorbells  ")?;
    for (name, _) in report.lanes.iter().take(1).flat_map(|lane| &lane.counters) {
        if let (Some(reason), count @ 1..) = (name.strip_prefix("rings_"), sum(name)) {
            write!(out, " {reason} {count}")?;
        }
    }
    writeln!(
        out,
        "\nsocket      {} sends ({} blocked), {} receives, {} in vain\nwaits       {} spins, {} sleeps",
        sum("sends"),
        sum("blocks"),
        sum("receives"),
        sum("dry_receives"),
        sum("spins"),
        sum("sleeps")
    )?;
    write!(out, "\n{:<12}{:>12}", "phase", "followed")?;
    ["mean us", "p50 us", "p99 us", "max us"].iter().try_for_each(|column| write!(out, "{column:>12}"))?;
    writeln!(out)?;
    for phase in &report.phases {
        write!(out, "{:<12}{:>12}", phase.phase, phase.count)?;
        for ns in [phase.mean_ns, phase.p50_ns, phase.p99_ns, phase.max_ns] {
            write!(out, "{:>12.2}", ns as f64 / 1e3)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn write_histogram(out: &mut String, kind: &str, latency: &Latency) -> std::fmt::Result {
    writeln!(out, "\n{kind}: {:>14}{:>14}{:>14}{:>14}", "from us", "to us", "cumulative %", "count")?;
    let mut seen = 0;
    for bin in &latency.bins {
        seen += bin.count;
        let percent = seen as f64 * 100.0 / latency.count as f64;
        let (from, to) = (bin.from as f64 / 1e3, bin.to as f64 / 1e3);
        let indent = kind.len() + 1;
        writeln!(out, "{:indent$} {from:>14.3}{to:>14.3}{percent:>14.5}{:>14}", "", bin.count)?;
    }
    Ok(())
}

/// One interval in a line without its end, which 80 columns hold; `of` stands behind the seconds. Errors take the place
/// of the bytes.
pub fn live_line(sample: &Sample, of: &str) -> String {
    let mib_per_s = sample.bytes_per_s / f64::from(1 << 20);
    let mut line = format!("{:>4.0}{of} s {:>8.0} IOPS ", sample.end_s, sample.iops);
    let _ = match sample.error_count {
        0 => write!(line, "{mib_per_s:>7.1} MiB/s  us:"),
        errors => write!(line, "{errors:>6} errors  us:"),
    };
    for (name, ns) in [("p50", sample.p50_ns), ("p99", sample.p99_ns), ("max", sample.max_ns)] {
        let _ = write!(line, " {name} {:<6}", short_us(ns as f64));
    }
    line.truncate(line.trim_end().len());
    line
}

#[cfg(test)]
mod tests {
    use super::super::{SteadyResult, StorageResult, example};
    use super::*;
    use crate::workload::{Arrival, Pace};

    const OPEN: Pace = Pace::Open { rate_per_s: 500.0, arrival: Arrival::Poisson };

    #[test]
    fn the_summary_of_a_closed_loop() {
        insta::assert_snapshot!(table(&example::report(Pace::Closed), Detail::Summary), @"
            randrw 4k (70 % read, 30 % write), 1 lane at depth 32, 2.0 s
            127.0.0.1:4420
            over lo (MTU 65536), kernel 6.12.1
            2 cores of Some Processor

            latency in us     IOPS   MiB/s errors   mean    min    p50    p99  p99.9    max
            read               350     1.4      0  69.80  20.00  69.12  118.3  119.3  119.6
            write              150     0.6      1  99738  20.70  71.17  119.3  29.9s  30.0s
            total              500     2.0      1  30040  20.00  70.14  119.3  120.3  30.0s

            generator  0.80 us/op (user 0.30, system 0.50), 0 % of a core, 15 switches
            target     0.70 us/op (user 0.20, system 0.50), 0 % of a core, 15 switches
            1 write failed: LBA out of range (0x080)
            5600 blocks checked, 0 wrong
            ");
    }

    #[test]
    fn local_storage_has_queues_and_a_ring_in_place_of_lanes() {
        let storage = StorageResult {
            is_direct: true,
            has_registered_buffers: true,
            operation_count: 100,
            call_count: 40,
            sleep_count: 3,
            ..StorageResult::default()
        };
        let report = Report { lanes: Vec::new(), storage: Some(storage), ..example::report(OPEN) };
        let told = table(&report, Detail::Percentiles);
        for line in [
            ", 1 queue at depth 32,",
            "io_uring   direct, buffers registered, file not; 2.5 operations per call, 3 calls slept",
            "the storage fell behind",
        ] {
            assert!(told.contains(line), "{told}");
        }
        assert!(!told.contains("caravans") && !told.contains("lane"), "{told}");
    }

    #[test]
    fn the_percentiles_of_an_open_loop_with_everything_gone_wrong() {
        let mut report = example::report(OPEN);
        report.mismatches = vec!["LBA 7: reads as zeroes".into()];
        report.counters.mismatch_count = 1;
        report.cpu.steal_percent = Some(12.3);
        report.steady = Some(SteadyResult { attained: false, slope_percent: Some(3.0), limit_percent: 0.1 });
        insta::assert_snapshot!(table(&report, Detail::Percentiles), @"
            randrw 4k (70 % read, 30 % write), 1 lane at depth 32, poisson 500/s, 2.0 s
            127.0.0.1:4420
            over lo (MTU 65536), kernel 6.12.1
            2 cores of Some Processor

            latency is response time: from when an operation was due to its completion

            latency in us     IOPS   MiB/s errors   mean    min    p50    p99  p99.9    max
            read               350     1.4      0  71.80  22.00  71.17  120.3  121.3  121.6
            write              150     0.6      1  99740  22.70  72.19  121.3  29.9s  30.0s
            total              500     2.0      1  30042  22.00  72.19  121.3  122.4  30.0s

            generator  0.80 us/op (user 0.30, system 0.50), 0 % of a core, 15 switches
            target     0.70 us/op (user 0.20, system 0.50), 0 % of a core, 15 switches
            1 write failed: LBA out of range (0x080)
            the target fell behind: 47 operations that were due were never sent
            5600 blocks checked, 1 wrong
              LBA 7: reads as zeroes
            the hypervisor took 12.3 % of the machine meanwhile
            not steady: the slope stayed above 0.1 % per second

            percentile     read response    read service  write response   write service
            1                     22.656          20.608          23.680          21.632
            5                     26.496          24.704          27.776          25.728
            10                    31.616          29.568          32.640          30.592
            20                    41.728          39.680          42.752          40.704
            25                    46.848          44.800          47.872          45.824
            30                    51.456          49.408          52.480          50.944
            40                    61.696          59.648          62.720          60.672
            50                    71.168          69.120          72.192          71.168
            60                    81.408          79.360          82.432          80.384
            70                    91.648          89.600          92.672          90.624
            75                    96.768          94.720          97.792          95.744
            80                   101.888          99.840         102.912         100.864
            90                   111.104         110.080         113.152         111.104
            95                   116.224         114.176         117.248         115.200
            98                   119.296         117.248         120.320         118.272
            99                   120.320         118.272         121.344         119.296
            99.5                 121.344         119.296         122.368         120.320
            99.9                 121.344         119.296    29930553.344    29930553.344
            99.95                121.344         119.296    29930553.344    29930553.344
            99.99                121.344         119.296    29930553.344    29930553.344
            99.995               121.344         119.296    29930553.344    29930553.344
            99.999               121.344         119.296    29930553.344    29930553.344
            99.9999              121.344         119.296    29930553.344    29930553.344
            99.99999             121.344         119.296    29930553.344    29930553.344
            99.999999            121.344         119.296    29930553.344    29930553.344
            100                  121.600         119.600    30000000.000    30000000.000

            lane  class     core   commands      sends   receives     sleeps  commands/send
            0     default      1        308          0          0          0         308.00

            caravans    77 of 4.0 commands and 288  bytes on average
            doorbells   turn 77
            socket      0 sends (0 blocked), 0 receives, 0 in vain
            waits       0 spins, 0 sleeps

            phase           followed     mean us      p50 us      p99 us      max us
            doorbell               3        2.00        1.02        5.00        5.00
            ");
    }

    #[test]
    fn the_histogram_is_cumulative_and_ends_at_a_hundred_percent() {
        let mut report = example::report(Pace::Closed);
        for result in &mut report.kinds {
            // A few bins are enough to see the form.
            result.service.bins.truncate(3);
            result.service.count = result.service.bins.iter().map(|bin| bin.count).sum();
        }
        let text = table(&report, Detail::Histogram);
        let histogram = &text[text.find("\nread:").unwrap()..];
        insta::assert_snapshot!(histogram, @"

            read:        from us         to us  cumulative %         count
                          19.968        20.223      42.85714             3
                          20.224        20.479      71.42857             2
                          20.480        20.735     100.00000             2

            write:        from us         to us  cumulative %         count
                           20.480        20.735      25.00000             1
                           20.736        20.991      75.00000             2
                           21.504        21.759     100.00000             1
            ");
    }

    #[test]
    fn a_live_line_keeps_its_columns() {
        let sample = Sample {
            end_s: 3.0,
            iops: 812_345.0,
            bytes_per_s: 812_345.0 * 4096.0,
            mean_ns: 157_321.0,
            p50_ns: 151_000,
            p99_ns: 241_000,
            p999_ns: 1_310_000,
            max_ns: 9_800_000,
            ..Sample::default()
        };
        let failing = Sample { end_s: 100.0, error_count: 17, max_ns: 30_000_000_000, ..sample.clone() };
        let lines = [Sample::default(), sample, failing].map(|sample| live_line(&sample, "/3600"));
        assert!(lines.iter().all(|line| line.chars().count() < 80), "{lines:?}");
        insta::assert_snapshot!(lines.join("\n"), @"
              0/3600 s        0 IOPS     0.0 MiB/s  us: p50 0.00   p99 0.00   max 0.00
              3/3600 s   812345 IOPS  3173.2 MiB/s  us: p50 151.0  p99 241.0  max 9800
            100/3600 s   812345 IOPS     17 errors  us: p50 151.0  p99 241.0  max 30.0s
            ");
    }
}
