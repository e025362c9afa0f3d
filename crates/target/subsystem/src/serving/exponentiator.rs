//! Runs exponentiations beside the reactors: each takes milliseconds.

use std::sync::mpsc::{Sender, channel};

use reactor::{Address, Io};
use security::exponentiation::Exponentiation;

use crate::messages::message::{ControlMessage, Message};
use crate::names::lane_id::LaneId;

/// A computation.
pub(crate) enum Job {
    /// For the authentication of a lane.
    OfLane(LaneId, Exponentiation),
    /// A key pair in advance.
    KeyPair(Exponentiation),
}

/// Runs exponentiations, and posts their results to the control plane.
pub(crate) enum Exponentiator {
    /// At once, in a simulation.
    Inline,
    /// On a thread that starts with the first, which posts to this address.
    Worker(Address<Message>, Option<Sender<Job>>),
}

impl Exponentiator {
    /// A worker that posts to the reactor of the control plane.
    pub(crate) fn worker(home: Address<Message>) -> Self {
        Self::Worker(home, None)
    }

    /// Whether it computes in advance; otherwise computing would delay needed exponentiations.
    pub(crate) const fn works_ahead(&self) -> bool {
        matches!(self, Self::Worker(_, Some(_)))
    }

    pub(crate) fn run(&mut self, io: &mut impl Io<Message>, job: Job) {
        match self {
            Self::Inline => io.post(0, done(job)),
            Self::Worker(home, jobs) => {
                let jobs = match jobs {
                    Some(jobs) => jobs,
                    None => match start(home.clone()) {
                        Ok(started) => jobs.insert(started),
                        Err(error) => {
                            tracing::warn!(%error, "cannot start the authentication thread; computing on the reactor");
                            return io.post(0, done(job));
                        }
                    },
                };
                // The worker lives until this sender is dropped.
                let _ = jobs.send(job);
            }
        }
    }
}

/// Starts the worker. The control plane bounds the number of exponentiations that it has.
fn start(home: Address<Message>) -> std::io::Result<Sender<Job>> {
    let (jobs, received) = channel();
    std::thread::Builder::new().name("authentication".into()).spawn(move || {
        linux::block_signals();
        // Reactors come first, on each core. A thread that could not be moved or lowered still computes.
        let _ = linux::spread_over_node();
        let _ = linux::lower_priority();
        for job in received {
            if !home.post(done(job)) {
                return;
            }
        }
    })?;
    Ok(jobs)
}

fn done(job: Job) -> Message {
    Message::Control(match job {
        Job::OfLane(lane, exponentiation) => {
            ControlMessage::Exponentiated { lane, result: Box::new(exponentiation.run()) }
        }
        Job::KeyPair(exponentiation) => ControlMessage::KeyPair(Box::new(exponentiation.run())),
    })
}
