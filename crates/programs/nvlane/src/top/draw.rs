//! The screen of `nvlane top`: sums, a table, and the keys.

use std::borrow::Cow;

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};

use super::screen::Key;
use super::view::{Column, Table, Unit, Value, View};

/// Space between two columns.
const GAP: usize = 2;

/// The least width of the column that takes the rest.
const NAME_WIDTH_MIN: usize = 18;

const KEYS: &str = "q quit  Tab,1-4 table  left,right sort  r reverse  up,down scroll  space pause";

/// What a person has chosen.
#[derive(Debug)]
pub(super) struct Choice {
    /// The table.
    table: usize,
    /// For each table, the column it is sorted by, and whether in ascending order.
    sort: Option<[(usize, bool); 4]>,
    /// The first row that is shown.
    first: usize,
    /// Rows that the last screen had room for.
    room: usize,
    pub(super) is_paused: bool,
    pub(super) wants_end: bool,
}

impl Choice {
    pub(super) fn new() -> Self {
        Self { table: 0, sort: None, first: 0, room: 1, is_paused: false, wants_end: false }
    }

    /// Takes a key, of a person who sees these tables.
    pub(super) fn take(&mut self, key: Key, tables: &[Table; 4], width: usize) {
        let sort = self.sort.get_or_insert_with(|| tables.each_ref().map(|table| table.sort));
        let (column, is_ascending) = &mut sort[self.table];
        match key {
            Key::Char('q' | 'Q') | Key::Interrupt => self.wants_end = true,
            Key::Char(' ') => self.is_paused = !self.is_paused,
            Key::Char(digit @ '1'..='4') => (self.table, self.first) = (digit as usize - '1' as usize, 0),
            Key::Tab => (self.table, self.first) = ((self.table + 1) % 4, 0),
            Key::BackTab => (self.table, self.first) = ((self.table + 3) % 4, 0),
            Key::Char('r') => *is_ascending = !*is_ascending,
            Key::Left | Key::Right => {
                let shown = shown_columns(tables[self.table].columns, width);
                let at = shown.iter().position(|(shown, _)| shown == column).unwrap_or(0);
                let step = if key == Key::Left { shown.len() - 1 } else { 1 };
                *column = shown[(at + step) % shown.len()].0;
                // Names from A, numbers from the greatest.
                *is_ascending = tables[self.table].columns[*column].unit == Unit::Text;
            }
            Key::Up => self.first = self.first.saturating_sub(1),
            Key::Down => self.first = self.first.saturating_add(1),
            Key::PageUp => self.first = self.first.saturating_sub(self.room),
            Key::PageDown => self.first = self.first.saturating_add(self.room),
            Key::Home => self.first = 0,
            Key::End => self.first = usize::MAX,
            Key::Char(_) => {}
        }
    }

    fn sort_of(&self, table: usize, view: &View) -> (usize, bool) {
        self.sort.map_or(view.tables[table].sort, |sort| sort[table])
    }
}

/// The columns that fit, with their widths.
fn shown_columns(columns: &[Column], width: usize) -> Vec<(usize, usize)> {
    let mut rank = u8::MAX;
    loop {
        let chosen: Vec<usize> = (0..columns.len()).filter(|at| columns[*at].rank <= rank).collect();
        let has_name = chosen.iter().any(|at| columns[*at].width == 0);
        let taken: usize = chosen.iter().map(|at| columns[*at].width).sum::<usize>()
            + GAP * (chosen.len().saturating_sub(1));
        let needed = taken + if has_name { NAME_WIDTH_MIN } else { 0 };
        let highest = chosen.iter().map(|at| columns[*at].rank).max().unwrap_or(0);
        if needed > width && highest > 0 {
            rank = highest - 1;
            continue;
        }
        let rest = width.saturating_sub(taken).max(1);
        let width_of = |at: usize| if columns[at].width == 0 { rest } else { columns[at].width };
        return chosen.into_iter().map(|at| (at, width_of(at))).collect();
    }
}

/// A text in so many characters: names keep their ends, by which they differ.
fn fitted(text: &str, width: usize) -> Cow<'_, str> {
    let length = text.chars().count();
    if length <= width {
        return text.into();
    }
    let kept = width.saturating_sub(1);
    let tail: String = text.chars().skip(length - kept).collect();
    format!("…{tail}").into()
}

