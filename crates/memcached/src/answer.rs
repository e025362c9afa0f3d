//! Ids of answers.

/// Names an answer that is awaited: answers are sent in the order of their ids.
pub type AnswerId = u64;
