//! The packages on clean systems: Debian packages in containers of Debian 12 and 13 with systemd as the init process, the
//! image under an OCI runtime that forbids io_uring.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use peer::port::free_address;
use serde_json::{Value, json};

use super::{Sources, deb, empty_dir, image};
use crate::command::{output_of, run as run_command, target_dir};
use crate::deps;

/// Releases of Debian, and what their systems have beside the least.
const RELEASES: [&str; 2] = ["bookworm", "trixie"];
const INCLUDED: &str = "systemd-sysv,adduser,logrotate,procps";

/// Time limit of a system's start and check, s.
const TIMEOUT_S: &str = "120";

/// Time limit of the image's start.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The version that is upgraded.
const OLD_VERSION: &str = "0.0.9";

/// What runs in each system, and its unit.
const SCRIPT: &str = include_str!("check.sh");
const UNIT: &str = "\
[Unit]
Requires=multi-user.target
After=multi-user.target
SuccessAction=exit
SuccessActionExitStatus=0
FailureAction=exit
FailureActionExitStatus=1

[Service]
Type=oneshot
ExecStart=/bin/sh -eu /packages/check.sh
StandardOutput=file:/results/log
StandardError=inherit
";

/// Installs, upgrades, uses and removes the packages on each release, and runs the image.
pub(super) fn run(sources: &Sources) -> Result<()> {
    deps::install_programs(deps::PACKAGE_PROGRAMS)?;
    let place = target_dir().join("package-check");
    empty_dir(&place)?;
    let packages = place.join("packages");
    let old = Sources { version: OLD_VERSION.into(), ..sources.clone() };
    for (sources, name) in [(&old, "old"), (sources, "new")] {
        deb::build(sources, &packages.join(name), "none")?;
    }
    compile_example(&packages, &place.join("development"))?;
    fs::write(packages.join("check.sh"), SCRIPT)?;
    fs::write(packages.join("check.service"), UNIT)?;
    for release in RELEASES {
        let results = place.join(release);
        empty_dir(&results)?;
        let checked = check_in(release, &packages, &results);
        println!("{}", fs::read_to_string(results.join("log")).unwrap_or_default());
        checked.with_context(|| format!("packages on Debian {release}"))?;
    }
    check_image(sources, &place).context("the image")?;
    Ok(fs::remove_dir_all(place)?)
}

/// Compiles an example with the files of the library's packages, for the systems, which have no compiler.
fn compile_example(packages: &Path, root: &Path) -> Result<()> {
    empty_dir(root)?;
    for entry in fs::read_dir(packages.join("new"))? {
        let path = entry?.path();
        let is_of_library =
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"libnvlane"));
        if is_of_library {
            run_command(Command::new("dpkg-deb").arg("-x").arg(path).arg(root))?;
        }
    }
    let multiarch = output_of(Command::new("cc").arg("-print-multiarch"))?;
    let mut flags = Command::new("pkg-config");
    flags.args(["--cflags", "--libs", "nvlane"]);
    let flags =
        output_of(flags.env("PKG_CONFIG_PATH", root.join("usr/lib").join(multiarch).join("pkgconfig")))?;
    let mut compile = Command::new("cc");
    compile.arg(crate::command::root().join("crates/bindings/c-library/examples-c/blocks.c"));
    compile.args(flags.split_whitespace()).arg("-o").arg(packages.join("blocks"));
    run_command(&mut compile)?;
    Ok(fs::remove_dir_all(root)?)
}

/// A small system of this release.
fn system(release: &str) -> Result<PathBuf> {
    let root = target_dir().join("tools/systems").join(release);
    if !root.exists() {
        let new = root.with_extension("new");
        empty_dir(&new)?;
        let mut make = Command::new("mmdebstrap");
        make.args(["--quiet", "--variant=minbase", "--include", INCLUDED, release]).arg(&new);
        run_command(make.arg(deps::debian_mirror()?))?;
        fs::rename(new, &root)?;
    }
    Ok(root)
}

