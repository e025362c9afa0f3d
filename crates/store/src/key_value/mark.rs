//! What a file of keys and values is marked with, out of reach of hosts: those of blocks may write whatever they like into theirs, a superblock too,
//! and must not have it refused by that.

use std::os::fd::AsFd;

use rustix::fs::XattrFlags;

/// An extended attribute, where the file system has them.
const NAME: &str = "user.nvlane.contents";
const PAIRS: &[u8] = b"pairs";

/// Marks a file as one of keys and values. Without the mark it is only guessed at.
pub(crate) fn set(file: &impl AsFd) {
    let _ = rustix::fs::fsetxattr(file, NAME, PAIRS, XattrFlags::empty());
}

/// Whether a file is marked so.
pub(crate) fn is_set(file: &impl AsFd) -> bool {
    let mut value = [0; PAIRS.len() + 1];
    matches!(rustix::fs::fgetxattr(file, NAME, &mut value[..]), Ok(length) if &value[..length] == PAIRS)
}

/// Takes the mark of a file that holds keys and values no longer.
pub(crate) fn clear(file: &impl AsFd) {
    if is_set(file) {
        let _ = rustix::fs::fremovexattr(file, NAME);
    }
}
