//! What a client sends, taken apart: lines of text, binary headers, numbers.

pub(super) mod binary;
pub(super) mod decode;
pub(super) mod decoded;
