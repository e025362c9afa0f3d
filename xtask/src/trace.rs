//! Checks citations in code, tests and documents against the documents they cite.
//!
//! - Every citation (`wire` and a section, `hostile` and a row, a document's path and a section) resolves.
//! - Every section of the wire reference that is implemented is cited by product code and by a test.
//! - Every row of docs/hostile-inputs.md is checked as its table says, or the table gives a reason why not.
//! - Every path of the repository that a document names exists.

mod citation;
mod document;
mod number;
mod path;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::command::root;
use citation::{Citation, HOSTILE, Target, WIRE, citations, rows_of_names};
use document::{HostileRow, ProbeRow, Section, Status, hostile_rows, probe_rows, sections};
use number::{Number, RowId};
use path::named_paths;

#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Print every section and row with the places that cite it
    #[arg(long)]
    list: bool,
}

/// Checks the tree.
///
/// # Errors
/// There is an error; each has been printed on one line.
pub(crate) fn run(options: &Options) -> Result<()> {
    let tree = Tree::read(root())?;
    if options.list {
        tree.list();
    }
    let findings = tree.findings();
    for finding in &findings {
        eprintln!("{finding}");
    }
    if !findings.is_empty() {
        bail!(
            "{} citations or rows to correct; \"Citations\" in docs/testing.md says what must hold",
            findings.len()
        );
    }
    println!("{}", tree.summary());
    Ok(())
}

/// The citing side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Product,
    Test,
    /// Documents and tools: their citations must resolve, but satisfy no requirement.
    Other,
}

/// A place in the tree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    path: String,
    line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path, self.line)
    }
}

/// An error to correct.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    place: Place,
    text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.text)
    }
}

/// The contents of the tree that matter here.
#[derive(Default)]
struct Tree {
    /// Numbered sections by the path of their document.
    documents: BTreeMap<String, Vec<Section>>,
    rows: Vec<HostileRow>,
    probe: Vec<(Place, ProbeRow)>,
    citations: Vec<(Place, Role, Target)>,
    /// Paths in documents.
    paths: Vec<(Place, String)>,
    /// Those that do not exist.
    missing: BTreeSet<String>,
}

impl Tree {
    fn read(root: &Path) -> Result<Self> {
        let mut paths = Vec::new();
        walk(root, &mut paths)?;
        let mut tree = Self::default();
        for path in paths {
            let text =
                std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let path = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
            tree.add(&path, &text);
        }
        let missing = tree.paths.iter().filter(|(_, path)| !root.join(path).exists());
        tree.missing = missing.map(|(_, path)| path.clone()).collect();
        for document in [WIRE, HOSTILE] {
            if !tree.documents.contains_key(document) {
                bail!("{document} is missing");
            }
        }
        Ok(tree)
    }

    fn add(&mut self, path: &str, text: &str) {
        let place = |line| Place { path: path.to_owned(), line };
        let is_document = path.ends_with(".md");
        if is_document {
            self.documents.insert(path.to_owned(), sections(text));
            let named = named_paths(path, text).into_iter();
            self.paths.extend(named.map(|named| (place(named.line), named.path)));
        }
        if path == HOSTILE {
            self.rows = hostile_rows(text);
        }
        if path.starts_with("lab/probe/src/rows/") || path == "lab/probe/src/host/rows.rs" {
            self.probe.extend(probe_rows(text).into_iter().map(|row| (place(row.line), row)));
        }
        let tests = test_lines(path, text);
        let mut cited = citations(text, is_document.then_some(path));
        if path.contains("/tests/hostile/") {
            cited.extend(rows_of_names(text));
        }
        for Citation { line, target } in cited {
            let role = match role_of(path) {
                Role::Product if tests.iter().any(|range| range.contains(&line)) => Role::Test,
                role => role,
            };
            self.citations.push((place(line), role, target));
        }
    }

    /// All errors, in the order of the tree.
    fn findings(&self) -> Vec<Finding> {
        let mut findings = self.unresolved();
        findings.extend(self.uncited_sections());
        findings.extend(self.untried_rows());
        findings.extend(self.missing_paths());
        findings.sort();
        findings
    }

