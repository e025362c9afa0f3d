//! The health of a file or device while it is served: write protection and lack of space.
//!
//! Reactors note what their operations report, once; the operator's thread looks again every few seconds, so that a
//! namespace recovers by itself when space or the right to write is back.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{SeekFrom, StatVfs, StatVfsMountFlags};
use rustix::io::Errno;

use super::file_open::{self, FileKind, FileSettings, Opened, directory_of, is_device_read_only};
use crate::health::Health;
use crate::open_error::OpenError;
use crate::size::Size;

/// Free space that has to come back before a namespace counts as not full any more, bytes.
const SPACE_BACK_BYTES: u64 = 1 << 20;

/// Time without a refused write after which a namespace is not full any more where free space does not show it, as with
/// a quota or a thin device.
const QUIET: Duration = Duration::from_secs(60);

/// Interval between log lines about writes that are refused for lack of space.
const TELL_INTERVAL: Duration = Duration::from_secs(60);

/// No number of free or allocated bytes is known.
const UNKNOWN: u64 = u64::MAX;

/// The health as all reactors and the control plane see it.
pub(super) struct HealthCell {
    is_write_protected: AtomicBool,
    is_full: AtomicBool,
    spare_percent: AtomicU8,
    free_bytes: AtomicU64,
    allocated_bytes: AtomicU64,
    /// Operations refused for lack of space since the last look.
    refused_count: AtomicU64,
}

impl Default for HealthCell {
    fn default() -> Self {
        Self {
            is_write_protected: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            spare_percent: AtomicU8::new(100),
            free_bytes: AtomicU64::new(UNKNOWN),
            allocated_bytes: AtomicU64::new(UNKNOWN),
            refused_count: AtomicU64::new(0),
        }
    }
}

/// State of the operator's thread between two looks.
#[derive(Default)]
pub(super) struct Looks {
    /// Refusals that were not logged yet.
    untold_count: u64,
    told_at: Option<Instant>,
    /// The last look that found refusals, and the free space then.
    refused: Option<(Instant, Option<u64>)>,
}

/// Space of the file system below a file, and space that the file may still take of it, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Space {
    total: u64,
    free: u64,
    missing: u64,
    allocated: u64,
}

impl Space {
    /// Space that is left, percent.
    fn spare_percent(self) -> u8 {
        if self.free >= self.missing {
            return 100;
        }
        let percent = u128::from(self.free) * 100 / u128::from(self.total.max(1));
        u8::try_from(percent).unwrap_or(100).min(100)
    }
}

impl HealthCell {
    pub(super) fn get(&self) -> Health {
        let bytes = |cell: &AtomicU64| Some(cell.load(Ordering::Relaxed)).filter(|bytes| *bytes != UNKNOWN);
        Health {
            is_write_protected: self.is_write_protected(),
            is_full: self.is_full.load(Ordering::Relaxed),
            spare_percent: self.spare_percent.load(Ordering::Relaxed),
            free_bytes: bytes(&self.free_bytes),
            allocated_bytes: bytes(&self.allocated_bytes),
        }
    }

    pub(super) fn is_write_protected(&self) -> bool {
        self.is_write_protected.load(Ordering::Relaxed)
    }

