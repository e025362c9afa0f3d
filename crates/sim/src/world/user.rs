//! Those who use a host's lanes: what they submit, and what they make of what comes back.

use std::collections::BTreeSet;

use host::{Command as HostCommand, Completion, Failure, Namespace};
use wire::id::Nsid;
use wire::nvm::{DatasetManagement, DsmAttributes, DsmRange};
use wire::sqe::Sqe;
use wire::status::Status;
use wire::zerocopy::IntoBytes;

use super::{Stage, World};
use crate::coverage::Point;
use crate::host::BARRED;
use crate::model::{self, Content};
use crate::shared::Event;

/// A command that is out.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(super) kind: Kind,
    pub(super) lba: u64,
    blocks: u32,
    pub(super) begin_ns: u64,
    pub(super) host: usize,
    pub(crate) lane: usize,
    /// How often its lane had lost its connection when it began.
    pub(super) loss_count: u32,
    /// How often its host had lost its association then.
    host_loss_count: u32,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Read,
    Write {
        is_durable: bool,
    },
    WriteZeroes {
        is_durable: bool,
    },
    /// These blocks, of one range or several.
    Deallocate {
        lbas: Vec<u64>,
    },
    /// From these blocks, one by one.
    Copy {
        sources: Vec<u64>,
        is_durable: bool,
    },
    Flush,
    /// Of all namespaces: it covers what it covers by the promise to any host.
    FlushAll,
    Verify,
    /// Dataset Management without effect.
    Hint,
    /// It must be refused with this status.
    Refused {
        status: Status,
    },
    Compare {
        expected: Vec<Content>,
    },
    /// The first of a pair.
    PairCompare,
    /// The second of a pair: what the first compares with, block by block.
    PairWrite {
        expected: Vec<Content>,
        is_durable: bool,
    },
}

impl Kind {
    fn name(&self) -> &'static str {
        match self {
            Self::Read => "Read",
            Self::Write { is_durable: false } => "Write",
            Self::Write { is_durable: true } => "Write with FUA",
            Self::WriteZeroes { .. } => "Write Zeroes",
            Self::Deallocate { .. } => "Deallocate",
            Self::Copy { .. } => "Copy",
            Self::Flush => "Flush",
            Self::FlushAll => "Flush of all",
            Self::Verify => "Verify",
            Self::Hint => "Dataset Management",
            Self::Refused { .. } => "refused",
            Self::Compare { .. } => "Compare",
            Self::PairCompare => "Compare of a pair",
            Self::PairWrite { .. } => "Write of a pair",
        }
    }
}

impl World {
    /// A lane's thread runs, and its user with it.
    pub(crate) fn run_user(&mut self, host: usize, lane: usize) {
        let mut done = Vec::new();
        self.hosts[host].run_lane(&mut self.shared, lane, &mut done);
        for completion in done {
            self.on_completion(host, lane, completion);
        }
        if !self.shared.findings.is_empty() {
            return;
        }
        let before = self.next_command;
        match self.stage {
            _ if self.hosts[host].is_shut_out => {}
            Stage::Work => self.submit_some(host, lane),
            Stage::Flush => self.submit_flush(host, lane),
            Stage::Read => self.submit_reads(host, lane),
            Stage::Settle | Stage::Close | Stage::Stop | Stage::Over => {}
        }
        if self.next_command > before {
            if let Err(cause) = self.hosts[host].flush_lane(&mut self.shared, lane) {
                self.hosts[host].lose_lane(&mut self.shared, lane, cause);
            }
            self.fire_faults();
        }
        // A lane's thread checks its new commands before it sleeps.
        let (core, actor) = (&self.hosts[host].lanes[lane].core, self.hosts[host].lanes[lane].actor);
        if core.has_done() {
            self.shared.wake(actor);
        } else if let Some(at_ns) = core.next_deadline() {
            self.shared.wake_at(actor, at_ns.max(self.shared.now_ns + 1));
        }
    }

