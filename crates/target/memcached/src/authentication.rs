//! Authentication by the first command of a connection: `set <key> <flags> <exptime> <bytes>` whose value is
//! `<user> <password>`, as memcached has it with `-Y`.
//!
//! ```text
//! Line ──set … <bytes>──▶ Value ──user and password known──▶ (authenticated)
//!  ▲ └──any other line: CLIENT_ERROR unauthenticated──┐ └──wrong: CLIENT_ERROR──┐
//!  └──────────────────────────────────────────────────┴─────────────────────────┘
//! Value too long for any user and password ──▶ Discard ──all of it──▶ Line
//! Value too long to be discarded: CLIENT_ERROR; the next bytes are read as lines
//! ```
//!
//! Received bytes of a value are wiped once it was compared.

use zeroize::Zeroize;

use crate::number;

/// Longest line before its value, bytes; a longer one closes the connection.
const LINE_BYTES_MAX: usize = 2048;
/// Longest value that is compared, bytes: users and passwords are shorter.
const VALUE_BYTES_MAX: usize = 1024;
/// Most refusals on a connection: beyond, it is closed. So the answers to one receive are bounded, and a client that
/// guesses passwords has to connect again.
const REFUSAL_COUNT_MAX: u32 = 1000;
/// Longest value that is discarded, bytes, as in memcached: a longer one is refused before it arrives.
const DISCARDED_BYTES_MAX: u32 = 16 << 10;
const LINE_END: &[u8] = b"\r\n";
const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad authentication token format\r\n";
/// The first byte of a request of the binary protocol.
const BINARY_REQUEST: u8 = 0x80;

/// Progress of a connection's authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A line is to come.
    Line,
    /// A value of this length, with its line end, is to come.
    Value { bytes: usize },
    /// The rest of a value that no user can have.
    Discard { left: u64 },
}

/// The result of a step of the authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthenticationOutcome {
    /// More input is needed.
    More,
    /// The client has authenticated: commands follow.
    Authenticated,
    /// The connection is to be closed.
    Close,
}

/// A connection that has not authenticated.
#[derive(Debug)]
pub(crate) struct Authentication {
    state: State,
    /// Input that is no whole line or value yet. Of its full size at once: a buffer that grows would leave copies
    /// behind.
    pending: Vec<u8>,
    is_first: bool,
    refusal_count: u32,
}

impl Authentication {
    pub(crate) fn new() -> Self {
        Self { state: State::Line, pending: Vec::new(), is_first: true, refusal_count: 0 }
    }

    /// Whether a command is only partly received.
    pub(crate) fn is_within_command(&self) -> bool {
        !self.pending.is_empty() || self.state != State::Line
    }

    /// Takes input until the client has authenticated; commands behind that stay in `input`. `is_known` says whether a
    /// user has this password. Answers are appended to `out`.
    pub(crate) fn on_bytes(
        &mut self,
        input: &mut &[u8],
        out: &mut Vec<u8>,
        mut is_known: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> AuthenticationOutcome {
        if std::mem::take(&mut self.is_first) && matches!(input.first(), Some(&(0 | BINARY_REQUEST))) {
            // The binary protocol is off, and an NVMe host that connects to the wrong port waits. wire §2.2
            return AuthenticationOutcome::Close;
        }
        loop {
            if self.refusal_count > REFUSAL_COUNT_MAX {
                return AuthenticationOutcome::Close;
            }
            match self.state {
                State::Discard { left } => {
                    let count = usize::try_from(left).map_or(input.len(), |left| left.min(input.len()));
                    (_, *input) = input.split_at(count);
                    let left = left.saturating_sub(count as u64);
                    if left > 0 {
                        self.state = State::Discard { left };
                        return AuthenticationOutcome::More;
                    }
                    self.state = State::Line;
                    self.refuse(BAD_FORMAT, out);
                }
                State::Value { bytes } => {
                    if !self.gather(input, bytes) {
                        return AuthenticationOutcome::More;
                    }
                    self.state = State::Line;
                    let answer = judge(&self.pending, &mut is_known);
                    self.pending.zeroize();
                    match answer {
                        None => {
                            out.extend_from_slice(b"STORED\r\n");
                            return AuthenticationOutcome::Authenticated;
                        }
                        Some(answer) => self.refuse(answer, out),
                    }
                }
                State::Line => {
                    let missing = LINE_BYTES_MAX.saturating_sub(self.pending.len());
                    let window = input.get(..missing).unwrap_or(input);
                    let end = memchr::memchr(b'\n', window);
                    let taken = end.map_or(window.len(), |end| end.saturating_add(1));
                    self.gather(input, self.pending.len().saturating_add(taken));
                    if end.is_none() {
                        let is_too_long = self.pending.len() >= LINE_BYTES_MAX;
                        return if is_too_long {
                            AuthenticationOutcome::Close
                        } else {
                            AuthenticationOutcome::More
                        };
                    }
                    match value_bytes(&self.pending) {
                        None => self.refuse(b"CLIENT_ERROR unauthenticated\r\n", out),
                        Some(bytes) if bytes > DISCARDED_BYTES_MAX => {
                            self.refuse(b"CLIENT_ERROR auth token too long\r\n", out);
                        }
                        Some(bytes) => {
                            let with_end = u64::from(bytes).saturating_add(LINE_END.len() as u64);
                            self.state = match usize::try_from(with_end) {
                                Ok(bytes) if bytes <= VALUE_BYTES_MAX => State::Value { bytes },
                                _ => State::Discard { left: with_end },
                            };
                        }
                    }
                    // A line may be a value that came without its `set`.
                    self.pending.zeroize();
                }
            }
        }
    }

    fn refuse(&mut self, answer: &[u8], out: &mut Vec<u8>) {
        self.refusal_count = self.refusal_count.saturating_add(1);
        out.extend_from_slice(answer);
    }

    /// Moves input to the pending bytes until there are `bytes` of them. Returns whether there are.
    fn gather(&mut self, input: &mut &[u8], bytes: usize) -> bool {
        if self.pending.capacity() == 0 {
            self.pending.reserve_exact(LINE_BYTES_MAX.max(VALUE_BYTES_MAX));
        }
        let missing = bytes.saturating_sub(self.pending.len()).min(input.len());
        let (taken, rest) = input.split_at(missing);
        self.pending.extend_from_slice(taken);
        *input = rest;
        self.pending.len() >= bytes
    }
}

impl Drop for Authentication {
    fn drop(&mut self) {
        self.pending.zeroize();
    }
}

/// The length of the value of a `set`, bytes; `None` for any other line.
fn value_bytes(line: &[u8]) -> Option<u32> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.starts_with(b" ") {
        return None;
    }
    let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let (name, bytes) = (words.next()?, words.nth(3)?);
    if name != b"set" {
        return None;
    }
    number::parse(bytes).and_then(|bytes| u32::try_from(bytes).ok())
}

