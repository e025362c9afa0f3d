//! What the reactors and the operator share of a namespace on an RBD image.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ceph::{Access, ClusterName, Ended, Image, ImageName, Library};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::rbd_sharing::{OwnEntries, Sharing};
use crate::namespace::{Generation, Geometry, StoreError};

/// Time that a cluster has for a request unless configured, s: hosts with Linux wait for 30 s.
pub(crate) const DEADLINE_S_DEFAULT: u32 = 25;

/// Time for which a lock's holder may stay in the cluster's lists after its death, and a little.
const LOCK_WAIT: Duration = Duration::from_secs(45);

/// The image of a namespace, and how it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdPlace {
    /// The cluster, and the user.
    pub cluster: ClusterName,
    /// The image, or a snapshot of one.
    pub image: ImageName,
    /// The size that the image is created with if there is none.
    pub create_bytes: Option<u64>,
    /// What to do about a lock that another client has.
    pub lock: LockPolicy,
    /// What is shared with other targets, with [`LockPolicy::Share`]. Not part of the text of a specification.
    pub sharing: Option<Sharing>,
    /// Time that the cluster has for a request, s.
    pub deadline_s: u32,
}

/// What to do about a lock that another client has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockPolicy {
    /// Wait until its holder has given it up or is known to be dead, for at most 45 s.
    #[default]
    Acquire,
    /// Refuse the namespace at once.
    Refuse,
    /// Take it, and have the cluster refuse its former holder.
    Break,
    /// Share the image with other targets that share it too: the lock passes between them as they write.
    Share,
}

/// Settings of a namespace on an image.
#[derive(Clone, Debug)]
pub(crate) struct RbdSettings {
    pub(crate) place: RbdPlace,
    pub(crate) block_bytes: Option<u32>,
    pub(crate) is_read_only: bool,
    /// Time for which a lock's holder, who may be dead, is waited for.
    pub(crate) lock_wait: Duration,
    /// Its entries among the targets that share the image.
    pub(crate) entries: OwnEntries,
}

/// What reactors and the operator share.
pub(super) struct Shared {
    pub(super) library: &'static Library,
    pub(super) settings: RbdSettings,
    pub(super) block_bytes: u32,
    pub(super) is_read_only: bool,
    pub(super) identity: String,
    pub(super) gate: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) object_bytes: u64,
    pub(super) reason: Mutex<Option<String>>,
    /// Whether it is closed because another client writes, or could.
    pub(super) is_fenced: AtomicBool,
    pub(super) is_full: AtomicBool,
    /// A thread looks at the image.
    pub(super) is_looked_at: AtomicBool,
    pub(super) session: Mutex<Option<Arc<Session>>>,
}

/// An image that was opened, as the reactors share it.
pub(super) struct Session {
    pub(super) image: Option<Arc<Image>>,
    /// This target's entry among those that share the image.
    pub(super) entry: Option<String>,
    /// The reactor that takes in completions: the owner of its requests; 0 for none.
    pub(super) collector: AtomicU32,
    pub(super) inboxes: Mutex<HashMap<u32, Arc<Inbox>>>,
    /// Requests without an answer within their deadline, of all reactors.
    pub(super) overdue_count: AtomicU32,
    /// Its size at the last look, bytes.
    pub(super) seen_bytes: AtomicU64,
}

/// The ends of a reactor's requests that another reactor has taken in.
pub(super) struct Inbox {
    bell: OwnedFd,
    ended: Mutex<Vec<Ended>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inbox {
    pub(super) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { bell, ended: Mutex::default() })
    }

    pub(super) fn bell(&self) -> io::Result<OwnedFd> {
        self.bell.try_clone()
    }

    pub(super) fn ring(&self) {
        // The counter is at its end only if it is readable already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Takes what is there into `into`, which is empty.
    pub(super) fn take(&self, into: &mut Vec<Ended>) {
        let _ = rustix::io::read(self.bell.as_fd(), &mut [0; 8]);
        std::mem::swap(into, &mut *lock(&self.ended));
    }
}

impl Session {
    pub(super) fn image(&self) -> &Arc<Image> {
        self.image.as_ref().expect("it is there until the session is closed")
    }

    /// Removes its entry among the targets that share the image. Waits for the cluster.
    pub(super) fn leave(&self) {
        if let Some(image) = &self.image {
            leave(image, self.entry.as_deref());
        }
    }

    pub(super) fn add(&self, owner: u32, inbox: Arc<Inbox>) {
        lock(&self.inboxes).insert(owner, inbox);
    }

    /// A reactor leaves. If it took in completions, another one does from now on.
    pub(super) fn remove(&self, owner: u32) {
        let mut inboxes = lock(&self.inboxes);
        inboxes.remove(&owner);
        if self.collector.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            inboxes.values().for_each(|inbox| inbox.ring());
        }
    }

    /// Passes the end of a request to the reactor that started it.
    pub(super) fn pass_on(&self, ended: Ended) {
        let inboxes = lock(&self.inboxes);
        // A reactor that has left with requests in flight has leaked their buffers.
        let Some(inbox) = inboxes.get(&ended.owner()) else { return };
        lock(&inbox.ended).push(ended);
        inbox.ring();
    }
}

