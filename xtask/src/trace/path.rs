//! Paths of the repository in a document.

use std::path::{Component, Path, PathBuf};

/// Top-level folders: a word of a document that begins with one of these is a path.
const FOLDERS: [&str; 6] = ["crates/", "docs/", "interop/", "lab/", "packaging/", "xtask/"];

/// A path as a document names it, from the root of the repository.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NamedPath {
    pub(super) line: usize,
    pub(super) path: String,
}

/// The paths in the text of a document: words such as `crates/protocol/wire/src/pdu.rs`, and targets of links to files.
///
/// A word with a placeholder (`crates/NAME/src/*.rs`) counts up to the folder before it.
pub(super) fn named_paths(document: &str, text: &str) -> Vec<NamedPath> {
    let folder = Path::new(document).parent().unwrap_or(Path::new(""));
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut add = |path: String| found.push(NamedPath { line: index + 1, path });
        for folder in FOLDERS {
            for (at, _) in line.match_indices(folder) {
                if line[..at].ends_with(|before: char| is_of_path(before)) {
                    continue;
                }
                let path = path_at(&line[at..]);
                // The name of a folder alone, as in "crates/ and docs/", is not checked.
                if path.len() > folder.len() {
                    add(path.trim_end_matches('/').to_owned());
                }
            }
        }
        for (at, start) in line.match_indices("](") {
            let target = line[at + start.len()..].split([')', '#']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains(':') {
                add(normal(&folder.join(target)));
            }
        }
    }
    found
}

/// The path at the start of the text, without a sentence's full stop and without a last part that is a placeholder.
fn path_at(text: &str) -> &str {
    let end = text.find(|next: char| !is_of_path(next)).unwrap_or(text.len());
    let (path, rest) = text.split_at(end);
    let last = path.rsplit('/').next().unwrap_or_default();
    let is_placeholder =
        rest.starts_with(['*', '{', '<', '$', '…', '[']) || last.chars().all(|c| c.is_ascii_uppercase());
    match path.rfind('/') {
        Some(slash) if is_placeholder => &path[..=slash],
        _ => path.trim_end_matches('.'),
    }
}

/// `@` is in the names of systemd's templates.
fn is_of_path(character: char) -> bool {
    character.is_ascii_alphanumeric() || "_-./@".contains(character)
}

/// The path without `.` and `..`.
fn normal(path: &Path) -> String {
    let mut parts = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(parts.pop()),
            Component::CurDir => {}
            part => parts.push(part),
        }
    }
    parts.to_string_lossy().replace('\\', "/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        named_paths("docs/design/a.md", text).into_iter().map(|named| named.path).collect()
    }

    #[test]
    fn words_and_links_are_paths_from_the_root() {
        assert_eq!(
            paths("See `crates/protocol/wire/src/pdu.rs` and crates/protocol/wire."),
            ["crates/protocol/wire/src/pdu.rs", "crates/protocol/wire"]
        );
        assert_eq!(
            paths("[b](b.md#part), [c](../c.md), [d](https://a.b/c)"),
            ["docs/design/b.md", "docs/c.md"]
        );
        assert_eq!(paths("a folder of crates/, or nvlane-crates/x and ../docs/y"), [""; 0]);
    }

    #[test]
    fn placeholders_count_up_to_their_folder() {
        assert_eq!(
            paths("`lab/probe/src/rows/*.rs` `interop/lab/{a,b}.sh`"),
            ["interop/lab", "lab/probe/src/rows"]
        );
        assert_eq!(paths("`docs/design/NAME`"), ["docs/design"]);
    }

    #[test]
    fn a_path_has_its_line() {
        let named = named_paths("README.md", "\n[guide](docs/guide/a.md)\n");
        assert!(named.iter().all(|named| named.line == 2 && named.path == "docs/guide/a.md"), "{named:?}");
    }
}
