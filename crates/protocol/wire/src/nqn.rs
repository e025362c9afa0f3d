//! Names of hosts and subsystems, and their rules. wire §21

use core::fmt;
use core::str::FromStr;

use crate::text::{is_hidden, quoted};
use crate::uuid::{UUID_TEXT_BYTES, Uuid, UuidError};

/// Most bytes of a name, without its NUL.
pub const NQN_BYTES_MAX: usize = 223;
/// Bytes of the field a name travels in.
pub const NQN_FIELD_BYTES: usize = 256;
/// The name under which every discovery service answers. wire §20
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

const PREFIX: &str = "nqn.";
const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// NVMe qualified name of a host or subsystem: 1 to 223 bytes of UTF-8, every character of which prints,
/// compared byte by byte.
///
/// Made by [`str::parse`], which insists on the form of wire §21, or by [`Nqn::from_wire`], which takes what
/// peers in the field send.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Nqn {
    length: u8,
    /// Zero past `length`.
    bytes: [u8; NQN_BYTES_MAX],
}

/// The error in a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NqnError {
    /// No bytes at all.
    #[error("name is empty")]
    Empty,
    /// More than 223 bytes.
    #[error("name has {length} bytes, the limit is {NQN_BYTES_MAX}")]
    TooLong {
        /// Bytes of the name.
        length: usize,
    },
    /// No NUL in the field.
    #[error("name has no NUL in its field of {length} bytes")]
    NotTerminated {
        /// Bytes of the field.
        length: usize,
    },
    /// Not UTF-8.
    #[error("byte {position} of the name is not UTF-8")]
    NotUtf8 {
        /// Index of the first such byte.
        position: usize,
    },
    /// A character that does not show as itself: see [`is_hidden`].
    #[error("byte {position} of the name begins a character that does not print")]
    Unprintable {
        /// Index of its first byte.
        position: usize,
    },
    /// A prefix other than `nqn.`.
    #[error("name does not begin with \"{PREFIX}\"")]
    NoPrefix,
    /// No `YYYY-MM.` after the prefix.
    #[error("name has no date of the form YYYY-MM. after \"{PREFIX}\"")]
    Date,
    /// A malformed domain name, or none.
    #[error("domain label at byte {position} of the name is malformed")]
    Domain {
        /// Index of the label's first byte.
        position: usize,
    },
    /// Nothing after the domain name.
    #[error("name has no unique part after its domain, expected \":\" and text")]
    NoUniquePart,
    /// The UUID form without a UUID.
    #[error("\"{UUID_PREFIX}\" is not followed by a UUID")]
    Uuid,
}

impl Nqn {
    /// The well-known discovery name.
    #[must_use]
    pub const fn discovery() -> Self {
        Self::copied(DISCOVERY_NQN.as_bytes())
    }

    /// The UUID form: `nqn.2014-08.org.nvmexpress:uuid:` and the UUID.
    #[must_use]
    pub fn from_uuid(uuid: Uuid) -> Self {
        let mut text = [0; UUID_PREFIX.len() + UUID_TEXT_BYTES];
        let (prefix, rest) = text.split_at_mut(UUID_PREFIX.len());
        prefix.copy_from_slice(UUID_PREFIX.as_bytes());
        rest.copy_from_slice(&uuid.to_text());
        Self::copied(&text)
    }

    /// Takes the name a peer sent in a NUL-terminated field; bytes after the NUL are ignored.
    ///
    /// Any form is taken, even without `nqn.`, as peers do not agree on more.
    ///
    /// # Errors
    /// [`NqnError::NotTerminated`], [`NqnError::Empty`], [`NqnError::TooLong`], [`NqnError::NotUtf8`] or
    /// [`NqnError::Unprintable`].
    pub fn from_wire(field: &[u8]) -> Result<Self, NqnError> {
        let end = field.iter().position(|byte| *byte == 0);
        let end = end.ok_or(NqnError::NotTerminated { length: field.len() })?;
        let name = field.get(..end).unwrap_or_default();
        match core::str::from_utf8(name) {
            Ok(text) => Self::from_text(text),
            Err(error) => Err(NqnError::NotUtf8 { position: error.valid_up_to() }),
        }
    }

