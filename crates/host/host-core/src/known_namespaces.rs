//! The identities under which an association knows its namespaces: other storage is never taken for one of them.
//!
//! An address may be answered by another machine after a reconnect, and a namespace id may have been given to other
//! storage. Lanes send a command by namespace id alone, so the commands of a namespace that reports another identity than
//! before fail for as long as it does. That holds for the life of the association: callers may still have commands and handles
//! of a namespace that was removed, so storage that got its id meanwhile is used by a new association only.

use std::collections::BTreeMap;
use std::fmt;

use proto::host_namespaces::{NAMESPACE_COUNT_MAX, NamespaceInfo};
use wire::id::Nsid;
use wire::log::ana::AnaState;
use wire::uuid::Uuid;

use crate::attachment::{Barrier, Inaccessible};

/// Identities beyond this number are forgotten once their namespaces are gone: a controller may make up many.
const KNOWN_COUNT_MAX: usize = 4 * NAMESPACE_COUNT_MAX;

/// The identifiers that a namespace reports. A scan may miss some of them, if a command of the scan fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Identity {
    uuid: Option<Uuid>,
    nguid: Option<[u8; 16]>,
    eui64: Option<[u8; 8]>,
}

impl Identity {
    fn of(info: &NamespaceInfo) -> Self {
        Self { uuid: info.uuid, nguid: info.nguid, eui64: info.eui64 }
    }

    /// Takes over the ids that this one lacks, if both are of one namespace: every id that both have is equal, and
    /// there is such an id. Returns whether they are.
    fn unites_with(&mut self, other: Self) -> bool {
        let compare = [
            (self.uuid.zip(other.uuid)).map(|(this, other)| this == other),
            (self.nguid.zip(other.nguid)).map(|(this, other)| this == other),
            (self.eui64.zip(other.eui64)).map(|(this, other)| this == other),
        ];
        let is_same = compare.contains(&Some(true)) && !compare.contains(&Some(false));
        if is_same {
            *self = Self {
                uuid: self.uuid.or(other.uuid),
                nguid: self.nguid.or(other.nguid),
                eui64: self.eui64.or(other.eui64),
            };
        }
        is_same
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |f: &mut fmt::Formatter<'_>, kind: &str, bytes: &[u8]| {
            f.write_str(kind)?;
            bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
        };
        match self {
            Self { uuid: Some(uuid), .. } => write!(f, "UUID {uuid}"),
            Self { nguid: Some(nguid), .. } => hex(f, "NGUID ", nguid),
            Self { eui64: Some(eui64), .. } => hex(f, "EUI64 ", eui64),
            _ => f.write_str("none"),
        }
    }
}

/// The identities of the namespaces of an association, through all its reconnects.
#[derive(Debug, Default)]
pub(crate) struct KnownNamespaces {
    known: BTreeMap<Nsid, Identity>,
    /// Namespaces that report another identity than the known one, by id.
    replaced: Vec<Nsid>,
}

impl KnownNamespaces {
    /// Takes the result of a scan. Returns whether other namespaces than before are replaced.
    pub(crate) fn on_scan(&mut self, namespaces: &[NamespaceInfo]) -> bool {
        if self.known.len() > KNOWN_COUNT_MAX {
            self.known.retain(|nsid, _| namespaces.binary_search_by_key(nsid, |info| info.nsid).is_ok());
        }
        let is_replaced = |info: &&NamespaceInfo| {
            let now = Identity::of(info);
            // A controller need not give a namespace an identity.
            if now == Identity::default() {
                return false;
            }
            let known = self.known.entry(info.nsid).or_insert(now);
            let is_other = !known.unites_with(now);
            if is_other && !self.replaced.contains(&info.nsid) {
                tracing::error!(
                    nsid = %info.nsid, %known, found = %now,
                    "other storage answers under a known namespace id: its commands fail until the known one answers"
                );
            }
            is_other
        };
        let replaced: Vec<Nsid> = namespaces.iter().filter(is_replaced).map(|info| info.nsid).collect();
        let has_changed = replaced != self.replaced;
        self.replaced = replaced;
        has_changed
    }

