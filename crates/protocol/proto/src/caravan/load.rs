//! A run of PDUs: bytes, references to payloads, and how far they are sent.

/// A run of PDUs.
#[derive(Debug)]
pub(super) struct Load<P> {
    /// Headers, digests and padding, one after the other.
    pub(super) bytes: Vec<u8>,
    /// The parts to send, in order.
    pub(super) parts: Vec<Part>,
    /// Payloads of the parts, in order; `None` once a payload is sent completely.
    pub(super) payloads: Vec<Option<P>>,
    pub(super) pdu_count: u32,
    /// Commands that these PDUs begin or end.
    pub(super) command_count: u32,
    /// A command waits for one of these PDUs before it can proceed.
    pub(super) is_urgent: bool,
    /// Bytes not sent yet.
    pub(super) unsent: usize,
    /// Position up to which it is sent.
    pub(super) sent: Cursor,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// This number of bytes, the next ones of `bytes`.
    Bytes(u32),
    /// A range of the next payload; `is_last` marks the last range of a payload.
    Payload { start: u32, end: u32, is_last: bool },
}

/// Position in a load: parts sent, bytes sent of the next part, bytes sent of `Load::bytes`, payloads sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    pub(super) part: usize,
    pub(super) within: u32,
    pub(super) bytes: usize,
    pub(super) payload: usize,
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

impl<P> Load<P> {
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        reason = "headers are short, and a queue's entries bound how many there are"
    )]
    pub(super) fn push_bytes(&mut self, bytes: &[u8]) {
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

    /// Advances by `count` bytes; `ended` gets the place of each payload that is sent completely.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "positions in our own output, which no peer names"
    )]
    pub(super) fn advance(&mut self, mut count: usize, ended: &mut impl FnMut(&mut Option<P>)) {
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
                ended(&mut self.payloads[sent.payload]);
                sent.payload += 1;
            }
        }
    }

    /// Payloads of which every range is pushed.
    pub(super) fn last_range_count(&self) -> usize {
        self.parts.iter().filter(|part| part.ends_payload()).count()
    }

    #[expect(clippy::expect_used, reason = "documented as a panic")]
    pub(super) fn invariants(&self) {
        let before = self.parts.get(..self.sent.part).expect("no more parts are sent than there are");
        let bytes_of = |parts: &[Part]| -> usize {
            parts.iter().filter(|part| matches!(part, Part::Bytes(_))).map(|part| part.length()).sum()
        };
        let total: usize = self.parts.iter().map(|part| part.length()).sum();
        let sent: usize = before.iter().map(|part| part.length()).sum();
        let within = self.sent.within as usize;
        assert_eq!(self.bytes.len(), bytes_of(&self.parts), "headers and the parts that name them");
        assert_eq!(
            total.checked_sub(sent.saturating_add(within)),
            Some(self.unsent),
            "bytes that are not sent"
        );
        assert!(self.parts.iter().all(|part| part.length() > 0), "no part is empty");
        let has_neighbours = self.parts.windows(2).any(|two| matches!(two, [Part::Bytes(_), Part::Bytes(_)]));
        assert!(!has_neighbours, "neighbouring headers are one part");
        let next = self.parts.get(self.sent.part);
        assert!(within < next.map_or(1, |part| part.length()), "a part that is sent to its end is counted");
        let of_header = if matches!(next, Some(Part::Bytes(_))) { within } else { 0 };
        assert_eq!(self.sent.bytes, bytes_of(before).saturating_add(of_header), "headers that are sent");
        let ended_count = before.iter().filter(|part| part.ends_payload()).count();
        assert_eq!(self.sent.payload, ended_count, "payloads that are sent");
        let (count, last_count) = (self.payloads.len(), self.last_range_count());
        assert!(
            count == last_count || count == last_count.saturating_add(1),
            "a payload for each last range"
        );
        assert!(
            self.payloads.iter().skip(ended_count).all(Option::is_some),
            "payloads that are not sent are here"
        );
        assert!(self.command_count <= self.pdu_count, "a PDU begins or ends one command at most");
        assert!(!self.parts.is_empty() || self.pdu_count == 0, "a PDU has a header");
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub(super) fn clear(&mut self) {
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

impl Cursor {
    pub(super) fn is_at_start(self) -> bool {
        (self.part, self.within, self.bytes, self.payload) == (0, 0, 0, 0)
    }
}

impl Part {
    fn ends_payload(&self) -> bool {
        matches!(self, Self::Payload { is_last: true, .. })
    }

    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "a range that is not empty")]
    fn length(self) -> usize {
        match self {
            Self::Bytes(length) => length as usize,
            Self::Payload { start, end, .. } => (end - start) as usize,
        }
    }
}
