//! `ceph`: an RBD image through a target, beside a client of the same image.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::prelude::*;
use crate::{fio, process};

const KINDS: [&str; 2] = ["randread", "randwrite"];
const DEPTHS: [u32; 4] = [1, 4, 16, 64];
const OURS: &str = "nvlane";
const FIO: &str = "fio";

/// The image, as POOL/IMAGE.
const IMAGE: &str = "NVLANE_CEPH_IMAGE";

/// The cluster's processes.
const DAEMONS: [&str; 3] = ["ceph-mon", "ceph-osd", "ceph-mgr"];

/// The part of the image that is written first, and then worked on.
const MIB: u64 = 256;

/// Bars: IOPS over those of fio's rbd engine, and what the target adds to the median of a command.
const SHARE: Bar = Bar::AtLeast(0.95);
const ADDED: Bar = Bar::AtMost(15.0);

pub(crate) const ABOUT: About = About {
    name: "ceph",
    title: "What does the target add to an RBD image?",
    method: "Random reads and writes of 4 KiB in the first 256 MiB of an image: through a target with one reactor, and by fio's rbd \
             engine, which calls librbd itself. Both without librbd's cache, one after the other, since only one may write. The image is \
             that of NVLANE_CEPH_IMAGE=POOL/IMAGE, at least 256 MiB that are overwritten; the cluster that of CEPH_CONF, with the key of \
             client.admin. The cluster's own processes may run anywhere; here they take processor time of both, which is not taken for a disturbance.",
    claims: &[],
    machines: Machines::Here("the image is reached from the machine of the load"),
    judged_by: "iops",
    columns: "iops p50_us p99_us mean_us target_us",
};

/// The same load by both.
#[derive(Debug, Default)]
pub(crate) struct Ceph {
    is_filled: bool,
    version: Option<String>,
}

/// The image, and the configuration of its cluster.
fn place() -> Result<(String, String, PathBuf), Error> {
    let given = std::env::var(IMAGE).unwrap_or_default();
    let (pool, image) = match given.split_once('/') {
        Some((pool, image)) if !pool.is_empty() && !image.is_empty() => (pool.to_owned(), image.to_owned()),
        _ => {
            let what = format!("an image to overwrite is missing: {IMAGE}=POOL/IMAGE, CEPH_CONF=PATH");
            return Err(Error::Lacking(what));
        }
    };
    let conf = std::env::var_os("CEPH_CONF").map_or_else(|| "/etc/ceph/ceph.conf".into(), PathBuf::from);
    Ok((pool, image, conf))
}

impl Experiment for Ceph {
    fn cells(&self) -> Vec<Cell> {
        let of = |kind: &str, depth: u32, client| {
            Cell::new(cell_name(kind, depth, client))
                .with("kind", kind)
                .with("depth", depth)
                .with("client", client)
        };
        let depths = |kind| {
            DEPTHS.into_iter().flat_map(move |depth| [OURS, FIO].map(|client| of(kind, depth, client)))
        };
        KINDS.into_iter().flat_map(depths).collect()
    }

    fn check(&self, _: &Bench) -> Result<(), Error> {
        let (_, _, conf) = place()?;
        if !conf.is_file() {
            return Err(Error::Lacking(format!("there is no {}: CEPH_CONF=PATH", conf.display())));
        }
        let found = Command::new("fio").arg("--enghelp=rbd").output();
        match found {
            Ok(output) if output.status.success() => Ok(()),
            _ => Err(Error::Lacking("fio with its rbd engine is missing: apt install fio".into())),
        }
    }

    fn seen(&self) -> Vec<String> {
        self.version.iter().cloned().collect()
    }

