//! memcached clients against `nvlane target`, with their makers' own tests: scripts of `interop/memcached/`; the tests of
//! memcached itself; SPDK's client at the control socket; Chromium at the live page; the Python module; programs on
//! `nvlane attach nbd` and `nvlane attach fuse`, and servers of other protocols as storage; and programs over libnvlane, fio with its engine among them.

mod bridges;
mod c_library;
mod own_tests;

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::command::{last_lines, program, root, target_dir};
use crate::deps::{self, Clients};
use crate::wheel;

/// The scripts, without `.sh`.
const SUITES: [&str; 8] =
    ["auth", EXPORTER, "gomemcache", "memccapable", "pylibmc", "pymemcache", "python-memcached", "tls"];

/// What the listener of a suite asks of clients: options of `nvlane target`.
fn demands(suite: &str) -> &'static [&'static str] {
    match suite {
        "auth" => &["--memcached-users", "users"],
        "tls" => &[
            "--memcached-tls-certificate",
            "target.pem",
            "--memcached-tls-key",
            "target.key",
            "--memcached-tls-client-ca",
            "authority.pem",
        ],
        _ => &[],
    }
}

/// Makes the files that these options name.
fn prepare(suite: &str, dir: &Path) -> Result<()> {
    match suite {
        "auth" => {
            let users = dir.join("users");
            fs::write(&users, "nvlane:correct horse\n")?;
            fs::set_permissions(&users, fs::Permissions::from_mode(0o600))?;
        }
        "tls" => {
            let mut command = Command::new(root().join("interop/memcached/certificates"));
            ensure!(command.current_dir(dir).status()?.success(), "no certificates");
        }
        _ => {}
    }
    Ok(())
}

/// The name of memcached's own tests among the suites.
const OWN_TESTS: &str = "own-tests";

/// SPDK's client of its JSON-RPC at the control socket, which has no engine: `interop/control/spdk-rpc.sh`.
const SPDK_RPC: &str = "spdk-rpc";

/// The live page in Chromium, which takes longer to install than all others together: only if it is asked for.
const LIVE_PAGE: &str = "live-page";

/// The tests of the Python module.
const PYTHON_MODULE: &str = "python-module";

/// Those of its tests that need torch, which takes gigabytes: only if it is asked for by this name.
const PYTHON_TORCH: &str = "python-torch";

/// What does not depend on the engine: it runs with the first one. It stores up to a million pairs.
const EXPORTER: &str = "exporter";

/// Namespaces: in RAM; and in a file with a log, whose maximum value length is memcached's.
const STORAGES: [(&str, &str); 2] =
    [("kv-ram", "kv:ram:50M?flush"), ("kv-file", "kv:file:{}?size=1100M&memory=50M&flush")];

const ENGINES: [&str; 2] = ["uring", "epoll"];

/// Time limit of a suite: a longer one hangs.
const LIMIT_S: &str = "300";

/// Options of `cargo xtask clients`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Suites to run, or a part of their names (all)
    names: Vec<String>,
    /// Only this engine (both)
    #[arg(long, value_name = "ENGINE", value_parser = clap::builder::PossibleValuesParser::new(ENGINES))]
    engine: Option<String>,
    /// Number of runs
    #[arg(long, value_name = "N", default_value_t = 1)]
    times: u32,
    /// An nvlane binary to test instead of building one
    #[arg(long, value_name = "PATH")]
    target_bin: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { names: Vec::new(), engine: None, times: 1, target_bin: None }
    }
}

impl Options {
    /// The tests of the Python module that need torch.
    pub(crate) fn python_torch() -> Self {
        Self { names: vec![PYTHON_TORCH.to_owned()], ..Self::default() }
    }

    /// NBD servers as storage, with their faults, for longer; bridges without their network.
    pub(crate) fn long_bridges() -> Self {
        Self { names: bridges::LONG_SUITES.map(|suite| suite.name.to_owned()).into(), ..Self::default() }
    }

    /// Chromium at the live page.
    pub(crate) fn live_page() -> Self {
        Self { names: vec![LIVE_PAGE.to_owned()], ..Self::default() }
    }
}

