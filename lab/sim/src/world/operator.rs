//! Actions of the operator while hosts are at work: sizes, identities, storage that comes and goes, who may connect,
//! and help for a disk that is stuck.

use std::sync::mpsc::channel;

use subsystem::message::{ControlMessage, Message, Order, OrderKind, Step};
use subsystem::subsystem::Access;
use wire::id::Nsid;
use wire::nqn::Nqn;

use super::{Stage, World};
use crate::host::{BARRED, SUBSYSTEM};
use crate::names;
use crate::scenario::{MS, SECOND, US};
use crate::shared::Event;

impl World {
    /// Orders something, and does not wait for the answer.
    pub(super) fn apply(&mut self, steps: Vec<Step>) {
        let (answers, _) = channel();
        self.post(
            0,
            Message::Control(ControlMessage::Order(Order { kind: OrderKind::Apply(steps), answers })),
        );
    }

    /// The operator helps with a disk that is stuck after a while.
    pub(super) fn rescue_later(&mut self) {
        if !std::mem::replace(&mut self.is_rescuing, true) {
            let wait_ns = self.shared.random.scaled(SECOND, 60 * SECOND);
            self.shared.at(self.shared.now_ns + wait_ns, Event::Rescue);
        }
    }

    /// The disk has been stuck for a while: the operator resets it, or starts the target again.
    pub(super) fn rescue(&mut self) {
        self.is_rescuing = false;
        if !self.shared.disk.is_stuck() {
            return;
        }
        if self.reactors.is_empty() || self.shared.random.one_in(3) {
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
        scenario.first_byte() + block_count * u64::from(scenario.block_bytes)
    }

    pub(super) fn shrink(&mut self, block_count: u64) {
        let full = self.shared.scenario.block_count;
        if self.block_count != full || block_count >= full || self.is_reopening || !self.machine.is_first() {
            return;
        }
        let bytes = self.bytes_of_first(block_count);
        self.shared.say(|| format!("the namespace shrinks to {block_count} blocks"));
        if let Err(error) = self.store.resize(bytes) {
            return self.shared.find(format!("cannot shrink: {error}"));
        }
        self.block_count = block_count;
        self.short_until_ns = Some(u64::MAX);
        self.shortest_block_count = self.shortest_block_count.min(block_count);
        self.next_command += 1;
        self.resize_command = self.next_command - 1;
        self.model.cut(block_count..full, self.resize_command, self.shared.now_ns);
        self.tell_resized();
        let wait_ns = self.shared.random.scaled(MS, 2 * SECOND);
        self.shared.at(self.shared.now_ns + wait_ns, Event::Grow(block_count));
    }

    pub(super) fn grow(&mut self, from: u64) {
        if !self.machine.is_first() {
            return self.shared.at(self.shared.now_ns + MS, Event::Grow(from));
        }
        let full = self.shared.scenario.block_count;
        self.shared.say(|| format!("the namespace grows to {full} blocks"));
        self.shared.disk.zero_from(from as usize);
        if let Err(error) = self.store.resize(self.bytes_of_first(full)) {
            return self.shared.find(format!("cannot grow: {error}"));
        }
        self.block_count = full;
        self.short_until_ns = Some(self.shared.now_ns);
        self.model.grow(from..full, self.resize_command, self.shared.now_ns);
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
        if self.reactors.is_empty() || !self.machine.is_first() {
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
        if !self.second_state.is_configured() || !self.machine.is_first() {
            return;
        }
        let away_ns = self.shared.random.scaled(US, SECOND);
        self.remove_second(away_ns, true);
        if !self.second_state.is_configured() {
            self.shared.say(|| "the second namespace will have another identity".into());
            self.second_name += 1;
        }
    }

    pub(super) fn remove_second(&mut self, away_ns: u64, returns: bool) {
        // Once it is settled which blocks are read in the end, they stay.
        let is_late = self.stage > Stage::Settle || !self.machine.is_first();
        if is_late || self.shared.scenario.second.is_none() || !self.second_state.is_configured() {
            return;
        }
        let now_ns = self.shared.now_ns;
        self.shared.say(|| "the second namespace is removed".into());
        self.second_state.on_removed(now_ns, returns);
        if self.reactors.is_empty() {
            self.second_state.on_target_down(now_ns);
        }
        self.reload();
        if returns {
            self.shared.at(now_ns + away_ns, Event::Return);
        }
    }

    pub(super) fn return_second(&mut self) {
        let now_ns = self.shared.now_ns;
        let away_since_ns = self.second_state.away_since_ns().filter(|_| self.machine.is_first());
        let Some(since_ns) = away_since_ns else {
            // A namespace that replaces another is added once the other is idle.
            return self.shared.at(now_ns + MS, Event::Return);
        };
        self.shared.say(|| "the second namespace is added again".into());
        self.second_state.on_returned();
        // RAM that is opened again is other RAM.
        self.cut_second(since_ns);
        self.regain_second();
        self.renew_filters();
        self.reload();
        let back_ns = self.shared.now_ns + self.shared.scenario.order_ns_max();
        self.second_state.on_back(back_ns);
    }

    /// The memory of the second namespace is lost.
    fn cut_second(&mut self, since_ns: u64) {
        self.next_command += 1;
        self.second_command = self.next_command - 1;
        let lbas = self.shared.scenario.block_count..self.shared.scenario.all_block_count();
        self.model.cut(lbas, self.second_command, since_ns);
    }

    /// The target ends, and its memory with it.
    pub(super) fn lose_second(&mut self) {
        if self.second_state.is_configured() && self.machine.is_first() {
            self.cut_second(self.shared.now_ns);
        }
    }

    /// The second namespace has new memory, which reads as zeroes.
    pub(super) fn regain_second(&mut self) {
        if self.second_state.is_configured() && self.machine.is_first() {
            let lbas = self.shared.scenario.block_count..self.shared.scenario.all_block_count();
            self.model.grow(lbas, self.second_command, self.shared.now_ns);
        }
    }

    /// Hosts get other rights to the second namespace.
    pub(super) fn change_rights(&mut self, which: u64, away_ns: u64) {
        if self.stage > Stage::Settle || !self.machine.is_first() {
            return;
        }
        let restored_ns = self.shared.now_ns + away_ns;
        self.rights.on_ordered(which, restored_ns);
        self.reload_rights();
        self.shared.at(restored_ns, Event::Restore);
    }

    /// Hosts get every right to the second namespace again.
    pub(super) fn restore_rights(&mut self) {
        if !self.machine.is_first() {
            return self.shared.at(self.shared.now_ns + MS, Event::Restore);
        }
        if self.rights.on_restored(self.shared.now_ns) {
            self.reload_rights();
        }
    }

    fn reload_rights(&mut self) {
        self.shared
            .say(|| format!("hosts have these rights to the second namespace: {:?}", self.rights.present()));
        self.reload();
        self.rights.on_settled(self.shared.now_ns + self.shared.scenario.order_ns_max());
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
        if self.stage > Stage::Settle {
            return;
        }
        self.offer.change(step_count);
        self.reload_offer();
    }

    /// Makes the target show the present offer in its discovery logs.
    fn reload_offer(&mut self) {
        let (number, start_count) = (self.offer.on_ordered(), self.target_count);
        self.reload();
        if start_count == self.target_count && !self.reactors.is_empty() {
            self.offer.on_applied(number, self.shared.now_ns);
        }
    }

    pub(super) fn bar(&mut self, away_ns: u64) {
        let now_ns = self.shared.now_ns;
        if self.stage > Stage::Settle || self.shared.barred_since_ns.is_some() {
            return;
        }
        self.shared.barred_since_ns = Some(now_ns);
        self.set_access();
        if self.shared.barred_since_ns == Some(now_ns) && !self.reactors.is_empty() {
            self.await_end_of_barred(BARRED);
        }
        self.shared.at(now_ns + away_ns, Event::Admit);
    }
}