    fn unresolved(&self) -> Vec<Finding> {
        let rows: BTreeSet<RowId> = self.rows.iter().map(|row| row.id).collect();
        let texts = self.citations.iter().filter_map(|(place, _, target)| {
            let text = match target {
                Target::Section(document, number) => match self.documents.get(document) {
                    None => format!("{document}: there is no such document"),
                    Some(sections) if sections.iter().any(|section| section.number == *number) => return None,
                    Some(sections) => no_section(document, number, sections),
                },
                Target::Row(row) if rows.contains(row) => return None,
                Target::Row(row) => no_row(*row, &rows),
                Target::Unclear(text) => format!(
                    "`{text}` names no document or no number: `wire` or a document's path comes before the sign, \
                     the number after it, on one line"
                ),
            };
            Some(Finding { place: place.clone(), text })
        });
        texts.collect()
    }

    fn missing_paths(&self) -> impl Iterator<Item = Finding> {
        let missing = self.paths.iter().filter(|(_, path)| self.missing.contains(path));
        missing.map(|(place, path)| Finding { place: place.clone(), text: format!("{path} does not exist") })
    }

    fn uncited_sections(&self) -> Vec<Finding> {
        let sections = self.documents.get(WIRE).map(Vec::as_slice).unwrap_or_default();
        let mut findings = Vec::new();
        for section in sections {
            let mut find = |text| {
                let place = Place { path: WIRE.to_owned(), line: section.line };
                findings
                    .push(Finding { place, text: format!("{} {}: {text}", section.number, section.title) });
            };
            let has_parts = sections
                .iter()
                .any(|other| other.number != section.number && other.number.is_within(&section.number));
            if sections.iter().any(|other| other.number == section.number && other.line < section.line) {
                find("there are two sections of this number".to_owned());
            }
            match &section.status {
                Some(Ok(Status::Implemented)) => {
                    for (role, by) in [(Role::Product, "product code"), (Role::Test, "a test")] {
                        if self.places(&section.number, role).next().is_none() {
                            find(format!("implemented, but no citation in {by}"));
                        }
                    }
                }
                Some(Ok(Status::Background)) => {}
                Some(Err(status)) => find(format!("`Status: {status}` is none of the statuses at the top")),
                None if has_parts => {}
                None => find("no line `Status: ...`".to_owned()),
            }
        }
        findings
    }

    fn untried_rows(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for row in &self.rows {
            let mut find = |text: String| {
                let place = Place { path: HOSTILE.to_owned(), line: row.line };
                findings.push(Finding { place, text: format!("{}: {text}", row.id) });
            };
            if self.rows.iter().any(|other| other.id == row.id && other.line < row.line) {
                find("there are two rows of this id".to_owned());
            }
            let probed = self.probe.iter().find(|(_, probe)| probe.id == row.id);
            let by = match &row.checked_by {
                Ok(by) => by,
                Err(cell) => {
                    find(format!("`{cell}`: say `probe`, `test`, `probe, test` or `nothing: REASON`"));
                    continue;
                }
            };
            match probed {
                None if by.probe => find("the probe has no such row".to_owned()),
                Some((place, ProbeRow { is_skipped: true, .. })) if by.probe => {
                    find(format!("the probe always skips it ({place})"));
                }
                Some((place, ProbeRow { is_skipped: false, .. })) if !by.probe => {
                    find(format!("the probe tries it ({place}), but the table does not say so"));
                }
                _ => {}
            }
            let tests = self.places_of_row(row.id, Role::Test);
            match (by.test, by.nothing, tests.first()) {
                (true, _, None) => {
                    find(format!("no test cites it; write `hostile {}` beside one that tries it", row.id));
                }
                (_, true, Some(place)) => {
                    find(format!("a test tries it ({place}), but the table says `nothing`"));
                }
                _ => {}
            }
        }
        for (place, probe) in &self.probe {
            if !self.rows.iter().any(|row| row.id == probe.id) {
                let text = format!("{} is not in {HOSTILE}", probe.id);
                findings.push(Finding { place: place.clone(), text });
            }
        }
        findings
    }

