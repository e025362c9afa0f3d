//! Programs that the tasks need on this machine, and their installation.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::command::{cargo, is_installed, output_of, root, run, target_dir, text_of};

/// A program or a file, its Debian package, and its purpose.
type Program = (&'static str, &'static str, &'static str);

const PROGRAMS: &[Program] = &[
    ("qemu-system-x86_64", "qemu-system-x86", "guests with stock kernels"),
    ("xz", "xz-utils", "unpacking kernels"),
    ("zstd", "zstd", "unpacking kernels"),
    ("python3", "python3", "forbidding io_uring to a test"),
    ("nvme", "nvme-cli", "checking keys"),
    ("openssl", "openssl", "the other end of TLS"),
    ("gnutls-cli", "gnutls-bin", "the other end of TLS"),
    ("prometheus", "prometheus", "scraping a target, and its alerts and dashboard"),
    ("setpriv", "util-linux", "ending what a test started"),
    ("script", "bsdutils", "a terminal for nvlane top"),
    ("/usr/include/rbd/librbd.h", "librbd-dev", "comparing the table of librbd's functions"),
];

const CLIENT_PROGRAMS: &[Program] = &[
    ("memccapable", "libmemcached-tools", "checks of memcached's protocol"),
    ("python3", "python3", "memcached's clients in Python"),
    ("go", "golang-go", "a memcached client in Go"),
    ("perl", "perl", "memcached's own tests"),
    ("mkfs.xfs", "xfsprogs", "volumes that share blocks"),
    ("xz", "xz-utils", "unpacking memcached's sources"),
];

/// A browser, and what drives it.
pub(crate) const BROWSER_PROGRAMS: &[Program] = &[
    ("python3", "python3", "telling the browser what to do"),
    ("chromium", "chromium", "showing the live page"),
];

/// NBD clients, and servers.
pub(crate) const NBD_PROGRAMS: &[Program] = &[
    ("nbdcopy", "libnbd-bin", "NBD's own clients"),
    ("qemu-img", "qemu-utils", "qemu's NBD client and server"),
    ("qemu-storage-daemon", "qemu-system-common", "vhost-user devices"),
    ("nbdkit", "nbdkit", "an NBD server with faults"),
    ("fio", "fio", "verified load over NBD and on files"),
    ("sqlite3", "sqlite3", "a database on a file of attach fuse"),
    ("fusermount3", "fuse3", "mounting for users without rights"),
    ("/usr/lib/python3/dist-packages/nbd.py", "python3-libnbd", "libnbd from Python"),
];

/// A Ceph cluster's daemons and tools.
pub(crate) const CEPH_PROGRAMS: &[Program] = &[
    ("ceph-mon", "ceph-mon", "a cluster"),
    ("ceph-osd", "ceph-osd", "a cluster"),
    ("rbd", "ceph-common", "RBD images, and librbd"),
];

/// What programs over libnvlane are compiled and judged with.
pub(crate) const C_PROGRAMS: &[Program] = &[
    ("g++", "g++", "programs over libnvlane"),
    ("nm", "binutils", "what libnvlane exports"),
    ("pkg-config", "pkg-config", "finding libnvlane"),
    ("make", "make", "configuring fio's sources"),
    ("valgrind", "valgrind", "memory errors of programs over libnvlane"),
    ("fio", "fio", "verified load over libnvlane"),
];

/// What makes packages, and checks them.
pub(crate) const PACKAGE_PROGRAMS: &[Program] = &[
    ("dpkg-deb", "dpkg", "Debian packages"),
    ("cc", "gcc", "linking libnvlane"),
    ("pkg-config", "pkg-config", "finding libnvlane"),
    ("objcopy", "binutils", "debug symbols apart from the program"),
    ("mmdebstrap", "mmdebstrap", "clean Debian systems"),
    ("systemd-nspawn", "systemd-container", "systems in containers"),
    ("umoci", "umoci", "unpacking OCI images"),
    ("runc", "runc", "running OCI images"),
];

/// What traces system calls.
pub(crate) const STRACE: &[Program] = &[("strace", "strace", "tracing system calls")];

/// What counts instructions, and finds errors of memory.
pub(crate) const VALGRIND: &[Program] = &[("valgrind", "valgrind", "counting instructions, memory errors")];

/// Python packages of memcached clients, of their test runner, and SPDK's client of its JSON-RPC.
const PYTHON_PACKAGES: &[&str] =
    &["pytest==8.4.2", "pymemcache==4.0.0", PYTHON_MEMCACHED, PYLIBMC, "spdk==26.9"];

/// Their tests are only in their source packages.
const PYTHON_MEMCACHED: &str = "python-memcached==1.62";
const PYLIBMC: &str = "pylibmc==1.6.3";

/// A memcached client in Go, with its tests.
const GOMEMCACHE: &str = "github.com/bradfitz/gomemcache@v0.0.0-20260422231931-4d751bb6e37c";
/// Of the version in `interop/memcached/exporter/go.mod`.
const MEMCACHED_EXPORTER: &str = "github.com/prometheus/memcached_exporter/cmd/memcached_exporter";

const RUST_COMPONENTS: &[&str] = &["rustfmt", "clippy"];

/// Installs missing programs: Debian packages (as root), Rust components, the lab's images.
///
/// # Errors
/// A program is missing that this user cannot install; the message names the command.
pub(crate) fn install() -> Result<()> {
    // At once: each call of apt-get has lists to read and triggers to run.
    let programs = [PROGRAMS, CLIENT_PROGRAMS, NBD_PROGRAMS, C_PROGRAMS, PACKAGE_PROGRAMS, STRACE, VALGRIND];
    install_programs(&programs.concat())?;
    rust_components()?;
    install_clients()?;
    lab(&[])
}

/// The memcached clients.
pub(crate) struct Clients {
    /// A Python interpreter with the clients installed.
    pub(crate) python: PathBuf,
    /// SPDK's client of its JSON-RPC.
    pub(crate) spdk_rpc: PathBuf,
    /// The tests of python-memcached, and of pylibmc.
    pub(crate) python_memcached: PathBuf,
    pub(crate) pylibmc: PathBuf,
    /// Sources of gomemcache, and the directory of what Go has built.
    pub(crate) gomemcache: PathBuf,
    pub(crate) go_cache: PathBuf,
    /// A Prometheus exporter of all statistics, and memcached_exporter.
    pub(crate) exporter: PathBuf,
    pub(crate) memcached_exporter: PathBuf,
}

/// Installs cbindgen, and returns its path. Without optimization: it runs for a second. Another version writes other headers.
pub(crate) fn install_cbindgen() -> Result<PathBuf> {
    exact_tool("cbindgen", "0.29.2", &["--debug"])
}

/// Installs the memcached clients: those in Python in their own virtual environment.
pub(crate) fn install_clients() -> Result<Clients> {
    install_programs(CLIENT_PROGRAMS)?;
    let place = target_dir().join("tools/memcached-clients");
    let python = place.join("bin/python");
    let source_of = |package: &str| place.join(package.replace("==", "-"));
    let clients = Clients {
        python: python.clone(),
        spdk_rpc: place.join("bin/spdk-rpc"),
        python_memcached: source_of(PYTHON_MEMCACHED).join("tests"),
        pylibmc: source_of(PYLIBMC).join("tests"),
        gomemcache: place.join("go").join(GOMEMCACHE),
        go_cache: place.join("go-build"),
        exporter: place.join("bin/exporter"),
        memcached_exporter: place.join("bin/memcached_exporter"),
    };
    let exporter = root().join("interop/memcached/exporter");
    let read = |name: &str| {
        let path = exporter.join(name);
        std::fs::read_to_string(&path).with_context(|| path.display().to_string())
    };
    let exporter_sources = [read("go.mod")?, read("go.sum")?, read("main.go")?].concat();
    let wanted = [PYTHON_PACKAGES, &[GOMEMCACHE, &exporter_sources]].concat().join("\n");
    let stamp = place.join("installed");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(clients);
    }
    virtual_environment(&place, "python3")?;
    let pip = |arguments: &[&str]| {
        let mut command = Command::new(&python);
        command.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]).args(arguments);
        command
    };
    run(pip(&["install"]).args(PYTHON_PACKAGES))?;
    for package in [PYTHON_MEMCACHED, PYLIBMC] {
        run(pip(&["download", "--no-deps", "--no-binary", ":all:", package, "--dest"]).arg(&place))?;
        let archive = place.join(format!("{}.tar.gz", package.replace("==", "-")));
        run(Command::new(&python).args(["-m", "tarfile", "-e"]).arg(archive).arg(&place))?;
    }
    let go = |dir: &Path, arguments: &[&str]| {
        let mut go = Command::new("go");
        go.args(arguments).current_dir(dir);
        go.env("GOMODCACHE", place.join("go")).env("GOCACHE", &clients.go_cache);
        // pip repeats a failed download, go does not.
        run(&mut go).or_else(|_| run(&mut go))
    };
    go(&place, &["mod", "download", "-modcacherw", GOMEMCACHE])?;
    for (program, package) in [(&clients.exporter, "."), (&clients.memcached_exporter, MEMCACHED_EXPORTER)] {
        let program = program.to_string_lossy();
        go(&exporter, &["build", "-modcacherw", "-buildvcs=false", "-o", &program, package])?;
    }
    std::fs::write(&stamp, wanted).with_context(|| stamp.display().to_string())?;
    Ok(clients)
}