    fn partners(&self) -> Vec<u32> {
        process::named(&DAEMONS)
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let (pool, image, conf) = place()?;
        let (kind, depth) = (cell.text("kind"), cell.word("depth"));
        let fio = Fio { pool: &pool, image: &image, conf: &uncached(&conf, &bench.scratch)? };
        if !self.is_filled {
            let version = Command::new("fio").arg("--version").output();
            self.version =
                version.ok().map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
            fio.run(&["--rw=write", "--bs=4M", "--iodepth=4"])?;
            self.is_filled = true;
        }
        if cell.text("client") == FIO {
            return fio.measure(bench, kind, depth);
        }
        let storage = format!("rbd:{pool}/{image}?conf={}", conf.display());
        let served = bench.serve_with(ServedOptions::of([storage]).on_cores(1))?;
        let mut load = bench.load(kind, None, IO_BYTES, depth);
        load.workload.range = Some((0, (MIB << 20) / u64::from(IO_BYTES)));
        let measured = values(&bench.run(&served, load)?.report);
        // It gives its lock up.
        served.stop()?;
        Ok(measured)
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        let cells = || KINDS.into_iter().flat_map(|kind| DEPTHS.map(|depth| (kind, depth)));
        let names = |(kind, depth)| [OURS, FIO].map(|client| cell_name(kind, depth, client));
        let share = |cell| {
            let [ours, theirs] = names(cell);
            measured.ratio(&ours, &theirs, "iops")
        };
        let added = |cell| {
            let [ours, theirs] = names(cell);
            measured.difference(&ours, &theirs, "p50_us")
        };
        headlines.push("iops_over_rbd", cells().filter_map(share).reduce(f64::min), Some(SHARE));
        headlines.push("rbd_added_p50_us", cells().filter_map(added).reduce(f64::max), Some(ADDED));
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let figure = |kind: &str, value: &str, unit: &'static str, title: String, note: &str| {
            let names = DEPTHS.map(|depth| format!("depth {depth}")).to_vec();
            let of = |client: &str| {
                bars(client, measured, DEPTHS.map(|depth| cell_name(kind, depth, client)), value)
            };
            Figure::new(title, note, Plot::bars("", names, Axis::log(unit), [OURS, FIO].map(of).into()))
        };
        let figures_of = |kind: &str| {
            let what = if kind == KINDS[0] { "reads" } else { "writes" };
            [
                figure(kind, "iops", "IOPS", format!("Random {what} of 4 KiB"), "Higher is better."),
                figure(kind, "p50_us", "µs", format!("Median latency of {what}"), "Lower is better."),
            ]
        };
        KINDS.into_iter().flat_map(figures_of).collect()
    }
}

fn cell_name(kind: &str, depth: u32, client: &str) -> String {
    format!("{kind} qd{depth} {client}")
}

/// The configuration with librbd's cache off, which fio has no option for.
fn uncached(conf: &Path, scratch: &Path) -> Result<PathBuf, Error> {
    let cannot = |error| Error::system("copy Ceph's configuration file", error);
    let text = std::fs::read_to_string(conf).map_err(cannot)?;
    let copy = scratch.join("ceph.conf");
    std::fs::write(&copy, format!("{text}\n[client]\nrbd_cache = false\n")).map_err(cannot)?;
    Ok(copy)
}

/// fio's client of an image.
struct Fio<'a> {
    pool: &'a str,
    image: &'a str,
    conf: &'a Path,
}

impl Fio<'_> {
    fn run(&self, arguments: &[&str]) -> Result<Output, Error> {
        let mut command = Command::new("fio");
        command.env("CEPH_CONF", self.conf);
        let what = "--name=rbd --ioengine=rbd --clientname=admin --thread --output-format=json";
        command.args(what.split(' '));
        command.arg(format!("--pool={}", self.pool)).arg(format!("--rbdname={}", self.image));
        command.arg(format!("--size={MIB}M")).args(arguments);
        let output = command.output().doing("cannot run fio")?;
        if output.status.success() {
            return Ok(output);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(Error::Load(format!("fio fails: {}", said.lines().next().unwrap_or_default())))
    }

    fn measure(&self, bench: &Bench, kind: &str, depth: u32) -> Result<Values, Error> {
        let mut arguments = vec![
            format!("--rw={kind}"),
            format!("--bs={IO_BYTES}"),
            format!("--iodepth={depth}"),
            "--time_based".into(),
            "--norandommap".into(),
            format!("--runtime={}ms", bench.times.measure.as_millis()),
            format!("--ramp_time={}ms", bench.times.warm_up.as_millis()),
        ];
        if let Some(cores) = bench.cores {
            arguments.push(format!("--cpus_allowed={}", cores.host));
        }
        let output = self.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())?;
        fio::values(&output.stdout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::testing::{headline_of, of_key};

    #[test]
    fn the_worst_cell_counts() {
        let headline = headline_of(&Ceph::default(), |cell| {
            let is_worst = cell.text("kind") == "randwrite" && cell.word("depth") == 64;
            let is_ours = cell.text("client") == OURS;
            [
                ("iops", if is_ours && is_worst { 0.5 } else { 1.0 }),
                ("p50_us", if is_ours && is_worst { 120.0 } else { 100.0 }),
            ]
        });
        let of = |key| of_key(&headline, key);
        assert_eq!((of("iops_over_rbd").value, of("iops_over_rbd").is_reached()), (0.5, Some(false)));
        assert_eq!((of("rbd_added_p50_us").value, of("rbd_added_p50_us").is_reached()), (20.0, Some(false)));
    }

    #[test]
    fn both_clients_have_no_cache() {
        let directory = tempfile::tempdir().unwrap();
        let conf = directory.path().join("given.conf");
        std::fs::write(&conf, "[client]\nrbd_cache = true").unwrap();
        let copy = uncached(&conf, directory.path()).unwrap();
        let text = std::fs::read_to_string(copy).unwrap();
        assert_eq!(text, "[client]\nrbd_cache = true\n[client]\nrbd_cache = false\n");
    }
}
