//! One connection to the cluster with one ownership of the keys, which all reactors share: once its lease is lost, it serves
//! nothing more.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use ceph::{Cluster, Library, Objects};

use super::RadosPlace;
use super::format::{HEAD_BYTES, Head, head_name, part_name, part_of};
use super::lease::{Candidate, Lease, NotTaken, Times};
use super::listing::Listing;
use super::parts::Versions;
use crate::key_value::random::Random;

/// Time that a cluster has for a connection, s.
const CONNECT_LIMIT_S: u32 = 10;

/// The objects of the keys, over one connection.
pub(super) struct Pools {
    heads: Arc<Objects>,
    parts: Arc<Objects>,
}

impl Pools {
    /// A connection of its own: when it is blocklisted, no other namespace is. Waits for the cluster.
    pub(super) fn open(library: &'static Library, place: &RadosPlace) -> Result<Self, ceph::Error> {
        let cluster = Arc::new(Cluster::connect(library, &place.cluster, CONNECT_LIMIT_S)?);
        let heads = Objects::open(&cluster, &place.pool, &place.namespace)?;
        let parts = Objects::open(&cluster, &place.pool, &format!("{}.parts", place.namespace))?;
        Ok(Self { heads, parts })
    }

    /// Has the cluster refuse what an earlier session may still have on its way to it. Waits for the cluster.
    pub(super) fn refuse(&self, lost: &Session) -> Result<(), ceph::Error> {
        self.heads.cluster().blocklist(lost.lease.address(), Lease::BLOCKLIST_S)
    }
}

/// What reactors and the operator share.
pub(super) struct Session {
    pub(super) place: RadosPlace,
    pub(super) heads: Arc<Objects>,
    pub(super) parts: Arc<Objects>,
    pub(super) lease: Arc<Lease>,
    /// Parts that were there at the start, by key. Each partition takes those of its keys.
    found: HashMap<Box<[u8]>, Versions>,
    /// Unix time, and the time since the boot, when the keys were opened: pairs expire by these.
    pub(super) opened: (i64, i64),
    pub(super) listing: Arc<Listing>,
    /// Changes that may still be on their way to the cluster.
    pub(super) open_changes: AtomicU64,
}

impl Session {
    /// Takes the ownership of the keys. Waits for the cluster, and for an owner that may be dead, as the place says.
    pub(super) fn begin(
        pools: &Pools,
        place: &RadosPlace,
        times: Times,
        is_first: bool,
    ) -> Result<Self, NotTaken> {
        let Pools { heads, parts } = pools;
        let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let candidate = Candidate {
            name: format!("nvlane on {}, process {}", machine.trim(), std::process::id()),
            token: Random::System.hash_seed(),
            refuses: place.refuses && is_first,
            is_quiet: !is_first,
        };
        let lease = Arc::new(Lease::take(heads, &candidate, times)?);
        let mut found: HashMap<Box<[u8]>, Versions> = HashMap::new();
        let listed = parts.list(|name| {
            if let Some((key, version, number)) = part_of(name) {
                let count = found.entry(key).or_default().entry(version).or_default();
                *count = (*count).max(number + 1);
            }
            true
        });
        if let Err(error) = listed {
            lease.end(|| true);
            return Err(error.into());
        }
        let now = linux::MomentClock::new(Instant::now()).at(0);
        Ok(Self {
            place: place.clone(),
            heads: Arc::clone(heads),
            parts: Arc::clone(parts),
            listing: Listing::new(place, heads, &lease),
            lease,
            found,
            opened: (now.unix_s, now.since_boot_s),
            open_changes: AtomicU64::new(0),
        })
    }

    /// Parts that were there at the start, of the chosen keys.
    pub(super) fn found_of(&self, is_chosen: impl Fn(&[u8]) -> bool) -> HashMap<Box<[u8]>, Versions> {
        let chosen = self.found.iter().filter(|(key, _)| is_chosen(key));
        chosen.map(|(key, versions)| (key.clone(), versions.clone())).collect()
    }

    /// How the thread that removes strays works.
    pub(super) fn clean(&self) {
        match self.remove_strays() {
            Ok(0) => {}
            Ok(count) => tracing::info!(place = %self.place, count, "parts of unfinished values removed"),
            Err(error) => {
                tracing::warn!(place = %self.place, %error, "parts of unfinished values not removed");
            }
        }
    }

    /// Removes parts that no head refers to: of values that were being written when an earlier owner died, or that it had
    /// not removed yet.
    fn remove_strays(&self) -> Result<u64, ceph::Error> {
        let mut removed_count = 0;
        for (key, versions) in &self.found {
            let head = self.heads.read(&head_name(key), HEAD_BYTES)?;
            let current = head.as_deref().and_then(Head::decode).filter(|head| head.part_count() > 0);
            for (&version, &count) in versions {
                // Versions of this owner are no strays, and a head never gets one of an earlier owner again.
                if version >= self.lease.cas_start || current.is_some_and(|head| head.version == version) {
                    continue;
                }
                for number in 0..count {
                    if !self.lease.is_valid() {
                        return Ok(removed_count);
                    }
                    self.parts.remove(&part_name(key, version, number))?;
                    removed_count += 1;
                }
            }
        }
        Ok(removed_count)
    }
}
