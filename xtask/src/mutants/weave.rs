//! All mutants of a file in one text, each switched on by its number: one build for all of them.
//!
//! ```text
//! a < b                     ──▶  (if crate::is_mutant(7) { a <= b } else { a < b })
//! fn f() -> u32 { … }       ──▶  fn f() -> u32 { if crate::is_mutant(8) { return 0; } … }
//! Some(it) => …             ──▶  Some(it) if !crate::is_mutant(9) => …
//! ```
//!
//! Constants and `const fn` cannot ask for the number, so their mutants are left out.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use anyhow::Result;
use serde::Deserialize;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A mutant, as `cargo mutants --list --json` prints it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Mutant {
    pub(super) name: String,
    pub(super) file: String,
    genre: Genre,
    replacement: String,
    span: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
enum Genre {
    BinaryOperator,
    UnaryOperator,
    FnValue,
    MatchArm,
    MatchArmGuard,
    StructField,
}

#[derive(Clone, Debug, Deserialize)]
struct Span {
    start: Point,
}

/// Line and column, from one.
#[derive(Clone, Debug, Deserialize)]
struct Point {
    line: usize,
    column: usize,
}

/// A file with its mutants.
pub(super) struct Woven {
    pub(super) text: String,
    /// Bytes of `text` that belong to these mutants only.
    branches: Vec<(Range<usize>, usize)>,
    /// Bytes of `text` that these mutants change, with the unchanged branch.
    sites: Vec<(Range<usize>, usize)>,
}

impl Woven {
    /// The mutants that are in it.
    pub(super) fn numbers(&self) -> impl Iterator<Item = usize> {
        self.branches.iter().map(|(_, number)| *number)
    }

    /// The mutants in which an error at this byte lies: that of the branch, or all that could be its cause.
    pub(super) fn culprits(&self, at: usize) -> Vec<usize> {
        let around = |ranges: &[(Range<usize>, usize)]| {
            let found = ranges.iter().filter(|(range, _)| range.contains(&at));
            let least = found.clone().map(|(range, _)| range.len()).min();
            found.filter(|(range, _)| Some(range.len()) == least).map(|(_, number)| *number).collect()
        };
        let in_branch: Vec<usize> = around(&self.branches);
        if in_branch.is_empty() { around(&self.sites) } else { in_branch }
    }
}

/// Weaves mutants with their numbers into the text of their file. Those that have no place in it are left out.
///
/// # Errors
/// The text is no Rust.
pub(super) fn weave(text: &str, mutants: &[(usize, &Mutant)]) -> Result<Woven> {
    let mut places = Places::default();
    places.visit_file(&syn::parse_file(text)?);
    let line_starts: Vec<usize> =
        std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
    let byte_of = |point: &Point| {
        let start = line_starts[point.line - 1];
        start + text[start..].chars().take(point.column - 1).map(char::len_utf8).sum::<usize>()
    };
    let (mut inserts, mut regions) = (Vec::new(), Vec::new());
    let mut choices: BTreeMap<(usize, usize), Vec<(usize, String)>> = BTreeMap::new();
    for &(number, mutant) in mutants {
        match places.found.get(&(mutant.genre, byte_of(&mutant.span.start))) {
            None => {}
            Some(Place::Part { whole, part }) => {
                let changed =
                    [&text[whole.start..part.start], &mutant.replacement, &text[part.end..whole.end]];
                choices.entry((whole.start, whole.end)).or_default().push((number, changed.concat()));
            }
            Some(Place::Body(body)) => {
                let replacement = &mutant.replacement;
                let early = format!("if crate::is_mutant({number}) {{ return {replacement}; }} ");
                inserts.push(Insert { at: body.start, rank: (1, 0), pieces: vec![(early, Some(number))] });
                regions.push((body.clone(), number));
            }
            Some(Place::Arm { pattern_end, guard: None }) => {
                let guard = format!(" if !crate::is_mutant({number})");
                inserts.push(Insert { at: *pattern_end, rank: (1, 0), pieces: vec![(guard, Some(number))] });
            }
            Some(Place::Arm { guard: Some(guard), .. }) => {
                let open = format!("!crate::is_mutant({number}) && (");
                inserts.push(Insert { at: guard.start, rank: (1, 0), pieces: vec![(open, Some(number))] });
                inserts.push(Insert {
                    at: guard.end,
                    rank: (0, isize::MAX),
                    pieces: vec![(")".into(), None)],
                });
            }
        }
    }
    for ((start, end), choices) in choices {
        let mut pieces = vec![("(".to_owned(), None)];
        for (number, changed) in choices {
            pieces.push((format!("if crate::is_mutant({number}) {{ "), None));
            pieces.push((changed, Some(number)));
            pieces.push((" } else ".to_owned(), None));
            regions.push((start..end, number));
        }
        pieces.push(("{ ".to_owned(), None));
        let length = isize::try_from(end - start)?;
        inserts.push(Insert { at: start, rank: (2, -length), pieces });
        inserts.push(Insert { at: end, rank: (0, length), pieces: vec![(" })".to_owned(), None)] });
    }
    Ok(insert(text, inserts, &regions))
}

/// A text to be inserted.
struct Insert {
    at: usize,
    /// Order among those of one place: first the ends of short expressions, then of longer ones, then the beginnings of
    /// long ones, then of shorter ones.
    rank: (u8, isize),
    /// The parts, and the mutant to which one belongs.
    pieces: Vec<(String, Option<usize>)>,
}

fn insert(text: &str, mut inserts: Vec<Insert>, regions: &[(Range<usize>, usize)]) -> Woven {
    inserts.sort_by_key(|insert| (insert.at, insert.rank));
    let mut woven = Woven { text: String::new(), branches: Vec::new(), sites: Vec::new() };
    let mut done = 0;
    // By how much the text behind each place has moved.
    let mut shifts = Vec::new();
    for insert in inserts {
        woven.text += &text[done..insert.at];
        done = insert.at;
        for (piece, number) in insert.pieces {
            let start = woven.text.len();
            woven.text += &piece;
            woven.branches.extend(number.map(|number| (start..woven.text.len(), number)));
        }
        shifts.push((done, woven.text.len() - done));
    }
    woven.text += &text[done..];
    let shift = |before: usize| shifts[..before].last().map_or(0, |(_, shift)| *shift);
    let moved = |region: &Range<usize>| {
        let first = shift(shifts.partition_point(|(at, _)| *at < region.start));
        let last = shift(shifts.partition_point(|(at, _)| *at <= region.end));
        region.start + first..region.end + last
    };
    woven.sites = regions.iter().map(|(region, number)| (moved(region), *number)).collect();
    woven
}

/// A place where mutants can be woven in.
enum Place {
    /// An expression, of which a part is replaced.
    Part { whole: Range<usize>, part: Range<usize> },
    /// The statements of a function.
    Body(Range<usize>),
    /// An arm of a match.
    Arm { pattern_end: usize, guard: Option<Range<usize>> },
}

/// All places of a file, by kind and by where the change begins.
#[derive(Default)]
struct Places {
    found: HashMap<(Genre, usize), Place>,
}

impl Places {
    fn add_part(&mut self, genre: Genre, whole: Range<usize>, part: Range<usize>) {
        self.found.insert((genre, part.start), Place::Part { whole, part });
    }

    fn add_body(&mut self, block: &syn::Block) {
        if let [first, ..] = &block.stmts[..] {
            let start = first.span().byte_range().start;
            let end = block.span().byte_range().end;
            self.found.insert((Genre::FnValue, start), Place::Body(start..end));
        }
    }
}

/// Whether an `if let` is part of this chain: it cannot stand in parentheses.
fn has_let(expression: &syn::Expr) -> bool {
    match expression {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Places {
    fn visit_expr_binary(&mut self, node: &'ast syn::ExprBinary) {
        if !has_let(&node.left) && !has_let(&node.right) {
            let part = node.op.span().byte_range();
            self.add_part(Genre::BinaryOperator, node.span().byte_range(), part);
        }
        visit::visit_expr_binary(self, node);
    }

    fn visit_expr_unary(&mut self, node: &'ast syn::ExprUnary) {
        self.add_part(Genre::UnaryOperator, node.span().byte_range(), node.op.span().byte_range());
        visit::visit_expr_unary(self, node);
    }

    fn visit_expr_struct(&mut self, node: &'ast syn::ExprStruct) {
        for field in node.fields.pairs() {
            let part = field.span().byte_range();
            self.add_part(Genre::StructField, node.span().byte_range(), part);
        }
        visit::visit_expr_struct(self, node);
    }

    fn visit_arm(&mut self, node: &'ast syn::Arm) {
        let guard = node.guard.as_ref().map(|(_, guard)| guard.span().byte_range());
        let pattern_end = node.pat.span().byte_range().end;
        let start = node.span().byte_range().start;
        self.found.insert((Genre::MatchArm, start), Place::Arm { pattern_end, guard: guard.clone() });
        if let Some(range) = guard {
            self.add_part(Genre::MatchArmGuard, range.clone(), range);
        }
        visit::visit_arm(self, node);
    }

    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        if node.sig.constness.is_none() {
            self.add_body(&node.block);
            visit::visit_item_fn(self, node);
        }
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        if node.sig.constness.is_none() {
            self.add_body(&node.block);
            visit::visit_impl_item_fn(self, node);
        }
    }

    fn visit_trait_item_fn(&mut self, node: &'ast syn::TraitItemFn) {
        node.default.iter().for_each(|block| self.add_body(block));
        visit::visit_trait_item_fn(self, node);
    }

    fn visit_expr_repeat(&mut self, node: &'ast syn::ExprRepeat) {
        self.visit_expr(&node.expr);
    }

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(genre: Genre, line: usize, column: usize, replacement: &str) -> Mutant {
        let span = Span { start: Point { line, column } };
        Mutant { name: String::new(), file: String::new(), genre, replacement: replacement.into(), span }
    }

    #[test]
    fn every_kind_of_change_is_a_choice() {
        let text = "fn f(a: u8) -> u8 {\n    match a {\n        1 if a + 1 < 3 => !a,\n        2 => a,\n        _ => 0,\n    }\n}\n";
        let mutants = [
            mutant(Genre::FnValue, 2, 5, "7"),
            mutant(Genre::BinaryOperator, 3, 20, "<="),
            mutant(Genre::BinaryOperator, 3, 16, "-"),
            mutant(Genre::MatchArmGuard, 3, 14, "true"),
            mutant(Genre::UnaryOperator, 3, 27, ""),
            mutant(Genre::MatchArm, 4, 9, ""),
        ];
        let numbered: Vec<_> = mutants.iter().enumerate().collect();
        let woven = weave(text, &numbered).unwrap();
        let expected = "fn f(a: u8) -> u8 {\n    if crate::is_mutant(0) { return 7; } match a {\n        1 if \
            (if crate::is_mutant(1) { a + 1 <= 3 } else if crate::is_mutant(3) { true } else { \
            (if crate::is_mutant(2) { a - 1 } else { a + 1 }) < 3 }) => \
            (if crate::is_mutant(4) { a } else { !a }),\n        \
            2 if !crate::is_mutant(5) => a,\n        _ => 0,\n    }\n}\n";
        assert_eq!(woven.text, expected);
        assert_eq!(
            woven.culprits(woven.text.find("a <").unwrap_or(woven.text.find("a + 1 <=").unwrap())),
            [1]
        );
        assert_eq!(woven.culprits(woven.text.find("a + 1 })").unwrap()), [2]);
    }

    #[test]
    fn constants_and_chains_with_let_are_left_out() {
        let text = "const A: u8 = 1 + 2;\nconst fn f() -> u8 { 1 + 2 }\nfn g(a: Option<u8>) { if let Some(b) = a && b < 2 {} }\n";
        let mutants = [
            mutant(Genre::BinaryOperator, 1, 17, "-"),
            mutant(Genre::BinaryOperator, 2, 24, "-"),
            mutant(Genre::BinaryOperator, 3, 42, "||"),
            mutant(Genre::BinaryOperator, 3, 47, "<="),
        ];
        let woven = weave(text, &mutants.iter().enumerate().collect::<Vec<_>>()).unwrap();
        let chain = "if let Some(b) = a && (if crate::is_mutant(3) { b <= 2 } else { b < 2 })";
        assert!(woven.text.contains(chain), "{}", woven.text);
        assert_eq!(woven.text.matches("is_mutant").count(), 1);
    }
}
