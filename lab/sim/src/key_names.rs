//! The names of keys: short ones and long ones, and some that collide in the index.

use std::rc::Rc;
use std::sync::OnceLock;

use kv::colliding::CollidingKeys;

/// The seed of the hash in a run whose keys collide: one with which such keys are text, as memcached's clients need it.
pub(crate) const HASH_SEED: u64 = 36_083_997;

/// The largest number of partitions.
const PARTITION_COUNT_MAX: usize = 3;

/// The kinds of colliding keys, in turn: those that NVMe hosts can have are more, and all of one kind have one hash.
const KINDS: [u32; 6] = [0, 0, 2, 1, 0, 3];

/// A key that collides with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collision {
    /// It has the hash of another key.
    Hash,
    /// It has the bucket and the tag of others.
    Bucket,
}

/// The collision of key number `at` with keys before it, or with the next one, if the first `colliding_count` collide.
pub(crate) fn collision(at: usize, colliding_count: usize) -> Option<Collision> {
    match KINDS[at % KINDS.len()] {
        _ if at >= colliding_count || colliding_count < 2 => None,
        0 => Some(Collision::Hash),
        2 => Some(Collision::Bucket),
        _ => None,
    }
}

/// The names of this number of keys, of which the first `colliding_count` collide, in the same one of `partition_count`
/// partitions; where hosts are told how keys are divided, in any of them.
pub(crate) fn key_names(count: usize, colliding_count: usize, partition_count: usize) -> Vec<Rc<str>> {
    static KEYS: [OnceLock<CollidingKeys>; PARTITION_COUNT_MAX] =
        [const { OnceLock::new() }; PARTITION_COUNT_MAX];
    let colliding = |at: usize| {
        let keys = KEYS[partition_count - 1].get_or_init(|| CollidingKeys::new(HASH_SEED, partition_count));
        let name = keys.key(KINDS[at % KINDS.len()], at as u16);
        String::from_utf8(name).expect("secrets that are text")
    };
    let plain = |at: usize| match at % 4 {
        3 => format!("k{at:x}-{}", "long".repeat(5 + at % 50)),
        _ => format!("k{at:x}"),
    };
    let name = |at| if at < colliding_count { colliding(at) } else { plain(at) };
    (0..count).map(|at| name(at).into()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_key_has_a_name_of_its_own_that_is_a_word() {
        for (colliding_count, partition_count) in [(0, 1), (24, 1), (24, 2), (7, 3)] {
            let names = key_names(300, colliding_count, partition_count);
            assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 300);
            let is_word = |name: &str| name.len() <= 250 && name.bytes().all(|byte| byte.is_ascii_graphic());
            assert!(names.iter().all(|name| is_word(name)), "{names:?}");
            let short = names[..colliding_count].iter().filter(|name| name.len() <= 16);
            assert!(short.count() >= colliding_count / 2);
        }
    }

    #[test]
    fn two_keys_at_least_have_one_hash_if_any_collide() {
        let all = |count| (0..300).filter_map(|at| collision(at, count)).collect::<Vec<_>>();
        assert_eq!(all(0), []);
        assert_eq!(all(2), [Collision::Hash; 2]);
        assert_eq!(all(4), [Collision::Hash, Collision::Hash, Collision::Bucket]);
    }
}
