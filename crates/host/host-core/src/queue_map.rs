//! Queue maps: lanes of several classes, so that a small read does not wait behind a large write, and a polled command
//! does not wait for a thread to wake.
//!
//! | Class | Commands |
//! |---|---|
//! | default | writes and everything else; reads too, if there are no read lanes |
//! | read | commands that change nothing and return data |
//! | poll | commands marked [`polled`](crate::Command::polled): their caller spins |
//!
//! Lanes are numbered as Linux numbers its queues: first those of the default class, then read, then poll.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Class of commands that a lane is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum LaneClass {
    /// Every command whose own class has no lanes.
    #[default]
    Default,
    /// Commands that change nothing and return data.
    Read,
    /// Commands whose caller busy-polls. Such a lane makes progress only in its owner's polls: no thread sleeps on it,
    /// and no event source watches its socket.
    Poll,
}

impl LaneClass {
    /// Every class, in the order of its lanes' numbers.
    pub const ALL: [Self; 3] = [Self::Default, Self::Read, Self::Poll];

    /// Lower-case name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Read => "read",
            Self::Poll => "poll",
        }
    }
}

impl fmt::Display for LaneClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Number of lanes of each class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueMap {
    /// Lanes of the default class.
    pub default: u16,
    /// Lanes for reads.
    pub read: u16,
    /// Lanes for polled commands.
    pub poll: u16,
}

impl QueueMap {
    /// Lanes of one class.
    #[must_use]
    pub fn of(self, class: LaneClass) -> u16 {
        match class {
            LaneClass::Default => self.default,
            LaneClass::Read => self.read,
            LaneClass::Poll => self.poll,
        }
    }

    /// Lanes of all classes.
    #[must_use]
    pub fn count(self) -> u16 {
        self.default.saturating_add(self.read).saturating_add(self.poll)
    }

    /// The map reduced to the number of queues that a controller grants. As on Linux, read lanes come first if a
    /// default lane remains, else reads share the default lanes; poll lanes get the rest.
    #[must_use]
    pub fn within(self, granted: u16) -> Self {
        let read = if self.read < granted { self.read } else { 0 };
        let default = self.default.min(granted - read);
        Self { default, read, poll: self.poll.min(granted - read - default) }
    }

    /// The numbers of a class's lanes, from 1.
    #[must_use]
    pub fn numbers(self, class: LaneClass) -> RangeInclusive<u16> {
        let before: u16 =
            LaneClass::ALL.into_iter().filter(|other| *other < class).map(|other| self.of(other)).sum();
        before + 1..=before + self.of(class)
    }

    /// The class of the lane with this number.
    #[must_use]
    pub fn class_of(self, number: u16) -> LaneClass {
        let found = LaneClass::ALL.into_iter().find(|class| self.numbers(*class).contains(&number));
        found.unwrap_or_default()
    }

    /// The index of the core for the lane with this number. Each class starts at the first core, so that one thread has
    /// lanes of several classes.
    #[must_use]
    pub fn place(self, number: u16, core_count: usize) -> usize {
        let first = *self.numbers(self.class_of(number)).start();
        usize::from(number - first) % core_count.max(1)
    }
}

/// Only lanes of the default class.
impl From<u16> for QueueMap {
    fn from(default: u16) -> Self {
        Self { default, read: 0, poll: 0 }
    }
}

impl fmt::Display for QueueMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "default={},read={},poll={}", self.default, self.read, self.poll)
    }
}

/// A text that is not a queue map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a queue map: write lanes by class, such as default=1,read=2,poll=1, with at least one default lane"
)]
pub struct InvalidQueueMap(String);

impl FromStr for QueueMap {
    type Err = InvalidQueueMap;

    fn from_str(text: &str) -> Result<Self, InvalidQueueMap> {
        let invalid = || InvalidQueueMap(text.to_owned());
        let mut map = Self::from(0);
        for part in text.split(',') {
            let (name, count) = part.split_once('=').ok_or_else(invalid)?;
            let count = count.parse().map_err(|_| invalid())?;
            match name {
                "default" => map.default = count,
                "read" => map.read = count,
                "poll" => map.poll = count,
                _ => return Err(invalid()),
            }
        }
        let total = [map.default, map.read, map.poll].into_iter().map(u32::from).sum::<u32>();
        if map.default == 0 || total > u16::MAX.into() { Err(invalid()) } else { Ok(map) }
    }
}

