//! The record of a volume: who it is, and where its content came from. It is an attribute of the volume's file, is written
//! once, with the file, and never changes: size and content are those of the file.

use memory::crc32c::checksum;
use wire::uuid::Uuid;

/// The attribute that makes a file a volume or a snapshot.
pub const ATTRIBUTE: &str = "user.nvlane.volume";

/// Version of the form of records.
const VERSION: &str = "1";

/// The largest record that is read, bytes.
pub(super) const BYTES_MAX: usize = 1024;

/// The longest name of a volume or snapshot, bytes: its file has a longer one until it is complete.
pub const NAME_BYTES_MAX: usize = 128;

/// What a file of a pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeKind {
    /// Hosts may write to it.
    Volume,
    /// Its content never changes.
    Snapshot,
}

impl VolumeKind {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
        }
    }
}

/// Where the content of a clone or a snapshot came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSource {
    /// Its name then.
    pub name: String,
    /// Its UUID.
    pub uuid: Uuid,
}

/// The record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it is.
    pub kind: VolumeKind,
    /// The name of its file: a copy of the file has another one, and is no volume.
    pub name: String,
    /// Its identity, and that of the namespace that it becomes.
    pub uuid: Uuid,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// When it was created, seconds since 1970.
    pub created_s: u64,
    /// Where its content came from; `None` if it began empty.
    pub source: Option<VolumeSource>,
}

impl Record {
    /// One line of words, with a checksum at its end.
    pub(super) fn to_text(&self) -> String {
        let Self { kind, name, uuid, block_bytes, created_s, source } = self;
        let source = source
            .as_ref()
            .map_or_else(|| "- -".to_owned(), |VolumeSource { name, uuid }| format!("{name} {uuid}"));
        let text = format!("{VERSION} {} {name} {uuid} {block_bytes} {created_s} {source} ", kind.name());
        format!("{text}{:08x}", checksum(text.as_bytes()))
    }

    /// Reads it.
    ///
    /// # Errors
    /// Why the file with this name is no volume.
    pub(super) fn read(bytes: &[u8], name: &str) -> Result<Self, String> {
        let damaged = || "its record is damaged".to_owned();
        let text = std::str::from_utf8(bytes).map_err(|_| damaged())?;
        let (body, sum) = text.split_at_checked(text.len().saturating_sub(8)).ok_or_else(damaged)?;
        if u32::from_str_radix(sum, 16) != Ok(checksum(body.as_bytes())) {
            return Err(damaged());
        }
        let words: Vec<&str> = body.split_terminator(' ').collect();
        let [version, kind, own, uuid, block_bytes, created_s, source, source_uuid] = words[..] else {
            return Err(damaged());
        };
        if version != VERSION {
            return Err(format!("its record has version {version}, and this program knows {VERSION}"));
        }
        if own != name {
            return Err(format!("it is a copy of {own}, or was renamed: nvlane ctl volume clone copies"));
        }
        let source = match source {
            "-" => None,
            name => Some(VolumeSource {
                name: name.to_owned(),
                uuid: source_uuid.parse().map_err(|_| damaged())?,
            }),
        };
        let kind = [VolumeKind::Volume, VolumeKind::Snapshot].into_iter().find(|known| known.name() == kind);
        Ok(Self {
            kind: kind.ok_or_else(damaged)?,
            name: name.to_owned(),
            uuid: uuid.parse().map_err(|_| damaged())?,
            block_bytes: block_bytes.parse().map_err(|_| damaged())?,
            created_s: created_s.parse().map_err(|_| damaged())?,
            source,
        })
    }
}

/// Whether a volume may have this name; it is that of its file.
///
/// # Errors
/// What would be right.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_right = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if !begins || !name.bytes().all(is_right) || name.len() > NAME_BYTES_MAX || name.ends_with(".new") {
        return Err(format!(
            "{name:?} is no name of a volume: write up to {NAME_BYTES_MAX} letters, digits, dots, hyphens and underscores, the first a \
             letter or digit, without .new at the end"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(name: &str) -> Record {
        Record {
            kind: VolumeKind::Snapshot,
            name: name.to_owned(),
            uuid: "12345678-1234-4123-8123-123456789abc".parse().unwrap(),
            block_bytes: 4096,
            created_s: 1_796_000_000,
            source: Some(VolumeSource {
                name: "db".into(),
                uuid: "00000000-0000-4000-8000-000000000001".parse().unwrap(),
            }),
        }
    }

    #[test]
    fn a_record_reads_back_and_its_form_stays() {
        let text = record("monday").to_text();
        assert_eq!(
            text,
            "1 snapshot monday 12345678-1234-4123-8123-123456789abc 4096 1796000000 db 00000000-0000-4000-8000-000000000001 061a52fe"
        );
        assert_eq!(Record::read(text.as_bytes(), "monday"), Ok(record("monday")));
        let plain = Record { source: None, kind: VolumeKind::Volume, ..record("a") };
        assert_eq!(Record::read(plain.to_text().as_bytes(), "a"), Ok(plain));
        assert!(Record::read(text.as_bytes(), "copy").unwrap_err().contains("a copy of monday"));
    }

    proptest! {
        #[test]
        fn a_damaged_record_is_none(at in 0_usize..110, bit in 0_u8..8, length in 0_usize..110) {
            let text = record("monday").to_text().into_bytes();
            let mut damaged = text.clone();
            damaged[at] ^= 1 << bit;
            // The case of a digit of the checksum means nothing.
            if !damaged.eq_ignore_ascii_case(&text) {
                prop_assert!(Record::read(&damaged, "monday").is_err());
            }
            prop_assert!(Record::read(&text[..length], "monday").is_err());
        }
    }

    #[test]
    fn names_are_those_of_plain_files() {
        for name in ["a", "db-1", "pvc-0123.x_y", "7"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for name in ["", ".", "..", "-a", ".a", "a/b", "a b", "ä", "a.new", "a\0", "a@b", &long] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
