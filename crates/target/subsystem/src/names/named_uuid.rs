//! UUIDs of version 5: made of names, below one root.

use sha1_smol::Sha1;
use wire::uuid::Uuid;

/// Above all names made here. It is itself made of the name `nvlane` below the well-known namespace of URLs.
pub const ROOT: Uuid = Uuid::from_bytes([
    0xAE, 0x06, 0xC9, 0x23, 0xB1, 0x09, 0x5D, 0x29, 0x94, 0x7A, 0x17, 0x43, 0xE6, 0x23, 0x44, 0x25,
]);

/// The UUID of version 5 of `name` below `root`.
#[must_use]
pub fn named(root: Uuid, name: &str) -> Uuid {
    let mut sha1 = Sha1::new();
    sha1.update(&root.to_bytes());
    sha1.update(name.as_bytes());
    let digest = sha1.digest().bytes();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    bytes[6] = bytes[6] & 0x0F | 0x50;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    Uuid::from_bytes(bytes)
}
