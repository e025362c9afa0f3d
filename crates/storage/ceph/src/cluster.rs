//! A connection to a cluster, which all images of the same configuration and user share.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::error::{Error, check};
use crate::functions::{IoContext, Rados};
use crate::library::Library;

/// Which cluster, and as whom.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClusterName {
    /// The configuration file; Ceph's own places if none is given.
    pub conf: Option<String>,
    /// The user without `client.`; `admin` if none is given.
    pub id: Option<String>,
    /// The name of the cluster, which is part of the names of its files; `ceph` if none is given.
    pub cluster: Option<String>,
}

/// Options set after the configuration file was read, and why:
///
/// - without a cache, a write is answered once all replicas have it on stable media, so that neither the end of the
///   target nor that of its machine takes anything back, and no image takes 32 MiB for data that hosts cache themselves;
/// - the target bounds commands and their memory itself, and a call that waits for others to end would hold up a reactor.
const OPTIONS: [(&CStr, &CStr); 3] =
    [(c"rbd_cache", c"false"), (c"objecter_inflight_ops", c"0"), (c"objecter_inflight_op_bytes", c"0")];

/// A connection to a cluster.
pub struct Cluster {
    library: &'static Library,
    rados: Rados,
    fsid: String,
    name: ClusterName,
}

// SAFETY: librados handles may be used by any thread, by several at once.
unsafe impl Send for Cluster {}
// SAFETY: as above.
unsafe impl Sync for Cluster {}

/// Clusters that are connected.
static CONNECTED: Mutex<Option<HashMap<ClusterName, Weak<Cluster>>>> = Mutex::new(None);

impl Cluster {
    /// The connection to this cluster, made if there is none. Waits for the cluster, for at most `timeout_s`.
    ///
    /// # Errors
    /// The step that failed.
    pub fn shared(library: &'static Library, name: &ClusterName, timeout_s: u32) -> Result<Arc<Self>, Error> {
        let find = || {
            let mut known = CONNECTED.lock().unwrap_or_else(PoisonError::into_inner);
            let found = known.get_or_insert_default().get(name)?.upgrade()?;
            std::ptr::eq(found.library, library).then_some(found)
        };
        if let Some(cluster) = find() {
            return Ok(cluster);
        }
        let cluster = Arc::new(Self::connect(library, name, timeout_s)?);
        let mut known = CONNECTED.lock().unwrap_or_else(PoisonError::into_inner);
        known.get_or_insert_default().insert(name.clone(), Arc::downgrade(&cluster));
        Ok(cluster)
    }

    /// A connection of its own. Waits for the cluster, for at most `timeout_s`.
    ///
    /// # Errors
    /// As [`shared`](Self::shared).
    pub fn connect(library: &'static Library, name: &ClusterName, timeout_s: u32) -> Result<Self, Error> {
        let functions = &library.functions;
        let text = |value: &Option<String>, default: &str| CString::new(value.as_deref().unwrap_or(default));
        let cluster = text(&name.cluster, "ceph").map_err(|_| Error::ZeroByte { what: "cluster=" })?;
        let user = format!("client.{}", name.id.as_deref().unwrap_or("admin"));
        let user = CString::new(user).map_err(|_| Error::ZeroByte { what: "id=" })?;
        let conf = name.conf.as_deref().map(CString::new).transpose();
        let conf = conf.map_err(|_| Error::ZeroByte { what: "conf=" })?;
        let mut rados: Rados = std::ptr::null_mut();
        // SAFETY: a place for the handle, and two C strings.
        let made = unsafe { (functions.rados_create2)(&raw mut rados, cluster.as_ptr(), user.as_ptr(), 0) };
        check(made, || "prepare a client of Ceph".into())?;
        // From here on it is shut down when it is dropped.
        let mut this = Self { library, rados, fsid: String::new(), name: name.clone() };
        let path = conf.as_ref().map_or(std::ptr::null(), |path| path.as_ptr());
        // SAFETY: an open handle that is not connected, and a C string or null.
        let read = unsafe { (functions.rados_conf_read_file)(rados, path) };
        let shown = name.conf.as_deref().unwrap_or("Ceph's configuration file");
        check(read, || format!("read {shown}"))?;
        // SAFETY: as above; null is the name of the usual variable.
        unsafe { (functions.rados_conf_parse_env)(rados, std::ptr::null()) };
        let seconds = CString::new(timeout_s.to_string()).expect("digits");
        let timeouts = [(c"client_mount_timeout", &*seconds), (c"rados_mon_op_timeout", &*seconds)];
        for (option, value) in OPTIONS.into_iter().chain(timeouts) {
            // SAFETY: as above, with two C strings.
            let set = unsafe { (functions.rados_conf_set)(rados, option.as_ptr(), value.as_ptr()) };
            // A later version may know an option no more.
            if set < 0 {
                tracing::debug!(?option, error = -set, "Ceph option not set");
            }
        }
        // SAFETY: a configured handle.
        check(unsafe { (functions.rados_connect)(rados) }, || {
            format!("connect to the Ceph cluster of {shown} as {}", this.user())
        })?;
        let mut fsid = [0; 64];
        // SAFETY: a connected handle, and room for the text.
        let length = unsafe { (functions.rados_cluster_fsid)(rados, fsid.as_mut_ptr(), fsid.len()) };
        check(length, || "ask for the cluster's fsid".into())?;
        // SAFETY: the call has written a C string.
        this.fsid = unsafe { CStr::from_ptr(fsid.as_ptr()) }.to_string_lossy().into_owned();
        tracing::debug!(
            fsid = this.fsid,
            user = this.user(),
            client = this.client_id(),
            "connected to a Ceph cluster"
        );
        Ok(this)
    }

