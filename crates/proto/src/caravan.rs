//! The PDUs of one lane that leave in one send: headers built in place, payloads by reference.
//!
//! ```text
//! push_* ─▶ filling ──ring──▶ leaving ──on_sent──▶ gone
//! ```
//!
//! What is pushed goes into the caravan that fills. Ringing the doorbell lets it leave; while it is on its way the next one
//! fills. A caravan that the kernel takes only a part of goes on exactly there. wire §28.23

use std::ops::Range;

use wire::digest::header_digest;

/// PDUs waiting and on their way. `P` stands for data that is sent from where it lies.
#[derive(Debug)]
pub struct Caravan<P> {
    filling: Load<P>,
    leaving: Load<P>,
}

/// A run of PDUs.
#[derive(Debug)]
struct Load<P> {
    /// Headers, digests and padding, one after the other.
    bytes: Vec<u8>,
    /// What to send, in order.
    parts: Vec<Part>,
    /// Payloads of the parts, in order; none in the place of those sent to their end.
    payloads: Vec<Option<P>>,
    pdu_count: u32,
    /// Commands that they begin, or end.
    command_count: u32,
    /// Somebody waits for one of them before going on with a command.
    is_urgent: bool,
    /// Bytes that are not sent.
    unsent: usize,
    /// How far it is sent.
    sent: Cursor,
}

#[derive(Clone, Copy, Debug)]
enum Part {
    /// The next so many bytes of `bytes`.
    Bytes(u32),
    /// A range of the next payload; the last range of it if so marked.
    Payload { start: u32, end: u32, is_last: bool },
}

/// How far a load is sent: whole parts, bytes of the next one, bytes of `Load::bytes`, whole payloads.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    part: usize,
    within: u32,
    bytes: usize,
    payload: usize,
}

/// A piece to send.
#[derive(Debug)]
pub enum Piece<'a, P> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// This range of this payload.
    Payload(&'a P, Range<usize>),
}

impl<P> Default for Load<P> {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            parts: Vec::new(),
            payloads: Vec::new(),
            pdu_count: 0,
            command_count: 0,
            is_urgent: false,
            unsent: 0,
            sent: Cursor::default(),
        }
    }
}

impl<P> Default for Caravan<P> {
    fn default() -> Self {
        Self { filling: Load::default(), leaving: Load::default() }
    }
}

impl<P> Caravan<P> {
    /// Adds a PDU header that is complete but for its digest, which follows it if `has_digest`; and `padding` bytes.
    #[inline]
    pub fn push_header(&mut self, header: &[u8], has_digest: bool, padding: usize) {
        self.filling.pdu_count += 1;
        self.filling.push_bytes(header);
        if has_digest || padding > 0 {
            self.push_trailer(header.len(), has_digest, padding);
        }
    }

    /// Adds what follows the header that was pushed last. It reads that where it lies now: a header whose address is
    /// taken nowhere is built there, too.
    #[inline(never)]
    fn push_trailer(&mut self, header_length: usize, has_digest: bool, padding: usize) {
        /// The longest padding, and then some.
        const ZEROES: [u8; 128] = [0; 128];
        if has_digest {
            let at = self.filling.bytes.len() - header_length;
            let digest = header_digest(&self.filling.bytes[at..]);
            self.filling.push_bytes(&digest.to_le_bytes());
        }
        if padding > 0 {
            self.filling.push_bytes(&ZEROES[..padding]);
        }
    }

