//! Takes secrets out of files, byte by byte: in their text form, decoded, in hexadecimal and in base64.

use std::collections::HashMap;

use base64ct::{Base64, Base64Unpadded, Encoding};
use zeroize::Zeroizing;

/// Stands in a file in the place of a secret. It is shorter than any that is looked for.
const PLACEHOLDER: &[u8] = b"***";

/// Shorter secrets are not looked for: their letters are in many words.
pub(super) const BYTES_MIN: usize = 4;

/// Lines of a private key that are shorter have nothing of it.
const KEY_LINE_BYTES_MIN: usize = 16;

/// Begins of secrets and keys in text form, wherever they come from.
const PREFIXES: [&[u8]; 2] = [b"DHHC-1:", b"NVMeTLSkey-1:"];

/// Begin and end of a private key as text, and the end of its first line, which has its kind in between.
const KEY_BEGIN: &[u8] = b"-----BEGIN ";
const KEY_KIND: &[u8] = b"PRIVATE KEY-----";
const KEY_END: &[u8] = b"-----END";

/// Bytes in which a first line ends.
const KEY_LINE_BYTES_MAX: usize = 64;

/// The secrets to take out.
#[derive(Default)]
pub(super) struct Scrubber {
    needles: Vec<Zeroizing<Vec<u8>>>,
    /// Needles by their first four bytes.
    by_start: HashMap<[u8; BYTES_MIN], Vec<usize>>,
    /// Secrets that are too short.
    pub(super) short_count: usize,
}

impl Scrubber {
    /// Adds the text of a secret: a secret of a host, a key of TLS, a private key, or users with their passwords.
    pub(super) fn add_text(&mut self, text: &str) {
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let is_key = PREFIXES.iter().any(|prefix| line.as_bytes().starts_with(prefix));
            if is_key {
                self.add_secret(line.as_bytes());
                // PREFIX:NUMBER:BASE64:, with a checksum of four bytes at the end.
                if let Some(encoded) = line.split(':').nth(2) {
                    self.add_encoded(encoded);
                }
            } else if let Some((_, password)) = line.split_once(':').filter(|_| !line.starts_with("-----")) {
                self.add_secret(password.as_bytes());
                self.add_secret(line.as_bytes());
            } else if line.len() >= KEY_LINE_BYTES_MIN && !line.starts_with("-----") {
                self.add_secret(line.as_bytes());
                self.add_encoded(line);
            } else if !line.starts_with("-----") && !text.contains("-----BEGIN") {
                self.add_secret(line.as_bytes());
            }
        }
    }

    /// Adds a text in base64, and what it stands for with and without its checksum.
    fn add_encoded(&mut self, encoded: &str) {
        self.add_secret(encoded.as_bytes());
        let decoded = Base64::decode_vec(encoded)
            .or_else(|_| Base64Unpadded::decode_vec(encoded.trim_end_matches('=')));
        let Ok(decoded) = decoded.map(Zeroizing::new) else { return };
        self.add_secret(&decoded);
        self.add_secret(&decoded[..decoded.len().saturating_sub(4)]);
    }

    /// Adds a secret in all forms.
    fn add_secret(&mut self, secret: &[u8]) {
        if secret.len() < BYTES_MIN {
            self.short_count += usize::from(!secret.is_empty());
            return;
        }
        self.add_needle(secret.to_vec());
        let hex = |of: fn(u8) -> [u8; 2]| secret.iter().flat_map(|byte| of(*byte)).collect::<Vec<u8>>();
        self.add_needle(hex(|byte| digits(b"0123456789abcdef", byte)));
        self.add_needle(hex(|byte| digits(b"0123456789ABCDEF", byte)));
        // The last digit has bits of what follows, if anything does.
        let encoded = Base64Unpadded::encode_string(secret);
        let whole = secret.len() / 3 * 4;
        self.add_needle(encoded.as_bytes()[..whole.min(encoded.len())].to_vec());
        if let Ok(text) = std::str::from_utf8(secret) {
            let quoted = serde_json::to_string(text).unwrap_or_default();
            self.add_needle(quoted.trim_matches('"').as_bytes().to_vec());
        }
    }

    fn add_needle(&mut self, needle: Vec<u8>) {
        let needle = Zeroizing::new(needle);
        let Some(start) = needle.first_chunk::<BYTES_MIN>() else { return };
        let same = self.by_start.entry(*start).or_default();
        if !same.iter().any(|at| *self.needles[*at] == *needle) {
            same.push(self.needles.len());
            self.needles.push(needle);
        }
    }

    /// The longest secret at the start of these bytes.
    fn at_start(&self, bytes: &[u8]) -> Option<usize> {
        let same = self.by_start.get(bytes.first_chunk::<BYTES_MIN>()?)?;
        let found = same.iter().map(|at| &self.needles[*at]).filter(|needle| bytes.starts_with(needle));
        found.map(|needle| needle.len()).max()
    }

    /// Whether there is a secret in these bytes.
    pub(super) fn is_clean(&self, bytes: &[u8]) -> bool {
        (0..bytes.len()).all(|at| self.at_start(&bytes[at..]).is_none())
    }

    /// The bytes without secrets; `None` if one would be there in spite of that.
    pub(super) fn scrub(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut clean = Vec::with_capacity(bytes.len());
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            if let Some(length) = self.at_start(rest) {
                clean.extend_from_slice(PLACEHOLDER);
                at += length;
            } else if let Some((kept, length)) = unknown_secret(rest) {
                clean.extend_from_slice(&rest[..kept]);
                clean.extend_from_slice(PLACEHOLDER);
                at += length;
            } else {
                clean.push(rest[0]);
                at += 1;
            }
        }
        self.is_clean(&clean).then_some(clean)
    }
}

