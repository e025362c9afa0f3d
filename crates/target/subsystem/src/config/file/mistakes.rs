//! Errors of the TOML parser, in the terms of TOML and with a suggestion.

use store::nearest;

/// The parser's terms, and those of TOML.
const WORDS: [(&str, &str); 11] = [
    ("invalid type: map, expected a sequence", "a table where a list of tables is expected: write [[name]]"),
    ("unknown field", "unknown key"),
    ("missing field", "missing key"),
    ("expected u8", "expected a number from 0 to 255"),
    ("expected u16", "expected a number from 0 to 65535"),
    ("expected u32", "expected a number from 0 to 4294967295"),
    ("expected a tuple of size 2", "expected two numbers, as in [1, 65519]"),
    ("expected path string", "expected a path in quotes"),
    ("expected a string", "expected text in quotes"),
    ("expected a boolean", "expected true or false"),
    ("sequence", "list"),
];

/// Prefixes of secrets and TLS keys.
const SECRETS: [&str; 2] = ["DHHC-1:", "NVMeTLSkey-1:"];

/// How errors that name a type of the reader begin.
const TYPE: &str = "expected struct Raw";

/// The first line of an error: the others repeat it.
pub(super) fn explained(error: &toml::de::Error, text: &str) -> String {
    let at = error.span().map_or(0, |span| text.floor_char_boundary(span.start));
    match unquoted(text, at) {
        // A secret in place of a reference to one: it is not repeated.
        Some(word) if SECRETS.iter().any(|form| word.starts_with(form)) => {
            return "text must be in quotes; a secret is not written here, but where it is: \"file:PATH\""
                .into();
        }
        Some(word) => return format!("text must be in quotes: write \"{word}\""),
        None => {}
    }
    let message = error.message().lines().next().unwrap_or("this is no TOML").to_owned();
    let mut message = WORDS.iter().fold(message, |message, (rust, toml)| message.replace(rust, toml));
    if let Some(at) = message.find(TYPE) {
        message.truncate(at);
        message.push_str("expected a table");
    }
    match misspelled(&message).or_else(|| misplaced(&message, text, at)) {
        Some(hint) => format!("{message}; {hint}"),
        None => message,
    }
}

/// The known key that is like an unknown one.
fn misspelled(message: &str) -> Option<String> {
    let mut names = message.strip_prefix("unknown key ")?.split('`').skip(1).step_by(2);
    let unknown = names.next()?;
    let known: Vec<&str> = names.collect();
    match unknown {
        "namespace" | "namespaces" | "host" if known.contains(&"subsystem") => {
            Some(format!("it is part of a subsystem: [[subsystem.{}]]", unknown.trim_end_matches('s')))
        }
        _ => nearest(unknown, known).map(|name| format!("did you mean `{name}`?")),
    }
}

/// A value that would be valid with quotes: an address, a size, a name.
fn unquoted(text: &str, at: usize) -> Option<&str> {
    let is_end = |sign: char| sign.is_whitespace() || ",[]{}=\"'#".contains(sign);
    let (before, behind) = text.split_at(at);
    let start =
        before.rfind(is_end).map_or(0, |end| end + before[end..].chars().next().map_or(1, char::len_utf8));
    let end = at + behind.find(is_end).unwrap_or(behind.len());
    let word = text.get(start..end).filter(|word| !word.is_empty())?;
    let line = text[..start].rsplit('\n').next()?;
    // A place for a value, in a text that is not TOML because of the value.
    let is_value = line.contains('=') && line.trim_end().ends_with(['=', '[', ',']);
    let parses = |value: &str| format!("x = {value}").parse::<toml::Table>().is_ok();
    (is_value && !parses(word) && !word.contains('\\')).then_some(word)
}

/// A value for another key.
fn misplaced(message: &str, text: &str, at: usize) -> Option<String> {
    let line = text[..at].rsplit('\n').next()?;
    let (key, _) = line.split_once('=')?;
    let is_wrong_type = message.starts_with("invalid type");
    match key.trim() {
        "host" if is_wrong_type => Some("did you mean `hosts`, the list of those who may connect?".into()),
        "namespace" if is_wrong_type => Some("write [[subsystem.namespace]], and storage = below it".into()),
        _ => None,
    }
}