    /// Adds raw bytes: a handshake, a data digest.
    #[inline]
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.filling.push_bytes(bytes);
        }
    }

    /// Adds a payload that the following [`push_range`](Self::push_range)s refer to.
    #[inline]
    pub fn push_payload(&mut self, payload: P) {
        self.filling.payloads.push(Some(payload));
    }

    /// The payload pushed last.
    ///
    /// # Panics
    /// If none was pushed since the doorbell was rung.
    #[must_use]
    pub fn last_payload(&self) -> &P {
        self.filling.payloads.last().and_then(Option::as_ref).expect("a payload was pushed")
    }

    /// Adds a range of the payload pushed last, not empty; `is_last` when no further range of it follows.
    #[inline]
    pub fn push_range(&mut self, range: Range<u32>, is_last: bool) {
        debug_assert!(!range.is_empty());
        self.filling.unsent += (range.end - range.start) as usize;
        self.filling.parts.push(Part::Payload { start: range.start, end: range.end, is_last });
    }

    /// PDUs that wait to leave.
    #[inline]
    #[must_use]
    pub fn waiting_pdu_count(&self) -> u32 {
        self.filling.pdu_count
    }

    /// The PDU pushed last begins a command, or ends one.
    #[inline]
    pub(crate) fn count_command(&mut self) {
        self.filling.command_count += 1;
    }

    /// Without the PDU pushed last a command does not go on: R2T, and the data that one asked for.
    #[inline]
    pub(crate) fn mark_urgent(&mut self) {
        self.filling.is_urgent = true;
    }

    /// Whether anything that waits should not.
    #[inline]
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        self.filling.is_urgent
    }

    /// Commands that begin, or end, with what waits.
    #[inline]
    #[must_use]
    pub fn waiting_command_count(&self) -> u32 {
        self.filling.command_count
    }

    /// Bytes that wait to leave.
    #[inline]
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.filling.unsent
    }

    /// Pieces of the caravan on its way that are not sent yet.
    #[inline]
    #[must_use]
    pub fn piece_count(&self) -> usize {
        self.leaving.parts.len() - self.leaving.sent.part
    }

    /// Whether a caravan is on its way.
    #[inline]
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Whether nothing waits and nothing is on its way.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.filling.is_empty() && self.leaving.is_empty()
    }

    /// Rings the doorbell: if none is on its way, the caravan that fills leaves now. Says whether it did.
    #[inline]
    pub fn ring(&mut self) -> bool {
        if self.is_leaving() || self.filling.is_empty() {
            return false;
        }
        std::mem::swap(&mut self.filling, &mut self.leaving);
        true
    }

    /// The pieces of the caravan on its way that are not sent yet, in order.
    #[inline]
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_, P>> {
        let load = &self.leaving;
        let mut parts = load.parts[load.sent.part..].iter();
        let mut bytes = &load.bytes[load.sent.bytes..];
        let mut payloads = &load.payloads[load.sent.payload..];
        let mut within = load.sent.within;
        std::iter::from_fn(move || {
            let part = parts.next()?;
            let within = std::mem::take(&mut within);
            Some(match *part {
                Part::Bytes(length) => {
                    let (piece, rest) = bytes.split_at((length - within) as usize);
                    bytes = rest;
                    Piece::Bytes(piece)
                }
                Part::Payload { start, end, is_last } => {
                    let [Some(payload), rest @ ..] = payloads else {
                        unreachable!("a payload for each range")
                    };
                    if is_last {
                        payloads = rest;
                    }
                    Piece::Payload(payload, (start + within) as usize..end as usize)
                }
            })
        })
    }

    /// The kernel has taken `count` bytes. `gone` gets each payload that is sent to its end.
    ///
    /// # Panics
    /// If more is said to be sent than was there.
    #[inline]
    pub fn on_sent(&mut self, count: usize, mut gone: impl FnMut(P)) {
        let load = &mut self.leaving;
        // The common case: all of it.
        if count == load.unsent {
            load.payloads.drain(..).flatten().for_each(gone);
            load.clear();
            return;
        }
        load.unsent = load.unsent.checked_sub(count).expect("no more is sent than was there");
        load.advance(count, &mut gone);
    }

    /// If the kernel stopped in the middle of a payload: that payload and all of it that is still to be sent. For
    /// payloads that may change before the rest leaves; see [`replace_interrupted`](Self::replace_interrupted).
    #[must_use]
    pub fn interrupted(&self) -> Option<(&P, Range<usize>)> {
        let load = &self.leaving;
        match load.parts.get(load.sent.part) {
            Some(&Part::Payload { start, .. }) if load.sent.within > 0 => {
                let end = load.parts[load.sent.part..].iter().find_map(|part| match *part {
                    Part::Payload { end, is_last: true, .. } => Some(end),
                    _ => None,
                });
                let start = start + load.sent.within;
                Some((load.payloads[load.sent.payload].as_ref()?, start as usize..end? as usize))
            }
            _ => None,
        }
    }

    /// Puts `payload`, whose byte 0 is the first of the range that [`interrupted`](Self::interrupted) gave, in the
    /// place of that payload, and returns the latter.
    ///
    /// # Panics
    /// If no payload is interrupted.
    pub fn replace_interrupted(&mut self, payload: P) -> P {
        let load = &mut self.leaving;
        let mut base = None;
        for part in &mut load.parts[load.sent.part..] {
            let Part::Payload { start, end, is_last } = part else { continue };
            // The first range begins where the kernel stopped; the others move along.
            let base = *base.get_or_insert_with(|| {
                *start += std::mem::take(&mut load.sent.within);
                *start
            });
            *start -= base;
            *end -= base;
            if *is_last {
                break;
            }
        }
        let interrupted = load.payloads.get_mut(load.sent.payload).and_then(Option::as_mut);
        std::mem::replace(interrupted.expect("a payload is interrupted"), payload)
    }

    /// Forgets what waits; what is on its way stays, since a PDU once begun must end. `gone` gets the payloads.
    pub fn drop_waiting(&mut self, gone: impl FnMut(P)) {
        self.filling.payloads.drain(..).flatten().for_each(gone);
        self.filling.clear();
    }

    /// Forgets everything, on its way or not. `gone` gets the payloads.
    pub fn clear(&mut self, mut gone: impl FnMut(P)) {
        for load in [&mut self.leaving, &mut self.filling] {
            load.payloads.drain(..).flatten().for_each(&mut gone);
            load.clear();
        }
    }

    /// Gives memory back that an idle lane does not need.
    pub fn shrink(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }
}

