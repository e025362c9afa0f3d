//! Results of a flood, and their limits.

use std::time::Duration;

use serde_json::Value;

use super::RETURN_LIMIT;
use super::healthy::{BURST, DEPTH, Health, PERIOD};

/// Maximum memory above idle.
const MEMORY_LIMIT_BYTES: u64 = 256 << 20;

/// Minimum share of its IOPS that a healthy host keeps, and maximum factor of its p99.
const KEPT_MIN: f64 = 0.8;
const SLOWER_MAX: f64 = 3.0;

/// Minimum share of IOPS even on a busy machine.
const STANDSTILL: f64 = 0.05;

/// Results of a healthy host during a flood, and the attack rates.
#[derive(Clone, Debug, Default)]
pub(super) struct Beside {
    /// While the held connections were opened.
    pub(super) arriving: Health,
    /// While all held connections were open.
    pub(super) paced: Health,
    pub(super) closed: Health,
    /// Connections that were opened to be held.
    pub(super) held: usize,
    /// Repeated operations, per second.
    pub(super) floods: Vec<String>,
}

/// Results of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct FloodReport {
    /// Core assignment, if there was one.
    pub(super) placement: Option<String>,
    pub(super) quiet: Health,
    pub(super) quiet_closed: Health,
    /// Results during the flood of the decoy, if there was one.
    pub(super) decoy: Option<Beside>,
    /// Results during the flood of the healthy host's own target.
    pub(super) target: Beside,
    /// Time from the end of the flood until all resources were released.
    pub(super) returning: Health,
    /// Memory of the target, idle and peak, bytes.
    pub(super) idle_bytes: u64,
    pub(super) peak_bytes: u64,
    /// Kernel memory of all sockets of this machine.
    pub(super) socket_bytes: u64,
    /// Peak number of connections of the target, and the time until all were closed.
    pub(super) peak_connections: usize,
    pub(super) returned: Option<Duration>,
    /// Lines of the target's state about its buffers and about connections that it refused or closed.
    pub(super) left: usize,
    /// Log lines of the target about its buffers and about connections that it refused or closed.
    pub(super) state: Vec<String>,
}

impl FloodReport {
    /// Adds lines about buffers and closed connections from the target's state.
    pub(super) fn tell_state(&mut self, state: Option<Value>) {
        let Some(state) = state else { return };
        let mib = |value: &Value| value.as_u64().unwrap_or(0) >> 20;
        for reactor in state["reactors"].as_array().into_iter().flatten() {
            let buffers = &reactor["buffers"];
            self.state.push(format!(
                "reactor {}: {} of {} MiB of buffers free at least, {} now; {} commands waited, {} lanes held back",
                reactor["reactor"],
                mib(&buffers["free_bytes_min"]),
                mib(&buffers["bytes"]),
                mib(&buffers["free_bytes"]),
                buffers["waited_count"],
                buffers["held_back_count"]
            ));
        }
        let complaints = state["connections"]["complaints"].as_object();
        let complaints = complaints.into_iter().flatten();
        self.state.extend(complaints.map(|(reason, count)| format!("{count} connections: {reason}")));
    }

    /// Peak memory above idle, bytes.
    fn over_idle_bytes(&self) -> u64 {
        self.peak_bytes.saturating_sub(self.idle_bytes)
    }

    /// The figures, as lines.
    pub(crate) fn print(&self, engine: &str) {
        let mib = |bytes: u64| bytes >> 20;
        println!("flood ({engine}): {} connections of the target at most", self.peak_connections);
        if let Some(placement) = &self.placement {
            println!("  {placement}");
        }
        for (name, beside) in self.floods() {
            let floods = beside.floods.join(", ");
            println!("  of the {name}: {} connections held; over and over, a second: {floods}", beside.held);
        }
        println!(
            "  memory: {} MiB idle, {} MiB at most; sockets of the machine: {} MiB",
            mib(self.idle_bytes),
            mib(self.peak_bytes),
            mib(self.socket_bytes)
        );
        println!("  healthy host, {BURST} reads due every {} us:", PERIOD.as_micros());
        self.quiet.print("quiet");
        for (name, Beside { arriving, paced, .. }) in self.floods() {
            arriving.print(&format!("{name}'s flood arrives"));
            paced.print(&format!("{name} flooded"));
        }
        self.returning.print("everything returns");
        println!(
            "  healthy host, {DEPTH} reads outstanding, on a core that it shares with the attackers as one of them:"
        );
        self.quiet_closed.print("quiet");
        for (name, Beside { closed, .. }) in self.floods() {
            closed.print(&format!("{name} flooded"));
        }
        match self.returned {
            Some(after) => println!("  everything returned after {:.1} s", after.as_secs_f64()),
            None => println!("  after {RETURN_LIMIT:?} {} connections were left", self.left),
        }
        for line in &self.state {
            println!("  {line}");
        }
    }

    /// Both floods, if there were two.
    fn floods(&self) -> impl Iterator<Item = (&'static str, &Beside)> {
        self.decoy.iter().map(|beside| ("decoy", beside)).chain([("target", &self.target)])
    }

    /// Violated limits. Timings count only if `is_timed`.
    pub(crate) fn failures(&self, is_timed: bool) -> Vec<String> {
        // The baseline during the decoy's flood has every disturbance but the load on the healthy host's own target.
        let (before, before_closed) = match &self.decoy {
            Some(beside) => (&beside.paced, &beside.closed),
            None => (&self.quiet, &self.quiet_closed),
        };
        let Beside { paced, closed, .. } = &self.target;
        let kept = paced.iops / before.iops;
        let slower = paced.p99_us / before.p99_us;
        let kept_closed = closed.iops_of_ran() / before_closed.iops_of_ran();
        let bars = [
            (
                self.over_idle_bytes() > MEMORY_LIMIT_BYTES,
                format!("{} MiB over idle", self.over_idle_bytes() >> 20),
            ),
            (self.returned.is_none(), format!("not everything returned in {RETURN_LIMIT:?}")),
            (kept < STANDSTILL, format!("the healthy host stood still: {:.1} % of its IOPS", kept * 100.0)),
            (is_timed && kept < KEPT_MIN, format!("the healthy host kept {:.0} % of its IOPS", kept * 100.0)),
            (is_timed && slower > SLOWER_MAX, format!("its p99 became {slower:.1} times as long")),
            (
                is_timed && kept_closed < KEPT_MIN,
                format!("while it ran it kept {:.0} % of its IOPS in a closed loop", kept_closed * 100.0),
            ),
        ];
        bars.into_iter().filter_map(|(is_missed, what)| is_missed.then_some(what)).collect()
    }
}

impl Health {
    fn print(&self, name: &str) {
        println!(
            "    {name:<23} {:.0} IOPS, p99 {:.0} us, longest {:.0} us; ran {:.0} % of the time, {:.0} IOPS of that",
            self.iops,
            self.p99_us,
            self.longest_us,
            self.ran_share * 100.0,
            self.iops_of_ran()
        );
    }
}
