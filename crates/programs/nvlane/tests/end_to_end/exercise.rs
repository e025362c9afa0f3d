//! Verified load: commands of all sizes on several lanes, and the expected content of every block.
//!
//! Each block contains its number and generation, so the model is one number per block. No two commands in flight touch
//! the same block, unless both read it.

use std::ops::Range;
use std::time::Instant;

use host::{Command, Completion, LaneSet, Namespace};
use linux::random::SplitMix64;

use crate::setup::PATIENCE;
use linux::random::mix;

/// The expected contents of a namespace.
pub(crate) struct Model {
    seed: u64,
    /// Generation of each block, 0 for zeroes.
    generations: Vec<u64>,
    /// Number of commands that read each block, or -1 if one changes it.
    users: Vec<i16>,
    lba_bytes: usize,
    newest: u64,
}

/// Amount of load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) commands: u32,
    /// Maximum bytes transferred in total.
    pub(crate) bytes: u64,
    /// The longest transfer, blocks.
    pub(crate) blocks_max: u32,
}

#[derive(Clone, Debug)]
enum Kind {
    Read,
    Write(u64),
    Zero,
    Check,
}

/// A command in flight.
#[derive(Clone, Debug)]
struct Flight {
    kind: Kind,
    blocks: Range<usize>,
}

impl Model {
    /// A zeroed namespace.
    pub(crate) fn new(namespace: &Namespace, seed: u64) -> Self {
        let count = usize::try_from(namespace.block_count()).expect("a small namespace");
        let lba_bytes = namespace.lba_bytes() as usize;
        Self { seed, generations: vec![0; count], users: vec![0; count], lba_bytes, newest: 0 }
    }

    fn word(&self, block: usize, generation: u64) -> u64 {
        mix(self.seed ^ mix(block as u64) ^ generation.wrapping_mul(0x9e37_79b9))
    }

    fn fill(&self, blocks: Range<usize>, generation: u64, into: &mut [u8]) {
        for (block, bytes) in blocks.zip(into.chunks_exact_mut(self.lba_bytes)) {
            let mut word = self.word(block, generation);
            for part in bytes.chunks_exact_mut(8) {
                part.copy_from_slice(&word.to_le_bytes());
                word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
            }
        }
    }

    /// # Panics
    /// A block has unexpected content.
    fn check(&self, blocks: Range<usize>, bytes: &[u8]) {
        let mut expected = vec![0; self.lba_bytes];
        for (block, found) in blocks.zip(bytes.chunks_exact(self.lba_bytes)) {
            let generation = self.generations[block];
            if generation == 0 {
                expected.fill(0);
            } else {
                self.fill(block..block + 1, generation, &mut expected);
            }
            if found != expected {
                let at = (0..self.lba_bytes).find(|&at| found[at] != expected[at]);
                panic!("block {block} is not of generation {generation}, from byte {at:?} on");
            }
        }
    }

    fn is_free(&self, blocks: Range<usize>, changes: bool) -> bool {
        self.users[blocks].iter().all(|&users| if changes { users == 0 } else { users >= 0 })
    }

    fn occupy(&mut self, blocks: Range<usize>, changes: bool) {
        self.users[blocks].iter_mut().for_each(|users| *users = if changes { -1 } else { *users + 1 });
    }

    fn release(&mut self, blocks: Range<usize>) {
        self.users[blocks].iter_mut().for_each(|users| *users = (*users).max(1) - 1);
    }

    /// Runs the load, and then reads and checks every block.
    pub(crate) fn run(
        &mut self,
        lanes: &mut LaneSet,
        namespace: &Namespace,
        load: Load,
        random: &mut SplitMix64,
    ) {
        let mut flights: Vec<Option<Flight>> = Vec::new();
        let (mut left, mut bytes_left) = (load.commands, load.bytes);
        let mut until = Instant::now() + PATIENCE;
        while left > 0 || lanes.outstanding() > 0 {
            let lane_count = lanes.lanes().len() as u64;
            let index = usize::try_from(random.below(lane_count)).expect("an index");
            if left > 0 && lanes.lanes()[index].has_room(1) {
                let (flight, command) = self.next(namespace, load, &mut bytes_left, random);
                if let Some(command) = command {
                    left -= 1;
                    let buffer = command.buffer_bytes().map(|length| self.buffer(&flight, length));
                    let changes = matches!(flight.kind, Kind::Write(_) | Kind::Zero);
                    self.occupy(flight.blocks.clone(), changes);
                    let user = flights.iter().position(Option::is_none).unwrap_or(flights.len());
                    if user == flights.len() {
                        flights.push(None);
                    }
                    flights[user] = Some(flight);
                    lanes.lanes_mut()[index].submit(command, buffer, user as u64).expect("room");
                    continue;
                }
            }
            let mut on_end = |_, completion| self.on_end(&mut flights, completion);
            if lanes.wait_with(&mut on_end, PATIENCE) > 0 {
                until = Instant::now() + PATIENCE;
            }
            assert!(Instant::now() < until, "nothing ends: {flights:?}");
        }
        self.verify(lanes, namespace);
    }

