//! What the driver has: which services, under which name.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::controller::Controller;
use crate::node::Node;

/// The services of this process.
pub(crate) struct Services {
    pub(crate) driver_name: String,
    pub(crate) has_topology: bool,
    pub(crate) controller: Option<Controller>,
    pub(crate) node: Option<Node>,
    pub(crate) was_ready: AtomicBool,
}

impl Services {
    /// Why no call can work yet; `None` from the first time on that all was well.
    pub(crate) fn problem(&self) -> Option<String> {
        if self.was_ready.load(Ordering::Relaxed) {
            return None;
        }
        let of_controller = self.controller.as_ref().and_then(Controller::problem);
        let problem = of_controller.or_else(|| self.node.as_ref().and_then(Node::problem));
        self.was_ready.store(problem.is_none(), Ordering::Relaxed);
        problem
    }
}
