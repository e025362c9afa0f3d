//! The mark of a key-value file, which hosts cannot reach: hosts of a block namespace may write anything into its file,
//! a superblock too, and must not cause the file to be refused.

use std::os::fd::AsFd;

use rustix::fs::XattrFlags;

/// An extended attribute, where the file system has them.
const NAME: &str = "user.nvlane.contents";
const PAIRS: &[u8] = b"pairs";

/// Marks a file as key-value storage. Unmarked files are classified by their content.
pub(crate) fn set(file: &impl AsFd) {
    let _ = rustix::fs::fsetxattr(file, NAME, PAIRS, XattrFlags::empty());
}

/// Whether a file is marked.
pub(crate) fn is_set(file: &impl AsFd) -> bool {
    let mut value = [0; PAIRS.len() + 1];
    matches!(rustix::fs::fgetxattr(file, NAME, &mut value[..]), Ok(length) if &value[..length] == PAIRS)
}

/// Removes the mark from a file that holds no keys and values any more.
pub(crate) fn clear(file: &impl AsFd) {
    if is_set(file) {
        let _ = rustix::fs::fremovexattr(file, NAME);
    }
}
