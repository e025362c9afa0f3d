//! An OCI image: the program, the libraries that it needs, and a user without rights, in one layer. Nothing but tar, gzip
//! and sha256sum makes it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Sources, bill, empty_dir, install, write};
use crate::command::{output_of, run as run_command, text_of};
use crate::deps;

/// The user of the image, as images without a shell have it.
const USER: &str = "65532:65532";

/// What the target serves if nothing else is said.
const COMMAND: [&str; 3] = ["target", "--config", "/etc/nvlane/nvlane.toml"];

/// Builds the image as an archive of an OCI layout, and returns its path.
pub(super) fn build(sources: &Sources, out: &Path) -> Result<PathBuf> {
    deps::install_programs(deps::PACKAGE_PROGRAMS)?;
    let layout = out.join("layout");
    let tree = out.join("tree");
    empty_dir(&layout)?;
    empty_dir(&tree)?;
    let program = &sources.programs[0];
    program.strip(&tree.join("usr/bin/nvlane"))?;
    write(
        &tree.join("usr/share/doc/nvlane/sbom.cdx.json"),
        &bill::bill_of("nvlane", &sources.version)?,
        0o644,
    )?;
    // Where Debian has them: /lib and /lib64 are links.
    fs::create_dir_all(tree.join("usr/lib64"))?;
    symlink("usr/lib", tree.join("lib"))?;
    symlink("usr/lib64", tree.join("lib64"))?;
    for library in libraries(&program.path)? {
        let to = library.strip_prefix("/usr").unwrap_or(&library);
        let real = library.canonicalize().with_context(|| library.display().to_string())?;
        install(&real, &tree.join("usr").join(to.strip_prefix("/")?), 0o755)?;
    }
    write(&tree.join("etc/passwd"), b"root:x:0:0::/:/\nnvlane:x:65532:65532::/var/lib/nvlane:/\n", 0o644)?;
    write(&tree.join("etc/group"), b"root:x:0:\nnvlane:x:65532:\n", 0o644)?;
    for dir in ["etc/nvlane", "var/lib/nvlane", "run/nvlane", "tmp"] {
        fs::create_dir_all(tree.join(dir))?;
    }
    run_command(Command::new("chmod").args(["-R", "u+rwX,go+rX,go-w"]).arg(&tree))?;
    run_command(Command::new("chmod").arg("1777").arg(tree.join("tmp")))?;

    let layer = out.join("layer.tar");
    pack(&tree, &["etc", "lib", "lib64", "tmp", "usr"], "0", sources, &layer, "--create")?;
    pack(&tree, &["var/lib/nvlane", "run/nvlane"], "65532", sources, &layer, "--append")?;
    let plain = digest(&layer)?;
    run_command(Command::new("gzip").args(["-9", "--no-name", "--force"]).arg(&layer))?;
    let layer =
        put(&layout, &fs::read(out.join("layer.tar.gz"))?, "application/vnd.oci.image.layer.v1.tar+gzip")?;
    let created = output_of(
        Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ", "-d"]).arg(format!("@{}", sources.epoch_s)),
    )?;
    let architecture = output_of(Command::new("dpkg").arg("--print-architecture"))?;
    let config = json!({
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": USER,
            "ExposedPorts": { "4420/tcp": {}, "8009/tcp": {} },
            "Entrypoint": ["/usr/bin/nvlane"],
            "Cmd": COMMAND,
            "WorkingDir": "/var/lib/nvlane",
            "Volumes": { "/var/lib/nvlane": {} },
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "nvlane",
                "org.opencontainers.image.version": sources.version,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [plain] },
    });
    let config = put(&layout, &serde_json::to_vec(&config)?, "application/vnd.oci.image.config.v1+json")?;
    let media_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest =
        json!({ "schemaVersion": 2, "mediaType": media_type, "config": config, "layers": [layer] });
    let mut manifest = put(&layout, &serde_json::to_vec(&manifest)?, media_type)?;
    manifest["annotations"] =
        json!({ "org.opencontainers.image.ref.name": format!("nvlane:{}", sources.version) });
    let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
    write(&layout.join("index.json"), &serde_json::to_vec(&index)?, 0o644)?;
    write(&layout.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#, 0o644)?;

    let image = out.join(format!("nvlane-{}-{architecture}.oci.tar", sources.version));
    pack(&layout, &["oci-layout", "index.json", "blobs"], "0", sources, &image, "--create")?;
    fs::remove_file(out.join("layer.tar.gz"))?;
    fs::remove_dir_all(tree)?;
    fs::remove_dir_all(layout)?;
    Ok(image)
}

/// The shared libraries of a program, and its loader, as paths of this machine.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let text = text_of(Command::new("ldd").arg(program))?;
    let paths = text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    Ok(paths.map(PathBuf::from).collect())
}

/// Archives files of a directory: sorted, of one time and one owner.
fn pack(dir: &Path, files: &[&str], owner: &str, sources: &Sources, to: &Path, action: &str) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--format=ustar", "--numeric-owner", action, "--file"])
        .arg(to)
        .arg("--directory")
        .arg(dir);
    tar.arg(format!("--owner={owner}")).arg(format!("--group={owner}"));
    run_command(tar.arg(format!("--mtime=@{}", sources.epoch_s)).args(files))
}

fn digest(path: &Path) -> Result<String> {
    let line = output_of(Command::new("sha256sum").arg(path))?;
    let sum = line.split_whitespace().next().context("sha256sum prints a sum")?;
    Ok(format!("sha256:{sum}"))
}

/// Adds a blob to the layout, and returns its descriptor.
fn put(layout: &Path, bytes: &[u8], media_type: &str) -> Result<Value> {
    let blobs = layout.join("blobs/sha256");
    let new = blobs.join("new");
    write(&new, bytes, 0o644)?;
    let digest = digest(&new)?;
    fs::rename(&new, blobs.join(digest.trim_start_matches("sha256:")))?;
    Ok(json!({ "mediaType": media_type, "digest": digest, "size": bytes.len() }))
}
