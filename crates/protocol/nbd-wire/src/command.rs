//! The commands of requests.

/// Read.
pub const READ: u16 = 0;
/// Write.
pub const WRITE: u16 = 1;
/// The client ends the connection.
pub const DISCONNECT: u16 = 2;
/// Make completed writes durable.
pub const FLUSH: u16 = 3;
/// Advice that a range is not needed.
pub const TRIM: u16 = 4;
/// Advice that a range will be read.
pub const CACHE: u16 = 5;
/// Write zeroes.
pub const WRITE_ZEROES: u16 = 6;
/// Tell which parts of a range are allocated.
pub const BLOCK_STATUS: u16 = 7;
