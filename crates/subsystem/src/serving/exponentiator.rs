//! Runs exponentiations beside the reactors: each takes milliseconds.

use std::sync::mpsc::{Sender, channel};

use reactor::{Address, Io};
use security::exponentiation::Exponentiation;

use crate::lane_id::LaneId;
use crate::message::{ControlMessage, Message};

/// Runs exponentiations, and posts their results to the control plane.
pub(crate) enum Exponentiator {
    /// At once, as a simulation has it.
    Inline,
    /// On a thread that starts with the first, which posts to this address.
    Worker(Address<Message>, Option<Sender<(LaneId, Exponentiation)>>),
}

impl Exponentiator {
    /// A worker that posts to the reactor of the control plane.
    pub(crate) fn worker(home: Address<Message>) -> Self {
        Self::Worker(home, None)
    }

    pub(crate) fn run(&mut self, io: &mut impl Io<Message>, lane: LaneId, exponentiation: Exponentiation) {
        match self {
            Self::Inline => io.post(0, done(lane, exponentiation)),
            Self::Worker(home, jobs) => {
                let jobs = match jobs {
                    Some(jobs) => jobs,
                    None => match start(home.clone()) {
                        Ok(started) => jobs.insert(started),
                        Err(error) => {
                            tracing::warn!(%error, "no thread for authentication: a reactor computes");
                            return io.post(0, done(lane, exponentiation));
                        }
                    },
                };
                // The worker ends with this.
                let _ = jobs.send((lane, exponentiation));
            }
        }
    }
}

/// Starts the worker. The control plane bounds the number of exponentiations that it has.
fn start(home: Address<Message>) -> std::io::Result<Sender<(LaneId, Exponentiation)>> {
    let (jobs, received) = channel();
    std::thread::Builder::new().name("authentication".into()).spawn(move || {
        reactor::block_signals();
        // Reactors come first, on each core. A thread that could not be moved or lowered still computes.
        let _ = reactor::spread_over_node();
        let _ = reactor::lower_priority();
        for (lane, exponentiation) in received {
            if !home.post(done(lane, exponentiation)) {
                return;
            }
        }
    })?;
    Ok(jobs)
}

fn done(lane: LaneId, exponentiation: Exponentiation) -> Message {
    Message::Control(ControlMessage::Exponentiated { lane, result: Box::new(exponentiation.run()) })
}