/// The answer to a value with its line end; `None` if the client has authenticated.
fn judge(value: &[u8], is_known: &mut impl FnMut(&[u8], &[u8]) -> bool) -> Option<&'static [u8]> {
    let Some(value) = value.strip_suffix(LINE_END) else {
        return Some(b"CLIENT_ERROR bad command line termination\r\n");
    };
    let Some(space) = memchr::memchr(b' ', value) else {
        return Some(BAD_FORMAT);
    };
    let (user, password) = value.split_at(space);
    let password = password.strip_prefix(b" ").unwrap_or(password);
    (!is_known(user, password)).then_some(b"CLIENT_ERROR authentication failure\r\n")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_known(user: &[u8], password: &[u8]) -> bool {
        (user, password) == (b"foo", b"bar") || (user, password) == (b"baaaz", b"two words")
    }

    /// Feeds `input` in pieces of this length. Returns the answers, the last outcome, and the rest of the input.
    fn talk(input: &str, piece: usize) -> (String, AuthenticationOutcome, String) {
        let input = input.replace('|', "\r\n").into_bytes();
        let (mut authentication, mut out) = (Authentication::new(), Vec::new());
        let mut outcome = AuthenticationOutcome::More;
        for (at, bytes) in input.chunks(piece).enumerate() {
            let mut rest = bytes;
            outcome = authentication.on_bytes(&mut rest, &mut out, is_known);
            if outcome != AuthenticationOutcome::More {
                let behind = [rest, &input[(at * piece + bytes.len()).min(input.len())..]].concat();
                return (text(out), outcome, text(behind));
            }
            assert!(rest.is_empty());
        }
        (text(out), outcome, String::new())
    }

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).expect("text").replace("\r\n", "|")
    }

    /// The conversation of memcached's own `t/ascii-auth.t`, and more of its answers. hostile E14
    #[test]
    fn answers_are_those_of_memcached_in_any_pieces() {
        const UNAUTHENTICATED: &str = "CLIENT_ERROR unauthenticated|";
        const FORMAT: &str = "CLIENT_ERROR bad authentication token format|";
        const FAILURE: &str = "CLIENT_ERROR authentication failure|";
        for (input, answers) in [
            ("set foo 0 0 2|hi|", FORMAT),
            ("get foo|", UNAUTHENTICATED),
            ("set foo 0 0 7|foo bab|", FAILURE),
            ("set foo 0 0 7|foo bar|", "STORED|"),
            ("set foo 0 0 15|baaaz two words|", "STORED|"),
            ("set foo 0 0 7 noreply|foo bar|", "STORED|"),
            ("set foo 0 0|", UNAUTHENTICATED),
            ("set foo 0 0 x|", UNAUTHENTICATED),
            ("set foo 0 0 4294967296|", UNAUTHENTICATED),
            (" set foo 0 0 7|", UNAUTHENTICATED),
            ("cas foo 0 0 7 1|foo bar|", "CLIENT_ERROR unauthenticated|CLIENT_ERROR unauthenticated|"),
            ("ms foo 7|foo bar|", "CLIENT_ERROR unauthenticated|CLIENT_ERROR unauthenticated|"),
            ("mn|version|stats|quit|", &UNAUTHENTICATED.repeat(4)),
            (
                "set foo 0 0 6|foo bar|",
                "CLIENT_ERROR bad command line termination|CLIENT_ERROR unauthenticated|",
            ),
            ("set foo 0 0 8|foo bar|", ""),
            ("set foo 0 0 4|foo |", FAILURE),
            ("set foo 0 0 0||", FORMAT),
            ("set foo 0 0 7|fo  bar|", FAILURE),
        ] {
            for piece in [1, 2, 3, 7, 1000] {
                let (said, outcome, _) = talk(input, piece);
                assert_eq!(said, answers, "{input} in pieces of {piece}");
                assert_eq!(
                    outcome == AuthenticationOutcome::Authenticated,
                    answers.ends_with("STORED|"),
                    "{input}"
                );
            }
        }
    }

    #[test]
    fn commands_behind_the_authentication_are_left_for_the_session() {
        for piece in [1, 5, 1000] {
            let (said, outcome, behind) = talk("get a|set foo 0 0 7|foo bar|get a|", piece);
            assert_eq!(
                (said.as_str(), outcome),
                ("CLIENT_ERROR unauthenticated|STORED|", AuthenticationOutcome::Authenticated)
            );
            assert_eq!(behind, "get a|");
        }
    }

    #[test]
    fn a_long_value_is_discarded_and_a_long_line_or_another_protocol_closes() {
        let long = format!("set foo 0 0 16384|{}|get a|", "x".repeat(16_384));
        for piece in [1000, 200_000] {
            let (said, outcome, _) = talk(&long, piece);
            assert_eq!(said, "CLIENT_ERROR bad authentication token format|CLIENT_ERROR unauthenticated|");
            assert_eq!(outcome, AuthenticationOutcome::More);
        }
        for length in ["16385", "2147483647", "4294967295"] {
            let (said, outcome, _) = talk(&format!("set foo 0 0 {length}|foo bar|"), 1000);
            assert_eq!(said, "CLIENT_ERROR auth token too long|CLIENT_ERROR unauthenticated|", "{length}");
            assert_eq!(outcome, AuthenticationOutcome::More);
        }
        assert_eq!(talk(&"x".repeat(2047), 100).1, AuthenticationOutcome::More);
        assert_eq!(talk(&"x".repeat(2048), 100).1, AuthenticationOutcome::Close);
        for first in ["\u{0}", "\u{0}\u{0}"] {
            assert_eq!(talk(first, 10).1, AuthenticationOutcome::Close);
        }
        let (mut out, mut binary) = (Vec::new(), &[BINARY_REQUEST, 0x21][..]);
        assert_eq!(
            Authentication::new().on_bytes(&mut binary, &mut out, is_known),
            AuthenticationOutcome::Close
        );
    }

    #[test]
    fn refusals_without_end_close_the_connection() {
        let (said, outcome, _) = talk(&"|".repeat(100_000), 200_000);
        assert_eq!(
            (said, outcome),
            ("CLIENT_ERROR unauthenticated|".repeat(1001), AuthenticationOutcome::Close)
        );
    }

    #[test]
    fn what_was_received_is_wiped() {
        let mut authentication = Authentication::new();
        for input in ["set foo 0 0 7\r\nfoo bab\r\n", "foo bar\r\n"] {
            let mut rest = input.as_bytes();
            authentication.on_bytes(&mut rest, &mut Vec::new(), is_known);
            assert!(authentication.pending.is_empty());
            assert_eq!(authentication.pending.capacity(), LINE_BYTES_MAX, "no other buffer had it");
        }
    }

    proptest! {
        #[test]
        fn any_split_of_any_bytes_gives_the_same(
            input in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b' '), any::<u8>()], 0..400),
            cut in 0_usize..400,
        ) {
            let run = |pieces: &[&[u8]]| {
                let (mut authentication, mut out) = (Authentication::new(), Vec::new());
                let mut outcome = AuthenticationOutcome::More;
                for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
                    let mut rest = *piece;
                    outcome = authentication.on_bytes(&mut rest, &mut out, is_known);
                    if outcome != AuthenticationOutcome::More {
                        break;
                    }
                }
                (out, outcome)
            };
            let (first, second) = input.split_at(cut.min(input.len()));
            let ((out, outcome), (whole_out, whole)) = (run(&[first, second]), run(&[&input]));
            prop_assert!(outcome == whole && out == whole_out);
        }
    }
}
