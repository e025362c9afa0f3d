//! Recent errors of a controller: the entries of its error log. wire §11

use std::collections::VecDeque;

use wire::discovery::TransportType;
use wire::id::Qid;
use wire::log::error::{ERROR_ENTRY_BYTES, ErrorEntry};
use wire::status::Status;
use zerocopy::IntoBytes;

/// No parameter is at fault, or it is unknown.
const NO_PARAMETER: u16 = 0xFFFF;

/// An entry for the error log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The queue.
    pub qid: Qid,
    /// The command.
    pub cid: u16,
    /// Its status.
    pub status: Status,
    /// Its namespace, 0 if it has none.
    pub nsid: u32,
    /// Its first block, 0 if it has none.
    pub lba: u64,
}

/// The latest errors of a controller, and their total number.
#[derive(Debug)]
pub struct ErrorLog {
    /// Oldest first.
    entries: VecDeque<ErrorEntry>,
    entry_count_max: usize,
    count: u64,
}

impl ErrorLog {
    /// A log without entries, that keeps the latest `entry_count_max`.
    #[must_use]
    pub fn new(entry_count_max: u16) -> Self {
        Self { entries: VecDeque::new(), entry_count_max: entry_count_max.into(), count: 0 }
    }

    /// Notes that a command has failed. A command that was aborted on request is not an error.
    pub fn record(&mut self, failure: &Failure) {
        let wanted = [Status::SUCCESS, Status::ABORT_REQUESTED, Status::ABORTED_SQ_DELETED];
        if wanted.iter().any(|status| failure.status.is(*status)) {
            return;
        }
        self.count = self.count.saturating_add(1);
        let mut entry = ErrorEntry::default();
        entry.count.set(self.count);
        entry.sqid.set(failure.qid.get());
        entry.cid.set(failure.cid);
        entry.set_status(failure.status);
        entry.parameter_location.set(NO_PARAMETER);
        entry.lba.set(failure.lba);
        entry.nsid.set(failure.nsid);
        entry.trtype = TransportType::TCP.raw();
        if self.entries.len() >= self.entry_count_max {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    /// Failures since the controller was made.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The page: newest first, all zero where there is no entry.
    #[must_use]
    pub fn page(&self) -> Vec<u8> {
        let mut page = vec![0; self.entry_count_max.saturating_mul(ERROR_ENTRY_BYTES)];
        for (slot, entry) in page.chunks_exact_mut(ERROR_ENTRY_BYTES).zip(self.entries.iter().rev()) {
            slot.copy_from_slice(entry.as_bytes());
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(cid: u16, status: Status) -> Failure {
        Failure { qid: Qid::new(3), cid, status, nsid: 2, lba: 77 }
    }

    /// wire §11
    #[test]
    fn the_newest_failure_is_the_first_entry() {
        let mut log = ErrorLog::new(2);
        for cid in 1..=3 {
            log.record(&failure(cid, Status::LBA_OUT_OF_RANGE.with_dnr()));
        }
        let page = log.page();
        assert_eq!(page.len(), 128);
        // Count 3, queue 3, command 3, status with DNR, no parameter, LBA 77, namespace 2, TCP.
        assert_eq!(page[..16], [3, 0, 0, 0, 0, 0, 0, 0, 3, 0, 3, 0, 0x00, 0x81, 0xFF, 0xFF]);
        assert_eq!(page[16..32], [77, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 3, 0, 0]);
        assert_eq!((page[64], page[74]), (2, 2), "the one before, not the first");
        assert_eq!(log.count(), 3);
    }

    #[test]
    fn what_somebody_wanted_is_no_error() {
        let mut log = ErrorLog::new(2);
        log.record(&failure(1, Status::ABORT_REQUESTED));
        log.record(&failure(2, Status::SUCCESS));
        assert_eq!((log.count(), log.page()), (0, vec![0; 128]));
    }
}
