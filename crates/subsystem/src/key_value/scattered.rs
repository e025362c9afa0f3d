//! A batch whose operations several partitions carry out: what has come back of it.

use store::Ticket;
use wire::kv::batch::{OutcomeWriter, Outcomes};

/// A batch whose operations are on several partitions.
#[derive(Debug)]
pub(crate) struct Scattered {
    /// Where the outcomes go.
    pub(crate) collect: Ticket,
    /// Whose each operation is.
    pub(crate) owners: Vec<u16>,
    /// Outcomes, by partition.
    pub(crate) outcomes: Vec<Box<[u8]>>,
    /// Partitions that have not answered.
    pub(crate) left_count: usize,
    /// Bytes of all outcomes at most.
    pub(crate) outcome_bytes: usize,
}

impl Scattered {
    /// All outcomes in the order of the operations, and how many are no success.
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
