//! The Python module `nvlane`: its wheel and source distribution, and its tests on a target.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::command::{cargo, program_path, root, run, target_dir};
use crate::deps::virtual_environment;

/// Builds wheels.
const MATURIN: &str = "maturin==1.16.0";

/// What the tests of the module use.
const TEST_PACKAGES: [&str; 6] = [
    "pytest==8.4.2",
    "numpy==2.2.6; python_version < '3.14'",
    "numpy==2.3.5; python_version >= '3.14'",
    "fsspec==2025.9.0",
    "mypy==1.18.2",
    "typing_extensions==4.15.0",
];

/// What the tests with models use: several gigabytes, so that no other step installs them.
const TORCH_PACKAGES: [&str; 4] = ["pytest==8.4.2", "numpy==2.2.6", "torch==2.15.0", "transformers==5.24.0"];

/// Options of `cargo xtask wheel`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Directory for the wheel and the source distribution [default: target/wheels]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Interpreter to build for, such as python3.10 or python3.14t [default: one wheel for Python 3.11 and later]
    #[arg(long, value_name = "PYTHON")]
    interpreter: Option<String>,
    /// Then install the wheel in a new environment and run the tests of the module on it; and install the source
    /// distribution in another one, which compiles it
    #[arg(long)]
    check: bool,
}

impl Options {
    /// With the tests.
    pub(crate) fn checked() -> Self {
        Self { out: None, interpreter: None, check: true }
    }
}

fn package() -> PathBuf {
    root().join("crates/bindings/python")
}

/// Builds the wheel and the source distribution.
pub(crate) fn build(options: &Options) -> Result<()> {
    let place = target_dir().join("tools/maturin");
    let python = environment(&place, &[MATURIN])?;
    let out = options.out.clone().unwrap_or_else(|| target_dir().join("wheels"));
    let out = std::path::absolute(&out).with_context(|| out.display().to_string())?;
    let built = out.join("built");
    let _ = fs::remove_dir_all(&built);
    fs::create_dir_all(&built).with_context(|| built.display().to_string())?;
    let maturin = |verb: &str| {
        let mut command = Command::new(&python);
        command.args(["-m", "maturin", verb, "--out"]).arg(&built).current_dir(package());
        command
    };
    let mut wheel = maturin("build");
    wheel.args(["--profile", "bindings", "--strip", "--locked"]);
    if let Some(interpreter) = &options.interpreter {
        wheel.args(["--no-default-features", "--interpreter", interpreter]);
    }
    run(&mut wheel)?;
    run(&mut maturin("sdist"))?;
    let mut made = Vec::new();
    for entry in fs::read_dir(&built)? {
        let entry = entry?;
        let to = out.join(entry.file_name());
        fs::rename(entry.path(), &to).with_context(|| to.display().to_string())?;
        println!("{} ({:.1} MB)", to.display(), to.metadata()?.len() as f64 / 1e6);
        made.push(to);
    }
    fs::remove_dir(&built)?;
    if options.check {
        check(&made, options.interpreter.as_deref().unwrap_or("python3"))?;
    }
    Ok(())
}

/// Installs each of these in a new environment of an interpreter. The wheel's runs the tests.
fn check(made: &[PathBuf], interpreter: &str) -> Result<()> {
    for path in made {
        let is_wheel = path.extension().is_some_and(|extension| extension == "whl");
        let place = target_dir().join("tools/wheel-check");
        virtual_environment(&place, interpreter)?;
        let python = place.join("bin/python");
        pip(&python, &[&path.display().to_string()])?;
        let mut import = Command::new(&python);
        run(import.args(["-c", "import nvlane; print(nvlane.__version__)"]).current_dir(&place))?;
        if is_wheel {
            pip(&python, &TEST_PACKAGES)?;
            let nvlane = crate::command::program("nvlane")?;
            let mut types = Command::new(&python);
            run(types
                .args(["-m", "mypy", "--strict", "--no-warn-return-any", "-p", "nvlane"])
                .current_dir(&place))?;
            run(tests(&python, &nvlane).current_dir(&place))?;
        }
    }
    Ok(())
}

