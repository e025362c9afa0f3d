//! Judges the end of a command: its data, its status, and its evidence about other commands.

use host_core::{Completion, Failure};
use subsystem::access::Right;
use wire::lba_status::AllocatedBlocks;
use wire::status::Status;

use super::command::{Command, Kind, in_words};
use super::{Stage, World};
use crate::coverage::{Ending, Point};
use crate::finding::Finding;
use crate::host::BARRED;
use crate::model::{self, Content};
use crate::shared::Event;
use crate::timeline::About;

impl World {
    pub(super) fn on_completion(&mut self, host: usize, lane: usize, completion: Completion<Vec<u8>>) {
        let Some(completion) = self.on_pair_completion(host, lane, completion) else { return };
        let number = completion.user;
        let result = completion.result;
        self.shared.trace.note(self.shared.now_ns, number);
        self.shared.tell(About::Command(number), || {
            let end = result.map_or_else(|failure| failure.to_string(), |_| "success".into());
            format!("host {host} lane {lane}: ends: {end}")
        });
        if let Some((_, view)) = self.shared.trace.kept() {
            view.on_ended(self.hosts[host].lanes[lane].actor, number);
        }
        let Some(command) = self.commands.out.remove(&number) else {
            return self.shared.find(format!("command {number} ends, and is not out"));
        };
        if (command.host, command.lane) != (host, lane) {
            return self.shared.find(format!("command {number} ends on another lane"));
        }
        self.commands.ended_count += 1;
        let scenario = &self.shared.scenario;
        if result == Err(Failure::TimedOut)
            && scenario.is_swift()
            && 2 * scenario.transfers_ns_max() < scenario.hosts.command_timeout_ns
            && scenario.disk.slow == 0
            && !self.progress.had_last_cut
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
    ) -> Result<(), Finding> {
        let name = command.kind.name();
        let Err(failure) = result else {
            let order_ns = self.shared.scenario.order_ns_max();
            if let Some(since_ns) = self.shared.barred_since_ns
                && command.host == BARRED
                && command.begin_ns > since_ns + order_ns
            {
                return Err(format!("succeeded, though its host has not been allowed since {since_ns} ns"));
            }
            self.judge_machine(command)?;
            self.judge_rate(command)?;
            self.judge_success(command)?;
            if matches!(command.kind, Kind::PairWrite { .. }) {
                self.note_beside_pair(command);
            }
            self.shared.coverage.reach(Point::End { command: name, outcome: Ending::Done, cause: "done" });
            return Ok(());
        };
        if matches!(command.kind, Kind::PairCompare | Kind::PairWrite { .. }) {
            self.commands.failed_halves.insert(number);
        }
        // The status of commands that must fail is checked below.
        if !matches!((&command.kind, failure), (Kind::Refused { .. }, Failure::Status(_))) {
            let cause = self.cause(number, command, failure)?;
            let outcome = Err(failure).into();
            self.shared.coverage.reach(Point::End { command: name, outcome, cause });
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
                let is_mismatch = self.commands.mismatched.contains(&(number - 1));
                is_mismatch && mismatch(expected)
            }
            _ => false,
        };
        if matches!(command.kind, Kind::PairCompare)
            && failure.status().is_some_and(|status| status.is(Status::COMPARE_FAILURE))
        {
            self.commands.mismatched.insert(number);
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
    ) -> Result<(), Finding> {
        let now_ns = self.shared.now_ns;
        let is_to_be_refused = matches!(command.kind, Kind::Refused { .. });
        let was_damaged = is_to_be_refused && self.was_damaged(&command);
        let has_status = matches!(completion.result, Err(Failure::Status(_)));
        let may_be_partly_done = has_status && self.may_be_partly_deallocated(&command);
        let was_missing = self.second.presence.was_missing(command.begin_ns);
        let was_away = was_missing || self.was_closed_since(command.begin_ns);
        let Command { kind, lba, blocks, begin_ns, host, lane, host_loss_count, .. } = command;
        let is_second = lba >= self.shared.scenario.first.block_count;
        // One that is to be refused may name either.
        let may_have_been = |is_it: &dyn Fn(Right) -> bool| {
            (is_second || is_to_be_refused) && self.second.rights.may_have_been(host, is_it, begin_ns)
        };
        let may_be_hidden = may_have_been(&|right| right == Right::None);
        let may_be_read_only = may_have_been(&|right| right == Right::Read);
        if is_second {
            let is_missing = |failure: Failure| {
                failure.status().is_some_and(|status| status.is(Status::INVALID_NAMESPACE))
            };
            if !(may_be_hidden && completion.result.is_err_and(is_missing)) {
                self.second.presence.judge(begin_ns, completion.result)?;
            }
            let needed = if kind.changes_blocks() { Right::Write } else { Right::Read };
            if completion.result.is_ok() && !may_have_been(&|right| right >= needed) {
                return Err("succeeded in a namespace to which its host had no right".into());
            }
        }
        let lbas = lba..lba + u64::from(blocks);
        let Completion { result, received, buffer, .. } = completion;
        let vouches = matches!(
            kind,
            Kind::Flush | Kind::Write { is_durable: true } | Kind::WriteZeroes { is_durable: true }
        );
        if vouches
            && result.is_ok()
            && self.progress.stage == Stage::Work
            && let Some(at) = self.faults.held_cuts.pop()
        {
            // It covers every earlier write.
            self.shared.at(now_ns, Event::Fault(at));
        }
        match kind {
            Kind::Read => {
                let Some(buffer) = buffer else { return Err("a read came back without its buffer".into()) };
                if result.is_err() {
                    if self.progress.stage == Stage::Read {
                        self.progress.left_to_read.extend(lbas.rev());
                        self.progress.read_blocks_max = (blocks / 2).max(1);
                        let actor = self.hosts[host].lanes[lane].actor;
                        self.shared.wake_at(actor, now_ns + 10_000_000);
                    }
                    return Ok(());
                }
                if received as usize != buffer.len() {
                    return Err(format!("a read of {} bytes brought {received}", buffer.len()));
                }
                for (block, lba) in buffer.chunks_exact(self.block_bytes(lba)).zip(lbas) {
                    let content = model::content_of(block, lba)?;
                    self.shared.tell(About::Block(lba), || {
                        let content = in_words(content);
                        format!("host {host} lane {lane}: command {number} has read block {lba}: {content}")
                    });
                    self.model.read_content(lba, content, begin_ns, now_ns)?;
                }
                Ok(())
            }
            Kind::Write { is_durable } | Kind::WriteZeroes { is_durable } => {
                self.judge_write(number, host, lbas, result, is_durable)
            }
            // It need not do anything; one that is refused may have deallocated a part before it was held.
            Kind::Deallocate { lbas } if result.is_ok() || may_be_partly_done => {
                lbas.into_iter().for_each(|lba| self.model.doubt_write(lba, number, Some(now_ns)));
                Ok(())
            }
            Kind::Deallocate { lbas } => self.judge_write(number, host, lbas, result, false),
            // A failed one may have copied some blocks, except for those that never began.
            Kind::Copy { is_durable, .. } => match result {
                Err(Failure::Status(status)) if !status.is(Status::ABORT_REQUESTED) => {
                    lbas.for_each(|lba| self.model.doubt_write(lba, number, Some(now_ns)));
                    Ok(())
                }
                result => self.judge_write(number, host, lbas, result, is_durable),
            },
            Kind::Flush => {
                if result.is_ok() {
                    self.records[host].covered_losses =
                        self.records[host].covered_losses.max(host_loss_count);
                }
                self.judge_flush((host, lane), lba, begin_ns, result)
            }
            // What is not allocated would read as zeroes.
            Kind::LbaStatus if result.is_ok() => {
                let first = self.shared.scenario.first.first_block;
                let bytes = buffer.unwrap_or_default();
                let bytes = bytes.get(..received as usize).unwrap_or_default();
                let list = AllocatedBlocks::from_bytes(bytes, first + lbas.start..first + lbas.end)
                    .map_err(|error| format!("a list of allocated blocks: {error}"))?;
                let is_allocated = |at: &u64| list.allocated.iter().any(|blocks| blocks.contains(at));
                let mut holes = list.range.clone().filter(|at| !is_allocated(at)).peekable();
                if holes.peek().is_some() {
                    self.shared.coverage.reach(Point::Form("block that is not allocated"));
                }
                holes
                    .try_for_each(|at| self.model.read_content(at - first, (at - first, 0), begin_ns, now_ns))
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
                    self.model.on_failed_flush(host, self.first.is_closed().then_some(begin_ns));
                }
                Ok(())
            }
            Kind::Refused { status } => match result {
                Ok(_) => Err(format!("succeeded, and had to be refused with {status}")),
                Err(Failure::Status(given)) => {
                    // The namespace that it names may be closed, or gone.
                    let is_gone = (given.is(Status::NAMESPACE_NOT_READY) && was_away)
                        || (given.is(Status::INVALID_NAMESPACE) && (was_missing || may_be_hidden))
                        || (given.is(Status::NAMESPACE_WRITE_PROTECTED) && may_be_read_only);
                    // The data in its capsule is checked first.
                    let is_damaged = given.is(Status::TRANSIENT_TRANSPORT_ERROR) && was_damaged;
                    if given == status.with_dnr() && status.is(Status::COMMAND_SIZE_LIMIT_EXCEEDED) {
                        self.shared.coverage.reach(Point::Limit("ranges of a Copy, exceeded"));
                    } else if given == status.with_dnr() && status.is(Status::INVALID_FIELD) {
                        self.shared.coverage.reach(Point::Limit("data of a command, exceeded"));
                    }
                    match given == status.with_dnr() || is_gone || is_damaged {
                        true => Ok(()),
                        false => Err(format!("was refused with {given}, not with {status}")),
                    }
                }
                Err(_) => Ok(()),
            },
            Kind::PairCompare | Kind::Verify | Kind::Hint | Kind::LbaStatus => Ok(()),
        }
    }

    /// A Compare and Write of a block has succeeded.
    fn judge_swap(&mut self, number: u64, lba: u64, expected: Content, begin_ns: u64) -> Result<(), Finding> {
        self.model.read_content(lba, expected, begin_ns, self.shared.now_ns)?;
        // Blocks that are cut between the two halves come back as zeroes, which the pair does not compare with.
        let was_resized = self.first.was_short_since(begin_ns);
        // Content that a Copy brought is not this block's alone.
        if expected.0 == lba && !was_resized && !self.model.was_copied_to(lba) {
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
    ) -> Result<(), Finding> {
        let now_ns = self.shared.now_ns;
        // RAM that outlives the target keeps everything.
        let mut lbas = lbas.into_iter().peekable();
        let first = lbas.peek().copied().unwrap_or(0);
        let is_durable = is_durable || first >= self.shared.scenario.first.block_count;
        let was_not_done = match result {
            Ok(_) => {
                return lbas.try_for_each(|lba| self.model.end_write(host, lba, number, now_ns, is_durable));
            }
            Err(Failure::Status(status)) => {
                status.is(Status::ABORT_REQUESTED)
                    || status.is(Status::ABORTED_FAILED_FUSED)
                    || status.is(Status::LBA_OUT_OF_RANGE)
                    || status.is(Status::INVALID_NAMESPACE)
                    || status.is(Status::NAMESPACE_WRITE_PROTECTED)
            }
            Err(Failure::Cancelled | Failure::Unreachable) => true,
            Err(_) => false,
        };
        // A command that was sent twice may have been done the first time.
        if was_not_done && !self.shared.scenario.hosts.is_replayed {
            return lbas.try_for_each(|lba| self.model.deny_write(lba, number));
        }
        let may_still_happen = result.is_err_and(Failure::may_have_happened);
        for lba in lbas {
            self.model.doubt_write(lba, number, (!may_still_happen).then_some(now_ns));
            if may_still_happen {
                self.records[host].doubtful.push((lba, number));
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
    ) -> Result<(), Finding> {
        match result {
            Ok(_) => {
                let first = self.shared.scenario.first.block_count;
                let lbas = if lba < first { 0..first } else { first..self.shared.scenario.all_block_count() };
                let is_other = |command: &Command| {
                    command.host == host && matches!(command.kind, Kind::Flush | Kind::FlushAll)
                };
                // The failure of another one may be on its way.
                if !self.commands.out.values().any(is_other) {
                    self.model.check_told(host, self.hosts[host].up_count, &lbas, begin_ns)?;
                }
                self.model.flush(host, &lbas, begin_ns)?;
                self.progress.had_last_cut |= self.progress.stage == Stage::Flush;
                return Ok(());
            }
            Err(Failure::Unflushed) => self.model.excuse_host(host),
            Err(_) => {
                let is_of_closed = lba < self.shared.scenario.first.block_count && self.first.is_closed();
                self.model.on_failed_flush(host, is_of_closed.then_some(begin_ns));
            }
        }
        if self.progress.stage == Stage::Flush {
            let actor = self.hosts[host].lanes[lane].actor;
            self.shared.wake_at(actor, self.shared.now_ns + 10_000_000);
        }
        Ok(())
    }
}
