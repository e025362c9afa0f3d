//! Actions of the operator while hosts are at work: sizes, identities, storage that comes and goes, who may connect,
//! and help for a disk that is stuck.

use std::sync::mpsc::{Receiver, TryRecvError, channel};

use subsystem::limits::Limits;
use subsystem::message::{ControlMessage, Message, Order, OrderAnswer, OrderKind, Step};
use subsystem::operator::Operator;
use subsystem::subsystem::Access;
use wire::id::Nsid;
use wire::nqn::Nqn;

use super::{Stage, World};
use crate::host::{BARRED, SUBSYSTEM};
use crate::names;
use crate::scenario::{MS, SECOND, US};
use crate::shared::Event;

/// State of the operator: its thread, its configuration, and whether a rescue or a restart is due.
pub(super) struct OperatorState {
    /// `None` while it waits for the target.
    pub(super) thread: Option<Operator>,
    /// Where the target reports that it has released the second namespace.
    pub(super) releases: Vec<Receiver<OrderAnswer>>,
    /// Limits in the configuration.
    pub(super) limits: Limits,
    /// Blocks of the namespace that only reloads know.
    pub(super) third: Option<u64>,
    /// A rescue of a hung disk is due.
    is_rescuing: bool,
    /// The target is to be started again, since its log has failed.
    pub(super) is_restarting: bool,
}

impl OperatorState {
    pub(super) fn new(limits: Limits) -> Self {
        let (thread, releases, third) = (None, Vec::new(), None);
        Self { thread, releases, limits, third, is_rescuing: false, is_restarting: false }
    }

    /// Whether a rescue or a restart is due.
    pub(super) fn is_to_help(&self) -> bool {
        self.is_rescuing || self.is_restarting
    }

    /// Whether the target has reported since that it has released the second namespace.
    pub(super) fn poll_releases(&mut self) -> bool {
        let mut has_released = false;
        self.releases.retain(|received| match received.try_recv() {
            Ok(OrderAnswer::Released(_)) => {
                has_released = true;
                false
            }
            Ok(_) | Err(TryRecvError::Empty) => true,
            Err(TryRecvError::Disconnected) => false,
        });
        has_released
    }
}

impl World {
    /// Orders something, and does not wait for the answer.
    pub(super) fn apply(&mut self, steps: Vec<Step>) {
        let (answers, _) = channel();
        self.target.post(
            &mut self.shared,
            0,
            Message::Control(ControlMessage::Order(Order { kind: OrderKind::Apply(steps), answers })),
        );
    }

    /// The operator helps with a disk that is stuck after a while.
    pub(super) fn rescue_later(&mut self) {
        if !std::mem::replace(&mut self.operator.is_rescuing, true) {
            let wait_ns = self.shared.random.scaled(SECOND, 60 * SECOND);
            self.shared.at(self.shared.now_ns + wait_ns, Event::Rescue);
        }
    }

    /// The disk has been stuck for a while: the operator resets it, or starts the target again.
    pub(super) fn rescue(&mut self) {
        self.operator.is_rescuing = false;
        if !self.shared.disk.is_stuck() {
            return;
        }
        if !self.target.is_up() || self.shared.random.one_in(3) {
            self.shared.say(|| "the disk is reset".into());
            return self.shared.on_device_reset();
        }
        let down_ns = self.shared.random.scaled(MS, SECOND);
        let is_power_cut = self.shared.random.one_in(2);
        self.kill_target(is_power_cut, down_ns);
    }

    /// Bytes of the first namespace that ends with this number of blocks of the model.
    fn bytes_of_first(&self, block_count: u64) -> u64 {
        let scenario = &self.shared.scenario;
        scenario.first_byte() + block_count * u64::from(scenario.first.block_bytes)
    }

