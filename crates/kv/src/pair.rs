//! What a pair has beside key and value, when a value is stored, and what became of a store.

/// What a pair has beside key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The client's.
    pub flags: u32,
    /// The second at which it ends, or 0 if it does not.
    pub expiry_s: u32,
}

/// What memcached's meta commands know of a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// It was read since it was stored.
    pub is_fetched: bool,
    /// It should be made anew.
    pub is_stale: bool,
    /// Somebody makes it anew.
    pub is_won: bool,
}

/// When a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// In any case.
    Always,
    /// If there is none.
    Absent,
    /// If there is one.
    Present,
    /// If it is still the one that had this number.
    Unchanged(u64),
}

/// What became of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// It was done.
    Done,
    /// There is a value, or another than was meant.
    Exists,
    /// There is no value.
    NotFound,
    /// Memory is full.
    NoMemory,
    /// The value is longer than values may be.
    TooLarge,
}
