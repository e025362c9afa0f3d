//! Asynchronous Event Request. wire §13

use wire::status::Status;

use crate::controller::{ControllerRecord, EventRequest};

/// Holds a request until an event occurs.
pub(crate) fn execute(record: &mut ControllerRecord, request: EventRequest) -> Result<(), Status> {
    record.events.on_request(request)
}