/// Lanes of one owner by class, each class used in turn.
#[derive(Clone, Debug, Default)]
pub struct Rota {
    lanes: [Vec<usize>; LaneClass::ALL.len()],
    next: [usize; LaneClass::ALL.len()],
}

impl Rota {
    /// Lanes of these classes, numbered in order.
    pub fn new(classes: impl IntoIterator<Item = LaneClass>) -> Self {
        let mut rota = Self::default();
        classes.into_iter().enumerate().for_each(|(index, class)| rota.lanes[class as usize].push(index));
        rota
    }

    /// Lanes of a class.
    #[must_use]
    pub fn of(&self, class: LaneClass) -> &[usize] {
        &self.lanes[class as usize]
    }

    /// The next lane for a command: of the class it `wants`, else of the class it is `otherwise` of, else of the
    /// default class, else any.
    #[inline]
    pub fn next(&mut self, wants: LaneClass, otherwise: LaneClass) -> Option<usize> {
        let order = [wants, otherwise, LaneClass::Default, LaneClass::Read, LaneClass::Poll];
        let class = order.into_iter().find(|class| !self.of(*class).is_empty())?;
        let (lanes, next) = (&self.lanes[class as usize], &mut self.next[class as usize]);
        let index = lanes[*next];
        *next = if *next + 1 < lanes.len() { *next + 1 } else { 0 };
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: QueueMap = QueueMap { default: 1, read: 2, poll: 1 };

    #[test]
    fn a_map_is_written_and_read() {
        assert_eq!("default=1,read=2,poll=1".parse(), Ok(MAP));
        assert_eq!(MAP.to_string().parse(), Ok(MAP));
        assert_eq!("default=3".parse(), Ok(QueueMap::from(3)));
        for text in
            ["", "read=1", "default=0,read=1", "default=1,write=1", "default=x", "default=65535,read=1"]
        {
            assert!(text.parse::<QueueMap>().is_err(), "{text}");
        }
    }

    #[test]
    fn classes_are_numbered_one_after_the_other() {
        let numbers = LaneClass::ALL.map(|class| MAP.numbers(class).collect::<Vec<_>>());
        assert_eq!(numbers, [vec![1], vec![2, 3], vec![4]]);
        let classes: Vec<_> = (1..=4).map(|number| MAP.class_of(number).name()).collect();
        assert_eq!(classes, ["default", "read", "read", "poll"]);
    }

    #[test]
    fn each_class_is_placed_from_the_first_core_on() {
        let map = QueueMap { default: 2, read: 3, poll: 1 };
        let places: Vec<_> = (1..=6).map(|number| map.place(number, 2)).collect();
        assert_eq!(places, [0, 1, 0, 1, 0, 0]);
        assert_eq!(map.place(2, 0), 0);
    }

    #[test]
    fn where_few_queues_are_granted_reads_share_and_polls_go_without() {
        let map = QueueMap { default: 2, read: 2, poll: 2 };
        let told: Vec<_> = (0..=7).map(|granted| map.within(granted).to_string()).collect();
        assert_eq!(
            told,
            [
                "default=0,read=0,poll=0",
                "default=1,read=0,poll=0",
                "default=2,read=0,poll=0",
                "default=1,read=2,poll=0",
                "default=2,read=2,poll=0",
                "default=2,read=2,poll=1",
                "default=2,read=2,poll=2",
                "default=2,read=2,poll=2",
            ]
        );
    }

    #[test]
    fn commands_go_round_the_lanes_of_their_class() {
        use LaneClass::{Default, Poll, Read};
        let mut rota = Rota::new((1..=4).map(|number| MAP.class_of(number)));
        let reads: Vec<_> = (0..3).filter_map(|_| rota.next(Read, Read)).collect();
        assert_eq!(reads, [1, 2, 1]);
        assert_eq!((rota.next(Default, Default), rota.next(Poll, Read)), (Some(0), Some(3)));
        let mut plain = Rota::new([Default, Default]);
        let polled: Vec<_> = (0..3).filter_map(|_| plain.next(Poll, Read)).collect();
        assert_eq!(polled, [0, 1, 0], "without lanes of its own");
        assert_eq!(Rota::new([Read]).next(Default, Default), Some(0));
        assert_eq!(Rota::default().next(Default, Default), None);
    }
}
