//! Several targets before one image: each enters its subsystem and its controller IDs into the image's metadata.
//!
//! librbd passes the exclusive lock between the targets as they write. An entry, `nvlane.target.CLIENT.NUMBER`, counts while
//! its client watches the image; a target enters itself before it looks at the others', so that of two that do not go
//! together at least one sees it.

use std::collections::HashSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ceph::{Error, Image};
use wire::id::Cntlid;

/// Keys of entries start with this.
const KEY_START: &str = "nvlane.target.";

/// Why hosts can take this target and others before the same image for one: its part of a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// The name of the subsystem.
    pub subsystem: String,
    /// Controller IDs that this target gives out.
    pub cntlids: RangeInclusive<u16>,
}

/// A target that shares an image.
pub(super) struct Sharer {
    key: String,
    client: i64,
    /// Where its client is, if it lives.
    pub(super) address: Option<String>,
    sharing: Sharing,
    /// It is this namespace itself: its image was opened before, and is perhaps not closed yet.
    is_own: bool,
}

/// The keys of all entries of a namespace.
pub(crate) type OwnEntries = Arc<Mutex<HashSet<String>>>;

impl Default for Sharing {
    fn default() -> Self {
        Self { subsystem: String::new(), cntlids: 1..=Cntlid::MAX.get() }
    }
}

impl fmt::Display for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{} {}", self.cntlids.start(), self.cntlids.end(), self.subsystem)
    }
}

impl Sharing {
    fn parse(text: &str) -> Option<Self> {
        let (ids, subsystem) = text.split_once(' ')?;
        let (first, last) = ids.split_once('-')?;
        Some(Self { subsystem: subsystem.into(), cntlids: first.parse().ok()?..=last.parse().ok()? })
    }

    /// Whether a host could get the same controller ID of the same subsystem from both.
    fn is_beside(&self, other: &Self) -> bool {
        let (one, two) = (&self.cntlids, &other.cntlids);
        self.subsystem != other.subsystem || one.end() < two.start() || two.end() < one.start()
    }
}

impl Sharer {
    fn of(key: &str, value: &str, watchers: &[(i64, String)], own: &OwnEntries) -> Option<Self> {
        let (client, _) = key.strip_prefix(KEY_START)?.split_once('.')?;
        let client = client.parse().ok()?;
        let address = watchers.iter().find(|(id, _)| *id == client).map(|(_, address)| address.clone());
        let is_own = own.lock().unwrap_or_else(PoisonError::into_inner).contains(key);
        Some(Self { key: key.into(), client, address, sharing: Sharing::parse(value)?, is_own })
    }
}

impl fmt::Display for Sharer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, address, sharing: Sharing { subsystem, cntlids }, .. } = self;
        let address = address.as_deref().unwrap_or("no address");
        write!(
            f,
            "client.{client} at {address} (controller IDs {} to {} of {subsystem})",
            cntlids.start(),
            cntlids.end()
        )
    }
}

/// The targets that have entered themselves, the dead as well. Waits for the cluster.
pub(super) fn sharers(
    image: &Image,
    watchers: &[(i64, String)],
    own: &OwnEntries,
) -> Result<Vec<Sharer>, Error> {
    let entries = image.metadata()?;
    Ok(entries.iter().filter_map(|(key, value)| Sharer::of(key, value, watchers, own)).collect())
}

/// Whether a client, given by its number, has entered itself.
pub(super) fn has_entered(sharers: &[Sharer], client: i64) -> bool {
    sharers.iter().any(|sharer| sharer.client == client)
}

/// Enters this target, and returns the entry's key. Waits for the cluster and the lock.
pub(super) fn enter(image: &Image, sharing: &Sharing, own: &OwnEntries) -> Result<String, Error> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let key = format!("{KEY_START}{}.{number}", image.cluster().client_id());
    own.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone());
    image.set_metadata(&key, &sharing.to_string())?;
    Ok(key)
}

/// The living target among these with which this one cannot share.
pub(super) fn conflicting<'a>(sharers: &'a [Sharer], sharing: &Sharing) -> Option<&'a Sharer> {
    let is_other = |sharer: &&Sharer| sharer.address.is_some() && !sharer.is_own;
    sharers.iter().filter(is_other).find(|sharer| !sharer.sharing.is_beside(sharing))
}

/// Removes the entries of the dead. Waits for the cluster and the lock.
pub(super) fn forget_dead(image: &Image, sharers: &[Sharer]) {
    for sharer in sharers.iter().filter(|sharer| sharer.address.is_none()) {
        if let Err(error) = image.remove_metadata(&sharer.key) {
            tracing::debug!(key = sharer.key, %error, "entry of a dead target not removed");
        }
    }
}
