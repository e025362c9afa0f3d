//! The records of an established session: encrypted, decrypted, and counted. RFC 8446 section 5
//!
//! The library makes the handshake and hands its secrets over. A record is decrypted from the bytes of the socket straight
//! into the reader's memory, and encrypted where it is sent from: the library copies each byte twice more.

use zeroize::Zeroize;

use super::post_handshake::{Message, PostHandshake};
use super::record_error::RecordError;
use super::record_key::{RecordKey, TAG_BYTES};
use super::{Alert, Read};
use crate::psk::Cipher;
use crate::secret_bytes::SecretBytes;

/// Input that is taken in at once, bytes: eight full records.
const INPUT_BYTES: usize = 8 * (HEADER_BYTES + PLAIN_BYTES_MAX + 1 + TAG_BYTES);

/// Input of a peer that has not sent more at once, bytes: the longest record.
const FIRST_INPUT_BYTES: usize = HEADER_BYTES + SEALED_BYTES_MAX;

const HEADER_BYTES: usize = 5;

/// Most plaintext of a record, bytes.
const PLAIN_BYTES_MAX: usize = 16 << 10;

/// Most bytes of a record after its header.
const SEALED_BYTES_MAX: usize = PLAIN_BYTES_MAX + 256;

/// Records that one key encrypts before the next one takes over: for more, the confidentiality of AES-GCM has no proof.
/// RFC 8446 section 5.5
const KEY_RECORDS_MAX: u64 = 23_726_566;

/// Content types of records.
const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

/// An alert that announces close_notify.
const USER_CANCELED: Alert = Alert(90);

/// Where one direction of a session goes on after the handshake.
pub(super) struct Traffic {
    pub(super) secret: SecretBytes,
    /// Records with the key of this secret so far: their nonces are used.
    pub(super) record_count: u64,
}

/// Both directions, by the role that sends.
pub(super) struct TrafficOfBoth {
    pub(super) host: Traffic,
    pub(super) target: Traffic,
}

/// Both directions of an established session.
pub(super) struct Records {
    is_host: bool,
    sealing: RecordKey,
    opening: RecordKey,
    /// Bytes of the peer at `start..end`. Empty while there are none: idle connections have no buffer.
    input: Vec<u8>,
    start: usize,
    end: usize,
    /// The peer fills it: it has its full size.
    is_filled: bool,
    /// The peer sends no more.
    is_ended: bool,
    /// The peer has said so, by close_notify.
    is_peer_closed: bool,
    /// A record that did not fit into the reader's memory; its plaintext at `plain_start..plain_end` was not read yet.
    plain: Vec<u8>,
    plain_start: usize,
    plain_end: usize,
    post_handshake: PostHandshake,
    /// The next record takes another key.
    updates_key: bool,
    /// Records of a key; tests have fewer.
    pub(super) key_records_max: u64,
    /// Bytes for the peer; those before `sent` have left.
    output: Vec<u8>,
    sent: usize,
    /// Nothing is sent any more.
    is_closed: bool,
}

impl Records {
    /// The records after a handshake. `input` was received behind it, `output` is the rest of it to be sent.
    pub(super) fn new(
        is_host: bool,
        cipher: Cipher,
        traffic: TrafficOfBoth,
        input: &[u8],
        output: Vec<u8>,
    ) -> Self {
        let TrafficOfBoth { host, target } = traffic;
        let (own, peer) = if is_host { (host, target) } else { (target, host) };
        Self {
            is_host,
            sealing: RecordKey::new(cipher, own.secret, own.record_count),
            opening: RecordKey::new(cipher, peer.secret, peer.record_count),
            input: input.to_vec(),
            start: 0,
            end: input.len(),
            is_filled: false,
            is_ended: false,
            is_peer_closed: false,
            plain: Vec::new(),
            plain_start: 0,
            plain_end: 0,
            post_handshake: PostHandshake::default(),
            updates_key: false,
            key_records_max: KEY_RECORDS_MAX,
            output,
            sent: 0,
            is_closed: false,
        }
    }

