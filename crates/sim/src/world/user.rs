//! Those who use a host's lanes: what they submit, and what they make of what comes back.

use host::{Command as HostCommand, Completion, Failure, Namespace};
use wire::status::Status;

use super::{Stage, World};
use crate::model::{self, Content};
use crate::planted::Planted;
use crate::shared::Event;

/// A command that is out.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    kind: Kind,
    lba: u64,
    blocks: u32,
    begin_ns: u64,
    host: usize,
    pub(crate) lane: usize,
}

#[derive(Clone, Debug)]
enum Kind {
    Read,
    Write {
        is_durable: bool,
    },
    WriteZeroes {
        is_durable: bool,
    },
    Deallocate,
    /// From these blocks, one by one.
    Copy {
        sources: Vec<u64>,
        is_durable: bool,
    },
    Flush,
    Verify,
    Compare {
        expected: Vec<Content>,
    },
    /// The first of a pair.
    PairCompare,
    /// The second of a pair: what the first compares with.
    PairWrite {
        expected: Content,
    },
    /// A planted bug: a comparison whose write follows.
    SplitCompare {
        expected: Content,
    },
    SplitWrite {
        expected: Content,
    },
    /// A planted bug: a write of before, once more.
    Replay,
}

impl World {
    /// A lane's thread runs, and its user with it.
    pub(crate) fn run_user(&mut self, host: usize, lane: usize) {
        let mut done = Vec::new();
        self.hosts[host].run_lane(&mut self.shared, lane, &mut done);
        for completion in done {
            if self.shared.strikes(Planted::LostCompletion, 200) {
                continue;
            }
            if self.shared.strikes(Planted::DoubleCompletion, 200) {
                let (user, result, received) = (completion.user, completion.result, completion.received);
                let twin = Completion { user, result, received, buffer: completion.buffer.clone() };
                self.on_completion(host, lane, twin);
            }
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
        self.submit_replays(host, lane);
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
        ];
        let mut drawn = self.choice.below(u64::from(weights.iter().sum::<u32>()));
        let mut kind = 0;
        while drawn >= u64::from(weights[kind]) {
            drawn -= u64::from(weights[kind]);
            kind += 1;
        }
        let end = namespace.block_count();
        let blocks_max = self.shared.scenario.blocks_max_at(base);
        let blocks = self.choice.scaled(1, u64::from(blocks_max).min(end)) as u32;
        let lba = self.choice.below(end - u64::from(blocks) + 1);
        let is_durable = kind == 2 || (kind == 4 && self.choice.one_in(3));
        let range = host::BlockRange { lba, blocks };
        let (command, kind, blocks) = match kind {
            0 => (namespace.read(lba, blocks), Kind::Read, blocks),
            1 | 2 => (namespace.write(lba, blocks), Kind::Write { is_durable }, blocks),
            3 => return self.submit(host, lane, namespace.flush(), Kind::Flush, (base, 0)),
            4 => {
                let deallocates = self.choice.one_in(2);
                (namespace.write_zeroes(lba, blocks, deallocates), Kind::WriteZeroes { is_durable }, blocks)
            }
            5 => (namespace.deallocate(&[range]), Kind::Deallocate, blocks),
            6 => {
                let lbas = base + lba..base + lba + u64::from(blocks);
                let expected = lbas.map(|lba| self.model.likely(lba)).collect();
                (namespace.compare(lba, blocks), Kind::Compare { expected }, blocks)
            }
            7 if self.shared.is_planted(Planted::SplitCompareAndWrite) => {
                let expected = self.model.likely(base + lba);
                (namespace.compare(lba, 1), Kind::SplitCompare { expected }, 1)
            }
            7 => return self.submit_pair(host, lane, &namespace, (base, lba)),
            9 => return self.submit_copy(host, lane, &namespace, (base, lba, blocks)),
            _ => (namespace.verify(lba, blocks), Kind::Verify, blocks),
        };
        let Ok(command) = command else {
            // The controller does not have it.
            self.submitted_count += 1;
            return;
        };
        let command = if is_durable { command.fua() } else { command };
        self.submit(host, lane, command, kind, (base + lba, blocks));
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
            Kind::Write { .. } | Kind::SplitWrite { .. } => Some(self.written(lba, count, number << 8)),
            Kind::Compare { expected } => Some(self.filled(lba, expected)),
            Kind::SplitCompare { expected } => Some(self.filled(lba, &[*expected])),
            _ => None,
        };
        let value = match &kind {
            Kind::Write { .. } | Kind::SplitWrite { .. } => Some(number << 8),
            Kind::WriteZeroes { .. } | Kind::Deallocate => Some(0),
            _ => None,
        };
        let now_ns = self.shared.now_ns;
        self.shared.say(|| format!("host {host} lane {lane}: {number} is {kind:?} of {blocks} from {lba}"));
        if let Some(value) = value {
            (lba..lba + u64::from(blocks)).for_each(|lba| self.model.begin_write(lba, value, number, now_ns));
        } else if let Kind::Copy { sources, .. } = &kind {
            (lba..)
                .zip(sources)
                .for_each(|(lba, &source)| self.model.begin_copy(source, lba, number, now_ns));
        }
        self.submitted_count += 1;
        self.commands.insert(number, Command { kind, lba, blocks, begin_ns: now_ns, host, lane });
        if let Err(refused) = self.hosts[host].lanes[lane].core.submit(command, buffer, number) {
            self.shared.find(format!("command {number} was refused: {}", refused.reason));
        }
    }

    fn submit_pair(&mut self, host: usize, lane: usize, namespace: &Namespace, (base, lba): (u64, u64)) {
        self.submitted_count += 1;
        let Ok(pair) = namespace.compare_and_write(lba, 1) else { return };
        let lba = base + lba;
        let expected = self.model.likely(lba);
        let (first, second) = (self.number(), self.number());
        let now_ns = self.shared.now_ns;
        self.shared.say(|| format!("host {host} lane {lane}: {first}, {second} swap {expected:x?} at {lba}"));
        self.model.begin_write(lba, second << 8, second, now_ns);
        let command = |kind| Command { kind, lba, blocks: 1, begin_ns: now_ns, host, lane };
        self.commands.insert(first, command(Kind::PairCompare));
        self.commands.insert(second, command(Kind::PairWrite { expected }));
        let buffers = [self.filled(lba, &[expected]), self.written(lba, 1, second << 8)];
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

    fn submit_replays(&mut self, host: usize, lane: usize) {
        while self.hosts[host].lanes[lane].core.is_live()
            && self.hosts[host].lanes[lane].core.has_room(1)
            && let Some(at) = self.replays.iter().position(|replay| (replay.0, replay.1) == (host, lane))
            && let Some((_, _, lba, buffer)) = self.replays.remove(at)
        {
            let blocks = (buffer.len() / self.block_bytes(lba)) as u32;
            let write = self.place(host, lba).and_then(|(namespace, lba)| namespace.write(lba, blocks).ok());
            if let Some(write) = write {
                let number = self.number();
                let command = Command { kind: Kind::Replay, lba, blocks, begin_ns: 0, host, lane };
                self.commands.insert(number, command);
                let _ = self.hosts[host].lanes[lane].core.submit(write, Some(buffer), number);
            }
        }
    }

    /// Cancels a command that is out.
    pub(crate) fn cancel_one(&mut self) {
        let count = self.commands.len() as u64;
        let at = self.choice.below(count) as usize;
        let Some((&number, command)) = self.commands.iter().nth(at) else { return };
        let (host, lane) = (command.host, command.lane);
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
        if let Err(finding) = self.judge(number, command, completion) {
            self.shared.find(format!("command {number}: {finding}"));
        }
    }

    fn judge(
        &mut self,
        number: u64,
        command: Command,
        completion: Completion<Vec<u8>>,
    ) -> Result<(), model::Finding> {
        let now_ns = self.shared.now_ns;
        let Command { kind, lba, blocks, begin_ns, host, lane } = command;
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
                if self.shared.is_planted(Planted::LateReplay)
                    && let (Err(Failure::Interrupted), Some(buffer)) = (result, buffer)
                {
                    self.replays.push_back((host, lane, lba, buffer));
                }
                self.judge_write(number, host, lbas, result, is_durable)
            }
            Kind::Deallocate => match result {
                // It need not do anything.
                Ok(_) => {
                    lbas.for_each(|lba| self.model.doubt_write(lba, number, Some(now_ns)));
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
            Kind::Flush => self.judge_flush((host, lane), lba, begin_ns, result),
            Kind::Compare { expected } => {
                if result.is_ok() {
                    for (content, lba) in expected.into_iter().zip(lbas) {
                        self.model.read_content(lba, content, begin_ns, now_ns)?;
                    }
                }
                Ok(())
            }
            Kind::PairWrite { expected } | Kind::SplitWrite { expected } => {
                if result.is_ok() {
                    self.model.read_content(lba, expected, begin_ns, now_ns)?;
                    // What a Copy brought is not this block's alone.
                    if expected.0 == lba && !self.model.was_copied_to(lba) {
                        self.model.swap(lba, expected.1, number << 8, begin_ns)?;
                    }
                }
                self.judge_write(number, host, lbas, result, false)
            }
            Kind::SplitCompare { expected } => {
                let write = self.place(host, lba).and_then(|(namespace, lba)| namespace.write(lba, 1).ok());
                if result.is_ok()
                    && let Some(write) = write
                    && self.hosts[host].lanes[lane].core.has_room(1)
                {
                    self.submit(host, lane, write, Kind::SplitWrite { expected }, (lba, 1));
                }
                Ok(())
            }
            Kind::PairCompare | Kind::Verify | Kind::Replay => Ok(()),
        }
    }

    fn judge_write(
        &mut self,
        number: u64,
        host: usize,
        mut lbas: std::ops::Range<u64>,
        result: Result<u64, Failure>,
        is_durable: bool,
    ) -> Result<(), model::Finding> {
        let now_ns = self.shared.now_ns;
        // RAM that outlives the target keeps everything.
        let is_durable = is_durable || lbas.start >= self.shared.scenario.block_count;
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
                let is_other =
                    |command: &Command| command.host == host && matches!(command.kind, Kind::Flush);
                // The failure of another one may be on its way.
                if !self.commands.values().any(is_other) {
                    self.model.check_told(host, self.hosts[host].up_count, &lbas, begin_ns)?;
                }
                self.model.flush(host, &lbas, begin_ns)?;
                self.had_last_cut |= self.stage == Stage::Flush;
                return Ok(());
            }
            Err(Failure::Unflushed) if self.shared.is_planted(Planted::FlushCoversLost) => {
                let namespace = self.hosts[host].namespace.clone();
                if let Some(namespace) = namespace.filter(|_| self.hosts[host].lanes[lane].core.has_room(1)) {
                    self.submit(host, lane, namespace.flush(), Kind::Flush, (0, 0));
                    return Ok(());
                }
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
