//! Users of a host's lanes: when they submit, read again, flush and cancel.

use host_core::{Completion, Namespace};

use super::command::Kind;
use super::pairs::Pairs;
use super::{Stage, World};
use crate::random::Random;
use crate::scenario::Scenario;
use crate::timeline::About;

/// The user of one lane.
#[derive(Debug, Default)]
pub(super) struct User {
    /// Its next command, by its place among those of the lane. Each command has draws of its own, which do not depend
    /// on the end of other commands.
    next: u64,
    /// It submits nothing before.
    next_ns: u64,
}

/// The users of all lanes, by host and lane.
pub(super) fn users(scenario: &Scenario) -> Vec<Vec<User>> {
    let users = |_| (0..scenario.hosts.lane_count).map(|_| User::default()).collect();
    (0..scenario.hosts.count).map(users).collect()
}

impl World {
    /// A lane's thread runs, and its user with it.
    pub(crate) fn run_user(&mut self, host: usize, lane: usize) {
        let mut done = Vec::new();
        self.hosts[host].run_lane(&mut self.shared, lane, &mut done);
        for Completion { user, result, received, buffer } in done {
            let buffer = buffer.map(|buffer| buffer.bytes);
            self.on_completion(host, lane, Completion { user, result, received, buffer });
        }
        if !self.shared.findings.is_empty() {
            return;
        }
        let before = self.commands.next;
        match self.progress.stage {
            _ if self.hosts[host].is_shut_out => {}
            Stage::Work => self.submit_some(host, lane),
            Stage::Flush => self.submit_flush(host, lane),
            Stage::Read => self.submit_reads(host, lane),
            Stage::Settle | Stage::Close | Stage::Stop | Stage::Over => {}
        }
        if self.commands.next > before {
            self.send_commands(host, lane);
        }
        if self.submit_flags(host, lane) {
            self.send_commands(host, lane);
        }
        // A lane's thread checks its new commands before it sleeps.
        let (core, actor) = (&self.hosts[host].lanes[lane].core, self.hosts[host].lanes[lane].actor);
        if core.has_done() {
            self.shared.wake(actor);
        } else if let Some(at_ns) = core.next_deadline() {
            self.shared.wake_at(actor, at_ns.max(self.shared.now_ns + 1));
        }
    }

    fn send_commands(&mut self, host: usize, lane: usize) {
        if let Err(cause) = self.hosts[host].flush_lane(&mut self.shared, lane) {
            self.hosts[host].lose_lane(&mut self.shared, lane, cause);
        }
    }

    /// Whether a user has submitted all of its commands.
    pub(super) fn is_done(&self, user: &User) -> bool {
        user.next >= self.shared.scenario.load.lane_command_count
    }

    fn submit_some(&mut self, host: usize, lane: usize) {
        if self.hosts[host].namespace.is_none() {
            return;
        }
        // A lane of depth 1 has never room for a pair, and a pause after each command.
        let is_deep = self.shared.scenario.hosts.depth > 1;
        let now_ns = self.shared.now_ns;
        while let room = self.flags_due((host, lane)) + if is_deep { 2 } else { 1 }
            && let user = &mut self.users[host][lane]
            && user.next < self.shared.scenario.load.lane_command_count
            && user.next_ns <= now_ns
            && self.hosts[host].lanes[lane].core.has_room(room)
        {
            let command = [host as u64, lane as u64, user.next];
            user.next += 1;
            self.choice = Random::of(self.shared.scenario.seed, 3, &command);
            let pause_ns = 1 + self.choice.below(self.shared.scenario.load.think_ns);
            if !is_deep || self.choice.one_in(3) {
                user.next_ns = now_ns + pause_ns;
            }
            self.commands.turn_count += 1;
            if self.shared.scenario.load.commands.as_ref().is_none_or(|kept| kept.contains(&command)) {
                self.commands.submitted.push(command);
                self.submit_one(host, lane);
            }
        }
        let user = &self.users[host][lane];
        if user.next_ns > now_ns && !self.is_done(user) {
            self.shared.wake_at(self.hosts[host].lanes[lane].actor, user.next_ns);
        }
        self.fire_faults();
    }

    /// The namespace in which a block of the model lies, and the block there.
    fn place(&self, host: usize, lba: u64) -> Option<(Namespace, u64)> {
        match lba.checked_sub(self.shared.scenario.first.block_count) {
            None => Some((self.hosts[host].namespace.clone()?, self.shared.scenario.first.first_block + lba)),
            Some(lba) => Some((self.hosts[host].second.clone()?, lba)),
        }
    }

    fn submit_flush(&mut self, host: usize, lane: usize) {
        let Some(namespace) = self.hosts[host].namespace.clone() else { return };
        // One flush covers what all hosts have written; it comes again until it is done.
        if host == 0 && lane == 0 && self.commands.out.is_empty() && !self.progress.had_last_cut {
            self.submit(host, lane, namespace.flush(), Kind::Flush, (0, 0));
        }
    }

    fn submit_reads(&mut self, host: usize, lane: usize) {
        while self.hosts[host].lanes[lane].core.has_room(1)
            && let Some(lba) = self.progress.left_to_read.pop()
        {
            // As many of those behind it as one command reads.
            let blocks_max = self.shared.scenario.blocks_max_at(lba).min(self.progress.read_blocks_max);
            let mut blocks = 1;
            while blocks < blocks_max
                && lba + u64::from(blocks) != self.shared.scenario.first.block_count
                && self.progress.left_to_read.pop_if(|next| *next == lba + u64::from(blocks)).is_some()
            {
                blocks += 1;
            }
            let read = self.place(host, lba).and_then(|(namespace, lba)| namespace.read(lba, blocks).ok());
            match read {
                Some(read) => self.submit(host, lane, read, Kind::Read, (lba, blocks)),
                None => {
                    // The host does not know yet that the namespace is longer again.
                    self.progress.left_to_read.extend((lba..lba + u64::from(blocks)).rev());
                    let actor = self.hosts[host].lanes[lane].actor;
                    self.shared.wake_at(actor, self.shared.now_ns + 10_000_000);
                    return;
                }
            }
        }
    }

    /// Cancels a command that is out.
    pub(crate) fn cancel_one(&mut self) {
        let of_blocks =
            self.commands.out.iter().map(|(number, command)| (*number, command.host, command.lane));
        let of_pairs = self.pairs.iter().flat_map(Pairs::of_hosts);
        let out: Vec<(u64, usize, usize)> = of_blocks.chain(of_pairs).collect();
        if out.is_empty() {
            return;
        }
        let (number, host, lane) = self.shared.random.pick(&out);
        self.commands.cancel(number);
        self.shared.tell(About::Command(number), || format!("host {host} lane {lane}: is cancelled"));
        self.cancel(number, host, lane);
    }

    /// Has a lane cancel a command.
    pub(super) fn cancel(&mut self, number: u64, host: usize, lane: usize) {
        self.hosts[host].lanes[lane].core.cancel(number);
        self.hosts[host].act_lane(&mut self.shared, lane);
        let actor = self.hosts[host].lanes[lane].actor;
        self.shared.wake(actor);
    }
}