/// Runs the chosen suites, each against its own target.
pub(crate) fn run(options: &Options) -> Result<()> {
    let is_chosen = |suite: &&str| {
        options.names.is_empty() || options.names.iter().any(|name| suite.contains(name.as_str()))
    };
    let suites: Vec<_> = SUITES.into_iter().filter(|suite| is_chosen(suite)).collect();
    let runs_own_tests = is_chosen(&OWN_TESTS);
    let runs_spdk_rpc = is_chosen(&SPDK_RPC);
    let runs_python_module = is_chosen(&PYTHON_MODULE);
    let runs_python_torch = options.names.iter().any(|name| name == PYTHON_TORCH);
    let runs_live_page = !options.names.is_empty() && is_chosen(&LIVE_PAGE);
    let mut bridge_suites: Vec<_> =
        bridges::SUITES.into_iter().filter(|suite| is_chosen(&suite.name)).collect();
    let is_named = |suite: &bridges::Suite| options.names.iter().any(|name| name == suite.name);
    bridge_suites.extend(bridges::LONG_SUITES.into_iter().filter(is_named));
    let c_suites: Vec<_> = c_library::SUITES.into_iter().filter(|(name, _)| is_chosen(name)).collect();
    let runs_others =
        runs_python_module || runs_python_torch || !bridge_suites.is_empty() || !c_suites.is_empty();
    ensure!(
        !suites.is_empty() || runs_own_tests || runs_spdk_rpc || runs_live_page || runs_others,
        "no suite is called {}; there are {OWN_TESTS}, {SPDK_RPC}, {LIVE_PAGE}, {PYTHON_MODULE}, {PYTHON_TORCH}, {}, {}, {}",
        options.names.join(" or "),
        SUITES.join(", "),
        bridges::SUITES.map(|suite| suite.name).join(", "),
        c_library::SUITES.map(|(name, _)| name).join(", ")
    );
    let engines = ENGINES.iter().filter(|engine| options.engine.as_ref().is_none_or(|only| only == *engine));
    let nvlane = match &options.target_bin {
        Some(path) => path.canonicalize().with_context(|| format!("no binary {}", path.display()))?,
        None => program("nvlane")?,
    };
    if runs_live_page {
        deps::install_programs(deps::BROWSER_PROGRAMS)?;
        for _ in 0..options.times {
            let dir = new_dir(target_dir().join("clients").join(LIVE_PAGE))?;
            let is_good = show(LIVE_PAGE, "", "metrics", &dir, || run_live_page(&nvlane, &dir))?;
            ensure!(is_good, "failed: {LIVE_PAGE}; its pictures are in {}", dir.display());
        }
    }
    if runs_python_module {
        for _ in 0..options.times {
            let dir = new_dir(target_dir().join("clients").join(PYTHON_MODULE))?;
            let is_good = show(PYTHON_MODULE, "", "all", &dir, || wheel::run_tests(&nvlane, &dir))?;
            ensure!(is_good, "failed: {PYTHON_MODULE}; its log is in {}", dir.display());
        }
    }
    if runs_python_torch {
        for _ in 0..options.times {
            let dir = new_dir(target_dir().join("clients").join(PYTHON_TORCH))?;
            let is_good = show(PYTHON_TORCH, "", "all", &dir, || wheel::run_torch_tests(&nvlane, &dir))?;
            ensure!(is_good, "failed: {PYTHON_TORCH}; its log is in {}", dir.display());
        }
    }
    if !bridge_suites.is_empty() {
        bridges::install()?;
        for suite in bridge_suites.iter().flat_map(|suite| std::iter::repeat_n(suite, options.times as usize))
        {
            let dir = new_dir(target_dir().join("clients").join(suite.name))?;
            let is_good = show(suite.name, "", "bridge", &dir, || bridges::run(&nvlane, suite, &dir))?;
            ensure!(is_good, "failed: {}; its log is in {}", suite.name, dir.display());
        }
    }
    if !c_suites.is_empty() {
        let prefix = c_library::install()?;
        for (name, script) in
            c_suites.iter().flat_map(|suite| std::iter::repeat_n(suite, options.times as usize))
        {
            let dir = new_dir(target_dir().join("clients").join(name))?;
            let is_good = show(name, "", "ram", &dir, || c_library::run(&nvlane, &prefix, script, &dir))?;
            ensure!(is_good, "failed: {name}; its log is in {}", dir.display());
        }
    }
    if suites.is_empty() && !runs_own_tests && !runs_spdk_rpc {
        return Ok(());
    }
    let clients = deps::install_clients()?;
    let mut failed = Vec::new();
    // The tests of the protocol do not depend on the engine: one is enough.
    if runs_own_tests && let Some(engine) = engines.clone().next() {
        let source = deps::memcached_source(&own_tests::version()?)?;
        let dir = new_dir(target_dir().join("clients").join(engine).join(OWN_TESTS))?;
        for time in 1..=options.times {
            let run = || own_tests::run(&nvlane, &source, engine, &dir);
            if !show(OWN_TESTS, engine, "kv-ram", &dir, run)? {
                failed.push(format!("{OWN_TESTS} ({engine}, {time} of {})", options.times));
            }
        }
    }
    if runs_spdk_rpc && let Some(engine) = engines.clone().next() {
        for time in 1..=options.times {
            let dir = new_dir(target_dir().join("clients").join(SPDK_RPC))?;
            if !show(SPDK_RPC, engine, "control", &dir, || run_spdk_rpc(&nvlane, &clients, &dir))? {
                failed.push(format!("{SPDK_RPC} ({time} of {})", options.times));
            }
        }
    }
    for (index, engine) in engines.enumerate() {
        for (name, storage) in STORAGES {
            for suite in suites.iter().filter(|suite| index == 0 || **suite != EXPORTER) {
                for time in 1..=options.times {
                    let dir = new_dir(target_dir().join("clients").join(engine).join(name).join(suite))?;
                    let run = || run_suite(&nvlane, &clients, suite, engine, storage, &dir);
                    if !show(suite, engine, name, &dir, run)? {
                        failed.push(format!("{suite} ({engine}, {name}, {time} of {})", options.times));
                    }
                }
            }
        }
    }
    ensure!(
        failed.is_empty(),
        "failed: {}; logs are in {}",
        failed.join(", "),
        target_dir().join("clients").display()
    );
    Ok(())
}

