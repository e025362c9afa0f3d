//! A namespace on an RBD image of a Ceph cluster: opening, locking, resizing and reopening it.
//!
//! Calls that wait for the cluster run in threads of their own, and their callers wait for a bounded time.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ceph::{Access, Cluster, ClusterName, Ended, Image, ImageName, Library};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::rbd_backend::RbdBackend;
use crate::health::Health;
use crate::namespace::{
    BLOCK_BYTES, BLOCK_BYTES_DEFAULT, Backend, BlockStore, Generation, Geometry, Grown, StoreError,
};
use crate::open_error::OpenError;
use crate::size::Size;

/// Time that a cluster has for a connection, s.
const CONNECT_LIMIT_S: u32 = 10;

/// Time that a cluster has to open an image, without the wait for its lock.
const OPEN_LIMIT: Duration = Duration::from_secs(30);

/// Time for which a lock's holder may stay in the cluster's lists after its death, and a little.
const LOCK_WAIT: Duration = Duration::from_secs(45);

/// Interval between looks at a lock that another client has.
const LOCK_RETRY: Duration = Duration::from_millis(500);

/// Time that a cluster has for changes and for closing an image.
const CHANGE_LIMIT: Duration = Duration::from_secs(30);
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// Time that a cluster has for a request unless configured, s: hosts with Linux wait for 30 s.
pub(crate) const DEADLINE_S_DEFAULT: u32 = 25;

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
}

/// Settings of a namespace on an image.
#[derive(Clone, Debug)]
pub(crate) struct RbdSettings {
    pub(crate) place: RbdPlace,
    pub(crate) block_bytes: Option<u32>,
    pub(crate) is_read_only: bool,
}

/// A namespace on an image.
pub(crate) struct RbdStore {
    shared: Arc<Shared>,
}

/// What reactors and the operator share.
pub(super) struct Shared {
    library: &'static Library,
    settings: RbdSettings,
    block_bytes: u32,
    is_read_only: bool,
    identity: String,
    gate: AtomicU64,
    bytes: AtomicU64,
    object_bytes: u64,
    reason: Mutex<Option<String>>,
    /// Whether it is closed because another client writes, or could.
    is_fenced: AtomicBool,
    is_full: AtomicBool,
    /// A thread looks at the image.
    is_looked_at: AtomicBool,
    session: Mutex<Option<Arc<Session>>>,
}

/// An image that was opened, as the reactors share it.
pub(super) struct Session {
    image: Option<Arc<Image>>,
    /// The reactor that takes in completions: the owner of its requests; 0 for none.
    pub(super) collector: AtomicU32,
    inboxes: Mutex<HashMap<u32, Arc<Inbox>>>,
    /// Requests without an answer within their deadline, of all reactors.
    pub(super) overdue_count: AtomicU32,
    /// Its size at the last look, bytes.
    seen_bytes: AtomicU64,
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
            let _ = closing.spawn(move || drop(image));
        }
    }
}

/// Runs a call that waits for the cluster in a thread of its own; `None` if it does not end in time, and goes on.
fn within<T: Send + 'static>(limit: Duration, call: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = channel();
    let thread = std::thread::Builder::new().name("rbd-call".into());
    thread.spawn(move || drop(sender.send(call()))).ok()?;
    receiver.recv_timeout(limit).ok()
}

impl RbdStore {
    /// Opens an image, and takes its exclusive lock if it is to be written.
    ///
    /// # Errors
    /// The problem of the libraries, the cluster or the image, with its remedy.
    pub(crate) fn open(settings: &RbdSettings) -> Result<Self, OpenError> {
        let library = Library::load().map_err(|error| problem(settings, error))?;
        Self::open_with(library, settings)
    }

