//! Failures that flushes report, as the kernel does: each open file description reports each failure once.

use reactor::File;

use crate::shared::Actor;

/// The failed flushes and durable writes of a file since it was opened.
#[derive(Debug, Default)]
pub(super) struct FlushReports {
    failure_count: u64,
    /// How many of the failures the flushes of each reactor have reported, on each description.
    reported: Vec<(Actor, File, u64)>,
}

impl FlushReports {
    /// A flush or a durable write has failed.
    pub(super) fn add_failure(&mut self) {
        self.failure_count += 1;
    }

    /// A flush of a reactor ends: reports the failures that its description has not reported. `false` if there are
    /// none.
    pub(super) fn report(&mut self, actor: Actor, file: &File) -> bool {
        let failure_count = self.failure_count;
        let reported = self.reported(actor, file);
        std::mem::replace(reported, failure_count) < failure_count
    }

    /// Whether a flush of a reactor on this description has reported a failure.
    pub(super) fn has_reported(&mut self, actor: Actor, file: &File) -> bool {
        *self.reported(actor, file) > 0
    }

    fn reported(&mut self, actor: Actor, file: &File) -> &mut u64 {
        let is_meant = |(other, description, _): &(Actor, File, u64)| {
            *other == actor && description.is_same_description(file)
        };
        let at = self.reported.iter().position(is_meant).unwrap_or_else(|| {
            self.reported.push((actor, file.clone(), 0));
            self.reported.len() - 1
        });
        &mut self.reported[at].2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_description_of_a_file_reports_a_failure_once() {
        let (mut reports, file, other) = (FlushReports::default(), File::simulated(1), File::simulated(1));
        assert!(!reports.report(0, &file), "nothing has failed");
        reports.add_failure();
        assert!(reports.report(0, &file) && !reports.report(0, &file));
        assert!(reports.has_reported(0, &file) && !reports.has_reported(0, &other));
        assert!(reports.report(0, &other) && reports.report(1, &file));
        reports.add_failure();
        assert!(reports.report(0, &file));
    }
}
