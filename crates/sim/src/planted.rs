//! Bugs that are put in on purpose, to see that the simulation finds them.
//!
//! Each is made where the product meets the simulated world: its disk, its network, its reactor or the thread that
//! drives a lane. The product's own code stays as it is.

/// A deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Planted {
    /// A write is answered and not done, now and then.
    LostWrite,
    /// A write lands one block further on, now and then.
    MisdirectedWrite,
    /// A power cut leaves blocks that are half old and half new.
    TornBlock,
    /// A write is answered before its data is where reads look.
    CompletionBeforeData,
    /// A read brings what was there before the last write, now and then.
    StaleRead,
    /// What was written and not flushed is gone after the process was killed.
    StaleAfterRestart,
    /// A completion is handed out twice, now and then.
    DoubleCompletion,
    /// A completion is not handed out, now and then.
    LostCompletion,
    /// Corrupted bytes are accepted: digests are off.
    DigestIgnored,
    /// An R2T asks for another part of the data than it means.
    WrongR2tOffset,
    /// Two completions change places.
    SwappedCompletions,
    /// A write that was done is reported as aborted.
    AbortAfterCompletion,
    /// A storage operation never ends, now and then.
    StuckOperation,
    /// The event that a full socket is writable again is lost.
    LostWakeup,
    /// A buffer is not given back, now and then.
    LostBuffer,
    /// A namespace that shrinks and grows again has its old data.
    ResizeKeepsData,
    /// Some events for changes of the discovery log are not sent.
    LostDiscoveryEvent,
    /// Parts of a discovery log are taken together whatever its generation was in the end.
    TornDiscoveryLog,
    /// A host that has connected to the discovery service again does not read the log again.
    DiscoveryNotReadAgain,
}
