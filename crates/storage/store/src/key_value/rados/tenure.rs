//! The ownership of keys for as long as the target has them: a session, and after a lost lease another one.
//!
//! ```text
//! open ─▶ session ──lease lost──▶ waits, then tries every few seconds ──the other owner is gone──▶ the next session
//!            └── given back at the end           └── ends with the target
//! ```
//!
//! Nothing passes from one session to the next: neither what is in memory, nor what was on its way to the cluster, since the
//! connection of the lost one is refused.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use ceph::{Library, Waker};

use super::RadosPlace;
use super::lease::{NotTaken, Times, lock};
use super::session::{Pools, Session};

/// Who has the keys, over all sessions.
pub(super) struct Tenure {
    library: &'static Library,
    place: RadosPlace,
    times: Times,
    /// The present one, or the last.
    session: Mutex<Arc<Session>>,
    is_closing: AtomicBool,
    /// Of the reactors.
    wakers: Mutex<Vec<Arc<Waker>>>,
}

impl Tenure {
    /// Takes the keys. Waits for the cluster, and for an owner that may be dead.
    pub(super) fn begin(
        library: &'static Library,
        place: &RadosPlace,
        times: Times,
    ) -> Result<Self, NotTaken> {
        let session = Session::begin(&Pools::open(library, place)?, place, times, true)?;
        Ok(Self {
            library,
            place: place.clone(),
            times,
            session: Mutex::new(Arc::new(session)),
            is_closing: AtomicBool::new(false),
            wakers: Mutex::default(),
        })
    }

    pub(super) fn place(&self) -> &RadosPlace {
        &self.place
    }

    /// The present session, or the last one.
    pub(super) fn session(&self) -> Arc<Session> {
        Arc::clone(&lock(&self.session))
    }

    /// A reactor is woken when the lease is lost, and when there is the next session.
    pub(super) fn add(&self, waker: &Arc<Waker>) {
        lock(&self.wakers).push(Arc::clone(waker));
    }

    fn wake_all(&self) {
        lock(&self.wakers).iter().for_each(|waker| waker.wake());
    }

    /// How the thread that keeps the lease works.
    pub(super) fn keep(&self) {
        loop {
            let session = self.session();
            session.lease.keep(|| session.listing.forget());
            self.wake_all();
            let Some(next) = self.take_again(&session) else { return };
            let next = Arc::new(next);
            {
                let mut present = lock(&self.session);
                if self.is_closing.load(Ordering::SeqCst) {
                    return next.lease.end(|| true);
                }
                *present = Arc::clone(&next);
            }
            tracing::info!(place = %self.place, "the keys of a namespace in a cluster are served again");
            self.wake_all();
            let thread = std::thread::Builder::new().name("kv-strays".into());
            if let Err(error) = thread.spawn(move || next.clean()) {
                tracing::warn!(place = %self.place, %error, "parts of unfinished values not removed");
            }
        }
    }

    /// The next session, once the other owner is gone; `None` if this target ends.
    fn take_again(&self, lost: &Session) -> Option<Session> {
        let mut pools = None;
        // Whoever waits for the keys has them first: an administrator may have had this target refused for it.
        if lost.lease.is_over_after(self.times.take) {
            return None;
        }
        while !lost.lease.is_over_after(self.times.take / 8) {
            let opened = match pools.take() {
                Some(pools) => Ok(pools),
                // A connection that is not refused.
                None => Pools::open(self.library, &self.place)
                    .and_then(|pools| pools.refuse(lost).map(|()| pools)),
            };
            let taken = opened.map_err(NotTaken::from).and_then(|opened| {
                let taken = Session::begin(&opened, &self.place, self.times, false);
                if matches!(taken, Err(NotTaken::Why(_))) {
                    pools = Some(opened);
                }
                taken
            });
            match taken {
                Ok(session) => return Some(session),
                Err(why) => tracing::debug!(place = %self.place, %why, "keys not taken again"),
            }
        }
        None
    }

    /// Gives the keys up: gives the lease back, if nothing is on its way to the cluster, for which it waits.
    pub(super) fn end(&self) {
        self.is_closing.store(true, Ordering::SeqCst);
        let session = self.session();
        session.lease.end(|| session.open_changes.load(Ordering::SeqCst) == 0);
    }
}
