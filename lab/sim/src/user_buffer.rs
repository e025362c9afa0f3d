//! The buffer of a user's command, which knows how much of it was sent.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use host_core::DataBuffer;

#[derive(Debug, Default)]
pub(crate) struct UserBuffer {
    pub(crate) bytes: Vec<u8>,
    /// Bytes that the socket has taken.
    pub(crate) sent_bytes: Rc<Cell<usize>>,
}

impl From<Vec<u8>> for UserBuffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, sent_bytes: Rc::default() }
    }
}

impl DataBuffer for UserBuffer {
    const FOLLOWS_DATA: bool = true;

    fn length(&self) -> usize {
        self.bytes.len()
    }

    fn part(&self, offset: usize) -> &[u8] {
        &self.bytes[offset..]
    }

    fn part_mut(&mut self, offset: usize) -> &mut [u8] {
        &mut self.bytes[offset..]
    }

    fn on_sent(&mut self, range: Range<usize>) {
        self.sent_bytes.set(range.end);
    }
}
