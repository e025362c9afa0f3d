//! Key pairs of the controller, made while nothing else is to be computed: the next host then waits for one
//! exponentiation instead of two.

use std::collections::BTreeMap;

use security::exponentiation::KeyPair;
use security::group::Group;

/// Key pairs of a group that are kept.
const COUNT_MAX: usize = 16;

/// The most expensive group with key pairs: those of larger ones are for the few who ask for them.
const GROUP_MAX: Group = Group::Ffdhe4096;

/// Key pairs that are ready, of the groups that hosts have asked for. Each is given out once.
#[derive(Debug, Default)]
pub(super) struct KeyPairs {
    ready: BTreeMap<Group, Vec<KeyPair>>,
    /// One is being made.
    is_making: bool,
}

impl KeyPairs {
    /// An unused key pair of this group; `None` if there is none.
    pub(super) fn take(&mut self, group: Group) -> Option<KeyPair> {
        if group > GROUP_MAX {
            return None;
        }
        self.ready.entry(group).or_default().pop()
    }

    /// The group of the key pair to make next, which goes to [`on_made`](Self::on_made): one at a time, the cheapest
    /// first.
    pub(super) fn next(&mut self) -> Option<Group> {
        if self.is_making {
            return None;
        }
        let (group, _) = self.ready.iter().find(|(_, ready)| ready.len() < COUNT_MAX)?;
        self.is_making = true;
        Some(*group)
    }

    pub(super) fn on_made(&mut self, pair: KeyPair) {
        self.is_making = false;
        self.ready.entry(pair.group()).or_default().push(pair);
    }

    /// The key pair will not be made.
    pub(super) fn on_failed(&mut self) {
        self.is_making = false;
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, clippy::expect_used, clippy::indexing_slicing, clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;
    use std::num::NonZeroU32;

    use security::exponentiation::Exponentiation;
    use security::fresh::{Fresh, RANDOM_BYTES};

    use super::*;

    #[test]
    fn pairs_of_groups_that_were_asked_for_are_made_and_given_out_once() {
        let mut pairs = KeyPairs::default();
        assert_eq!(pairs.next(), None, "nobody has asked");
        assert!(pairs.take(Group::Ffdhe3072).is_none() && pairs.take(Group::Ffdhe2048).is_none());
        assert!(pairs.take(Group::Ffdhe8192).is_none());
        let mut made = Vec::new();
        let mut random = 0_u8;
        while let Some(group) = pairs.next() {
            assert_eq!(pairs.next(), None, "one at a time");
            random += 1;
            let fresh = Fresh::new(&[random; RANDOM_BYTES], NonZeroU32::MIN);
            pairs.on_made(Exponentiation::of_key_pair(group, &fresh).run().into_key_pair());
            made.push(group);
        }
        assert_eq!(made, [[Group::Ffdhe2048; COUNT_MAX], [Group::Ffdhe3072; COUNT_MAX]].concat());
        let given: BTreeSet<String> =
            core::iter::from_fn(|| pairs.take(Group::Ffdhe2048)).map(|pair| format!("{pair:?}")).collect();
        assert_eq!(given.len(), COUNT_MAX, "no two are equal");
        assert_eq!(pairs.next(), Some(Group::Ffdhe2048));
    }
}
