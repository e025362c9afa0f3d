//! Users and their passwords, in the form of memcached's authentication file: lines of `user:password`.
//!
//! Passwords are kept as HMACs under a random key, so memory has none of them once the text is wiped.

use core::fmt;

use crate::hash::HashFunction;
use crate::secret_bytes::SecretBytes;

/// Most users: each attempt is compared with all of them.
pub const USER_COUNT_MAX: usize = 256;
/// Longest line, bytes.
const LINE_BYTES_MAX: usize = 512;

/// A list of users with their passwords.
pub struct Users {
    /// Of the HMACs.
    key: SecretBytes,
    entries: Vec<User>,
}

struct User {
    name: String,
    /// The HMAC of its name and password.
    tag: SecretBytes,
}

/// The error of a malformed list of users. It never has a part of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsersError {
    /// A line without a colon.
    #[error("line {0}: expected user:password")]
    NoColon(usize),
    /// A line that begins with the colon.
    #[error("line {0}: there is no user before the colon")]
    NoUser(usize),
    /// A line that ends with the colon.
    #[error("line {0}: there is no password behind the colon")]
    NoPassword(usize),
    /// A user with a space, which ends the name of a user in the protocol.
    #[error("line {0}: the user has a space, and no client can send that")]
    Space(usize),
    /// A control character, which no client can send.
    #[error("line {0}: there is a control character")]
    ControlCharacter(usize),
    /// A line that is too long.
    #[error("line {0}: longer than {LINE_BYTES_MAX} bytes")]
    TooLong(usize),
    /// More users than are compared.
    #[error("more than {USER_COUNT_MAX} users")]
    TooMany,
    /// No user.
    #[error("there is no user: write lines of user:password")]
    Empty,
}

impl Users {
    /// Reads a list. Empty lines are skipped. A user may have several passwords, each on a line of its own.
    ///
    /// # Errors
    /// The first line that is wrong.
    pub fn parse(text: &str, key: [u8; 32]) -> Result<Self, UsersError> {
        let mut users = Self { key: SecretBytes::from(&key[..]), entries: Vec::new() };
        for (line, number) in text.lines().zip(1_usize..) {
            if line.is_empty() {
                continue;
            }
            if line.len() > LINE_BYTES_MAX {
                return Err(UsersError::TooLong(number));
            }
            if line.bytes().any(|byte| byte.is_ascii_control()) {
                return Err(UsersError::ControlCharacter(number));
            }
            let (name, password) = line.split_once(':').ok_or(UsersError::NoColon(number))?;
            if name.is_empty() {
                return Err(UsersError::NoUser(number));
            }
            if password.is_empty() {
                return Err(UsersError::NoPassword(number));
            }
            if name.contains(' ') {
                return Err(UsersError::Space(number));
            }
            if users.entries.len() >= USER_COUNT_MAX {
                return Err(UsersError::TooMany);
            }
            let tag = users.tag(name.as_bytes(), password.as_bytes());
            users.entries.push(User { name: name.to_owned(), tag });
        }
        if users.entries.is_empty() { Err(UsersError::Empty) } else { Ok(users) }
    }

    /// The user with this name and password. Takes the same time wherever, and for whomever, a password differs.
    #[must_use]
    pub fn find(&self, name: &[u8], password: &[u8]) -> Option<&str> {
        let tag = self.tag(name, password);
        let mut found = None;
        for user in &self.entries {
            let pairs = user.tag.expose().iter().zip(tag.expose());
            let difference = pairs.fold(0, |difference, (a, b)| difference | (a ^ b));
            if difference == 0 {
                found = Some(user.name.as_str());
            }
        }
        found
    }

    /// Whether there is a user with this name, for the log.
    #[must_use]
    pub fn knows(&self, name: &[u8]) -> bool {
        self.entries.iter().fold(false, |is_known, user| is_known | (user.name.as_bytes() == name))
    }

    /// Number of passwords.
    #[must_use]
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Whether both have the same users with the same passwords, in the same order, if they have one key.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let tags =
            |users: &Self| users.entries.iter().map(|user| user.tag.expose().to_vec()).collect::<Vec<_>>();
        tags(self) == tags(other)
    }

    fn tag(&self, name: &[u8], password: &[u8]) -> SecretBytes {
        // With the length of the name each pair has a text of its own: clients may send names with a colon.
        let name_bytes = (name.len() as u64).to_le_bytes();
        HashFunction::Sha256.hmac(self.key.expose(), &[&name_bytes, name, password])
    }
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").field("count", &self.entries.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(text: &str) -> Users {
        Users::parse(text, [7; 32]).expect("a list")
    }

    #[test]
    fn users_are_found_by_name_and_password_only() {
        let users = users("foo:bar\r\n\nbaaaz:quux:and more\nfoo:other");
        assert_eq!(users.count(), 3);
        for (name, password, found) in [
            ("foo", "bar", Some("foo")),
            ("foo", "other", Some("foo")),
            ("baaaz", "quux:and more", Some("baaaz")),
            ("foo", "quux", None),
            ("fo", "bar", None),
            ("foo", "bar ", None),
            ("", "", None),
            ("foo:bar", "", None),
            ("baaaz:quux", "and more", None),
        ] {
            assert_eq!(users.find(name.as_bytes(), password.as_bytes()), found, "{name} {password}");
        }
        assert!(users.knows(b"foo") && !users.knows(b"fo"));
    }

    #[test]
    fn a_changed_list_is_told_from_the_same_one() {
        for (text, is_same) in [
            ("foo:bar\n\nx:y", true),
            ("foo:bar\n", false),
            ("foo:bar\nx:z\n", false),
            ("foo:bar\nx:y\na:b", false),
        ] {
            assert_eq!(users("foo:bar\nx:y\n").is_same(&users(text)), is_same, "{text}");
        }
    }

    #[test]
    fn errors_name_the_line_and_nothing_of_it() {
        let many: String = (0..=USER_COUNT_MAX).map(|user| format!("{user}:secret\n")).collect();
        let long = format!("a:b\nc:{}", "secret".repeat(100));
        for (text, error) in [
            ("", "there is no user: write lines of user:password"),
            ("\n\n", "there is no user: write lines of user:password"),
            ("a:b\nsecret", "line 2: expected user:password"),
            (":secret", "line 1: there is no user before the colon"),
            ("a:", "line 1: there is no password behind the colon"),
            ("a b:secret", "line 1: the user has a space, and no client can send that"),
            ("a:sec\u{1}ret", "line 1: there is a control character"),
            (&long, "line 2: longer than 512 bytes"),
            (&many, "more than 256 users"),
        ] {
            assert_eq!(
                Users::parse(text, [0; 32]).map(drop).map_err(|error| error.to_string()),
                Err(error.into())
            );
        }
        assert!(!format!("{:?}", users("a:secret")).contains("secret"));
    }
}