    /// The field the name travels in: NUL-terminated, zero padded.
    #[must_use]
    pub fn to_wire(&self) -> [u8; NQN_FIELD_BYTES] {
        let mut field = [0; NQN_FIELD_BYTES];
        field[..NQN_BYTES_MAX].copy_from_slice(&self.bytes);
        field
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Checked when the name was made: it is never empty.
        core::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// The name's bytes, 1 to 223.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }

    /// Whether it is the well-known discovery name.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.as_bytes() == DISCOVERY_NQN.as_bytes()
    }

    /// Checks the form of wire §21, which [`Nqn::from_wire`] leaves open.
    ///
    /// # Errors
    /// The first deviation: prefix, date, domain, unique part, UUID.
    pub fn check_form(&self) -> Result<(), NqnError> {
        check_form(self.as_str())
    }

    /// Checks the rules for every name.
    fn from_text(text: &str) -> Result<Self, NqnError> {
        if text.is_empty() {
            return Err(NqnError::Empty);
        }
        if text.len() > NQN_BYTES_MAX {
            return Err(NqnError::TooLong { length: text.len() });
        }
        if let Some((position, _)) = text.char_indices().find(|(_, char)| is_hidden(*char)) {
            return Err(NqnError::Unprintable { position });
        }
        Ok(Self::copied(text.as_bytes()))
    }

    /// Copies at most 223 bytes.
    #[allow(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the loop ends at the length of either, and 223 fits a byte"
    )]
    const fn copied(text: &[u8]) -> Self {
        let mut nqn = Self { length: 0, bytes: [0; NQN_BYTES_MAX] };
        while (nqn.length as usize) < text.len() && (nqn.length as usize) < NQN_BYTES_MAX {
            nqn.bytes[nqn.length as usize] = text[nqn.length as usize];
            nqn.length += 1;
        }
        nqn
    }
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(text: &str) -> Result<Self, NqnError> {
        let nqn = Self::from_text(text)?;
        check_form(text)?;
        Ok(nqn)
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nqn({})", self.as_str())
    }
}

impl PartialOrd for Nqn {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Nqn {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

/// Name under which a host connects: at most 223 bytes of UTF-8, every character of which prints, compared byte by
/// byte.
///
/// Hosts in the field use names of any form, also without `nqn.`, and some send none: such a host is known by its
/// [`HostId`] alone. wire §6.2
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(Option<Nqn>);

impl HostName {
    /// Takes the name out of the NUL-terminated field of a Connect; bytes after the NUL are ignored.
    ///
    /// # Errors
    /// As [`Nqn::from_wire`], but an empty name is none.
    pub fn from_wire(field: &[u8]) -> Result<Self, NqnError> {
        match Nqn::from_wire(field) {
            Ok(nqn) => Ok(Self(Some(nqn))),
            Err(NqnError::Empty) => Ok(Self(None)),
            Err(error) => Err(error),
        }
    }

    /// Whether the host has sent no name.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The name, empty if there is none.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_ref().map_or("", Nqn::as_str)
    }
}

impl From<Nqn> for HostName {
    fn from(nqn: Nqn) -> Self {
        Self(Some(nqn))
    }
}

/// A name to write into a list of hosts: it cannot be empty.
impl FromStr for HostName {
    type Err = NqnError;

