//! TLS of a connection as the network sees it: whether only records go by; their content, which both ends report; and
//! whether each end stops at a record that was damaged on the way.

use std::collections::VecDeque;
use std::ops::Range;

use super::Side;
use crate::finding::Finding;
use crate::tls_right::{Channel, Right};

/// Bytes of a record before its content: type, version, length.
const HEADER_BYTES: usize = 5;

/// The most that an encrypted record has behind that, bytes.
const RECORD_BYTES_MAX: usize = (1 << 14) + 256;

/// The types of records.
const TYPES: std::ops::RangeInclusive<u8> = 20..=23;

/// The type of encrypted ones.
const ENCRYPTED: u8 = 23;

/// Bytes of plaintext that must not go by unencrypted.
const SAMPLE_BYTES: usize = 16;

/// A record among sent bytes.
#[derive(Debug)]
struct Record {
    /// `u64::MAX` as its end until its header is complete.
    bytes: Range<u64>,
    is_encrypted: bool,
}

/// One direction of a connection.
#[derive(Debug, Default)]
struct Direction {
    header: Vec<u8>,
    /// Bytes of the record behind its header that were not sent yet.
    rest: usize,
    sent_bytes: u64,
    /// The records of the last send, and the one that it has begun.
    records: Vec<Record>,
    /// Where the first record ends that has a wrong bit behind its header.
    damaged_end: Option<u64>,
    /// Plaintext that was encrypted and not decrypted yet.
    plaintext: VecDeque<u8>,
    decrypted_bytes: u64,
    /// A part of the plaintext that was encrypted last.
    sample: Option<[u8; SAMPLE_BYTES]>,
}

/// The TLS of one connection.
#[derive(Debug, Default)]
pub(crate) struct TlsView {
    pub(crate) channel: Channel,
    right: Option<Right>,
    /// A bit was wrong that may belong to a length.
    pub(crate) has_damaged_length: bool,
    /// By sending end.
    directions: [Direction; 2],
}

impl TlsView {
    pub(crate) fn set_channel(&mut self, channel: Channel) {
        self.channel = channel;
    }

    /// Settles whether it may be served, unless that is settled.
    pub(crate) fn settle_right(&mut self, right: Right) {
        self.right.get_or_insert(right);
    }

    pub(crate) fn right(&self) -> Right {
        self.right.unwrap_or_default()
    }

    /// Whether its host speaks TLS.
    pub(crate) fn is_secured(&self) -> bool {
        self.channel != Channel::Clear
    }

    /// Plaintext that an end has decrypted, bytes.
    pub(crate) fn decrypted_bytes(&self, by: Side) -> u64 {
        self.directions[by.other() as usize].decrypted_bytes
    }

    /// Bytes go out, which must be records.
    pub(crate) fn on_sent(&mut self, from: Side, bytes: &[u8]) -> Result<(), Finding> {
        let direction = &mut self.directions[from as usize];
        if let Some(sample) = &direction.sample
            && bytes.windows(SAMPLE_BYTES).any(|window| window == sample)
        {
            return Err(format!("{from:?} sends in cleartext what TLS has encrypted: {sample:02x?}"));
        }
        direction.on_sent(bytes).map_err(|what| format!("{from:?} sends {what} where TLS is spoken"))
    }

    /// A byte of the last send of an end is wrong: its place among all bytes that the end has sent.
    pub(crate) fn on_damaged(&mut self, from: Side, at: u64) {
        let Direction { records, damaged_end, .. } = &mut self.directions[from as usize];
        let Some(record) = records.iter().find(|record| record.bytes.contains(&at)) else { return };
        // With another length in its header a record ends elsewhere, and so do those behind it; and an unencrypted
        // message of a handshake goes on with another length in its own.
        if self.has_damaged_length {
            return;
        }
        if !record.is_encrypted || at < record.bytes.start + HEADER_BYTES as u64 {
            self.has_damaged_length = true;
        } else {
            damaged_end.get_or_insert(record.bytes.end);
        }
    }

    /// Whether an end that has received this number of bytes has, for the first time, all of a record with a wrong bit.
    pub(crate) fn takes_damaged(&mut self, by: Side, received_bytes: u64) -> bool {
        let damaged_end = &mut self.directions[by.other() as usize].damaged_end;
        damaged_end.take_if(|end| *end <= received_bytes).is_some()
    }

    /// Whether an end that has received this number of bytes lacks the rest of a record.
    pub(crate) fn has_part(&self, by: Side, received_bytes: u64) -> bool {
        let records = &self.directions[by.other() as usize].records;
        records.iter().any(|Record { bytes, .. }| bytes.start < received_bytes && received_bytes < bytes.end)
    }

