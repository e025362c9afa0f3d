//! The file that keeps the changes: their difference to the operator's configuration, and the revision.
//!
//! New content is durable beside the file before a change is applied, and gets its name afterwards. After a crash the file
//! has the old or the new content.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use linux::small_file::SmallFile;
use linux::whole_file::{FileCalls, PrivateFiles, Staged, check_place, remove_left, stage, sync_name};
use serde::{Deserialize, Serialize};

use crate::names::Names;
use crate::tree::Difference;

/// Version of the form of the file.
const VERSION: u32 = 1;

/// Limit of the file, bytes: some ten thousand namespaces.
const BYTES_MAX: usize = 16 << 20;

/// The contents of the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// Version of the form.
    version: u32,
    /// Number of changes so far.
    pub revision: u64,
    /// The differences to the operator's configuration.
    pub changes: Vec<Difference>,
    /// What callers with SPDK's methods have named.
    #[serde(default, skip_serializing_if = "Names::is_empty")]
    pub(crate) spdk: Names,
}

/// The file.
pub struct ChangesFile {
    path: PathBuf,
    calls: Box<dyn FileCalls + Send>,
}

impl ChangesFile {
    /// Reads the file, if there is one, and checks that it can be replaced. It is trusted only if it belongs to this
    /// process's user or to root, and is no link.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn open(path: &Path) -> Result<(Self, Kept), String> {
        Self::open_with(path, Box::new(PrivateFiles))
    }

    /// As [`open`](Self::open), with other system calls: those of a test.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(path: &Path, calls: Box<dyn FileCalls + Send>) -> Result<(Self, Kept), String> {
        let wrong = |why: String| format!("{}: {why}", path.display());
        remove_left(path);
        let kept = match SmallFile::open_regular(path) {
            Ok(file) => Self::read(file).map_err(wrong)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Kept { version: VERSION, ..Kept::default() }
            }
            Err(error) => return Err(wrong(error.to_string())),
        };
        check_place(path).map_err(|error| wrong(format!("cannot be written: {error}")))?;
        Ok((Self { path: path.to_owned(), calls }, kept))
    }

    fn read(file: SmallFile) -> Result<Kept, String> {
        let owner = file.metadata().uid();
        let user = rustix::process::geteuid().as_raw();
        if owner != user && owner != 0 {
            return Err(format!(
                "it belongs to user {owner}, and the target runs as user {user}: give it to the latter, or remove it"
            ));
        }
        let text = file.read_text(BYTES_MAX).map_err(|error| error.to_string())?;
        let kept: Kept = serde_json::from_str(&text).map_err(|error| {
            format!("it is not what a target of this version keeps changes in ({error}): move it away")
        })?;
        match kept.version {
            VERSION => Ok(kept),
            other => Err(format!("its version is {other}, and this target knows {VERSION}: move it away")),
        }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes new content beside the file.
    pub(crate) fn stage(&mut self, kept: &Kept) -> io::Result<Staged> {
        let mut text = serde_json::to_string_pretty(kept)?;
        text.push('\n');
        stage(&mut *self.calls, &self.path, text.as_bytes())
    }

    /// Gives staged content the name of the file. From then on a start finds it. Returns the error of a call that
    /// was to make the name durable: the content is in place, but a power cut may take it back.
    pub(crate) fn commit(&mut self, staged: Staged) -> io::Result<io::Result<()>> {
        staged.rename(&mut *self.calls)?;
        Ok(sync_name(&mut *self.calls, &self.path))
    }

    /// Removes staged content.
    pub(crate) fn discard(&mut self, staged: Staged) {
        staged.discard(&mut *self.calls);
    }
}

impl Kept {
    pub(crate) fn new(revision: u64, changes: Vec<Difference>, spdk: Names) -> Self {
        Self { version: VERSION, revision, changes, spdk }
    }
}