/// Makes an empty virtual environment of an interpreter of Python.
pub(crate) fn virtual_environment(place: &Path, interpreter: &str) -> Result<()> {
    let has_venv =
        Command::new(interpreter).args(["-c", "import ensurepip, venv"]).stderr(Stdio::null()).status();
    if !has_venv.is_ok_and(|status| status.success()) {
        install_debian(&["python3-venv"])?;
    }
    run(Command::new(interpreter).args(["-m", "venv", "--clear"]).arg(place))
}

/// Releases of Debian among which a version of memcached's sources is sought.
const SOURCE_RELEASES: [&str; 2] = ["unstable", "testing"];

/// The key with which Debian signs its releases.
const DEBIAN_KEY: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Gets this version of memcached from Debian's source packages, unless it is present, and returns the directory of the
/// sources.
pub(crate) fn memcached_source(version: &str) -> Result<PathBuf> {
    debian_source("memcached", version, &SOURCE_RELEASES.map(str::to_owned), "t/lib/MemcachedTest.pm")
}

/// Gets this version of fio, that of this machine, as [`memcached_source`].
pub(crate) fn fio_source(version: &str) -> Result<PathBuf> {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let release = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let releases =
        release.map_or(SOURCE_RELEASES.map(str::to_owned).to_vec(), |release| vec![release.to_owned()]);
    debian_source("fio", version, &releases, "ioengines.h")
}

