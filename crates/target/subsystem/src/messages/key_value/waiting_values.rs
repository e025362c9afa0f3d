//! Values that wait at their partition until it has memory for them: others that are arriving hold it, and free it when they end.

use crate::messages::key_value::action::{KvAction, Progress};
use crate::messages::key_value::message::{PartitionRequest, Work};

/// The requests of values that wait, in order.
#[derive(Debug, Default)]
pub(crate) struct WaitingValues(Vec<PartitionRequest>);

impl WaitingValues {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Puts a value at the end.
    pub(crate) fn push(&mut self, request: PartitionRequest) {
        self.0.push(request);
    }

    /// Takes all that wait.
    pub(crate) fn take(&mut self) -> Vec<PartitionRequest> {
        std::mem::take(&mut self.0)
    }

    /// Takes a value in that has to wait, or that comes behind others of its namespace. Returns any other request.
    pub(crate) fn line_up(&mut self, request: PartitionRequest) -> Option<PartitionRequest> {
        let Work::Act { action: KvAction::Reserve { progress, .. }, .. } = &request.work else {
            return Some(request);
        };
        let is_behind = || self.0.iter().any(|waiting| waiting.namespace == request.namespace);
        let waits = match progress {
            Progress::Begun => false,
            Progress::Begins => is_behind(),
            Progress::Waits => true,
        };
        if !waits {
            return Some(request);
        }
        self.push(request);
        None
    }
}