    /// Room for bytes of the peer: at least for the rest of a record.
    pub(super) fn input_room(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end.saturating_sub(self.start));
        }
        let most = if self.is_filled { INPUT_BYTES } else { FIRST_INPUT_BYTES };
        if self.input.len() < most {
            self.input.resize(most, 0);
        }
        self.input.get_mut(self.end..).unwrap_or_default()
    }

    /// This number of bytes was received.
    pub(super) fn on_input(&mut self, count: usize) {
        self.end = self.end.saturating_add(count).min(self.input.len());
        self.is_filled |= self.end == self.input.len();
    }

    /// The peer sends no more.
    pub(super) fn on_input_end(&mut self) {
        self.is_ended = true;
    }

    /// Whether a read has a result: plaintext, a complete record, or an error.
    pub(super) fn has_input(&self) -> bool {
        self.plain_start < self.plain_end || (!self.is_peer_closed && !matches!(self.next_record(), Ok(None)))
    }

    /// Whether a record has begun that is not complete, and nothing else is there.
    pub(super) fn is_within_record(&self) -> bool {
        self.start < self.end && !self.is_peer_closed && !self.has_input()
    }

    /// Decrypts into `into`, which has room for a byte or more.
    pub(super) fn read(&mut self, into: &mut [u8]) -> Result<Read, RecordError> {
        loop {
            if self.plain_start < self.plain_end {
                return Ok(Read::Bytes(self.take_plain(into)));
            }
            if self.is_peer_closed {
                return Ok(Read::Ended);
            }
            let Some((header, sealed)) = self.next_record()? else {
                return Ok(if self.is_ended { Read::Ended } else { Read::Dry });
            };
            self.start = self.start.saturating_add(HEADER_BYTES).saturating_add(sealed);
            let record = self.start.saturating_sub(sealed)..self.start;
            let record = self.input.get(record).unwrap_or_default();
            let opened_bytes = sealed.saturating_sub(TAG_BYTES);
            // The type of the record, and its padding, need room as well.
            let fits = into.len() >= opened_bytes;
            if !fits && self.plain.len() < opened_bytes {
                self.plain.resize(PLAIN_BYTES_MAX + 256, 0);
            }
            let place = if fits { &mut *into } else { self.plain.as_mut_slice() };
            let place = place.get_mut(..opened_bytes).unwrap_or_default();
            if !self.opening.open(&header, record, place) {
                return Err(broken("a record is not what the peer sealed", Alert::BAD_RECORD_MAC));
            }
            let Some(end) = place.iter().rposition(|&byte| byte != 0) else {
                return Err(broken("a record without a type", Alert::UNEXPECTED_MESSAGE));
            };
            let (content, kind) = place.split_at(end);
            if content.len() > PLAIN_BYTES_MAX {
                return Err(broken("a record is too long", Alert::RECORD_OVERFLOW));
            }
            match kind.first().copied() {
                Some(APPLICATION_DATA) if self.post_handshake.is_within_message() => {
                    return Err(broken("data within a message of the handshake", Alert::UNEXPECTED_MESSAGE));
                }
                Some(APPLICATION_DATA) if content.is_empty() => {}
                Some(APPLICATION_DATA) if fits => return Ok(Read::Bytes(end)),
                Some(APPLICATION_DATA) => (self.plain_start, self.plain_end) = (0, end),
                Some(HANDSHAKE) => match self.post_handshake.take(self.is_host, content)? {
                    Some(Message::KeyUpdate { wants_answer }) => {
                        self.opening.update();
                        self.updates_key |= wants_answer;
                    }
                    None => {}
                },
                Some(ALERT) => {
                    let [_, alert] = *content else {
                        return Err(broken("a malformed alert", Alert::DECODE_ERROR));
                    };
                    match Alert(alert) {
                        Alert::CLOSE_NOTIFY => self.is_peer_closed = true,
                        USER_CANCELED => {}
                        alert => return Err(RecordError::Alert(alert)),
                    }
                }
                _ => return Err(broken("a record of an unknown type", Alert::UNEXPECTED_MESSAGE)),
            }
        }
    }

    /// The header of the next record, and the number of bytes behind it; `None` until it is complete.
    fn next_record(&self) -> Result<Option<([u8; HEADER_BYTES], usize)>, RecordError> {
        let available = self.input.get(self.start..self.end).unwrap_or_default();
        let Some((header, rest)) = available.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let [kind, _, _, high, low] = *header;
        if kind != APPLICATION_DATA {
            let message = match kind {
                CHANGE_CIPHER_SPEC => "a change of cipher suite after the handshake",
                ALERT => "an alert without encryption",
                HANDSHAKE => "a message of the handshake without encryption, such as a second ClientHello",
                _ => "bytes that are no record of TLS",
            };
            return Err(broken(message, Alert::UNEXPECTED_MESSAGE));
        }
        let sealed = usize::from(u16::from_be_bytes([high, low]));
        if sealed > SEALED_BYTES_MAX {
            return Err(broken("a record is too long", Alert::RECORD_OVERFLOW));
        }
        if sealed <= TAG_BYTES {
            return Err(broken("a record is too short", Alert::BAD_RECORD_MAC));
        }
        Ok((rest.len() >= sealed).then_some((*header, sealed)))
    }

    fn take_plain(&mut self, into: &mut [u8]) -> usize {
        let waiting = self.plain.get(self.plain_start..self.plain_end).unwrap_or_default();
        let count = waiting.len().min(into.len());
        if let (Some(into), Some(waiting)) = (into.get_mut(..count), waiting.get(..count)) {
            into.copy_from_slice(waiting);
        }
        self.plain_start = self.plain_start.saturating_add(count);
        count
    }

    /// Encrypts the plaintext that `append` puts behind the bytes of the output, a record at a time: it is given the most
    /// that it may put there, and puts nothing at the end. Returns the bytes encrypted; none once the session is closed.
    pub(super) fn write(&mut self, mut append: impl FnMut(&mut Vec<u8>, usize)) -> usize {
        let mut count = 0_usize;
        while !self.is_closed {
            if self.updates_key || self.sealing.record_count() >= self.key_records_max {
                self.seal(HANDSHAKE, |output| output.extend_from_slice(&Message::KEY_UPDATE));
                self.sealing.update();
                self.updates_key = false;
            }
            match self.seal(APPLICATION_DATA, |output| append(output, PLAIN_BYTES_MAX)) {
                0 => break,
                taken => count = count.saturating_add(taken),
            }
        }
        count
    }

    /// Puts a record with the content that `append` gives behind the output; nothing without content. Returns the bytes of
    /// the content.
    fn seal(&mut self, kind: u8, append: impl FnOnce(&mut Vec<u8>)) -> usize {
        if self.sent == self.output.len() {
            self.output.clear();
            self.sent = 0;
        }
        let begin = self.output.len();
        self.output.extend_from_slice(&[0; HEADER_BYTES]);
        let content_begin = self.output.len();
        append(&mut self.output);
        let content_bytes = self.output.len().saturating_sub(content_begin);
        if content_bytes == 0 {
            self.output.truncate(begin);
            return 0;
        }
        let sealed = content_bytes.saturating_add(1).saturating_add(TAG_BYTES);
        let [high, low] = u16::try_from(sealed).unwrap_or(u16::MAX).to_be_bytes();
        let header = [APPLICATION_DATA, 3, 3, high, low];
        if let Some(place) = self.output.get_mut(begin..content_begin) {
            place.copy_from_slice(&header);
        }
        let mut tail = [0; 1 + TAG_BYTES];
        let content = self.output.get_mut(content_begin..).unwrap_or_default();
        if !self.sealing.seal(&header, content, kind, &mut tail) {
            // Not with these lengths; nothing may leave unencrypted.
            content.zeroize();
            self.output.truncate(begin);
            self.is_closed = true;
            return 0;
        }
        self.output.extend_from_slice(&tail);
        content_bytes
    }

    /// Bytes to send.
    pub(super) fn output(&self) -> &[u8] {
        self.output.get(self.sent..).unwrap_or_default()
    }

    /// The first `count` bytes of the output were sent.
    pub(super) fn on_sent(&mut self, count: usize) {
        self.sent = self.sent.saturating_add(count).min(self.output.len());
    }

    /// Whether nothing is sent any more.
    pub(super) const fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Changes the key before the next record.
    pub(super) fn update_key(&mut self) {
        self.updates_key = true;
    }

    /// Ends the sending direction with an alert.
    pub(super) fn close(&mut self, alert: Alert) {
        const WARNING: u8 = 1;
        const FATAL: u8 = 2;
        if !self.is_closed {
            let level = if alert == Alert::CLOSE_NOTIFY { WARNING } else { FATAL };
            self.seal(ALERT, |output| output.extend_from_slice(&[level, alert.0]));
            self.is_closed = true;
        }
    }

    /// Frees the buffers that are empty.
    pub(super) fn shrink(&mut self) {
        // A part of a record stays.
        self.input.truncate(self.end);
        self.input.drain(..self.start.min(self.end));
        self.input.shrink_to_fit();
        (self.start, self.end) = (0, self.input.len());
        self.is_filled = false;
        if self.plain_start == self.plain_end {
            (self.plain_start, self.plain_end) = (0, 0);
            self.plain = Vec::new();
        }
        if self.sent == self.output.len() {
            self.sent = 0;
            self.output = Vec::new();
        }
    }
}