    pub(super) fn shrink(&mut self, block_count: u64) {
        let full = self.shared.scenario.first.block_count;
        if self.first.block_count != full
            || block_count >= full
            || self.first.is_reopening
            || !self.target.machine.is_first()
        {
            return;
        }
        let bytes = self.bytes_of_first(block_count);
        self.shared.say(|| format!("the namespace shrinks to {block_count} blocks"));
        if let Err(error) = self.first.store.resize(bytes) {
            return self.shared.find(format!("cannot shrink: {error}"));
        }
        self.first.on_shrunk(block_count, self.commands.take_number());
        self.model.cut(block_count..full, self.first.resize_command, self.shared.now_ns);
        self.tell_resized();
        let wait_ns = self.shared.random.scaled(MS, 2 * SECOND);
        self.shared.at(self.shared.now_ns + wait_ns, Event::Grow(block_count));
    }

    pub(super) fn grow(&mut self, from: u64) {
        if !self.target.machine.is_first() {
            return self.shared.at(self.shared.now_ns + MS, Event::Grow(from));
        }
        let full = self.shared.scenario.first.block_count;
        self.shared.say(|| format!("the namespace grows to {full} blocks"));
        self.shared.disk.zero_from(from as usize);
        if let Err(error) = self.first.store.resize(self.bytes_of_first(full)) {
            return self.shared.find(format!("cannot grow: {error}"));
        }
        self.first.on_grown(full, self.shared.now_ns);
        self.model.grow(from..full, self.first.resize_command, self.shared.now_ns);
        self.tell_resized();
    }

    fn tell_resized(&mut self) {
        let step = Step::StorageChanged {
            subsystem: SUBSYSTEM.parse().expect("a name"),
            nsid: Nsid::new(1),
            storage: Some("simulated".into()),
        };
        self.apply(vec![step]);
    }

    /// The operator's watch over storage sees that little space is left.
    pub(super) fn warn_of_space(&mut self) {
        if !self.target.is_up() || !self.target.machine.is_first() {
            return;
        }
        self.apply(vec![Step::SpaceLow {
            subsystem: SUBSYSTEM.parse().expect("a name"),
            nsid: Nsid::new(1),
        }]);
        if let Some(leaver) = &mut self.leaver {
            leaver.on_space_low(self.shared.now_ns);
        }
    }

    /// Other storage takes the number of the second namespace.
    pub(super) fn rename_second(&mut self) {
        if !self.second.presence.is_configured() || !self.target.machine.is_first() {
            return;
        }
        let away_ns = self.shared.random.scaled(US, SECOND);
        self.remove_second(away_ns, true);
        if !self.second.presence.is_configured() {
            self.shared.say(|| "the second namespace will have another identity".into());
            self.second.name += 1;
        }
    }

    pub(super) fn remove_second(&mut self, away_ns: u64, returns: bool) {
        // Once it is settled which blocks are read in the end, they stay.
        let is_late = self.progress.stage > Stage::Settle || !self.target.machine.is_first();
        if is_late || self.shared.scenario.second.spec.is_none() || !self.second.presence.is_configured() {
            return;
        }
        let now_ns = self.shared.now_ns;
        self.shared.say(|| "the second namespace is removed".into());
        self.second.presence.on_removed(now_ns, returns);
        if !self.target.is_up() {
            self.second.presence.on_target_down(now_ns);
        }
        self.reload();
        if returns {
            self.shared.at(now_ns + away_ns, Event::Return);
        }
    }

    pub(super) fn return_second(&mut self) {
        let now_ns = self.shared.now_ns;
        let away_since_ns = self.second.presence.away_since_ns().filter(|_| self.target.machine.is_first());
        let Some(since_ns) = away_since_ns else {
            // A namespace that replaces another is added once the other is idle.
            return self.shared.at(now_ns + MS, Event::Return);
        };
        self.shared.say(|| "the second namespace is added again".into());
        self.second.presence.on_returned();
        // RAM that is opened again is other RAM.
        self.cut_second(since_ns);
        self.regain_second();
        self.second.filters.renew(&self.shared.network);
        self.reload();
        let back_ns = self.shared.now_ns + self.shared.scenario.order_ns_max();
        self.second.presence.on_back(back_ns);
    }