fn pip(python: &Path, packages: &[&str]) -> Result<()> {
    let mut command = Command::new(python);
    run(command.args(["-m", "pip", "--quiet", "--disable-pip-version-check", "install"]).args(packages))
}

/// An environment with these packages, made again if it has others. Returns its interpreter.
fn environment(place: &Path, packages: &[&str]) -> Result<PathBuf> {
    let python = place.join("bin/python");
    let (stamp, wanted) = (place.join("installed"), packages.join("\n"));
    if !fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        virtual_environment(place, "python3")?;
        pip(&python, packages)?;
        fs::write(&stamp, wanted).with_context(|| stamp.display().to_string())?;
    }
    Ok(python)
}

/// The tests of the module, but those that need torch.
fn tests(python: &Path, nvlane: &Path) -> Command {
    let mut command = pytest(python, nvlane, "error");
    let tests = package().join("tests");
    command.arg("--ignore").arg(tests.join("torch")).arg(tests);
    command
}

/// A run of tests that still have to be named.
fn pytest(python: &Path, nvlane: &Path, warnings: &str) -> Command {
    let mut command = Command::new(python);
    command.args(["-W", warnings, "-m", "pytest", "-q", "-p", "no:cacheprovider"]);
    command.env("NVLANE", nvlane).env("NVLANE_EXAMPLES", root().join("examples/python"));
    command.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null());
    command
}

/// Runs the tests on the module as the workspace builds it, without a wheel, whose own build would compile everything
/// again; and checks its types. Returns whether all passed.
pub(crate) fn run_tests(nvlane: &Path, dir: &Path) -> Result<bool> {
    let python = environment(&target_dir().join("tools/python-tests"), &TEST_PACKAGES)?;
    install_module(dir)?;
    let mut types = Command::new(&python);
    types
        .args(["-m", "mypy", "--strict", "--no-warn-return-any", "--cache-dir"])
        .arg(dir.join("types"))
        .args(["-p", "nvlane"]);
    run_all(dir, &mut [types, tests(&python, nvlane)])
}

/// Runs the tests with models of transformers in the same way. Returns whether all passed.
pub(crate) fn run_torch_tests(nvlane: &Path, dir: &Path) -> Result<bool> {
    let python = environment(&target_dir().join("tools/python-torch"), &TORCH_PACKAGES)?;
    install_module(dir)?;
    // Warnings of torch and transformers are not ours.
    let mut tests = pytest(&python, nvlane, "default");
    tests.arg(package().join("tests/torch"));
    run_all(dir, &mut [tests])
}

/// Builds the module as the workspace does, into a directory for `PYTHONPATH`.
fn install_module(dir: &Path) -> Result<()> {
    run(&mut cargo(&["build", "--locked", "--workspace", "--lib", "--test", "probe_host"]))?;
    let module = dir.join("nvlane");
    fs::create_dir_all(&module)?;
    for entry in fs::read_dir(package().join("python/nvlane"))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), module.join(entry.file_name()))?;
        }
    }
    let library = program_path("lib_nvlane.so");
    fs::copy(&library, module.join("_nvlane.abi3.so")).with_context(|| library.display().to_string())?;
    Ok(())
}

/// Runs commands on the module in a directory, up to the first that fails. Returns whether none did.
fn run_all(dir: &Path, commands: &mut [Command]) -> Result<bool> {
    let log = File::create(dir.join("log"))?;
    for command in commands {
        command.env("PYTHONPATH", dir).current_dir(dir).stdout(log.try_clone()?).stderr(log.try_clone()?);
        let status =
            command.status().with_context(|| format!("cannot run {}", command.get_program().display()))?;
        if !status.success() {
            return Ok(false);
        }
    }
    Ok(true)
}
