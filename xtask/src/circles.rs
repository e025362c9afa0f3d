//! Import circles between the files of a crate, and dependencies of packages against the order of their folders.
//!
//! Imports go downward. A file that heads a folder (`lane.rs` beside `lane/`) owns its contents: the head and its parts
//! may use each other, and from outside they count as one. Other files and folders must not use each other in a circle,
//! except for two files of one folder if one of them says why in a comment:
//!
//! ```text
//! // circle with shared.rs: an event names the link that it comes from
//! ```
//!
//! Test modules are ignored. An import of a re-exported name counts as a use of the file that defines the name.

mod graph;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::command::{packages, root};
use crate::floors;
use source::{Edges, File, FileIndex, Source};

/// Checks every crate of the repository.
///
/// # Errors
/// A package depends on one of a higher floor; or there is a circle that no comment explains; it has been printed with the names that tie its files.
pub(crate) fn run() -> Result<()> {
    floors::check()?;
    let mut report = Report::default();
    for path in roots()? {
        let read = |path: &Path| std::fs::read_to_string(root().join(path));
        report.add(&Source::read(&read, &path)?);
    }
    for finding in &report.findings {
        eprintln!("{finding}");
    }
    if !report.findings.is_empty() {
        bail!(
            "{} circles to untie: move what both sides name into a file below them, or let the file on top own it and pass it down. \
             Where two files of one folder are one idea, say why in one of them: `// circle with FILE: REASON`",
            report.findings.len()
        );
    }
    println!(
        "no import circles in {} files of {} crate roots, but {} that a comment explains",
        report.file_count, report.root_count, report.explained_count
    );
    Ok(())
}

/// The findings in all crates.
#[derive(Default)]
struct Report {
    findings: Vec<Finding>,
    explained_count: usize,
    file_count: usize,
    root_count: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Finding {
    /// A circle without an explanation.
    Circle(Circle),
    /// A comment in `file` explains a circle with `other` that does not exist.
    NoCircle { file: String, other: String },
}

/// Files or folders that use each other.
#[derive(Debug, PartialEq, Eq)]
struct Circle {
    /// Paths of the files involved.
    files: Vec<String>,
    /// File, file, and the names that the first takes from the second.
    uses: Vec<(String, String, Vec<String>)>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Circle(circle) => {
                write!(f, "circle of {} files", circle.files.len())?;
                for (from, to, names) in &circle.uses {
                    write!(f, "\n  {from} -> {to}: {}", names.join(", "))?;
                }
                Ok(())
            }
            Self::NoCircle { file, other } => {
                write!(f, "{file} explains a circle with {other}, but there is none: remove the comment")
            }
        }
    }
}

impl Report {
    fn add(&mut self, source: &Source) {
        self.root_count += 1;
        self.file_count += source.files().len();
        let mut explained = BTreeSet::new();
        for (files, circle) in circles(source) {
            if let [one, other] = *files
                && let Some(reasons) = explanations(&source.files()[one], &source.files()[other])
            {
                self.explained_count += 1;
                explained.extend(reasons);
            } else {
                self.findings.push(Finding::Circle(circle));
            }
        }
        for file in source.files() {
            for (other, _) in &file.reasons {
                if !explained.contains(&(file.path.clone(), other.clone())) {
                    self.findings.push(Finding::NoCircle { file: file.path.clone(), other: other.clone() });
                }
            }
        }
    }
}

/// The comments that explain a circle of two files of one folder, by both files; `None` if there are none.
fn explanations(one: &File, other: &File) -> Option<Vec<(String, String)>> {
    let name =
        |file: &File| Path::new(&file.path).file_name().unwrap_or_default().to_string_lossy().into_owned();
    if Path::new(&one.path).parent() != Path::new(&other.path).parent() {
        return None;
    }
    let mut found = Vec::new();
    for (file, with) in [(one, name(other)), (other, name(one))] {
        if file.reasons.iter().any(|(named, _)| *named == with) {
            found.push((file.path.clone(), with));
        }
    }
    (!found.is_empty()).then_some(found)
}

