//! Debian packages: trees of files, packed by dpkg-deb.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::{Program, Sources, bill, empty_dir, install, write};
use crate::command::{output_of, root, run as run_command};
use crate::{c_library, deps};

/// Where a program is by hand, and where it is in a package.
const BY_HAND: &str = "/usr/local/bin/";
const PACKED: &str = "/usr/bin/";

/// Packages without a program: the shared library, what compilers need of it, and the symbols of the programs.
const LIBRARY: &str = "libnvlane0";
const DEVELOPMENT: &str = "libnvlane-dev";
const SYMBOLS: &str = "nvlane-dbgsym";

/// Completions: shell, file.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/NAME"),
    ("zsh", "usr/share/zsh/vendor-completions/_NAME"),
    ("fish", "usr/share/fish/vendor_completions.d/NAME.fish"),
];

/// How packages are compressed.
pub(super) const XZ: &str = "xz";

/// Builds the packages with this compression, and returns their paths.
pub(super) fn build(sources: &Sources, out: &Path, compression: &str) -> Result<Vec<PathBuf>> {
    deps::install_programs(deps::PACKAGE_PROGRAMS)?;
    let architecture = output_of(Command::new("dpkg").arg("--print-architecture"))?;
    let trees = out.join("trees");
    empty_dir(&trees)?;
    let multiarch = output_of(Command::new("cc").arg("-print-multiarch"))?;
    let library = trees.join("library");
    c_library::lay_out(&sources.library, &library, true)?;
    let control = read("packaging/deb/control")?;
    let mut packages = Vec::new();
    for stanza in control.split("\n\n") {
        let name = stanza.lines().next().and_then(|line| line.strip_prefix("Package: "));
        let name = name.context("packaging/deb/control: a stanza begins with Package:")?;
        let tree = trees.join(name);
        let program = sources.programs.iter().find(|program| program.name == name);
        let mut depends = String::new();
        match (name, program) {
            (_, Some(program)) => {
                lay_out(program, sources, &tree)?;
                depends = self::depends(program)?;
            }
            (LIBRARY, None) => depends = lay_out_library(&library, &multiarch, sources, &tree)?,
            (DEVELOPMENT, None) => lay_out_development(&library, &multiarch, &tree)?,
            (SYMBOLS, None) => {
                sources.programs.iter().try_for_each(|program| program.write_symbols(&tree))?;
            }
            _ => bail!("packaging/deb/control: xtask/src/package/deb.rs has no files for {name}"),
        }
        write_documents(name, sources, &tree)?;
        let mut text =
            stanza.trim_end().replace("@DEPENDS@", &depends).replace("@VERSION@", &sources.version);
        text += &format!(
            "\nVersion: {}\nArchitecture: {architecture}\nInstalled-Size: {}\nMaintainer: {MAINTAINER}\n",
            sources.version,
            size_of(&tree)?.div_ceil(1024)
        );
        if !text.contains("\nPriority: ") {
            text += "Priority: optional\n";
        }
        write(&tree.join("DEBIAN/control"), text.as_bytes(), 0o644)?;
        // Whatever the umask is.
        run_command(Command::new("chmod").args(["-R", "u+rwX,go+rX,go-w"]).arg(&tree))?;
        let package = out.join(format!("{name}_{}_{architecture}.deb", sources.version));
        let mut pack = Command::new("dpkg-deb");
        // More threads would divide what is compressed by their number.
        pack.args(["--build", "--root-owner-group", "--threads-max=1"]).arg(format!("-Z{compression}"));
        pack.arg(&tree).arg(&package);
        run_command(pack.env("SOURCE_DATE_EPOCH", &sources.epoch_s))?;
        packages.push(package);
    }
    fs::remove_dir_all(trees)?;
    Ok(packages)
}

/// Who answers for the packages.
const MAINTAINER: &str = "The nvlane authors <nvlane@localhost>";

fn read(path: &str) -> Result<String> {
    fs::read_to_string(root().join(path)).with_context(|| path.to_owned())
}

/// The packages of the libraries that a program needs.
fn depends(program: &Program) -> Result<String> {
    let needs = program.needs()?;
    let (major, minor) = needs.glibc;
    let mut packages = vec![format!("libc6 (>= {major}.{minor})")];
    for library in &needs.libraries {
        match library.as_str() {
            "libgcc_s.so.1" => packages.push("libgcc-s1".into()),
            name if ["libc.so.", "libm.so.", "ld-linux"].iter().any(|start| name.starts_with(start)) => {}
            name => bail!("{} needs {name}: name its package in xtask/src/package/deb.rs", program.name),
        }
    }
    Ok(packages.join(", "))
}

