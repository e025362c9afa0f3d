//! The commands of one queue that a controller executes: their slots, the driver's data of each, and an index by cid.

use wire::U16;

use crate::write_data::WriteData;

/// Our index of a command on its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(u16);

/// Commands a queue can have at most: slots take 10 bits of a transfer tag.
pub const SLOT_COUNT_MAX: u16 = 1024;

/// Slots are added this many at a time, as commands come in: an idle queue has none.
const SLOT_COUNT_STEP: usize = 16;

impl Slot {
    /// The slot of this index: for drivers of other machines than ours, and tests.
    #[must_use]
    pub fn new(index: u16) -> Self {
        Self(index)
    }

    /// The slot as an index, below the queue's depth.
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        self.0.into()
    }
}

/// A transfer tag that belongs to no slot, or to one that has moved on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnknownTag;

/// Slots and their occupants. `B` is a buffer for write data, `C` the driver's context of a command.
#[derive(Debug)]
pub(crate) struct CommandTable<B, C> {
    entries: Vec<Entry<B, C>>,
    /// Slots without a command, the next one last.
    free: Vec<u16>,
    /// The live commands by cid, with open addressing: in the order of their homes, each at its home or behind others
    /// with no gap between. A power of two, at least twice the entries.
    by_cid: Vec<Place>,
    limit: u16,
    live_count: u16,
    /// Commands whose cids others have taken over, until the driver is notified.
    superseded: Vec<u16>,
}

/// A place of the index by cid. Cids are here as well as in the entries, so that a search reads nothing else.
#[derive(Clone, Copy, Debug)]
struct Place {
    cid: u16,
    /// The command's slot + 1; 0 if the place is empty.
    taken: u16,
}

impl Place {
    const EMPTY: Self = Self { cid: 0, taken: 0 };

    #[inline]
    fn is_empty(self) -> bool {
        self.taken == 0
    }

    /// How far behind its home the command at `at` is.
    #[inline]
    fn distance(self, at: usize, mask: usize) -> usize {
        at.wrapping_sub(self.cid.into()) & mask
    }
}

#[derive(Debug)]
pub(crate) struct Entry<B, C> {
    pub(crate) cid: u16,
    /// Grows with each occupant; part of its transfer tags.
    generation: u8,
    pub(crate) phase: Phase<B>,
    /// The driver's context of the command.
    pub(crate) context: C,
}

/// The phase of a command.
#[derive(Debug)]
pub(crate) enum Phase<B> {
    Free,
    /// The driver has it.
    Executing,
    /// An Asynchronous Event Request: the driver has it until an event comes. A host may complete it by itself and
    /// give its cid to another command.
    AwaitingEvent,
    /// An Asynchronous Event Request whose cid another command has taken over: the driver has it, and its completion
    /// is not sent.
    Superseded,
    /// The driver has asked for its data, which goes into the buffer, and for the part of it behind that, if there is one,
    /// into `ahead`.
    Receiving {
        data: WriteData,
        buffer: B,
        ahead: Option<B>,
        is_intact: bool,
    },
    /// It is completed; data that was asked for before is still to come, and is dropped.
    Draining {
        data: WriteData,
        /// Its buffer, while a PDU comes in that the kernel may be placing there.
        buffer: Option<B>,
    },
}

impl<B> Phase<B> {
    /// The buffer that receives.
    #[inline]
    pub(crate) fn receiving_mut(&mut self, of: Arriving) -> Option<&mut B> {
        match (self, of) {
            (Self::Receiving { buffer, .. }, Arriving::InPart) => Some(buffer),
            (Self::Receiving { ahead, .. }, Arriving::Ahead) => ahead.as_mut(),
            _ => None,
        }
    }
}

/// Where the data of a PDU that comes in goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arriving {
    /// Into the buffer of its command.
    InPart,
    /// Into that of the part behind.
    Ahead,
}

