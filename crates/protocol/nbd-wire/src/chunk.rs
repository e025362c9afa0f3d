//! Replies: what they begin with, and the types of chunks.

/// The beginning of a simple reply.
pub const SIMPLE_MAGIC: u32 = 0x6744_6698;
/// The beginning of a chunk.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;
/// The beginning of a chunk with an extended head.
pub const EXTENDED_MAGIC: u32 = 0x6e8a_278c;

/// Flag of the last chunk of its reply.
pub const DONE: u16 = 1;

/// No payload.
pub const NONE: u16 = 0;
/// Read data, and where it is.
pub const OFFSET_DATA: u16 = 1;
/// A range that reads as zeroes.
pub const OFFSET_HOLE: u16 = 2;
/// Block status.
pub const BLOCK_STATUS: u16 = 5;
/// Block status with lengths of 64 bits.
pub const BLOCK_STATUS_EXT: u16 = 6;
/// The bit of all types that report an error.
pub const IS_ERROR: u16 = 1 << 15;
/// The request failed.
pub const ERROR: u16 = IS_ERROR | 1;
/// The request failed at this place.
pub const ERROR_OFFSET: u16 = IS_ERROR | 2;
