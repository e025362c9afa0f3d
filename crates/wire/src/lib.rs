//! Bytes to typed values and back: no state, no I/O, no unsafe.
#![forbid(unsafe_code)]
