//! Lists of all keys, made by a thread, for all reactors.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ceph::{Objects, Waker};

use super::RadosPlace;
use super::format::key_of;
use super::lease::{Lease, lock};
use crate::key_value::durable::KeyList;

/// Time for which a list is kept for its next page.
const KEPT: Duration = Duration::from_secs(60);

/// Lists of all keys of a session.
pub(super) struct Listing {
    place: RadosPlace,
    heads: Arc<Objects>,
    lease: Arc<Lease>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Lists begun, and ended.
    begun: u64,
    ended: u64,
    /// The list that is asked for.
    wanted: u64,
    /// The last one, and when it was used last; `None` if it failed.
    last: Option<(KeyList, Instant)>,
    wakers: Vec<Arc<Waker>>,
}

impl Listing {
    pub(super) fn new(place: &RadosPlace, heads: &Arc<Objects>, lease: &Arc<Lease>) -> Arc<Self> {
        let (place, heads, lease) = (place.clone(), Arc::clone(heads), Arc::clone(lease));
        Arc::new(Self { place, heads, lease, state: Mutex::default() })
    }

    /// The number of the list to wait for: one that begins from now on if `is_first`, else any that is still there.
    pub(super) fn want(self: &Arc<Self>, is_first: bool, waker: &Arc<Waker>) -> u64 {
        let mut listing = lock(&self.state);
        if !is_first && listing.last.is_some() {
            return listing.ended;
        }
        let wanted = listing.begun + 1;
        listing.wakers.push(Arc::clone(waker));
        let is_running = listing.begun > listing.ended;
        listing.wanted = wanted;
        if !is_running {
            listing.begun += 1;
            let this = Arc::clone(self);
            let thread = std::thread::Builder::new().name("kv-list".into());
            if thread.spawn(move || this.list()).is_err() {
                listing.ended = listing.begun;
                listing.last = None;
                listing.wakers.drain(..).for_each(|waker| waker.wake());
            }
        }
        wanted
    }

    /// The list of this number or a later one, if it has ended; the inner `None` if it failed.
    pub(super) fn listed(&self, wanted: u64) -> Option<Option<KeyList>> {
        let mut listing = lock(&self.state);
        (listing.ended >= wanted).then(|| {
            let (keys, used) = listing.last.as_mut()?;
            *used = Instant::now();
            Some(Arc::clone(keys))
        })
    }

    fn list(&self) {
        loop {
            let mut keys = Vec::new();
            let result = self.heads.list(|name| {
                keys.extend(key_of(name));
                !self.lease.is_lost()
            });
            let last = match result {
                Ok(()) if !self.lease.is_lost() => {
                    keys.sort_unstable();
                    Some((Arc::new(keys), Instant::now()))
                }
                Ok(()) => None,
                Err(error) => {
                    tracing::warn!(place = %self.place, %error, "keys not listed");
                    None
                }
            };
            let mut listing = lock(&self.state);
            listing.last = last;
            listing.ended = listing.begun;
            // Those that wait for a later one are woken again.
            if listing.wanted <= listing.ended {
                return listing.wakers.drain(..).for_each(|waker| waker.wake());
            }
            listing.wakers.iter().for_each(|waker| waker.wake());
            listing.begun += 1;
        }
    }

    /// Forgets a list that nobody reads on.
    pub(super) fn forget(&self) {
        let mut listing = lock(&self.state);
        if listing.last.as_ref().is_some_and(|(_, used)| used.elapsed() > KEPT) {
            listing.last = None;
        }
    }
}