    /// Adds the replaced namespaces to those that the ANA log reports.
    pub(crate) fn with_replaced(&self, reported: Vec<(Nsid, AnaState)>) -> Inaccessible {
        let reported = reported.into_iter().map(|(nsid, state)| (nsid, Barrier::Ana(state)));
        let mut all: BTreeMap<Nsid, Barrier> = reported.collect();
        all.extend(self.replaced.iter().map(|nsid| (*nsid, Barrier::Replaced)));
        all.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use proto::host_namespaces::Ids;
    use wire::identify::namespace::IdentifyNamespace;
    use zerocopy::FromZeros;

    use super::*;

    fn info(nsid: u32, number: u8) -> NamespaceInfo {
        let uuid = (number > 0).then(|| Uuid::from_bytes([number; 16]));
        let mut identify = IdentifyNamespace::new_zeroed();
        (identify.nsze, identify.ncap) = (8.into(), 8.into());
        let ids = Ids { uuid, ..Ids::default() };
        NamespaceInfo::of_blocks(Nsid::new(nsid), &ids, &identify).unwrap()
    }

    #[test]
    fn a_namespace_with_another_identity_is_lost_until_it_has_its_own_again() {
        let mut known = KnownNamespaces::default();
        assert!(!known.on_scan(&[info(1, 1), info(2, 2), info(3, 0)]));
        assert!(known.on_scan(&[info(1, 9), info(2, 2), info(3, 3)]), "the second machine answers");
        assert_eq!(known.replaced, [Nsid::new(1)]);
        let changing = (Nsid::new(2), AnaState::CHANGE);
        let barriers = [(Nsid::new(1), Barrier::Replaced), (Nsid::new(2), Barrier::Ana(AnaState::CHANGE))];
        assert_eq!(*known.with_replaced(vec![changing]), barriers);
        assert!(!known.on_scan(&[info(1, 9), info(2, 2), info(3, 3)]));
        assert!(known.on_scan(&[info(1, 1), info(2, 2), info(3, 0)]), "the first one again");
        assert_eq!(known.replaced, []);
    }

    #[test]
    fn a_namespace_of_which_a_scan_has_missed_a_part_is_the_same() {
        let with = |uuid: Option<u8>, nguid: Option<u8>| {
            let (uuid, nguid) = (uuid.map(|id| Uuid::from_bytes([id; 16])), nguid.map(|id| [id; 16]));
            NamespaceInfo { uuid, nguid, ..info(1, 0) }
        };
        let mut known = KnownNamespaces::default();
        assert!(!known.on_scan(&[with(None, Some(1))]), "no descriptors");
        assert!(!known.on_scan(&[with(Some(1), Some(1))]), "known by its NGUID");
        assert!(!known.on_scan(&[with(Some(1), None)]), "and by its UUID from then on");
        assert!(known.on_scan(&[with(Some(2), Some(1))]), "another one");
        assert!(!known.on_scan(&[with(Some(1), Some(2))]), "still replaced: nothing has changed");
        assert!(known.on_scan(&[with(None, Some(1))]));
        let mut known = KnownNamespaces::default();
        known.on_scan(&[with(Some(1), None)]);
        assert!(known.on_scan(&[with(None, Some(1))]), "nothing shows that it is the same");
    }

    #[test]
    fn a_namespace_that_was_gone_does_not_come_back_as_another() {
        let mut known = KnownNamespaces::default();
        known.on_scan(&[info(1, 1), info(2, 2)]);
        assert!(!known.on_scan(&[info(1, 1)]));
        assert!(known.on_scan(&[info(1, 1), info(2, 7)]));
        assert_eq!(known.replaced, [Nsid::new(2)]);
        for first in (3..).step_by(100).take(KNOWN_COUNT_MAX / 100 + 3) {
            let made_up: Vec<_> = (first..first + 100).map(|nsid| info(nsid, 9)).collect();
            known.on_scan(&made_up);
        }
        assert!(known.known.len() <= KNOWN_COUNT_MAX + 100);
    }
}
