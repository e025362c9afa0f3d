//! A batch whose operations run on several partitions, and the outcomes returned so far.

use store::Ticket;
use wire::kv::batch::{OutcomeWriter, Outcomes};

/// A batch whose operations are on several partitions.
#[derive(Debug)]
pub(crate) struct Scattered {
    /// The memory for the outcomes.
    pub(crate) collect: Ticket,
    /// The partition of each operation.
    pub(crate) owners: Vec<u16>,
    /// Outcomes, by partition.
    pub(crate) outcomes: Vec<Box<[u8]>>,
    /// Partitions that have not answered.
    pub(crate) left_count: usize,
    /// Maximum bytes of all outcomes.
    pub(crate) outcome_bytes: usize,
}

impl Scattered {
    /// All outcomes in the order of the operations, and the number of failures.
    pub(crate) fn gathered(&self) -> (Box<[u8]>, u32) {
        let mut data = vec![0; self.outcome_bytes];
        let mut writer = OutcomeWriter::new(&mut data);
        let mut parts: Vec<_> = self.outcomes.iter().map(|part| Outcomes::new(part)).collect();
        for &owner in &self.owners {
            let outcome = parts[usize::from(owner)].next().expect("an outcome for each operation");
            writer.room(outcome.data.len()).copy_from_slice(outcome.data);
            let fits = writer.push(outcome.status, outcome.result, outcome.data.len());
            debug_assert!(fits, "counted before");
        }
        let failed_count = writer.failed_count();
        let length = writer.finish();
        data.truncate(length);
        (data.into(), failed_count)
    }
}
