//! Reading a damaged file: sectors that the disk cannot read count as zeros.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;

/// Bytes read at a time after an error: one sector of 4,096 bytes, or eight of 512.
pub(super) const SECTOR_BYTES: usize = 4096;

/// Reads the bytes of the file there, and zeros behind its end. The first bytes of sectors that the disk cannot read
/// (EIO) are added to `unreadable`; these are zeros, too.
///
/// # Errors
/// Any other error of the disk.
pub(super) fn read_around(
    file: &File,
    offset: u64,
    into: &mut [u8],
    unreadable: &mut BTreeSet<u64>,
) -> io::Result<()> {
    read_with(&mut |into, offset| file.read_at(into, offset), offset, into, unreadable)
}

fn read_with(
    read: &mut dyn FnMut(&mut [u8], u64) -> io::Result<usize>,
    offset: u64,
    into: &mut [u8],
    unreadable: &mut BTreeSet<u64>,
) -> io::Result<()> {
    let (mut at, mut is_by_sector) = (0, false);
    while at < into.len() {
        let from = offset + at as u64;
        let to = (from + 1).next_multiple_of(SECTOR_BYTES as u64);
        let left = into.len() - at;
        let wanted = if is_by_sector { left.min(usize::try_from(to - from).unwrap_or(left)) } else { left };
        let end = at + wanted;
        match read(&mut into[at..end], from) {
            Ok(0) => {
                into[at..].fill(0);
                break;
            }
            Ok(count) => at += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() != Some(Errno::IO.raw_os_error()) => return Err(error),
            Err(_) if !is_by_sector => is_by_sector = true,
            Err(_) => {
                into[at..end].fill(0);
                unreadable.insert(to - SECTOR_BYTES as u64);
                at = end;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk of 20,000 bytes whose second and fourth sectors cannot be read.
    fn read(into: &mut [u8], offset: u64) -> io::Result<usize> {
        let count = into.len().min(20_000_usize.saturating_sub(offset as usize));
        let is_bad = |at: u64| matches!(at / SECTOR_BYTES as u64, 1 | 3);
        if (offset..offset + count as u64).any(is_bad) {
            return Err(Errno::IO.into());
        }
        into[..count].fill(7);
        Ok(count)
    }

    #[test]
    fn all_but_the_sectors_that_cannot_be_read_is_read() {
        let sector_of = |at: u64| at / SECTOR_BYTES as u64;
        for (offset, length) in [(0_u64, 30_000), (100, 15_000), (4096, 4096), (5000, 10), (0, 20_000)] {
            let (mut into, mut unreadable) = (vec![0xee; length], BTreeSet::new());
            read_with(&mut read, offset, &mut into, &mut unreadable).unwrap();
            for (at, &byte) in (offset..).zip(&into) {
                let is_there = at < 20_000 && !matches!(sector_of(at), 1 | 3);
                assert_eq!(byte, if is_there { 7 } else { 0 }, "byte {at} of {length} from {offset}");
            }
            let end = (offset + length as u64).min(20_000);
            let expected =
                [4096, 12_288].into_iter().filter(|at| at + SECTOR_BYTES as u64 > offset && *at < end);
            assert!(unreadable.into_iter().eq(expected), "{length} bytes from {offset}");
        }
    }

    #[test]
    fn another_error_is_no_damage() {
        let mut fails = |_: &mut [u8], _| Err(Errno::NXIO.into());
        let mut unreadable = BTreeSet::new();
        assert!(read_with(&mut fails, 0, &mut [0; 100], &mut unreadable).is_err());
        assert!(unreadable.is_empty());
    }
}
