//! Lines that are rewritten on a terminal. A line wider than the screen would leave a copy each time.

use std::borrow::Cow;

/// Columns of a terminal that does not report its width.
const COLUMNS: usize = 80;

/// The part of a line that fits into one row of standard error's terminal.
#[must_use]
pub fn fitted(line: &str) -> Cow<'_, str> {
    let columns = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(0, |size| usize::from(size.ws_col));
    cut(line, if columns == 0 { COLUMNS } else { columns })
}

/// The line, cut to one column less than the screen: some terminals wrap at the last column.
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