/// Gets this version of a program from the source packages of these releases of Debian, unless it is present, and returns the
/// directory of the sources, which has `probe`. The mirror is the one that this machine gets packages from.
///
/// # Errors
/// As [`install`]; no release of Debian has this version.
fn debian_source(name: &str, version: &str, releases: &[String], probe: &str) -> Result<PathBuf> {
    let place = target_dir().join(format!("tools/{name}-source"));
    let source = place.join(format!("{name}-{version}"));
    let is_there = || source.join(probe).is_file();
    if is_there() {
        return Ok(source);
    }
    let by_hand = format!("unpack the sources of {name} {version} into {}", source.display());
    if !is_installed("apt-get") {
        bail!("{by_hand} first");
    }
    // Package lists of sources are kept apart from the system's: most machines have none.
    let _ = std::fs::remove_dir_all(&place);
    for dir in ["lists/partial", "cache/archives/partial"] {
        std::fs::create_dir_all(place.join(dir))?;
    }
    let mirror = debian_mirror()?;
    let line = |release| format!("deb-src [signed-by={DEBIAN_KEY}] {mirror} {release} main\n");
    std::fs::write(place.join("sources.list"), releases.iter().map(line).collect::<String>())?;
    let apt = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.current_dir(&place).args(["-qq", "-o", "Dir::Etc::sourceparts=-", "-o"]);
        command.arg(format!("Dir::Etc::sourcelist={}", place.join("sources.list").display())).arg("-o");
        command.arg(format!("Dir::State::lists={}", place.join("lists").display())).arg("-o");
        command.arg(format!("Dir::Cache={}", place.join("cache").display()));
        command.args(["-o", "APT::Sandbox::User=root"]).args(arguments);
        command
    };
    run(&mut apt("apt-get", &["update"]))?;
    let packages = text_of(&mut apt("apt-cache", &["showsrc", "--only-source", name]))?;
    let versions: Vec<_> = packages.lines().filter_map(|line| line.strip_prefix("Version: ")).collect();
    let Some(package) = versions.iter().find(|package| upstream(package) == version) else {
        bail!("Debian has {name} {}, not {version}: {by_hand}", versions.join(" and "));
    };
    let package = format!("{name}={package}");
    run(&mut apt("apt-get", &["source", "--download-only", "--tar-only", &package]))?;
    let archive = std::fs::read_dir(&place)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.to_string_lossy().contains(".orig.tar."))
        .with_context(|| format!("apt-get has brought no archive of {name}'s sources"))?;
    run(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&place))?;
    std::fs::remove_dir_all(place.join("lists"))?;
    ensure!(is_there(), "{name}'s sources have no {probe} in {}", source.display());
    Ok(source)
}

/// Where this machine gets Debian's packages.
pub(crate) fn debian_mirror() -> Result<String> {
    let mirror = || {
        let of = ["Created-By: Packages", "Origin: Debian", "Label: Debian", "Component: main"];
        let mut command = Command::new("apt-get");
        let uri = output_of(command.args(["indextargets", "--format", "$(REPO_URI)"]).args(of)).ok()?;
        Some(uri).filter(|uri| !uri.is_empty())
    };
    if let Some(mirror) = mirror() {
        return Ok(mirror);
    }
    if !rustix::process::geteuid().is_root() {
        bail!("apt knows no mirror of Debian; perhaps it helps to run: sudo apt-get update");
    }
    update_package_lists()?;
    mirror().context("apt knows no mirror of Debian")
}

