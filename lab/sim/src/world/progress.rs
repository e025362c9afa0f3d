//! How far a run is.

/// More events than this without the end of any command are a loop without an end. (Long commands over a network of
/// tiny pieces take hundreds of thousands.)
const EVENT_COUNT_MAX: u64 = 4_000_000;

/// Progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Commands are submitted, and things go wrong.
    Work,
    /// Nothing goes wrong any more: all that is out ends.
    Settle,
    /// All is flushed, for the power cut at the end.
    Flush,
    /// Every block is read.
    Read,
    /// The hosts close.
    Close,
    /// The target stops.
    Stop,
    /// Done.
    Over,
}

#[derive(Debug)]
pub(crate) struct Progress {
    pub(super) stage: Stage,
    /// When the stage began.
    pub(super) since_ns: u64,
    /// Events since a command ended, and the commands that had ended then.
    idle: (u64, u64),
    /// Blocks to be looked at in the end.
    pub(super) left_to_read: Vec<u64>,
    /// Maximum blocks of one such command: fewer after each that fails, so that it becomes short enough for its
    /// timeout.
    pub(super) read_blocks_max: u32,
    /// The power cut of the end is over.
    pub(super) had_last_cut: bool,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self {
            stage: Stage::Work,
            since_ns: 0,
            idle: (0, 0),
            left_to_read: Vec::new(),
            read_blocks_max: u32::MAX,
            had_last_cut: false,
        }
    }

    /// Counts an event. `false` if there were too many without the end of a command.
    pub(super) fn count_event(&mut self, ended_count: u64) -> bool {
        self.idle.0 += 1;
        if ended_count > self.idle.1 {
            self.idle = (0, ended_count);
        }
        self.idle.0 <= EVENT_COUNT_MAX
    }
}
