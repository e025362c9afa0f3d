//! libnvlane as it is installed: the shared library with its versions, linked from the static one; header, pkg-config, fio's
//! engine, and NIXL's plugin.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::command::{cargo, is_installed, output_of, program, root, run, target_dir, text_of};
use crate::deps;

const CRATE: &str = "crates/bindings/c-library";

/// Its package, and the static library that cargo makes of it.
pub(crate) const PACKAGE: &str = "nvlane-c-library";
pub(crate) const STATIC: &str = "libnvlane_c.a";

/// The shared library's name in programs that are linked with it.
pub(crate) const SONAME: &str = "libnvlane.so.0";

/// Libraries of the system that Rust's standard library needs.
const SYSTEM_LIBRARIES: [&str; 5] = ["-lgcc_s", "-lm", "-lpthread", "-ldl", "-lc"];

/// The file of pkg-config, which finds the rest from where it lies.
const PKG_CONFIG: &str = "prefix=${pcfiledir}/../..
libdir=${prefix}/lib
includedir=${prefix}/include

Name: nvlane
Description: Blocks, and keys and values, of NVMe/TCP targets
Version: VERSION
Libs: -L${libdir} -lnvlane
Libs.private: LIBRARIES
Cflags: -I${includedir}
";

/// Options of `cargo xtask c-library`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Directory to install into: lib/, include/nvlane.h and lib/pkgconfig/nvlane.pc
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Profile to build with; in one whose panics abort, a bug of the library ends the program
    #[arg(long, value_name = "NAME", default_value = "bindings")]
    profile: String,
}

/// Options of `cargo xtask fio-engine`.
#[derive(clap::Args)]
pub(crate) struct EngineOptions {
    #[command(flatten)]
    library: Options,
    /// Sources of the fio that loads the engine; by default those of the installed Debian package, fetched by apt-get
    #[arg(long, value_name = "DIR")]
    fio_source: Option<PathBuf>,
}

impl EngineOptions {
    /// Library and engine in a directory, built with this profile.
    pub(crate) fn to(out: &Path, profile: &str) -> Self {
        let library = Options { out: out.to_owned(), profile: profile.to_owned() };
        Self { library, fio_source: None }
    }
}

/// Options of `cargo xtask nixl-plugin`.
#[derive(clap::Args)]
pub(crate) struct PluginOptions {
    #[command(flatten)]
    library: Options,
    /// Where the NIXL that loads the plugin is installed, with its headers
    #[arg(long, value_name = "DIR")]
    nixl: PathBuf,
    /// Have NIXL's agent move memory through the plugin to a target and back
    #[arg(long)]
    test: bool,
}

/// Options of `cargo xtask c-header`.
#[derive(clap::Args)]
pub(crate) struct HeaderOptions {
    /// Only check that nvlane.h is current
    #[arg(long)]
    pub(crate) check: bool,
}

/// Builds and installs the library.
///
/// # Errors
/// A program is missing, or the build fails; or the library exports other functions than the list has.
pub(crate) fn install(options: &Options) -> Result<()> {
    let Options { out, profile } = options;
    let built = build(profile)?;
    lay_out(&built, out, profile != "dev")?;
    fs::copy(&built, out.join("lib/libnvlane.a"))?;
    Ok(())
}

/// Builds the static library with a profile, and returns its path.
pub(crate) fn build(profile: &str) -> Result<PathBuf> {
    if profile == "dev" {
        // Everything, as the tests have built it: on its own the package asks for other features of its dependencies, which
        // would be compiled once more.
        run(&mut cargo(&["build", "--locked", "--workspace", "--lib", "--test", "probe_host"]))?;
    } else {
        let mut build = cargo(&["build", "--locked", "--lib", "--package", PACKAGE, "--profile"]);
        run(build.arg(profile))?;
    }
    Ok(target_dir().join(if profile == "dev" { "debug" } else { profile }).join(STATIC))
}

