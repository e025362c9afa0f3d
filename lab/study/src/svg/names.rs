//! The names below the bars of a plot: in one line, in several, or slanted where a word is wider than its place.

use maud::{Markup, html};

use super::{LEFT, LETTER, centred};

/// Height of a line of text.
const LINE: f64 = 15.0;

/// Slopes of slanted names, degrees: the second, where names are longer than there is room for with the first.
const SLANTS: [f64; 2] = [-45.0, -62.0];

/// The longest slanted name; the rest of a longer one is left out.
const LETTERS_MAX: usize = 22;

/// The form of the names of a plot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Names {
    /// Upright, in lines of at most this number of letters; and the lines of the tallest.
    Upright { letters: usize, lines: usize },
    /// Slanted by this number of degrees, and the letters of the longest.
    Slanted { letters: usize, slant: f64 },
}

impl Default for Names {
    fn default() -> Self {
        Self::Upright { letters: usize::MAX, lines: 1 }
    }
}

impl Names {
    /// The form in which all names fit beside each other.
    pub(super) fn fitted(names: &[String], width: f64) -> Self {
        #[allow(clippy::cast_possible_truncation)]
        // A few names.
        let letters = (width / names.len().max(1) as f64 / LETTER - 1.0).max(1.0) as usize;
        let longest_word = names.iter().flat_map(|name| name.split(' ')).map(length).max().unwrap_or(0);
        let lines = names.iter().map(|name| wrapped(name, letters).len()).max().unwrap_or(1).max(1);
        if longest_word <= letters && lines <= 3 {
            return Self::Upright { letters, lines };
        }
        let longest = names.iter().map(|name| length(name)).max().unwrap_or(0);
        // The first name reaches to the edge of the sheet at most.
        #[allow(clippy::cast_possible_truncation)]
        // A few names.
        let letters = |slant: f64| {
            let room = (LEFT + width / names.len().max(1) as f64 / 2.0) / (LETTER * slant.to_radians().cos());
            longest.min(LETTERS_MAX).min((room as usize).saturating_sub(1))
        };
        let [slant, steep] = SLANTS;
        let slant = if letters(slant) < letters(steep) { steep } else { slant };
        Self::Slanted { letters: letters(slant), slant }
    }

    /// Height beyond that of one line.
    pub(super) fn extra_height(self) -> f64 {
        match self {
            Self::Upright { lines, .. } => LINE * (lines - 1) as f64,
            Self::Slanted { letters, slant } => {
                (LETTER * letters as f64 * slant.to_radians().sin().abs() - 4.0).max(0.0)
            }
        }
    }

    /// One name whose first line has its middle, or whose last letter stands, at this place.
    pub(super) fn write(self, name: &str, (x, y): (f64, f64)) -> Markup {
        let lower = |index: usize| y + LINE * index as f64;
        match self {
            Self::Upright { letters, .. } => html! {
                @for (index, line) in wrapped(name, letters).iter().enumerate() {
                    (centred("tick", (x, lower(index)), line))
                }
            },
            Self::Slanted { letters, slant } => {
                let cut = name.char_indices().nth(letters).map(|(at, _)| format!("{}…", &name[..at]));
                let turned = format!("translate({:.1} {y:.1}) rotate({slant})", x + 6.0);
                html! { text.tick transform=(turned) text-anchor="end" { (cut.as_deref().unwrap_or(name)) } }
            }
        }
    }
}

/// Width of a text.
pub(super) fn width(text: &str) -> f64 {
    let letters = length(text) as f64;
    LETTER * letters
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// The lines of a name, none longer than `letters` but for a single word.
fn wrapped(name: &str, letters: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in name.split(' ') {
        match lines.last_mut() {
            Some(line) if length(line) + 1 + length(word) <= letters => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitted(names: &[&str], width: f64) -> Names {
        Names::fitted(&names.iter().map(ToString::to_string).collect::<Vec<_>>(), width)
    }

    #[test]
    fn names_stand_in_as_few_lines_as_fit() {
        assert_eq!(fitted(&["read", "write"], 400.0), Names::Upright { letters: 26, lines: 1 });
        assert_eq!(
            fitted(&["caravans of requests", "and of responses"], 200.0),
            Names::Upright { letters: 12, lines: 2 }
        );
        assert_eq!(wrapped("caravans of requests", 12), ["caravans of", "requests"]);
        let many = ["memcached", "redis-server", "nvlane", "something", "else", "again", "more", "eight"];
        assert_eq!(fitted(&many, 270.0), Names::Slanted { letters: 12, slant: -45.0 });
        let long = ["one send per PDU", "caravans of requests", "and of responses", "and delayed doorbells"];
        assert_eq!(fitted(&long, 200.0), Names::Slanted { letters: 21, slant: -62.0 });
        assert_eq!(Names::fitted(&[], 100.0), Names::Upright { letters: 12, lines: 1 });
    }

    #[test]
    fn a_long_name_is_cut_between_letters() {
        let body = Names::Slanted { letters: 3, slant: -45.0 }.write("µµµµ<", (0.0, 0.0)).into_string();
        assert!(body.contains(">µµµ…<"), "{body}");
    }
}
