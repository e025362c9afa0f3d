//! Tables and contexts of receive-side scaling: `struct ethtool_rxfh`.

use std::collections::BTreeMap;

use rustix::io::Errno;

use super::{Ioctl, is_unsupported, put_u32, words};
use crate::netlink::message::u32_at;

const GET: u32 = 0x46;
const SET: u32 = 0x47;
/// Bytes before the table.
const HEADER_BYTES: usize = 24;
/// In place of a context's number: a new one.
const NEW_CONTEXT: u32 = u32::MAX;
/// Contexts are looked for up to this number: kernels and drivers give the lowest free one.
const CONTEXT_MAX: u32 = 64;
/// Longest table that is believed.
const TABLE_LENGTH_MAX: usize = 64 * 1024;

fn request(command: u32, context: u32, table: &[u32], key_bytes: usize) -> Vec<u8> {
    let mut request = vec![0; HEADER_BYTES + 4 * table.len() + key_bytes];
    put_u32(&mut request, 0, command);
    put_u32(&mut request, 4, context);
    put_u32(&mut request, 8, u32::try_from(table.len()).expect("a bounded table"));
    put_u32(&mut request, 12, u32::try_from(key_bytes).expect("a bounded key"));
    for (place, queue) in table.iter().enumerate() {
        put_u32(&mut request, HEADER_BYTES + 4 * place, *queue);
    }
    request
}

impl Ioctl {
    /// The table of a context, or of the default with number 0.
    fn table(&self, context: u32) -> Result<Vec<u32>, Errno> {
        let mut lengths = request(GET, context, &[], 0);
        self.exchange(&mut lengths)?;
        let word = |at| u32_at(&lengths, at).unwrap_or(0) as usize;
        let (length, key_bytes) = (word(8), word(12));
        if length > TABLE_LENGTH_MAX || key_bytes > TABLE_LENGTH_MAX {
            return Err(Errno::OVERFLOW);
        }
        let mut answer = request(GET, context, &vec![0; length], key_bytes);
        self.exchange(&mut answer)?;
        Ok(words(&answer, HEADER_BYTES, length))
    }

    /// The table for packets that no rule steers; empty if the driver has none.
    ///
    /// # Errors
    /// The driver's reason.
    pub fn default_table(&self) -> Result<Vec<u32>, Errno> {
        match self.table(0) {
            Err(errno) if is_unsupported(errno) => Ok(Vec::new()),
            result => result,
        }
    }

    /// The contexts with their tables; `None` if the driver of this kernel has no contexts.
    #[must_use]
    pub fn contexts(&self) -> Option<BTreeMap<u32, Vec<u32>>> {
        let mut contexts = BTreeMap::new();
        for context in 1..=CONTEXT_MAX {
            match self.table(context) {
                Ok(table) => {
                    contexts.insert(context, table);
                }
                Err(errno) if is_unsupported(errno) => return None,
                // ENOENT from most drivers, EINVAL from some: there is none of this number.
                Err(_) => {}
            }
        }
        Some(contexts)
    }

    /// Sets the table of the default; an empty one stands for the kernel's choice.
    ///
    /// # Errors
    /// The driver's reason.
    pub fn set_default_table(&self, table: &[u32]) -> Result<(), Errno> {
        self.exchange(&mut request(SET, 0, table, 0))
    }

    /// Makes a context with this table.
    ///
    /// # Errors
    /// The driver's reason.
    pub fn add_context(&self, table: &[u32]) -> Result<(), Errno> {
        self.exchange(&mut request(SET, NEW_CONTEXT, table, 0))
    }

    /// Deletes a context.
    ///
    /// # Errors
    /// The driver's reason: a rule leads to it, for some.
    pub fn delete_context(&self, context: u32) -> Result<(), Errno> {
        self.exchange(&mut request(SET, context, &[], 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::message::tests::bytes_of;
    use crate::netlink::qdisc::QueueRange;
    use crate::scaling::Table;

    /// Bytes of ethtool 6.1, from a library between it and the kernel that answers with a table of 8 entries.
    #[test]
    fn requests_are_what_ethtool_sends() {
        let entries = |first, count| Table::Queues(QueueRange { first, count }).entries(8, 12);
        for (golden, sent) in [
            // ethtool -x eth0 context 1, first the lengths and then 8 entries with a key of 4 bytes
            ("460000000100000000000000000000000000000000000000", request(GET, 1, &[], 0)),
            // ethtool -X eth0 equal 8
            (
                "4700000000000000080000000000000000000000000000000000000001000000020000000300000004000000050000000600000007000000",
                request(SET, 0, &entries(0, 8), 0),
            ),
            // ethtool -X eth0 context new start 8 equal 4
            (
                "47000000ffffffff0800000000000000000000000000000008000000090000000a0000000b00000008000000090000000a0000000b000000",
                request(SET, NEW_CONTEXT, &entries(8, 4), 0),
            ),
            // ethtool -X eth0 context 1 delete
            ("470000000100000000000000000000000000000000000000", request(SET, 1, &[], 0)),
            // ethtool -X eth0 default
            ("470000000000000000000000000000000000000000000000", request(SET, 0, &[], 0)),
        ] {
            assert_eq!(sent, bytes_of(golden));
        }
        let whole = request(GET, 1, &[0; 8], 4);
        assert_eq!(whole[..HEADER_BYTES], bytes_of("460000000100000008000000040000000000000000000000"));
        assert_eq!(whole.len(), HEADER_BYTES + 32 + 4);
    }

    #[test]
    fn a_device_without_tables_says_so() {
        let ioctl = Ioctl::open("lo").unwrap();
        assert_eq!(ioctl.default_table(), Ok(Vec::new()));
        assert_eq!(ioctl.contexts(), None);
        assert!(ioctl.add_context(&[0]).is_err());
    }
}
