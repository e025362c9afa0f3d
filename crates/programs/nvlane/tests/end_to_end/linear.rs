//! Linearizability of one key's history with concurrent clients, by Wing and Gong's search.
//!
//! Each operation takes effect at some moment between its call and its answer. The search picks any operation called
//! before the first outstanding answer, applies it to the register, and continues if its answer fits; states visited
//! before are skipped.

use std::collections::HashSet;
use std::time::Instant;

/// An operation of a client and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Read(Option<u64>),
    Write(u64),
    /// Stores if the key does not exist; whether it was done.
    WriteNew(u64, bool),
    /// Stores if the key exists; whether it was done.
    Replace(u64, bool),
    /// Deletes; whether the key existed, if the answer tells.
    Delete(Option<bool>),
    /// Adds this number; the sum, or `None` if the key does not exist.
    Add(u64, Option<u64>),
}

/// An operation with the times of its call and answer.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) called: Instant,
    pub(crate) answered: Instant,
    pub(crate) deed: Deed,
}

/// The register after an operation, if the answer fits.
fn apply(value: Option<u64>, deed: &Deed) -> Option<Option<u64>> {
    match *deed {
        Deed::Read(seen) => (seen == value).then_some(value),
        Deed::Write(new) => Some(Some(new)),
        Deed::WriteNew(new, is_done) => {
            (is_done == value.is_none()).then_some(if is_done { Some(new) } else { value })
        }
        Deed::Replace(new, is_done) => {
            (is_done == value.is_some()).then_some(if is_done { Some(new) } else { value })
        }
        Deed::Delete(told) => told.is_none_or(|told| told == value.is_some()).then_some(None),
        Deed::Add(by, sum) => (sum == value.map(|value| value.wrapping_add(by))).then_some(sum),
    }
}

/// Whether some order explains the history of a key that did not exist before.
pub(crate) fn is_linear(history: &[Done]) -> bool {
    let mut history = history.to_vec();
    history.sort_by_key(|done| done.called);
    // Operations applied so far: all up to the first that is not, and some after it; and the register's state.
    let mut seen: HashSet<(usize, Vec<usize>, Option<u64>)> = HashSet::new();
    let mut open = vec![(0, Vec::new(), None)];
    while let Some((first, ahead, value)) = open.pop() {
        if first == history.len() {
            return true;
        }
        let is_left = |at: &usize| !ahead.contains(at);
        let first_answer = (first..history.len())
            .filter(is_left)
            .map(|at| history[at].answered)
            .min()
            .expect("the first is left");
        for at in (first..history.len()).take_while(|&at| history[at].called <= first_answer).filter(is_left)
        {
            let Some(value) = apply(value, &history[at].deed) else { continue };
            let (mut first, mut ahead) = (first, ahead.clone());
            ahead.push(at);
            ahead.sort_unstable();
            while ahead.first() == Some(&first) {
                ahead.remove(0);
                first += 1;
            }
            if seen.insert((first, ahead.clone(), value)) {
                open.push((first, ahead, value));
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn history(deeds: &[(u64, u64, Deed)]) -> bool {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let done: Vec<Done> = deeds
            .iter()
            .map(|(from, to, deed)| Done { called: at(*from), answered: at(*to), deed: deed.clone() })
            .collect();
        is_linear(&done)
    }

    #[test]
    fn what_can_have_happened_is_told_from_what_cannot() {
        use Deed::{Add, Delete, Read, Write, WriteNew};
        assert!(history(&[(0, 9, Write(1)), (1, 2, Read(None)), (3, 4, Read(Some(1)))]));
        assert!(!history(&[(0, 9, Write(1)), (1, 2, Read(Some(1))), (3, 4, Read(None))]), "back again");
        assert!(!history(&[(0, 1, Write(1)), (2, 3, Write(2)), (4, 5, Read(Some(1)))]), "stale");
        assert!(history(&[(0, 1, Write(1)), (2, 9, Add(1, Some(2))), (2, 9, Add(1, Some(3)))]));
        assert!(!history(&[(0, 1, Write(1)), (2, 9, Add(1, Some(2))), (2, 9, Add(1, Some(2)))]), "lost");
        assert!(!history(&[(0, 5, WriteNew(1, true)), (0, 5, WriteNew(2, true))]), "two were the first");
        assert!(history(&[(0, 5, WriteNew(1, true)), (0, 5, WriteNew(2, true)), (1, 4, Delete(Some(true)))]));
        assert!(!history(&[(0, 1, Write(1)), (2, 3, Delete(None)), (4, 5, Add(1, Some(2)))]));
    }
}