    /// An operation was refused because the storage is read-only.
    pub(super) fn on_write_protected(&self, name: &str) {
        if !self.is_write_protected.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                name,
                "storage refuses writes: the namespace is read-only and write protected for hosts"
            );
        }
    }

    /// An operation was refused for lack of space.
    pub(super) fn on_full(&self, name: &str) {
        self.refused_count.fetch_add(1, Ordering::Relaxed);
        if !self.is_full.swap(true, Ordering::Relaxed) {
            self.spare_percent.store(0, Ordering::Relaxed);
            tracing::warn!(
                name,
                "no space left: writes to blocks without space end with Capacity Exceeded until there is some"
            );
        }
    }

    /// Begins anew, after the storage was reopened; the next look finds the space.
    pub(super) fn reset(&self) {
        self.is_write_protected.store(false, Ordering::Relaxed);
        self.is_full.store(false, Ordering::Relaxed);
    }

    /// Takes over the space of a file that was opened, or was looked at again.
    pub(super) fn note_space(&self, settings: &FileSettings, opened: &Opened) -> Option<Space> {
        let space = space(settings, opened);
        self.free_bytes.store(space.map_or(UNKNOWN, |space| space.free), Ordering::Relaxed);
        self.allocated_bytes.store(space.map_or(UNKNOWN, |space| space.allocated), Ordering::Relaxed);
        space
    }

    /// Compares with the storage; the operator's report names what has changed. May block.
    pub(super) fn look(&self, looks: &mut Looks, settings: &FileSettings, opened: &Opened, name: &str) {
        if settings.is_read_only {
            return;
        }
        let is_protected = is_write_protected(settings, opened, self.is_write_protected());
        self.is_write_protected.store(is_protected, Ordering::Relaxed);
        let space = self.note_space(settings, opened);
        let refused_count = self.refused_count.swap(0, Ordering::Relaxed);
        let (now, free) = (Instant::now(), space.map(|space| space.free));
        if refused_count > 0 {
            looks.refused = Some((now, free));
            looks.untold_count += refused_count;
            // The first refusal was logged when it happened.
            let told_at = *looks.told_at.get_or_insert(now);
            if now - told_at >= TELL_INTERVAL {
                let free = free.map_or_else(|| "unknown".to_owned(), |free| Size(free).to_string());
                let refused = std::mem::take(&mut looks.untold_count);
                tracing::warn!(name, refused, free, "no space left: writes were refused");
                looks.told_at = Some(now);
            }
        } else if self.is_full.load(Ordering::Relaxed) && looks.is_over(now, free) {
            self.is_full.store(false, Ordering::Relaxed);
            *looks = Looks::default();
        }
        let spare_percent = match self.is_full.load(Ordering::Relaxed) {
            true => 0,
            false => space.map_or(100, Space::spare_percent),
        };
        self.spare_percent.store(spare_percent, Ordering::Relaxed);
    }
}

impl Looks {
    /// Whether the lack of space is over, at a look that found no refused operation.
    fn is_over(&self, now: Instant, free: Option<u64>) -> bool {
        let Some((at, free_then)) = self.refused else { return true };
        let is_back = |(free, then): (u64, u64)| free >= then.saturating_add(SPACE_BACK_BYTES);
        free.zip(free_then).is_some_and(is_back) || now - at >= QUIET
    }
}

/// Space that a file may still need and its file system does not have, and that which it has, bytes. May block.
pub(crate) fn lacking_space(settings: &FileSettings) -> Option<(u64, u64)> {
    if settings.kind == FileKind::Device || settings.is_read_only {
        return None;
    }
    let (bytes, allocated) = match std::fs::metadata(&settings.path) {
        Ok(metadata) => {
            (metadata.len().max(settings.bytes.unwrap_or(0)), metadata.blocks().saturating_mul(512))
        }
        Err(_) => (settings.bytes?, 0),
    };
    let system =
        rustix::fs::statvfs(&settings.path).or_else(|_| rustix::fs::statvfs(directory_of(&settings.path)));
    let (missing, free) = (bytes.saturating_sub(allocated), free(&system.ok()?));
    (free < missing).then_some((missing, free))
}

/// Logs that a file may need more space than its file system has. May block.
pub(crate) fn warn_of_lacking_space(settings: &FileSettings) {
    if let Some((missing, free)) = lacking_space(settings) {
        tracing::warn!(
            path = %settings.path.display(), needs = %Size(missing), free = %Size(free),
            "the file can grow by more than its file system has free: once that is full, writes end with Capacity Exceeded"
        );
    }
}

fn free(system: &StatVfs) -> u64 {
    system.f_bavail.saturating_mul(system.f_frsize)
}

fn space(settings: &FileSettings, opened: &Opened) -> Option<Space> {
    if settings.kind == FileKind::Device {
        return None;
    }
    let stat = rustix::fs::fstat(&opened.data).ok()?;
    let system = rustix::fs::fstatvfs(&opened.data).ok()?;
    let allocated = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
    Some(Space {
        total: system.f_blocks.saturating_mul(system.f_frsize),
        free: free(&system),
        missing: opened.bytes.saturating_sub(allocated),
        allocated: allocated.min(opened.bytes),
    })
}