fn line_of(cells: impl Iterator<Item = (String, usize, bool)>) -> String {
    let mut line = String::new();
    for (at, (text, width, is_text)) in cells.enumerate() {
        let gap = if at == 0 { 0 } else { GAP };
        line.extend(std::iter::repeat_n(' ', gap));
        let text = fitted(&text, width);
        line.push_str(&if is_text { format!("{text:<width$}") } else { format!("{text:>width$}") });
    }
    line
}

fn heading(table: &Table, shown: &[(usize, usize)], (sort, is_ascending): (usize, bool)) -> String {
    line_of(shown.iter().map(|(at, width)| {
        let Column { title, unit, .. } = &table.columns[*at];
        let mark = if is_ascending { "▲" } else { "▼" };
        let title = match *at == sort {
            true if title.chars().count() < *width => format!("{title}{mark}"),
            true => format!("{}{mark}", &title[..title.len().min(width.saturating_sub(1))]),
            false => (*title).to_owned(),
        };
        (title, *width, *unit == Unit::Text)
    }))
}

fn row_line(table: &Table, shown: &[(usize, usize)], row: &[Value]) -> String {
    line_of(shown.iter().map(|(at, width)| {
        let unit = table.columns[*at].unit;
        (row[*at].shown(unit).into_owned(), *width, unit == Unit::Text)
    }))
}

/// What is beside the tables: where it comes from, and how it goes.
pub(super) struct Around<'a> {
    /// Version, place and age.
    pub(super) title: String,
    /// Why there is no news.
    pub(super) trouble: Option<&'a str>,
}

/// Draws everything.
pub(super) fn draw(buffer: &mut Buffer, view: &mut View, choice: &mut Choice, around: &Around<'_>) {
    let area = buffer.area;
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let plain = Style::default();
    let mut y = 0;
    put(buffer, y, &around.title, plain.add_modifier(Modifier::BOLD));
    y += 1;
    // Sums give way to the table where the terminal is low.
    let sums = view.sums.len().min(height.saturating_sub(8));
    for (name, text) in view.sums.iter().take(sums) {
        put(buffer, y, &format!("{name:<9} {text}"), plain);
        y += 1;
    }
    tabs(buffer, y, view, choice.table);
    y += 1;
    let sort = choice.sort_of(choice.table, view);
    let table = &mut view.tables[choice.table];
    table.sort_by(sort);
    let shown = shown_columns(table.columns, width);
    put(
        buffer,
        y,
        &format!("{:<width$}", heading(table, &shown, sort)),
        plain.add_modifier(Modifier::REVERSED),
    );
    y += 1;
    let room = height.saturating_sub(y + 1);
    choice.room = room.max(1);
    choice.first = choice.first.min(table.rows.len().saturating_sub(room));
    for row in table.rows.iter().skip(choice.first).take(room) {
        let is_in_trouble = table.columns.iter().zip(row).any(|(column, value)| {
            column.key == "state" && !matches!(value, Value::Text(state) if state == "ok")
        });
        let style = if is_in_trouble { plain.fg(Color::Red).add_modifier(Modifier::BOLD) } else { plain };
        put(buffer, y, &row_line(table, &shown, row), style);
        y += 1;
    }
    if table.rows.is_empty() && room > 0 {
        put(buffer, y, "none", plain.add_modifier(Modifier::DIM));
    }
    let last = height.saturating_sub(1);
    let (text, style) = match (around.trouble, choice.is_paused) {
        (Some(why), _) => {
            let text = format!("{:<width$}", format!("no answer, trying again: {why}"));
            (text, plain.fg(Color::Red).add_modifier(Modifier::REVERSED))
        }
        (None, true) => {
            ("paused: space goes on".into(), plain.fg(Color::Yellow).add_modifier(Modifier::BOLD))
        }
        (None, false) => (KEYS.into(), plain.add_modifier(Modifier::DIM)),
    };
    put(buffer, last, &text, style);
}

/// The names of the tables.
fn tabs(buffer: &mut Buffer, y: usize, view: &View, chosen: usize) {
    let mut x = 0;
    for (at, Table { title, count, rows, .. }) in view.tables.iter().enumerate() {
        let number = at + 1;
        let text = match *count > rows.len() {
            true => format!(" {number} {title}: busiest {} of {count} ", rows.len()),
            false => format!(" {number} {title}: {count} "),
        };
        let style = Style::default();
        let style =
            if at == chosen { style.add_modifier(Modifier::BOLD | Modifier::REVERSED) } else { style };
        let Ok(column) = u16::try_from(x) else { return };
        put_at(buffer, column, y, &text, style);
        x += text.chars().count() + 1;
    }
}