    /// Reads and checks every block.
    pub(crate) fn verify(&mut self, lanes: &mut LaneSet, namespace: &Namespace) {
        let step = namespace.transfer_blocks_max();
        for range in Namespace::split(0, namespace.block_count(), step) {
            let command = namespace.read(range.lba, range.blocks).expect("within the namespace");
            let buffer = vec![0xee; range.blocks as usize * self.lba_bytes];
            lanes.lanes_mut()[0].submit(command, Some(buffer), 0).expect("room");
            let start = usize::try_from(range.lba).expect("a small namespace");
            let blocks = start..start + range.blocks as usize;
            let mut flights = vec![Some(Flight { kind: Kind::Read, blocks: blocks.clone() })];
            self.occupy(blocks, false);
            while lanes.outstanding() > 0 {
                let ended = lanes.wait_with(&mut |_, end| self.on_end(&mut flights, end), PATIENCE);
                assert!(ended > 0, "a read does not end");
            }
        }
    }

    fn next(
        &mut self,
        namespace: &Namespace,
        load: Load,
        bytes_left: &mut u64,
        random: &mut SplitMix64,
    ) -> (Flight, Option<Command>) {
        let count = self.generations.len() as u64;
        let affordable = u32::try_from(*bytes_left / self.lba_bytes as u64).unwrap_or(u32::MAX).max(1);
        let limit = random.pick(&[1, 2, 16, load.blocks_max]).min(load.blocks_max).min(affordable);
        let blocks = 1 + u32::try_from(random.below(limit.into())).expect("below 32 bits");
        let lba = random.below(count - u64::from(blocks) + 1);
        let start = usize::try_from(lba).expect("a small namespace");
        let range = start..start + blocks as usize;
        let flight = |kind| Flight { kind, blocks: range.clone() };
        let chance = random.below(100);
        let (flight, command) = match chance {
            0..40 => {
                self.newest += 1;
                let command = namespace.write(lba, blocks);
                let command = if chance < 5 { command.map(Command::fua) } else { command };
                (flight(Kind::Write(self.newest)), command)
            }
            40..75 => (flight(Kind::Read), namespace.read(lba, blocks)),
            75..85 => (flight(Kind::Check), namespace.compare(lba, blocks)),
            85..88 => (flight(Kind::Check), namespace.verify(lba, blocks)),
            88..96 => (flight(Kind::Zero), namespace.write_zeroes(lba, blocks, chance.is_multiple_of(2))),
            _ => (Flight { kind: Kind::Check, blocks: 0..0 }, Ok(namespace.flush())),
        };
        let changes = matches!(flight.kind, Kind::Write(_) | Kind::Zero);
        if !self.is_free(flight.blocks.clone(), changes) {
            return (flight, None);
        }
        let command = command.expect("within the namespace and its limits");
        *bytes_left = bytes_left.saturating_sub(command.buffer_bytes().unwrap_or(0).into());
        (flight, Some(command))
    }

    fn buffer(&self, flight: &Flight, length: u32) -> Vec<u8> {
        let mut buffer = vec![0xee; length as usize];
        match flight.kind {
            Kind::Write(generation) => self.fill(flight.blocks.clone(), generation, &mut buffer),
            // The current content must compare equal.
            Kind::Check => {
                for (at, block) in flight.blocks.clone().enumerate() {
                    let into = &mut buffer[at * self.lba_bytes..][..self.lba_bytes];
                    match self.generations[block] {
                        0 => into.fill(0),
                        generation => self.fill(block..block + 1, generation, into),
                    }
                }
            }
            Kind::Read | Kind::Zero => {}
        }
        buffer
    }

    fn on_end(&mut self, flights: &mut [Option<Flight>], completion: Completion<Vec<u8>>) {
        let user = usize::try_from(completion.user).expect("an index");
        let flight = flights[user].take().expect("one end for each command");
        if let Err(failure) = completion.result {
            panic!("{flight:?} fails: {failure}");
        }
        self.release(flight.blocks.clone());
        match flight.kind {
            Kind::Read => self.check(flight.blocks, &completion.buffer.expect("a read has a buffer")),
            Kind::Write(generation) => self.generations[flight.blocks].fill(generation),
            Kind::Zero => self.generations[flight.blocks].fill(0),
            Kind::Check => {}
        }
    }
}