impl<P> Load<P> {
    #[inline]
    fn push_bytes(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).expect("headers are short");
        self.bytes.extend_from_slice(bytes);
        self.unsent += bytes.len();
        // Neighbouring headers become one part: fewer pieces for the kernel.
        if let Some(Part::Bytes(last)) = self.parts.last_mut() {
            *last += length;
        } else {
            self.parts.push(Part::Bytes(length));
        }
    }

    /// Moves on by `count` bytes, which are less than all.
    fn advance(&mut self, mut count: usize, gone: &mut impl FnMut(P)) {
        let sent = &mut self.sent;
        while count > 0 {
            let part = self.parts[sent.part];
            let left = part.length() - sent.within as usize;
            let taken = left.min(count);
            count -= taken;
            if matches!(part, Part::Bytes(_)) {
                sent.bytes += taken;
            }
            if taken < left {
                sent.within += u32::try_from(taken).expect("less than a part");
                return;
            }
            sent.part += 1;
            sent.within = 0;
            if matches!(part, Part::Payload { is_last: true, .. }) {
                gone(self.payloads[sent.payload].take().expect("a payload for each last range"));
                sent.payload += 1;
            }
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.parts.clear();
        self.payloads.clear();
        self.pdu_count = 0;
        self.command_count = 0;
        self.is_urgent = false;
        self.unsent = 0;
        self.sent = Cursor::default();
    }
}

impl Part {
    #[inline]
    fn length(self) -> usize {
        match self {
            Self::Bytes(length) => length as usize,
            Self::Payload { start, end, .. } => (end - start) as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All bytes that are still to be sent.
    fn remaining(caravan: &Caravan<Vec<u8>>) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in caravan.pieces() {
            match piece {
                Piece::Bytes(piece) => bytes.extend_from_slice(piece),
                Piece::Payload(payload, range) => bytes.extend_from_slice(&payload[range]),
            }
        }
        bytes
    }

    #[test]
    fn a_digest_and_padding_follow_their_header() {
        let mut caravan = Caravan::<Vec<u8>>::default();
        caravan.push_header(&[0; 32], true, 3);
        assert!(caravan.ring());
        assert_eq!(remaining(&caravan)[32..], [0xAA, 0x36, 0x91, 0x8A, 0, 0, 0]);
    }

    #[test]
    fn the_next_caravan_fills_while_one_is_on_its_way() {
        let mut caravan = Caravan::<Vec<u8>>::default();
        caravan.push_header(b"first", false, 0);
        assert!(caravan.ring());
        caravan.push_header(b"second", false, 0);
        assert!(!caravan.ring(), "one is on its way");
        assert_eq!((caravan.waiting_pdu_count(), caravan.waiting_bytes()), (1, 6));
        caravan.on_sent(5, |_| {});
        assert!(caravan.ring());
        assert_eq!(remaining(&caravan), b"second");
        caravan.on_sent(6, |_| {});
        assert!(caravan.is_empty() && !caravan.ring());
    }

    proptest! {
        /// However the kernel cuts it, and whatever is copied on the way, the bytes come out in order, and each payload is
        /// let go exactly when its last byte is gone.
        #[test]
        fn any_cuts_send_the_same_bytes(
            pdus in proptest::collection::vec((1usize..30, proptest::collection::vec(1u32..40, 0..4)), 1..20),
            cuts in proptest::collection::vec(1usize..60, 1..200),
        ) {
            let mut caravan = Caravan::default();
            let (mut expected, mut value) = (Vec::new(), 0u8);
            let mut next = move || { value = value.wrapping_add(1); value };
            let mut payload_count = 0;
            for (header_length, ranges) in &pdus {
                let header: Vec<u8> = (0..*header_length).map(|_| next()).collect();
                caravan.push_header(&header, false, 0);
                expected.extend_from_slice(&header);
                let payload: Vec<u8> = (0..ranges.iter().sum()).map(|_| next()).collect();
                if payload.is_empty() {
                    continue;
                }
                payload_count += 1;
                caravan.push_payload(payload.clone());
                let mut start = 0;
                for (index, length) in ranges.iter().enumerate() {
                    if index > 0 {
                        caravan.push_bytes(&[0]);
                        expected.push(0);
                    }
                    caravan.push_range(start..start + length, index + 1 == ranges.len());
                    expected.extend_from_slice(&payload[start as usize..(start + length) as usize]);
                    start += length;
                }
            }
            prop_assert_eq!(caravan.waiting_bytes(), expected.len());
            caravan.ring();
            let (mut sent, mut gone_count) = (Vec::new(), 0);
            for cut in cuts.iter().cycle() {
                let rest = remaining(&caravan);
                prop_assert_eq!(&rest, &expected[sent.len()..]);
                if rest.is_empty() {
                    break;
                }
                let count = (*cut).min(rest.len());
                sent.extend_from_slice(&rest[..count]);
                caravan.on_sent(count, |_| gone_count += 1);
                if cut % 2 == 0 && let Some((payload, range)) = caravan.interrupted() {
                    let copy = payload[range].to_vec();
                    caravan.replace_interrupted(copy);
                    prop_assert!(caravan.interrupted().is_none());
                }
            }
            prop_assert_eq!(gone_count, payload_count);
            prop_assert!(caravan.is_empty());
        }
    }
}