/// The files of a program's package.
fn lay_out(program: &Program, sources: &Sources, tree: &Path) -> Result<()> {
    let name = program.name;
    program.strip(&tree.join("usr/bin").join(name))?;
    let manuals = tree.join("usr/share/man/man1");
    fs::create_dir_all(&manuals)?;
    run_command(Command::new(&program.path).args(["man", "--out"]).arg(&manuals))?;
    // `nvlane csi` is the program nvlane-csi, whose package has the page of that name.
    let is_anothers = |page: &PathBuf| {
        super::PROGRAMS.iter().any(|other| *other != name && page.ends_with(format!("{other}.1")))
    };
    let pages = fs::read_dir(&manuals)?.map(|page| Ok(page?.path())).collect::<Result<Vec<_>>>()?;
    let (others, own): (Vec<_>, Vec<_>) = pages.into_iter().partition(is_anothers);
    others.iter().try_for_each(fs::remove_file)?;
    compress(own)?;
    for (shell, file) in COMPLETIONS {
        let script = Command::new(&program.path).args(["completions", shell]).output()?.stdout;
        write(&tree.join(file.replace("NAME", name)), &script, 0o644)?;
    }
    let documents = tree.join("usr/share/doc").join(name);
    write(&documents.join("sbom.cdx.json"), &bill::bill_of(name, &sources.version)?, 0o644)?;
    if name != "nvlane" {
        return Ok(());
    }
    for script in ["postinst", "prerm", "postrm"] {
        install(&root().join("packaging/deb").join(script), &tree.join("DEBIAN").join(script), 0o755)?;
    }
    for entry in fs::read_dir(root().join("packaging"))? {
        let path = entry?.path();
        let is_unit =
            path.extension().is_some_and(|kind| kind == "service" || kind == "socket" || kind == "timer");
        if let Some(unit) = path.file_name().filter(|_| is_unit) {
            let text = fs::read_to_string(&path)?.replace(BY_HAND, PACKED);
            write(&tree.join("usr/lib/systemd/system").join(unit), text.as_bytes(), 0o644)?;
        }
    }
    install(&root().join("packaging/nvlane.logrotate"), &tree.join("etc/logrotate.d/nvlane"), 0o644)?;
    write(&tree.join("DEBIAN/conffiles"), b"/etc/logrotate.d/nvlane\n", 0o644)?;
    fs::create_dir_all(tree.join("etc/nvlane"))?;
    let example = "crates/target/subsystem/examples/nvlane.toml";
    install(&root().join(example), &documents.join("examples/nvlane.toml"), 0o644)
}

/// The files of the shared library's package, of a library that was laid out. Returns the packages that it needs.
fn lay_out_library(library: &Path, multiarch: &str, sources: &Sources, tree: &Path) -> Result<String> {
    let shared = Program { name: LIBRARY, path: library.join("lib").join(c_library::SONAME) };
    shared.strip(&tree.join("usr/lib").join(multiarch).join(c_library::SONAME))?;
    let bill = bill::bill_of(c_library::PACKAGE, &sources.version)?;
    write(&tree.join("usr/share/doc").join(LIBRARY).join("sbom.cdx.json"), &bill, 0o644)?;
    write(&tree.join("DEBIAN/triggers"), b"activate-noawait ldconfig\n", 0o644)?;
    let shlibs = format!("libnvlane 0 {LIBRARY} (>= {})\n", sources.version);
    write(&tree.join("DEBIAN/shlibs"), shlibs.as_bytes(), 0o644)?;
    depends(&shared)
}

/// The files of its development package, without a static library: programs that link one are not upgraded with the package.
fn lay_out_development(library: &Path, multiarch: &str, tree: &Path) -> Result<()> {
    install(&library.join("include/nvlane.h"), &tree.join("usr/include/nvlane.h"), 0o644)?;
    let libraries = tree.join("usr/lib").join(multiarch);
    let path = library.join("lib/pkgconfig/nvlane.pc");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let text = text.replace("${pcfiledir}/../..", "${pcfiledir}/../../..");
    let text = text.replace("libdir=${prefix}/lib", &format!("libdir=${{prefix}}/lib/{multiarch}"));
    let lines = text.lines().filter(|line| !line.starts_with("Libs.private:"));
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    write(&libraries.join("pkgconfig/nvlane.pc"), text.as_bytes(), 0o644)?;
    Ok(symlink(c_library::SONAME, libraries.join("libnvlane.so"))?)
}

/// What every package says of itself.
fn write_documents(name: &str, sources: &Sources, tree: &Path) -> Result<()> {
    let documents = tree.join("usr/share/doc").join(name);
    let license = read("LICENSE-MIT")?;
    let indented: String =
        license.lines().map(|line| format!(" {}\n", if line.is_empty() { "." } else { line })).collect();
    let copyright = read("packaging/deb/copyright")?.replace("@MIT@\n", &indented);
    write(&documents.join("copyright"), copyright.as_bytes(), 0o644)?;
    let date = output_of(Command::new("date").args(["-u", "-R", "-d"]).arg(format!("@{}", sources.epoch_s)))?;
    let entry = format!(
        "{name} ({}) stable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n -- {MAINTAINER}  {date}\n",
        sources.version
    );
    for (file, text) in [("changelog.Debian", entry), ("CHANGELOG.md", read("CHANGELOG.md")?)] {
        write(&documents.join(file), text.as_bytes(), 0o644)?;
        compress([documents.join(file)])?;
    }
    Ok(())
}

fn compress(files: impl IntoIterator<Item = PathBuf>) -> Result<()> {
    let status = Command::new("gzip").args(["-9", "--no-name", "--force"]).args(files).status()?;
    ensure!(status.success(), "gzip: {status}");
    Ok(())
}

/// Bytes of all files of a tree.
fn size_of(tree: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(tree).with_context(|| tree.display().to_string())? {
        let entry = entry?;
        bytes += if entry.file_type()?.is_dir() { size_of(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(bytes)
}