/// The version of the sources in that of a Debian package: without epoch and revision.
fn upstream(package: &str) -> &str {
    let version = package.split_once(':').map_or(package, |(_, version)| version);
    version.rsplit_once('-').map_or(version, |(version, _)| version)
}

/// Installs the tool that counts instructions.
pub(crate) fn install_for_counting() -> Result<()> {
    install_programs(VALGRIND)
}

/// Installs the exerciser of file systems, and returns its path.
pub(crate) fn install_fsx() -> Result<PathBuf> {
    exact_tool("fsx", "0.3.2", &[])
}

/// Installs this version of a program from the registry, unless it is there, and returns its path.
fn exact_tool(name: &str, version: &str, options: &[&str]) -> Result<PathBuf> {
    let is_right = |path: &Path| {
        let says = output_of(Command::new(path).arg("--version"));
        says.is_ok_and(|says| says.rsplit(' ').next() == Some(version))
    };
    let tools = target_dir().join("tools");
    let ours = tools.join("bin").join(name);
    if let Some(path) = [Path::new(name), &ours].into_iter().find(|path| is_right(path)) {
        return Ok(path.to_owned());
    }
    let mut install = cargo(&["install", "--locked", "--quiet", name, "--version", version]);
    run(install.args(options).arg("--root").arg(&tools))?;
    Ok(ours)
}

/// Installs the fuzzing tools.
pub(crate) fn install_for_fuzzing() -> Result<()> {
    install_programs(&[("c++", "g++", "libFuzzer")])?;
    cargo_tool("cargo-fuzz", "0.13.2", &[])
}

/// Installs the coverage tools.
pub(crate) fn install_for_coverage() -> Result<()> {
    run(Command::new("rustup").args(["component", "add", "llvm-tools"]).current_dir(root()))?;
    cargo_tool("cargo-llvm-cov", "0.6.21", &[])
}

/// Installs this version of a program from the registry, unless one is installed.
pub(crate) fn cargo_tool(name: &str, version: &str, options: &[&str]) -> Result<()> {
    if is_installed(name) {
        return Ok(());
    }
    run(cargo(&["install", "--locked", name, "--version", version]).args(options))
}

/// Installs those that are missing.
pub(crate) fn install_programs(programs: &[Program]) -> Result<()> {
    let missing: Vec<_> = programs.iter().filter(|(name, ..)| !is_installed(name)).collect();
    for (name, package, purpose) in &missing {
        println!("missing: {name} ({package}), for {purpose}");
    }
    let mut packages: Vec<_> = missing.iter().map(|(_, package, _)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    if packages.is_empty() { Ok(()) } else { install_debian(&packages) }
}

fn install_debian(packages: &[&str]) -> Result<()> {
    if !rustix::process::geteuid().is_root() || !is_installed("apt-get") {
        bail!("install them first: sudo apt-get install --no-install-recommends {}", packages.join(" "));
    }
    update_package_lists()?;
    let mut command = Command::new("apt-get");
    command.args(["install", "-y", "-qq", "--no-install-recommends"]).args(packages);
    run(command.env("DEBIAN_FRONTEND", "noninteractive"))
}

fn update_package_lists() -> Result<()> {
    run(Command::new("apt-get").args(["update", "-qq"]))
}

/// Installs the components of the Rust toolchain that are missing.
pub(crate) fn rust_components() -> Result<()> {
    let is_missing = |component: &&&str| {
        let name = component.trim_start_matches("rust");
        let mut version = crate::command::cargo(&[name, "--version"]);
        !version.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let missing: Vec<_> = RUST_COMPONENTS.iter().filter(is_missing).collect();
    if missing.is_empty() {
        return Ok(());
    }
    run(Command::new("rustup").args(["component", "add"]).args(missing).current_dir(root()))
}

/// Gets the lab's images of the given kernel series (all, if none is given), unless they are present.
pub(crate) fn lab(series: &[&str]) -> Result<()> {
    let fetch = || {
        let mut command = Command::new(root().join("interop/lab/kernel-lab"));
        command.arg("fetch").args(series);
        command
    };
    if fetch().status()?.success() {
        return Ok(());
    }
    // A fresh machine has no package lists, an old one has stale ones.
    if !rustix::process::geteuid().is_root() {
        bail!("kernel-lab cannot fetch its images; perhaps it helps to run: sudo apt-get update");
    }
    update_package_lists()?;
    run(&mut fetch())
}

#[cfg(test)]
mod tests {
    use super::upstream;

    #[test]
    fn packages_name_the_version_of_their_sources() {
        for package in ["1.6.45-1", "1.6.45-1+deb12u1", "1:1.6.45-0.1~exp1", "1.6.45"] {
            assert_eq!(upstream(package), "1.6.45", "{package}");
        }
        assert_eq!(upstream("2.0-rc1-3"), "2.0-rc1");
    }
}
