//! The name that a mistyped one was probably meant to be.

/// From this similarity on (1: the same) a name is suggested.
const SIMILARITY_MIN: f64 = 0.75;

/// The name that is most like `word`, if it is like it at all.
#[must_use]
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let rated = names.into_iter().map(|name| (similarity(word, name), name));
    let best = rated.max_by(|one, other| one.0.total_cmp(&other.0));
    best.filter(|(similarity, _)| *similarity >= SIMILARITY_MIN).map(|(_, name)| name)
}

fn similarity(word: &str, name: &str) -> f64 {
    let usual = strsim::jaro_winkler(word, name);
    // For short words the similarity misses that two letters have changed places.
    let is_slip = word.len() > 2 && strsim::damerau_levenshtein(word, name) == 1;
    if is_slip { usual.max(SIMILARITY_MIN) } else { usual }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_mistakes_are_recognized_and_other_words_are_not() {
        let names =
            ["address", "advertise", "subsystems", "discovery", "doorbell", "tls", "allow", "readonly"];
        for (word, meant) in [
            ("adress", Some("address")),
            ("addres", Some("address")),
            ("advertize", Some("advertise")),
            ("subsystem", Some("subsystems")),
            ("doorbel", Some("doorbell")),
            ("ro", Some("readonly")),
            ("tsl", Some("tls")),
            ("port", None),
            ("x", None),
        ] {
            assert_eq!(nearest(word, names), meant, "{word}");
        }
        assert_eq!(nearest("address", []), None);
    }
}
