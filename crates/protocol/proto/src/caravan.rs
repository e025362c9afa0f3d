//! The PDUs of one lane that leave in one send: headers built in place, payloads by reference.
//!
//! ```text
//! push_* ─▶ filling ──ring──▶ leaving ──on_sent──▶ gone
//!                               └──on_sent_zero_copy──▶ kept ──on_notice──▶ gone
//! ```
//!
//! PDUs are pushed into the filling caravan. Ringing the doorbell makes it the leaving one, and the next one fills
//! while it is sent. If the kernel takes only a part, the next send continues at that byte. wire §28.23
//!
//! If any part of a caravan is sent without a copy, all of it, headers and payloads, stays unchanged until the kernel
//! has given notice of each such send. A caravan dropped before that is leaked: its memory would be reused, and the
//! kernel would send the new contents (docs/design/kernel-memory.md).

mod kept;
mod load;

use std::ops::Range;

use wire::digest::header_digest;

pub use kept::KeptLoad;

use kept::{KEPT, Kept, SPARE_COUNT_MAX};
use load::{Load, Part};

/// The PDUs of a lane that wait or are being sent. `P` is a payload, sent in place.
#[derive(Debug)]
pub struct Caravan<P> {
    filling: Load<P>,
    leaving: Load<P>,
    /// Set once the connection has sent without a copy.
    kept: Option<Box<Kept<P>>>,
}

/// A piece to send.
#[derive(Debug)]
pub enum Piece<'a, P> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// This range of this payload.
    Payload(&'a P, Range<usize>),
}

impl<P> Default for Caravan<P> {
    fn default() -> Self {
        Self { filling: Load::default(), leaving: Load::default(), kept: None }
    }
}

impl<P> Caravan<P> {
    /// Adds a PDU header, its digest if `has_digest`, and `padding` zero bytes.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "PDUs of one caravan, which a queue's entries bound")]
    pub fn push_header(&mut self, header: &[u8], has_digest: bool, padding: usize) {
        self.filling.pdu_count += 1;
        self.filling.push_bytes(header);
        if has_digest || padding > 0 {
            self.push_trailer(header.len(), has_digest, padding);
        }
    }

    /// As [`push_header`](Self::push_header), with a header that `finish` completes in place: copying a header that was
    /// just written in small parts would stall until the parts are stored.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "PDUs of one caravan, which a queue's entries bound")]
    pub fn push_header_with<const BYTES: usize>(
        &mut self,
        header: &[u8; BYTES],
        has_digest: bool,
        padding: usize,
        finish: impl FnOnce(&mut [u8; BYTES]),
    ) {
        self.filling.pdu_count += 1;
        self.filling.push_bytes(header);
        if let Some(header) = self.filling.bytes.last_chunk_mut() {
            finish(header);
        }
        if has_digest || padding > 0 {
            self.push_trailer(BYTES, has_digest, padding);
        }
    }

