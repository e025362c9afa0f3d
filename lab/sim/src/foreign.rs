//! The identities of the second machine's namespaces.

use wire::uuid::Uuid;

/// The bit that distinguishes the first byte of an identity of the second machine.
pub(crate) const FOREIGN_NAME: u8 = 0x80;

/// Whether an identity is that of the second machine.
pub(crate) fn is_foreign(uuid: Option<Uuid>) -> bool {
    uuid.is_some_and(|uuid| uuid.to_bytes()[0] & FOREIGN_NAME != 0)
}
