//! An archive of small files, in the form of POSIX.1-1988 (ustar), which every tar reads.

/// Bytes of a record.
const RECORD_BYTES: usize = 512;

/// An archive under construction.
pub(super) struct Archive {
    bytes: Vec<u8>,
    /// Of all files, Unix time in seconds.
    time_s: u64,
}

impl Archive {
    pub(super) fn new(time_s: u64) -> Self {
        Self { bytes: Vec::new(), time_s }
    }

    /// Adds a file of mode 0600. Its name has at most 100 bytes.
    pub(super) fn add(&mut self, name: &str, content: &[u8]) {
        let mut header = [0; RECORD_BYTES];
        let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
        put(0, &name[..name.len().min(100)]);
        put(100, "0000600");
        put(108, "0000000");
        put(116, "0000000");
        put(124, &format!("{:011o}", content.len()));
        put(136, &format!("{:011o}", self.time_s));
        // The sum is computed with spaces in its own place.
        put(148, "        ");
        put(156, "0");
        // Version 00 follows a NUL.
        put(257, "ustar");
        put(263, "00");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(content);
        let padded = self.bytes.len().next_multiple_of(RECORD_BYTES);
        self.bytes.resize(padded, 0);
    }

    /// The archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 2 * RECORD_BYTES, 0);
        self.bytes
    }
}