    fn from_str(text: &str) -> Result<Self, NqnError> {
        Nqn::from_text(text).map(Self::from)
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostName({})", quoted(self.as_str()))
    }
}

impl AsRef<[u8]> for HostName {
    fn as_ref(&self) -> &[u8] {
        self.as_str().as_bytes()
    }
}

impl AsRef<[u8]> for Nqn {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

/// `nqn.YYYY-MM.reverse.domain:unique`, the UUID form, or the discovery name.
fn check_form(text: &str) -> Result<(), NqnError> {
    if text == DISCOVERY_NQN {
        return Ok(());
    }
    if let Some(uuid) = text.strip_prefix(UUID_PREFIX) {
        let well_formed = uuid.len() == UUID_TEXT_BYTES && uuid.parse::<Uuid>().is_ok();
        return if well_formed { Ok(()) } else { Err(NqnError::Uuid) };
    }
    let dated = text.strip_prefix(PREFIX).ok_or(NqnError::NoPrefix)?;
    let named = strip_date(dated).ok_or(NqnError::Date)?;
    let (domain, unique) = named.split_once(':').unwrap_or((named, ""));
    let mut position = text.len().saturating_sub(named.len());
    for label in domain.split('.') {
        if !is_label(label) {
            return Err(NqnError::Domain { position });
        }
        position = position.saturating_add(label.len()).saturating_add(1);
    }
    if unique.is_empty() { Err(NqnError::NoUniquePart) } else { Ok(()) }
}

/// The text behind `YYYY-MM.`, if it begins so.
fn strip_date(text: &str) -> Option<&str> {
    let (date, rest) = text.split_at_checked(8)?;
    let [y1, y2, y3, y4, b'-', m1, m2, b'.'] = date.as_bytes() else { return None };
    let digits = [y1, y2, y3, y4, m1, m2].iter().all(|byte| byte.is_ascii_digit());
    let month = matches!((m1, m2), (b'0', b'1'..=b'9') | (b'1', b'0'..=b'2'));
    (digits && month).then_some(rest)
}

/// A label of a domain name: a letter, then letters, digits and hyphens, no hyphen last, 63 at most.
fn is_label(label: &str) -> bool {
    let bytes = label.as_bytes();
    bytes.len() <= 63
        && bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
}

newtype! {
    /// Identifier of a host: 16 bytes, a UUID in practice. Registrations belong to it. wire §6.2, wire §15
    #[derive(PartialOrd, Ord)]
    pub HostId([u8; 16])
}

conversions! { HostId([u8; 16]): pub from_bytes, to_bytes }

impl HostId {
    /// Whether it is all zero, which identifies no host.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.uuid().is_nil()
    }

    /// As a UUID.
    #[must_use]
    pub const fn uuid(self) -> Uuid {
        Uuid::from_bytes(self.0)
    }
}

impl From<Uuid> for HostId {
    fn from(uuid: Uuid) -> Self {
        Self(uuid.to_bytes())
    }
}

impl FromStr for HostId {
    type Err = UuidError;

    fn from_str(text: &str) -> Result<Self, UuidError> {
        text.parse::<Uuid>().map(Self::from)
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.uuid().fmt(f)
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostId({})", self.uuid())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn field(name: &[u8]) -> [u8; NQN_FIELD_BYTES] {
        let mut field = [0; NQN_FIELD_BYTES];
        field[..name.len()].copy_from_slice(name);
        field
    }