/// Makes an empty directory.
fn new_dir(dir: PathBuf) -> Result<PathBuf> {
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    Ok(dir)
}

/// Runs a suite, and prints how it went. Returns whether it passed.
fn show(
    suite: &str,
    engine: &str,
    storage: &str,
    dir: &Path,
    run: impl FnOnce() -> Result<bool>,
) -> Result<bool> {
    let start = Instant::now();
    let is_good = run()?;
    let word = if is_good { "ok" } else { "FAIL" };
    let took = start.elapsed().as_secs_f64();
    println!("{word:<4}  {suite:<17} {engine:<6} {storage:<8} {took:>6.1} s");
    if !is_good {
        println!("{}", last_lines(&dir.join("log"), 40));
    }
    Ok(is_good)
}

/// Runs a suite in an empty directory against a new target. Returns whether it passed.
fn run_suite(
    nvlane: &Path,
    clients: &Clients,
    suite: &str,
    engine: &str,
    storage: &str,
    dir: &Path,
) -> Result<bool> {
    let log = File::create(dir.join("log"))?;
    let pairs = dir.join("pairs");
    let storage = storage.replace("{}", &pairs.display().to_string());
    let mut command = Command::new("timeout");
    command.args(["--kill-after", "10", LIMIT_S]).arg(nvlane);
    command.args(["--log", "warn", "target", "--engine", engine, "--listen", "127.0.0.1:0"]);
    prepare(suite, dir)?;
    command.args(["--namespace", &storage, "--memcached", "127.0.0.1:0"]).args(demands(suite)).arg("--run");
    command.arg(root().join("interop/memcached").join(suite).with_extension("sh"));
    command.env("PYTHON", &clients.python).env("PYTHON_MEMCACHED", &clients.python_memcached);
    command.env("PYLIBMC", &clients.pylibmc).env("EXPORTER", &clients.exporter);
    command.env("MEMCACHED_EXPORTER", &clients.memcached_exporter);
    command.env("GOMEMCACHE", &clients.gomemcache).env("GOCACHE", &clients.go_cache);
    command.current_dir(dir).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let status = command.status().context("cannot run timeout")?;
    let _ = fs::remove_file(pairs);
    Ok(status.success())
}

/// Lets SPDK's client make and remove a subsystem of a target. Returns whether all went as it should.
fn run_spdk_rpc(nvlane: &Path, clients: &Clients, dir: &Path) -> Result<bool> {
    let log = File::create(dir.join("log"))?;
    let mut command = Command::new("timeout");
    command.args(["--kill-after", "10", LIMIT_S]).arg(root().join("interop/control/spdk-rpc.sh"));
    command.env("NVLANE", nvlane).env("PYTHON", &clients.python).env("SPDK_RPC", &clients.spdk_rpc);
    command.current_dir(dir).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Ok(command.status().context("cannot run timeout")?.success())
}

/// Opens the live page of a loaded target in Chromium. Returns whether it shows what the target does.
fn run_live_page(nvlane: &Path, dir: &Path) -> Result<bool> {
    let log = File::create(dir.join("log"))?;
    let mut command = Command::new("timeout");
    command.args(["--kill-after", "10", LIMIT_S]).arg(root().join("interop/live-page/live-page.py")).arg(dir);
    command.env("NVLANE", nvlane).env("PYTHONDONTWRITEBYTECODE", "1");
    command.current_dir(dir).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Ok(command.status().context("cannot run timeout")?.success())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::SUITES;
    use crate::command::root;

    #[test]
    fn every_script_is_run() {
        let scripts = std::fs::read_dir(root().join("interop/memcached")).expect("scripts are there");
        let names =
            scripts.map(|entry| entry.expect("readable").file_name().into_string().expect("plain name"));
        let names: BTreeSet<_> =
            names.filter_map(|name| name.strip_suffix(".sh").map(str::to_owned)).collect();
        assert_eq!(names, SUITES.map(str::to_owned).into());
    }
}
