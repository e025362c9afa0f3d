//! Interpretation of a fuzzer's bytes. Nothing here fails: after its end an input continues with zeroes.

/// An input, read from the front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Up to `length` bytes.
    pub(crate) fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.bytes(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    /// A little-endian 16-bit number.
    pub(crate) fn word(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// A little-endian 32-bit number.
    pub(crate) fn dword(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// All remaining bytes.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        self.bytes(usize::MAX)
    }

    /// Damages a valid structure: a count, then offset, length (up to 15) and bytes of each change. This way a fuzzer
    /// need not discover the valid parts of a page.
    pub(crate) fn damage(&mut self, page: &mut [u8]) {
        for _ in 0..self.byte() {
            if self.is_empty() {
                return;
            }
            let offset = usize::from(self.word());
            let length = usize::from(self.byte() & 15);
            let bytes = self.bytes(length);
            if let Some(place) = page.get_mut(offset..).and_then(|rest| rest.get_mut(..bytes.len())) {
                place.copy_from_slice(bytes);
            }
        }
    }
}