    /// Adds digest and padding behind the header pushed last. The digest is computed in the caravan: the address of the
    /// caller's header is never taken, so the compiler builds it in place.
    #[inline(never)]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the header was just pushed, and padding ends at 128 bytes"
    )]
    fn push_trailer(&mut self, header_length: usize, has_digest: bool, padding: usize) {
        /// At least the longest padding.
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
    #[expect(clippy::expect_used, reason = "documented as a panic")]
    pub fn last_payload(&self) -> &P {
        self.filling.payloads.last().and_then(Option::as_ref).expect("a payload was pushed")
    }

    /// Adds a range of the payload pushed last, not empty; `is_last` when no further range of it follows.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "a range that is not empty, of data in memory")]
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

    /// Counts the PDU pushed last as the begin or end of a command.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "commands of one caravan, which a queue's entries bound"
    )]
    pub(crate) fn count_command(&mut self) {
        self.filling.command_count += 1;
    }

    /// Marks the PDU pushed last as urgent: an R2T, or the data for one, without which a command cannot proceed.
    #[inline]
    pub(crate) fn mark_urgent(&mut self) {
        self.filling.is_urgent = true;
    }

    /// Whether an urgent PDU waits.
    #[inline]
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        self.filling.is_urgent
    }

    /// Commands that the waiting PDUs begin or end.
    #[inline]
    #[must_use]
    pub fn waiting_command_count(&self) -> u32 {
        self.filling.command_count
    }

    /// Bytes of the waiting PDUs.
    #[inline]
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.filling.unsent
    }

    /// Bytes of the waiting PDUs, and unsent bytes of the leaving caravan.
    #[must_use]
    pub fn unsent_bytes(&self) -> usize {
        self.filling.unsent.saturating_add(self.leaving.unsent)
    }

    /// Unsent pieces of the leaving caravan.
    #[inline]
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "what is sent is never more than there was")]
    pub fn piece_count(&self) -> usize {
        self.leaving.parts.len() - self.leaving.sent.part
    }

    /// Whether a caravan is leaving.
    #[inline]
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Whether no PDU waits and no caravan is leaving.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.filling.is_empty() && self.leaving.is_empty()
    }

    /// Rings the doorbell: unless a caravan is leaving already, the filling one leaves now. Returns whether it does.
    #[inline]
    pub fn ring(&mut self) -> bool {
        if self.is_leaving() || self.filling.is_empty() {
            return false;
        }
        std::mem::swap(&mut self.filling, &mut self.leaving);
        self.debug_invariants();
        true
    }

    /// The unsent pieces of the leaving caravan, in order.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "positions in our own output, which no peer names"
    )]
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

    /// The kernel has taken `count` bytes. `gone` gets each payload that is sent completely.
    ///
    /// # Panics
    /// If `count` exceeds the unsent bytes, or if the caravan [is kept](Self::is_kept) for the kernel.
    #[inline]
    #[expect(clippy::expect_used, reason = "documented as a panic")]
    pub fn on_sent(&mut self, count: usize, mut gone: impl FnMut(P)) {
        assert!(!self.is_kept(), "{KEPT}");
        let load = &mut self.leaving;
        // The common case: all of it.
        if count == load.unsent {
            load.payloads.drain(..).flatten().for_each(gone);
            load.clear();
            return;
        }
        load.unsent = load.unsent.checked_sub(count).expect("no more is sent than was there");
        load.advance(count, &mut |payload| gone(payload.take().expect("a payload for each last range")));
        self.debug_invariants();
    }

    /// As [`on_sent`](Self::on_sent), for bytes sent without a copy (`is_zero_copy`) or sent after such bytes of the
    /// same caravan: see [`is_kept`](Self::is_kept). `taken` gets each payload that is sent completely; the payload
    /// stays until it is [released](Self::release).
    ///
    /// # Panics
    /// As [`on_sent`](Self::on_sent).
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        reason = "positions in our own output, which no peer names"
    )]
    pub fn on_sent_zero_copy(&mut self, count: usize, is_zero_copy: bool, mut taken: impl FnMut(&mut P)) {
        let kept = self.kept.get_or_insert_default();
        if is_zero_copy {
            if kept.leaving.count == 0 {
                kept.leaving.first = kept.next_send;
            }
            kept.leaving.count += 1;
            kept.leaving.awaited += 1;
            kept.next_send = kept.next_send.wrapping_add(1);
        }
        let load = &mut self.leaving;
        load.unsent = load.unsent.checked_sub(count).expect("no more is sent than was there");
        load.advance(count, &mut |payload: &mut Option<P>| {
            taken(payload.as_mut().expect("a payload for each last range"));
        });
        if load.unsent == 0 {
            let sends = std::mem::take(&mut kept.leaving);
            let load = std::mem::replace(load, kept.spare.pop().unwrap_or_default());
            kept.loads.push_back((sends, load));
        }
        self.debug_invariants();
    }

    /// The kernel has given notice of the sends `first..=last`; [`release`](Self::release) comes next.
    pub fn on_notice(&mut self, first: u32, last: u32) {
        let Some(kept) = &mut self.kept else { return };
        kept.leaving.on_notice(first, last);
        kept.loads.iter_mut().for_each(|(sends, _)| sends.on_notice(first, last));
        self.debug_invariants();
    }

    /// Drops caravans that are sent completely and that the kernel no longer reads. `gone` gets their payloads.
    #[expect(clippy::arithmetic_side_effects, reason = "an index that the loop checks")]
    pub fn release(&mut self, mut gone: impl FnMut(P)) {
        let Some(kept) = &mut self.kept else { return };
        let mut at = 0;
        while let Some((sends, _)) = kept.loads.get(at) {
            if sends.awaited > 0 {
                at += 1;
            } else if let Some((_, mut load)) = kept.loads.remove(at) {
                load.payloads.drain(..).flatten().for_each(&mut gone);
                load.clear();
                if kept.spare.len() < SPARE_COUNT_MAX {
                    kept.spare.push(load);
                }
            }
        }
        self.debug_invariants();
    }

    /// Whether a part of the leaving caravan was sent without a copy: all of it is kept then.
    #[inline]
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.leaving.count > 0)
    }

    /// Sends without a copy that have no notice yet.
    #[inline]
    #[must_use]
    pub fn awaited_count(&self) -> u32 {
        match &self.kept {
            None => 0,
            Some(kept) => {
                let whole: u32 = kept.loads.iter().map(|(sends, _)| sends.awaited).sum();
                whole.saturating_add(kept.leaving.awaited)
            }
        }
    }

    /// Stops sending a leaving caravan that is kept for the kernel; it stays until its notices.
    fn keep_leaving(&mut self) {
        if let Some(kept) = self.kept.as_mut().filter(|kept| kept.leaving.count > 0) {
            let sends = std::mem::take(&mut kept.leaving);
            kept.loads.push_back((sends, std::mem::take(&mut self.leaving)));
        }
    }

    /// Hands over the memory that the kernel may still read, for a connection that ends: the number of sends without a
    /// notice, and the headers and payloads. A leaving caravan that is kept is sent no further.
    pub fn take_kept(&mut self) -> (u32, Vec<KeptLoad<P>>) {
        let count = self.awaited_count();
        self.keep_leaving();
        let Some(kept) = &mut self.kept else { return (0, Vec::new()) };
        let loads =
            kept.loads.drain(..).map(|(_, load)| (load.bytes, load.payloads.into_iter().flatten().collect()));
        (count, loads.collect())
    }

    /// The payload that the last send stopped in, or between two PDUs of, and its unsent range, if there is one. For
    /// payloads that may change before the rest is sent: see [`replace_interrupted`](Self::replace_interrupted).
    #[must_use]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "positions in our own output, which no peer names"
    )]
    pub fn interrupted(&self) -> Option<(&P, Range<usize>)> {
        let load = &self.leaving;
        let unsent = load.parts.get(load.sent.part..)?;
        let mut ranges = unsent.iter().zip(0..).filter_map(|(part, at)| match *part {
            // The first range begins where the kernel stopped.
            Part::Payload { start, end, is_last } => {
                Some((if at == 0 { start + load.sent.within } else { start }, end, is_last))
            }
            _ => None,
        });
        let (start, end, is_last) = ranges.next().filter(|(start, ..)| *start > 0)?;
        let end = if is_last { end } else { ranges.find(|(.., is_last)| *is_last)?.1 };
        Some((load.payloads[load.sent.payload].as_ref()?, start as usize..end as usize))
    }

    /// Replaces the [interrupted](Self::interrupted) payload by `payload`, whose byte 0 is the first of the unsent
    /// range, and returns the former.
    ///
    /// # Panics
    /// If no payload is interrupted, or if the caravan [is kept](Self::is_kept) for the kernel: such a caravan has
    /// stable payloads only.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "positions in our own output, which no peer names"
    )]
    pub fn replace_interrupted(&mut self, payload: P) -> P {
        assert!(!self.is_kept(), "{KEPT}");
        let load = &mut self.leaving;
        let mut base = None;
        for (part, at) in load.parts[load.sent.part..].iter_mut().zip(0..) {
            let Part::Payload { start, end, is_last } = part else { continue };
            // The first range begins where the kernel stopped; the others move by as much.
            let base = *base.get_or_insert_with(|| {
                if at == 0 {
                    *start += std::mem::take(&mut load.sent.within);
                }
                *start
            });
            *start -= base;
            *end -= base;
            if *is_last {
                break;
            }
        }
        let interrupted = load.payloads.get_mut(load.sent.payload).and_then(Option::as_mut);
        let interrupted = std::mem::replace(interrupted.expect("a payload is interrupted"), payload);
        self.debug_invariants();
        interrupted
    }

    /// Drops the waiting PDUs. The leaving caravan stays: a PDU once begun must end. `gone` gets the payloads.
    pub fn drop_waiting(&mut self, gone: impl FnMut(P)) {
        self.filling.payloads.drain(..).flatten().for_each(gone);
        self.filling.clear();
        self.debug_invariants();
    }

    /// Drops everything but memory that the kernel may still read, which stays until its notices or until it is
    /// [taken](Self::take_kept). `gone` gets the payloads.
    pub fn clear(&mut self, mut gone: impl FnMut(P)) {
        self.keep_leaving();
        for load in [&mut self.leaving, &mut self.filling] {
            load.payloads.drain(..).flatten().for_each(&mut gone);
            load.clear();
        }
        self.debug_invariants();
    }

    /// Frees memory that an idle lane does not need.
    pub fn shrink(&mut self) {
        if self.is_empty() {
            (self.filling, self.leaving) = (Load::default(), Load::default());
            // The kernel's numbers continue.
            if let Some(kept) = &mut self.kept {
                kept.spare = Vec::new();
            }
        }
    }
}

