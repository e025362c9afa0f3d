//! Bugs where the kernel refuses a call for a while.

use super::bug::{Bug, Judge, Site, unit_test};

const EPOLL: &str = "crates/system/reactor/src/epoll.rs";
const REACTOR_IO: &str = "crates/system/reactor/src/reactor_io.rs";

const CONNECTIONS: Judge =
    unit_test("nvlane-reactor", "refusal_tests::a_connection_that_cannot_be_watched_for_now_is_served_later");
const LISTENERS: Judge =
    unit_test("nvlane-reactor", "refusal_tests::a_listener_that_cannot_be_watched_for_now_accepts_later");
const INTERRUPTIONS: Judge =
    unit_test("nvlane-reactor", "socket::tests::what_interrupts_a_receive_or_an_accept_is_passed_over");

/// Refused calls: a connection that could be kept is kept.
pub(super) const REFUSED_CALLS: &[Bug] = &[
    // A socket counts as watched that the kernel has refused.
    Bug {
        name: "refused-socket-counts-as-watched",
        judge: CONNECTIONS,
        sites: &[Site(
            EPOLL,
            "            self.watched.remove(&key);\n        })",
            "            let _ = !BUG && self.watched.remove(&key);\n        })",
        )],
    },
    Bug {
        name: "refused-socket-forgotten",
        judge: CONNECTIONS,
        sites: &[Site(
            REACTOR_IO,
            "            self.unwatched.insert((id, interest));",
            "            let _ = !BUG && self.unwatched.insert((id, interest));",
        )],
    },
    Bug {
        name: "refused-listener-forgotten",
        judge: LISTENERS,
        sites: &[Site(
            REACTOR_IO,
            "        if let Err(error) = self.engine.arm_listener(id.key(), listener.as_fd()) {\n            self.paused_listeners",
            "        if let Err(error) = self.engine.arm_listener(id.key(), listener.as_fd()) {\n            if BUG { return; }\n            self.paused_listeners",
        )],
    },
    // What has arrived is read once more arrives.
    Bug {
        name: "interrupted-receive-taken-for-dry",
        judge: INTERRUPTIONS,
        sites: &[Site(
            "crates/system/reactor/src/socket.rs",
            "            Err(Errno::INTR) => continue,\n            Err(errno) => Received",
            "            Err(Errno::INTR) if !BUG => continue,\n            Err(Errno::INTR) => Received::Dry,\n            Err(errno) => Received",
        )],
    },
];
