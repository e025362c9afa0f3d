//! `programs`: programs as their makers ship them, on every bridge, with batching and without.

mod path;
mod program;

use std::cell::OnceCell;
use std::time::Duration;

use self::path::{Attached, PathKind};
use self::program::{DEVICE_LOADS, FILE_PROGRAMS, Program, READ_DEEP, READ_ONE};
use super::prelude::*;
use crate::bench::on_core;
use crate::doorbell::{CARAVANS, SINGLE, WAYS};
use crate::experiment::There;

/// A path to storage.
#[derive(Clone, Copy, Debug)]
struct Path {
    name: &'static str,
    kind: PathKind,
    /// Whether it has loads on a device, and programs on a file system.
    has_device: bool,
    has_files: bool,
    /// Whether it has batching: nvlane is in it.
    is_ours: bool,
}

const fn path(name: &'static str, kind: PathKind, [has_device, has_files, is_ours]: [bool; 3]) -> Path {
    Path { name, kind, has_device, has_files, is_ours }
}

const LOCAL: &str = "local";
const LIBRARY: &str = "nvlane perf";
const FUSE: &str = "fuse";
const VHOST_USER: &str = "vhost-user";
const UBLK: &str = "ublk";
const NULL_EXPORT: &str = "null export";

const PATHS: [Path; 8] = [
    path(LOCAL, PathKind::Local, [true, true, false]),
    path(LIBRARY, PathKind::Library, [true, false, true]),
    path(FUSE, PathKind::Fuse, [true, true, true]),
    path("nbd", PathKind::Nbd, [true, false, true]),
    path(VHOST_USER, PathKind::VhostUser, [true, false, true]),
    path(NULL_EXPORT, PathKind::NullExport, [true, false, false]),
    path(UBLK, PathKind::Ublk, [true, true, true]),
    path("kernel", PathKind::Kernel, [true, true, true]),
];

/// The cell of idle bridges, and its time.
const IDLE: &str = "idle";
const IDLE_TIME: Duration = Duration::from_secs(10);

/// Values of idle bridges, percent of a core.
const IDLE_VALUES: [(&str, &str); 4] = [
    (FUSE, "fuse_idle_percent"),
    ("nbd", "nbd_idle_percent"),
    (VHOST_USER, "vhost_user_idle_percent"),
    (UBLK, "ublk_idle_percent"),
];

/// Bars: what batching gains through a bridge with 32 requests in flight, an idle bridge's time, the disk of a virtual machine over one that
/// has no storage at all, and what a file adds to the host library.
const GAIN: Bar = Bar::AtLeast(1.5);
const IDLE_PERCENT: Bar = Bar::Below(0.1);
const OVER_NULL_EXPORT: Bar = Bar::AtLeast(0.9);
const FILE_ADDED_US: Bar = Bar::AtMost(6.0);

pub(crate) const ABOUT: About = About {
    name: "programs",
    title: "What do unmodified programs gain?",
    method: "RocksDB's db_bench, fio with the shapes of filebench's varmail, fileserver and webserver, pgbench and SQLite on ext4, and fio's \
             reads and writes of 4 KiB on the device below: through each bridge of nvlane attach and the kernel's NVMe/TCP host, as far as this \
             machine has them, to a target that holds the data in memory, and on a loop device over a file in memory (local). Bridge and \
             target batch (caravans), or have each PDU in a send and a receive of its own (single), as in the last and the first step of \
             ablation. Of vhost-user the program is a target whose storage is that disk, with nvlane's generator; the disk, like that of \
             qemu-storage-daemon beside it (null export), has no storage. Program and bridge share a core, \
             and the target has one.",
    claims: &[Claim {
        source: "i10, Netdev 0x14 (2020)",
        says: "Batching on lanes of the kernel's NVMe over TCP: unmodified applications have 62 % more throughput per core.",
        number: "1.62 times",
        ours: "caravans_gain_read_qd32_fuse",
    }],
    machines: Machines::Here("programs, bridges and file systems are those of the load's machine"),
    judged_by: "ops",
    columns: "ops p50_us p99_us mean_us ops_per_server_core server_us target_us fuse_idle_percent nbd_idle_percent vhost_user_idle_percent \
              ublk_idle_percent",
};

