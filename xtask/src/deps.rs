//! Programs that the tasks need on this machine, and their installation.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::command::{cargo, is_installed, output_of, root, run, target_dir};

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
    Program { name: "setpriv", package: "util-linux", purpose: "ending what a test started" },
];

const CLIENT_PROGRAMS: &[Program] = &[
    Program { name: "memccapable", package: "libmemcached-tools", purpose: "checks of memcached's protocol" },
    Program { name: "python3", package: "python3", purpose: "memcached's clients in Python" },
    Program { name: "go", package: "golang-go", purpose: "a memcached client in Go" },
    Program { name: "perl", package: "perl", purpose: "memcached's own tests" },
    Program { name: "xz", package: "xz-utils", purpose: "unpacking memcached's sources" },
];

/// Python packages of memcached clients, and of their test runner.
const PYTHON_PACKAGES: &[&str] = &["pytest==8.4.2", "pymemcache==4.0.0", PYTHON_MEMCACHED, PYLIBMC];

/// Their tests are only in their source packages.
const PYTHON_MEMCACHED: &str = "python-memcached==1.62";
const PYLIBMC: &str = "pylibmc==1.6.3";

/// A memcached client in Go, with its tests.
const GOMEMCACHE: &str = "github.com/bradfitz/gomemcache@v0.0.0-20260422231931-4d751bb6e37c";

const RUST_COMPONENTS: &[&str] = &["rustfmt", "clippy"];

/// Installs missing programs: Debian packages (as root), Rust components, the lab's images.
///
/// # Errors
/// A program is missing that this user cannot install; the message names the command.
pub(crate) fn install() -> Result<()> {
    debian_packages(PROGRAMS)?;
    rust_components()?;
    install_clients()?;
    lab(&[])
}

/// The memcached clients.
pub(crate) struct Clients {
    /// A Python interpreter with the clients installed.
    pub(crate) python: PathBuf,
    /// The tests of python-memcached, and of pylibmc.
    pub(crate) python_memcached: PathBuf,
    pub(crate) pylibmc: PathBuf,
    /// Sources of gomemcache, and the directory of what Go has built.
    pub(crate) gomemcache: PathBuf,
    pub(crate) go_cache: PathBuf,
}

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
        python_memcached: source_of(PYTHON_MEMCACHED).join("tests"),
        pylibmc: source_of(PYLIBMC).join("tests"),
        gomemcache: place.join("go").join(GOMEMCACHE),
        go_cache: place.join("go-build"),
    };
    let wanted = [PYTHON_PACKAGES, &[GOMEMCACHE]].concat().join("\n");
    let stamp = place.join("installed");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(clients);
    }
    let has_venv =
        Command::new("python3").args(["-c", "import ensurepip, venv"]).stderr(Stdio::null()).status();
    if !has_venv.is_ok_and(|status| status.success()) {
        install_debian(&["python3-venv"])?;
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&place))?;
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
    let mut go = Command::new("go");
    go.args(["mod", "download", "-modcacherw", GOMEMCACHE]).env("GOMODCACHE", place.join("go"));
    go.current_dir(&place);
    // pip repeats a failed download, go does not.
    run(&mut go).or_else(|_| run(&mut go))?;
    std::fs::write(&stamp, wanted).with_context(|| stamp.display().to_string())?;
    Ok(clients)
}

/// Gets Debian's source package of memcached, unless it is present, and returns the directory of the sources. The mirrors
/// are those that this machine gets packages from.
///
/// # Errors
/// As [`install`].
pub(crate) fn memcached_source() -> Result<PathBuf> {
    let place = target_dir().join("tools/memcached-source");
    let unpacked = || {
        let entries = std::fs::read_dir(&place).ok()?;
        let names = entries.filter_map(|entry| Some(entry.ok()?.path()));
        names.into_iter().find(|path| path.join("t/lib/MemcachedTest.pm").is_file())
    };
    if let Some(source) = unpacked() {
        return Ok(source);
    }
    if !is_installed("apt-get") {
        bail!("unpack memcached's sources into {} first", place.display());
    }
    // Package lists of sources are kept apart from the system's: most machines have none.
    let _ = std::fs::remove_dir_all(&place);
    for dir in ["lists/partial", "cache/archives/partial", "sources"] {
        std::fs::create_dir_all(place.join(dir))?;
    }
    write_source_lists(Path::new("/etc/apt"), &place.join("sources"))?;
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.current_dir(&place).args(["-qq", "-o", "Dir::Etc::sourcelist=/dev/null", "-o"]);
        command.arg(format!("Dir::Etc::sourceparts={}", place.join("sources").display())).arg("-o");
        command.arg(format!("Dir::State::lists={}", place.join("lists").display())).arg("-o");
        command.arg(format!("Dir::Cache={}", place.join("cache").display()));
        command.args(["-o", "APT::Sandbox::User=root"]).args(arguments);
        command
    };
    run(&mut apt(&["update"]))?;
    run(&mut apt(&["source", "--download-only", "--tar-only", "memcached"]))?;
    let archive = std::fs::read_dir(&place)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.to_string_lossy().contains(".orig.tar."))
        .context("apt-get has brought no archive of memcached's sources")?;
    run(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&place))?;
    std::fs::remove_dir_all(place.join("lists"))?;
    unpacked().context("memcached's sources have no tests")
}

/// Writes apt's lists of sources of a machine once more, for source packages.
fn write_source_lists(from: &Path, to: &Path) -> Result<()> {
    let entries = std::fs::read_dir(from.join("sources.list.d")).into_iter().flatten();
    let parts = entries.filter_map(|entry| Some(entry.ok()?.path()));
    for path in std::iter::once(from.join("sources.list")).chain(parts) {
        let is_list = path.extension().is_some_and(|extension| extension == "list" || extension == "sources");
        let Some(name) = path.file_name().filter(|_| is_list) else { continue };
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        std::fs::write(to.join(name), with_sources(&text))?;
    }
    Ok(())
}

/// A list of package sources, in either of apt's formats, as a list of source packages.
fn with_sources(text: &str) -> String {
    let lines = text.lines().map(|line| match line.split_once(char::is_whitespace) {
        Some(("Types:", _)) => "Types: deb-src".to_owned(),
        Some(("deb", rest)) => format!("deb-src {rest}"),
        _ => line.to_owned(),
    });
    lines.map(|line| line + "\n").collect()
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
    use super::with_sources;

    #[test]
    fn lists_of_packages_become_lists_of_source_packages() {
        let old =
            "# main\ndeb http://mirror.example/debian stable main\ndeb-src http://mirror.example/x s main\n";
        let new = "# main\ndeb-src http://mirror.example/debian stable main\ndeb-src http://mirror.example/x s main\n";
        assert_eq!(with_sources(old), new);
        let old = "Types: deb\nURIs: http://mirror.example/debian\nSuites: stable\n";
        assert_eq!(with_sources(old), old.replace("Types: deb", "Types: deb-src"));
    }
}
