//! A correct target without sockets or storage for machines of the host.

use peer::controller::Controller;
use peer::session::Event;
use peer::stage::{Setup, Stage};
use peer::target_end::{Limits, Reply, TargetEnd};
use proto::host_controller::ControllerSettings;
use wire::sqe::Sqe;

/// The target's end of one connection.
pub(crate) struct Target {
    pub(crate) end: TargetEnd,
    controller: Controller,
    stage: Stage,
}

impl Target {
    /// A target with two small namespaces and one controller, whose I/O queues may connect.
    pub(crate) fn new() -> Self {
        let subsystem = controller_settings().subsystem;
        let namespaces = vec![1024; 2];
        let setup = Setup { subsystem, lba_bytes: 512, namespaces, ..Setup::default() };
        let stage = Stage::new(([192, 0, 2, 1], 4420).into(), setup);
        stage.state().controllers.insert(1);
        Self { end: TargetEnd::new(Limits::default()), controller: Controller::default(), stage }
    }

    /// The next event of a host that must keep the rules.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.end.next_event().expect("a host that keeps the rules")
    }

    /// Answers an event.
    pub(crate) fn serve(&mut self, event: &Event) {
        self.controller.serve(&self.stage, &mut self.end, event).expect("a host that keeps the rules");
    }

    /// Executes a command and sends nothing; returns the answers.
    pub(crate) fn execute(&mut self, sqe: &Sqe, data: &[u8]) -> Vec<(Sqe, Reply)> {
        self.controller.execute(&self.stage, sqe, data).expect("a host that keeps the rules")
    }
}

/// The host's requirements on a controller.
pub(crate) fn controller_settings() -> ControllerSettings {
    ControllerSettings {
        host: "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555".parse().expect("a name"),
        hostid: "11111111-2222-3333-4444-555555555555".parse().expect("an id"),
        subsystem: "nqn.2026-01.io.nvlane:fuzz".parse().expect("a name"),
        is_discovery: false,
        keep_alive_ms: 10_000,
        queue_pairs: 2,
        is_flow_control_disabled: true,
    }
}