    fn submit_some(&mut self, host: usize, lane: usize) {
        if self.hosts[host].namespace.is_none() {
            return;
        }
        let actor = self.hosts[host].lanes[lane].actor;
        let now_ns = self.shared.now_ns;
        let mut next_ns = *self.next_submit_ns.entry(actor).or_insert(0);
        while next_ns <= now_ns
            && self.submitted_count < self.shared.scenario.command_count
            && self.hosts[host].lanes[lane].core.has_room(2)
        {
            self.submit_one(host, lane);
            if self.choice.one_in(3) {
                next_ns = now_ns + self.choice.below(self.shared.scenario.think_ns) + 1;
            }
        }
        if self.shared.scenario.depth < 2 && next_ns <= now_ns {
            // A pair never finds room: single commands do.
            while self.submitted_count < self.shared.scenario.command_count
                && self.hosts[host].lanes[lane].core.has_room(1)
                && next_ns <= now_ns
            {
                self.submit_one(host, lane);
                next_ns = now_ns + self.choice.below(self.shared.scenario.think_ns) + 1;
            }
        }
        self.next_submit_ns.insert(actor, next_ns);
        if next_ns > now_ns && self.submitted_count < self.shared.scenario.command_count {
            self.shared.wake_at(actor, next_ns);
        }
    }

    /// A namespace of a host's, and the block of the model with which it begins.
    fn draw_namespace(&mut self, host: usize) -> Option<(Namespace, u64)> {
        let first = (self.hosts[host].namespace.clone()?, 0);
        match self.hosts[host].second.clone() {
            Some(second) if self.choice.one_in(3) => Some((second, self.shared.scenario.block_count)),
            _ => Some(first),
        }
    }

    /// The namespace in which a block of the model lies, and the block there.
    fn place(&self, host: usize, lba: u64) -> Option<(Namespace, u64)> {
        match lba.checked_sub(self.shared.scenario.block_count) {
            None => Some((self.hosts[host].namespace.clone()?, lba)),
            Some(lba) => Some((self.hosts[host].second.clone()?, lba)),
        }
    }

