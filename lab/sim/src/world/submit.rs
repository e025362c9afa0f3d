//! Commands that users submit: the next command of a lane, drawn by the seed.

use std::collections::BTreeSet;
use std::ops::Range;

use host_core::{Command as HostCommand, Namespace};
use wire::id::Nsid;
use wire::lba_status::{LBA_STATUS_DESCRIPTOR_BYTES, LBA_STATUS_HEAD_BYTES};
use wire::nvm::{CopyCommand, CopyFormat, CopySource, DatasetManagement, DsmAttributes, DsmRange};
use wire::sqe::Sqe;
use wire::status::Status;
use wire::zerocopy::IntoBytes;

use super::World;
use super::command::{Command, Kind};
use crate::coverage::Point;
use crate::model::{self, Content};
use crate::timeline::{About, blocks};
use crate::user_buffer::UserBuffer;

/// Ranges of blocks of the model as a namespace has them that begins there with this LBA.
fn named(ranges: &[host_core::BlockRange], first: u64) -> Vec<host_core::BlockRange> {
    ranges.iter().map(|range| host_core::BlockRange { lba: first + range.lba, ..*range }).collect()
}

impl World {
    /// A namespace of a host's, and the block of the model with which it begins.
    fn draw_namespace(&mut self, host: usize) -> Option<(Namespace, u64)> {
        let first = (self.hosts[host].namespace.clone()?, 0);
        match self.hosts[host].second.clone() {
            Some(second) if self.choice.one_in(3) => Some((second, self.shared.scenario.first.block_count)),
            _ => Some(first),
        }
    }

    pub(super) fn submit_one(&mut self, host: usize, lane: usize) {
        if self.submit_on_key(host, lane) {
            return;
        }
        let Some((namespace, base)) = self.draw_namespace(host) else { return };
        let mix = self.shared.scenario.load.mix;
        let weights = [
            mix.read,
            mix.write,
            mix.durable_write,
            mix.flush,
            mix.write_zeroes,
            mix.deallocate,
            mix.compare,
            if self.shared.scenario.hosts.depth < 2 { 0 } else { mix.compare_and_write },
            mix.verify,
            mix.copy,
            mix.flush_all,
            mix.hint,
            mix.refused,
            mix.lba_status,
        ];
        let mut drawn = self.choice.below(u64::from(weights.iter().sum::<u32>()));
        let mut kind = 0;
        while drawn >= u64::from(weights[kind]) {
            drawn -= u64::from(weights[kind]);
            kind += 1;
        }
        let first = self.shared.scenario.first_block_of(base);
        let end = namespace.block_count() - first;
        let moves_nothing = matches!(kind, 4 | 5 | 8 | 9 | 13);
        let blocks_max = match moves_nothing && self.choice.one_in(4) {
            true => end as u32,
            false => self.shared.scenario.blocks_max_at(base),
        };
        let blocks = self.choice.scaled(1, u64::from(blocks_max).min(end)) as u32;
        let lba = self.choice.below(end - u64::from(blocks) + 1);
        // As the namespace has it.
        let named = first + lba;
        let is_durable = kind == 2 || (kind == 4 && self.choice.one_in(3));
        // It has no effect on these, but for what they are told apart by.
        let has_fua = is_durable || (matches!(kind, 0 | 6 | 8) && self.choice.one_in(8));
        let range = host_core::BlockRange { lba, blocks };
        let (command, kind, blocks) = match kind {
            0 => (namespace.read(named, blocks), Kind::Read, blocks),
            1 | 2 => (namespace.write(named, blocks), Kind::Write { is_durable }, blocks),
            3 => return self.submit(host, lane, namespace.flush(), Kind::Flush, (base, 0)),
            4 => {
                let deallocates = self.choice.one_in(2);
                (namespace.write_zeroes(named, blocks, deallocates), Kind::WriteZeroes { is_durable }, blocks)
            }
            5 => return self.submit_deallocate(host, lane, &namespace, (base, range)),
            6 => {
                let lbas = base + lba..base + lba + u64::from(blocks);
                let expected = lbas.map(|lba| self.model.likely(lba)).collect();
                (namespace.compare(named, blocks), Kind::Compare { expected }, blocks)
            }
            7 => return self.submit_pair(host, lane, &namespace, (base, lba, blocks)),
            9 => return self.submit_copy(host, lane, &namespace, (base, lba, blocks)),
            10 => {
                let flush = HostCommand::raw(Sqe::flush(Nsid::ALL));
                return self.submit(host, lane, flush, Kind::FlushAll, (0, 0));
            }
            11 => {
                let attributes =
                    self.choice.pick(&[DsmAttributes::INTEGRAL_READ, DsmAttributes::INTEGRAL_WRITE]);
                let sqe = DatasetManagement { range_count: 1, attributes }.to_sqe(namespace.nsid());
                let hint = HostCommand::raw_to_controller(sqe, size_of::<DsmRange>() as u32);
                return self.submit(host, lane, hint.read_only(), Kind::Hint, (base + lba, blocks));
            }
            12 => return self.submit_refused(host, lane, &namespace),
            // Which pages of RAM have memory is known to the kernel of this machine only.
            13 if base == 0 => {
                let room_bytes =
                    LBA_STATUS_HEAD_BYTES + LBA_STATUS_DESCRIPTOR_BYTES * self.choice.between(1, 6) as usize;
                (namespace.lba_status(named, blocks.into(), room_bytes as u32), Kind::LbaStatus, blocks)
            }
            _ => (namespace.verify(named, blocks), Kind::Verify, blocks),
        };
        // It may be longer than the controller allows.
        let Ok(command) = command else {
            return self
                .shared
                .coverage
                .reach(Point::Limit("command that is too long for the host to send it"));
        };
        let command = if has_fua { command.fua() } else { command };
        self.submit(host, lane, command, kind, (base + lba, blocks));
    }

