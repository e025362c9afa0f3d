//! Verified load on namespaces: every acknowledged write must be readable, an interrupted one may be.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use host::{Association, BlockRange, Command, Completion, Failure, LaneSet, Namespace};
use load::ledger::{Ledger, WriteOutcome};
use load::random::Prng;
use load::stream::{Region, Step};
use load::verify::Marker;
use load::workload::{Deallocated, Kind};

/// Time limit for one completion while the target is running.
const PATIENCE: Duration = Duration::from_secs(30);

/// Maximum blocks per command.
const BLOCKS_MAX: u64 = 32;

/// Counts of a verified load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Acknowledged commands.
    pub(crate) acknowledged: u64,
    /// Acknowledged flushes and writes with FUA.
    pub(crate) durable: u64,
    /// Commands whose outcome is unknown.
    pub(crate) interrupted: u64,
    /// Blocks read and compared with the ledger.
    pub(crate) blocks_checked: u64,
    /// Blocks with wrong content, and commands with a wrong outcome.
    pub(crate) violations: u64,
}

/// A namespace and the contents allowed for each of its blocks. It outlives associations.
pub(crate) struct Account {
    namespace: Namespace,
    ledger: Ledger,
    marker: Marker,
}

impl Account {
    /// A ledger for a namespace of unknown content.
    pub(crate) fn new(namespace: Namespace, run_id: u64) -> Self {
        let region = Region { first: 0, blocks: namespace.block_count() };
        let ledger = Ledger::new(region, Deallocated::Zeroes);
        let marker = Marker::new(run_id ^ u64::from(namespace.nsid().get()));
        Self { namespace, ledger, marker }
    }

    fn stamped(&self, step: &Step) -> Vec<u8> {
        let lba_bytes = self.namespace.lba_bytes() as usize;
        let mut buffer = vec![0; step.blocks as usize * lba_bytes];
        for (lba, block) in (step.slba..).zip(buffer.chunks_exact_mut(lba_bytes)) {
            self.marker.stamp(block, lba, self.ledger.generation(lba));
        }
        buffer
    }
}

/// The effect of a command in flight.
#[derive(Clone, Copy, Debug)]
enum Action {
    /// A change of an account's blocks, durable if set.
    Blocks {
        account: usize,
        step: Step,
        is_durable: bool,
    },
    Flush,
}

/// The load of one host on all namespaces.
pub(crate) struct Checked<'a> {
    accounts: &'a mut [Account],
    lanes: LaneSet,
    random: Prng,
    flights: Vec<Option<Action>>,
    free: Vec<usize>,
    counts: Counts,
    /// Description of the first error.
    findings: Vec<String>,
}

impl<'a> Checked<'a> {
    pub(crate) fn new(association: &Association, accounts: &'a mut [Account], seed: u64) -> Result<Self> {
        let lanes = association.lanes()?;
        Ok(Self {
            accounts,
            lanes,
            random: Prng::new(seed),
            flights: Vec::new(),
            free: Vec::new(),
            counts: Counts::default(),
            findings: Vec::new(),
        })
    }

    /// Writes every block once, so that all contents are known from here on.
    pub(crate) fn fill(&mut self) -> Result<()> {
        self.each_range(Kind::Write)
    }

    /// Reads every block and compares it with the ledger.
    pub(crate) fn verify(&mut self) -> Result<()> {
        self.each_range(Kind::Read)
    }

    fn each_range(&mut self, kind: Kind) -> Result<()> {
        for account in 0..self.accounts.len() {
            let namespace = self.accounts[account].namespace.clone();
            let step_blocks = namespace.transfer_blocks_max().min(64);
            for range in Namespace::split(0, namespace.block_count(), step_blocks) {
                let step = Step { kind, slba: range.lba, blocks: range.blocks };
                while !self.submit(account, step, false) {
                    self.wait()?;
                }
            }
        }
        self.drain()
    }