    fn submit_one(&mut self, host: usize, lane: usize) {
        let Some((namespace, base)) = self.draw_namespace(host) else { return };
        let mix = self.shared.scenario.mix;
        let weights = [
            mix.read,
            mix.write,
            mix.durable_write,
            mix.flush,
            mix.write_zeroes,
            mix.deallocate,
            mix.compare,
            if self.shared.scenario.depth < 2 { 0 } else { mix.compare_and_write },
            mix.verify,
            mix.copy,
            mix.flush_all,
            mix.hint,
            mix.refused,
        ];
        let mut drawn = self.choice.below(u64::from(weights.iter().sum::<u32>()));
        let mut kind = 0;
        while drawn >= u64::from(weights[kind]) {
            drawn -= u64::from(weights[kind]);
            kind += 1;
        }
        let end = namespace.block_count();
        let moves_nothing = matches!(kind, 4 | 5 | 8 | 9);
        let blocks_max = match moves_nothing && self.choice.one_in(4) {
            true => end as u32,
            false => self.shared.scenario.blocks_max_at(base),
        };
        let blocks = self.choice.scaled(1, u64::from(blocks_max).min(end)) as u32;
        let lba = self.choice.below(end - u64::from(blocks) + 1);
        let is_durable = kind == 2 || (kind == 4 && self.choice.one_in(3));
        // It has no effect on these, but for what they are told apart by.
        let has_fua = is_durable || (matches!(kind, 0 | 6 | 8) && self.choice.one_in(8));
        let range = host::BlockRange { lba, blocks };
        let (command, kind, blocks) = match kind {
            0 => (namespace.read(lba, blocks), Kind::Read, blocks),
            1 | 2 => (namespace.write(lba, blocks), Kind::Write { is_durable }, blocks),
            3 => return self.submit(host, lane, namespace.flush(), Kind::Flush, (base, 0)),
            4 => {
                let deallocates = self.choice.one_in(2);
                (namespace.write_zeroes(lba, blocks, deallocates), Kind::WriteZeroes { is_durable }, blocks)
            }
            5 => return self.submit_deallocate(host, lane, &namespace, (base, range)),
            6 => {
                let lbas = base + lba..base + lba + u64::from(blocks);
                let expected = lbas.map(|lba| self.model.likely(lba)).collect();
                (namespace.compare(lba, blocks), Kind::Compare { expected }, blocks)
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
            _ => (namespace.verify(lba, blocks), Kind::Verify, blocks),
        };
        let Ok(command) = command else {
            // The controller does not have it.
            self.submitted_count += 1;
            return;
        };
        let command = if has_fua { command.fua() } else { command };
        self.submit(host, lane, command, kind, (base + lba, blocks));
    }

    /// Deallocates up to four ranges, which may overlap.
    fn submit_deallocate(
        &mut self,
        host: usize,
        lane: usize,
        namespace: &Namespace,
        (base, first): (u64, host::BlockRange),
    ) {
        let mut ranges = vec![first];
        let limit = usize::from(namespace.limits().deallocate_ranges_max);
        while ranges.len() < limit.min(4) && self.choice.one_in(2) {
            let blocks = self.choice.between(1, first.blocks.into());
            let lba = self.choice.below(namespace.block_count() - blocks + 1);
            ranges.push(host::BlockRange { lba, blocks: blocks as u32 });
        }
        let Ok(command) = namespace.deallocate(&ranges) else {
            self.submitted_count += 1;
            return;
        };
        let blocks_of =
            |range: &host::BlockRange| base + range.lba..base + range.lba + u64::from(range.blocks);
        let lbas: BTreeSet<u64> = ranges.iter().flat_map(blocks_of).collect();
        let kind = Kind::Deallocate { lbas: lbas.into_iter().collect() };
        self.submit(host, lane, command, kind, (base + first.lba, first.blocks));
    }

    /// A command that the target must refuse, and how.
    fn submit_refused(&mut self, host: usize, lane: usize, namespace: &Namespace) {
        let nsid = namespace.nsid();
        // Namespaces shrink, but none is ever that long.
        let beyond = self.shared.scenario.all_block_count();
        let (bytes, missing) = (namespace.lba_bytes(), Nsid::new(9));
        let beyond_end = Status::LBA_OUT_OF_RANGE;
        let (command, status) = match self.choice.below(9) {
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
        let (mut ranges, mut left) = (Vec::new(), blocks);
        for after in (0..range_count as u32).rev() {
            let blocks = if after == 0 { left } else { self.choice.between(1, (left - after).into()) as u32 };
            let lba = self.choice.below(namespace.block_count() - u64::from(blocks) + 1);
            ranges.push(host::BlockRange { lba, blocks });
            left -= blocks;
        }
        let written = lba..lba + u64::from(blocks);
        let is_read = |range: &host::BlockRange| {
            range.lba < written.end && written.start < range.lba + u64::from(range.blocks)
        };
        // The order of several ranges is unspecified.
        let is_ambiguous = ranges.len() > 1 && ranges.iter().any(is_read);
        let now_ns = self.shared.now_ns;
        let may_copy = written.clone().all(|lba| self.model.may_copy_to(base + lba, now_ns));
        let Some(copy) = namespace.copy(lba, &ranges).ok().filter(|_| may_copy && !is_ambiguous) else {
            self.submitted_count += 1;
            return;
        };
        let is_durable = self.choice.one_in(3);
        let copy = if is_durable { copy.fua() } else { copy };
        let read = |range: &host::BlockRange| base + range.lba..base + range.lba + u64::from(range.blocks);
        let sources = ranges.iter().flat_map(read).collect();
        self.submit(host, lane, copy, Kind::Copy { sources, is_durable }, (base + lba, blocks));
    }

    fn block_bytes(&self, lba: u64) -> usize {
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

    /// What a write of one value brings to each of its blocks.
    fn written(&self, lba: u64, count: usize, value: u64) -> Vec<u8> {
        let contents: Vec<Content> = (lba..).take(count).map(|lba| (lba, value)).collect();
        self.filled(lba, &contents)
    }

    fn number(&mut self) -> u64 {
        self.next_command += 1;
        self.next_command - 1
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
        }
    }

    fn submit(
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
            Kind::Refused { .. } => command.buffer_bytes().map(|bytes| vec![0xee; bytes as usize]),
            _ => None,
        };
        let value = match &kind {
            Kind::Write { .. } => Some(number << 8),
            Kind::WriteZeroes { .. } | Kind::Deallocate { .. } => Some(0),
            _ => None,
        };
        let now_ns = self.shared.now_ns;
        let is_beyond_chunk =
            count * self.block_bytes(lba) > self.shared.scenario.limits.transfer_bytes_max as usize;
        match kind {
            Kind::Verify if is_beyond_chunk => {
                self.shared.coverage.reach(Point::Form("Verify beyond a chunk"));
            }
            Kind::Copy { .. } if is_beyond_chunk => {
                self.shared.coverage.reach(Point::Form("Copy beyond a chunk"));
            }
            _ => {}
        }
        self.shared.say(|| format!("host {host} lane {lane}: {number} is {kind:?} of {blocks} from {lba}"));
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
        self.submitted_count += 1;
        let command_of = self.command(kind, (lba, blocks), host, lane);
        self.commands.insert(number, command_of);
        if let Err(refused) = self.hosts[host].lanes[lane].core.submit(command, buffer, number) {
            self.shared.find(format!("command {number} was refused: {}", refused.reason));
        }
    }

    fn submit_pair(
        &mut self,
        host: usize,
        lane: usize,
        namespace: &Namespace,
        (base, lba, blocks): (u64, u64, u32),
    ) {
        self.submitted_count += 1;
        let limit = self.shared.scenario.limits.compare_and_write_blocks_max;
        let blocks = if self.choice.one_in(2) { blocks.min(limit) } else { 1 };
        let Ok([compare, write]) = namespace.compare_and_write(lba, blocks) else { return };
        let is_durable = self.choice.one_in(3);
        let pair = [compare, if is_durable { write.fua() } else { write }];
        let lba = base + lba;
        let lbas = lba..lba + u64::from(blocks);
        let expected: Vec<Content> = lbas.clone().map(|lba| self.model.likely(lba)).collect();
        let (first, second) = (self.number(), self.number());
        let now_ns = self.shared.now_ns;
        self.shared.say(|| format!("host {host} lane {lane}: {first}, {second} swap {expected:x?} at {lba}"));
        lbas.for_each(|lba| self.model.begin_write(lba, second << 8, second, now_ns));
        let buffers = [self.filled(lba, &expected), self.written(lba, blocks as usize, second << 8)];
        let halves = [Kind::PairCompare, Kind::PairWrite { expected, is_durable }];
        for (number, kind) in [first, second].into_iter().zip(halves) {
            let command = self.command(kind, (lba, blocks), host, lane);
            self.commands.insert(number, command);
        }
        if let Err((reason, _)) =
            self.hosts[host].lanes[lane].core.submit_pair(pair, buffers, [first, second])
        {
            self.shared.find(format!("the pair {first}, {second} was refused: {reason}"));
        }
    }

    fn submit_flush(&mut self, host: usize, lane: usize) {
        let Some(namespace) = self.hosts[host].namespace.clone() else { return };
        // One flush covers what all hosts have written; it comes again until it is done.
        if host == 0 && lane == 0 && self.commands.is_empty() && !self.had_last_cut {
            self.submit(host, lane, namespace.flush(), Kind::Flush, (0, 0));
        }
    }

    fn submit_reads(&mut self, host: usize, lane: usize) {
        while self.hosts[host].lanes[lane].core.has_room(1)
            && let Some(lba) = self.left_to_read.pop()
        {
            // As many of those behind it as one command reads.
            let blocks_max = self.shared.scenario.blocks_max_at(lba);
            let mut blocks = 1;
            while blocks < blocks_max
                && lba + u64::from(blocks) != self.shared.scenario.block_count
                && self.left_to_read.pop_if(|next| *next == lba + u64::from(blocks)).is_some()
            {
                blocks += 1;
            }
            let read = self.place(host, lba).and_then(|(namespace, lba)| namespace.read(lba, blocks).ok());
            match read {
                Some(read) => self.submit(host, lane, read, Kind::Read, (lba, blocks)),
                None => {
                    // It has not heard yet that the namespace is longer again.
                    self.left_to_read.extend((lba..lba + u64::from(blocks)).rev());
                    let actor = self.hosts[host].lanes[lane].actor;
                    self.shared.wake_at(actor, self.shared.now_ns + 10_000_000);
                    return;
                }
            }
        }
    }

    /// Cancels a command that is out.
    pub(crate) fn cancel_one(&mut self) {
        let count = self.commands.len() as u64;
        let at = self.choice.below(count) as usize;
        let Some((&number, command)) = self.commands.iter().nth(at) else { return };
        let (host, lane) = (command.host, command.lane);
        self.cancelled.insert(number);
        match command.kind {
            Kind::PairCompare => self.cancelled.insert(number + 1),
            Kind::PairWrite { .. } => self.cancelled.insert(number - 1),
            _ => false,
        };
        self.shared.say(|| format!("host {host} lane {lane}: {number} is cancelled"));
        self.hosts[host].lanes[lane].core.cancel(number);
        self.hosts[host].act_lane(&mut self.shared, lane);
        let actor = self.hosts[host].lanes[lane].actor;
        self.shared.wake(actor);
    }

    fn on_completion(&mut self, host: usize, lane: usize, completion: Completion<Vec<u8>>) {
        let number = completion.user;
        let result = completion.result;
        self.shared.trace.note(self.shared.now_ns, number);
        self.shared.say(|| format!("host {host} lane {lane}: {number} ends with {result:?}"));
        let Some(command) = self.commands.remove(&number) else {
            return self.shared.find(format!("command {number} ends, and is not out"));
        };
        if (command.host, command.lane) != (host, lane) {
            return self.shared.find(format!("command {number} ends on another lane"));
        }
        self.ended_count += 1;
        let scenario = &self.shared.scenario;
        if result == Err(Failure::TimedOut)
            && scenario.is_swift()
            && scenario.disk.slow == 0
            && !self.had_last_cut
        {
            return self.shared.find(format!("command {number} took too long, though nothing was slow"));
        }
        let judged =
            self.judge_end(number, &command, result).and_then(|()| self.judge(number, command, completion));
        if let Err(finding) = judged {
            self.shared.find(format!("command {number}: {finding}"));
        }
    }

    /// Looks for the cause of a command's end.
    fn judge_end(
        &mut self,
        number: u64,
        command: &Command,
        result: Result<u64, Failure>,
    ) -> Result<(), model::Finding> {
        let name = command.kind.name();
        let Err(failure) = result else {
            let order_ns = self.shared.scenario.order_ns_max();
            if let Some(since_ns) = self.shared.barred_since_ns
                && command.host == BARRED
                && command.begin_ns > since_ns + order_ns
            {
                return Err(format!("succeeded, though its host has not been allowed since {since_ns} ns"));
            }
            self.shared.coverage.reach(Point::Cause(name, "done"));
            return Ok(());
        };
        if matches!(command.kind, Kind::PairCompare | Kind::PairWrite { .. }) {
            self.failed_halves.insert(number);
        }
        if !matches!(command.kind, Kind::Refused { .. }) {
            let cause = self.cause(number, command, failure)?;
            self.shared.coverage.reach(Point::Cause(name, cause));
        }
        let mismatch = |expected: &[Content]| {
            let lbas = command.lba..;
            let mut blocks = expected.iter().zip(lbas);
            blocks.all(|(content, lba)| self.model.surely_holds(lba, *content, command.begin_ns))
        };
        let is_wrong = match &command.kind {
            Kind::Compare { expected } => {
                failure.status().is_some_and(|status| status.is(Status::COMPARE_FAILURE))
                    && mismatch(expected)
            }
            Kind::PairWrite { expected, .. } => {
                let is_mismatch = self.mismatched.contains(&(number - 1));
                is_mismatch && mismatch(expected)
            }
            _ => false,
        };
        if matches!(command.kind, Kind::PairCompare)
            && failure.status().is_some_and(|status| status.is(Status::COMPARE_FAILURE))
        {
            self.mismatched.insert(number);
        }
        if is_wrong {
            return Err("found a difference, though every block held what it was compared with".into());
        }
        Ok(())
    }

    fn judge(
        &mut self,
        number: u64,
        command: Command,
        completion: Completion<Vec<u8>>,
    ) -> Result<(), model::Finding> {
        let now_ns = self.shared.now_ns;
        let Command { kind, lba, blocks, begin_ns, host, lane, host_loss_count, .. } = command;
        if lba >= self.shared.scenario.block_count {
            self.second_state.judge(begin_ns, completion.result)?;
        }
        let lbas = lba..lba + u64::from(blocks);
        let Completion { result, received, buffer, .. } = completion;
        let vouches = matches!(
            kind,
            Kind::Flush | Kind::Write { is_durable: true } | Kind::WriteZeroes { is_durable: true }
        );
        if vouches
            && result.is_ok()
            && self.stage == Stage::Work
            && let Some(at) = self.held_cuts.pop()
        {
            // It covers every earlier write.
            self.shared.at(now_ns, Event::Fault(at));
        }
        match kind {
            Kind::Read => {
                let Some(buffer) = buffer else { return Err("a read came back without its buffer".into()) };
                if result.is_err() {
                    if self.stage == Stage::Read {
                        self.left_to_read.extend(lbas.rev());
                        let actor = self.hosts[host].lanes[lane].actor;
                        self.shared.wake_at(actor, now_ns + 10_000_000);
                    }
                    return Ok(());
                }
                if received as usize != buffer.len() {
                    return Err(format!("a read of {} bytes brought {received}", buffer.len()));
                }
                for (block, lba) in buffer.chunks_exact(self.block_bytes(lba)).zip(lbas) {
                    self.model.read_content(lba, model::content_of(block, lba)?, begin_ns, now_ns)?;
                }
                Ok(())
            }
            Kind::Write { is_durable } | Kind::WriteZeroes { is_durable } => {
                self.judge_write(number, host, lbas, result, is_durable)
            }
            Kind::Deallocate { lbas } => match result {
                // It need not do anything.
                Ok(_) => {
                    lbas.into_iter().for_each(|lba| self.model.doubt_write(lba, number, Some(now_ns)));
                    Ok(())
                }
                result => self.judge_write(number, host, lbas, result, false),
            },
            // Of one that failed some blocks may have been copied, but for those that never began.
            Kind::Copy { is_durable, .. } => match result {
                Err(Failure::Status(status)) if !status.is(Status::ABORT_REQUESTED) => {
                    lbas.for_each(|lba| self.model.doubt_write(lba, number, Some(now_ns)));
                    Ok(())
                }
                result => self.judge_write(number, host, lbas, result, is_durable),
            },
            Kind::Flush => {
                if result.is_ok() {
                    self.covered_losses[host] = self.covered_losses[host].max(host_loss_count);
                }
                self.judge_flush((host, lane), lba, begin_ns, result)
            }
            Kind::Compare { expected } => {
                if result.is_ok() {
                    for (content, lba) in expected.into_iter().zip(lbas) {
                        self.model.read_content(lba, content, begin_ns, now_ns)?;
                    }
                }
                Ok(())
            }
            Kind::PairWrite { expected, is_durable } => {
                if result.is_ok() {
                    for (expected, lba) in expected.into_iter().zip(lbas.clone()) {
                        self.judge_swap(number, lba, expected, begin_ns)?;
                    }
                }
                self.judge_write(number, host, lbas, result, is_durable)
            }
            Kind::FlushAll => {
                if result.is_ok() {
                    let lbas = 0..self.shared.scenario.all_block_count();
                    self.model.settle_flushed(&lbas, begin_ns);
                } else {
                    self.model.on_failed_flush(host);
                }
                Ok(())
            }
            Kind::Refused { status } => match result {
                Ok(_) => Err(format!("succeeded, and had to be refused with {status}")),
                Err(Failure::Status(given)) => {
                    // The namespace that it names may be closed, or gone.
                    let is_gone =
                        given.is(Status::NAMESPACE_NOT_READY) || given.is(Status::INVALID_NAMESPACE);
                    match given == status.with_dnr() || is_gone {
                        true => Ok(()),
                        false => Err(format!("was refused with {given}, not with {status}")),
                    }
                }
                Err(_) => Ok(()),
            },
            Kind::PairCompare | Kind::Verify | Kind::Hint => Ok(()),
        }
    }

    /// A Compare and Write of a block has succeeded.
    fn judge_swap(
        &mut self,
        number: u64,
        lba: u64,
        expected: Content,
        begin_ns: u64,
    ) -> Result<(), model::Finding> {
        self.model.read_content(lba, expected, begin_ns, self.shared.now_ns)?;
        // What a Copy brought is not this block's alone.
        if expected.0 == lba && !self.model.was_copied_to(lba) {
            self.model.swap(lba, expected.1, number << 8, begin_ns)?;
        }
        Ok(())
    }

    fn judge_write(
        &mut self,
        number: u64,
        host: usize,
        lbas: impl IntoIterator<Item = u64>,
        result: Result<u64, Failure>,
        is_durable: bool,
    ) -> Result<(), model::Finding> {
        let now_ns = self.shared.now_ns;
        // RAM that outlives the target keeps everything.
        let mut lbas = lbas.into_iter().peekable();
        let first = lbas.peek().copied().unwrap_or(0);
        let is_durable = is_durable || first >= self.shared.scenario.block_count;
        let was_not_done = match result {
            Ok(_) => {
                return lbas.try_for_each(|lba| self.model.end_write(host, lba, number, now_ns, is_durable));
            }
            Err(Failure::Status(status)) => {
                status.is(Status::ABORT_REQUESTED)
                    || status.is(Status::ABORTED_FAILED_FUSED)
                    || status.is(Status::LBA_OUT_OF_RANGE)
                    || status.is(Status::INVALID_NAMESPACE)
            }
            Err(Failure::Cancelled | Failure::Unreachable) => true,
            Err(_) => false,
        };
        // One that was sent twice may have been done the first time.
        if was_not_done && !self.shared.scenario.is_replayed {
            return lbas.try_for_each(|lba| self.model.deny_write(lba, number));
        }
        let may_still_happen = result.is_err_and(Failure::may_have_happened);
        for lba in lbas {
            self.model.doubt_write(lba, number, (!may_still_happen).then_some(now_ns));
            if may_still_happen {
                self.doubtful[host].push((lba, number));
            }
        }
        Ok(())
    }

    fn judge_flush(
        &mut self,
        (host, lane): (usize, usize),
        lba: u64,
        begin_ns: u64,
        result: Result<u64, Failure>,
    ) -> Result<(), model::Finding> {
        match result {
            Ok(_) => {
                let first = self.shared.scenario.block_count;
                let lbas = if lba < first { 0..first } else { first..self.shared.scenario.all_block_count() };
                let is_other = |command: &Command| {
                    command.host == host && matches!(command.kind, Kind::Flush | Kind::FlushAll)
                };
                // The failure of another one may be on its way.
                if !self.commands.values().any(is_other) {
                    self.model.check_told(host, self.hosts[host].up_count, &lbas, begin_ns)?;
                }
                self.model.flush(host, &lbas, begin_ns)?;
                self.had_last_cut |= self.stage == Stage::Flush;
                return Ok(());
            }
            Err(Failure::Unflushed) => self.model.excuse_host(host),
            Err(_) => self.model.on_failed_flush(host),
        }
        if self.stage == Stage::Flush {
            let actor = self.hosts[host].lanes[lane].actor;
            self.shared.wake_at(actor, self.shared.now_ns + 10_000_000);
        }
        Ok(())
    }
}