    /// Deallocates several ranges, which may overlap.
    fn submit_deallocate(
        &mut self,
        host: usize,
        lane: usize,
        namespace: &Namespace,
        (base, first): (u64, host_core::BlockRange),
    ) {
        let mut ranges = vec![first];
        let offset = self.shared.scenario.first_block_of(base);
        let end = namespace.block_count() - offset;
        let limit = u64::from(namespace.limits().deallocate_ranges_max);
        let limit = self.shared.scenario.load.deallocated_ranges_max.min(limit) as usize;
        // Filters of the second namespace may delay each of them.
        let is_any = base == 0 && limit > 4 && self.choice.one_in(2);
        let all = if is_any { self.choice.scaled(1, limit as u64) as usize } else { 0 };
        while ranges.len() < all || (ranges.len() < limit.min(4) && self.choice.one_in(2)) {
            let longest = first.blocks.into();
            let blocks = if is_any { self.choice.scaled(1, end) } else { self.choice.between(1, longest) };
            let lba = self.choice.below(end - blocks + 1);
            ranges.push(host_core::BlockRange { lba, blocks: blocks as u32 });
        }
        if ranges.len() > 4 {
            self.shared.coverage.reach(Point::Form("Dataset Management of many ranges"));
        }
        let Ok(command) = namespace.deallocate(&named(&ranges, offset)) else { return };
        let blocks_of =
            |range: &host_core::BlockRange| base + range.lba..base + range.lba + u64::from(range.blocks);
        let lbas: BTreeSet<u64> = ranges.iter().flat_map(blocks_of).collect();
        let kind = Kind::Deallocate { lbas: lbas.into_iter().collect() };
        self.submit(host, lane, command, kind, (base + first.lba, first.blocks));
    }