    /// The places that cite a section of the wire reference, or a part of it.
    fn places(&self, section: &Number, role: Role) -> impl Iterator<Item = &Place> {
        let cited = self.citations.iter().filter(move |(_, by, target)| {
            let is_within = match target {
                Target::Section(document, number) => document == WIRE && number.is_within(section),
                _ => false,
            };
            *by == role && is_within
        });
        cited.map(|(place, ..)| place)
    }

    fn places_of_row(&self, row: RowId, role: Role) -> Vec<&Place> {
        let cited =
            self.citations.iter().filter(|(_, by, target)| *by == role && *target == Target::Row(row));
        cited.map(|(place, ..)| place).collect()
    }

    fn list(&self) {
        let show = |role: &str, places: &[&Place]| {
            let places: Vec<_> = places.iter().map(ToString::to_string).collect();
            if !places.is_empty() {
                println!("    {role}: {}", places.join(" "));
            }
        };
        for section in self.documents.get(WIRE).into_iter().flatten() {
            println!("{WIRE} {} {}", section.number, section.title);
            show("product", &self.places(&section.number, Role::Product).collect::<Vec<_>>());
            show("tests", &self.places(&section.number, Role::Test).collect::<Vec<_>>());
        }
        for row in &self.rows {
            println!("{HOSTILE} {}", row.id);
            let probed = self.probe.iter().filter(|(_, probe)| probe.id == row.id && !probe.is_skipped);
            show("probe", &probed.map(|(place, _)| place).collect::<Vec<_>>());
            show("product", &self.places_of_row(row.id, Role::Product));
            show("tests", &self.places_of_row(row.id, Role::Test));
        }
    }

    fn summary(&self) -> String {
        let sections = self.documents.get(WIRE).map(Vec::as_slice).unwrap_or_default();
        let implemented =
            sections.iter().filter(|section| section.status == Some(Ok(Status::Implemented))).count();
        let checked = |is_meant: fn(&document::CheckedBy) -> bool| {
            self.rows.iter().filter(|row| row.checked_by.as_ref().is_ok_and(is_meant)).count()
        };
        format!(
            "{} citations resolve; {implemented} of {} sections of {WIRE} are implemented, cited by code and tests; \
             of {} hostile inputs {} are tried by the probe, {} by tests, {} by nothing for a reason",
            self.citations.len(),
            sections.len(),
            self.rows.len(),
            checked(|by| by.probe),
            checked(|by| by.test),
            checked(|by| by.nothing),
        )
    }
}

fn no_section(document: &str, number: &Number, sections: &[Section]) -> String {
    let nearest = sections.iter().min_by_key(|section| number.distance(&section.number));
    let nearest = nearest.map_or("it has no numbered sections".to_owned(), |section| {
        format!("the nearest is {} ({})", section.number, section.title)
    });
    format!("{document} has no section {number}; {nearest}")
}

fn no_row(row: RowId, rows: &BTreeSet<RowId>) -> String {
    let of_letter = rows.iter().filter(|other| other.letter == row.letter);
    let nearest = of_letter.min_by_key(|other| other.number.abs_diff(row.number));
    let nearest =
        nearest.map_or("it has no row of this letter".to_owned(), |row| format!("the nearest is {row}"));
    format!("{HOSTILE} has no row {row}; {nearest}")
}

/// Files with citations: Rust, shell and Markdown, except build output, hidden files and fuzzing corpora.
fn walk(directory: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    let context = || format!("cannot list {}", directory.display());
    let mut entries: Vec<_> =
        std::fs::read_dir(directory).with_context(context)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().with_context(context)?;
        if kind.is_dir() {
            // A folder named `target` may be a crate: cargo's has a tag file.
            let is_built = entry.path().join("CACHEDIR.TAG").exists();
            if !is_built && !name.starts_with('.') && name != "corpus" {
                walk(&entry.path(), paths)?;
            }
        } else if kind.is_file() && [".rs", ".sh", ".md"].iter().any(|end| name.ends_with(end)) {
            paths.push(entry.path());
        }
    }
    Ok(())
}

