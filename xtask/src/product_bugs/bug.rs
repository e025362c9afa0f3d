//! A planted bug: a patch of the sources, and the test or simulation that must find it.
//!
//! `xtask/product-bugs/README.md` describes the files.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::command::root;

/// The environment variable that switches a bug on, by its name.
pub(super) const SWITCH: &str = "NVLANE_BUG";

/// A mistake.
pub(super) struct Bug {
    /// Name of the file, without its extension.
    pub(super) name: String,
    /// The folder: the promise of docs/reliability.md that the bug breaks, in lower case and with hyphens.
    pub(super) promise: String,
    pub(super) judge: Judge,
    /// A seed that found it, which is tried before all others.
    pub(super) seed: Option<u64>,
    path: PathBuf,
    hunks: Vec<Hunk>,
}

/// The program that must find a bug.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Judge {
    /// The simulation without key-value namespaces, within ten thousand seeds.
    Simulation,
    /// The simulation with key-value namespaces, likewise. Seeds that fail without the bug do not count.
    KeySimulation,
    /// This test of a package, within a minute: a unit test if `program` is empty, else one of that test program.
    Test { package: String, program: String, name: String },
    /// `cargo xtask syscalls`, which compares a target's durable calls with those that its commands must make.
    DurableCalls,
}

/// A place in the code to change.
#[derive(Default)]
struct Hunk {
    file: String,
    /// Whole lines, which must occur once.
    old: String,
    changes: Vec<Change>,
}

/// Text that replaces a part of other text.
struct Change {
    range: Range<usize>,
    text: String,
}

impl Judge {
    fn parse(text: &str) -> Result<Self> {
        let test = |package: &str, program: &str, name: &str| {
            let [package, program, name] = [package, program, name].map(str::to_owned);
            Self::Test { package, program, name }
        };
        Ok(match *text.split(' ').collect::<Vec<_>>() {
            ["simulation"] => Self::Simulation,
            ["key-simulation"] => Self::KeySimulation,
            ["durable-calls"] => Self::DurableCalls,
            ["unit-test", package, name] => test(package, "", name),
            ["test", package, program, name] => test(package, program, name),
            _ => bail!("there is no judge {text:?}"),
        })
    }
}

impl Bug {
    /// All bugs, by promise and name.
    pub(super) fn read_all() -> Result<Vec<Self>> {
        let mut bugs = Vec::new();
        for folder in fs::read_dir(root().join("xtask/product-bugs"))? {
            let folder = folder?.path();
            for file in folder.is_dir().then(|| fs::read_dir(&folder)).transpose()?.into_iter().flatten() {
                let path = file?.path();
                bugs.push(Self::read(&path).with_context(|| path.display().to_string())?);
            }
        }
        bugs.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(bugs)
    }

    fn read(path: &Path) -> Result<Self> {
        ensure!(path.extension().is_some_and(|extension| extension == "patch"), "is no .patch");
        Self::parse(path, &fs::read_to_string(path)?)
    }

    fn parse(path: &Path, patch: &str) -> Result<Self> {
        let (header, _) = patch.split_once("\n\n").context("has no header")?;
        let value = |key: &str| header.lines().find_map(|line| line.strip_prefix(key));
        let stem = |path: Option<&Path>| Some(path?.file_stem()?.to_str()?.to_owned());
        Ok(Self {
            name: stem(Some(path)).context("has no name")?,
            promise: stem(path.parent()).context("has no promise")?,
            judge: Judge::parse(value("Judge: ").context("names no judge")?)?,
            seed: value("Seed: ").map(str::parse).transpose()?,
            path: path.to_owned(),
            hunks: hunks(patch)?,
        })
    }

    /// The files that it changes.
    pub(super) fn files(&self) -> impl Iterator<Item = &str> {
        self.hunks.iter().map(|hunk| hunk.file.as_str())
    }

    /// Notes a seed that found it.
    pub(super) fn keep(&self, seed: u64) -> Result<()> {
        Ok(fs::write(&self.path, with_seed(&fs::read_to_string(&self.path)?, seed))?)
    }

    /// What it changes in a file's text.
    fn changes(&self, file: &str, text: &str) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        for hunk in self.hunks.iter().filter(|hunk| hunk.file == file) {
            let places = text.match_indices(&hunk.old).map(|(at, _)| at);
            let places: Vec<usize> = places.filter(|at| *at == 0 || text[..*at].ends_with('\n')).collect();
            let [at] = *places else {
                bail!(
                    "{}: {file} has these lines {} times, and should once:\n{}",
                    self.name,
                    places.len(),
                    hunk.old
                );
            };
            changes.extend(hunk.changes.iter().map(|Change { range, text }| {
                let text = text.replace("BUG", &format!("is_planted({:?})", self.name));
                difference(&hunk.old[range.clone()], &text, at + range.start)
            }));
        }
        Ok(changes)
    }
}

/// A patch with a seed that found its bug.
fn with_seed(patch: &str, seed: u64) -> String {
    let mut noted = String::new();
    for line in patch.lines().filter(|line| !line.starts_with("Seed: ")) {
        noted = noted + line + "\n";
        if line.starts_with("Judge: ") {
            noted += &format!("Seed: {seed}\n");
        }
    }
    noted
}

