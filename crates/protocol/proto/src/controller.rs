//! The life of a controller: its properties, enabling, reset and shutdown. wire §7, §8
//!
//! ```text
//!             CC.EN = 1                       CC.SHN
//! Disabled ──────────────▶ Ready ─────────────────────────▶ ShuttingDown ──shut_down_done──▶ ShutDown
//!    ▲                       │                                   │                              │
//!    └───── CC.EN = 0 ───────┴───────────────────────────────────┴──────────────────────────────┘
//! ```
//!
//! A disabled controller can be shut down, too. A reset wins over a shutdown in the same write.

use wire::fabrics::{PropertyGet, PropertySet};
use wire::property::{
    Cap, Cc, CommandSetSelection, Crto, Csts, Property, PropertySize, ShutdownNotification, ShutdownStatus,
    Vs,
};
use wire::status::Status;

/// The state of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerState {
    /// Takes Fabrics commands only.
    Disabled,
    /// Takes commands.
    Ready,
    /// Is making its data safe before it reports shutdown.
    ShuttingDown,
    /// Has reported shutdown.
    ShutDown,
}

/// The driver's task after a Property Set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropertyEffect {
    /// Nothing.
    None,
    /// The controller has become ready.
    Enabled,
    /// A controller reset: end the I/O queues, drop pending asynchronous events, set features to their defaults.
    Reset,
    /// Flush the namespaces, then call [`Controller::shut_down_done`].
    ShutDown,
}

/// Properties and state of one controller.
#[derive(Clone, Copy, Debug)]
pub struct Controller {
    cap: Cap,
    vs: Vs,
    cc: Cc,
    state: ControllerState,
    has_io_queues: bool,
}

/// log2 of the entry sizes over fabrics. wire §7
const IOSQES: u8 = 6;
const IOCQES: u8 = 4;

impl Controller {
    /// A controller that is not enabled yet.
    #[must_use]
    pub fn new(cap: Cap, vs: Vs) -> Self {
        Self { cap, vs, cc: Cc::from_bits(0), state: ControllerState::Disabled, has_io_queues: true }
    }

    /// The same without I/O queues: a discovery controller, to which the sizes of their entries mean nothing.
    #[must_use]
    pub fn without_io_queues(cap: Cap, vs: Vs) -> Self {
        Self { has_io_queues: false, ..Self::new(cap, vs) }
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> ControllerState {
        self.state
    }

    /// Whether it takes commands other than Fabrics ones.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state == ControllerState::Ready
    }

    /// The CAP property.
    #[must_use]
    pub fn cap(&self) -> Cap {
        self.cap
    }

    /// The CC property.
    #[must_use]
    pub fn cc(&self) -> Cc {
        self.cc
    }

    /// The CSTS property.
    #[must_use]
    pub fn csts(&self) -> Csts {
        let shst = match self.state {
            ControllerState::Disabled | ControllerState::Ready => ShutdownStatus::NONE,
            ControllerState::ShuttingDown => ShutdownStatus::IN_PROGRESS,
            ControllerState::ShutDown => ShutdownStatus::COMPLETE,
        };
        // It is ready as soon as it is enabled; it can be shut down without having been.
        Csts::from_bits(0).with_rdy(self.cc.en()).with_shst(shst)
    }

    /// Answers Property Get with the value.
    ///
    /// # Errors
    /// The status to refuse it with: unknown offset or wrong size.
    pub fn on_property_get(&self, get: PropertyGet) -> Result<u64, Status> {
        check_size(get.property, get.size)?;
        Ok(match get.property {
            Property::CAP => self.cap.bits(),
            Property::VS => self.vs.bits().into(),
            Property::CC => self.cc.bits().into(),
            Property::CSTS => self.csts().bits().into(),
            Property::CRTO if self.cap.crwms() => {
                Crto::default().with_crwmt(self.cap.to().into()).bits().into()
            }
            // Resets of the subsystem are not announced in CAP.
            _ => return Err(Status::INVALID_FIELD),
        })
    }

    /// Executes Property Set, and returns the driver's task.
    ///
    /// # Errors
    /// The status to refuse it with: not CC, wrong size, or a configuration that cannot be; nothing has changed then.
    pub fn on_property_set(&mut self, set: PropertySet) -> Result<PropertyEffect, Status> {
        check_size(set.property, set.size)?;
        if set.property != Property::CC {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        // CRIME is read-only without CAP.CRIMS.
        self.configure(Cc::from_bits(set.value_of_four()).with_crime(false))
    }

    fn configure(&mut self, cc: Cc) -> Result<PropertyEffect, Status> {
        let was_enabled = self.cc.en();
        // Also while it is enabled: the configuration it was enabled with must not change.
        if cc.en() && !self.is_possible(cc) {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let is_enabling = cc.en() && !was_enabled;
        // A shutdown is asked for by a change; a controller that is enabled with one asked for has it at once.
        let asks_shutdown =
            cc.shn() != ShutdownNotification::NONE && (is_enabling || self.cc.shn() != cc.shn());
        self.cc = cc;
        if was_enabled && !cc.en() {
            self.state = ControllerState::Disabled;
            return Ok(PropertyEffect::Reset);
        }
        let is_over = self.state == ControllerState::ShutDown && !is_enabling;
        if asks_shutdown && !is_over && self.state != ControllerState::ShuttingDown {
            self.state = ControllerState::ShuttingDown;
            return Ok(PropertyEffect::ShutDown);
        }
        if is_enabling && !asks_shutdown {
            self.state = ControllerState::Ready;
            return Ok(PropertyEffect::Enabled);
        }
        Ok(PropertyEffect::None)
    }

    /// Whether a controller can be enabled, or stay enabled, with this configuration.
    fn is_possible(&self, cc: Cc) -> bool {
        let css = match cc.css() {
            CommandSetSelection::NVM => self.cap.css_nvm(),
            CommandSetSelection::ALL => self.cap.css_csi(),
            CommandSetSelection::ADMIN_ONLY => self.cap.css_admin_only(),
            _ => false,
        };
        let is_same = !self.cc.en() || self.cc.css() == cc.css();
        let sizes = !self.has_io_queues || cc.iosqes() == IOSQES && cc.iocqes() == IOCQES;
        css && is_same && sizes && cc.mps() == 0 && cc.ams() == 0
    }

    /// Everything is on stable media: the shutdown can be reported.
    pub fn shut_down_done(&mut self) {
        if self.state == ControllerState::ShuttingDown {
            self.state = ControllerState::ShutDown;
        }
    }
}

/// Whether a property has this size.
///
/// A property that does not exist is refused without DNR: nvme-cli 2.x reads every property of the specification and
/// takes an invalid field for "absent" only without it. wire §6.4
fn check_size(property: Property, size: PropertySize) -> Result<(), Status> {
    match property.size() {
        Some(right) if right == size => Ok(()),
        Some(_) => Err(Status::INVALID_FIELD.with_dnr()),
        None => Err(Status::INVALID_FIELD),
    }
}
