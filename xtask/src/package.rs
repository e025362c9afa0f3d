//! Packages of the programs: Debian packages, an OCI image, and their bill of materials.
//!
//! Times of files are those of the last commit, and paths of the build are mapped away. `reproducible` compares two builds.

mod bill;
mod check;
mod deb;
mod image;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::command::{cargo, output_of, root, run as run_command, target_dir, text_of};
use crate::{c_library, deps};

/// Options of `cargo xtask package`.
#[derive(clap::Args)]
pub(crate) struct Options {
    what: What,
    /// Directory of the packages
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Pack the programs and libnvlane_c.a of this directory, and build none
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// Debian packages: nvlane, nvlane-csi, nvlane-lab, the debug symbols, libnvlane0 and libnvlane-dev
    Deb,
    /// An OCI image with the program and the libraries that it needs
    Image,
    /// Install, upgrade, run and remove both on clean systems
    Check,
    /// Build everything twice, in two directories, and compare the bytes
    Reproducible,
}

/// The programs that are packed; the image has the first.
const PROGRAMS: [&str; 3] = ["nvlane", "nvlane-csi", "nvlane-lab"];

/// The profile of the library: a panic in it may not end the program that uses it.
const LIBRARY_PROFILE: &str = "bindings";

/// A program to be packed, with its debug symbols.
#[derive(Clone)]
struct Program {
    name: &'static str,
    path: PathBuf,
}

/// What the packages are made of.
#[derive(Clone)]
struct Sources {
    programs: Vec<Program>,
    /// The static library of which the shared one is linked.
    library: PathBuf,
    version: String,
    /// Time of all files, s since 1970.
    epoch_s: String,
}

/// Makes packages, or checks them.
pub(crate) fn run(options: &Options) -> Result<()> {
    let out = options.out.clone().unwrap_or_else(|| target_dir().join("package"));
    let sources = || match &options.programs {
        Some(dir) => Sources::new(dir, &dir.join(c_library::STATIC)),
        None => Sources::released(root(), &target_dir()),
    };
    match options.what {
        What::Deb => {
            for package in deb::build(&sources()?, &out, deb::XZ)? {
                println!("{}", package.display());
            }
        }
        What::Image => println!("{}", image::build(&sources()?, &out)?.display()),
        What::Check => check::run(&sources()?)?,
        What::Reproducible => reproducible()?,
    }
    Ok(())
}

/// The check of `make test`, with the programs that it has built before.
pub(crate) fn check_programs() -> Result<()> {
    let library = c_library::build("dev")?;
    check::run(&Sources::new(&target_dir().join("debug"), &library)?)
}

impl Sources {
    /// Builds the programs of a copy of the repository, for release: paths of this machine are not in them.
    fn released(root: &Path, target: &Path) -> Result<Self> {
        let home =
            std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME").map(|home| home + "/.cargo"));
        let home = home.context("neither CARGO_HOME nor HOME is set")?;
        let places = [(root.display().to_string(), "/nvlane"), (home, "/cargo")];
        let rust = places.iter().map(|(place, name)| format!("--remap-path-prefix={place}={name}"));
        let c = places.iter().map(|(place, name)| format!("-ffile-prefix-map={place}={name}"));
        let rust = rust.collect::<Vec<_>>().join("\u{1f}");
        // Those of .cargo/config.toml as well, which the environment replaces.
        // GCC names sections of s2n-tls for LTO at random, which the linker of the shared library reads.
        let c = c.chain(["-fno-asynchronous-unwind-tables".to_owned(), "-frandom-seed=nvlane".to_owned()]);
        let c = c.collect::<Vec<_>>().join(" ");
        let epoch_s = epoch_s()?;
        let build = |profile: &str, what: &[&str]| {
            let mut build = cargo(&["build", "--locked", "--profile", profile]);
            build.args(what).current_dir(root).env("CARGO_TARGET_DIR", target);
            // GCC's time of compilation, which is in mimalloc.
            build.env("SOURCE_DATE_EPOCH", &epoch_s);
            run_command(build.env("CARGO_ENCODED_RUSTFLAGS", &rust).env("CFLAGS", &c))
        };
        build("release", &PROGRAMS.map(|name| ["--package", name]).concat())?;
        build(LIBRARY_PROFILE, &["--lib", "--package", c_library::PACKAGE])?;
        Self::new(&target.join("release"), &target.join(LIBRARY_PROFILE).join(c_library::STATIC))
    }