/// The hunks of a patch. Its other lines mean nothing.
fn hunks(patch: &str) -> Result<Vec<Hunk>> {
    let (mut file, mut hunks) = ("", Vec::<Hunk>::new());
    for line in patch.lines().skip_while(|line| !line.starts_with("--- a/")) {
        if let Some(path) = line.strip_prefix("--- a/") {
            file = path;
        } else if line.starts_with("@@") {
            hunks.push(Hunk { file: file.to_owned(), ..Hunk::default() });
        } else if let Some(hunk) = hunks.last_mut().filter(|_| !line.starts_with("+++ b/")) {
            hunk.push(line);
        }
    }
    let is_switched = |hunk: &Hunk| hunk.changes.iter().any(|change| change.text.contains("BUG"));
    ensure!(!hunks.is_empty() && hunks.iter().all(is_switched), "is not switched by BUG");
    Ok(hunks)
}

impl Hunk {
    /// Adds a line of the patch.
    fn push(&mut self, line: &str) {
        let at = self.old.len();
        let Some((kind @ (" " | "-" | "+"), line)) = line.split_at_checked(1) else { return };
        if kind != "+" {
            self.old += line;
            self.old.push('\n');
        }
        if kind == " " {
            return;
        }
        if self.changes.last().is_none_or(|change| change.range.end != at) {
            self.changes.push(Change { range: at..at, text: String::new() });
        }
        let change = self.changes.last_mut().expect("is there");
        change.range.end = self.old.len();
        if kind == "+" {
            change.text += line;
            change.text.push('\n');
        }
    }
}

/// The change from `old`, which begins at `start`, to `new`, without the text that they share at both ends: so several
/// bugs may change the same line.
fn difference(old: &str, new: &str, start: usize) -> Change {
    let front = shared_length(old.chars(), new.chars());
    let (old, new) = (&old[front..], &new[front..]);
    let back = shared_length(old.chars().rev(), new.chars().rev());
    let start = start + front;
    Change { range: start..start + old.len() - back, text: new[..new.len() - back].to_owned() }
}

/// Length of the text with which both begin, bytes.
fn shared_length(a: impl Iterator<Item = char>, b: impl Iterator<Item = char>) -> usize {
    a.zip(b).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}

/// The text of a file with every bug that is in it, each of which asks at run time whether it is on.
///
/// Each place is found in the text without any bug, so no bug depends on another.
pub(super) fn plant(bugs: &[Bug], file: &str, mut text: String) -> Result<String> {
    let mut changes = Vec::new();
    for bug in bugs {
        changes.extend(bug.changes(file, &text)?.into_iter().map(|change| (bug, change)));
    }
    changes.sort_by_key(|(_, change)| (change.range.start, change.range.end));
    for pair in changes.windows(2) {
        let [(a, before), (b, after)] = pair else { continue };
        ensure!(
            before.range.end <= after.range.start,
            "{} and {} change the same text of {file}",
            a.name,
            b.name
        );
    }
    for (_, Change { range, text: bad }) in changes.into_iter().rev() {
        text.replace_range(range, &bad);
    }
    Ok(text + &switch())
}

/// A function for the end of each changed file, which says whether a bug is on.
fn switch() -> String {
    format!(
        "
fn is_planted(bug: &str) -> bool {{
    static NAME: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    NAME.get_or_init(|| std::env::var({SWITCH:?}).ok()).as_deref() == Some(bug)
}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bug(name: &str, hunks: &str) -> Bug {
        let path = format!("reads/{name}.patch");
        let patch = format!("Judge: simulation\n\n--- a/lib.rs\n+++ b/lib.rs\n{hunks}");
        Bug::parse(Path::new(&path), &patch).unwrap()
    }

    #[test]
    fn bugs_of_one_line_are_planted_side_by_side() {
        let bugs = [
            bug("later", "@@ -7,2 +7,2 @@ fn f() {\n a\n-if b && c {\n+if b && (c || BUG) {\n"),
            bug("earlier", "@@\n-if b && c {\n+if (b || BUG) && c {\n"),
            bug("line", "@@\n+if BUG {}\n if b && c {\n"),
        ];
        let text = plant(&bugs, "lib.rs", "a\nif b && c {\n}\n".to_owned()).unwrap();
        let planted = "a\nif is_planted(\"line\") {}\nif (b || is_planted(\"earlier\")) && (c || is_planted(\"later\")) {\n}\n";
        assert_eq!(text, planted.to_owned() + &switch());
    }

    #[test]
    fn a_place_is_there_once_and_belongs_to_one_bug() {
        let refused =
            |bugs: &[Bug], text: &str| plant(bugs, "lib.rs", text.to_owned()).unwrap_err().to_string();
        let bugs = ["one", "other"].map(|name| bug(name, "@@\n-f(a);\n+f(if BUG { b } else { c });\n"));
        assert!(refused(&bugs, "  f(a);\n").contains("0 times"));
        assert!(refused(&bugs, "f(a);\nf(a);\n").contains("2 times"));
        assert!(refused(&bugs, "f(a);\n").contains("one and other change the same text"));
    }

    #[test]
    fn a_seed_takes_the_place_of_the_last_one() {
        let noted = with_seed("Judge: simulation\n\n Seed: x\n", 7);
        assert_eq!(noted, "Judge: simulation\nSeed: 7\n\n Seed: x\n");
        assert_eq!(with_seed(&noted, 8), noted.replace('7', "8"));
    }
}
