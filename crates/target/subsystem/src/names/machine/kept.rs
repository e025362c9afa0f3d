//! The identity of a machine as a state directory keeps it: a file of lines, each with a word and a UUID.

use std::path::Path;

use linux::whole_file::{SystemFiles, replace};
use wire::uuid::Uuid;

use super::hardware::Hardware;

/// The name of the file.
const FILE: &str = "machine";

const HEAD: &str = "# The identity of this machine, as nvlane made it once, with hashes of what it was made of. Do not copy it.\n";

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) identity: Uuid,
    /// The hash of the machine-id.
    pub(super) of_id: Uuid,
    pub(super) hardware: Hardware,
}

impl Kept {
    /// Whether it is kept by the machine with this id and hardware.
    pub(super) fn is_of(&self, of_id: Uuid, hardware: &Hardware) -> bool {
        self.of_id == of_id && self.hardware.fits(hardware)
    }

    /// The identity that a directory keeps; `None` if there is none that this version understands.
    pub(super) fn read(directory: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(directory.join(FILE)).ok()?;
        let all = |word: &'static str| {
            let of_word =
                text.lines().filter_map(move |line| line.strip_prefix(word)?.trim().parse::<Uuid>().ok());
            of_word.collect::<Vec<_>>()
        };
        let first = |word| all(word).first().copied();
        let hardware = Hardware::new(first("dmi "), all("card ").into_iter().collect());
        Some(Self { identity: first("identity ")?, of_id: first("machine-id ")?, hardware })
    }

    pub(super) fn write(&self, directory: &Path) -> std::io::Result<()> {
        let mut text = format!("{HEAD}identity {}\nmachine-id {}\n", self.identity, self.of_id);
        text.extend(self.hardware.dmi.map(|dmi| format!("dmi {dmi}\n")));
        text.extend(self.hardware.cards.iter().map(|card| format!("card {card}\n")));
        std::fs::create_dir_all(directory)?;
        replace(&mut SystemFiles, &directory.join(FILE), text.as_bytes())
    }
}