    /// A command that the target must refuse, and its status.
    fn submit_refused(&mut self, host: usize, lane: usize, namespace: &Namespace) {
        let nsid = namespace.nsid();
        // Namespaces shrink, but none is ever that long.
        let beyond = self.shared.scenario.first.first_block + self.shared.scenario.all_block_count();
        let (bytes, missing) = (namespace.lba_bytes(), Nsid::new(9));
        let beyond_end = Status::LBA_OUT_OF_RANGE;
        let limits = self.shared.scenario.target.limits;
        let too_many = u64::from(limits.transfer_bytes_max / bytes) + 1;
        let range_count = limits.copy_range_count_max + 1;
        let (command, status) = match self.choice.below(11) {
            // Longer than a command may be, but within a namespace that keeps its size.
            9 if nsid == Nsid::new(2) && namespace.block_count() >= too_many => {
                let length = too_many as u32 * bytes;
                let read = HostCommand::raw_from_controller(Sqe::read(nsid, 0, too_many as u32), length);
                (read, Status::INVALID_FIELD)
            }
            10 if range_count <= 256 => {
                let copy = CopyCommand::new(0, CopyFormat::FORMAT_0, range_count).to_sqe(nsid);
                let length = u32::from(range_count) * size_of::<CopySource>() as u32;
                (HostCommand::raw_to_controller(copy, length), Status::COMMAND_SIZE_LIMIT_EXCEEDED)
            }
            0 => (HostCommand::raw_from_controller(Sqe::read(nsid, beyond, 1), bytes), beyond_end),
            1 => (HostCommand::raw_from_controller(Sqe::read(nsid, u64::MAX, 1), bytes), beyond_end),
            2 => (HostCommand::raw(Sqe::write_zeroes(nsid, beyond - 1, 2, true)), beyond_end),
            3 => (HostCommand::raw(Sqe::verify(nsid, beyond, 1)), beyond_end),
            4 => (HostCommand::raw(Sqe::write_uncorrectable(nsid, 0, 1)), Status::INVALID_OPCODE),
            5 => (HostCommand::raw(Sqe::flush(missing)), Status::INVALID_NAMESPACE),
            6 => (
                HostCommand::raw_to_controller(Sqe::compare(missing, 0, 1), bytes),
                Status::INVALID_NAMESPACE,
            ),
            7 => (
                HostCommand::raw_from_controller(Sqe::read(nsid, 0, 1), bytes - 4),
                Status::DATA_SGL_LENGTH_INVALID,
            ),
            _ => (HostCommand::raw(Sqe::new(0x7e, nsid)), Status::INVALID_OPCODE),
        };
        self.submit(host, lane, command.read_only(), Kind::Refused { status }, (0, 1));
    }

    /// Copies up to four ranges of blocks of a namespace elsewhere in it, one of them perhaps onto itself.
    fn submit_copy(
        &mut self,
        host: usize,
        lane: usize,
        namespace: &Namespace,
        (base, lba, blocks): (u64, u64, u32),
    ) {
        let range_count =
            if self.choice.one_in(2) { 1 } else { self.choice.between(2, 4).min(blocks.into()) };
        let first = self.shared.scenario.first_block_of(base);
        let (mut ranges, mut left) = (Vec::new(), blocks);
        for after in (0..range_count as u32).rev() {
            let blocks = if after == 0 { left } else { self.choice.between(1, (left - after).into()) as u32 };
            let lba = self.choice.below(namespace.block_count() - first - u64::from(blocks) + 1);
            ranges.push(host_core::BlockRange { lba, blocks });
            left -= blocks;
        }
        let written = lba..lba + u64::from(blocks);
        let is_read = |range: &host_core::BlockRange| {
            range.lba < written.end && written.start < range.lba + u64::from(range.blocks)
        };
        // The order of several ranges is unspecified.
        let is_ambiguous = ranges.len() > 1 && ranges.iter().any(is_read);
        let now_ns = self.shared.now_ns;
        let may_copy = written.clone().all(|lba| self.model.may_copy_to(base + lba, now_ns));
        let limits = self.shared.scenario.target.limits;
        let Ok(copy) = namespace.copy(first + lba, &named(&ranges, first)) else {
            return self.shared.coverage.reach(Point::Limit("Copy that is too long for the host to send it"));
        };
        if !may_copy || is_ambiguous {
            return;
        }
        let longest = ranges.iter().map(|range| range.blocks).max().unwrap_or(0);
        for (is_reached, name) in [
            (ranges.len() == usize::from(limits.copy_range_count_max), "ranges of a Copy"),
            (longest == u32::from(limits.copy_range_blocks_max), "blocks of a range of a Copy"),
            (blocks == limits.copy_blocks_max, "blocks of a Copy"),
        ] {
            if is_reached {
                self.shared.coverage.reach(Point::Limit(name));
            }
        }
        let is_durable = self.choice.one_in(3);
        let copy = if is_durable { copy.fua() } else { copy };
        let read =
            |range: &host_core::BlockRange| base + range.lba..base + range.lba + u64::from(range.blocks);
        let sources = ranges.iter().flat_map(read).collect();
        self.submit(host, lane, copy, Kind::Copy { sources, is_durable }, (base + lba, blocks));
    }

