//! Events that an engine reports, and how it waits for them.

use crate::operation::Completion;

/// The kind of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// One io_uring: readiness, storage operations and sleeping in a single call.
    Uring,
    /// epoll for sockets, a few worker threads for storage. Slower, works where io_uring is forbidden.
    Epoll,
}

/// An event that an engine reports.
#[derive(Debug)]
pub(crate) enum Event {
    /// The descriptor watched under this key has something to read, or has failed.
    Readable(u64),
    /// It takes bytes again.
    Writable(u64),
    /// A storage operation has ended.
    Completed(Completion),
    /// The bell rang: there may be messages.
    Rung,
}

/// The longest sleep while events are collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Not at all.
    None,
    /// This many ns.
    For(u64),
    /// Until an event.
    Forever,
}

/// The readiness to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Interest {
    Read,
    Write,
}