impl<B, C> Entry<B, C> {
    /// Its command, which was asked for its data, is completed.
    fn stop_receiving(&mut self, arriving: Option<Arriving>) {
        self.phase = match (std::mem::replace(&mut self.phase, Phase::Free), arriving) {
            (Phase::Receiving { data, buffer, .. }, Some(Arriving::InPart)) => {
                Phase::Draining { data, buffer: Some(buffer) }
            }
            (Phase::Receiving { data, ahead, .. }, Some(Arriving::Ahead)) => {
                Phase::Draining { data, buffer: ahead }
            }
            (Phase::Receiving { data, .. }, None) if data.is_owed() => Phase::Draining { data, buffer: None },
            (Phase::Receiving { .. } | Phase::AwaitingEvent, _) => Phase::Free,
            (Phase::Free | Phase::Executing | Phase::Superseded | Phase::Draining { .. }, _) => {
                panic!("a command is completed once")
            }
        }
    }
}

impl<B, C: Default> CommandTable<B, C> {
    /// A table for at most `limit` commands at once, up to [`SLOT_COUNT_MAX`].
    pub(crate) fn new(limit: u16) -> Self {
        let limit = limit.min(SLOT_COUNT_MAX);
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            by_cid: Vec::new(),
            limit,
            live_count: 0,
            superseded: Vec::new(),
        }
    }

    pub(crate) fn set_limit(&mut self, limit: u16) {
        self.limit = limit.min(SLOT_COUNT_MAX);
    }

    /// Commands there may be at once.
    #[inline]
    pub(crate) fn limit(&self) -> u16 {
        self.limit
    }

    /// Commands that have not been completed.
    #[inline]
    pub(crate) fn live_count(&self) -> u16 {
        self.live_count
    }

    /// Whether no command is there and no data of one is still to come.
    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == self.entries.len()
    }

    /// Whether the command in this slot executes, and there is nothing else.
    #[expect(clippy::arithmetic_side_effects, reason = "slots, at most 1024")]
    pub(crate) fn is_alone(&self, slot: Slot) -> bool {
        let is_executing = || matches!(self.entry(slot).phase, Phase::Executing);
        self.live_count == 1 && self.free.len() + 1 == self.entries.len() && is_executing()
    }

    /// Whether a slot is left. None is, below the limit, only while others drain.
    #[inline]
    pub(crate) fn has_slot(&self) -> bool {
        !self.free.is_empty() || self.entries.len() < usize::from(SLOT_COUNT_MAX)
    }

    /// A slot for a new command, which executes. No other command in the table has its cid.
    ///
    /// # Panics
    /// If the table has as many commands as it may, or no slot.
    #[inline(always)]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "slots are the table's own, at most 1024"
    )]
    pub(crate) fn insert(&mut self, cid: u16) -> Slot {
        debug_assert!(self.live_count < self.limit, "no more than {} commands", self.limit);
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow(),
        };
        let entry = &mut self.entries[usize::from(index)];
        entry.cid = cid;
        // 4 bits of generation, never 0: a tag of 0 is never ours.
        entry.generation = if entry.generation >= 15 { 1 } else { entry.generation + 1 };
        entry.phase = Phase::Executing;
        entry.context = C::default();
        self.live_count += 1;
        self.index(cid, index);
        Slot(index)
    }

    /// The live command with this cid.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "the mask keeps places in the table")]
    pub(crate) fn find(&self, cid: u16) -> Option<Slot> {
        let mask = self.by_cid.len().wrapping_sub(1);
        let mut at = usize::from(cid) & mask;
        // An empty table has no place at all.
        while let Some(place) = self.by_cid.get(at) {
            let index = place.taken.checked_sub(1)?;
            if place.cid == cid {
                return Some(Slot(index));
            }
            at = (at + 1) & mask;
        }
        None
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "slots are the table's own")]
    pub(crate) fn entry(&self, slot: Slot) -> &Entry<B, C> {
        &self.entries[slot.index()]
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "slots are the table's own")]
    pub(crate) fn phase_mut(&mut self, slot: Slot) -> &mut Phase<B> {
        &mut self.entries[slot.index()].phase
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "slots are the table's own")]
    pub(crate) fn context_mut(&mut self, slot: Slot) -> &mut C {
        &mut self.entries[slot.index()].context
    }

    /// The driver's contexts of the commands that have not been completed.
    pub(crate) fn contexts(&self) -> impl Iterator<Item = &C> {
        let live = |entry: &&Entry<B, C>| !matches!(entry.phase, Phase::Free | Phase::Draining { .. });
        self.entries.iter().filter(live).map(|entry| &entry.context)
    }

    /// The command is completed: its cid may come again. Its slot stays while data asked for is still to come, and its
    /// buffer while a PDU is `arriving` there. Returns the cid; `None` if another command has taken it over: then
    /// nothing is to be sent.
    ///
    /// # Panics
    /// If the slot has no command.
    #[inline(always)]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "slots are the table's own, and this one is live"
    )]
    pub(crate) fn complete(
        &mut self,
        slot: Slot,
        arriving: impl FnOnce() -> Option<Arriving>,
    ) -> Option<u16> {
        let entry = &mut self.entries[slot.index()];
        debug_assert!(
            !matches!(entry.phase, Phase::Free | Phase::Draining { .. }),
            "the command in slot {} has been completed",
            slot.0
        );
        let cid = entry.cid;
        if let Phase::Executing = entry.phase {
            entry.phase = Phase::Free;
            self.free.push(slot.0);
        } else if !self.complete_waiting(slot, arriving()) {
            return None;
        }
        self.live_count -= 1;
        self.unindex(cid);
        Some(cid)
    }

    /// Completes a command that waits for its data or for an event. Returns whether its cid is still its own.
    #[inline(never)]
    #[expect(clippy::indexing_slicing, reason = "slots are the table's own")]
    fn complete_waiting(&mut self, slot: Slot, arriving: Option<Arriving>) -> bool {
        let entry = &mut self.entries[slot.index()];
        let is_superseded = matches!(entry.phase, Phase::Superseded);
        if is_superseded {
            entry.phase = Phase::Free;
            self.superseded.retain(|superseded| *superseded != slot.0);
        } else {
            entry.stop_receiving(arriving);
        }
        if let Phase::Free = entry.phase {
            self.free.push(slot.0);
        }
        !is_superseded
    }

    /// The command is an Asynchronous Event Request, to be completed when an event comes.
    pub(crate) fn await_event(&mut self, slot: Slot) {
        let phase = self.phase_mut(slot);
        debug_assert!(matches!(phase, Phase::Executing), "it has just been delivered");
        *phase = Phase::AwaitingEvent;
    }

    /// A new command has the cid of the one in this slot. Says whether the old one gives way: it does if it awaits an
    /// event.
    #[cold]
    #[expect(clippy::arithmetic_side_effects, reason = "the command is live, so one at least is")]
    pub(crate) fn supersede(&mut self, slot: Slot) -> bool {
        if !matches!(self.phase_mut(slot), Phase::AwaitingEvent) {
            return false;
        }
        *self.phase_mut(slot) = Phase::Superseded;
        self.live_count -= 1;
        self.unindex(self.entry(slot).cid);
        self.superseded.push(slot.0);
        true
    }

    /// The next command that has been superseded since the driver asked last.
    #[inline]
    pub(crate) fn next_superseded(&mut self) -> Option<Slot> {
        self.superseded.pop().map(Slot)
    }

    /// The last byte that was owed to a completed command has come.
    #[expect(clippy::indexing_slicing, reason = "slots are the table's own")]
    pub(crate) fn drained(&mut self, slot: Slot) {
        debug_assert!(
            matches!(self.entry(slot).phase, Phase::Draining { .. }),
            "the command in slot {} is owed nothing, and its slot may be free",
            slot.0
        );
        self.entries[slot.index()].phase = Phase::Free;
        self.free.push(slot.0);
    }

    /// The transfer tag of a window of a command.
    #[expect(
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "slots are the table's own, and a command has at most four windows"
    )]
    pub(crate) fn tag(&self, slot: Slot, window: usize) -> U16 {
        let window = u16::try_from(window).expect("few windows") & 3;
        U16::new(u16::from(self.entries[slot.index()].generation) << 12 | window << 10 | slot.0)
    }

    /// The slot and the window that a tag names. wire §2.7
    pub(crate) fn by_tag(&self, tag: U16) -> Result<(Slot, usize), UnknownTag> {
        let tag = tag.get();
        let (generation, window, index) = (tag >> 12, usize::from(tag >> 10 & 3), tag & 0x3ff);
        match self.entries.get(usize::from(index)) {
            // A slot that was never used is of generation 0.
            Some(entry) if generation != 0 && u16::from(entry.generation) == generation => {
                Ok((Slot(index), window))
            }
            _ => Err(UnknownTag),
        }
    }

    /// Takes every command out, for a lane that ends. `gone` gets the slots of those that the driver has.
    #[expect(clippy::expect_used, reason = "slots, at most 1024")]
    pub(crate) fn clear(&mut self, mut gone: impl FnMut(Slot)) {
        for (index, entry) in self.entries.iter_mut().enumerate() {
            let phase = std::mem::replace(&mut entry.phase, Phase::Free);
            if !matches!(phase, Phase::Free | Phase::Draining { .. }) {
                gone(Slot(u16::try_from(index).expect("few slots")));
            }
        }
        *self = Self::new(self.limit);
    }

    /// Gives the slots' memory back if there are no commands.
    pub(crate) fn shrink(&mut self) {
        if self.is_idle() {
            // An old tag could name a command again; with no command there is no data on its way.
            *self = Self::new(self.limit);
        }
    }

    /// Makes slots, of which it returns one.
    #[cold]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "slots, at most 1024, one of which was just made"
    )]
    fn grow(&mut self) -> u16 {
        let from = self.entries.len();
        // Slots that only drain do not count as commands: they may make the table a little larger than its limit.
        let to = (from + SLOT_COUNT_STEP).min(usize::from(SLOT_COUNT_MAX));
        let empty = |_| Entry { cid: 0, generation: 0, phase: Phase::Free, context: C::default() };
        self.entries.extend((from..to).map(empty));
        self.free.extend((from..to).rev().map(|index| u16::try_from(index).expect("at most the maximum")));
        self.by_cid = vec![Place::EMPTY; (2 * to).next_power_of_two()];
        for index in 0..from {
            if !matches!(self.entries[index].phase, Phase::Free | Phase::Superseded | Phase::Draining { .. })
            {
                self.index(self.entries[index].cid, u16::try_from(index).expect("at most the maximum"));
            }
        }
        self.free.pop().expect("there is a slot")
    }

    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the mask keeps places in the table, which is not empty"
    )]
    fn index(&mut self, cid: u16, index: u16) {
        let place = Place { cid, taken: index + 1 };
        let at = usize::from(cid) & (self.by_cid.len() - 1);
        if self.by_cid[at].is_empty() {
            self.by_cid[at] = place;
        } else {
            self.index_behind(at, place);
        }
    }

    /// Adds a command whose home is taken. One that is farther from its home takes the place of one that is nearer,
    /// which moves on.
    #[cold]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the mask keeps places in the table, half of which is empty"
    )]
    fn index_behind(&mut self, mut at: usize, mut place: Place) {
        let mask = self.by_cid.len() - 1;
        while !self.by_cid[at].is_empty() {
            if self.by_cid[at].distance(at, mask) < place.distance(at, mask) {
                std::mem::swap(&mut self.by_cid[at], &mut place);
            }
            at = (at + 1) & mask;
        }
        self.by_cid[at] = place;
    }

    /// Removes a command, and moves those behind it that are not at their homes.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the mask keeps places in the table, half of which is empty, and the command is there"
    )]
    fn unindex(&mut self, cid: u16) {
        let mask = self.by_cid.len() - 1;
        let mut gap = usize::from(cid) & mask;
        while self.by_cid[gap].cid != cid {
            gap = (gap + 1) & mask;
        }
        self.by_cid[gap] = Place::EMPTY;
        if !self.by_cid[(gap + 1) & mask].is_empty() {
            self.close_gap(gap, mask);
        }
    }

    /// Moves the commands behind a gap up, until one is at its home: none behind that one belongs before it.
    #[inline(never)] // Keeps `complete`, which is inlined, short.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the mask keeps places in the table, half of which is empty"
    )]
    fn close_gap(&mut self, mut gap: usize, mask: usize) {
        loop {
            let at = (gap + 1) & mask;
            let place = self.by_cid[at];
            if place.is_empty() || place.distance(at, mask) == 0 {
                return;
            }
            self.by_cid.swap(gap, at);
            gap = at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn a_queue_takes_no_more_commands_than_it_may() {
        let mut table = CommandTable::<(), ()>::new(2);
        assert!(table.is_idle() && table.has_slot());
        let first = table.insert(0xffff);
        table.insert(0);
        assert_eq!((table.live_count(), table.limit()), (2, 2));
        assert_eq!(table.complete(first, || None), Some(0xffff));
        table.insert(1);
        assert!(!table.is_idle());
    }

    #[test]
    #[should_panic(expected = "no more than 1 commands")]
    fn one_more_than_may_be_is_a_mistake() {
        let mut table = CommandTable::<(), ()>::new(1);
        table.insert(1);
        table.insert(2);
    }

    #[test]
    #[should_panic(expected = "has been completed")]
    fn completing_twice_is_a_mistake() {
        let mut table = CommandTable::<(), ()>::new(2);
        table.insert(1);
        let slot = table.insert(2);
        table.complete(slot, || None);
        table.complete(slot, || None);
    }

    #[test]
    fn a_tag_is_known_only_while_its_command_is_in_the_slot() {
        let mut table = CommandTable::<(), ()>::new(4);
        assert_eq!(table.by_tag(U16::new(0)), Err(UnknownTag));
        let slot = table.insert(7);
        let tag = table.tag(slot, 2);
        assert_eq!(table.by_tag(tag), Ok((slot, 2)));
        table.complete(slot, || None);
        let again = table.insert(8);
        assert_eq!(again, slot);
        assert_eq!(table.by_tag(tag), Err(UnknownTag));
        // Tags that were never given, also those of slots that were never used.
        for raw in [0, 1, 15, 16, 0x0401, 0xffff, 0x03ff] {
            assert_eq!(table.by_tag(U16::new(raw)), Err(UnknownTag));
        }
    }

    #[test]
    fn a_slot_stays_while_data_is_owed_to_it() {
        let mut table = CommandTable::<_, ()>::new(1);
        let mut data = WriteData::new(0..8);
        data.grant(8, 1);
        let slot = table.insert(7);
        *table.phase_mut(slot) = Phase::Receiving { data, buffer: (), ahead: None, is_intact: true };
        table.complete(slot, || None);
        assert_eq!(table.find(7), None, "its cid is free at once");
        let other = table.insert(7);
        assert_ne!(other, slot);
        table.shrink();
        table.drained(slot);
        table.complete(other, || None);
        assert_eq!(table.live_count(), 0);
        assert!(table.is_idle());
    }

    #[test]
    fn a_buffer_stays_while_a_pdu_is_arriving_in_it() {
        let mut table = CommandTable::<_, ()>::new(1);
        let mut data = WriteData::new(0..8);
        data.grant(8, 1);
        data.on_h2c_data(0, 0, 8, true).unwrap();
        let slot = table.insert(7);
        *table.phase_mut(slot) = Phase::Receiving { data, buffer: "buffer", ahead: None, is_intact: true };
        table.complete(slot, || Some(Arriving::InPart));
        assert!(matches!(table.phase_mut(slot), Phase::Draining { buffer: Some("buffer"), .. }));
        assert!(!table.is_idle());
    }

    #[test]
    fn what_the_driver_keeps_with_a_command_goes_with_it() {
        let mut table = CommandTable::<(), Option<char>>::new(4);
        let (first, second) = (table.insert(1), table.insert(2));
        *table.context_mut(first) = Some('a');
        *table.context_mut(second) = Some('b');
        assert_eq!((table.entry(first).context, table.contexts().count()), (Some('a'), 2));
        table.complete(first, || None);
        assert_eq!(table.contexts().collect::<Vec<_>>(), [&Some('b')]);
        let again = table.insert(3);
        assert_eq!((again, table.entry(again).context), (first, None), "nothing of the one before");
    }

    proptest! {
        /// Commands are found by any cid, also when many share their low bits, and never after they are completed.
        #[test]
        fn every_live_cid_is_found(
            steps in proptest::collection::vec((any::<bool>(), 0u16..64, 0u16..4), 1..400),
        ) {
            let mut table = CommandTable::<(), ()>::new(SLOT_COUNT_MAX);
            let mut model = HashMap::new();
            for (insert, low, high) in steps {
                let cid = high << 12 | low;
                if insert && !model.contains_key(&cid) {
                    model.insert(cid, table.insert(cid));
                } else if let Some(slot) = model.remove(&cid) {
                    table.complete(slot, || None);
                }
                prop_assert_eq!(table.find(cid), model.get(&cid).copied());
            }
            for (cid, slot) in &model {
                prop_assert_eq!(table.find(*cid), Some(*slot));
            }
            prop_assert_eq!(usize::from(table.live_count()), model.len());
        }
    }
}