    /// No one shares this connection from now on: the cluster refuses it.
    pub fn retire(&self) {
        let mut known = CONNECTED.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get_or_insert_default();
        if known.get(&self.name).is_some_and(|kept| std::ptr::eq(kept.as_ptr(), self)) {
            known.remove(&self.name);
        }
    }

    /// The identity of the cluster.
    #[must_use]
    pub fn fsid(&self) -> &str {
        &self.fsid
    }

    /// The user, as `client.NAME`.
    #[must_use]
    pub fn user(&self) -> String {
        format!("client.{}", self.name.id.as_deref().unwrap_or("admin"))
    }

    /// The number by which the cluster knows this connection.
    #[must_use]
    pub fn client_id(&self) -> u64 {
        // SAFETY: a connected handle.
        unsafe { (self.library.functions.rados_get_instance_id)(self.rados) }
    }

    /// The addresses by which the cluster knows this connection.
    ///
    /// # Errors
    /// The failed call.
    pub fn address(&self) -> Result<String, Error> {
        let mut text: *mut c_char = std::ptr::null_mut();
        // SAFETY: a connected handle, and a place for the text.
        let found = unsafe { (self.library.functions.rados_getaddrs)(self.rados, &raw mut text) };
        check(found, || "ask for the own address".into())?;
        // SAFETY: the call has made a C string, which is given back once.
        let address = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        // SAFETY: as above.
        unsafe { (self.library.functions.rados_buffer_free)(text) };
        Ok(address)
    }

    /// Has the cluster refuse the connection with this address for so many seconds: nothing that it sent earlier and has
    /// not been carried out is carried out after a later request of this one to the same object. Waits for the cluster.
    ///
    /// # Errors
    /// The failed call.
    pub fn blocklist(&self, address: &str, seconds: u32) -> Result<(), Error> {
        let functions = &self.library.functions;
        let address = CString::new(address).map_err(|_| Error::ZeroByte { what: "an address" })?;
        // SAFETY: a connected handle, and a C string, which the call only reads.
        let done =
            unsafe { (functions.rados_blocklist_add)(self.rados, address.as_ptr().cast_mut(), seconds) };
        check(done, || format!("have the cluster refuse {}", address.to_string_lossy()))?;
        // SAFETY: a connected handle. Requests from here on carry the version of the map with the list.
        let seen = unsafe { (functions.rados_wait_for_latest_osdmap)(self.rados) };
        check(seen, || "wait for the cluster's map".into())?;
        Ok(())
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.library
    }

    /// A pool, and a namespace in it.
    pub(crate) fn pool(self: &Arc<Self>, pool: &str, namespace: &str) -> Result<Pool, Error> {
        let functions = &self.library.functions;
        let name = CString::new(pool).map_err(|_| Error::ZeroByte { what: "the pool" })?;
        let namespace = CString::new(namespace).map_err(|_| Error::ZeroByte { what: "namespace=" })?;
        let mut context: IoContext = std::ptr::null_mut();
        // SAFETY: a connected handle, a C string, and a place for the context.
        let made = unsafe { (functions.rados_ioctx_create)(self.rados, name.as_ptr(), &raw mut context) };
        check(made, || format!("find the pool {pool}"))?;
        // SAFETY: a context, and a C string. Operations on a full pool fail rather than wait for space.
        unsafe {
            (functions.rados_ioctx_set_namespace)(context, namespace.as_ptr());
            (functions.rados_set_pool_full_try)(context);
        }
        Ok(Pool { cluster: Arc::clone(self), context })
    }
}

impl Drop for Cluster {
    /// Waits for the cluster.
    fn drop(&mut self) {
        // SAFETY: nobody has the handle any more: images keep the cluster.
        unsafe { (self.library.functions.rados_shutdown)(self.rados) };
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({} as {})", self.fsid, self.user())
    }
}

/// A pool of a cluster.
pub(crate) struct Pool {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) context: IoContext,
}

// SAFETY: as for the cluster: contexts may be used by any thread, by several at once as long as nobody changes their
// settings, which are those that they were made with; images copy them.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// Its number, which stays when it is renamed.
    pub(crate) fn id(&self) -> i64 {
        // SAFETY: a context that lives.
        unsafe { (self.cluster.library.functions.rados_ioctx_get_id)(self.context) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the context is not used any more.
        unsafe { (self.cluster.library.functions.rados_ioctx_destroy)(self.context) };
    }
}
