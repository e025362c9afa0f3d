//! Changed copies of the sources.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command::root;

/// Copies the sources, with `change` made to the content of each file. Files that are there already with the same
/// content are kept, so that they are not rebuilt; those of an earlier copy that the sources no longer have are
/// removed.
pub(crate) fn copy(to: &Path, change: impl Fn(&Path, Vec<u8>) -> Result<Vec<u8>>) -> Result<()> {
    let copy_file = |path: &Path| {
        let content = std::fs::read(root().join(path)).with_context(|| path.display().to_string())?;
        write_changed(&to.join(path), &change(path, content)?)
    };
    for file in ["Cargo.toml", "Cargo.lock"] {
        copy_file(Path::new(file))?;
    }
    let mut directories: Vec<PathBuf> = ["crates", "docs", "lab", "xtask"].map(PathBuf::from).to_vec();
    while let Some(directory) = directories.pop() {
        let Ok(entries) = std::fs::read_dir(root().join(&directory)) else { continue };
        remove_others(&to.join(&directory), &root().join(&directory))?;
        for entry in entries {
            let entry = entry?;
            let path = directory.join(entry.file_name());
            match entry.file_type()? {
                kind if kind.is_dir() && entry.file_name() != "corpus" => directories.push(path),
                kind if kind.is_file() => copy_file(&path)?,
                _ => {}
            }
        }
    }
    Ok(())
}

/// Removes the entries of a directory that the other one does not have.
fn remove_others(from: &Path, sources: &Path) -> Result<()> {
    for entry in std::fs::read_dir(from).into_iter().flatten() {
        let entry = entry?;
        match entry.file_type()? {
            _ if sources.join(entry.file_name()).exists() => {}
            kind if kind.is_dir() => std::fs::remove_dir_all(entry.path())?,
            _ => std::fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

/// Writes a file unless it has this content.
pub(crate) fn write_changed(file: &Path, content: &[u8]) -> Result<()> {
    if std::fs::read(file).is_ok_and(|there| there == content) {
        return Ok(());
    }
    std::fs::create_dir_all(file.parent().context("a file lies in a directory")?)?;
    std::fs::write(file, content).with_context(|| file.display().to_string())
}
