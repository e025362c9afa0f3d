//! The namespaces of a host with separate queues: several files of one subsystem, one of which is lost and the others
//! are not. Commands that must fail are checked to fail, and the others to succeed.
//!
//! ```text
//! open ──its flush fails──▶ closed ──the operator──▶ reopened ──first Flush fails──▶ open
//!   └────────────────────the operator─────────────────▲
//! ```
//!
//! A Flush that succeeds covers all writes that were answered before on any queue. After a reopening a host whose
//! association is older has one Flush fail before one succeeds, even if its queues are lost; a host that connects later
//! has none fail, and neither has one in another namespace.

use std::ops::Range;
use std::sync::Arc;

use reactor::File;
use store::{FileStore, Geometry, Store};

use crate::finding::Finding;
use crate::model::{self, Content, Model};
use crate::scenario::{MS, SeparateSettings, US};
use crate::shared::disk::FIRST_SEPARATE_FILE;
use crate::shared::{Event, Shared};

/// The host, as the model knows it.
const HOST: usize = 0;

/// One namespace.
struct FileState {
    store: Store,
    model: Model,
    /// Since when it is closed, if it is.
    closed_ns: Option<u64>,
    /// When it was last closed or reopened, and when it was last reopened.
    changed_ns: u64,
    reopened_ns: u64,
    /// The operator is about to reopen it.
    is_reopening: bool,
    /// A Flush failed that arrived while it was closed, or one that may have arrived then: the host knows of the loss.
    has_told: bool,
    may_have_told: bool,
    /// A Flush must fail before one succeeds.
    owes: bool,
    /// The next Flush may fail.
    may_fail: bool,
    /// When a Flush that began after the reopening has failed.
    told_ns: u64,
}

/// The present association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Association {
    None,
    Connecting { since_ns: u64 },
    Up { since_ns: u64, up_ns: u64 },
}

/// All of them.
pub(crate) struct Files {
    block_bytes: u32,
    block_count: u64,
    states: Vec<FileState>,
    association: Association,
}

/// A Flush that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlushEnd {
    pub(super) begin_ns: u64,
    /// Another one of its namespace is under way, or was when its queue was lost, of which the target may not have heard.
    pub(super) has_other: bool,
    /// A queue was lost of which the target may have learned only afterwards: it then takes back the failure that it
    /// had reported on that queue.
    pub(super) is_unsure: bool,
}