/// The paths that stand.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    attached: Kept<(&'static str, &'static str, bool), Attached>,
    there: OnceCell<There>,
}

/// The name in a list of what is lacking, of a path with a file system.
fn with_files(path: &Path) -> String {
    format!("programs on {}", path.name)
}

/// Which paths and programs this machine has, and their versions.
fn there() -> There {
    let mut there = There::default();
    for path in &PATHS {
        let found = |has_files| path.kind.needs(has_files).map_or(Ok(None), Err);
        there.add(path.name, found(false));
        if path.has_files {
            there.add(&with_files(path), found(true));
        }
    }
    for program in DEVICE_LOADS.into_iter().chain(FILE_PROGRAMS) {
        let needs = program.needs().map(str::to_owned);
        there.add(program.name, needs.map_or_else(|| Ok(program.version()), Err));
    }
    there.seen.sort();
    there
}

impl Programs {
    fn attached(
        &mut self,
        path: &'static Path,
        way: &str,
        has_files: bool,
        bench: &Bench,
    ) -> Result<&Attached, Error> {
        let way = WAYS.into_iter().map(|(name, ..)| name).find(|name| *name == way).unwrap_or(CARAVANS);
        let key = (path.name, way, has_files);
        Ok(self.attached.get(key, || Attached::start(path.kind, way, has_files, bench))?)
    }

    /// The time of bridges that nothing is asked of.
    fn measure_idle(&mut self, bench: &Bench) -> Result<Values, Error> {
        let there = self.there.get_or_init(there);
        let bridges: Vec<_> = IDLE_VALUES.into_iter().filter(|(name, _)| there.has(name)).collect();
        let mut before = Vec::new();
        for (name, _) in &bridges {
            before.push(self.attached(path_of(name), CARAVANS, false, bench)?.live_ns()?);
        }
        bench.sleep(IDLE_TIME);
        let mut values = Values::new();
        for ((name, value), before) in bridges.into_iter().zip(before) {
            let after = self.attached(path_of(name), CARAVANS, false, bench)?.live_ns()?;
            if let Some((after, before)) = after.zip(before) {
                values.insert(value, (after - before) as f64 / IDLE_TIME.as_nanos() as f64 * 100.0);
            }
        }
        Ok(values)
    }
}

impl Experiment for Programs {
    fn cells(&self) -> Vec<Cell> {
        let of = |path: &Path, way: &str, program: Program| {
            Cell::new(cell_name(program.name, path.name, way))
                .with("program", program.name)
                .with("path", path.name)
                .with("way", way)
        };
        let of_program = |program: Program| {
            let paths = PATHS.iter().filter(move |path| {
                if program.access().is_some() { path.has_device } else { path.has_files }
            });
            paths.flat_map(move |path| ways(path).map(move |way| of(path, way, program)))
        };
        let programs = DEVICE_LOADS.into_iter().chain(FILE_PROGRAMS);
        let idle = Cell::new(IDLE).with("program", IDLE).with("path", IDLE).with("way", IDLE);
        programs.flat_map(of_program).chain([idle]).collect()
    }

    fn suits(&self, cell: &Cell, _: &Bench) -> bool {
        let there = self.there.get_or_init(there);
        let Some(program) = program_of(cell) else { return true };
        let path = path_of(cell.text("path"));
        let own_generator =
            matches!(path.kind, PathKind::Library | PathKind::VhostUser | PathKind::NullExport);
        there.has(path.name)
            && (program.access().is_some() || there.has(&with_files(path)))
            && (there.has(program.name) || own_generator)
    }

