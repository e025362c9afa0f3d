//! Keep Alive. wire §9

use super::{Outcome, Reply};
use crate::controller::ControllerRecord;

/// Answers a Keep Alive. Like any command it shows that the host is alive.
pub(crate) fn execute(record: &mut ControllerRecord, now_ns: u64) -> Outcome {
    record.keep_alive.on_sign(now_ns);
    Ok(Reply::default())
}
