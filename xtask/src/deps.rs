//! Programs that the tasks need on this machine, and their installation.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::command::{cargo, is_installed, output_of, root, run, target_dir, text_of};

/// A program, its Debian package, and its purpose.
struct Program {
    name: &'static str,
    package: &'static str,
    purpose: &'static str,
}

const PROGRAMS: &[Program] = &[
    Program { name: "qemu-system-x86_64", package: "qemu-system-x86", purpose: "guests with stock kernels" },
    Program { name: "xz", package: "xz-utils", purpose: "unpacking kernels" },
    Program { name: "zstd", package: "zstd", purpose: "unpacking kernels" },
    Program { name: "python3", package: "python3", purpose: "forbidding io_uring to a test" },
    Program { name: "nvme", package: "nvme-cli", purpose: "checking keys" },
    Program { name: "openssl", package: "openssl", purpose: "the other end of TLS" },
    Program { name: "gnutls-cli", package: "gnutls-bin", purpose: "the other end of TLS" },
    Program {
        name: "prometheus",
        package: "prometheus",
        purpose: "scraping a target, and its alerts and dashboard",
    },
    Program { name: "setpriv", package: "util-linux", purpose: "ending what a test started" },
    Program { name: "script", package: "bsdutils", purpose: "a terminal for nvlane top" },
];

const CLIENT_PROGRAMS: &[Program] = &[
    Program { name: "memccapable", package: "libmemcached-tools", purpose: "checks of memcached's protocol" },
    Program { name: "python3", package: "python3", purpose: "memcached's clients in Python" },
    Program { name: "go", package: "golang-go", purpose: "a memcached client in Go" },
    Program { name: "perl", package: "perl", purpose: "memcached's own tests" },
    Program { name: "mkfs.xfs", package: "xfsprogs", purpose: "volumes that share blocks" },
    Program { name: "xz", package: "xz-utils", purpose: "unpacking memcached's sources" },
];

const BROWSER_PROGRAMS: &[Program] = &[
    Program { name: "python3", package: "python3", purpose: "telling the browser what to do" },
    Program { name: "chromium", package: "chromium", purpose: "showing the live page" },
];

const NBD_PROGRAMS: &[Program] = &[
    Program { name: "nbdcopy", package: "libnbd-bin", purpose: "NBD's own clients" },
    Program { name: "qemu-img", package: "qemu-utils", purpose: "qemu's NBD client" },
    Program { name: "fio", package: "fio", purpose: "verified load over NBD" },
];

const CEPH_PROGRAMS: &[Program] = &[
    Program { name: "ceph-mon", package: "ceph-mon", purpose: "a cluster" },
    Program { name: "ceph-osd", package: "ceph-osd", purpose: "a cluster" },
    Program { name: "rbd", package: "ceph-common", purpose: "RBD images, and librbd" },
];

/// Headers that the table of librbd's functions is compared with.
const CEPH_HEADERS: &str = "librbd-dev";

/// Has no program.
const NBD_PYTHON: &str = "python3-libnbd";

const C_PROGRAMS: &[Program] = &[
    Program { name: "g++", package: "g++", purpose: "programs over libnvlane" },
    Program { name: "nm", package: "binutils", purpose: "what libnvlane exports" },
    Program { name: "pkg-config", package: "pkg-config", purpose: "finding libnvlane" },
    Program { name: "make", package: "make", purpose: "configuring fio's sources" },
    Program { name: "valgrind", package: "valgrind", purpose: "memory errors of programs over libnvlane" },
    Program { name: "fio", package: "fio", purpose: "verified load over libnvlane" },
];