/// The circles of a crate, each with its files.
fn circles(source: &Source) -> Vec<(Vec<FileIndex>, Circle)> {
    let files = source.files();
    let edges = source.edges();
    // Each use is assigned to the innermost folder that holds both files: there it is an edge between files or folders.
    let mut folders: BTreeMap<&[String], Vec<(FileIndex, FileIndex)>> = BTreeMap::new();
    for (from, to) in edges.keys() {
        let folder = common(&files[*from].modules, &files[*to].modules);
        // The head of a folder and its parts may use each other. A crate's root is no head: it only lists the modules.
        let is_of_head = files[*from].modules == folder || files[*to].modules == folder;
        if folder.is_empty() || !is_of_head {
            folders.entry(folder).or_default().push((*from, *to));
        }
    }
    folders.into_iter().flat_map(|(folder, uses)| circles_in(files, &edges, folder.len(), &uses)).collect()
}

/// The circles directly inside one folder, `depth` modules below the root.
fn circles_in(
    files: &[File],
    edges: &Edges,
    depth: usize,
    uses: &[(FileIndex, FileIndex)],
) -> Vec<(Vec<FileIndex>, Circle)> {
    let part = |file: FileIndex| {
        let modules = &files[file].modules;
        &modules[..modules.len().min(depth + 1)]
    };
    let parts: BTreeSet<&[String]> = uses.iter().flat_map(|(from, to)| [part(*from), part(*to)]).collect();
    let parts: Vec<&[String]> = parts.into_iter().collect();
    let index = |file: FileIndex| parts.binary_search(&part(file)).expect("collected above");
    let graph = uses.iter().map(|(from, to)| (index(*from), index(*to))).collect();
    let circle_of = |circle: Vec<usize>| {
        let is_within = |file: FileIndex| circle.contains(&index(file));
        let within: Vec<_> = uses.iter().filter(|(from, to)| is_within(*from) && is_within(*to)).collect();
        let members: BTreeSet<FileIndex> = within.iter().flat_map(|(from, to)| [*from, *to]).collect();
        let path = |file: FileIndex| files[file].path.clone();
        let circle = Circle {
            files: members.iter().map(|file| path(*file)).collect(),
            uses: within
                .iter()
                .map(|(from, to)| (path(*from), path(*to), edges[&(*from, *to)].iter().cloned().collect()))
                .collect(),
        };
        (members.into_iter().collect(), circle)
    };
    graph::circles(parts.len(), &graph).into_iter().map(circle_of).collect()
}

/// The common prefix of two lists.
fn common<'a>(one: &'a [String], other: &[String]) -> &'a [String] {
    let count = one.iter().zip(other).take_while(|(one, other)| one == other).count();
    &one[..count]
}

