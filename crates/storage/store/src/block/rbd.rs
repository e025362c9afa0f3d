//! A namespace on an RBD image of a Ceph cluster: opening, locking, resizing and reopening it.
//!
//! Calls that wait for the cluster run in threads of their own, and their callers wait for a bounded time.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ceph::{Access, Cluster, Image, Library};
use rustix::io::Errno;

use super::rbd_backend::RbdBackend;
use super::rbd_shared::{LockPolicy, RbdSettings, Session, Shared, lock};
use super::rbd_sharing::{conflicting, enter, forget_dead, has_entered, sharers};
use crate::health::Health;
use crate::namespace::{BLOCK_BYTES, BLOCK_BYTES_DEFAULT, Backend, BlockStore, Generation, Geometry, Grown};
use crate::open_error::OpenError;
use crate::size::Size;

/// Time that a cluster has for a connection, s.
const CONNECT_LIMIT_S: u32 = 10;

/// Time that a cluster has to open an image, without the wait for its lock.
const OPEN_LIMIT: Duration = Duration::from_secs(30);

/// Interval between looks at a lock that another client has.
const LOCK_RETRY: Duration = Duration::from_millis(500);

/// Time that a cluster has for changes and for closing an image.
const CHANGE_LIMIT: Duration = Duration::from_secs(30);
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// A namespace on an image.
pub(crate) struct RbdStore {
    shared: Arc<Shared>,
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

fn problem(settings: &RbdSettings, why: impl fmt::Display) -> OpenError {
    OpenError::Ceph { name: settings.place.image.to_string(), why: why.to_string() }
}

fn open_session(library: &'static Library, settings: &RbdSettings) -> Result<(Arc<Session>, u64), OpenError> {
    let wait = if settings.reads_only() { Duration::ZERO } else { settings.lock_wait };
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
    let entry = match access {
        Access::ReadWrite => take_lock(&image, settings)?,
        Access::ReadOnly => None,
    };
    if image.is_cached() {
        tracing::warn!(
            image = %place.image,
            "the image's own configuration has rbd_cache on: what is written and not flushed is lost with the target"
        );
    }
    let bytes = image.bytes().map_err(failed)?;
    let session = Session {
        image: Some(Arc::new(image)),
        entry,
        collector: AtomicU32::new(0),
        inboxes: Mutex::default(),
        overdue_count: AtomicU32::new(0),
        seen_bytes: AtomicU64::new(bytes),
    };
    Ok((Arc::new(session), bytes))
}

/// Takes the exclusive lock, as the policy says, or enters this target among those that share it and returns its entry.
/// Waits for the cluster.
fn take_lock(image: &Image, settings: &RbdSettings) -> Result<Option<String>, OpenError> {
    let name = &settings.place.image;
    if !image.has_lock_feature() {
        let why = format!(
            "it has no exclusive lock, so a second writer would not be noticed: `rbd feature enable {name} \
             exclusive-lock`, or ?readonly to serve it for reading"
        );
        return Err(problem(settings, why));
    }
    let policy = settings.place.lock;
    if policy == LockPolicy::Share && image.is_cached() {
        let why = format!(
            "its own configuration has rbd_cache on, and what one target has in its cache the others do not see: `rbd config \
             image set {name} rbd_cache false`"
        );
        return Err(problem(settings, why));
    }
    let failed = |error: ceph::Error| problem(settings, error);
    let until = Instant::now() + settings.lock_wait;
    let mut is_told = false;
    let mut entry = None;
    loop {
        let owner = image.lock_owner().map_err(failed)?;
        let watchers = image.watchers().map_err(failed)?;
        let known = sharers(image, &watchers, &settings.entries).map_err(failed)?;
        let client =
            |owner: &String| watchers.iter().find(|(_, address)| address == owner).map(|(id, _)| *id);
        let end = "end that client, or take it away with lock=break";
        let held_by = |owner: Option<&String>| {
            let owner = owner.map_or("another client", String::as_str);
            (format!("its exclusive lock is held by {owner}"), end)
        };
        let sharer = known.iter().find(|sharer| sharer.address.is_some());
        // A holder that has not the image open is dead, and its lock is broken.
        let (held, remedy) = match (owner.as_ref().map(|owner| (owner, client(owner))), sharer) {
            (_, Some(sharer)) if !matches!(policy, LockPolicy::Share | LockPolicy::Break) => {
                (format!("it is shared by {sharer}"), "end that client, or share it as well with lock=share")
            }
            (Some((owner, Some(id))), _) if policy != LockPolicy::Share || !has_entered(&known, id) => {
                let more = if policy == LockPolicy::Share { ", which does not share it" } else { "" };
                (format!("its exclusive lock is held by client.{id} at {owner}{more}"), end)
            }
            _ if policy == LockPolicy::Share => match join(image, settings, &mut entry).map_err(failed)? {
                Joined::Shared => return Ok(entry),
                Joined::Conflict(why) => {
                    (why, "give each target a range of its own, as in cntlids = [1, 1000]")
                }
                Joined::Locked => held_by(owner.as_ref()),
            },
            _ => match image.lock() {
                Ok(()) => return Ok(None),
                Err(error) if error.errno().is_some_and(is_held) => held_by(owner.as_ref()),
                Err(error) => return Err(failed(error)),
            },
        };
        match policy {
            LockPolicy::Break if Instant::now() < until => {
                let Some(owner) = owner else { continue };
                tracing::warn!(image = %name, holder = owner, "lock broken, its holder is blocklisted");
                image.break_lock(&owner).map_err(failed)?;
            }
            LockPolicy::Acquire | LockPolicy::Share if Instant::now() < until => {
                if !std::mem::replace(&mut is_told, true) {
                    let limit = settings.lock_wait.as_secs();
                    tracing::warn!(
                        image = %name,
                        "{held}: waiting up to {limit} s, after which a dead holder is known to be dead"
                    );
                }
                std::thread::sleep(LOCK_RETRY);
            }
            _ => {
                if let Some(entry) = entry {
                    image.remove_metadata(&entry).map_err(failed)?;
                }
                return Err(problem(settings, format!("{held}: {remedy}")));
            }
        }
    }
}

enum Joined {
    Shared,
    /// Why this target and another one cannot share it.
    Conflict(String),
    Locked,
}

/// Enters this target among those that share an image, unless it has, and looks whether they go together. Waits for the
/// cluster.
fn join(image: &Image, settings: &RbdSettings, entry: &mut Option<String>) -> Result<Joined, ceph::Error> {
    let sharing = settings.place.sharing.clone().unwrap_or_default();
    if entry.is_none() {
        match enter(image, &sharing, &settings.entries) {
            Ok(key) => *entry = Some(key),
            Err(error) if error.errno().is_some_and(is_held) => return Ok(Joined::Locked),
            Err(error) => return Err(error),
        }
    }
    // Entered first: of two that do so at the same time, each sees the other.
    let watchers = image.watchers()?;
    let known = sharers(image, &watchers, &settings.entries)?;
    if let Some(other) = conflicting(&known, &sharing) {
        return Ok(Joined::Conflict(format!(
            "it is shared by {other}, and a host could get the same IDs from both"
        )));
    }
    forget_dead(image, &known);
    Ok(Joined::Shared)
}

/// Whether another client has the lock.
fn is_held(errno: i32) -> bool {
    [Errno::ROFS, Errno::BUSY, Errno::AGAIN].map(Errno::raw_os_error).contains(&errno)
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
                within(CLOSE_LIMIT, move || match &former.entry {
                    Some(_) => former.leave(),
                    None => drop(former.image().unlock()),
                });
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
        Health::when_full(self.shared.is_full.load(Ordering::Relaxed))
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
            let closing = move || {
                session.leave();
                drop(session.image.take());
            };
            if within(CLOSE_LIMIT, closing).is_none() {
                tracing::warn!(image = %self.shared.name(), "image not closed: the cluster does not answer");
            }
        }
    }
}