    fn there(&self) -> Option<&There> {
        self.there.get()
    }

    fn is_disturbed_by_others(&self, cell: &Cell) -> bool {
        cell.name != IDLE
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let Some(program) = program_of(cell) else { return self.measure_idle(bench) };
        let path = path_of(cell.text("path"));
        let attached = self.attached(path, cell.text("way"), program.access().is_none(), bench)?;
        if let (
            PathKind::Library | PathKind::VhostUser | PathKind::NullExport,
            Some((rw, depth)),
            Some(far),
        ) = (path.kind, program.access(), attached.far_side())
        {
            let (_, doorbell, receive) =
                WAYS.into_iter().find(|(name, ..)| *name == cell.text("way")).unwrap_or(WAYS[1]);
            let load = bench.load(rw, None, IO_BYTES, depth);
            // Of vhost-user the way is that of the bridge, not of its program.
            let load = if path.kind == PathKind::Library {
                load.with_doorbell(doorbell).with_receive(receive)
            } else {
                load
            };
            return Ok(own_values(values(&bench.run_at(far, load)?.report)));
        }
        let before = (attached.server_ns()?, attached.target_ns()?);
        let core = bench.cores.map(|cores| cores.host);
        let mut done = on_core(core, || program.measure(&attached.place, bench))?;
        let after = (attached.server_ns()?, attached.target_ns()?);
        let mut insert = |name, after: Option<u64>, before: Option<u64>| {
            let used = after.zip(before).map(|(after, before)| after.saturating_sub(before) as f64 / 1e3);
            let each = used.map(|used| used / done.count.max(1.0));
            done.values.extend(each.map(|each| (name, each)));
        };
        insert("server_us", after.0, before.0);
        insert("target_us", after.1, before.1);
        if let Some(server_us) = done.values.get("server_us").copied().filter(|us| *us > 0.0) {
            done.values.insert("ops_per_server_core", 1e6 / server_us);
        }
        Ok(done.values)
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for path in PATHS.iter().filter(|path| path.is_ours) {
            for program in DEVICE_LOADS.into_iter().chain(FILE_PROGRAMS) {
                let [single, caravans] =
                    [SINGLE, CARAVANS].map(|way| cell_name(program.name, path.name, way));
                let has_bar = [VHOST_USER, UBLK].contains(&path.name) && program.name == READ_DEEP;
                let bar = has_bar.then_some(GAIN);
                let key = key(program.name, path.name);
                headlines.push(
                    format!("caravans_gain_{key}"),
                    measured.ratio(&caravans, &single, "ops"),
                    bar,
                );
                let local = cell_name(program.name, LOCAL, "");
                headlines.tell(format!("{key}_over_local"), measured.ratio(&caravans, &local, "ops"));
            }
        }
        let per_core = measured.ratio(
            &cell_name(READ_DEEP, VHOST_USER, CARAVANS),
            &cell_name(READ_DEEP, NULL_EXPORT, ""),
            "ops_per_server_core",
        );
        headlines.push("vhost_user_per_core_over_null_export", per_core, Some(OVER_NULL_EXPORT));
        let added = measured.difference(
            &cell_name(READ_ONE, FUSE, CARAVANS),
            &cell_name(READ_ONE, LIBRARY, CARAVANS),
            "p50_us",
        );
        headlines.push("fuse_added_p50_us", added, Some(FILE_ADDED_US));
        for (_, value) in IDLE_VALUES {
            headlines.push(value, measured.median(IDLE, value), Some(IDLE_PERCENT));
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let of_path = |path: &'static Path| ways(path).map(move |way| (path, way));
        let series = PATHS.iter().filter(|path| path.has_files).flat_map(of_path).map(|(path, way)| {
            let cells = FILE_PROGRAMS.iter().map(|program| cell_name(program.name, path.name, way));
            bars(format!("{} {way}", path.name).trim_end(), measured, cells, "ops")
        });
        let series = series.filter(|series| !series.points.is_empty() || series.is_discarded).collect();
        let programs = FILE_PROGRAMS.map(|program| program.name.to_owned()).into();
        let reads = [("without nvlane", ""), (SINGLE, SINGLE), (CARAVANS, CARAVANS)].map(|(name, way)| {
            bars(name, measured, PATHS.iter().map(|path| cell_name(READ_DEEP, path.name, way)), "ops")
        });
        let paths = PATHS.map(|path| path.name.to_owned()).into();
        let axis = || Axis::log("operations per second");
        vec![
            Figure::new(
                "Programs on file systems",
                "Operations of RocksDB and fio, transactions of pgbench, statements of SQLite. Higher is better.",
                Plot::bars("", programs, axis(), series),
            ),
            Figure::new(
                "Reads of 4 KiB on every path",
                "At depth 32. Higher is better.",
                Plot::bars("", paths, axis(), reads.into()),
            ),
        ]
    }
}

/// Values of nvlane's generator by the names of this experiment's.
fn own_values(values: Values) -> Values {
    let named = |(name, value)| {
        let name = match name {
            "iops" => "ops",
            "target_us" => "server_us",
            "iops_per_cpu" => "ops_per_server_core",
            "p50_us" | "p99_us" | "mean_us" => name,
            _ => return None,
        };
        Some((name, value))
    };
    values.into_iter().filter_map(named).collect()
}

/// The ways to send and receive that a path has; one without a name if nvlane is not in it.
fn ways(path: &Path) -> impl Iterator<Item = &'static str> + use<> {
    let ways: &[&str] = if path.is_ours { &[SINGLE, CARAVANS] } else { &[""] };
    ways.iter().copied()
}

