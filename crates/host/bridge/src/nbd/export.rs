//! Exports: the namespaces that clients connect to, with their size, block size and flags.

use nbd_wire::ExportFlags;

/// An export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its name; empty for the default export.
    pub name: String,
    /// A line for people.
    pub description: String,
    /// Size, bytes.
    pub size_bytes: u64,
    /// Block size, bytes: requests are multiples of it. A power of two from 512.
    pub block_bytes: u32,
    /// Preferred size of a request, bytes: a power of two, at least a block.
    pub preferred_bytes: u32,
    /// Longest read whose data can be sent in one piece, bytes.
    pub whole_read_bytes_max: u32,
    /// What it supports.
    pub flags: ExportFlags,
    /// Write Zeroes that may leave holes is as fast as Trim.
    pub zeroes_fast: bool,
}