/// Links the shared library of a static one, and lays it out with its header and the file of pkg-config.
pub(crate) fn lay_out(built: &Path, out: &Path, strips: bool) -> Result<()> {
    for (program, package) in [("cc", "gcc"), ("nm", "binutils")] {
        ensure!(is_installed(program), "no program {program}: sudo apt-get install {package}");
    }
    let folder = root().join(CRATE);
    for part in ["lib/pkgconfig", "include"] {
        fs::create_dir_all(out.join(part)).with_context(|| out.join(part).display().to_string())?;
    }
    let map = folder.join("nvlane.map");
    let listed = listed(&fs::read_to_string(&map)?);
    let shared = out.join("lib").join(SONAME);
    // Without -u nothing would be taken from the static library.
    let mut link = Command::new("cc");
    link.arg("-shared").arg("-o").arg(&shared).args(listed.iter().map(|name| format!("-Wl,-u,{name}")));
    link.arg(built).arg(format!("-Wl,--version-script={}", map.display()));
    link.args([&format!("-Wl,-soname,{SONAME}"), "-Wl,--gc-sections", "-Wl,-z,relro,-z,now,-z,defs"]);
    // Its thread and its values of threads outlive a dlclose.
    link.arg("-Wl,-z,nodelete");
    if strips {
        link.arg("-Wl,--strip-debug");
    }
    let output = link.args(SYSTEM_LIBRARIES).output().context("cannot run cc")?;
    ensure!(output.status.success(), "cc: {}", String::from_utf8_lossy(&output.stderr));
    let link = out.join("lib/libnvlane.so");
    let _ = fs::remove_file(&link);
    symlink(SONAME, &link)?;
    fs::copy(folder.join("nvlane.h"), out.join("include/nvlane.h"))?;
    let version = env!("CARGO_PKG_VERSION");
    let libraries = SYSTEM_LIBRARIES.join(" ");
    let text = PKG_CONFIG.replace("VERSION", version).replace("LIBRARIES", &libraries);
    fs::write(out.join("lib/pkgconfig/nvlane.pc"), text)?;
    check_exports(&shared, &listed)
}

/// Checks what a shared library exports: each name of the list with its version, and nothing else.
fn check_exports(shared: &Path, listed: &BTreeSet<String>) -> Result<()> {
    let symbols = text_of(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(shared))?;
    let exported: BTreeSet<String> =
        symbols.lines().filter_map(|line| line.rsplit(' ').next()).map(str::to_owned).collect();
    let mut wanted: BTreeSet<String> = listed.iter().map(|name| format!("{name}@@NVLANE_0")).collect();
    wanted.insert("NVLANE_0".to_owned());
    let differences: Vec<_> = exported.symmetric_difference(&wanted).cloned().collect();
    ensure!(
        differences.is_empty(),
        "{SONAME} does not export what {CRATE}/nvlane.map has: {}",
        differences.join(", ")
    );
    Ok(())
}

/// The functions in the list of versions.
fn listed(map: &str) -> BTreeSet<String> {
    let names = map.lines().filter_map(|line| line.trim().strip_suffix(';'));
    names.filter(|name| name.starts_with("nvlane_")).map(str::to_owned).collect()
}

/// Makes the header, or checks that it is current.
///
/// # Errors
/// cbindgen cannot be installed, or fails; or the header is not current.
pub(crate) fn header(options: &HeaderOptions) -> Result<()> {
    let cbindgen = deps::install_cbindgen()?;
    let folder = root().join(CRATE);
    let mut command = Command::new(cbindgen);
    command.current_dir(&folder).args(["--quiet", "--config", "cbindgen.toml", "--output", "nvlane.h", "."]);
    if options.check {
        command.arg("--verify");
        let output = command.output().context("cannot run cbindgen")?;
        ensure!(output.status.success(), "{CRATE}/nvlane.h is not current: cargo xtask c-header");
        return Ok(());
    }
    run(&mut command)
}

/// Builds and installs the library, and fio's engine beside it: lib/fio/nvlane.so.
///
/// # Errors
/// As [`install`]; there is no fio, or its sources are not to be had.
pub(crate) fn fio_engine(options: &EngineOptions) -> Result<()> {
    ensure!(is_installed("fio"), "no program fio: sudo apt-get install fio");
    let source = match &options.fio_source {
        Some(source) => source.clone(),
        None => deps::fio_source(&fio_version()?)?,
    };
    let source = source.canonicalize().with_context(|| source.display().to_string())?;
    ensure!(source.join("ioengines.h").is_file(), "{} has no sources of fio", source.display());
    if !source.join("config-host.h").is_file() {
        // What it finds on this machine decides how fio's structures are laid out.
        let mut configure = Command::new("./configure");
        let output = configure.current_dir(&source).output().context("cannot run fio's configure")?;
        let log = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "fio's configure: {log}");
    }
    install(&options.library)?;
    let out = options.library.out.canonicalize()?;
    fs::create_dir_all(out.join("lib/fio"))?;
    let mut compile = Command::new("cc");
    compile.current_dir(&source).args(["-Wall", "-Werror", "-O2", "-g", "-std=gnu99", "-D_GNU_SOURCE"]);
    compile.args(["-include", "config-host.h", "-I."]).arg("-I").arg(out.join("include"));
    compile.args(["-shared", "-fPIC", "-o"]).arg(out.join("lib/fio/nvlane.so"));
    compile.arg(root().join(CRATE).join("fio/nvlane.c")).arg("-L").arg(out.join("lib"));
    compile.args(["-lnvlane", "-Wl,-rpath,$ORIGIN/..", "-Wl,-z,nodelete"]);
    run(&mut compile)
}