fn role_of(path: &str) -> Role {
    let is_in = |folders: &[&str]| folders.iter().any(|folder| path.starts_with(folder));
    let has_part = |part: &str| path.split('/').any(|other| other == part);
    let is_test_file =
        path.ends_with("_tests.rs") || has_part("tests") || has_part("benches") || has_part("tests.rs");
    if is_in(&["lab/peer/", "lab/probe/", "lab/sim/", "lab/torture/", "lab/fuzz/", "interop/"])
        || is_test_file
    {
        Role::Test
    } else if is_in(&["crates/"]) {
        Role::Product
    } else {
        Role::Other
    }
}

/// Lines of the test modules in a source file.
fn test_lines(path: &str, text: &str) -> Vec<std::ops::RangeInclusive<usize>> {
    let mut ranges = Vec::new();
    if !path.ends_with(".rs") {
        return ranges;
    }
    let lines: Vec<&str> = text.lines().collect();
    let mut line = 0;
    while line < lines.len() {
        let item =
            lines[line + 1..].iter().find(|next| next.starts_with(|first: char| first.is_alphabetic()));
        let is_module = lines[line] == "#[cfg(test)]"
            && item.is_some_and(|item| item.starts_with("mod ") && item.ends_with('{'));
        if is_module {
            let end =
                lines[line..].iter().position(|next| *next == "}").map_or(lines.len(), |end| line + end + 1);
            ranges.push(line + 1..=end);
            line = end;
        } else {
            line += 1;
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inserts the sign and the word, so that these lines cite nothing themselves.
    fn tree(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        for (path, text) in files {
            tree.add(path, &text.replace('$', "\u{a7}").replace('@', "hostile"));
        }
        tree
    }

    fn shown(tree: &Tree) -> Vec<String> {
        tree.findings().iter().map(ToString::to_string).collect()
    }

    const REFERENCE: &str = "## 2. PDUs\n### 2.1 Header\nStatus: implemented.\n## 3. Peers\nStatus: peers.\n";
    const ROWS: &str = "| D5 | x | probe |\n| C15 | x | nothing: memory is fixed at start |\n";
    const PROBE: (&str, &str) = ("lab/probe/src/rows/a.rs", "[\n    row(\"D5\", z),\n];\n");
    const CODE: (&str, &str) =
        ("crates/protocol/wire/src/a.rs", "/// wire $2.1\n#[cfg(test)]\nmod tests {\n    /// wire $2.1\n}\n");

    #[test]
    fn a_tree_whose_citations_hold_has_nothing_to_correct() {
        let tree = tree(&[(WIRE, REFERENCE), (HOSTILE, ROWS), PROBE, CODE]);
        assert_eq!(shown(&tree), [""; 0]);
        assert_eq!(
            tree.summary(),
            "2 citations resolve; 1 of 3 sections of docs/wire.md are implemented, cited by code and tests; \
             of 2 hostile inputs 1 are tried by the probe, 0 by tests, 1 by nothing for a reason"
        );
    }

    #[test]
    fn what_does_not_resolve_is_shown_with_its_place_and_what_is_near() {
        let wrong = (
            "crates/x/src/b.rs",
            "/// wire $2.9\n/// @ D6\n/// @ Z1\n/// $3\n/// docs/none.md $1\n/// docs/hostile-inputs.md $1\n",
        );
        let tree = tree(&[(WIRE, REFERENCE), (HOSTILE, ROWS), PROBE, CODE, wrong]);
        assert_eq!(
            shown(&tree),
            [
                "crates/x/src/b.rs:1: docs/wire.md has no section 2.9; the nearest is 2.1 (Header)",
                "crates/x/src/b.rs:2: docs/hostile-inputs.md has no row D6; the nearest is D5",
                "crates/x/src/b.rs:3: docs/hostile-inputs.md has no row Z1; it has no row of this letter",
                "crates/x/src/b.rs:4: `/// \u{a7}3` names no document or no number: `wire` or a document's path comes \
                 before the sign, the number after it, on one line",
                "crates/x/src/b.rs:5: docs/none.md: there is no such document",
                "crates/x/src/b.rs:6: docs/hostile-inputs.md has no section 1; it has no numbered sections",
            ]
        );
    }

    #[test]
    fn an_implemented_section_needs_a_citation_in_code_and_one_in_a_test() {
        let only = |path, text| shown(&tree(&[(WIRE, REFERENCE), (HOSTILE, ROWS), PROBE, (path, text)]));
        let no_test = "docs/wire.md:2: 2.1 Header: implemented, but no citation in a test";
        let no_code = "docs/wire.md:2: 2.1 Header: implemented, but no citation in product code";
        assert_eq!(only("crates/x/src/b.rs", "/// wire $2.1\n"), [no_test]);
        assert_eq!(only("crates/x/tests/b.rs", "/// wire $2.1\n"), [no_code]);
        assert_eq!(only("lab/sim/src/b.rs", "/// wire $2.1\n"), [no_code]);
        assert_eq!(only("xtask/src/b.rs", "/// wire $2.1\n"), [no_test, no_code]);
        assert_eq!(only("docs/b.md", "wire $2.1\n"), [no_test, no_code]);
        // A citation of a section covers more than its part, and one of a part less than the section.
        assert_eq!(only("crates/x/src/b.rs", "/// wire $2\n"), [no_test, no_code]);
    }

    #[test]
    fn sections_say_their_status_once() {
        let odd = "## 1. A\n### 1.1 B\nStatus: perhaps.\n### 1.1 C\n";
        assert_eq!(
            shown(&tree(&[(WIRE, odd), (HOSTILE, "")])),
            [
                "docs/wire.md:2: 1.1 B: `Status: perhaps.` is none of the statuses at the top",
                "docs/wire.md:4: 1.1 C: no line `Status: ...`",
                "docs/wire.md:4: 1.1 C: there are two sections of this number",
            ]
        );
    }

    #[test]
    fn rows_are_held_to_what_they_say_of_themselves() {
        let rows = "| D1 | x | probe |\n| D2 | x | probe |\n| D3 | x | test |\n| D4 | x | test |\n| D5 | x | test |\n\
                    | D6 | x | nothing: for a reason |\n| D7 | x | maybe |\n| D7 | x | nothing: for a reason |\n";
        let probe = (
            "lab/probe/src/rows/a.rs",
            "[\n row(\"D2\", |_| { skipped(\"\") }),\n row(\"D5\", z),\n\
             row(\"D9\", z),\n];\n",
        );
        let tests = ("crates/x/tests/b.rs", "/// @ D4, D5\n/// @ D6\n");
        assert_eq!(
            shown(&tree(&[(WIRE, "## 1. A\nStatus: peers\n"), (HOSTILE, rows), probe, tests])),
            [
                "docs/hostile-inputs.md:1: D1: the probe has no such row",
                "docs/hostile-inputs.md:2: D2: the probe always skips it (lab/probe/src/rows/a.rs:2)",
                "docs/hostile-inputs.md:3: D3: no test cites it; write `hostile D3` beside one that tries it",
                "docs/hostile-inputs.md:5: D5: the probe tries it (lab/probe/src/rows/a.rs:3), but the table does not say so",
                "docs/hostile-inputs.md:6: D6: a test tries it (crates/x/tests/b.rs:2), but the table says `nothing`",
                "docs/hostile-inputs.md:7: D7: `maybe`: say `probe`, `test`, `probe, test` or `nothing: REASON`",
                "docs/hostile-inputs.md:8: D7: there are two rows of this id",
                "lab/probe/src/rows/a.rs:4: D9 is not in docs/hostile-inputs.md",
            ]
        );
    }

    #[test]
    fn this_tree_holds() {
        let tree = Tree::read(root()).expect("the tree can be read");
        assert_eq!(shown(&tree), [""; 0]);
        for path in [
            "crates/target/subsystem/src/control_plane/control/connect.rs",
            "crates/protocol/wire/src/pdu.rs",
            "lab/fuzz/src/host_lane.rs",
        ] {
            assert!(tree.citations.iter().any(|(place, ..)| place.path == path), "{path} is read");
        }
    }

    #[test]
    fn a_module_of_tests_ends_with_its_brace() {
        let text = "fn a() {}\n#[cfg(test)]\nfn only_in_tests() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n";
        assert_eq!(test_lines("crates/x/src/a.rs", text), [4..=7]);
        assert_eq!(test_lines("docs/a.md", text), []);
    }
}
