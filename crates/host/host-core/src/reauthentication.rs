//! Authentication of a queue that is repeated at an interval, while other commands are outstanding on it. wire §22.1
//!
//! Only queues that were authenticated when they connected authenticate again: a controller that has not asked for it
//! then may not support it. The earlier authentication stays valid meanwhile. If the controller refuses the repetition, the
//! host reports that, and tries again after the interval, as Linux hosts do: the controller decides whether the queue
//! stays (nvlane, SPDK) or the association ends (Linux 6.12), which then is a lost one like any other. A controller whose
//! own proof is wrong is not trusted any longer: its connection is closed.

use std::time::Duration;

#[cfg(feature = "authentication")]
use security::host::HostFailure;

use crate::duration::ns;
use crate::link_error::LinkError;

/// When a queue is to authenticate again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reauthentication {
    /// `None` for never.
    interval_ns: Option<u64>,
    /// `u64::MAX` for never.
    due_ns: u64,
}

impl Reauthentication {
    /// A queue that is not connected.
    pub(crate) fn new(interval: Option<Duration>) -> Self {
        Self { interval_ns: interval.map(ns), due_ns: u64::MAX }
    }

    /// An authentication has ended.
    pub(crate) fn on_ended(&mut self, now_ns: u64) {
        self.due_ns = self.interval_ns.map_or(u64::MAX, |interval_ns| now_ns.saturating_add(interval_ns));
    }

    /// The connection is lost, or an authentication begins.
    pub(crate) fn stop(&mut self) {
        self.due_ns = u64::MAX;
    }

    /// When the next authentication begins, ns; `u64::MAX` for never.
    pub(crate) fn due_ns(self) -> u64 {
        self.due_ns
    }
}

/// Whether a repeated authentication that failed so ends the connection.
pub(crate) fn ends_connection(cause: &LinkError) -> bool {
    match cause {
        #[cfg(feature = "authentication")]
        LinkError::Authentication(failure) => matches!(failure, HostFailure::Refuses(_)),
        // The status of a command.
        LinkError::Controller(_) => false,
        _ => true,
    }
}

#[cfg(all(test, feature = "authentication"))]
mod tests {
    use proto::host_controller::ControllerError;
    use security::message::Reason;
    use wire::status::Status;

    use super::*;

    #[test]
    fn it_is_due_an_interval_after_the_last_one() {
        let mut timer = Reauthentication::new(Some(Duration::from_secs(2)));
        assert_eq!(timer.due_ns(), u64::MAX);
        timer.on_ended(5);
        assert_eq!(timer.due_ns(), 2_000_000_005);
        timer.stop();
        assert_eq!(timer.due_ns(), u64::MAX);
        let mut never = Reauthentication::new(None);
        never.on_ended(5);
        assert_eq!(never.due_ns(), u64::MAX);
    }

    #[test]
    fn only_a_controller_that_fails_loses_its_connection() {
        let refused = LinkError::Authentication(HostFailure::Refused(Reason::Failed));
        let refuses = LinkError::Authentication(HostFailure::Refuses(Reason::Failed));
        let status =
            ControllerError::Refused { command: "Authentication Send", status: Status::INVALID_FIELD };
        assert!(!ends_connection(&refused) && !ends_connection(&status.into()));
        assert!(ends_connection(&refuses) && ends_connection(&LinkError::Association));
    }
}
