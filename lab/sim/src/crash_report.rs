//! Counts and findings of the crash states.

/// Numbers of checks, and findings.
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
    /// Findings, at most a few of them.
    pub findings: Vec<String>,
}

impl CrashReport {
    /// Adds the report of another thread.
    pub fn add(&mut self, other: Self) {
        self.workload_count += other.workload_count;
        self.run_count += other.run_count;
        self.cut_count += other.cut_count;
        self.state_count += other.state_count;
        self.findings.extend(other.findings);
    }
}