fn put(buffer: &mut Buffer, y: usize, text: &str, style: Style) {
    put_at(buffer, 0, y, text, style);
}

fn put_at(buffer: &mut Buffer, x: u16, y: usize, text: &str, style: Style) {
    let Rect { width, height, .. } = buffer.area;
    if let Ok(y) = u16::try_from(y)
        && y < height
        && x < width
    {
        buffer.set_stringn(x, y, text, usize::from(width - x), style);
    }
}

/// Everything as text, with all columns.
pub(super) fn text(view: &View, title: &str) -> String {
    let mut text = format!("{title}\n");
    for (name, sums) in &view.sums {
        text.push_str(&format!("{name:<9} {sums}\n"));
    }
    for table in &view.tables {
        let more = if table.count > table.rows.len() {
            format!(", the busiest {}", table.rows.len())
        } else {
            String::new()
        };
        text.push_str(&format!("\n{}: {}{more}\n", table.title, table.count));
        let name_width = |at: usize| {
            let lengths = table.rows.iter().map(|row| row[at].shown(table.columns[at].unit).chars().count());
            lengths.max().unwrap_or(0).max(table.columns[at].title.len() + 1)
        };
        let shown: Vec<(usize, usize)> = (0..table.columns.len())
            .map(|at| {
                (
                    at,
                    if table.columns[at].unit == Unit::Text {
                        name_width(at)
                    } else {
                        table.columns[at].width
                    },
                )
            })
            .collect();
        if table.rows.is_empty() {
            continue;
        }
        let lines = std::iter::once(heading(table, &shown, table.sort));
        for line in lines.chain(table.rows.iter().map(|row| row_line(table, &shown, row))) {
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_give_way_in_their_order() {
        let view = View::new(&metrics::live::Live::default(), None);
        for table in &view.tables {
            // A mark of the order follows the title.
            let has_room = |column: &Column| column.width == 0 || column.width > column.title.len();
            assert!(table.columns.iter().all(has_room), "{}", table.title);
            for width in 60..240 {
                let shown = shown_columns(table.columns, width);
                let taken: usize =
                    shown.iter().map(|(_, width)| width).sum::<usize>() + GAP * (shown.len() - 1);
                assert!(taken <= width, "{} at {width}: {shown:?}", table.title);
                let left_out =
                    (0..table.columns.len()).filter(|at| shown.iter().all(|(shown, _)| shown != at));
                let least = left_out.map(|at| table.columns[at].rank).min().unwrap_or(u8::MAX);
                assert!(shown.iter().all(|(at, _)| table.columns[*at].rank < least), "{}", table.title);
            }
            let all = shown_columns(table.columns, 200);
            assert_eq!(all.len(), table.columns.len(), "{}", table.title);
        }
    }

    #[test]
    fn no_key_and_no_size_is_too_much() {
        const KEYS: [Key; 15] = [
            Key::End,
            Key::Down,
            Key::PageDown,
            Key::Right,
            Key::Left,
            Key::Left,
            Key::Char('r'),
            Key::Char('4'),
            Key::Up,
            Key::PageUp,
            Key::Home,
            Key::Tab,
            Key::BackTab,
            Key::Char('x'),
            Key::Char(' '),
        ];
        let mut view = View::new(&metrics::live::Live::default(), None);
        let mut choice = Choice::new();
        for (width, height) in [(1, 1), (3, 2), (10, 9), (20, 6), (80, 24), (300, 100)] {
            for key in KEYS.into_iter().cycle().take(KEYS.len() * 3) {
                choice.take(key, &view.tables, width.into());
                choice.take(key, &view.tables, width.into());
                let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
                let around = Around { title: "nvlane".into(), trouble: None };
                if key != Key::End {
                    draw(&mut buffer, &mut view, &mut choice, &around);
                }
            }
        }
        assert!(!choice.wants_end);
        choice.take(Key::Interrupt, &view.tables, 80);
        assert!(choice.wants_end);
    }

    #[test]
    fn a_name_keeps_its_end() {
        assert_eq!(fitted("nqn.2026-01.io.nvlane:disks", 8), "…e:disks");
        assert_eq!(fitted("short", 8), "short");
        assert_eq!(fitted("λλλλ", 2), "…λ");
    }
}
