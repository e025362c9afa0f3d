//! Who may use what: the hosts of a subsystem, and the rights of a host to a namespace.
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

use std::collections::BTreeSet;

use wire::nqn::HostName;

use crate::objects::key_rights::KeyRights;

/// Which hosts may use a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Any.
    Any,
    /// These.
    Only(BTreeSet<HostName>),
}

impl Access {
    /// Whether `host` may connect.
    #[must_use]
    pub fn allows(&self, host: &HostName) -> bool {
        match self {
            Self::Any => true,
            Self::Only(hosts) => hosts.contains(host),
        }
    }

    /// The names that it lists; `None` for any host.
    pub(crate) fn names(&self) -> Option<Vec<String>> {
        match self {
            Self::Any => None,
            Self::Only(hosts) => Some(hosts.iter().map(ToString::to_string).collect()),
        }
    }

    /// The hosts that it lists.
    pub(crate) fn listed(&self) -> impl Iterator<Item = &HostName> {
        let listed = match self {
            Self::Any => None,
            Self::Only(hosts) => Some(hosts),
        };
        listed.into_iter().flatten()
    }
}

/// The right of a host to a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// The host does not see the namespace.
    None,
    /// The host may read: the namespace is write protected for it.
    Read,
    /// The host may read and write.
    Write,
}

/// The rights to a namespace of the hosts that may connect to its subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRights {
    /// The hosts that see it.
    pub visible_to: Access,
    /// Of these, the hosts that may write to it.
    pub writable_by: Access,
    /// The keys that each of these hosts may use, of a key-value namespace.
    pub keys: KeyRights,
}

impl HostRights {
    /// Every host sees the namespace and may write to it.
    pub const ALL: Self = Self { visible_to: Access::Any, writable_by: Access::Any, keys: KeyRights::All };

    /// The right of `host`.
    #[must_use]
    pub fn of(&self, host: &HostName) -> Right {
        Self::right(self.visible_to.allows(host), self.writable_by.allows(host))
    }

    /// The right of every host that no list names.
    pub(crate) fn of_unlisted(&self) -> Right {
        let is_any = |access: &Access| matches!(access, Access::Any);
        Self::right(is_any(&self.visible_to), is_any(&self.writable_by))
    }

    /// The hosts that a list names.
    pub(crate) fn listed(&self) -> impl Iterator<Item = &HostName> {
        self.visible_to.listed().chain(self.writable_by.listed()).chain(self.keys.listed())
    }

    fn right(sees: bool, may_write: bool) -> Right {
        match (sees, may_write) {
            (false, _) => Right::None,
            (true, false) => Right::Read,
            (true, true) => Right::Write,
        }
    }
}

/// The rights to a namespace while reactors go over from one version of the namespace table to the next.
#[derive(Clone, Debug)]
pub struct VersionedRights {
    newest: HostRights,
    /// The rights before, each with the version of the table that replaced it; the oldest first.
    former: Vec<(u64, HostRights)>,
}

impl VersionedRights {
    pub(crate) fn new(rights: HostRights) -> Self {
        Self { newest: rights, former: Vec::new() }
    }

    /// The rights of the newest version.
    pub(crate) fn newest(&self) -> &HostRights {
        &self.newest
    }

    /// Replaces the rights from `version` on. Returns those before. `version_in_use` is the version that every reactor
    /// serves.
    pub(crate) fn replace(&mut self, rights: HostRights, version: u64, version_in_use: u64) -> HostRights {
        self.former.retain(|(until, _)| *until > version_in_use);
        let before = std::mem::replace(&mut self.newest, rights);
        self.former.push((version, before.clone()));
        before
    }

    /// Whether every reactor serves the newest rights.
    pub(crate) fn are_settled(&self, version_in_use: u64) -> bool {
        self.former.iter().all(|(until, _)| *until <= version_in_use)
    }

    /// The right that `host` has on every reactor: a right that is lost is lost at once, and one that is gained holds
    /// once every reactor serves it.
    pub(crate) fn of(&self, host: &HostName, version_in_use: u64) -> Right {
        let former = self.former.iter().filter(|(until, _)| *until > version_in_use);
        former.map(|(_, rights)| rights.of(host)).fold(self.newest.of(host), Right::min)
    }
}

/// The hosts that are notified of the change of a namespace.
pub(crate) enum Concerned {
    /// Those that see it under these rights.
    WhoSees(HostRights),
    /// Those that have another right than before.
    WhoseRightChanges(HostRights, HostRights),
}

impl Concerned {
    pub(crate) fn includes(&self, host: &HostName) -> bool {
        match self {
            Self::WhoSees(rights) => rights.of(host) != Right::None,
            Self::WhoseRightChanges(before, after) => before.of(host) != after.of(host),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(hosts: &[&str]) -> Access {
        Access::Only(hosts.iter().map(|host| host.parse().unwrap()).collect())
    }

    fn host(name: &str) -> HostName {
        name.parse().unwrap()
    }

    #[test]
    fn a_host_that_no_list_names_gets_the_least() {
        let rights = HostRights { writable_by: only(&["a"]), ..HostRights::ALL };
        let of = |rights: &HostRights| ["a", "b"].map(|name| rights.of(&host(name)));
        assert_eq!((of(&rights), rights.of_unlisted()), ([Right::Write, Right::Read], Right::Read));
        let rights = HostRights { visible_to: only(&["b"]), ..HostRights::ALL };
        assert_eq!((of(&rights), rights.of_unlisted()), ([Right::None, Right::Write], Right::None));
        let rights = HostRights { visible_to: only(&[]), writable_by: only(&["a"]), ..HostRights::ALL };
        assert_eq!((of(&rights), rights.of_unlisted()), ([Right::None; 2], Right::None));
        assert_eq!((of(&HostRights::ALL), HostRights::ALL.of_unlisted()), ([Right::Write; 2], Right::Write));
        let empty = HostName::from_wire(&[0]).unwrap();
        assert_eq!(rights.of(&empty), Right::None, "a host without a name is in no list");
    }

    #[test]
    fn a_right_is_lost_at_once_and_gained_when_every_reactor_serves_it() {
        let seen_by = |hosts: &[&str]| HostRights { visible_to: only(hosts), ..HostRights::ALL };
        let mut rights = VersionedRights::new(seen_by(&["a"]));
        assert_eq!(rights.replace(seen_by(&["b"]), 5, 4), seen_by(&["a"]));
        let of = |rights: &VersionedRights, in_use| ["a", "b"].map(|name| rights.of(&host(name), in_use));
        assert_eq!(of(&rights, 4), [Right::None, Right::None]);
        assert_eq!(of(&rights, 5), [Right::None, Right::Write]);
        assert_eq!([4, 5].map(|in_use| rights.are_settled(in_use)), [false, true]);
        // Back and forth before any reactor has followed.
        rights.replace(seen_by(&["a"]), 6, 4);
        assert_eq!(of(&rights, 4), [Right::None, Right::None]);
        assert_eq!(of(&rights, 5), [Right::None, Right::None], "some reactors may still serve version 5");
        assert_eq!(of(&rights, 6), [Right::Write, Right::None]);
        rights.replace(HostRights::ALL, 7, 6);
        assert_eq!(rights.former.len(), 1, "older ones are forgotten");
    }
}
