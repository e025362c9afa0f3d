//! Guaranteed rates: commands without one stand back while those with one are served below theirs.
//!
//! Each reactor watches the time in which a party with a guarantee has commands, and how many of them end. Below the
//! guaranteed rate it raises the pressure, which all reactors share: each then has fewer commands of others under way at
//! a time. Without another raise the pressure falls again, a step each 2 s.

use std::sync::Arc;

use crate::objects::rate_limit::Pressure;

/// How often the rates are compared, ns.
const PERIOD_NS: u64 = 10_000_000;

/// Parties are judged that had commands for this long in a period, ns.
const BUSY_MIN_NS: u64 = 1_000_000;

/// How long pressure stays without another raise, ns.
const HOLD_NS: u64 = 2_000_000_000;

/// Which share of a reactor a command belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Share {
    /// There are no guarantees.
    #[default]
    Free,
    /// The rest: it stands back.
    Rest,
    /// The party of this number.
    Party(u16),
}

/// Commands under way, by share.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    /// Commands of the rest.
    pub(crate) rest: u32,
    pub(crate) parties: Vec<Flow>,
}

/// The commands of one party.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flow {
    pub(crate) outstanding: u32,
    /// Commands that have ended in this turn.
    pub(crate) ended: u32,
}

impl Flows {
    /// A command begins to run.
    pub(crate) fn on_begun(&mut self, share: Share) {
        match share {
            Share::Free => {}
            Share::Rest => self.rest = self.rest.saturating_add(1),
            Share::Party(number) => {
                if let Some(flow) = self.parties.get_mut(usize::from(number)) {
                    flow.outstanding = flow.outstanding.saturating_add(1);
                }
            }
        }
    }

    /// A command that ran has ended.
    pub(crate) fn on_ended(&mut self, share: Share) {
        match share {
            Share::Free => {}
            Share::Rest => self.rest = self.rest.saturating_sub(1),
            Share::Party(number) => {
                if let Some(flow) = self.parties.get_mut(usize::from(number)) {
                    flow.outstanding = flow.outstanding.saturating_sub(1);
                    flow.ended = flow.ended.saturating_add(1);
                }
            }
        }
    }
}

/// How many commands of the rest a reactor has under way at a time.
#[derive(Debug)]
pub(super) struct Window {
    pressure: Arc<Pressure>,
    /// Commands of the rest that run, and those that ended as they began in this turn.
    in_flight: u32,
    begun: u32,
    parties: Vec<Party>,
    /// The end of the turn before, and of the period, ns.
    turn_end_ns: u64,
    period_end_ns: u64,
}

/// A party with a guaranteed rate, in this period.
#[derive(Clone, Copy, Debug)]
struct Party {
    min_iops: u64,
    served: u64,
    /// Time in which it had commands, ns.
    busy_ns: u64,
    was_outstanding: bool,
}

impl Window {
    pub(super) fn new(pressure: Arc<Pressure>, min_iops: &[u64]) -> Self {
        let party =
            |min_iops: &u64| Party { min_iops: *min_iops, served: 0, busy_ns: 0, was_outstanding: false };
        let parties = min_iops.iter().map(party).collect();
        Self { pressure, in_flight: 0, begun: 0, parties, turn_end_ns: 0, period_end_ns: 0 }
    }

    /// Takes a place for a command of the rest, if there is one.
    pub(super) fn take(&mut self) -> bool {
        let is_free = self.in_flight.saturating_add(self.begun) < self.pressure.window();
        self.begun = self.begun.saturating_add(is_free.into());
        is_free
    }

    /// Commands of the rest that run.
    pub(super) fn set_in_flight(&mut self, count: u32) {
        self.in_flight = count;
    }

    /// A command that had a place did not end as it began: it is among those that run.
    pub(super) fn on_started(&mut self) {
        self.begun = self.begun.saturating_sub(1);
        self.in_flight = self.in_flight.saturating_add(1);
    }