impl<P> Caravan<P> {
    /// [`invariants`](Self::invariants) in debug builds, after each change but the pushes, which the next doorbell
    /// checks together.
    #[inline]
    fn debug_invariants(&self) {
        if cfg!(debug_assertions) {
            self.invariants();
        }
    }

    /// Payloads that are not sent to their end, or that the kernel may still read.
    pub(crate) fn payload_count(&self) -> usize {
        let kept = self.kept.iter().flat_map(|kept| &kept.loads).map(|(_, load)| load);
        let loads = [&self.filling, &self.leaving].into_iter().chain(kept);
        loads.map(|load| load.payloads.iter().flatten().count()).sum()
    }

    /// Checks that counts, lengths and positions agree with each other, in time linear in the number of pieces.
    ///
    /// # Panics
    /// If they do not.
    pub fn invariants(&self) {
        self.filling.invariants();
        self.leaving.invariants();
        assert!(self.filling.sent.is_at_start(), "a caravan that fills is not sent");
        assert!(
            self.leaving.parts.is_empty() || self.leaving.unsent > 0,
            "a caravan that is sent to its end is gone"
        );
        let starts_payload = self.leaving.payloads.len() > self.leaving.last_range_count();
        assert!(!starts_payload, "a caravan on its way has all ranges of its payloads");
        if let Some(kept) = &self.kept {
            kept.invariants(&self.leaving);
        }
    }
}