    /// An end has encrypted this.
    pub(crate) fn on_encrypted(&mut self, by: Side, plaintext: &[u8]) {
        let direction = &mut self.directions[by as usize];
        direction.plaintext.extend(plaintext);
        // Some ciphertext has a few equal bytes in a row.
        direction.sample =
            plaintext.last_chunk().filter(|sample| sample.iter().any(|byte| *byte != sample[0])).copied();
    }

    /// An end has decrypted this.
    pub(crate) fn on_decrypted(&mut self, by: Side, plaintext: &[u8]) -> Result<(), Finding> {
        let direction = &mut self.directions[by.other() as usize];
        direction.decrypted_bytes += plaintext.len() as u64;
        // By slices, which is quicker than byte by byte.
        let (front, back) = direction.plaintext.as_slices();
        let (first, second) = plaintext.split_at(front.len().min(plaintext.len()));
        if front.starts_with(first) && back.starts_with(second) {
            direction.plaintext.drain(..plaintext.len());
            return Ok(());
        }
        Err(format!("TLS gives {by:?} {} bytes that were not sent", plaintext.len()))
    }
}

impl Direction {
    fn on_sent(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        let (sent_bytes, rest) = (self.sent_bytes, self.rest as u64);
        let is_begun = |end: u64| rest > 0 && end == sent_bytes + rest || end == u64::MAX;
        self.records.retain(|record| is_begun(record.bytes.end));
        while let [first, ..] = bytes {
            if self.rest == 0 {
                if self.header.is_empty() {
                    let bytes = self.sent_bytes..u64::MAX;
                    self.records.push(Record { bytes, is_encrypted: *first == ENCRYPTED });
                }
                self.header.push(*first);
                bytes = &bytes[1..];
                self.sent_bytes += 1;
                if let [kind, major, minor, high, low] = self.header[..] {
                    let length = usize::from(u16::from_be_bytes([high, low]));
                    if !TYPES.contains(&kind)
                        || major != 3
                        || !matches!(minor, 1 | 3)
                        || length == 0
                        || length > RECORD_BYTES_MAX
                    {
                        return Err(format!("{:02x?}, which is no record,", self.header));
                    }
                    self.header.clear();
                    self.rest = length;
                    if let Some(record) = self.records.last_mut() {
                        record.bytes.end = self.sent_bytes + length as u64;
                    }
                }
                continue;
            }
            let count = self.rest.min(bytes.len());
            bytes = &bytes[count..];
            self.rest -= count;
            self.sent_bytes += count as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, content: &[u8]) -> Vec<u8> {
        [&[kind, 3, 3, 0, content.len() as u8], content].concat()
    }

    #[test]
    fn records_are_told_from_other_bytes_however_they_are_cut() {
        let stream = [record(22, &[1; 30]), record(23, &[2; 17])].concat();
        for step in 1..stream.len() {
            let mut view = TlsView::default();
            assert!(stream.chunks(step).all(|bytes| view.on_sent(Side::Host, bytes).is_ok()), "{step}");
            assert!(view.on_sent(Side::Host, &[4, 0, 72, 0, 72, 0, 0, 0]).is_err(), "{step}: a PDU");
        }
    }

    #[test]
    fn plaintext_is_found_in_clear_and_where_it_was_not_sent() {
        let (mut view, text) = (TlsView::default(), b"0123456789abcdefghi");
        view.on_encrypted(Side::Target, text);
        let clear = view.on_sent(Side::Target, &record(23, &text[1..]));
        assert!(clear.is_err_and(|finding| finding.contains("in cleartext")));
        assert_eq!(view.on_decrypted(Side::Host, &text[..10]), Ok(()));
        assert_eq!(view.decrypted_bytes(Side::Host), 10);
        assert!(view.on_decrypted(Side::Host, b"x").is_err(), "another byte");
        assert!(view.on_decrypted(Side::Host, text).is_err(), "more than was sent");
    }

    #[test]
    fn a_damaged_record_is_noticed_once_all_of_it_has_arrived() {
        let mut view = TlsView::default();
        view.on_sent(Side::Host, &record(23, &[1; 40])).unwrap();
        view.on_sent(Side::Host, &record(23, &[1; 40])).unwrap();
        view.on_damaged(Side::Host, 50);
        assert!(!view.takes_damaged(Side::Target, 89) && view.has_part(Side::Target, 89));
        assert!(view.takes_damaged(Side::Target, 90) && !view.takes_damaged(Side::Target, 90));
        assert!(!view.has_part(Side::Target, 90));
        view.on_damaged(Side::Host, 47);
        view.on_damaged(Side::Host, 60);
        assert!(
            view.has_damaged_length && !view.takes_damaged(Side::Target, 90),
            "it may have another length"
        );
    }
}
