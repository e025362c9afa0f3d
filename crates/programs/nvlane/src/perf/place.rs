//! The place of the load of `nvlane perf`: a namespace of a target, or local storage.

use std::str::FromStr;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command};
use command_line::exit::Failure;
use host::Address;
use load::runner::LocalStorage;
use store::{FileKind, Source, Spec};

use super::ConnectionArguments;

/// A namespace of a target, or local storage.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Target(Box<Address>),
    Local(LocalStorage),
}

impl FromStr for Place {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if !["file:", "device:"].iter().any(|prefix| text.starts_with(prefix)) {
            return Ok(Self::Target(Box::new(text.parse()?)));
        }
        let spec: Spec = text.parse()?;
        let is_plain = spec.uuid.is_none() && !spec.is_read_only && spec.filters.is_empty();
        let (path, kind) = match &spec.source {
            Source::File { path, bytes: None } if is_plain => (path, FileKind::Regular),
            Source::Device { path } if is_plain => (path, FileKind::Device),
            _ => anyhow::bail!(
                "local storage takes one option only, ?lba=BYTES: nothing is created or filtered"
            ),
        };
        Ok(Self::Local(LocalStorage { block_bytes: spec.block_bytes, ..LocalStorage::new(path, kind) }))
    }
}

/// Options under "Connection" that apply to local storage too.
const FOR_BOTH: [&str; 2] = ["spin", "timeout"];

/// Options elsewhere that need lanes to a target.
const FOR_LANES: [&str; 3] = ["queues", "polled", "ceiling"];

/// Refuses options on the command line that do not apply to local storage.
pub(super) fn refuse_options_of_targets(given: &ArgMatches) -> Result<(), Failure> {
    let connection = ConnectionArguments::augment_args(Command::new("connection"));
    let ids = connection.get_arguments().map(|argument| argument.get_id().as_str());
    let ids = ids.filter(|id| !FOR_BOTH.contains(id)).chain(FOR_LANES);
    let wrong = ids.filter(|id| given.value_source(id) == Some(ValueSource::CommandLine));
    let wrong: Vec<_> = wrong.map(|id| format!("--{}", id.replace('_', "-"))).collect();
    if wrong.is_empty() {
        return Ok(());
    }
    let (are, they) = if wrong.len() == 1 { ("is", "it means") } else { ("are", "they mean") };
    Err(Failure::usage(format!(
        "{} {are} for targets on the network: {they} nothing for local storage",
        wrong.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Result<Place, String> {
        text.parse().map_err(|error: anyhow::Error| error.to_string())
    }

    #[test]
    fn local_storage_is_told_from_addresses() {
        assert!(matches!(place("192.0.2.1:4420/nqn.2024-01.org.nvlane:a"), Ok(Place::Target(_))));
        let Ok(Place::Local(file)) = place("file:/tmp/a?lba=512") else { panic!("local storage") };
        assert_eq!(
            (file.path.to_str(), file.kind, file.block_bytes),
            (Some("/tmp/a"), FileKind::Regular, Some(512))
        );
        let Ok(Place::Local(device)) = place("device:/dev/nvme1n1") else { panic!("local storage") };
        assert_eq!((device.kind, device.block_bytes), (FileKind::Device, None));
        for text in ["file:/tmp/a?size=1G", "device:/dev/sda?readonly", "file:/tmp/a?delay=1ms"] {
            assert!(place(text).expect_err(text).contains("?lba=BYTES"));
        }
    }

    #[test]
    fn options_without_meaning_are_named() {
        let refusal = |words: &[&str]| {
            let command = super::super::RunArguments::augment_args(Command::new("perf"));
            let given = command.try_get_matches_from([&["perf", "file:/tmp/a"], words].concat()).unwrap();
            refuse_options_of_targets(&given).err().map(|failure| failure.to_string())
        };
        assert_eq!(refusal(&["-q", "4", "--spin", "never", "--timeout", "1"]), None);
        let told = refusal(&["-H", "--doorbell", "turn", "--queues", "default=1"]).unwrap();
        for option in ["--header-digest", "--doorbell", "--queues", "they mean nothing"] {
            assert!(told.contains(option), "{told}");
        }
        let told = refusal(&["--hostnqn", "nqn.2024-01.org.nvlane:a"]).unwrap();
        assert!(told.starts_with("--hostnqn is for targets"), "{told}");
    }
}