    pub(super) fn block_bytes(&self, lba: u64) -> usize {
        self.shared.scenario.block_bytes_at(lba) as usize
    }

    /// Blocks of these contents, for a namespace that has `lba`.
    fn filled(&self, lba: u64, contents: &[Content]) -> Vec<u8> {
        let block_bytes = self.block_bytes(lba);
        let mut buffer = vec![0; contents.len() * block_bytes];
        for (block, (origin, value)) in buffer.chunks_exact_mut(block_bytes).zip(contents) {
            model::fill(block, *origin, *value);
        }
        buffer
    }

    /// The content that a write of one value brings to each of its blocks.
    fn written(&self, lba: u64, count: usize, value: u64) -> Vec<u8> {
        let contents: Vec<Content> = (lba..).take(count).map(|lba| (lba, value)).collect();
        self.filled(lba, &contents)
    }

    fn number(&mut self) -> u64 {
        self.commands.next += 1;
        self.commands.next - 1
    }

    /// A command that begins now.
    fn command(&self, kind: Kind, (lba, blocks): (u64, u32), host: usize, lane: usize) -> Command {
        let at = &self.hosts[host];
        Command {
            kind,
            lba,
            blocks,
            begin_ns: self.shared.now_ns,
            host,
            lane,
            loss_count: at.lanes[lane].loss_count,
            host_loss_count: at.loss_count,
            covered_losses: self.records[host].covered_losses,
        }
    }

    pub(super) fn submit(
        &mut self,
        host: usize,
        lane: usize,
        command: HostCommand,
        kind: Kind,
        (lba, blocks): (u64, u32),
    ) {
        let number = self.number();
        let count = blocks as usize;
        let buffer = match &kind {
            Kind::Read => Some(vec![0xee; count * self.block_bytes(lba)]),
            Kind::Write { .. } => Some(self.written(lba, count, number << 8)),
            Kind::Compare { expected } => Some(self.filled(lba, expected)),
            Kind::Hint => Some(DsmRange::new(0, 1).as_bytes().to_vec()),
            Kind::Refused { .. } | Kind::LbaStatus => {
                command.buffer_bytes().map(|bytes| vec![0xee; bytes as usize])
            }
            _ => None,
        };
        let value = match &kind {
            Kind::Write { .. } => Some(number << 8),
            Kind::WriteZeroes { .. } | Kind::Deallocate { .. } => Some(0),
            _ => None,
        };
        let now_ns = self.shared.now_ns;
        let is_beyond_chunk =
            count * self.block_bytes(lba) > self.shared.scenario.target.limits.transfer_bytes_max as usize;
        match kind {
            Kind::Verify if is_beyond_chunk => {
                self.shared.coverage.reach(Point::Form("Verify beyond a chunk"));
            }
            Kind::Copy { .. } if is_beyond_chunk => {
                self.shared.coverage.reach(Point::Form("Copy beyond a chunk"));
            }
            _ => {}
        }
        self.tell_begin(number, (host, lane), command.sqe(), &kind, lba..lba + u64::from(blocks));
        if let Some(value) = value {
            let lbas = match &kind {
                Kind::Deallocate { lbas } => lbas.clone(),
                _ => (lba..lba + u64::from(blocks)).collect(),
            };
            lbas.into_iter().for_each(|lba| self.model.begin_write(lba, value, number, now_ns));
        } else if let Kind::Copy { sources, .. } = &kind {
            (lba..)
                .zip(sources)
                .for_each(|(lba, &source)| self.model.begin_copy(source, lba, number, now_ns));
        }
        let command_of = self.command(kind, (lba, blocks), host, lane);
        self.commands.out.insert(number, command_of);
        if let Err(refused) =
            self.hosts[host].lanes[lane].core.submit(command, buffer.map(UserBuffer::from), number)
        {
            self.shared.find(format!("command {number} was refused: {}", refused.reason));
        }
    }

