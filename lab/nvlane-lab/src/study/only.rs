//! The cells that `--only` asks for.

use study::experiment::Cell;

/// The cells that one of `pieces` names, in their order; all without pieces. The pieces are those of a list that was split at
/// its commas. Pieces that are the name of a cell when joined again ask for that cell, and any other piece for all cells
/// whose names contain it.
pub(super) fn of(cells: Vec<Cell>, pieces: &[String]) -> Vec<Cell> {
    if pieces.is_empty() {
        return cells;
    }
    let names: Vec<String> = cells.iter().map(|cell| cell.name.clone()).collect();
    let wishes = wishes(&names, pieces);
    let asks_for = |wish: &String, name: &String| {
        if names.contains(wish) { name == wish } else { name.contains(wish.as_str()) }
    };
    cells.into_iter().filter(|cell| wishes.iter().any(|wish| asks_for(wish, &cell.name))).collect()
}

/// Joins the pieces of names that have commas themselves.
fn wishes(names: &[String], mut pieces: &[String]) -> Vec<String> {
    let mut wishes = Vec::new();
    while !pieces.is_empty() {
        let joined = |count: usize| pieces[..count].join(",").trim().to_owned();
        let count = (2..=pieces.len()).rev().find(|count| names.contains(&joined(*count))).unwrap_or(1);
        wishes.push(joined(count));
        pieces = &pieces[count..];
    }
    wishes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(list: &str) -> Vec<String> {
        let cells = ["get, 1 target", "get, 2 targets", "get", "set, 1 target"].map(Cell::new).to_vec();
        let pieces: Vec<_> = list.split(',').map(str::to_owned).collect();
        of(cells, &pieces).into_iter().map(|cell| cell.name).collect()
    }

    #[test]
    fn names_with_commas_are_named_exactly() {
        assert_eq!(asked("get, 1 target"), ["get, 1 target"]);
        assert_eq!(asked("set, 1 target,get, 2 targets"), ["get, 2 targets", "set, 1 target"]);
    }

    #[test]
    fn other_texts_are_parts_of_names() {
        assert_eq!(asked("get"), ["get"], "a whole name is that cell alone");
        assert_eq!(asked("1 target"), ["get, 1 target", "set, 1 target"]);
        assert_eq!(asked("set,2 targets"), ["get, 2 targets", "set, 1 target"]);
        assert_eq!(asked("delete"), Vec::<String>::new());
    }
}
