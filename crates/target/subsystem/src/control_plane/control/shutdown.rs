//! The end of the target: every association ends, then the reactors.

use std::sync::mpsc::Sender;

use super::outputs::Outputs;
use crate::messages::message::{Message, OrderAnswer, ReactorMessage};

/// Progress of the shutdown of the target.
///
/// ```text
/// None ──order──▶ Waiting ──all lanes have ended, or the grace is over──▶ Done
/// ```
pub(super) enum Shutdown {
    /// None was ordered.
    None,
    /// Lanes are ending, until this time at the latest, ns.
    Waiting { answers: Sender<OrderAnswer>, until_ns: u64 },
    /// Every reactor has been ordered to end.
    Done,
}

impl Shutdown {
    /// Whether the target was ordered to stop.
    pub(super) fn has_begun(&self) -> bool {
        !matches!(self, Self::None)
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    /// Stops the reactors if no lane is left.
    pub(super) fn on_lane_ended(&mut self, lanes_left: usize, outputs: &mut Outputs) {
        if lanes_left == 0 {
            self.finish(lanes_left, outputs);
        }
    }

    /// Stops the reactors when the grace is over, also with lanes left.
    pub(super) fn on_deadline(&mut self, now_ns: u64, lanes_left: usize, outputs: &mut Outputs) {
        match self {
            Self::Waiting { until_ns, .. } if *until_ns > now_ns => outputs.wake_at(*until_ns),
            _ => self.finish(lanes_left, outputs),
        }
    }

    fn finish(&mut self, lanes_left: usize, outputs: &mut Outputs) {
        let Self::Waiting { answers, .. } = self else { return };
        // The send fails if the operator has given up waiting.
        let _ = answers.send(OrderAnswer::Stopped { lanes_left });
        *self = Self::Done;
        outputs.post_to_all(|| Message::Reactor(ReactorMessage::Stop));
    }
}
