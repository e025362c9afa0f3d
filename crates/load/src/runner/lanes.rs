//! The lanes to the target of one thread: its own, or handed over to threads of theirs.

use std::time::Duration;

use host::{Command, Completion, Error, HandedLanes, Lane, LaneSet, Refused};

use super::buffer::IoBuffer;

/// Lanes, driven by this thread or by threads of their own.
#[derive(Debug)]
pub(super) enum Lanes {
    Own(LaneSet<IoBuffer>),
    Handed(HandedLanes<IoBuffer>),
    /// The run is over.
    Taken,
}

impl Lanes {
    pub(super) fn new(lanes: Vec<Lane<IoBuffer>>, hand_over: bool) -> Result<Self, Error> {
        Ok(if hand_over { Self::Handed(HandedLanes::new(lanes)?) } else { Self::Own(LaneSet::new(lanes)?) })
    }

    /// The lane that takes the next command of its class.
    pub(super) fn next_lane(&mut self, command: &Command) -> usize {
        match self {
            Self::Own(lanes) => lanes.next_lane(command),
            Self::Handed(lanes) => lanes.next_lane(command),
            Self::Taken => unreachable!("nothing is submitted after the end"),
        }
    }

    #[inline]
    pub(super) fn submit(
        &mut self,
        index: usize,
        command: Command,
        buffer: Option<IoBuffer>,
        user: u64,
    ) -> Result<(), Refused<IoBuffer>> {
        match self {
            Self::Own(lanes) => lanes.submit(index, command, buffer, user),
            Self::Handed(lanes) => lanes.submit(index, command, buffer, user),
            Self::Taken => unreachable!("nothing is submitted after the end"),
        }
    }

    /// Why the association has ended, as far as this lane knows.
    pub(super) fn over(&self, index: usize) -> Option<&Error> {
        match self {
            Self::Own(lanes) => lanes.lanes()[index].over(),
            Self::Handed(_) | Self::Taken => None,
        }
    }

    #[inline]
    pub(super) fn outstanding(&self) -> usize {
        match self {
            Self::Own(lanes) => lanes.outstanding(),
            Self::Handed(lanes) => lanes.outstanding(),
            Self::Taken => 0,
        }
    }

    #[inline]
    pub(super) fn poll_with(&mut self, each: &mut impl FnMut(usize, Completion<IoBuffer>)) {
        match self {
            Self::Own(lanes) => lanes.poll_with(each),
            Self::Handed(lanes) => lanes.poll_with(each),
            Self::Taken => 0,
        };
    }

    #[inline]
    pub(super) fn wait_with(
        &mut self,
        each: &mut impl FnMut(usize, Completion<IoBuffer>),
        timeout: Duration,
    ) {
        match self {
            Self::Own(lanes) => lanes.wait_with(each, timeout),
            Self::Handed(lanes) => lanes.wait_with(each, timeout),
            Self::Taken => 0,
        };
    }

    /// The lanes themselves, once the run is over.
    pub(super) fn take_lanes(&mut self) -> Vec<Lane<IoBuffer>> {
        match std::mem::replace(self, Self::Taken) {
            Self::Own(lanes) => lanes.into_lanes(),
            Self::Handed(lanes) => lanes.into_lanes(),
            Self::Taken => Vec::new(),
        }
    }
}
