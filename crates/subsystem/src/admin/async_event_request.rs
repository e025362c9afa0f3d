//! Asynchronous Event Request. wire §13

use wire::status::Status;

use crate::controller::{ControllerRecord, EventRequest};

/// Takes in a request, which is answered when something happens.
pub(crate) fn execute(record: &mut ControllerRecord, request: EventRequest) -> Result<(), Status> {
    record.events.on_request(request)
}