    /// As [`open`](Self::open), with these libraries.
    pub(crate) fn open_with(library: &'static Library, settings: &RbdSettings) -> Result<Self, OpenError> {
        let block_bytes = settings.block_bytes.unwrap_or(BLOCK_BYTES_DEFAULT);
        if !BLOCK_BYTES.contains(&block_bytes) || !block_bytes.is_power_of_two() {
            return Err(OpenError::BlockSize(block_bytes));
        }
        let (session, bytes) = open_session(library, settings)?;
        if bytes < block_bytes.into() {
            let name = settings.place.image.to_string();
            return Err(OpenError::Empty { name, remedy: "make it larger with rbd resize" });
        }
        let (identity, object_bytes) = (session.image().identity(), session.image().object_bytes());
        let shared = Shared {
            library,
            is_read_only: settings.reads_only(),
            settings: settings.clone(),
            block_bytes,
            identity,
            gate: AtomicU64::new(0),
            bytes: AtomicU64::new(bytes - bytes % u64::from(block_bytes)),
            object_bytes,
            reason: Mutex::default(),
            is_fenced: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            is_looked_at: AtomicBool::new(false),
            session: Mutex::new(Some(session)),
        };
        Ok(Self { shared: Arc::new(shared) })
    }
}

impl RbdSettings {
    fn reads_only(&self) -> bool {
        self.is_read_only || self.place.image.snapshot.is_some()
    }
}

fn problem(settings: &RbdSettings, why: impl fmt::Display) -> OpenError {
    OpenError::Ceph { name: settings.place.image.to_string(), why: why.to_string() }
}

fn open_session(library: &'static Library, settings: &RbdSettings) -> Result<(Arc<Session>, u64), OpenError> {
    let wait = if settings.reads_only() { Duration::ZERO } else { LOCK_WAIT };
    let of_thread = settings.clone();
    match within(OPEN_LIMIT + wait, move || open_image(library, &of_thread)) {
        Some(opened) => opened,
        None => Err(problem(
            settings,
            format!("the cluster does not answer within {} s: see `ceph -s`", OPEN_LIMIT.as_secs()),
        )),
    }
}