const PACKAGE_PROGRAMS: &[Program] = &[
    Program { name: "dpkg-deb", package: "dpkg", purpose: "Debian packages" },
    Program { name: "objcopy", package: "binutils", purpose: "debug symbols apart from the program" },
    Program { name: "mmdebstrap", package: "mmdebstrap", purpose: "clean Debian systems" },
    Program { name: "systemd-nspawn", package: "systemd-container", purpose: "systems in containers" },
    Program { name: "umoci", package: "umoci", purpose: "unpacking OCI images" },
    Program { name: "runc", package: "runc", purpose: "running OCI images" },
];

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
    debian_packages(PROGRAMS)?;
    if !Path::new("/usr/include/rbd/librbd.h").is_file() {
        install_debian(&[CEPH_HEADERS])?;
    }
    rust_components()?;
    install_clients()?;
    install_nbd_clients()?;
    install_for_c()?;
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

/// Installs a browser.
///
/// # Errors
/// As [`install`].
pub(crate) fn install_browser() -> Result<()> {
    debian_packages(BROWSER_PROGRAMS)
}

/// Installs the NBD clients.
///
/// # Errors
/// As [`install`].
pub(crate) fn install_nbd_clients() -> Result<()> {
    debian_packages(NBD_PROGRAMS)?;
    let module = Path::new("/usr/lib/python3/dist-packages/nbd.py");
    if module.is_file() { Ok(()) } else { install_debian(&[NBD_PYTHON]) }
}

/// Installs a Ceph cluster's daemons and tools.
///
/// # Errors
/// As [`install`].
pub(crate) fn install_ceph() -> Result<()> {
    debian_packages(CEPH_PROGRAMS)
}

/// Installs what programs over libnvlane are compiled and judged with.
///
/// # Errors
/// As [`install`].
pub(crate) fn install_for_c() -> Result<()> {
    debian_packages(C_PROGRAMS)
}

/// Installs cbindgen, and returns its path. Without optimization: it runs for a second. Another version writes other headers.
///
/// # Errors
/// As [`install`].
pub(crate) fn install_cbindgen() -> Result<PathBuf> {
    let tools = target_dir().join("tools");
    let ours = tools.join("bin/cbindgen");
    let says = format!("cbindgen {CBINDGEN}");
    let is_right =
        |path: &Path| output_of(Command::new(path).arg("--version")).is_ok_and(|text| text == says);
    if let Some(path) = [Path::new("cbindgen"), &ours].into_iter().find(|path| is_right(path)) {
        return Ok(path.to_owned());
    }
    let mut install =
        cargo(&["install", "--locked", "--debug", "--quiet", "cbindgen", "--version", CBINDGEN]);
    run(install.arg("--root").arg(&tools))?;
    Ok(ours)
}

/// The version of cbindgen that nvlane.h is made with.
const CBINDGEN: &str = "0.29.2";

/// Installs the memcached clients: those in Python in their own virtual environment.
///
/// # Errors
/// As [`install`].
pub(crate) fn install_clients() -> Result<Clients> {
    debian_packages(CLIENT_PROGRAMS)?;
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
    virtual_environment(&place)?;
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

/// Makes an empty virtual environment of Python.
///
/// # Errors
/// As [`install`].
pub(crate) fn virtual_environment(place: &Path) -> Result<()> {
    let has_venv =
        Command::new("python3").args(["-c", "import ensurepip, venv"]).stderr(Stdio::null()).status();
    if !has_venv.is_ok_and(|status| status.success()) {
        install_debian(&["python3-venv"])?;
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(place))
}

/// Releases of Debian among which a version of memcached's sources is sought.
const SOURCE_RELEASES: [&str; 2] = ["unstable", "testing"];

/// The key with which Debian signs its releases.
const DEBIAN_KEY: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Gets this version of memcached from Debian's source packages, unless it is present, and returns the directory of the
/// sources.
///
/// # Errors
/// As [`debian_source`].
pub(crate) fn memcached_source(version: &str) -> Result<PathBuf> {
    debian_source("memcached", version, &SOURCE_RELEASES.map(str::to_owned), "t/lib/MemcachedTest.pm")
}

/// Gets this version of fio, that of this machine, as [`memcached_source`].
///
/// # Errors
/// As [`debian_source`].
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

/// Installs the tools that count instructions, and returns the path of gungraun's runner.
///
/// # Errors
/// As [`install`].
pub(crate) fn install_for_counting() -> Result<PathBuf> {
    install_valgrind()?;
    // Its version must match the crate that the bench uses.
    let version = locked_version("gungraun")?;
    let is_right = |runner: &Path| {
        let says = output_of(Command::new(runner).arg("--version"));
        says.is_ok_and(|says| says.rsplit(' ').next() == Some(version.as_str()))
    };
    let tools = target_dir().join("tools");
    let ours = tools.join("bin/gungraun-runner");
    if let Some(runner) = [Path::new("gungraun-runner"), &ours].into_iter().find(|runner| is_right(runner)) {
        return Ok(runner.to_owned());
    }
    let mut install = cargo(&["install", "--locked", "--quiet", "gungraun-runner", "--version", &version]);
    run(install.arg("--root").arg(&tools))?;
    Ok(ours)
}

/// The version of a crate in `Cargo.lock`.
fn locked_version(name: &str) -> Result<String> {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).context("Cargo.lock")?;
    let of_crate = lock.split("[[package]]").find(|entry| entry.contains(&format!("\nname = \"{name}\"\n")));
    let line = of_crate.and_then(|entry| entry.lines().find_map(|line| line.strip_prefix("version = ")));
    let version = line.with_context(|| format!("Cargo.lock does not name {name}"))?;
    Ok(version.trim_matches('"').to_owned())
}

