//! Lines that are written again and again on a terminal: one that is wider than the screen would leave a copy with each
//! writing.

use std::borrow::Cow;

/// Columns of a screen that does not say how many it has.
const COLUMNS: usize = 80;

/// As much of a line as standard error's terminal shows in one row.
#[must_use]
pub fn fitted(line: &str) -> Cow<'_, str> {
    let columns = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(0, |size| usize::from(size.ws_col));
    cut(line, if columns == 0 { COLUMNS } else { columns })
}

/// The line, one column shorter than the screen at most: in the last one some terminals wrap.
fn cut(line: &str, columns: usize) -> Cow<'_, str> {
    match line.char_indices().nth(columns.saturating_sub(1)) {
        Some((at, _)) => Cow::Borrowed(&line[..at]),
        None => Cow::Borrowed(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_never_reaches_the_last_column() {
        assert_eq!(cut("1234567890", 80), "1234567890");
        assert_eq!(cut("1234567890", 11), "1234567890");
        assert_eq!(cut("1234567890", 10), "123456789");
        assert_eq!(cut("µµµµ", 3), "µµ");
        assert_eq!(cut("abc", 0), "");
    }
}