/// The roots of all crates, relative to the top of the repository.
fn roots() -> Result<Vec<PathBuf>> {
    let packages = packages()?;
    let roots =
        packages.iter().flat_map(|package| ["lib.rs", "main.rs"].map(|name| package.join("src").join(name)));
    Ok(roots.filter(|path| root().join(path).is_file()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings in a crate with these files.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let read = |path: &Path| {
            let text =
                files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| (*text).to_owned());
            text.ok_or_else(|| std::io::ErrorKind::NotFound.into())
        };
        let mut report = Report::default();
        report.add(&Source::read(&read, Path::new(files[0].0)).unwrap());
        report.findings.iter().map(ToString::to_string).collect()
    }

    const PAIR: &str = "circle of 2 files\n  a.rs -> b.rs: B\n  b.rs -> a.rs: A";

    #[test]
    fn two_files_that_import_each_other_are_shown_with_the_names_that_tie_them() {
        let with = |a, b| found(&[("lib.rs", "mod a;\nmod b;\n"), ("a.rs", a), ("b.rs", b)]);
        assert_eq!(
            with("use crate::b::B; pub struct A(B);", "use crate::{a::{self, A}, }; pub struct B(A);"),
            [PAIR]
        );
        assert_eq!(with("use crate::b::B; pub struct A(B);", "pub struct B;"), [""; 0]);
        assert_eq!(
            with("pub struct A(crate::b::B);", "pub struct B; fn f() { super::a::A::new(); }"),
            [PAIR]
        );
        assert_eq!(
            with(
                "pub struct A; fn f() { assert!(x == crate::b::B); }",
                "pub struct B; fn f(_: impl Fn(crate::a::A)) {}"
            ),
            [PAIR]
        );
        // Glob and renamed imports are resolved to the file that defines the name.
        assert_eq!(
            with("use crate::b::*; pub struct A(B);", "use crate::a::A as C; pub struct B(C);"),
            [PAIR]
        );
    }

    #[test]
    fn tests_and_other_crates_tie_nothing() {
        let b = "#[cfg(test)]\nmod tests { use crate::a::A; }\nuse a::A; pub struct B;";
        let files = [("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b::B; pub struct A(B);"), ("b.rs", b)];
        assert_eq!(found(&files), [""; 0]);
        let b = "pub struct B; impl B { #[cfg(test)] fn f(_: crate::a::A) {} }";
        let files = [files[0], files[1], ("b.rs", b)];
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn a_re_export_leads_to_the_file_that_defines_the_name() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use b::B;"),
            ("a.rs", "pub struct A(crate::B);"),
            ("b.rs", "pub struct B;"),
        ];
        assert_eq!(found(&files), [""; 0]);
        let files = [files[0], files[1], ("b.rs", "pub struct B(crate::a::A);")];
        assert_eq!(found(&files), [PAIR]);
    }

    #[test]
    fn a_folder_is_one_with_its_head_and_parts_may_use_the_head() {
        let head = ("a.rs", "mod part; use part::P; pub struct A(P);");
        let part = ("a/part.rs", "use super::A; pub struct P(Box<A>);");
        assert_eq!(found(&[("lib.rs", "mod a;"), head, part]), [""; 0]);
        let files = [("lib.rs", "mod a; mod b;"), head, ("a/part.rs", "pub struct P(crate::b::B);")];
        let b = ("b.rs", "use crate::a::A; pub struct B(A);");
        let across = "circle of 3 files\n  b.rs -> a.rs: A\n  a/part.rs -> b.rs: B";
        let mut shown = found(&[files[0], files[1], files[2], b]);
        shown.iter_mut().for_each(|text| {
            let mut lines: Vec<&str> = text.lines().collect();
            lines[1..].sort_by_key(|line| line.len());
            *text = lines.join("\n");
        });
        assert_eq!(shown, [across]);
    }

    #[test]
    fn parts_of_a_folder_and_the_root_of_a_crate_are_in_circles_too() {
        let files = [
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod one; mod two;"),
            ("a/one.rs", "use super::two::Two; pub struct One(Two);"),
            ("a/two.rs", "use super::one::One; pub struct Two(One);"),
        ];
        assert_eq!(
            found(&files),
            ["circle of 2 files\n  a/one.rs -> a/two.rs: Two\n  a/two.rs -> a/one.rs: One"]
        );
        let files = [("main.rs", "mod a; struct M(a::A);"), ("a.rs", "pub struct A(crate::M);")];
        assert_eq!(found(&files), ["circle of 2 files\n  main.rs -> a.rs: A\n  a.rs -> main.rs: M"]);
    }

    #[test]
    fn a_pair_of_one_folder_may_explain_itself_and_no_other_circle_may() {
        let explained = "// circle with b.rs: they are one idea\nuse crate::b::B; pub struct A(B);";
        let b = ("b.rs", "pub struct B(crate::a::A);");
        assert_eq!(found(&[("lib.rs", "mod a; mod b;"), ("a.rs", explained), b]), [""; 0]);
        let stale = "a.rs explains a circle with b.rs, but there is none: remove the comment";
        assert_eq!(
            found(&[("lib.rs", "mod a; mod b;"), ("a.rs", explained), ("b.rs", "pub struct B;")]),
            [stale]
        );
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", explained),
            ("b.rs", "mod c; pub struct B;"),
            ("b/c.rs", "struct C(crate::a::A);"),
        ];
        let shown = found(&files);
        assert!(shown[0].starts_with("circle of 3 files") && shown[1] == stale, "{shown:?}");
    }
}