/// Starts the system, whose changes go when it ends, and runs the script in it.
fn check_in(release: &str, packages: &Path, results: &Path) -> Result<()> {
    let mut system_of = Command::new("timeout");
    system_of.args(["--signal=KILL", TIMEOUT_S]);
    system_of.args("systemd-nspawn --quiet --volatile=overlay --register=no --keep-unit".split(' '));
    system_of.args("--private-network --console=pipe --boot --machine=nvlane-package-check".split(' '));
    system_of.arg("--directory").arg(system(release)?);
    system_of.arg(format!("--bind-ro={}:/packages", packages.display()));
    system_of.arg(format!("--bind={}:/results", results.display()));
    system_of
        .arg(format!("--bind-ro={}/check.service:/etc/systemd/system/check.service", packages.display()));
    system_of.args(["--", "--unit=check.service"]);
    // The systemd of Debian 13 knows unified cgroups only.
    run_command(system_of.env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "1").stdin(Stdio::null()))
}

/// The running image. It ends with this value.
struct Running {
    child: Child,
    bundle: PathBuf,
}

const CONTAINER: &str = "nvlane-package-check";

impl Running {
    fn runtime() -> Command {
        Command::new("runc")
    }

    /// Starts it, and waits until it serves at this address.
    fn start(bundle: PathBuf, address: SocketAddr) -> Result<Self> {
        let mut command = Self::runtime();
        command.args(["run", "--bundle"]).arg(&bundle).arg(CONTAINER);
        let mut running = Self { child: command.stdin(Stdio::null()).spawn()?, bundle };
        let until = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(address).is_err() {
            if let Some(status) = running.child.try_wait()? {
                bail!("it ends before it serves: {status}");
            }
            ensure!(Instant::now() < until, "it does not serve after {} s", START_TIMEOUT.as_secs());
            sleep(Duration::from_millis(20));
        }
        Ok(running)
    }

    /// Stops it as a container engine does, and returns its exit status.
    fn stop(mut self) -> Result<ExitStatus> {
        run_command(Self::runtime().args(["kill", CONTAINER, "TERM"]))?;
        Ok(self.child.wait()?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = Self::runtime().args(["delete", "--force", CONTAINER]).stderr(Stdio::null()).status();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.bundle);
    }
}

/// Unpacks the image with another program, and runs it as the user and with the file system that it names: a host writes,
/// reads and verifies.
fn check_image(sources: &Sources, place: &Path) -> Result<()> {
    let archive = image::build(sources, place)?;
    let layout = place.join("image");
    empty_dir(&layout)?;
    run_command(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&layout))?;
    // umoci takes names without a colon only.
    let index = layout.join("index.json");
    let name = format!("nvlane:{}", sources.version);
    let text = fs::read_to_string(&index)?;
    ensure!(text.contains(&name), "the image is not named {name}: {text}");
    fs::write(&index, text.replace(&name, "nvlane"))?;
    let bundle = place.join("bundle");
    run_command(
        Command::new("umoci")
            .args(["unpack", "--image"])
            .arg(format!("{}:nvlane", layout.display()))
            .arg(&bundle),
    )?;
    let path = bundle.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path)?)?;
    ensure!(config["process"]["user"]["uid"] == 65532, "the image runs as {}", config["process"]["user"]);
    let address = free_address()?;
    let listen = address.to_string();
    let arguments =
        ["/usr/bin/nvlane", "target", "--listen", &listen, "--namespace", "file:disk.img?size=64M"];
    config["process"]["args"] = json!(arguments);
    config["process"]["terminal"] = json!(false);
    config["root"]["readonly"] = json!(true);
    // What container engines forbid: the target uses epoll.
    let names = ["io_uring_setup", "io_uring_enter", "io_uring_register"];
    config["linux"]["seccomp"] = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{ "names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": 1 }],
    });
    // The host is outside, on this machine's loopback interface.
    let namespaces = config["linux"]["namespaces"].as_array_mut().context("a list of namespaces")?;
    namespaces.retain(|namespace| namespace["type"] != "network");
    let mounts = config["mounts"].as_array_mut().context("a list of mounts")?;
    mounts.retain(|mount| mount["destination"] != "/sys" && mount["destination"] != "/sys/fs/cgroup");
    let volume = place.join("volume");
    empty_dir(&volume)?;
    chown(&volume, Some(65532), Some(65532))?;
    mounts.push(json!({ "destination": "/var/lib/nvlane", "type": "bind", "source": volume, "options": ["bind", "rw"] }));
    fs::write(&path, serde_json::to_vec(&config)?)?;
    let running = Running::start(bundle, address)?;
    let mut load = Command::new(&sources.programs[0].path);
    load.args(["perf", &listen, "-w", "randrw", "-t", "1", "--verify"]);
    run_command(&mut load)?;
    let status = running.stop()?;
    ensure!(status.success(), "the image ends with {status} after SIGTERM");
    Ok(())
}
