//! Names, addresses, identifiers and sizes as text: an accepted text must be printed so that it parses to the same
//! value.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use host::Address;
use linux::CoreList;
use proto::doorbell::Policy;
use store::Spec;
use wire::id::Nsid;
use wire::nqn::{HostId, HostName, Nqn};
use wire::text::{escaped, is_hidden, quoted, without_hidden};
use wire::uuid::Uuid;

use crate::input::Input;

/// Input: one byte that selects the kind, then the text (for the last kind: a name's field on the wire).
pub fn names(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.byte() % 8;
    let bytes = input.rest();
    is_shown_on_one_line(bytes);
    if kind == 7 {
        if let Ok(nqn) = Nqn::from_wire(bytes) {
            assert_eq!(HostName::from_wire(bytes), Ok(HostName::from(nqn.clone())));
            assert_eq!(Nqn::from_wire(&nqn.to_wire()), Ok(nqn));
        } else if let Ok(host) = HostName::from_wire(bytes) {
            assert!(host.is_empty(), "{host:?} is no name");
        }
        return;
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match kind {
        0 => {
            comes_back::<Nqn>(text);
            comes_back::<HostName>(text);
        }
        1 => comes_back::<Uuid>(text),
        2 => comes_back::<HostId>(text),
        3 => {
            comes_back::<Address>(text);
            if let Ok(address) = text.parse::<Address>() {
                let _ = address.with_nsid(Nsid::new(1)).to_url();
            }
        }
        4 => comes_back::<Spec>(text),
        5 => comes_back::<CoreList>(text),
        _ => comes_back::<Policy>(text),
    }
}

/// Quoted bytes must hide nothing, and a quoted text must end at its last quote.
fn is_shown_on_one_line(bytes: &[u8]) {
    let in_quotes = quoted(bytes).to_string();
    for shown in [&in_quotes, &escaped(bytes).to_string()] {
        assert!(!shown.chars().any(is_hidden), "{shown:?}");
    }
    let within =
        in_quotes.trim_end_matches('\u{2026}').strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let mut is_escape = false;
    for char in within.expect("quotes").chars() {
        assert!(is_escape || char != '"', "{in_quotes}");
        is_escape = char == '\\' && !is_escape;
    }
    assert!(!is_escape, "{in_quotes}");
    if let Ok(text) = std::str::from_utf8(bytes) {
        let shown = without_hidden(text, true);
        assert!(!shown.chars().any(|char| char != '\n' && is_hidden(char)), "{shown:?}");
    }
}

fn comes_back<T: FromStr + Display + Debug + PartialEq>(text: &str) {
    let Ok(value) = text.parse::<T>() else { return };
    let printed = value.to_string();
    match printed.parse::<T>() {
        Ok(again) => assert_eq!(again, value, "{text:?} is printed as {printed:?}"),
        Err(_) => panic!("{text:?} is printed as {printed:?}, which is refused"),
    }
}