impl Drop for Session {
    /// Closing waits for the cluster, and this thread may be a reactor.
    fn drop(&mut self) {
        if let Some(image) = self.image.take() {
            let closing = std::thread::Builder::new().name("rbd-close".into());
            let entry = self.entry.take();
            let _ = closing.spawn(move || {
                leave(&image, entry.as_deref());
                drop(image);
            });
        }
    }
}

fn leave(image: &Image, entry: Option<&str>) {
    if let Some(entry) = entry
        && let Err(error) = image.remove_metadata(entry)
    {
        tracing::debug!(entry, %error, "entry among the targets of an image not removed");
    }
}

impl RbdSettings {
    pub(crate) fn new(place: RbdPlace, block_bytes: Option<u32>, is_read_only: bool) -> Self {
        Self { place, block_bytes, is_read_only, lock_wait: LOCK_WAIT, entries: OwnEntries::default() }
    }

    pub(super) fn reads_only(&self) -> bool {
        self.is_read_only || self.place.image.snapshot.is_some()
    }
}

impl Shared {
    pub(super) fn geometry(&self) -> Geometry {
        let preferred = u32::try_from(self.object_bytes / u64::from(self.block_bytes)).unwrap_or(1).max(1);
        Geometry {
            is_read_only: self.is_read_only,
            can_deallocate: !self.is_read_only,
            has_other_writers: self.is_lent(),
            preferred_deallocate_blocks: preferred,
            ..Geometry::new(self.block_bytes, self.bytes() / u64::from(self.block_bytes))
        }
    }

    pub(super) fn name(&self) -> &ImageName {
        &self.settings.place.image
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    pub(super) fn gate(&self) -> Generation {
        Generation(self.gate.load(Ordering::Acquire))
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Whether the lock passes to other targets as they write.
    fn is_lent(&self) -> bool {
        !self.is_read_only && self.settings.place.lock == LockPolicy::Share
    }

    pub(super) fn deadline_ns(&self) -> u64 {
        u64::from(self.settings.place.deadline_s) * 1_000_000_000
    }

    /// The open image, unless it is being reopened.
    pub(super) fn session(&self) -> Option<Arc<Session>> {
        lock(&self.session).clone()
    }

    /// The answer to requests of a closed namespace.
    pub(super) fn closed_error(&self) -> StoreError {
        if self.is_fenced.load(Ordering::Acquire) { StoreError::Fenced } else { StoreError::Closed }
    }

    /// Closes the namespace if it is still in this state.
    pub(super) fn close(&self, gate: Generation, why: String) {
        let closed = self.gate.compare_exchange(gate.0, gate.0 + 1, Ordering::AcqRel, Ordering::Acquire);
        if !gate.is_closed() && closed.is_ok() {
            tracing::error!(image = %self.name(), why, "namespace closed");
            *lock(&self.reason) = Some(why);
        }
    }

    /// Closes the namespace because another client may write to the image.
    pub(super) fn fence(&self, gate: Generation, why: String) {
        if self.gate() == gate {
            self.is_fenced.store(true, Ordering::Release);
        }
        self.close(gate, why);
    }

    /// The size of the image, if it is still there. One that is open for reading has no watch: its removal is seen by opening
    /// it once more, and a change of its size is not seen. Waits for the cluster.
    fn bytes_now(&self, session: &Session) -> Result<u64, ceph::Error> {
        let image = session.image();
        if self.is_read_only {
            let now = Image::open(image.cluster(), self.name(), Access::ReadOnly)?;
            // Another image of this name is as good as none.
            if now.identity() != self.identity {
                let action = format!("find the image {}", self.name());
                return Err(ceph::Error::Call { action, errno: Errno::NOENT.raw_os_error() });
            }
        }
        image.bytes()
    }

    pub(super) fn set_full(&self, is_full: bool) {
        if self.is_full.load(Ordering::Relaxed) != is_full {
            self.is_full.store(is_full, Ordering::Relaxed);
        }
    }

    /// Has a thread look at the image, unless one still does.
    pub(super) fn look(self: &Arc<Self>, session: &Arc<Session>) {
        if self.is_looked_at.swap(true, Ordering::AcqRel) {
            return;
        }
        let (shared, session) = (Arc::clone(self), Arc::clone(session));
        let gate = shared.gate();
        let look = move || {
            match shared.bytes_now(&session) {
                Ok(bytes) => session.seen_bytes.store(bytes, Ordering::Release),
                // While it is open for writing, its watch keeps `rbd rm` from it.
                Err(error) if error.errno() == Some(Errno::NOENT.raw_os_error()) => {
                    shared.close(gate, "its image or snapshot was removed".into());
                }
                Err(error) => tracing::debug!(image = %shared.name(), %error, "image not looked at"),
            }
            if !shared.is_read_only && !shared.is_lent() && matches!(session.image().has_lock(), Ok(false)) {
                shared.fence(gate, "the exclusive lock of its image was lost to another client".into());
            }
            shared.is_looked_at.store(false, Ordering::Release);
        };
        let thread = std::thread::Builder::new().name("rbd-look".into());
        if thread.spawn(look).is_err() {
            self.is_looked_at.store(false, Ordering::Release);
        }
    }
}