fn path_of(name: &str) -> &'static Path {
    PATHS.iter().find(|path| path.name == name).expect("a path of ours")
}

/// The program of a cell; `None` of idle bridges.
fn program_of(cell: &Cell) -> Option<Program> {
    DEVICE_LOADS.into_iter().chain(FILE_PROGRAMS).find(|program| program.name == cell.text("program"))
}

fn cell_name(program: &str, path: &str, way: &str) -> String {
    format!("{program}, {path} {way}").trim_end().to_owned()
}

/// `read qd32` on `vhost-user` is `read_qd32_vhost_user`.
fn key(program: &str, path: &str) -> String {
    format!("{program} {path}").to_lowercase().replace([' ', '-'], "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::testing::{headline_of, of_key};

    #[test]
    fn ways_are_compared_on_a_path_and_paths_with_the_local_file() {
        let headline = headline_of(&Programs::default(), |cell| {
            let ops = match (cell.text("path"), cell.text("way")) {
                (_, CARAVANS) => 160e3,
                (_, SINGLE) => 100e3,
                _ => 200e3,
            };
            let is_file = cell.text("path") == FUSE;
            [
                ("ops", ops),
                ("ops_per_server_core", ops),
                ("p50_us", if is_file { 40.0 } else { 30.0 }),
                ("fuse_idle_percent", 0.05),
            ]
        });
        for (key, value, is_reached) in [
            ("caravans_gain_read_qd32_ublk", 1.6, Some(true)),
            ("caravans_gain_read_qd32_vhost_user", 1.6, Some(true)),
            ("caravans_gain_read_qd32_nbd", 1.6, None),
            ("caravans_gain_pgbench_fuse", 1.6, None),
            ("readrandom_kernel_over_local", 0.8, None),
            ("vhost_user_per_core_over_null_export", 0.8, Some(false)),
            ("fuse_added_p50_us", 10.0, Some(false)),
            ("fuse_idle_percent", 0.05, Some(true)),
        ] {
            let found = of_key(&headline, key);
            assert_eq!((found.value, found.is_reached()), (value, is_reached), "{key}");
        }
    }
}