/// Installs the tools that make packages and check them.
///
/// # Errors
/// As [`install`].
pub(crate) fn install_for_packages() -> Result<()> {
    debian_packages(PACKAGE_PROGRAMS)
}

/// Installs the fuzzing tools.
///
/// # Errors
/// As [`install`].
pub(crate) fn install_for_fuzzing() -> Result<()> {
    debian_packages(&[Program { name: "c++", package: "g++", purpose: "libFuzzer" }])?;
    cargo_tool("cargo-fuzz", "0.13.2")
}

/// Installs the coverage tools.
///
/// # Errors
/// As [`install`].
pub(crate) fn install_for_coverage() -> Result<()> {
    run(Command::new("rustup").args(["component", "add", "llvm-tools"]).current_dir(root()))?;
    cargo_tool("cargo-llvm-cov", "0.6.21")
}

/// Installs the mutation testing tool.
///
/// # Errors
/// As [`install`].
pub(crate) fn install_for_mutants() -> Result<()> {
    cargo_tool("cargo-mutants", "27.1.0")
}

/// Installs cargo-deny. Without optimization: it is built once and rarely runs.
///
/// # Errors
/// As [`install`].
pub(crate) fn install_deny() -> Result<()> {
    if is_installed("cargo-deny") {
        return Ok(());
    }
    run(&mut cargo(&["install", "--locked", "--debug", "cargo-deny", "--version", "0.20.2"]))
}

/// Installs strace.
///
/// # Errors
/// As [`install`].
pub(crate) fn install_strace() -> Result<()> {
    debian_packages(&[Program { name: "strace", package: "strace", purpose: "tracing system calls" }])
}

/// Installs valgrind.
///
/// # Errors
/// As [`install`].
pub(crate) fn install_valgrind() -> Result<()> {
    debian_packages(&[Program {
        name: "valgrind",
        package: "valgrind",
        purpose: "counting instructions, memory errors",
    }])
}

/// Installs a program from the registry, unless it is installed.
fn cargo_tool(name: &str, version: &str) -> Result<()> {
    if is_installed(name) {
        return Ok(());
    }
    run(&mut cargo(&["install", "--locked", name, "--version", version]))
}

fn debian_packages(programs: &[Program]) -> Result<()> {
    let missing: Vec<_> = programs.iter().filter(|program| !is_installed(program.name)).collect();
    for program in &missing {
        println!("missing: {} ({}), for {}", program.name, program.package, program.purpose);
    }
    let mut packages: Vec<_> = missing.iter().map(|program| program.package).collect();
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

fn rust_components() -> Result<()> {
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
///
/// # Errors
/// If they cannot be downloaded and built.
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