    /// Issues random commands until `is_over`, which is polled, returns `true`.
    pub(crate) fn run(&mut self, mut is_over: impl FnMut(&Counts) -> bool) -> Result<()> {
        while !is_over(&self.counts) {
            for _ in 0..16 {
                self.submit_random();
            }
            self.take(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Waits for all outstanding commands.
    pub(crate) fn drain(&mut self) -> Result<()> {
        while self.lanes.outstanding() > 0 {
            self.wait()?;
        }
        Ok(())
    }

    /// Stops with commands in flight, whose outcome stays unknown. Returns the counts and the first error.
    pub(crate) fn abandon(mut self) -> (Counts, Vec<String>) {
        for action in std::mem::take(&mut self.flights).into_iter().flatten() {
            if let Action::Blocks { account, step, .. } = action {
                self.accounts[account].ledger.end(&step, WriteOutcome::Uncertain);
                self.counts.interrupted += u64::from(step.kind != Kind::Read);
            }
        }
        (self.counts, self.findings)
    }

    fn submit_random(&mut self) {
        let account = usize::try_from(self.random.below(self.accounts.len() as u64)).expect("an index");
        let count = self.accounts[account].namespace.block_count();
        let blocks = 1 + self.random.below(BLOCKS_MAX.min(count));
        let slba = self.random.below(count - blocks + 1);
        let kind = match self.random.below(100) {
            0..3 => return self.submit_flush(account),
            3..60 => Kind::Write,
            60..64 => Kind::WriteZeroes,
            64..66 => Kind::Trim,
            _ => Kind::Read,
        };
        let is_durable = matches!(kind, Kind::Write | Kind::WriteZeroes) && self.random.below(10) == 0;
        let blocks = u32::try_from(blocks).expect("a few");
        self.submit(account, Step { kind, slba, blocks }, is_durable);
    }

    /// Submits a step if its blocks are idle and a command slot is free.
    fn submit(&mut self, account: usize, step: Step, is_durable: bool) -> bool {
        let Some(lane) = self.lane_with_room() else { return false };
        let of = &mut self.accounts[account];
        if !of.ledger.begin(&step) {
            return false;
        }
        let length = step.blocks as usize * of.namespace.lba_bytes() as usize;
        let (command, buffer) = match step.kind {
            Kind::Read => (of.namespace.read(step.slba, step.blocks), Some(vec![0xee; length])),
            Kind::Write => (of.namespace.write(step.slba, step.blocks), Some(of.stamped(&step))),
            Kind::WriteZeroes => (of.namespace.write_zeroes(step.slba, step.blocks, false), None),
            Kind::Trim => {
                let range = BlockRange { lba: step.slba, blocks: step.blocks };
                (of.namespace.deallocate(&[range]), None)
            }
        };
        let command = command.expect("within the namespace and its limits");
        let command = if is_durable { command.fua() } else { command };
        self.send(lane, command, buffer, Action::Blocks { account, step, is_durable });
        true
    }

    fn submit_flush(&mut self, account: usize) {
        let Some(lane) = self.lane_with_room() else { return };
        let command = self.accounts[account].namespace.flush();
        self.send(lane, command, None, Action::Flush);
    }

    fn lane_with_room(&mut self) -> Option<usize> {
        let count = self.lanes.lanes().len();
        let first = usize::try_from(self.random.below(count as u64)).expect("an index");
        (first..first + count).map(|lane| lane % count).find(|&lane| self.lanes.lanes()[lane].has_room(1))
    }

    fn send(&mut self, lane: usize, command: Command, buffer: Option<Vec<u8>>, action: Action) {
        let user = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        self.flights[user] = Some(action);
        self.lanes.lanes_mut()[lane]
            .submit(command, buffer, user as u64)
            .expect("room, and the right length");
    }

    /// Waits for a completion.
    fn wait(&mut self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while self.take(Duration::from_millis(100)) == 0 {
            if let Some(over) = self.lanes.lanes().iter().find_map(|lane| lane.over()) {
                bail!("the association ended: {over}");
            }
            ensure!(Instant::now() < until, "{} commands did not complete", self.lanes.outstanding());
        }
        Ok(())
    }

    fn take(&mut self, timeout: Duration) -> usize {
        let mut ended = Vec::new();
        self.lanes.wait_with(&mut |_, completion| ended.push(completion), timeout);
        let count = ended.len();
        ended.into_iter().for_each(|completion| self.on_end(completion));
        count
    }

    fn on_end(&mut self, completion: Completion<Vec<u8>>) {
        let user = usize::try_from(completion.user).expect("an index of ours");
        let Some(action) = self.flights.get_mut(user).and_then(Option::take) else {
            return self.find(format!("command {user} ended twice"));
        };
        self.free.push(user);
        let Action::Blocks { account, step, is_durable } = action else {
            return match completion.result {
                Ok(_) => {
                    self.counts.acknowledged += 1;
                    self.counts.durable += 1;
                }
                // Only the first flush after each loss may report lost writes, and only if more than the target process
                // failed.
                Err(Failure::Unflushed) => {}
                Err(failure) => self.find(format!("a flush failed: {failure}")),
            };
        };
        if let Err(failure) = completion.result {
            self.accounts[account].ledger.end(&step, WriteOutcome::Uncertain);
            return match failure {
                Failure::Interrupted if step.kind != Kind::Read => self.counts.interrupted += 1,
                _ => self.find(format!("{step:?} failed: {failure}")),
            };
        }
        self.counts.acknowledged += 1;
        self.counts.durable += u64::from(is_durable);
        if step.kind == Kind::Read {
            self.check(account, &step, &completion.buffer.unwrap_or_default());
        }
        self.accounts[account].ledger.end(&step, WriteOutcome::Done);
    }

    fn check(&mut self, account: usize, step: &Step, data: &[u8]) {
        let of = &mut self.accounts[account];
        let mut wrong = Vec::new();
        for (lba, block) in (step.slba..).zip(data.chunks_exact(of.namespace.lba_bytes() as usize)) {
            self.counts.blocks_checked += 1;
            match of.marker.check(block, lba, &of.ledger.expectation(lba)) {
                Ok(content) => of.ledger.observe(lba, content),
                Err(mismatch) => wrong.push(format!("namespace {}: {mismatch}", of.namespace.nsid())),
            }
        }
        wrong.into_iter().for_each(|finding| self.find(finding));
    }

    fn find(&mut self, finding: String) {
        self.counts.violations += 1;
        if self.findings.len() < 20 {
            self.findings.push(finding);
        }
    }
}

impl Counts {
    pub(crate) fn add(&mut self, other: Self) {
        self.acknowledged += other.acknowledged;
        self.durable += other.durable;
        self.interrupted += other.interrupted;
        self.blocks_checked += other.blocks_checked;
        self.violations += other.violations;
    }
}
