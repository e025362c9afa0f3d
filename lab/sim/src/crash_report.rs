//! Counts and findings of the crash states.

/// How much was looked at.
#[derive(Clone, Debug, Default)]
pub struct CrashReport {
    /// Workloads, each with each kind of storage.
    pub workload_count: u64,
    /// Runs of them: orders of operations, failing calls.
    pub run_count: u64,
    /// Moments at which the power went.
    pub cut_count: u64,
    /// States that were opened and read.
    pub state_count: u64,
    /// What is wrong, at most a few of them.
    pub findings: Vec<String>,
}

impl CrashReport {
    /// Adds what another thread has looked at.
    pub fn add(&mut self, other: Self) {
        self.workload_count += other.workload_count;
        self.run_count += other.run_count;
        self.cut_count += other.cut_count;
        self.state_count += other.state_count;
        self.findings.extend(other.findings);
    }
}
