//! Stands in for in-band authentication in a build without the feature `authentication`. No value of these types exists,
//! so a host has no secrets, and a controller that asks for authentication is refused.

use proto::host_controller::{ControllerSettings, RequestData};
use wire::sqe::Sqe;
use wire::status::Status;

use crate::link_error::LinkError;

/// The secrets of a host: none in this build.
#[derive(Clone, Debug)]
pub enum Credentials {}

impl Credentials {
    /// Without secrets no controller has to show one.
    pub(crate) fn check_unasked(_credentials: Option<&Self>) -> Result<(), LinkError> {
        Ok(())
    }
}

/// A key of TLS that an authentication has generated: none in this build.
#[derive(Clone, Debug)]
pub enum TlsPsk {}

/// The secure channel that an authentication sets up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SecureChannel {
    None,
    NewTlsPsk,
}

/// The authentication of one queue: none in this build.
#[derive(Debug)]
pub(crate) enum QueueAuthentication {}

impl QueueAuthentication {
    /// The controller has asked for it.
    ///
    /// # Errors
    /// Always.
    pub(crate) fn new(
        _credentials: Option<&Credentials>,
        _settings: &ControllerSettings,
        _secure_channel: SecureChannel,
    ) -> Result<Self, LinkError> {
        Err(LinkError::NotBuilt { needed: "in-band authentication", feature: "authentication" })
    }

    pub(crate) fn next_command(&mut self) -> Option<(Sqe, RequestData)> {
        match *self {}
    }

    pub(crate) fn on_completion(&mut self, _status: Status, _data: &[u8]) -> Result<bool, LinkError> {
        match *self {}
    }

    pub(crate) fn take_generated(&mut self) -> Option<Result<TlsPsk, LinkError>> {
        match *self {}
    }

    pub(crate) fn cause_of_loss(&self, _cause: LinkError) -> LinkError {
        match *self {}
    }
}