    /// Adds a command to the timeline, if that is kept.
    fn tell_begin(
        &mut self,
        number: u64,
        (host, lane): (usize, usize),
        sqe: &Sqe,
        kind: &Kind,
        lbas: Range<u64>,
    ) {
        if let Some((timeline, view)) = self.shared.trace.kept() {
            let all = match kind {
                Kind::Deallocate { lbas } => lbas.clone(),
                Kind::Copy { sources, .. } => lbas.clone().chain(sources.iter().copied()).collect(),
                _ => lbas.clone().collect(),
            };
            let is_flush = matches!(kind, Kind::Flush | Kind::FlushAll);
            timeline.add_command(number, all, is_flush);
            view.on_submitted(self.hosts[host].lanes[lane].actor, number, sqe);
        }
        self.shared.tell(About::Command(number), || {
            let (name, details) = (kind.name(), kind.details());
            let of = if lbas.is_empty() { String::new() } else { format!(" of {}", blocks(lbas)) };
            format!("host {host} lane {lane}: {name}{of} begins{details}")
        });
    }

    fn submit_pair(
        &mut self,
        host: usize,
        lane: usize,
        namespace: &Namespace,
        (base, lba, blocks): (u64, u64, u32),
    ) {
        let limit = self.shared.scenario.target.limits.compare_and_write_blocks_max;
        let blocks = if self.choice.one_in(2) { blocks.min(limit) } else { 1 };
        let first = self.shared.scenario.first_block_of(base);
        let Ok([compare, write]) = namespace.compare_and_write(first + lba, blocks) else { return };
        if blocks == limit && limit > 1 {
            self.shared.coverage.reach(Point::Limit("blocks of a pair"));
        }
        let is_durable = self.choice.one_in(3);
        let pair = [compare, if is_durable { write.fua() } else { write }];
        let lba = base + lba;
        let lbas = lba..lba + u64::from(blocks);
        let expected: Vec<Content> = lbas.clone().map(|lba| self.model.likely(lba)).collect();
        let (first, second) = (self.number(), self.number());
        let now_ns = self.shared.now_ns;
        lbas.for_each(|lba| self.model.begin_write(lba, second << 8, second, now_ns));
        let buffers = [self.filled(lba, &expected), self.written(lba, blocks as usize, second << 8)];
        let buffers = buffers.map(UserBuffer::from);
        let halves = [Kind::PairCompare, Kind::PairWrite { expected, is_durable }];
        for ((number, kind), half) in [first, second].into_iter().zip(halves).zip(&pair) {
            self.tell_begin(number, (host, lane), half.sqe(), &kind, lba..lba + u64::from(blocks));
            let command = self.command(kind, (lba, blocks), host, lane);
            self.commands.out.insert(number, command);
        }
        if let Err((reason, _)) =
            self.hosts[host].lanes[lane].core.submit_pair(pair, buffers, [first, second])
        {
            self.shared.find(format!("the pair {first}, {second} was refused: {reason}"));
        }
    }
}
