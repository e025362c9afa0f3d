//! RBD images and keys of a real Ceph cluster behind a target: scripts of `interop/ceph`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::command::{last_lines, program, root, run, target_dir};
use crate::deps;

/// The scripts, without `.sh`, in this order: the last one leaves a cluster with an OSD less.
const SUITES: [&str; 6] = ["headers", "images", "keys", LINUX, SHARED, FAULTS];

/// They have guests with Linux.
const LINUX: &str = "linux";
const SHARED: &str = "shared";
const FAULTS: &str = "faults";
const KERNEL: &str = "6.12";

/// Time limit of a suite, s.
const LIMIT_S: &str = "1800";

/// Options of `cargo xtask ceph`.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Suites to run, or a part of their names (all)
    names: Vec<String>,
    /// An nvlane binary to test instead of building one
    #[arg(long, value_name = "PATH")]
    target_bin: Option<PathBuf>,
}

/// A cluster, which ends with this value.
struct Cluster(PathBuf);

/// The script that starts and ends clusters.
fn cluster(command: &str, dir: &Path) -> Command {
    let mut script = Command::new(root().join("interop/ceph/cluster.sh"));
    script.arg(command).arg(dir);
    script
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Err(error) = run(&mut cluster("stop", &self.0)) {
            eprintln!("the cluster's daemons still run: {error:#}");
        }
    }
}

/// Starts a cluster, and runs the chosen suites against a target before it.
pub(crate) fn judge(options: &Options) -> Result<()> {
    let is_chosen = |suite: &&str| {
        options.names.is_empty() || options.names.iter().any(|name| suite.contains(name.as_str()))
    };
    let suites: Vec<_> = SUITES.into_iter().filter(|suite| is_chosen(suite)).collect();
    ensure!(
        !suites.is_empty(),
        "no suite is called {}; there are {}",
        options.names.join(" or "),
        SUITES.join(", ")
    );
    deps::install_programs(deps::CEPH_PROGRAMS)?;
    deps::install_programs(deps::NBD_PROGRAMS)?;
    if suites.contains(&SHARED) || suites.contains(&LINUX) {
        deps::lab(&[KERNEL])?;
    }
    let fsx = if suites.contains(&LINUX) { deps::install_fsx()? } else { PathBuf::new() };
    let nvlane = match &options.target_bin {
        Some(path) => path.canonicalize().with_context(|| format!("no binary {}", path.display()))?,
        None => program("nvlane")?,
    };
    let laboratory = if suites.contains(&FAULTS) { program("nvlane-lab")? } else { PathBuf::new() };
    let place = target_dir().join("ceph");
    let start = Instant::now();
    let dir = place.join("cluster");
    // Of a run that was killed.
    if dir.exists() {
        run(&mut cluster("stop", &dir))?;
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(&dir)?;
    let cluster_of_runs = Cluster(dir);
    run(&mut cluster("start", &cluster_of_runs.0))?;
    println!("a cluster is ready after {:.0} s", start.elapsed().as_secs_f64());
    let mut failed = Vec::new();
    for suite in suites {
        let (start, dir) = (Instant::now(), place.join(suite));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir)?;
        let log = File::create(dir.join("log"))?;
        let mut command = Command::new("timeout");
        command.args(["--kill-after", "10", LIMIT_S]);
        command.arg(root().join("interop/ceph").join(suite).with_extension("sh"));
        command.env("NVLANE", &nvlane).env("CLUSTER", &cluster_of_runs.0).current_dir(&dir);
        command.env("KERNEL_LAB", root().join("interop/lab/kernel-lab")).env("KERNEL", KERNEL);
        command.env("NVLANE_LAB", &laboratory).env("FSX", &fsx);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let is_good = command.status().context("cannot run timeout")?.success();
        println!(
            "{:<4}  {suite:<8} {:>6.1} s",
            if is_good { "ok" } else { "FAIL" },
            start.elapsed().as_secs_f64()
        );
        if !is_good {
            println!("{}", last_lines(&dir.join("log"), 40));
            failed.push(suite);
        }
    }
    ensure!(failed.is_empty(), "failed: {}; logs are in {}", failed.join(", "), place.display());
    Ok(())
}
