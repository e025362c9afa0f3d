//! A file to put load on, which exists for as long as a study needs it.

use std::path::Path;

use load::runner::{LocalStorage, RunSettings, run_local};
use load::workload::{Pattern, Sizes, Stop, Workload};
use store::FileKind;
use tempfile::TempPath;

use crate::error::Error;

/// A file whose every block has been written, removed with this value.
#[derive(Debug)]
pub(crate) struct ScratchFile {
    path: TempPath,
}

impl ScratchFile {
    /// A file of this size in a directory.
    pub(crate) fn new(directory: &Path, bytes: u64) -> Result<Self, Error> {
        let cannot = |error| Error::system("make a file to put load on", error);
        let file =
            tempfile::Builder::new().prefix("load-").suffix(".img").tempfile_in(directory).map_err(cannot)?;
        file.as_file().set_len(bytes).map_err(cannot)?;
        let scratch = Self { path: file.into_temp_path() };
        // Blocks that were never written would not be read from the disk.
        let fill = Workload {
            pattern: Pattern::named("read", None).expect("a known pattern"),
            sizes: Sizes::one(1 << 20),
            depth: 8,
            warm_up: std::time::Duration::ZERO,
            stop: Stop { operations: Some(1), ..Stop::default() },
            fill: true,
            ..Workload::default()
        };
        run_local(&scratch.storage(), &fill, &RunSettings::default(), &mut ())?;
        Ok(scratch)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file as a place for load.
    pub(crate) fn storage(&self) -> LocalStorage {
        LocalStorage::new(&self.path, FileKind::Regular)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_whole_and_goes_with_its_value() {
        let directory = tempfile::tempdir().unwrap();
        let file = match ScratchFile::new(directory.path(), 4 << 20) {
            Err(Error::Run(error)) => return eprintln!("skipped: {error}"),
            file => file.unwrap(),
        };
        let path = file.path().to_owned();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 4 << 20);
        assert!(bytes.chunks(4096).all(|block| block.iter().any(|byte| *byte != 0)));
        let other = ScratchFile::new(directory.path(), 4 << 20).unwrap();
        assert_ne!(other.path(), path, "what is there is not overwritten");
        drop(file);
        assert!(!path.exists());
    }
}
