//! A disk in memory, which knows what a power cut may take back.

use std::collections::BTreeMap;
use std::ops::Range;

use super::SECTOR_BYTES;
use crate::log::{LogSettings, SUPERBLOCK_COUNT, create};

/// A disk with a volatile cache. A durable write settles its own sectors, a flush all.
pub(super) struct Disk {
    /// Contents as read.
    pub(super) bytes: Vec<u8>,
    /// The addresses of the bytes, part by part: nothing is ever written elsewhere.
    parts: Vec<Range<u64>>,
    /// By their index in `bytes`: what the sectors that are not durable held when they last were.
    before: BTreeMap<usize, Vec<u8>>,
    /// Sectors that may or may not have been written, in order, likewise.
    pub(super) unsure: Vec<(usize, Vec<u8>)>,
}

impl Disk {
    pub(super) fn new(settings: &LogSettings) -> Self {
        let mut bytes = vec![0; (settings.start + settings.segment_count * settings.segment_bytes) as usize];
        create(settings.identity, &mut bytes[..SUPERBLOCK_COUNT * settings.block_bytes as usize]);
        Self::of(bytes)
    }

    pub(super) fn of(bytes: Vec<u8>) -> Self {
        let all = 0..bytes.len() as u64;
        Self::of_parts(bytes, vec![all])
    }

    /// A disk of which only these parts are ever written.
    pub(super) fn of_parts(bytes: Vec<u8>, parts: Vec<Range<u64>>) -> Self {
        assert_eq!(bytes.len() as u64, parts.iter().map(|part| part.end - part.start).sum::<u64>());
        Self { bytes, parts, before: BTreeMap::new(), unsure: Vec::new() }
    }

    /// Where so many bytes from this address on are; `None` if they are never written.
    pub(super) fn index(&self, address: u64, length: usize) -> Option<usize> {
        let (mut index, end) = (0, address + length as u64);
        for part in &self.parts {
            if (part.start..part.end).contains(&address) && end <= part.end {
                return Some((index + address - part.start) as usize);
            }
            index += part.end - part.start;
        }
        None
    }

    /// As [`read`](Self::read).
    pub(super) fn read_all(&self, address: u64, into: &mut [u8]) {
        into.fill(0);
        let (mut index, end) = (0, address + into.len() as u64);
        for part in &self.parts {
            let (from, to) = (address.max(part.start), end.min(part.end));
            if from < to {
                let at = (index + from - part.start) as usize;
                let length = (to - from) as usize;
                into[(from - address) as usize..][..length].copy_from_slice(&self.bytes[at..at + length]);
            }
            index += part.end - part.start;
        }
    }

    /// What is at this address, and zeros where nothing was written.
    pub(super) fn read(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.read_all(address, &mut bytes);
        bytes
    }

    pub(super) fn write(&mut self, address: u64, bytes: &[u8]) {
        let start = self.index(address, bytes.len());
        let start = start.unwrap_or_else(|| panic!("written where nothing may be: {address:#x}"));
        for (offset, sector) in (start..).step_by(SECTOR_BYTES).zip(bytes.chunks(SECTOR_BYTES)) {
            let old = &mut self.bytes[offset..offset + SECTOR_BYTES];
            self.before.entry(offset).or_insert_with(|| old.to_vec());
            old.copy_from_slice(sector);
            self.unsure.push((offset, sector.to_vec()));
        }
    }

    pub(super) fn settle(&mut self, range: &Range<usize>) {
        self.before.retain(|offset, _| !range.contains(offset));
        self.unsure.retain(|(offset, _)| !range.contains(offset));
    }

    /// Contents after a power cut that loses all that it can.
    pub(super) fn durable(&self) -> Vec<u8> {
        self.cut(|_| false)
    }

    /// Contents after a power cut, with the unsure sectors for which `is_there` holds.
    pub(super) fn cut(&self, is_there: impl Fn(usize) -> bool) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        let unsure = self.unsure.iter().enumerate().filter(|(at, _)| is_there(*at));
        for (offset, sector) in self.before.iter().chain(unsure.map(|(_, (offset, sector))| (offset, sector)))
        {
            bytes[*offset..*offset + SECTOR_BYTES].copy_from_slice(sector);
        }
        bytes
    }

    /// The end of the process that writes: of the last `count` sectors only those remain for which `is_there` holds.
    /// Nothing becomes durable by that.
    pub(super) fn kill(mut self, count: usize, is_there: impl Fn(usize) -> bool) -> Self {
        let (first, mut at) = (self.unsure.len() - count, 0..);
        self.unsure.retain(|_| at.next().is_some_and(|at| at < first || is_there(at)));
        self.bytes = self.cut(|_| true);
        self
    }
}
