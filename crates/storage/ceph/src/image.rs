//! An RBD image: opened once, shared by all reactors.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::cluster::{Cluster, Pool};
use crate::error::{Error, check};
use crate::functions::{
    ConfigOption, EVENT_TYPE_EVENTFD, FEATURE_EXCLUSIVE_LOCK, Functions, ImageInfo, ImageOptions,
    LOCK_EXCLUSIVE, RawCompletion, RawImage, Watcher,
};
use crate::search::{EndedSearch, Search, Searched, Searches};

/// Completions taken in by one call.
const COLLECTED_MAX: usize = 64;

/// Lists that the libraries fill have at most this many entries.
const LIST_LENGTH_MAX: usize = 4096;

/// Metadata of an image that is read at most, bytes.
const METADATA_BYTES_MAX: usize = 16 << 20;

/// Which image, or which snapshot of one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImageName {
    /// The pool.
    pub pool: String,
    /// The namespace in the pool; empty for none.
    pub namespace: String,
    /// The image.
    pub image: String,
    /// The snapshot, if it is not the image itself.
    pub snapshot: Option<String>,
}

/// How an image is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing is written, not even a watch: the least caps suffice, and a change of the size is not noticed.
    ReadOnly,
    /// For reading and writing.
    ReadWrite,
}

/// An open image.
///
/// Its completions come through [`bell`](Self::bell) and [`collect`](Self::collect), to whichever thread asks.
pub struct Image {
    raw: RawImage,
    bell: OwnedFd,
    name: ImageName,
    id: String,
    access: Access,
    object_bytes: u64,
    features: u64,
    is_cached: bool,
    searches: Searches,
    pool: Pool,
}

// SAFETY: librbd's calls on an image may be made by any thread, by several at once; it locks the image itself.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

/// A request that has ended, to be given to the [`Requests`](crate::Requests) that started it. Only librbd's completions
/// make one, so that a buffer comes back when librbd is done with it, and not earlier.
#[derive(Debug)]
pub struct Ended {
    pub(crate) owner: u32,
    pub(crate) slot: u32,
    pub(crate) result: i64,
}

impl Ended {
    /// Whose request it is: [`Requests::owner`](crate::Requests::owner).
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.owner
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.pool)?;
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.image)?;
        match &self.snapshot {
            Some(snapshot) => write!(f, "@{snapshot}"),
            None => Ok(()),
        }
    }
}

/// Called while an image is resized.
unsafe extern "C" fn ignore_progress(_: u64, _: u64, _: *mut c_void) -> c_int {
    0
}

impl Image {
    /// Creates an image with the features that the cluster's configuration gives new ones. Waits for the cluster.
    ///
    /// # Errors
    /// The failed call: `EEXIST` if there is one.
    pub fn create(cluster: &Arc<Cluster>, name: &ImageName, bytes: u64) -> Result<(), Error> {
        let functions = &cluster.library().functions;
        let pool = cluster.pool(&name.pool, &name.namespace)?;
        let image = CString::new(&*name.image).map_err(|_| Error::ZeroByte { what: "the image" })?;
        let mut options: ImageOptions = std::ptr::null_mut();
        // SAFETY: a place for the options, which are destroyed after their last use.
        let created = unsafe {
            (functions.rbd_image_options_create)(&raw mut options);
            let created = (functions.rbd_create4)(pool.context, image.as_ptr(), bytes, options);
            (functions.rbd_image_options_destroy)(options);
            created
        };
        check(created, || format!("create the image {name}")).map(drop)
    }