    /// The programs of this directory, and a static library.
    fn new(dir: &Path, library: &Path) -> Result<Self> {
        ensure!(
            library.is_file(),
            "there is no {}: cargo build --lib --package {}",
            library.display(),
            c_library::PACKAGE
        );
        let programs = PROGRAMS.map(|name| Program { name, path: dir.join(name) });
        let says = output_of(Command::new(&programs[0].path).arg("--version"))?;
        let version = says.rsplit(' ').next().unwrap_or_default().to_owned();
        ensure!(version.starts_with(|digit: char| digit.is_ascii_digit()), "nvlane --version says '{says}'");
        let epoch_s = epoch_s()?;
        Ok(Self { programs: programs.into(), library: library.to_owned(), version, epoch_s })
    }
}

/// The time of the last commit, s: of all files in packages.
fn epoch_s() -> Result<String> {
    let of_commit = || output_of(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root()));
    let epoch_s = std::env::var("SOURCE_DATE_EPOCH").or_else(|_| of_commit());
    epoch_s.context("set SOURCE_DATE_EPOCH: this is not a clone of the repository")
}

impl Program {
    /// Writes the program without its symbols.
    fn strip(&self, to: &Path) -> Result<()> {
        create_parent(to)?;
        run_command(Command::new("strip").arg("-o").arg(to).arg(&self.path))
    }

    /// Writes the symbols alone, where debuggers look for them.
    fn write_symbols(&self, tree: &Path) -> Result<()> {
        let notes = text_of(Command::new("readelf").arg("--notes").arg(&self.path))?;
        let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
        let (first, rest) =
            id.and_then(|id| id.split_at_checked(2)).context("the program has no build id")?;
        let to = tree.join(format!("usr/lib/debug/.build-id/{first}/{rest}.debug"));
        create_parent(&to)?;
        let mut copy = Command::new("objcopy");
        run_command(copy.args(["--only-keep-debug", "--compress-debug-sections"]).arg(&self.path).arg(to))
    }

    /// What the program needs of the system: libraries, and versions of the symbols of glibc.
    fn needs(&self) -> Result<Needs> {
        let headers = text_of(Command::new("objdump").arg("-p").arg(&self.path))?;
        let words = || headers.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let libraries = words().filter(|line| line.first() == Some(&"NEEDED"));
        let libraries = libraries.filter_map(|line| Some((*line.get(1)?).to_owned())).collect();
        let parse = |version: &str| -> Option<(u32, u32)> {
            let (major, minor) = version.strip_prefix("GLIBC_")?.split_once('.')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        };
        // GLIBC_ABI_DT_RELR, for packed relocations, has no number: it came with 2.36.
        let relr = headers.contains("GLIBC_ABI_DT_RELR").then_some((2, 36));
        let glibc =
            words().flatten().filter_map(parse).chain(relr).max().context("it does not need glibc")?;
        Ok(Needs { libraries, glibc })
    }
}

/// Shared libraries, and the least version of glibc.
struct Needs {
    libraries: Vec<String>,
    glibc: (u32, u32),
}

fn create_parent(path: &Path) -> Result<()> {
    let parent = path.parent().context("a file has a parent")?;
    fs::create_dir_all(parent).with_context(|| parent.display().to_string())
}

/// Copies a file of the repository, with this mode.
fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    write(to, &fs::read(from).with_context(|| from.display().to_string())?, mode)
}

fn write(to: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    create_parent(to)?;
    fs::write(to, bytes).with_context(|| to.display().to_string())?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).with_context(|| to.display().to_string())
}

/// A new, empty directory at this path.
fn empty_dir(path: &Path) -> Result<()> {
    if path.exists() {
        fs::remove_dir_all(path).with_context(|| path.display().to_string())?;
    }
    fs::create_dir_all(path).with_context(|| path.display().to_string())
}

/// Builds from two clones in directories with other names, and compares all that comes out.
pub(crate) fn reproducible() -> Result<()> {
    deps::install_programs(deps::PACKAGE_PROGRAMS)?;
    let place = target_dir().join("reproducible");
    empty_dir(&place)?;
    let mut sums = Vec::new();
    for name in ["one", "the-other"] {
        let (clone, out) = (place.join(name), place.join("out").join(name));
        run_command(Command::new("git").args(["clone", "--quiet"]).arg(root()).arg(&clone))?;
        let sources = Sources::released(&clone, &clone.join("target"))?;
        deb::build(&sources, &out, deb::XZ)?;
        image::build(&sources, &out)?;
        fs::remove_dir_all(clone.join("target"))?;
        sums.push(text_of(Command::new("sh").args(["-c", "sha256sum *"]).current_dir(out))?);
    }
    println!("{}", sums[0]);
    ensure!(sums[0] == sums[1], "the second build differs:\n{}", sums[1]);
    Ok(fs::remove_dir_all(place)?)
}
