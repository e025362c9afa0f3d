//! Ids of answers.

/// Identifies an awaited answer: answers are sent in the order of their ids.
pub type AnswerId = u64;
