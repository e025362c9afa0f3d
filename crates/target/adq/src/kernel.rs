//! The kernel as a layout sees it: settings to read, changes to carry out.

use crate::change::Change;
use crate::state::{Device, DeviceState};

/// Why the kernel did not answer or did not carry a change out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub String);

/// A device and its kernel. Linux implements it, and a model in tests.
pub trait Kernel {
    /// The properties of the device.
    ///
    /// # Errors
    /// [`Failure`] if the device is gone or the kernel refuses to report them.
    fn device(&mut self) -> Result<Device, Failure>;

    /// The settings of the device.
    ///
    /// # Errors
    /// [`Failure`] if the device is gone or the kernel refuses to report them.
    fn state(&mut self) -> Result<DeviceState, Failure>;

    /// Carries a change out and waits until the device is ready again.
    ///
    /// # Errors
    /// [`Failure`] with the kernel's reason.
    fn carry_out(&mut self, change: &Change) -> Result<(), Failure>;
}
