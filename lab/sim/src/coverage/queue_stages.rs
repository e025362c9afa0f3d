//! The state of a queue at the target as the wire shows it, and of the controller that an admin queue belongs to.
//!
//! ```text
//! dialling ──▶ open ──ICResp──▶ initialized ──Connect──▶ connecting ──accepted──▶ (authenticating) ──▶ admin │ I/O
//!     └──▶ refused                   ▲────────refused───────────┘          any ──▶ closed, reset, silent, target gone
//!
//! none ──Connect──▶ disabled ◀──CC.EN──▶ ready ──CC.SHN──▶ shutting down ──CSTS──▶ shut down       any ──▶ gone
//! ```

use wire::fabrics::ConnectResult;
use wire::opcode::FabricsType;
use wire::property::{Cc, Csts, Property, ShutdownNotification, ShutdownStatus};

use super::{Coverage, Point, Stages};

/// Commands of an authentication on a queue that has authenticated.
const ADMIN_AGAIN: Point = Point::Event("admin queue authenticates again");
const IO_AGAIN: Point = Point::Event("I/O queue authenticates again");

/// The effect of a command on the known state of a queue, once it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// No such command.
    None,
    Connect {
        is_io: bool,
    },
    /// CC is set to this.
    Configure(u64),
    /// CSTS is asked for.
    Status,
}

impl Change {
    /// Whether it disables the controller, or shuts it down.
    pub(super) fn ends_controller(self) -> bool {
        let Self::Configure(value) = self else { return false };
        let cc = Cc::from_bits(value as u32);
        !cc.en() || cc.shn() != ShutdownNotification::NONE
    }

    /// The change that a Fabrics command makes: CDW10 and 11, and CDW12 and 13.
    pub(super) fn of(kind: FabricsType, [cdw10, cdw11]: [u32; 2], value: u64) -> Self {
        match kind {
            FabricsType::CONNECT => Self::Connect { is_io: cdw10 >> 16 != 0 },
            FabricsType::PROPERTY_SET if cdw11 == Property::CC.raw() => Self::Configure(value),
            FabricsType::PROPERTY_GET if cdw11 == Property::CSTS.raw() => Self::Status,
            _ => Self::None,
        }
    }
}

/// A queue at the target, and the controller of an admin queue.
#[derive(Debug)]
pub(super) struct QueueStages {
    queue: Stages,
    controller: Stages,
    /// The kind of the queue once its host has authenticated.
    serves: &'static str,
    /// Nothing that is sent arrives any more.
    is_silent: bool,
    is_over: bool,
}

impl Default for QueueStages {
    fn default() -> Self {
        Self {
            queue: Stages::new("queue", "dialling"),
            controller: Stages::new("controller", "none"),
            serves: "admin",
            is_silent: false,
            is_over: false,
        }
    }
}

impl QueueStages {
    /// The connection stands.
    pub(super) fn on_open(&mut self, coverage: &mut Coverage) {
        if !self.is_over {
            self.queue.enter("open", coverage);
        }
    }

    /// ICResp is sent.
    pub(super) fn on_initialized(&mut self, coverage: &mut Coverage) {
        if !self.is_silent {
            self.queue.enter("initialized", coverage);
        }
    }

    /// A command is sent.
    pub(super) fn on_command(&mut self, kind: Option<FabricsType>, coverage: &mut Coverage) {
        let is_of_authentication =
            matches!(kind, Some(FabricsType::AUTHENTICATION_SEND | FabricsType::AUTHENTICATION_RECEIVE));
        match self.queue.now() {
            _ if self.is_silent => {}
            "initialized" if kind == Some(FabricsType::CONNECT) => self.queue.enter("connecting", coverage),
            "authenticating" if !is_of_authentication => self.queue.enter(self.serves, coverage),
            "admin" if is_of_authentication => coverage.reach(ADMIN_AGAIN),
            "I/O" if is_of_authentication => coverage.reach(IO_AGAIN),
            _ => {}
        }
    }

    /// The target answers a command.
    pub(super) fn on_answer(
        &mut self,
        change: Change,
        is_success: bool,
        result: u32,
        coverage: &mut Coverage,
    ) {
        match change {
            _ if self.is_silent => {}
            Change::Connect { .. } if !is_success => {
                if self.queue.now() == "connecting" {
                    self.queue.enter("initialized", coverage);
                }
            }
            Change::Connect { is_io } => {
                self.serves = if is_io { "I/O" } else { "admin" };
                let must_authenticate = ConnectResult::from_bits(result).authentication_required();
                self.queue.enter(if must_authenticate { "authenticating" } else { self.serves }, coverage);
                if !is_io {
                    self.controller.enter("disabled", coverage);
                }
            }
            Change::Configure(value) if is_success => {
                let cc = Cc::from_bits(value as u32);
                let to = match (cc.en(), cc.shn()) {
                    (false, ShutdownNotification::NONE) => "disabled",
                    (_, ShutdownNotification::NONE) => "ready",
                    _ => "shutting down",
                };
                self.controller.enter(to, coverage);
            }
            Change::Status if is_success => {
                if Csts::from_bits(result).shst() == ShutdownStatus::COMPLETE {
                    self.controller.enter("shut down", coverage);
                }
            }
            Change::Configure(_) | Change::Status | Change::None => {}
        }
    }

    /// The connection ends like this, or goes silent. Its final stage stays, whatever is still on its way.
    pub(super) fn on_end(&mut self, how: &'static str, coverage: &mut Coverage) {
        if !self.is_over {
            self.queue.enter(how, coverage);
            if self.controller.now() != "none" {
                self.controller.enter("gone", coverage);
            }
        }
        self.is_silent = true;
        self.is_over |= how != "silent";
    }
}
