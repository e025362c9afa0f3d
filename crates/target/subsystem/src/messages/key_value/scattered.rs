//! A batch whose operations run on several partitions, and the outcomes returned so far.

use store::Ticket;
use wire::kv::batch::{OutcomeWriter, Outcomes};
use wire::kv::presence::{Presence, presence_bytes};

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
    /// Whether the host gets one bit for each.
    pub(crate) is_presence: bool,
}

impl Scattered {
    /// All outcomes in the order of the operations, as the host gets them, and the number of failures.
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
        if self.is_presence {
            let count = u16::try_from(self.owners.len()).expect("at most the operations of a batch");
            let mut bits = vec![0; presence_bytes(count)];
            let fits = Presence::write(Outcomes::new(&data), count, &mut bits);
            debug_assert!(fits, "as many bytes as counted");
            data = bits;
        }
        (data.into(), failed_count)
    }
}