/// Builds and installs the library, and NIXL's plugin beside it: lib/nixl/libplugin_NVLANE.so.
///
/// # Errors
/// As [`install`]; NIXL or a header that it needs is missing; or the test fails.
pub(crate) fn nixl_plugin(options: &PluginOptions) -> Result<()> {
    ensure!(is_installed("c++"), "no program c++: sudo apt-get install g++");
    let nixl = options.nixl.canonicalize().with_context(|| options.nixl.display().to_string())?;
    let headers = nixl.join("include");
    ensure!(
        headers.join("backend/backend_plugin.h").is_file(),
        "{} has no include/backend/backend_plugin.h: give the prefix that NIXL is installed in, with headers",
        nixl.display()
    );
    // Its headers include Abseil's.
    let absl = Command::new("pkg-config").args(["--cflags", "absl_log"]).output();
    let absl = absl.ok().filter(|output| output.status.success());
    let absl = absl.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let mut flags: Vec<String> = absl.split_whitespace().map(str::to_owned).collect();
    for part in [headers.clone(), headers.join("utils")] {
        flags.extend(["-isystem".to_owned(), part.display().to_string()]);
    }
    install(&options.library)?;
    let out = options.library.out.canonicalize()?;
    fs::create_dir_all(out.join("lib/nixl"))?;
    let mut compile = Command::new("c++");
    compile.args("-Wall -Wextra -Werror -O2 -g -std=c++20 -shared -fPIC -fvisibility=hidden".split(' '));
    compile.arg("-o").arg(out.join("lib/nixl/libplugin_NVLANE.so"));
    compile.arg(root().join(CRATE).join("nixl/nvlane.cpp")).args(&flags).arg("-I").arg(out.join("include"));
    compile.arg("-L").arg(out.join("lib"));
    compile.args(["-lnvlane", "-Wl,-rpath,$ORIGIN/..", "-Wl,-z,nodelete"]);
    run(&mut compile)?;
    if options.test {
        let triple = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
        let libraries = ["lib", "lib64", &triple].map(|part| nixl.join(part));
        let libraries = libraries.iter().find(|part| part.join("libnixl.so").is_file());
        let libraries = libraries.with_context(|| format!("{} has no libnixl.so", nixl.display()))?.display();
        flags.extend(["-lnixl", "-lnixl_build"].map(str::to_owned));
        flags.extend([format!("-L{libraries}"), format!("-Wl,-rpath,{libraries}")]);
        test_nixl_plugin(&out, &flags.join(" "))?;
    }
    Ok(())
}

/// Runs NIXL's agent with the plugin against a target.
fn test_nixl_plugin(prefix: &Path, flags: &str) -> Result<()> {
    let nvlane = program("nvlane")?;
    let dir = target_dir().join("clients/nixl");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let mut command = Command::new(&nvlane);
    command.args("--log warn target --listen 127.0.0.1:0 --nqn nqn.2016-06.io.nvlane:nixl".split(' '));
    command.args(["--namespace", "kv:ram:512M", "--run"]).arg(root().join("interop/nixl/agent.sh"));
    command.env("NVLANE", &nvlane).env("PREFIX", prefix).env("NIXL_FLAGS", flags).current_dir(&dir);
    run(&mut command)
}

/// The version of the installed fio.
fn fio_version() -> Result<String> {
    let says = output_of(Command::new("fio").arg("--version"))?;
    match says.strip_prefix("fio-") {
        Some(version) => Ok(version.to_owned()),
        None => bail!("fio --version says {says:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exported functions in the sources of the crate.
    fn in_sources() -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for file in fs::read_dir(root().join(CRATE).join("src")).expect("sources") {
            let text = fs::read_to_string(file.expect("readable").path()).expect("text");
            for part in text.split("#[unsafe(no_mangle)]").skip(1) {
                let (_, rest) = part.split_once("fn ").expect("a function follows");
                names.insert(rest.split('(').next().expect("a name").to_owned());
            }
        }
        names
    }

    #[test]
    fn the_list_of_versions_has_every_function_and_so_has_the_header() {
        let folder = root().join(CRATE);
        let listed = listed(&fs::read_to_string(folder.join("nvlane.map")).expect("the list"));
        assert!(listed.len() > 50);
        assert_eq!(in_sources(), listed, "left: sources, right: nvlane.map");
        let header = fs::read_to_string(folder.join("nvlane.h")).expect("the header");
        for name in &listed {
            assert!(header.contains(&format!("{name}(")), "{name} is not in nvlane.h: cargo xtask c-header");
        }
    }
}