    /// The memory of the second namespace is lost.
    fn cut_second(&mut self, since_ns: u64) {
        self.second.cut_command = self.commands.take_number();
        let lbas = self.shared.scenario.first.block_count..self.shared.scenario.all_block_count();
        self.model.cut(lbas, self.second.cut_command, since_ns);
    }

    /// The target ends, and its memory with it.
    pub(super) fn lose_second(&mut self) {
        if self.second.presence.is_configured() && self.target.machine.is_first() {
            self.cut_second(self.shared.now_ns);
        }
    }

    /// The second namespace has new memory, which reads as zeroes.
    pub(super) fn regain_second(&mut self) {
        if self.second.presence.is_configured() && self.target.machine.is_first() {
            let lbas = self.shared.scenario.first.block_count..self.shared.scenario.all_block_count();
            self.model.grow(lbas, self.second.cut_command, self.shared.now_ns);
        }
    }

    /// Hosts get other rights to the second namespace.
    pub(super) fn change_rights(&mut self, which: u64, away_ns: u64) {
        if self.progress.stage > Stage::Settle || !self.target.machine.is_first() {
            return;
        }
        let restored_ns = self.shared.now_ns + away_ns;
        self.second.rights.on_ordered(which, restored_ns);
        self.reload_rights();
        self.shared.at(restored_ns, Event::Restore);
    }

    /// Hosts get every right to the second namespace again.
    pub(super) fn restore_rights(&mut self) {
        if !self.target.machine.is_first() {
            return self.shared.at(self.shared.now_ns + MS, Event::Restore);
        }
        if self.second.rights.on_restored(self.shared.now_ns) {
            self.reload_rights();
        }
    }

    fn reload_rights(&mut self) {
        self.shared.say(|| {
            format!("hosts have these rights to the second namespace: {:?}", self.second.rights.present())
        });
        self.reload();
        self.second.rights.on_settled(self.shared.now_ns + self.shared.scenario.order_ns_max());
    }

    /// Who may connect.
    pub(super) fn access(&self) -> Access {
        match self.shared.barred_since_ns {
            None => Access::Any,
            Some(_) => {
                let others = (0..self.hosts.len()).filter(|index| *index != BARRED);
                Access::Only(others.map(|index| names::name(index).into()).collect())
            }
        }
    }

    pub(super) fn set_access(&mut self) {
        let access = self.access();
        self.shared.say(|| format!("{access:?} may connect"));
        let nqn: Nqn = SUBSYSTEM.parse().expect("a name");
        self.offer.set_access(&nqn, access);
        self.reload_offer();
    }

    /// The operator changes the offer.
    pub(super) fn change_offer(&mut self, step_count: u8) {
        if self.progress.stage > Stage::Settle {
            return;
        }
        self.offer.change(step_count);
        self.reload_offer();
    }

    /// Makes the target show the present offer in its discovery logs.
    fn reload_offer(&mut self) {
        let (number, start_count) = (self.offer.on_ordered(), self.target.start_count);
        self.reload();
        if start_count == self.target.start_count && self.target.is_up() {
            self.offer.on_applied(number, self.shared.now_ns);
        }
    }

    pub(super) fn bar(&mut self, away_ns: u64) {
        let now_ns = self.shared.now_ns;
        if self.progress.stage > Stage::Settle || self.shared.barred_since_ns.is_some() {
            return;
        }
        self.shared.barred_since_ns = Some(now_ns);
        self.set_access();
        if self.shared.barred_since_ns == Some(now_ns) && self.target.is_up() {
            self.await_end_of_barred(BARRED);
        }
        self.shared.at(now_ns + away_ns, Event::Admit);
    }
}