fn digits(of: &[u8; 16], byte: u8) -> [u8; 2] {
    [of[usize::from(byte >> 4)], of[usize::from(byte & 15)]]
}

/// A secret at the start of these bytes that has the form of one, also if the configuration has another: the length of its
/// begin, which may be shown, and that of all of it.
fn unknown_secret(bytes: &[u8]) -> Option<(usize, usize)> {
    let position = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).position(|window| window == part);
    if let Some(prefix) = PREFIXES.iter().find(|prefix| bytes.starts_with(prefix)) {
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=:".contains(byte);
        let length = prefix.len() + bytes[prefix.len()..].iter().take_while(|byte| is_part(byte)).count();
        return (length > prefix.len()).then_some((prefix.len(), length));
    }
    if !bytes.starts_with(KEY_BEGIN) {
        return None;
    }
    let line = &bytes[..bytes.len().min(KEY_LINE_BYTES_MAX)];
    let kept = position(line, KEY_KIND)?.saturating_add(KEY_KIND.len());
    let body = &bytes[kept..];
    Some((kept, kept.saturating_add(position(body, KEY_END).unwrap_or(body.len()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";

    fn scrubbed(scrubber: &Scrubber, text: &[u8]) -> Vec<u8> {
        scrubber.scrub(text).expect("clean")
    }

    #[test]
    fn a_secret_is_found_in_every_form() {
        let mut scrubber = Scrubber::default();
        scrubber.add_text(SECRET);
        scrubber.add_text("shop:open \"sesame\"\nbackup:hunter2\n");
        let raw: Vec<u8> = (1..=32).collect();
        let hex: String = raw.iter().map(|byte| format!("{byte:02x}")).collect();
        let forms: [&[u8]; 9] = [
            SECRET.as_bytes(),
            b"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH",
            &raw,
            hex.as_bytes(),
            b"open \"sesame\"",
            b"open \\\"sesame\\\"",
            b"hunter2",
            b"68756E74657232",
            b"aHVudGVy",
        ];
        for form in forms {
            let text = [b"before ", form, b" after"].concat();
            let clean = scrubbed(&scrubber, &text);
            assert!(!clean.windows(form.len()).any(|window| window == form), "{}", form.escape_ascii());
            assert!(
                clean.starts_with(b"before ***") && clean.ends_with(b" after"),
                "{}",
                clean.escape_ascii()
            );
        }
        assert_eq!(scrubbed(&scrubber, b"nothing of that"), b"nothing of that");
        assert_eq!(scrubbed(&scrubber, b"hunthunter2er2"), b"hunt***er2");
    }

    #[test]
    fn a_secret_of_another_configuration_is_known_by_its_form() {
        let scrubber = Scrubber::default();
        assert_eq!(scrubbed(&scrubber, format!("key {SECRET}, and").as_bytes()), b"key DHHC-1:***, and");
        let pem = b"-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\n-----END PRIVATE KEY-----\nrest";
        let clean = scrubbed(&scrubber, pem);
        assert_eq!(
            clean,
            b"-----BEGIN PRIVATE KEY-----***-----END PRIVATE KEY-----\nrest",
            "{}",
            clean.escape_ascii()
        );
    }

    #[test]
    fn a_short_password_is_counted_and_a_private_key_is_taken_line_by_line() {
        let mut scrubber = Scrubber::default();
        scrubber.add_text("a:xyz\n");
        assert_eq!((scrubber.short_count, scrubbed(&scrubber, b"xyz")), (1, b"xyz".to_vec()));
        scrubber.add_text(
            "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49AgEGCCqGSM49\n-----END PRIVATE KEY-----\n",
        );
        assert_eq!(scrubbed(&scrubber, b"a MIGHAgEAMBMGByqGSM49AgEGCCqGSM49 b"), b"a *** b");
    }
}