    /// Opens an image. Waits for the cluster.
    ///
    /// # Errors
    /// The failed call: `ENOENT` if there is no such image or snapshot.
    pub fn open(cluster: &Arc<Cluster>, name: &ImageName, access: Access) -> Result<Self, Error> {
        let functions = &cluster.library().functions;
        let pool = cluster.pool(&name.pool, &name.namespace)?;
        let image = CString::new(&*name.image).map_err(|_| Error::ZeroByte { what: "the image" })?;
        let snapshot = name.snapshot.as_deref().map(CString::new).transpose();
        let snapshot = snapshot.map_err(|_| Error::ZeroByte { what: "the snapshot" })?;
        let snapshot = snapshot.as_ref().map_or(std::ptr::null(), |snapshot| snapshot.as_ptr());
        let open = match access {
            Access::ReadOnly => functions.rbd_open_read_only,
            Access::ReadWrite => functions.rbd_open,
        };
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::Call { action: "make an eventfd".into(), errno: errno.raw_os_error() })?;
        let mut raw: RawImage = std::ptr::null_mut();
        // SAFETY: a context, two C strings (or null), and a place for the image.
        let opened = unsafe { open(pool.context, image.as_ptr(), &raw mut raw, snapshot) };
        check(opened, || format!("open the image {name}"))?;
        // From here on it is closed when it is dropped.
        let mut this = Self {
            raw,
            bell,
            name: name.clone(),
            id: String::new(),
            access,
            object_bytes: 0,
            features: 0,
            is_cached: false,
            searches: Searches::default(),
            pool,
        };
        let bell = this.bell.as_raw_fd();
        // SAFETY: an open image, and a descriptor that stays open until after the image is closed.
        let set = unsafe { (functions.rbd_set_image_notification)(raw, bell, EVENT_TYPE_EVENTFD) };
        check(set, || format!("have completions of {name} by an eventfd"))?;
        let mut id = [0; 256];
        // SAFETY: an open image, and room for a text.
        let got = unsafe { (functions.rbd_get_id)(raw, id.as_mut_ptr(), id.len()) };
        check(got, || {
            format!("ask for the id of {name}: images of format 1 have none, so rbd cp it to a new one")
        })?;
        // SAFETY: the call has written a C string.
        this.id = unsafe { CStr::from_ptr(id.as_ptr()) }.to_string_lossy().into_owned();
        // SAFETY: an open image, and a place for a number.
        let got = unsafe { (functions.rbd_get_features)(raw, &raw mut this.features) };
        check(got, || format!("ask for the features of {name}"))?;
        this.object_bytes = this.info()?.obj_size;
        this.is_cached = this.option(c"rbd_cache")? == Some("true".into());
        Ok(this)
    }

    fn functions(&self) -> &'static Functions {
        &self.pool.cluster.library().functions
    }

    pub(crate) fn raw(&self) -> RawImage {
        self.raw
    }

    /// The cluster that has it.
    #[must_use]
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.pool.cluster
    }

    /// A name that no other image has in any cluster, and that this one keeps when it or its pool is renamed.
    #[must_use]
    pub fn identity(&self) -> String {
        let (fsid, pool, id) = (self.pool.cluster.fsid(), self.pool.id(), &self.id);
        let namespace = &self.name.namespace;
        let snapshot = self.name.snapshot.as_ref().map_or_else(String::new, |name| format!("@{name}"));
        format!("rbd {fsid} {pool} {namespace} {id}{snapshot}")
    }

    /// Bytes of the objects that hold its data.
    #[must_use]
    pub fn object_bytes(&self) -> u64 {
        self.object_bytes
    }

    /// Whether it has the feature that its lock needs.
    #[must_use]
    pub fn has_lock_feature(&self) -> bool {
        self.features & FEATURE_EXCLUSIVE_LOCK != 0
    }

    /// Has a thread carry out a search.
    pub(crate) fn search(self: &Arc<Self>, search: Search) {
        match self.searches.add(search) {
            Ok(false) => {}
            Ok(true) => {
                let image = Arc::clone(self);
                let thread = std::thread::Builder::new().name("rbd-search".into());
                if thread.spawn(move || image.carry_out_searches()).is_err() {
                    while let Some(search) = self.searches.next() {
                        self.searches.refuse(search);
                    }
                    self.ring();
                }
            }
            Err(search) => {
                self.searches.refuse(search);
                self.ring();
            }
        }
    }

    fn carry_out_searches(&self) {
        let searched = Searched {
            raw: self.raw,
            functions: self.functions(),
            object_bytes: self.object_bytes,
            features: self.features,
            is_described: self.name.snapshot.is_some() || self.access == Access::ReadWrite,
        };
        while let Some(Search { owner, slot, range, mut on_data }) = self.searches.next() {
            let result = searched.find_data(&range, &mut on_data);
            self.searches.end(EndedSearch { owner, slot, result });
            self.ring();
        }
    }

    /// Whether writes are answered before they are on stable media, because the image's or its pool's own configuration
    /// has librbd's cache on.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        self.is_cached
    }

    /// A descriptor that is readable once there is something to [collect](Self::collect).
    ///
    /// # Errors
    /// If the process has no more descriptors.
    pub fn bell(&self) -> io::Result<OwnedFd> {
        self.bell.try_clone()
    }

    /// Rings the bell: whoever waits for it collects, and finds nothing.
    pub fn ring(&self) {
        // The counter is at its end only if it is readable already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Takes in the requests that have ended, of all reactors.
    pub fn collect(&self, each: &mut dyn FnMut(Ended)) {
        let functions = self.functions();
        // Before the queue is looked at: a completion that comes later rings again.
        let _ = rustix::io::read(self.bell.as_fd(), &mut [0; 8]);
        let mut completions: [RawCompletion; COLLECTED_MAX] = [std::ptr::null_mut(); COLLECTED_MAX];
        loop {
            let room = c_int::try_from(COLLECTED_MAX).expect("a small number");
            // SAFETY: an open image, and room for that many.
            let count = unsafe { (functions.rbd_poll_io_events)(self.raw, completions.as_mut_ptr(), room) };
            let count = usize::try_from(count).unwrap_or(0);
            for &completion in completions.iter().take(count) {
                // SAFETY: a completion that has ended and was handed over once: released after its last use.
                let (result, argument) = unsafe {
                    let result = (functions.rbd_aio_get_return_value)(completion);
                    let argument = (functions.rbd_aio_get_arg)(completion);
                    (functions.rbd_aio_release)(completion);
                    (result, argument)
                };
                each(Ended::of(argument as usize as u64, result));
            }
            if count < COLLECTED_MAX {
                break;
            }
        }
        for EndedSearch { owner, slot, result } in self.searches.take_ended() {
            let result = result.map_or_else(|errno| -i64::from(errno), u64::cast_signed);
            each(Ended { owner, slot, result });
        }
    }

    fn info(&self) -> Result<ImageInfo, Error> {
        let mut info = ImageInfo {
            size: 0,
            obj_size: 0,
            num_objs: 0,
            order: 0,
            block_name_prefix: [0; 24],
            parent_pool: 0,
            parent_name: [0; 96],
        };
        // SAFETY: an open image, and a place of the length given.
        let got = unsafe { (self.functions().rbd_stat)(self.raw, &raw mut info, size_of::<ImageInfo>()) };
        check(got, || format!("ask for the size of {}", self.name))?;
        Ok(info)
    }

    /// Its size, bytes. Waits for the cluster if another client has changed the image.
    ///
    /// # Errors
    /// The failed call.
    pub fn bytes(&self) -> Result<u64, Error> {
        Ok(self.info()?.size)
    }

    /// Makes it `bytes` long. Waits for the cluster.
    ///
    /// # Errors
    /// The failed call.
    pub fn resize(&self, bytes: u64) -> Result<(), Error> {
        let functions = self.functions();
        // SAFETY: an open image, and a function that ignores its arguments.
        let resized =
            unsafe { (functions.rbd_resize2)(self.raw, bytes, true, ignore_progress, std::ptr::null_mut()) };
        check(resized, || format!("resize {}", self.name)).map(drop)
    }

    /// The value of an option of librbd for this image.
    fn option(&self, name: &CStr) -> Result<Option<String>, Error> {
        let functions = self.functions();
        let empty = ConfigOption { name: std::ptr::null_mut(), value: std::ptr::null_mut(), source: 0 };
        let mut length = 128;
        loop {
            let mut options = vec![empty; length];
            let mut count = c_int::try_from(length).expect("a small number");
            // SAFETY: an open image, and room for as many entries as `count` says.
            let got =
                unsafe { (functions.rbd_config_image_list)(self.raw, options.as_mut_ptr(), &raw mut count) };
            if got == -Errno::RANGE.raw_os_error() && length < LIST_LENGTH_MAX {
                length *= 2;
                continue;
            }
            check(got, || format!("ask for the configuration of {}", self.name))?;
            let known = options.get(..usize::try_from(count).unwrap_or(0)).unwrap_or_default();
            let found = known.iter().find_map(|option| {
                // SAFETY: the call has filled the entry with two C strings.
                let (known, value) = unsafe { (CStr::from_ptr(option.name), CStr::from_ptr(option.value)) };
                (known == name).then(|| value.to_string_lossy().into_owned())
            });
            // SAFETY: the entries are freed once, and not used again.
            unsafe { (functions.rbd_config_image_list_cleanup)(options.as_mut_ptr(), count) };
            return Ok(found);
        }
    }

    /// Sets an entry of its metadata, which `rbd image-meta ls` shows. Waits for the cluster, and for the exclusive lock.
    ///
    /// # Errors
    /// The failed call: `EROFS` if another client keeps the lock.
    pub fn set_metadata(&self, key: &str, value: &str) -> Result<(), Error> {
        let what = "an entry of the image's metadata";
        let (key, value) = (CString::new(key), CString::new(value));
        let (Ok(key), Ok(value)) = (key, value) else { return Err(Error::ZeroByte { what }) };
        // SAFETY: an open image, and two C strings.
        let set = unsafe { (self.functions().rbd_metadata_set)(self.raw, key.as_ptr(), value.as_ptr()) };
        check(set, || format!("write to the metadata of {}", self.name)).map(drop)
    }

    /// Removes an entry of its metadata. Waits as [`set_metadata`](Self::set_metadata) does.
    ///
    /// # Errors
    /// The failed call: `ENOENT` if there is no such entry, `EROFS` if another client keeps the lock.
    pub fn remove_metadata(&self, key: &str) -> Result<(), Error> {
        let key = CString::new(key).map_err(|_| Error::ZeroByte { what: "a key of the image's metadata" })?;
        // SAFETY: an open image, and a C string.
        let removed = unsafe { (self.functions().rbd_metadata_remove)(self.raw, key.as_ptr()) };
        check(removed, || format!("remove from the metadata of {}", self.name)).map(drop)
    }

    /// The keys and values of its metadata. Waits for the cluster.
    ///
    /// # Errors
    /// The failed call.
    pub fn metadata(&self) -> Result<Vec<(String, String)>, Error> {
        let mut room = (4096, 4096);
        loop {
            let (mut keys, mut values) = (vec![0_u8; room.0], vec![0_u8; room.1]);
            let (mut keys_length, mut values_length) = room;
            // SAFETY: an open image, a C string, and as much room as the two lengths say.
            let got = unsafe {
                (self.functions().rbd_metadata_list)(
                    self.raw,
                    c"".as_ptr(),
                    0,
                    keys.as_mut_ptr().cast(),
                    &raw mut keys_length,
                    values.as_mut_ptr().cast(),
                    &raw mut values_length,
                )
            };
            let needed = (keys_length, values_length);
            let is_larger = needed.0 > room.0 || needed.1 > room.1;
            let is_bounded = needed.0.max(needed.1) <= METADATA_BYTES_MAX;
            if got == -Errno::RANGE.raw_os_error() && is_larger && is_bounded {
                room = (needed.0.max(room.0), needed.1.max(room.1));
                continue;
            }
            check(got, || format!("ask for the metadata of {}", self.name))?;
            let texts = |bytes: &[u8], length: usize| {
                let bytes = bytes.get(..length).unwrap_or(bytes);
                let text = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
                // A zero ends each of them.
                bytes
                    .strip_suffix(&[0])
                    .map(|bytes| bytes.split(|byte| *byte == 0).map(text).collect::<Vec<_>>())
            };
            let (keys, values) = (texts(&keys, needed.0), texts(&values, needed.1));
            return Ok(keys.unwrap_or_default().into_iter().zip(values.unwrap_or_default()).collect());
        }
    }

    /// Takes the exclusive lock, and keeps it: other clients that ask for it are refused from then on. Waits for the
    /// cluster. A lock whose holder is gone is broken.
    ///
    /// # Errors
    /// The failed call: `EROFS` or `EBUSY` if another client has the lock.
    pub fn lock(&self) -> Result<(), Error> {
        // SAFETY: an open image.
        let locked = unsafe { (self.functions().rbd_lock_acquire)(self.raw, LOCK_EXCLUSIVE) };
        check(locked, || format!("lock {}", self.name)).map(drop)
    }

    /// Gives the exclusive lock up. Waits for the cluster.
    ///
    /// # Errors
    /// The failed call.
    pub fn unlock(&self) -> Result<(), Error> {
        // SAFETY: an open image.
        check(unsafe { (self.functions().rbd_lock_release)(self.raw) }, || format!("unlock {}", self.name))
            .map(drop)
    }

    /// Whether this client has the exclusive lock. Waits for nothing but the image's own locks.
    ///
    /// # Errors
    /// The failed call.
    pub fn has_lock(&self) -> Result<bool, Error> {
        let mut is_owner = 0;
        // SAFETY: an open image, and a place for a number.
        let got = unsafe { (self.functions().rbd_is_exclusive_lock_owner)(self.raw, &raw mut is_owner) };
        check(got, || format!("ask for the lock of {}", self.name))?;
        Ok(is_owner != 0)
    }

    /// The address of the client that has the exclusive lock. Waits for the cluster.
    ///
    /// # Errors
    /// The failed call.
    pub fn lock_owner(&self) -> Result<Option<String>, Error> {
        let functions = self.functions();
        let (mut mode, mut owners, mut count) = (0, [std::ptr::null_mut::<c_char>(); 8], 8_usize);
        // SAFETY: an open image, and room for as many texts as `count` says.
        let got = unsafe {
            (functions.rbd_lock_get_owners)(self.raw, &raw mut mode, owners.as_mut_ptr(), &raw mut count)
        };
        if got == -Errno::NOENT.raw_os_error() {
            return Ok(None);
        }
        check(got, || format!("ask for the lock's owner of {}", self.name))?;
        let first = owners.first().filter(|owner| count > 0 && !owner.is_null());
        // SAFETY: the call has filled the entry with a C string.
        let owner = first.map(|owner| unsafe { CStr::from_ptr(*owner) }.to_string_lossy().into_owned());
        // SAFETY: the entries are freed once, and not used again.
        unsafe { (functions.rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count) };
        Ok(owner)
    }

    /// Takes the lock from its owner, of this address, whom the cluster refuses from then on. Waits for the cluster.
    ///
    /// # Errors
    /// The failed call.
    pub fn break_lock(&self, owner: &str) -> Result<(), Error> {
        let text = CString::new(owner).map_err(|_| Error::ZeroByte { what: "the lock's owner" })?;
        // SAFETY: an open image, and a C string.
        let broken = unsafe { (self.functions().rbd_lock_break)(self.raw, LOCK_EXCLUSIVE, text.as_ptr()) };
        check(broken, || format!("break the lock of {}", self.name)).map(drop)
    }

    /// Addresses of the clients that have the image open, each with its number. Waits for the cluster. A client that died
    /// stays in the list for half a minute.
    ///
    /// # Errors
    /// The failed call.
    pub fn watchers(&self) -> Result<Vec<(i64, String)>, Error> {
        let functions = self.functions();
        let empty = Watcher { addr: std::ptr::null_mut(), id: 0, cookie: 0 };
        let mut length = 16;
        loop {
            let (mut watchers, mut count) = (vec![empty; length], length);
            // SAFETY: an open image, and room for as many entries as `count` says.
            let got =
                unsafe { (functions.rbd_watchers_list)(self.raw, watchers.as_mut_ptr(), &raw mut count) };
            if got == -Errno::RANGE.raw_os_error() && length < LIST_LENGTH_MAX {
                length *= 4;
                continue;
            }
            check(got, || format!("ask who has {} open", self.name))?;
            let known = watchers.get(..count).unwrap_or_default();
            let found = known.iter().map(|watcher| {
                // SAFETY: the call has filled the entry with a C string.
                let address = unsafe { CStr::from_ptr(watcher.addr) };
                (watcher.id, address.to_string_lossy().into_owned())
            });
            let found = found.collect();
            // SAFETY: the entries are freed once, and not used again.
            unsafe { (functions.rbd_watchers_list_cleanup)(watchers.as_mut_ptr(), count) };
            return Ok(found);
        }
    }
}

impl Ended {
    fn of(argument: u64, result: isize) -> Self {
        let owner = u32::try_from(argument >> 32).expect("32 bits");
        let slot = u32::try_from(argument & 0xffff_ffff).expect("32 bits");
        Self { owner, slot, result: result as i64 }
    }
}

impl Drop for Image {
    /// Waits for the cluster, and for requests that run.
    fn drop(&mut self) {
        // SAFETY: nobody has the image any more; `Requests` with requests in flight keep it.
        let closed = unsafe { (self.functions().rbd_close)(self.raw) };
        if closed < 0 {
            tracing::debug!(image = %self.name, error = -closed, "image not closed cleanly");
        }
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image({} {})", self.name, self.id)
    }
}
