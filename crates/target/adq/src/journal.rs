//! The changes to a device and its settings before them: a file per interface that outlives a crash and a restart.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use linux::whole_file::{SystemFiles, replace};
use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::state::DeviceState;

/// Where journals are, unless another directory is named.
pub const DIRECTORY: &str = "/var/lib/nvlane-adq";

/// Format of the file.
const VERSION: u32 = 1;

/// Progress of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Progress {
    /// Steps may be done; an end here is a crash.
    Applying,
    /// All steps are done.
    Applied,
}

/// The record of one layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    version: u32,
    /// Its progress.
    pub progress: Progress,
    /// The plan.
    pub plan: Plan,
    /// The settings before the first step.
    pub before: DeviceState,
}

/// Why a journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system refused.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The file is not a journal of this version.
    #[error("{path} is damaged or from another version: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
}

impl Journal {
    /// The record of a plan that is about to be applied.
    #[must_use]
    pub fn new(plan: Plan, before: DeviceState) -> Self {
        Self { version: VERSION, progress: Progress::Applying, plan, before }
    }
}

/// The journal file of one interface.
#[derive(Clone, Debug)]
pub struct JournalFile {
    path: PathBuf,
}

impl JournalFile {
    /// The file for `interface` in `directory`. An interface of another network namespace has a file of its own.
    #[must_use]
    pub fn new(directory: &Path, interface: &str) -> Self {
        let inode = |path: &str| fs::read_link(path).ok();
        let own = inode("/proc/self/ns/net");
        let suffix = match own {
            Some(link) if own_namespace_differs(&link) => {
                let digits: String = link.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
                format!("@{digits}")
            }
            _ => String::new(),
        };
        Self { path: directory.join(format!("{interface}{suffix}.json")) }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the journal; `None` if there is none.
    ///
    /// # Errors
    /// [`JournalError`] with the path and the reason.
    pub fn read(&self) -> Result<Option<Journal>, JournalError> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(self.error(source)),
        };
        let damaged = |reason: String| JournalError::Damaged { path: self.path.clone(), reason };
        let journal: Journal = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        if journal.version != VERSION {
            return Err(damaged(format!("version {} instead of {VERSION}", journal.version)));
        }
        Ok(Some(journal))
    }

    /// Writes the journal so that it is whole after a crash at any time.
    ///
    /// # Errors
    /// [`JournalError`] with the path and the reason.
    pub fn write(&self, journal: &Journal) -> Result<(), JournalError> {
        let text = serde_json::to_vec_pretty(journal).map_err(|error| self.error(error.into()))?;
        let directory = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(directory)
            .and_then(|()| replace(&mut SystemFiles, &self.path, &text))
            .map_err(|source| self.error(source))
    }

    /// Deletes the journal.
    ///
    /// # Errors
    /// [`JournalError`] with the path and the reason.
    pub fn delete(&self) -> Result<(), JournalError> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result.map_err(|source| self.error(source)),
        }
    }

    fn error(&self, source: io::Error) -> JournalError {
        JournalError::File { path: self.path.clone(), source }
    }
}

/// The files of all interfaces of this network namespace in `directory`, by name. None if there is no such directory.
///
/// # Errors
/// If the directory cannot be read.
pub fn files(directory: &Path) -> io::Result<Vec<(String, JournalFile)>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let Some(name) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
        let interface = name.split('@').next().unwrap_or(name).to_owned();
        let file = JournalFile::new(directory, &interface);
        if file.path == path {
            files.push((interface, file));
        }
    }
    files.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    Ok(files)
}

/// Whether this process is in another network namespace than the machine's first process. Not knowable without
/// privilege, which every change needs anyway.
fn own_namespace_differs(own: &Path) -> bool {
    fs::read_link("/proc/1/ns/net").is_ok_and(|first| first != own)
}