impl<P> Drop for Caravan<P> {
    /// Leaks memory that the kernel may still read. An owner that can wait for the notices [takes](Self::take_kept) it
    /// before.
    fn drop(&mut self) {
        self.keep_leaving();
        if let Some(kept) = &mut self.kept {
            kept.loads.drain(..).filter(|(sends, _)| sends.awaited > 0).for_each(std::mem::forget);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

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
        assert_eq!((caravan.unsent_bytes(), caravan.piece_count()), (11, 1));
        caravan.on_sent(2, |_| {});
        assert_eq!((caravan.unsent_bytes(), caravan.piece_count()), (9, 1));
        caravan.on_sent(3, |_| {});
        assert_eq!((caravan.unsent_bytes(), caravan.piece_count()), (6, 0));
        assert!(!caravan.is_urgent());
        caravan.mark_urgent();
        assert!(caravan.is_urgent());
        assert!(caravan.ring());
        assert_eq!(remaining(&caravan), b"second");
        caravan.on_sent(6, |_| {});
        assert!(caravan.is_empty() && !caravan.ring());
    }

    #[test]
    fn what_is_sent_without_a_copy_stays_until_it_is_noticed() {
        let mut caravan = Caravan::<Vec<u8>>::default();
        let push = |caravan: &mut Caravan<Vec<u8>>, byte| {
            caravan.push_header(b"head", false, 0);
            caravan.push_payload(vec![byte; 10]);
            caravan.push_range(0..10, true);
            caravan.ring()
        };
        assert!(push(&mut caravan, 1));
        let mut taken = Vec::new();
        caravan.on_sent_zero_copy(9, true, |payload| taken.push(payload[0]));
        assert!(caravan.is_kept() && taken.is_empty());
        // The rest by copy: all of the caravan waits all the same.
        caravan.on_sent_zero_copy(5, false, |payload| taken.push(payload[0]));
        assert_eq!((taken, caravan.awaited_count(), caravan.is_kept()), (vec![1], 1, false));
        assert!(caravan.is_empty());
        assert!(push(&mut caravan, 2));
        caravan.on_sent_zero_copy(14, true, |_| {});
        assert!(push(&mut caravan, 3));
        caravan.on_sent(14, |payload| assert_eq!(payload[0], 3));
        let mut gone = Vec::new();
        // Out of order, which devices with several queues may do.
        caravan.on_notice(1, 1);
        caravan.release(|payload| gone.push(payload[0]));
        assert_eq!((&gone[..], caravan.awaited_count()), (&[2][..], 1));
        caravan.shrink();
        caravan.on_notice(0, 0);
        caravan.release(|payload| gone.push(payload[0]));
        assert_eq!((gone, caravan.awaited_count()), (vec![2, 1], 0));
        // The numbers go on.
        assert!(push(&mut caravan, 4));
        caravan.on_sent_zero_copy(1, true, |_| {});
        caravan.on_notice(0, 1);
        caravan.release(|_| panic!("those are gone"));
        assert_eq!(caravan.awaited_count(), 1);
        assert!(push(&mut caravan, 5) || caravan.is_leaving());
        let (count, kept) = caravan.take_kept();
        assert_eq!((count, kept), (1, vec![(b"head".to_vec(), vec![vec![4; 10]])]));
        assert!(!caravan.is_leaving() && caravan.awaited_count() == 0);
        // A caravan sent by copy alone is not kept.
        assert!(push(&mut caravan, 6));
        caravan.on_sent_zero_copy(5, false, |_| {});
        assert_eq!(caravan.take_kept(), (0, vec![]));
        assert!(caravan.is_leaving());
    }

    /// A caravan of two payloads that share counters with the test, 8 bytes of which were sent without a copy.
    fn kept_caravan() -> (Caravan<Rc<()>>, Rc<()>) {
        let mut caravan = Caravan::default();
        let payload = Rc::new(());
        for _ in 0..2 {
            caravan.push_bytes(&[0; 4]);
            caravan.push_payload(Rc::clone(&payload));
            caravan.push_range(0..10, true);
        }
        assert!(caravan.ring());
        caravan.on_sent_zero_copy(8, true, |_| {});
        assert!(caravan.is_kept() && caravan.interrupted().is_some());
        (caravan, payload)
    }

    #[test]
    fn a_payload_is_interrupted_between_two_pdus_as_well() {
        let mut caravan = Caravan::default();
        caravan.push_bytes(&[0; 4]);
        caravan.push_payload(vec![1; 10]);
        caravan.push_range(0..6, false);
        caravan.push_bytes(&[0; 4]);
        caravan.push_range(6..10, true);
        assert!(caravan.ring());
        caravan.on_sent(4, |_| {});
        assert!(caravan.interrupted().is_none(), "nothing of it is sent");
        caravan.on_sent(6 + 3, |_| {});
        assert_eq!(caravan.interrupted().map(|(_, range)| range), Some(6..10));
        caravan.replace_interrupted(vec![2; 4]);
        assert_eq!(remaining(&caravan), [0, 2, 2, 2, 2], "the header goes on where it stopped");
    }

    #[test]
    fn nothing_of_a_caravan_that_is_kept_is_freed_before_its_notices() {
        // Dropped: leaked for good.
        let (caravan, payload) = kept_caravan();
        drop(caravan);
        assert_eq!(Rc::strong_count(&payload), 3, "the kernel may still read both");
        // Sent to its end, and dropped.
        let (mut caravan, payload) = kept_caravan();
        caravan.on_sent_zero_copy(20, false, |_| {});
        drop(caravan);
        assert_eq!(Rc::strong_count(&payload), 3);
        // Cleared, for a lane that ends: it goes with the notice.
        let (mut caravan, payload) = kept_caravan();
        caravan.clear(drop);
        assert_eq!((caravan.is_empty(), caravan.awaited_count(), Rc::strong_count(&payload)), (true, 1, 3));
        caravan.on_notice(0, 0);
        caravan.release(drop);
        assert_eq!(Rc::strong_count(&payload), 1);
        // Noticed and not released: nothing to wait for.
        let (mut caravan, payload) = kept_caravan();
        caravan.on_notice(0, 0);
        drop(caravan);
        assert_eq!(Rc::strong_count(&payload), 1);
        // Only what waits behind it is free.
        let (mut caravan, payload) = kept_caravan();
        let behind = Rc::new(());
        caravan.push_payload(Rc::clone(&behind));
        caravan.push_range(0..10, true);
        drop(caravan);
        assert_eq!((Rc::strong_count(&payload), Rc::strong_count(&behind)), (3, 1));
    }

    #[test]
    fn a_caravan_that_is_kept_cannot_be_changed() {
        let is_refused = |change: &dyn Fn(&mut Caravan<Rc<()>>)| {
            let (mut caravan, payload) = kept_caravan();
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| change(&mut caravan)));
            // The notice releases the caravan, and the payloads with it.
            caravan.on_notice(0, 0);
            assert_eq!(Rc::strong_count(&payload), 3, "both payloads are still there");
            result.is_err()
        };
        assert!(is_refused(&|caravan| drop(caravan.replace_interrupted(Rc::new(())))));
        assert!(is_refused(&|caravan| caravan.on_sent(20, drop)));
        assert!(!is_refused(&|caravan| caravan.release(drop)));
    }

    #[test]
    fn payloads_sent_by_copy_before_a_send_without_one_are_released_at_once() {
        let mut caravan = Caravan::<Vec<u8>>::default();
        for byte in [1, 2] {
            caravan.push_payload(vec![byte; 10]);
            caravan.push_range(0..10, true);
        }
        assert!(caravan.ring());
        let mut gone = Vec::new();
        caravan.on_sent(15, |payload| gone.push(payload[0]));
        caravan.on_sent_zero_copy(5, true, |_| {});
        assert_eq!(gone, [1]);
        caravan.on_notice(0, 0);
        caravan.release(|payload| gone.push(payload[0]));
        assert_eq!(gone, [1, 2]);
    }

    #[test]
    fn a_notice_may_come_before_the_rest_is_sent() {
        let mut caravan = Caravan::<Vec<u8>>::default();
        caravan.push_payload(vec![1; 10]);
        caravan.push_range(0..10, true);
        assert!(caravan.ring());
        caravan.on_sent_zero_copy(5, true, |_| panic!("half of it"));
        caravan.on_notice(0, 0);
        caravan.release(|_| panic!("it is still to be sent"));
        caravan.on_sent_zero_copy(5, false, |_| {});
        let mut gone_count = 0;
        caravan.release(|_| gone_count += 1);
        assert_eq!((gone_count, caravan.awaited_count()), (1, 0));
    }

    proptest! {
        /// However sends are cut and notices arrive, in ranges, out of order and across a wrap of the numbers: every
        /// payload is released once, and not before the last notice of its caravan.
        #[test]
        fn kept_payloads_go_with_the_last_notice(
            caravans in proptest::collection::vec(proptest::collection::vec((1usize..40, any::<bool>()), 1..6), 1..12),
            notices in proptest::collection::vec((any::<u32>(), 0u32..3), 0..40),
            start in prop_oneof![Just(0u32), Just(u32::MAX - 3)],
        ) {
            let kept = Kept { next_send: start, ..Kept::default() };
            let mut caravan = Caravan::<Vec<u8>>::default();
            caravan.kept = Some(Box::new(kept));
            // Of each send without a copy, its caravan.
            let (mut sends, mut expected) = (Vec::new(), 0);
            for (number, cuts) in caravans.iter().enumerate() {
                let length: usize = cuts.iter().map(|(count, _)| count).sum();
                caravan.push_payload(vec![number as u8; length]);
                caravan.push_range(0..length as u32, true);
                prop_assert!(caravan.ring());
                for (count, is_zero_copy) in cuts {
                    if *is_zero_copy {
                        sends.push(number);
                    }
                    if *is_zero_copy || caravan.is_kept() {
                        caravan.on_sent_zero_copy(*count, *is_zero_copy, |_| {});
                    } else {
                        caravan.on_sent(*count, drop);
                    }
                }
                prop_assert!(!caravan.is_leaving());
                expected += usize::from(cuts.iter().any(|(_, is_zero_copy)| *is_zero_copy));
            }
            let mut is_noticed = vec![false; sends.len()];
            let mut gone = Vec::new();
            let all = (0..sends.len() as u32).map(|at| (at, 0));
            for (at, more) in notices.into_iter().chain(all) {
                if sends.is_empty() {
                    break;
                }
                let first = at as usize % sends.len();
                let last = (first + more as usize).min(sends.len() - 1);
                // Each send is noticed once.
                if is_noticed[first..=last].contains(&true) {
                    continue;
                }
                is_noticed[first..=last].fill(true);
                caravan.on_notice(start.wrapping_add(first as u32), start.wrapping_add(last as u32));
                caravan.release(|payload| gone.push(usize::from(payload[0])));
                let left = is_noticed.iter().filter(|is_noticed| !**is_noticed).count();
                prop_assert_eq!(caravan.awaited_count() as usize, left);
                for number in &gone {
                    let mut of_it = sends.iter().zip(&is_noticed).filter(|(of, _)| *of == number);
                    prop_assert!(of_it.all(|(_, is_noticed)| *is_noticed));
                }
            }
            prop_assert_eq!(gone.len(), expected);
            gone.dedup();
            prop_assert_eq!(gone.len(), expected);
        }

        /// However the kernel cuts a caravan, and whichever payloads are replaced, the bytes come out in order, and
        /// each payload is released exactly when its last byte is sent.
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
            caravan.invariants();
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