/// Whether the storage refuses writes now.
fn is_write_protected(settings: &FileSettings, opened: &Opened, was: bool) -> bool {
    if settings.kind == FileKind::Device {
        let stat = rustix::fs::fstat(&opened.keeper).ok();
        return stat.and_then(|stat| is_device_read_only(stat.st_rdev)).unwrap_or(was);
    }
    let system = rustix::fs::fstatvfs(&opened.data);
    if system.is_ok_and(|system| system.f_flag.contains(StatVfsMountFlags::RDONLY)) {
        return true;
    }
    // A file system can refuse writes without being mounted read-only, and so can a single file.
    let is_refusal = |error: OpenError| match error {
        OpenError::System { source, .. } => {
            matches!(Errno::from_io_error(&source), Some(Errno::ROFS | Errno::PERM | Errno::ACCESS))
        }
        _ => false,
    };
    was && file_open::open_again(settings, opened.identity, false).err().is_some_and(is_refusal)
}

/// Does what reactors will do with reopened storage, and what its hosts will do first: opens it once more, rewrites a
/// block with its content, and flushes. Nothing else uses the storage meanwhile.
///
/// # Errors
/// The storage's error.
pub(super) fn check_use(settings: &FileSettings, opened: &Opened) -> Result<(), OpenError> {
    let failed =
        |action, error: io::Error| OpenError::System { action, path: settings.path.clone(), source: error };
    let file = file_open::open_again(settings, opened.identity, opened.traits.is_direct)?;
    if settings.is_read_only {
        return Ok(());
    }
    let length = opened.block_bytes as usize;
    let end = opened.bytes - opened.bytes % u64::from(opened.block_bytes);
    let offsets = match settings.kind {
        // If its first block cannot be read, the others may be in order.
        FileKind::Device => vec![0, end.saturating_sub(length as u64)],
        // Holes stay holes: the write takes no space.
        FileKind::Regular => rustix::fs::seek(&file, SeekFrom::Data(0)).into_iter().collect(),
    };
    let mut memory = vec![0; 2 * length.max(4096)];
    let start = memory.as_ptr().align_offset(length.max(4096));
    let block = &mut memory[start..start + length];
    let mut unreadable = None;
    for offset in
        offsets.into_iter().map(|offset| offset - offset % length as u64).filter(|offset| *offset < end)
    {
        match rustix::io::pread(&file, &mut *block, offset) {
            Ok(count) if count == length => {
                rustix::io::pwrite(&file, &*block, offset)
                    .map_err(|errno| failed("write to", errno.into()))?;
                unreadable = None;
                break;
            }
            Ok(_) => {}
            Err(errno) => unreadable = Some(errno),
        }
    }
    if let Some(errno) = unreadable {
        return Err(failed("read", errno.into()));
    }
    rustix::fs::fdatasync(&file).map_err(|errno| failed("flush", errno.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spare_is_the_free_share_where_a_file_may_need_more() {
        let of = |total, free, missing| Space { total, free, missing, allocated: 0 }.spare_percent();
        assert_eq!(of(1000, 500, 500), 100, "there is space for all of it");
        assert_eq!(of(1000, 500, 501), 50);
        assert_eq!(of(1000, 99, 500), 9);
        assert_eq!(of(1000, 0, 1), 0);
        assert_eq!((of(0, 0, 0), of(0, 0, 1), of(u64::MAX, u64::MAX, 0)), (100, 0, 100));
    }

    #[test]
    fn lack_of_space_is_over_when_some_is_back_or_nothing_was_refused_for_a_while() {
        let at = Instant::now();
        let looks = Looks { refused: Some((at, Some(4096))), ..Looks::default() };
        assert!(!looks.is_over(at, Some(4096)) && !looks.is_over(at, None));
        assert!(!looks.is_over(at, Some(SPACE_BACK_BYTES)));
        assert!(looks.is_over(at, Some(4096 + SPACE_BACK_BYTES)));
        assert!(looks.is_over(at + QUIET, Some(4096)) && looks.is_over(at + QUIET, None));
    }
}
