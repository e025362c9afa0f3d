//! Which keys of a key-value namespace a host may use: those that begin with its prefixes.
// Input from a host must never cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wire::kv::KEY_BYTES_MAX;
use wire::nqn::HostName;

/// The keys of a namespace that each host may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyRights {
    /// Every host may use all keys.
    All,
    /// Each of these hosts may use the keys in its scope, and no other host any key.
    Scopes(BTreeMap<HostName, Arc<KeyScope>>),
}

/// The keys that begin with one of these prefixes. The empty prefix stands for all keys, and no prefix for none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyScope {
    prefixes: BTreeSet<Vec<u8>>,
}

/// A prefix with which no key of an NVMe host can begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("prefix {0:?} has {length} bytes, but keys of NVMe hosts have at most {KEY_BYTES_MAX}", length = .0.len())]
pub struct PrefixTooLong(String);

impl KeyRights {
    /// The keys that `host` may use; `None` for all.
    pub(crate) fn of(&self, host: &HostName) -> Option<Arc<KeyScope>> {
        match self {
            Self::All => None,
            Self::Scopes(scopes) => Some(scopes.get(host).cloned().unwrap_or_default()),
        }
    }

    /// The keys that every host may use that is not listed; `None` for all.
    pub(crate) fn of_unlisted(&self) -> Option<Arc<KeyScope>> {
        match self {
            Self::All => None,
            Self::Scopes(_) => Some(Arc::default()),
        }
    }

    /// The hosts with prefixes of their own.
    pub(crate) fn listed(&self) -> impl Iterator<Item = &HostName> {
        let listed = match self {
            Self::All => None,
            Self::Scopes(scopes) => Some(scopes.keys()),
        };
        listed.into_iter().flatten()
    }

    /// The prefixes of each host; `None` if every host may use all keys.
    #[must_use]
    pub fn prefixes(&self) -> Option<BTreeMap<String, Vec<String>>> {
        match self {
            Self::All => None,
            Self::Scopes(scopes) => {
                Some(scopes.iter().map(|(host, scope)| (host.to_string(), scope.texts())).collect())
            }
        }
    }
}

impl KeyScope {
    /// The keys that begin with one of these prefixes.
    ///
    /// # Errors
    /// A prefix that is longer than any key.
    pub fn new(prefixes: &[String]) -> Result<Self, PrefixTooLong> {
        match prefixes.iter().find(|prefix| prefix.len() > KEY_BYTES_MAX) {
            Some(prefix) => Err(PrefixTooLong(prefix.clone())),
            None => {
                Ok(Self { prefixes: prefixes.iter().map(|prefix| prefix.clone().into_bytes()).collect() })
            }
        }
    }

    /// Whether it has this key.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.prefixes.iter().any(|prefix| key.starts_with(prefix))
    }

    fn texts(&self) -> Vec<String> {
        self.prefixes.iter().map(|prefix| String::from_utf8_lossy(prefix).into_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(prefixes: &[&str]) -> KeyScope {
        let prefixes: Vec<_> = prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
        KeyScope::new(&prefixes).unwrap()
    }

    #[test]
    fn a_key_is_in_a_scope_if_it_begins_with_a_prefix() {
        let keys = [(&b"a/1"[..], true), (b"a/", true), (b"a", false), (b"b/a/", false), (b"", false)];
        for (key, expected) in keys {
            assert_eq!(scope(&["a/"]).contains(key), expected, "{key:?}");
        }
        assert!(scope(&["a/", "b"]).contains(b"b1"));
        assert!(scope(&[""]).contains(&[0, 255]));
        assert!(!scope(&[]).contains(b"a"));
    }

    #[test]
    fn a_host_without_prefixes_of_its_own_may_use_no_key() {
        let [host, other] = ["host", "other"].map(|name| name.parse::<HostName>().unwrap());
        let rights = KeyRights::Scopes([(host.clone(), Arc::new(scope(&["a"])))].into());
        let may_use = |scope: Option<Arc<KeyScope>>| scope.is_none_or(|scope| scope.contains(b"a"));
        assert!(may_use(rights.of(&host)) && !may_use(rights.of(&other)) && !may_use(rights.of_unlisted()));
        assert!(may_use(KeyRights::All.of(&other)) && may_use(KeyRights::All.of_unlisted()));
    }

    #[test]
    fn a_prefix_that_no_key_can_have_is_refused() {
        let error = KeyScope::new(&["a".repeat(17)]).unwrap_err();
        assert!(error.to_string().contains("17 bytes, but keys of NVMe hosts have at most 16"), "{error}");
        assert!(KeyScope::new(&["a".repeat(16)]).is_ok());
    }
}