const fn broken(message: &'static str, alert: Alert) -> RecordError {
    RecordError::Broken(message, alert)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets() -> TrafficOfBoth {
        let traffic = |byte| Traffic { secret: vec![byte; 32].into(), record_count: 0 };
        TrafficOfBoth { host: traffic(1), target: traffic(2) }
    }

    /// A target's records, and the key of its host.
    fn target() -> (Records, RecordKey) {
        let cipher = Cipher::Aes128GcmSha256;
        let records = Records::new(false, cipher, secrets(), &[], Vec::new());
        (records, RecordKey::new(cipher, secrets().host.secret, 0))
    }

    /// A record of a host with `padding` bytes of zero.
    fn record(key: &mut RecordKey, kind: u8, content: &[u8], padding: usize) -> Vec<u8> {
        let mut plain = [content, &[kind], &vec![0; padding]].concat();
        let sealed = plain.len() + TAG_BYTES;
        let [high, low] = u16::try_from(sealed).unwrap().to_be_bytes();
        let header = [APPLICATION_DATA, 3, 3, high, low];
        let last = plain.pop().expect("the type, or padding");
        let mut tail = [0; 1 + TAG_BYTES];
        assert!(key.seal(&header, &mut plain, last, &mut tail));
        [&header[..], &plain, &tail].concat()
    }

    fn give(records: &mut Records, bytes: &[u8]) {
        records.input_room()[..bytes.len()].copy_from_slice(bytes);
        records.on_input(bytes.len());
    }

    /// Reads all available bytes into pieces of `room` bytes.
    fn read_all(records: &mut Records, room: usize) -> (Vec<u8>, Result<Read, RecordError>) {
        let (mut all, mut piece) = (Vec::new(), vec![0; room]);
        loop {
            match records.read(&mut piece) {
                Ok(Read::Bytes(count)) => all.extend_from_slice(&piece[..count]),
                end => return (all, end),
            }
        }
    }

    #[test]
    fn records_are_read_with_padding_and_without_content_into_any_room() {
        for room in [1, 7, 100, 20_000] {
            let (mut records, mut key) = target();
            let long = vec![9; PLAIN_BYTES_MAX];
            for (content, padding) in
                [(&b"first"[..], 0), (b"", 0), (b"second", 200), (&long, 0), (&long[..16_000], 255)]
            {
                let record = record(&mut key, APPLICATION_DATA, content, padding);
                // The beginning of a record is no input.
                give(&mut records, &record[..record.len() - 1]);
                assert!(!records.has_input());
                assert_eq!(records.read(&mut [0; 8]), Ok(Read::Dry));
                give(&mut records, &record[record.len() - 1..]);
                assert!(records.has_input());
                assert_eq!(read_all(&mut records, room), (content.to_vec(), Ok(Read::Dry)));
            }
            records.on_input_end();
            assert_eq!(records.read(&mut [0; 8]), Ok(Read::Ended));
        }
    }

    #[test]
    fn what_is_not_a_record_of_the_peer_ends_the_session_with_its_alert() {
        let too_long = vec![0; PLAIN_BYTES_MAX + 1];
        type Make<'a> = &'a dyn Fn(&mut RecordKey) -> Vec<u8>;
        let cases: [(Make<'_>, Alert); 9] = [
            (&|key| record(key, 0, b"", 3), Alert::UNEXPECTED_MESSAGE),
            (&|key| record(key, 20, &[1], 0), Alert::UNEXPECTED_MESSAGE),
            (&|key| record(key, ALERT, &[1], 0), Alert::DECODE_ERROR),
            (&|key| record(key, APPLICATION_DATA, &too_long, 0), Alert::RECORD_OVERFLOW),
            (&|_| vec![APPLICATION_DATA, 3, 3, 0x41, 1], Alert::RECORD_OVERFLOW),
            (&|_| vec![APPLICATION_DATA, 3, 3, 0, 16], Alert::BAD_RECORD_MAC),
            (&|_| vec![ALERT, 3, 3, 0, 2, 1, 0], Alert::UNEXPECTED_MESSAGE),
            (
                &|key| {
                    let mut record = record(key, APPLICATION_DATA, b"data", 0);
                    record[7] ^= 1;
                    record
                },
                Alert::BAD_RECORD_MAC,
            ),
            (
                &|key| {
                    let ticket = record(key, HANDSHAKE, &[4, 0, 0], 0);
                    [ticket, record(key, APPLICATION_DATA, b"data", 0)].concat()
                },
                Alert::UNEXPECTED_MESSAGE,
            ),
        ];
        for (number, (make, expected)) in cases.into_iter().enumerate() {
            // A host takes tickets.
            let cipher = Cipher::Aes128GcmSha256;
            let mut records = Records::new(true, cipher, secrets(), &[], Vec::new());
            give(&mut records, &make(&mut RecordKey::new(cipher, secrets().target.secret, 0)));
            let (data, end) = read_all(&mut records, 100);
            assert!(data.is_empty(), "{number}");
            match end {
                Err(RecordError::Broken(_, alert)) => assert_eq!(alert, expected, "{number}"),
                other => panic!("{number}: {other:?}"),
            }
        }
    }

    #[test]
    fn alerts_of_the_peer_end_its_direction_or_the_session() {
        let (mut records, mut key) = target();
        give(&mut records, &record(&mut key, ALERT, &[1, USER_CANCELED.0], 0));
        assert_eq!(records.read(&mut [0; 8]), Ok(Read::Dry));
        give(&mut records, &record(&mut key, ALERT, &[2, 20], 0));
        assert_eq!(records.read(&mut [0; 8]), Err(RecordError::Alert(Alert::BAD_RECORD_MAC)));
        let (mut records, mut key) = target();
        give(&mut records, &record(&mut key, ALERT, &[1, 0], 0));
        assert_eq!(records.read(&mut [0; 8]), Ok(Read::Ended));
        assert!(!records.has_input());
    }

    #[test]
    fn a_key_update_that_asks_for_one_is_answered_once_before_the_next_data() {
        let (mut records, mut key) = target();
        for _ in 0..3 {
            give(&mut records, &record(&mut key, HANDSHAKE, &[24, 0, 0, 1, 1], 0));
            key.update();
            assert_eq!(records.read(&mut [0; 8]), Ok(Read::Dry));
        }
        assert!(records.output().is_empty());
        let mut host = Records::new(true, Cipher::Aes128GcmSha256, secrets(), &[], Vec::new());
        let overhead = HEADER_BYTES + 1 + TAG_BYTES;
        for (text, update_bytes) in
            [(b"after an update", Message::KEY_UPDATE.len() + overhead), (b"and without one", 0)]
        {
            let mut left = Some(text);
            let count = records.write(|into, _| into.extend_from_slice(left.take().map_or(&[], |text| text)));
            assert_eq!(count, text.len());
            let output = records.output().to_vec();
            assert_eq!(output.len(), update_bytes + text.len() + overhead);
            records.on_sent(output.len());
            give(&mut host, &output);
            assert_eq!(read_all(&mut host, 100), (text.to_vec(), Ok(Read::Dry)));
        }
        assert!(!host.updates_key && host.opening.record_count() == 2, "two records of the new key");
    }

    /// The nonces of a key go on where the handshake ends, and a key that has had its records is replaced before the next
    /// one: no nonce is ever used twice with a key.
    #[test]
    fn a_key_goes_on_from_its_records_and_ends_at_the_limit() {
        const LIMIT: u64 = 5;
        let traffic = || {
            let mut traffic = secrets();
            traffic.target.record_count = 3;
            traffic
        };
        let cipher = Cipher::Aes128GcmSha256;
        let mut target = Records::new(false, cipher, traffic(), &[], Vec::new());
        target.key_records_max = LIMIT;
        let mut host = Records::new(true, cipher, traffic(), &[], Vec::new());
        let mut counts = Vec::new();
        for number in 0..12_u8 {
            let mut left = Some([number]);
            assert_eq!(target.write(|into, _| into.extend(left.take().into_iter().flatten())), 1);
            counts.push(target.sealing.record_count());
            let output = target.output().to_vec();
            target.on_sent(output.len());
            give(&mut host, &output);
            assert_eq!(read_all(&mut host, 100), (vec![number], Ok(Read::Dry)));
            assert_eq!(host.opening.record_count(), target.sealing.record_count());
        }
        // The KeyUpdate follows the last record at once.
        assert_eq!(counts, [4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0]);
        // Records with used nonces do not verify.
        let mut again = Records::new(true, cipher, secrets(), &[], Vec::new());
        let mut target = Records::new(false, cipher, traffic(), &[], Vec::new());
        let mut left = Some([9]);
        target.write(|into, _| into.extend(left.take().into_iter().flatten()));
        give(&mut again, target.output());
        let end = read_all(&mut again, 100).1;
        assert!(matches!(end, Err(RecordError::Broken(_, Alert::BAD_RECORD_MAC))), "{end:?}");
    }

    /// hostile T21
    #[test]
    fn a_part_of_a_record_holds_no_more_than_a_record() {
        let (mut records, mut key) = target();
        let begun = record(&mut key, APPLICATION_DATA, b"data", 0);
        assert!(records.input_room().len() <= FIRST_INPUT_BYTES);
        give(&mut records, &begun[..1]);
        assert!(records.is_within_record() && records.input.capacity() <= FIRST_INPUT_BYTES);
        // A peer that fills it gets more; the part of a record that follows stays when the rest is freed.
        let (mut records, mut key) = target();
        let whole = vec![1; PLAIN_BYTES_MAX];
        let bytes: Vec<u8> = (0..20).flat_map(|_| record(&mut key, APPLICATION_DATA, &whole, 0)).collect();
        let mut rest: &[u8] = &bytes;
        let mut most = 0;
        while !rest.is_empty() {
            let room = records.input_room();
            most = room.len().max(most);
            let (now, later) = rest.split_at(rest.len().min(room.len()));
            room[..now.len()].copy_from_slice(now);
            records.on_input(now.len());
            rest = later;
            read_all(&mut records, 20_000).1.expect("good records");
        }
        assert!(most > 4 * FIRST_INPUT_BYTES && !records.is_within_record());
        let begun = record(&mut key, APPLICATION_DATA, b"data", 0);
        give(&mut records, &begun[..10]);
        records.shrink();
        assert!(records.is_within_record() && records.input.capacity() < 100);
        give(&mut records, &begun[10..]);
        assert!(!records.is_within_record());
        assert_eq!(read_all(&mut records, 100), (b"data".to_vec(), Ok(Read::Dry)));
    }

    #[test]
    fn nothing_is_sent_behind_an_alert() {
        let (mut records, _) = target();
        records.close(Alert::CLOSE_NOTIFY);
        let length = records.output().len();
        assert_eq!(length, HEADER_BYTES + 2 + 1 + TAG_BYTES);
        records.close(Alert::BAD_RECORD_MAC);
        assert_eq!(records.write(|into, _| into.push(1)), 0);
        assert_eq!(records.output().len(), length);
    }
}
