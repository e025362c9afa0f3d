//! Messages about the locks of fused commands: between the reactors and the lock manager, on reactor 0. wire §16

use std::ops::Range;

use crate::objects::subsystem::NamespaceId;

/// Messages about locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockMessage {
    /// To the manager: a command wants this.
    Ask(Lock),
    /// To every reactor: hold back new writes to the range, and report when none is under way.
    Exclude(Lock),
    /// To the manager: this reactor keeps out of that holder's range.
    Excluded((u16, u64)),
    /// To the holder: the lock of this number is yours.
    Grant(u64),
    /// To the manager: the holder is done.
    Unlock((u16, u64)),
    /// To every reactor: the range is free again.
    Release(Lock),
}

/// A lock on a range of blocks of a namespace, asked for by a command of some reactor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Names the lock: the reactor that asked, and its number there.
    pub holder: (u16, u64),
    /// Which namespace.
    pub namespace: NamespaceId,
    /// Which blocks.
    pub blocks: Range<u64>,
}