    /// wire §21
    #[test]
    fn both_forms_and_the_discovery_name_parse() {
        for text in [
            "nqn.2016-06.io.nvlane:sub1",
            "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555",
            "nqn.2014-08.org.nvmexpress:other",
            "nqn.2020-12.com.a-b.x9:disk 1:part, with ':' and spaces",
            "nqn.2020-01.io:\u{e9}\u{4e2d}",
            DISCOVERY_NQN,
        ] {
            let nqn: Nqn = text.parse().expect(text);
            assert_eq!(nqn.as_str(), text);
            assert_eq!(Nqn::from_wire(&nqn.to_wire()), Ok(nqn));
        }
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let long = format!("nqn.2016-06.io.nvlane:{}", "x".repeat(202));
        let label = format!("nqn.2016-06.{}:x", "a".repeat(64));
        let shown: Vec<String> = [
            "",
            long.as_str(),
            "nqn.2016-06.io.nvlane:a\nb",
            "iqn.2016-06.io.nvlane:x",
            "NQN.2016-06.io.nvlane:x",
            "nqn.psk-test-host",
            "nqn.2016-13.io.nvlane:x",
            "nqn.2016-00.io.nvlane:x",
            "nqn.16-06.io.nvlane:x",
            "nqn.2016-06",
            "nqn.2016-06.",
            "nqn.2016-06.:x",
            "nqn.2016-06.io..nvlane:x",
            "nqn.2016-06.io.-nvlane:x",
            "nqn.2016-06.io.nvlane-:x",
            "nqn.2016-06.io.3nvlane:x",
            "nqn.2016-06.io.nv_lane:x",
            label.as_str(),
            "nqn.2016-06.io.nvlane",
            "nqn.2016-06.io.nvlane:",
            "nqn.2014-08.org.nvmexpress:uuid:",
            "nqn.2014-08.org.nvmexpress:uuid:11111111222233334444555555555555",
        ]
        .iter()
        .map(|text| text.parse::<Nqn>().expect_err(text).to_string())
        .collect();
        insta::assert_snapshot!(shown.join("\n"), @r#"
        name is empty
        name has 224 bytes, the limit is 223
        byte 23 of the name begins a character that does not print
        name does not begin with "nqn."
        name does not begin with "nqn."
        name has no date of the form YYYY-MM. after "nqn."
        name has no date of the form YYYY-MM. after "nqn."
        name has no date of the form YYYY-MM. after "nqn."
        name has no date of the form YYYY-MM. after "nqn."
        name has no date of the form YYYY-MM. after "nqn."
        domain label at byte 12 of the name is malformed
        domain label at byte 12 of the name is malformed
        domain label at byte 15 of the name is malformed
        domain label at byte 15 of the name is malformed
        domain label at byte 15 of the name is malformed
        domain label at byte 15 of the name is malformed
        domain label at byte 15 of the name is malformed
        domain label at byte 12 of the name is malformed
        name has no unique part after its domain, expected ":" and text
        name has no unique part after its domain, expected ":" and text
        "nqn.2014-08.org.nvmexpress:uuid:" is not followed by a UUID
        "nqn.2014-08.org.nvmexpress:uuid:" is not followed by a UUID
        "#);
    }

    /// wire §21
    #[test]
    fn a_peer_s_name_needs_a_nul_within_the_limit() {
        assert_eq!(Nqn::from_wire(&[b'n'; 256]), Err(NqnError::NotTerminated { length: 256 }));
        assert_eq!(Nqn::from_wire(&[]), Err(NqnError::NotTerminated { length: 0 }));
        assert_eq!(Nqn::from_wire(&field(&[b'n'; 224])), Err(NqnError::TooLong { length: 224 }));
        assert!(Nqn::from_wire(&field(&[b'n'; 223])).is_ok());
        assert_eq!(Nqn::from_wire(&[0; 256]), Err(NqnError::Empty));
    }

    #[test]
    fn a_peer_s_name_has_neither_control_characters_nor_other_bytes_than_utf8() {
        assert_eq!(Nqn::from_wire(b"nqn.\r\n\0"), Err(NqnError::Unprintable { position: 4 }));
        assert_eq!(Nqn::from_wire(b"nqn.\x7f\0"), Err(NqnError::Unprintable { position: 4 }));
        assert_eq!(Nqn::from_wire(b"nqn.\xc2\x85\0"), Err(NqnError::Unprintable { position: 4 }));
        assert_eq!(Nqn::from_wire(b"nqn.x\xFF\0"), Err(NqnError::NotUtf8 { position: 5 }));
    }

    /// wire §21
    #[test]
    fn a_name_that_reorders_or_hides_text_is_refused() {
        for hidden in ['\u{202e}', '\u{2066}', '\u{2028}', '\u{2029}', '\u{200b}', '\u{feff}', '\u{85}'] {
            let name = format!("nqn.2016-06.io.nvlane:a{hidden}b");
            assert_eq!(name.parse::<Nqn>(), Err(NqnError::Unprintable { position: 23 }));
            assert_eq!(Nqn::from_wire(&field(name.as_bytes())), Err(NqnError::Unprintable { position: 23 }));
            assert_eq!(name.parse::<HostName>(), Err(NqnError::Unprintable { position: 23 }));
        }
    }

    #[test]
    fn a_host_may_have_a_name_of_any_form_or_none() {
        let none = HostName::from_wire(&[0; 256]).expect("no name");
        assert!(none.is_empty());
        assert_eq!((none.as_str(), none.to_string().as_str()), ("", ""));
        for text in ["blktests-host", "%s", "a b", "nqn.2016-06.io.nvlane:a", "h\u{e9}"] {
            let name = HostName::from_wire(&field(text.as_bytes())).expect(text);
            assert_eq!((name.as_str(), name.to_string().as_str(), name.is_empty()), (text, text, false));
            assert_eq!(text.parse(), Ok(name));
        }
        assert_eq!("".parse::<HostName>(), Err(NqnError::Empty), "a list names hosts");
        assert_eq!("x".repeat(224).parse::<HostName>(), Err(NqnError::TooLong { length: 224 }));
        assert_eq!(HostName::from_wire(&[b'n'; 256]), Err(NqnError::NotTerminated { length: 256 }));
        assert_eq!(HostName::from_wire(b"a\x1b[2J\0"), Err(NqnError::Unprintable { position: 1 }));
    }

    #[test]
    fn a_peer_s_name_may_have_any_form() {
        let nqn = Nqn::from_wire(b"nqn.psk-test-host\0garbage").expect("lenient");
        assert_eq!(nqn.as_str(), "nqn.psk-test-host");
        assert_eq!(nqn.check_form(), Err(NqnError::Date));
        assert!(Nqn::from_wire(b"%s%n'\"\0").is_ok());
    }

    /// wire §21
    #[test]
    fn names_are_compared_byte_by_byte() {
        let lower: Nqn = "nqn.2016-06.io.nvlane:a".parse().expect("well formed");
        let upper: Nqn = "nqn.2016-06.io.nvlane:A".parse().expect("well formed");
        assert_ne!(lower, upper);
        assert!(upper < lower);
    }

    #[test]
    fn a_uuid_makes_a_name() {
        let nqn = Nqn::from_uuid(Uuid::from_bytes([0xAB; 16]));
        assert_eq!(nqn.as_str(), "nqn.2014-08.org.nvmexpress:uuid:abababab-abab-abab-abab-abababababab");
        assert_eq!(nqn.check_form(), Ok(()));
        assert_eq!(nqn.as_str().parse(), Ok(nqn));
    }

    #[test]
    fn the_discovery_name_is_known() {
        assert!(Nqn::discovery().is_discovery());
        assert_eq!(Nqn::discovery().as_str(), DISCOVERY_NQN);
        assert!(!Nqn::from_uuid(Uuid::NIL).is_discovery());
    }

    #[test]
    fn a_host_id_reads_and_shows_as_a_uuid() {
        let text = "11111111-2222-3333-4444-555555555555";
        let id: HostId = text.parse().expect("well formed");
        assert_eq!(id.to_string(), text);
        assert_eq!(id.to_bytes()[..5], [0x11, 0x11, 0x11, 0x11, 0x22]);
        assert!(!id.is_zero() && HostId::default().is_zero());
        assert_eq!(HostId::from(id.uuid()), id);
        assert_eq!(format!("{id:?}"), format!("HostId({text})"));
    }

    #[test]
    fn names_are_shown_padded_and_debugged_with_their_kind() {
        let nqn: Nqn = "nqn.2016-06.io.nvlane:a".parse().expect("a name");
        assert_eq!(format!("{nqn:<25}|"), "nqn.2016-06.io.nvlane:a  |");
        assert_eq!(format!("{nqn:?}"), "Nqn(nqn.2016-06.io.nvlane:a)");
    }

    proptest! {
        #[test]
        fn any_field_is_taken_or_refused(field in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(nqn) = Nqn::from_wire(&field) {
                prop_assert!(field.starts_with(nqn.as_bytes()));
                prop_assert_eq!(Nqn::from_wire(&nqn.to_wire()), Ok(nqn.clone()));
                prop_assert!(!nqn.as_str().chars().any(is_hidden));
                let _ = nqn.check_form();
            }
        }

        #[test]
        fn any_text_is_taken_or_refused(text in "(nqn\\.)?(2016-06\\.)?\\PC{0,230}") {
            if let Ok(nqn) = text.parse::<Nqn>() {
                prop_assert_eq!(nqn.as_str(), text);
                prop_assert_eq!(Nqn::from_wire(&nqn.to_wire()), Ok(nqn));
            }
        }
    }
}