/// Opens the image. Waits for the cluster.
fn open_image(library: &'static Library, settings: &RbdSettings) -> Result<(Arc<Session>, u64), OpenError> {
    let place = &settings.place;
    let failed = |error: ceph::Error| {
        let missing = error.errno() == Some(Errno::NOENT.raw_os_error());
        let advice = match &error {
            ceph::Error::Call { action, .. } if missing && action.starts_with("open the image") => {
                ": create it with `rbd create`, or give create=SIZE"
            }
            ceph::Error::Call { action, .. } if missing && action.starts_with("find the pool") => {
                ": see `ceph osd pool ls`"
            }
            _ => "",
        };
        problem(settings, format!("{error}{advice}"))
    };
    let cluster = Cluster::shared(library, &place.cluster, CONNECT_LIMIT_S).map_err(failed)?;
    if let (Some(bytes), false) = (place.create_bytes, settings.reads_only()) {
        match Image::create(&cluster, &place.image, bytes) {
            Ok(()) => tracing::info!(image = %place.image, size = %Size(bytes), "image created"),
            Err(error) if error.errno() == Some(Errno::EXIST.raw_os_error()) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    let access = if settings.reads_only() { Access::ReadOnly } else { Access::ReadWrite };
    let image = Image::open(&cluster, &place.image, access).map_err(failed)?;
    if access == Access::ReadWrite {
        take_lock(&image, settings)?;
    }
    if image.is_cached() {
        tracing::warn!(
            image = %place.image,
            "the image's own configuration has rbd_cache on: what is written and not flushed is lost with the target"
        );
    }
    let bytes = image.bytes().map_err(failed)?;
    let session = Session {
        image: Some(Arc::new(image)),
        collector: AtomicU32::new(0),
        inboxes: Mutex::default(),
        overdue_count: AtomicU32::new(0),
        seen_bytes: AtomicU64::new(bytes),
    };
    Ok((Arc::new(session), bytes))
}

/// Takes the exclusive lock, as the policy says. Waits for the cluster.
fn take_lock(image: &Image, settings: &RbdSettings) -> Result<(), OpenError> {
    let name = &settings.place.image;
    if !image.has_lock_feature() {
        let why = format!(
            "it has no exclusive lock, so a second writer would not be noticed: `rbd feature enable {name} \
             exclusive-lock`, or ?readonly to serve it for reading"
        );
        return Err(problem(settings, why));
    }
    let failed = |error: ceph::Error| problem(settings, error);
    let until = Instant::now() + LOCK_WAIT;
    let mut is_told = false;
    loop {
        let owner = image.lock_owner().map_err(failed)?;
        let watchers = image.watchers().map_err(failed)?;
        let client =
            |owner: &String| watchers.iter().find(|(_, address)| address == owner).map(|(id, _)| *id);
        // A holder that has not the image open is dead, and its lock is broken.
        let held = match owner.as_ref().map(|owner| (owner, client(owner))) {
            Some((owner, Some(id))) => format!("its exclusive lock is held by client.{id} at {owner}"),
            _ => match image.lock() {
                Ok(()) => return Ok(()),
                Err(error) if error.errno().is_some_and(is_held) => {
                    let owner = owner.as_deref().unwrap_or("another client");
                    format!("its exclusive lock is held by {owner}")
                }
                Err(error) => return Err(failed(error)),
            },
        };
        match settings.place.lock {
            LockPolicy::Break if Instant::now() < until => {
                let Some(owner) = owner else { continue };
                tracing::warn!(image = %name, holder = owner, "lock broken, its holder is blocklisted");
                image.break_lock(&owner).map_err(failed)?;
            }
            LockPolicy::Acquire if Instant::now() < until => {
                if !std::mem::replace(&mut is_told, true) {
                    let limit = LOCK_WAIT.as_secs();
                    tracing::warn!(
                        image = %name,
                        "{held}: waiting up to {limit} s, after which a dead holder is known to be dead"
                    );
                }
                std::thread::sleep(LOCK_RETRY);
            }
            _ => {
                let why = format!("{held}: end that client, or take it away with lock=break");
                return Err(problem(settings, why));
            }
        }
    }
}

/// Whether another client has the lock.
fn is_held(errno: i32) -> bool {
    [Errno::ROFS, Errno::BUSY, Errno::AGAIN].map(Errno::raw_os_error).contains(&errno)
}

impl Shared {
    pub(super) fn geometry(&self) -> Geometry {
        let preferred = u32::try_from(self.object_bytes / u64::from(self.block_bytes)).unwrap_or(1).max(1);
        Geometry {
            is_read_only: self.is_read_only,
            can_deallocate: !self.is_read_only,
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

    pub(super) fn set_full(&self, is_full: bool) {
        if self.is_full.load(Ordering::Relaxed) != is_full {
            self.is_full.store(is_full, Ordering::Relaxed);
        }
    }

    /// Has a thread look at the image, unless one still does.
    fn look(self: &Arc<Self>, session: &Arc<Session>) {
        if self.is_looked_at.swap(true, Ordering::AcqRel) {
            return;
        }
        let (shared, session) = (Arc::clone(self), Arc::clone(session));
        let gate = shared.gate();
        let look = move || {
            match session.image().bytes() {
                Ok(bytes) => session.seen_bytes.store(bytes, Ordering::Release),
                Err(error) => tracing::debug!(image = %shared.name(), %error, "image not looked at"),
            }
            if !shared.is_read_only && matches!(session.image().has_lock(), Ok(false)) {
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

impl BlockStore for RbdStore {
    fn geometry(&self) -> Geometry {
        self.shared.geometry()
    }

    fn attach(&self) -> io::Result<Box<dyn Backend>> {
        Ok(Box::new(RbdBackend::new(Arc::clone(&self.shared))))
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        let shared = &self.shared;
        crate::open_error::check_size(&shared.name().to_string(), bytes, shared.block_bytes)
            .map_err(io::Error::other)?;
        if shared.is_read_only {
            return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the namespace is read-only"));
        }
        let session = shared.session().filter(|_| !shared.gate().is_closed());
        let session = session.ok_or_else(|| io::Error::other(shared.closed_error()))?;
        // Hosts lose the blocks before the image does.
        let before = shared.bytes();
        shared.bytes.fetch_min(bytes, Ordering::AcqRel);
        let resizing = Arc::clone(&session);
        let resized = within(CHANGE_LIMIT, move || {
            resizing.image().resize(bytes)?;
            resizing.seen_bytes.store(bytes, Ordering::Release);
            Ok::<_, ceph::Error>(())
        });
        let failed = match resized {
            Some(Ok(())) => {
                shared.bytes.store(bytes, Ordering::Release);
                return Ok(());
            }
            Some(Err(error)) => io::Error::other(error),
            None => io::Error::new(io::ErrorKind::TimedOut, "the cluster does not answer"),
        };
        shared.bytes.store(before, Ordering::Release);
        Err(failed)
    }

    fn reopen(&self) -> io::Result<()> {
        let shared = &self.shared;
        // Closed first: nothing may run while another session takes its place.
        if !Generation(shared.gate.fetch_or(1, Ordering::AcqRel)).is_closed() {
            *lock(&shared.reason) = Some("it is being reopened".to_owned());
        }
        let is_fenced = shared.is_fenced.load(Ordering::Acquire);
        let former = lock(&shared.session).take();
        if let Some(former) = former {
            if is_fenced {
                // Blocklisted, perhaps: the cluster would refuse everything that comes through this connection.
                former.image().cluster().retire();
            } else if !shared.is_read_only {
                within(CLOSE_LIMIT, move || drop(former.image().unlock()));
            }
        }
        let (session, bytes) = open_session(shared.library, &shared.settings).map_err(io::Error::other)?;
        if session.image().identity() != shared.identity {
            return Err(io::Error::other(format!(
                "{} is another image than the one that was served, and hosts would take the two for one disk",
                shared.name()
            )));
        }
        shared.bytes.store(bytes - bytes % u64::from(shared.block_bytes), Ordering::Release);
        *lock(&shared.session) = Some(session);
        shared.is_fenced.store(false, Ordering::Release);
        *lock(&shared.reason) = None;
        shared.gate.fetch_add(1, Ordering::AcqRel);
        tracing::info!(image = %shared.name(), "reopened");
        Ok(())
    }

    fn generation(&self) -> Generation {
        self.shared.gate()
    }

    fn closed_because(&self) -> Option<String> {
        if !self.shared.gate().is_closed() {
            return None;
        }
        // The gate closes a moment before the reason is there.
        Some(lock(&self.shared.reason).clone().unwrap_or_else(|| self.shared.closed_error().to_string()))
    }

    fn health(&self) -> Health {
        let is_full = self.shared.is_full.load(Ordering::Relaxed);
        Health { is_full, spare_percent: if is_full { 0 } else { 100 }, ..Health::default() }
    }

    fn can_change_underneath(&self) -> bool {
        true
    }

    fn revalidate(&self) -> Option<Grown> {
        let shared = &self.shared;
        let session = shared.session().filter(|_| !shared.gate().is_closed())?;
        // What the last look has found: this one may take as long as the cluster does.
        let seen = session.seen_bytes.load(Ordering::Acquire);
        shared.look(&session);
        let (before, after) = (shared.bytes(), seen - seen % u64::from(shared.block_bytes));
        if after == before || after == 0 {
            return None;
        }
        shared.bytes.store(after, Ordering::Release);
        (after > before).then_some(Grown { before, after })
    }

    fn identity(&self) -> Option<String> {
        Some(self.shared.identity.clone())
    }
}

impl Drop for RbdStore {
    /// Closes the image, which gives its lock up, if the cluster answers.
    fn drop(&mut self) {
        if let Some(session) = lock(&self.shared.session).take()
            && let Ok(mut session) = Arc::try_unwrap(session)
        {
            let image = session.image.take();
            if within(CLOSE_LIMIT, move || drop(image)).is_none() {
                tracing::warn!(image = %self.shared.name(), "image not closed: the cluster does not answer");
            }
        }
    }
}