    /// A turn that began at `turn_ns` ends: compares the rates if it is time.
    pub(super) fn end_turn(&mut self, turn_ns: u64, now_ns: u64, flows: &mut Flows) {
        (self.in_flight, self.begun) = (flows.rest, 0);
        for (party, flow) in self.parties.iter_mut().zip(&mut flows.parties) {
            let ended = std::mem::take(&mut flow.ended);
            if ended > 0 || flow.outstanding > 0 {
                // What arrived while the reactor slept has not waited before the turn.
                let since_ns = if party.was_outstanding { self.turn_end_ns } else { turn_ns };
                party.busy_ns = party.busy_ns.saturating_add(now_ns.saturating_sub(since_ns));
                party.served = party.served.saturating_add(ended.into());
            }
            party.was_outstanding = flow.outstanding > 0;
        }
        self.turn_end_ns = now_ns;
        if now_ns >= self.period_end_ns {
            self.period_end_ns = now_ns.saturating_add(PERIOD_NS);
            self.judge(now_ns);
        }
    }

    fn judge(&mut self, now_ns: u64) {
        let mut shortfall = 0;
        for party in &mut self.parties {
            let (served, busy_ns) = (party.served, party.busy_ns);
            if busy_ns < BUSY_MIN_NS {
                continue;
            }
            (party.served, party.busy_ns) = (0, 0);
            let due = u128::from(party.min_iops).saturating_mul(busy_ns.into()) / 1_000_000_000;
            if u128::from(served) < due {
                let is_far = u128::from(served).saturating_mul(2) < due;
                shortfall = shortfall.max(if is_far { 2 } else { 1 });
            }
        }
        match shortfall {
            0 => self.pressure.relax(now_ns, HOLD_NS),
            steps => self.pressure.raise(now_ns, steps, PERIOD_NS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Turns of a reactor that has a command of the party in each, and as many of the rest as have a place. Returns the
    /// turns, and the commands of the rest.
    fn run(window: &mut Window, flows: &mut Flows, from_ns: u64, time_ns: u64) -> (u64, u64) {
        let (mut now_ns, mut turns, mut rest) = (from_ns, 0, 0);
        while now_ns < from_ns + time_ns {
            let turn_ns = now_ns;
            let mut count = 0;
            while count < 64 && window.take() {
                count += 1;
            }
            now_ns += 10_000 + count * 5_000;
            flows.on_begun(Share::Party(0));
            flows.on_ended(Share::Party(0));
            window.end_turn(turn_ns, now_ns, flows);
            (turns, rest) = (turns + 1, rest + count);
        }
        (turns, rest)
    }

    #[test]
    fn others_stand_back_until_the_guaranteed_rate_is_served() {
        let pressure = Arc::<Pressure>::default();
        let mut window = Window::new(Arc::clone(&pressure), &[20_000]);
        let mut flows = Flows { rest: 0, parties: vec![Flow::default()] };
        let (turns, rest) = run(&mut window, &mut flows, 0, 20 * MS);
        assert!(rest / turns > 20, "{rest} in {turns}: nobody stands back at first");
        run(&mut window, &mut flows, 20 * MS, 100 * MS);
        let (turns, rest) = run(&mut window, &mut flows, 120 * MS, 100 * MS);
        assert!(turns >= 2000, "20,000 per s, in 0.1 s: {turns}");
        assert!(rest >= turns, "the rest goes on: {rest} beside {turns}");
    }

    #[test]
    fn pressure_falls_again_and_no_party_raises_it_alone() {
        let pressure = Arc::<Pressure>::default();
        let mut window = Window::new(Arc::clone(&pressure), &[20_000]);
        let mut flows = Flows { rest: 0, parties: vec![Flow::default()] };
        run(&mut window, &mut flows, 0, 200 * MS);
        assert!(pressure.window() < 64);
        for turn in 1..2000 {
            window.end_turn(turn * 20 * MS, turn * 20 * MS + 10_000, &mut flows);
        }
        assert_eq!(pressure.window(), u32::MAX, "without commands it has no shortfall");
        // One that is slow by itself, below its guarantee by no fault of others, leaves them a place.
        for turn in 2001..3000 {
            flows.on_begun(Share::Party(0));
            flows.on_ended(Share::Party(0));
            window.end_turn(turn * 20 * MS, turn * 20 * MS + 5 * MS, &mut flows);
        }
        assert_eq!(pressure.window(), 1);
        assert!(window.take() && !window.take());
    }
}