impl Files {
    pub(crate) fn new(settings: &SeparateSettings) -> Self {
        let state = |number| FileState {
            store: store(settings, File::simulated(FIRST_SEPARATE_FILE + number as u64)),
            model: Model::new(settings.block_count, false),
            closed_ns: None,
            changed_ns: 0,
            reopened_ns: 0,
            is_reopening: false,
            has_told: false,
            may_have_told: false,
            owes: false,
            may_fail: false,
            told_ns: 0,
        };
        Self {
            block_bytes: settings.block_bytes,
            block_count: settings.block_count,
            states: (0..settings.file_count).map(state).collect(),
            association: Association::None,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.states.len()
    }

    pub(super) fn block_bytes(&self) -> usize {
        self.block_bytes as usize
    }

    pub(super) fn block_count(&self) -> u64 {
        self.block_count
    }

    /// The target starts, and opens them.
    pub(crate) fn open(&mut self, shared: &mut Shared, settings: &SeparateSettings) -> Vec<Store> {
        let open = |(number, state): (usize, &mut FileState)| {
            let disk = &mut shared.separate_disks[number];
            disk.forgive();
            state.store = store(settings, disk.open(FIRST_SEPARATE_FILE + number as u64));
            (state.closed_ns, state.has_told, state.may_have_told) = (None, false, false);
            state.store.clone()
        };
        self.states.iter_mut().enumerate().map(open).collect()
    }

    /// The target is killed, or its machine loses power.
    pub(crate) fn on_down(&mut self, shared: &mut Shared, is_power_cut: bool) {
        let Shared { separate_disks, random, now_ns, .. } = shared;
        for (disk, state) in separate_disks.iter_mut().zip(&mut self.states) {
            if is_power_cut {
                disk.on_power_cut(random);
                if let Err(finding) = state.model.on_power_cut(*now_ns) {
                    shared.findings.push(finding);
                }
            } else {
                disk.on_kill(random, false, 0);
                state.model.on_kill(*now_ns);
            }
        }
    }

    /// Notes changes of their state in a turn, or by the end of an operation of a disk.
    pub(crate) fn look(&mut self, shared: &mut Shared) {
        let now_ns = shared.now_ns;
        for (number, state) in self.states.iter_mut().enumerate() {
            if std::mem::take(&mut shared.separate_disks[number].has_failed_sync) {
                state.model.excuse_all(now_ns, &[]);
                state.reopen_later(shared, number);
            }
            if state.closed_ns.is_none() && state.store.generation().is_closed() {
                (state.closed_ns, state.changed_ns) = (Some(now_ns), now_ns);
                (state.has_told, state.may_have_told) = (false, false);
                shared.say(|| format!("separate namespace {number} is closed"));
                state.reopen_later(shared, number);
            }
        }
    }

    /// The operator reopens one.
    pub(crate) fn reopen(&mut self, shared: &mut Shared, number: usize) {
        let now_ns = shared.now_ns;
        let state = &mut self.states[number];
        state.is_reopening = false;
        shared.separate_disks[number].forgive();
        shared.say(|| format!("separate namespace {number} is reopened"));
        if let Err(error) = state.store.reopen() {
            shared.find(format!("cannot reopen separate namespace {number}: {error}"));
        }
        let closed_ns = state.closed_ns.take().unwrap_or(now_ns);
        let has_told = std::mem::take(&mut state.has_told);
        let may_have_told = std::mem::take(&mut state.may_have_told);
        (state.changed_ns, state.reopened_ns) = (now_ns, now_ns);
        if let Association::Up { since_ns, up_ns } = self.association {
            // One that began while it was closed has lost nothing.
            state.owes |= closed_ns >= up_ns && !has_told && !may_have_told;
            state.may_fail |= closed_ns >= since_ns && !has_told;
        }
        shared.reach_event("separate namespace reopened");
    }

    /// The operator reopens one without need.
    pub(super) fn reopen_soon(&mut self, shared: &mut Shared, number: usize) {
        self.states[number].reopen_later(shared, number);
    }

    /// Whether the operator has nothing to do.
    pub(crate) fn is_calm(&self) -> bool {
        !self.states.iter().any(|state| state.is_reopening)
    }

    pub(super) fn on_connecting(&mut self, now_ns: u64) {
        self.association = Association::Connecting { since_ns: now_ns };
    }

    /// The host has a new association, in which it has written nothing.
    pub(super) fn on_up(&mut self, now_ns: u64) {
        let Association::Connecting { since_ns } = self.association else { return };
        self.association = Association::Up { since_ns, up_ns: now_ns };
        for state in &mut self.states {
            state.model.excuse_host(HOST);
            state.owes = false;
            state.may_fail = state.changed_ns >= since_ns;
        }
    }

    pub(super) fn on_lost(&mut self) {
        self.association = Association::None;
        self.states.iter_mut().for_each(|state| (state.owes, state.may_fail) = (false, false));
    }

    /// A queue is lost, and its association is not. Its last answers may not have arrived.
    pub(super) fn on_queue_lost(&mut self) {
        if let Association::Up { since_ns, .. } = self.association {
            for state in &mut self.states {
                (state.may_have_told, state.has_told) = (state.may_have_told | state.has_told, false);
                state.may_fail |= state.reopened_ns >= since_ns;
            }
        }
    }

    pub(super) fn begin_write(&mut self, number: usize, lbas: Range<u64>, command: u64, now_ns: u64) {
        let model = &mut self.states[number].model;
        lbas.for_each(|lba| model.begin_write(lba, command << 8, command, now_ns));
    }

    /// The data of a write.
    pub(super) fn data(&self, lbas: Range<u64>, command: u64) -> Vec<u8> {
        let mut data = vec![0; self.block_bytes() * (lbas.end - lbas.start) as usize];
        for (block, lba) in data.chunks_exact_mut(self.block_bytes()).zip(lbas) {
            model::fill(block, lba, command << 8);
        }
        data
    }

    pub(super) fn on_written(
        &mut self,
        number: usize,
        mut lbas: Range<u64>,
        command: u64,
        now_ns: u64,
        is_durable: bool,
    ) -> Result<(), Finding> {
        let model = &mut self.states[number].model;
        lbas.try_for_each(|lba| model.end_write(HOST, lba, command, now_ns, is_durable))
    }

    /// A write has failed, or its outcome is not known: it may happen until then.
    pub(super) fn on_doubt(&mut self, number: usize, lbas: Range<u64>, command: u64, until_ns: Option<u64>) {
        let model = &mut self.states[number].model;
        lbas.for_each(|lba| model.doubt_write(lba, command, until_ns));
    }

    /// A write was not sent.
    pub(super) fn on_unsent(
        &mut self,
        number: usize,
        mut lbas: Range<u64>,
        command: u64,
    ) -> Result<(), Finding> {
        let model = &mut self.states[number].model;
        lbas.try_for_each(|lba| model.deny_write(lba, command))
    }

    /// A write whose outcome is not known can happen no more.
    pub(super) fn on_over(&mut self, number: usize, lbas: Range<u64>, command: u64, now_ns: u64) {
        let model = &mut self.states[number].model;
        lbas.for_each(|lba| model.close_write(lba, command, now_ns));
    }

    pub(super) fn on_read(
        &mut self,
        number: usize,
        lbas: Range<u64>,
        data: &[u8],
        (begin_ns, now_ns): (u64, u64),
    ) -> Result<(), Finding> {
        for (block, lba) in data.chunks_exact(self.block_bytes as usize).zip(lbas) {
            let content: Content = model::content_of(block, lba)?;
            self.states[number].model.read_content(lba, content, begin_ns, now_ns)?;
        }
        Ok(())
    }

    /// Whether a command that began then may have been refused for one of these namespaces.
    pub(super) fn may_be_refused(&self, mut numbers: Range<usize>, begin_ns: u64) -> bool {
        numbers.any(|number| {
            let state = &self.states[number];
            state.closed_ns.is_some() || state.changed_ns >= begin_ns
        })
    }

    /// A Flush of these namespaces has succeeded.
    pub(super) fn on_flushed(
        &mut self,
        shared: &mut Shared,
        numbers: Range<usize>,
        end: FlushEnd,
    ) -> Result<(), Finding> {
        let FlushEnd { begin_ns, has_other, is_unsure } = end;
        let is_beside_closed =
            self.states.iter().any(|state| state.closed_ns.is_some_and(|at| at < begin_ns));
        for number in numbers.clone() {
            let state = &mut self.states[number];
            if let Some(closed_ns) = state.closed_ns.filter(|at_ns| *at_ns < begin_ns) {
                return Err(format!(
                    "succeeds, though separate namespace {number} is closed since {closed_ns} ns"
                ));
            }
            let is_later = begin_ns > state.reopened_ns;
            if state.owes && is_later && !has_other {
                let reopened_ns = state.reopened_ns;
                return Err(format!(
                    "succeeds, though separate namespace {number} was reopened at {reopened_ns} ns, and the host was not told"
                ));
            }
            if is_later && !state.owes && !has_other && !is_unsure {
                state.may_fail = false;
            }
            state.model.flush(HOST, &(0..self.block_count), begin_ns)?;
        }
        if is_beside_closed && numbers.len() == 1 {
            shared.reach_event("Flush beside a separate namespace that is closed");
        }
        Ok(())
    }

    /// A Flush of these namespaces has failed.
    pub(super) fn on_flush_failed(
        &mut self,
        shared: &mut Shared,
        numbers: Range<usize>,
        FlushEnd { begin_ns, is_unsure, .. }: FlushEnd,
    ) -> Result<(), Finding> {
        let now_ns = shared.now_ns;
        let has_told = |state: &FileState| state.may_fail || state.told_ns >= begin_ns && state.told_ns > 0;
        let is_told = self.states[numbers.clone()].iter().any(has_told);
        if !is_told && !self.may_be_refused(numbers.clone(), begin_ns) {
            return Err("fails, and none of its namespaces was closed or reopened".into());
        }
        let mut owed_count = 0;
        for state in &mut self.states[numbers.clone()] {
            let owed = std::mem::take(&mut state.owes);
            if state.closed_ns.is_some_and(|at_ns| at_ns < begin_ns) {
                state.has_told = true;
            } else if state.closed_ns.is_some() {
                state.may_have_told = true;
            } else if begin_ns > state.reopened_ns {
                owed_count += usize::from(owed);
                (state.may_fail, state.told_ns) = (state.may_fail && is_unsure, now_ns);
            }
            state.model.on_failed_flush(HOST, None);
        }
        if owed_count > 0 {
            let is_of_all = numbers.len() > 1;
            shared.reach_event(if is_of_all {
                "Flush of several separate namespaces tells of a loss"
            } else {
                "Flush of a separate namespace tells of a loss"
            });
        }
        Ok(())
    }
}

impl FileState {
    fn reopen_later(&mut self, shared: &mut Shared, number: usize) {
        if !std::mem::replace(&mut self.is_reopening, true) {
            let wait_ns = shared.random.scaled(10 * US, 50 * MS);
            shared.at(shared.now_ns + wait_ns, Event::ReopenFile(number));
        }
    }
}

fn store(settings: &SeparateSettings, file: File) -> Store {
    let geometry = Geometry::new(settings.block_bytes, settings.block_count);
    Store::Blocks(Arc::new(FileStore::simulated(file, &geometry)))
}
