//! The live page: one document with its style and its script, which nothing else is loaded for.

use std::sync::LazyLock;

use base64ct::{Base64, Encoding};
use sha2::{Digest, Sha256};

use crate::http::Answer;

/// The page.
pub(crate) const PAGE: &str = include_str!("live_page.html");

/// Pages from elsewhere can neither read an answer with this line, nor have it as a part.
pub(crate) const SAME_ORIGIN: &str = "Cross-Origin-Resource-Policy: same-origin\r\n";

/// Further lines of its head: a browser takes no style and no script but those of the page, and connects to nobody else.
static LINES: LazyLock<String> = LazyLock::new(|| {
    let [style, script] = ["style", "script"].map(|tag| Base64::encode_string(&Sha256::digest(inside(tag))));
    format!(
        "Content-Security-Policy: default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
         Referrer-Policy: no-referrer\r\n{SAME_ORIGIN}"
    )
});

/// What is in the first element of this name.
fn inside(tag: &str) -> &'static str {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    let inside = PAGE.split_once(&open).and_then(|(_, rest)| rest.split_once(&close));
    inside.map_or("", |(inside, _)| inside)
}

/// The head of an answer with the page.
pub(crate) fn head() -> String {
    Answer::Ok.head_with("text/html; charset=utf-8", PAGE.len(), &LINES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_whole_and_keeps_its_own_rules() {
        assert!(PAGE.starts_with("<!doctype html>"));
        for tag in ["style", "script"] {
            assert!(inside(tag).len() > 100, "{tag}");
            assert_eq!(PAGE.matches(&format!("<{tag}")).count(), 1, "{tag}");
        }
        // What the policy forbids would silently not be there; and text of hosts is never HTML.
        for word in [
            "style=\"",
            "onclick",
            "onload",
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "<link",
            "src=",
            "@import",
            "url(",
            "http:",
            "https:",
        ] {
            assert!(!PAGE.contains(word), "{word}");
        }
        assert!(LINES.contains("default-src 'none'") && !LINES.contains("unsafe"), "{}", *LINES);
        assert!(head().contains(&format!("Content-Length: {}\r\n", PAGE.len())));
    }
}
