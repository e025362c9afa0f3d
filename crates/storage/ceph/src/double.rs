//! A double of the libraries in memory, for tests: a cluster with images, whose requests a thread carries out in order,
//! and with objects, whose requests end in any order.
//!
//! It has the functions of the libraries with the same prototypes, so that everything above them is what runs on a cluster.
//! Faults: a cluster that does not answer, errors, clients that are blocklisted, locks that others take.
#![allow(missing_docs, reason = "each function is that of the libraries with its name")]

mod cluster;
mod images;
mod objects;
mod world;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};

use rustix::io::Errno;

use self::world::{Content, NEXT, WORLDS, World, lock, resize};
use crate::cluster::ClusterName;
use crate::functions::Functions;
use crate::library::Library;

/// A cluster in memory.
pub struct Double {
    world: Arc<World>,
    name: String,
}

impl Default for Double {
    fn default() -> Self {
        Self::new()
    }
}

impl Double {
    #[must_use]
    pub fn new() -> Self {
        let name = format!("double-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let world = Arc::new(World::default());
        lock(&world.state).has_object_maps = true;
        lock(&WORLDS).get_or_insert_default().insert(name.clone(), Arc::clone(&world));
        Self { world, name }
    }

    /// The name by which [`Cluster::connect`](crate::Cluster::connect) finds it.
    #[must_use]
    pub fn name(&self) -> ClusterName {
        ClusterName { cluster: Some(self.name.clone()), ..ClusterName::default() }
    }

    fn content(&self, image: &str) -> Arc<Mutex<Content>> {
        Arc::clone(lock(&self.world.state).images.get(image).expect("the image is there"))
    }

    /// The bytes of an image, `POOL/NAMESPACE/IMAGE`.
    #[must_use]
    pub fn bytes(&self, image: &str) -> Vec<u8> {
        lock(&self.content(image)).bytes.clone()
    }

    /// The power of all machines of the cluster goes, and comes back.
    pub fn cut_power(&self, image: &str) {
        let content = self.content(image);
        let mut content = lock(&content);
        content.bytes = content.durable.clone();
    }

    /// Another client resizes an image.
    pub fn resize(&self, image: &str, bytes: usize) {
        resize(&mut lock(&self.content(image)), bytes);
    }

    /// An administrator makes a snapshot.
    pub fn snapshot(&self, image: &str, snapshot: &str) {
        let content = self.content(image);
        let mut content = lock(&content);
        let bytes = content.bytes.clone();
        content.snapshots.insert(snapshot.into(), bytes);
    }

    /// An administrator removes an image that nobody watches. Who has it open reads zeroes.
    pub fn remove(&self, image: &str) {
        lock(&self.content(image)).bytes.fill(0);
        lock(&self.world.state).images.remove(image);
    }

    /// An administrator removes a snapshot.
    pub fn remove_snapshot(&self, image: &str, snapshot: &str) {
        lock(&self.content(image)).snapshots.get_mut(snapshot).expect("it is there").fill(0);
        lock(&self.content(image)).removed.insert(snapshot.into());
    }

    /// Whether the cluster does not answer.
    pub fn set_hanging(&self, is_hanging: bool) {
        lock(&self.world.state).is_hanging = is_hanging;
        self.world.changed.notify_all();
    }

    /// Whether clients have a cache, as an image's own configuration may say.
    pub fn set_cache(&self, has_cache: bool) {
        lock(&self.world.state).has_cache = has_cache;
    }

    /// Whether the object maps of images are valid.
    pub fn set_object_maps(&self, are_valid: bool) {
        lock(&self.world.state).has_object_maps = are_valid;
    }

    /// An image becomes a clone whose first bytes are its parent's where it has no data.
    pub fn set_parent(&self, image: &str, bytes: u64) {
        lock(&self.content(image)).parent_bytes = bytes;
    }

    /// The next request fails.
    pub fn fail_next(&self, errno: Errno) {
        lock(&self.world.state).failures.push_back(errno);
    }

    /// Another client takes the lock of an image, and has its holder blocklisted, if it is to be.
    pub fn take_lock(&self, image: &str, blocklists: bool) {
        let content = self.content(image);
        let mut content = lock(&content);
        content.is_lent = false;
        let before = content.lock_owner.replace(0);
        if blocklists {
            lock(&self.world.state).blocklisted.extend(before);
        }
    }

    /// A client that is alive, or dead, has the lock of an image.
    pub fn set_lock_owner(&self, image: &str, owner: Option<u64>, is_alive: bool) {
        let content = self.content(image);
        let mut content = lock(&content);
        (content.lock_owner, content.is_lent) = (owner, false);
        content.watchers.retain(|watcher| Some(*watcher) != owner);
        content.watchers.extend(owner.filter(|_| is_alive));
    }

    /// The client that has the lock of an image.
    #[must_use]
    pub fn lock_owner(&self, image: &str) -> Option<u64> {
        lock(&self.content(image)).lock_owner
    }

    /// The metadata of an image.
    #[must_use]
    pub fn metadata(&self, image: &str) -> BTreeMap<String, String> {
        lock(&self.content(image)).metadata.clone()
    }

    /// A client dies: nobody watches the image for it any more.
    pub fn end_client(&self, image: &str, client: u64) {
        lock(&self.content(image)).watchers.retain(|watcher| *watcher != client);
    }

    /// Clients that have an image open.
    #[must_use]
    pub fn clients(&self, image: &str) -> Vec<u64> {
        lock(&self.content(image)).watchers.clone()
    }

    /// The objects of a namespace of a pool, by name.
    #[must_use]
    pub fn objects(&self, pool: &str, namespace: &str) -> BTreeMap<String, Vec<u8>> {
        let state = lock(&self.world.state);
        let all =
            state.objects.iter().filter(|((in_pool, of, _), _)| (&**in_pool, &**of) == (pool, namespace));
        all.map(|((.., name), bytes)| (name.to_string_lossy().into_owned(), bytes.clone())).collect()
    }

    /// After so many more changes of objects their clients die: no later request of anybody is carried out or ends, until
    /// this is called again with `None`.
    pub fn die_after(&self, change_count: Option<u64>) {
        lock(&self.world.state).object_changes_left = change_count;
    }

    /// An administrator has a client refused.
    pub fn blocklist(&self, client: u64) {
        lock(&self.world.state).blocklisted.insert(client);
    }

    /// Requests that were carried out.
    #[must_use]
    pub fn call_count(&self) -> u64 {
        lock(&self.world.state).call_count
    }

    /// The functions.
    #[must_use]
    pub fn library() -> &'static Library {
        static LIBRARY: OnceLock<Library> = OnceLock::new();
        LIBRARY.get_or_init(|| Library {
            functions: Functions {
                rados_create2: cluster::rados_create2,
                rados_conf_read_file: cluster::rados_conf_read_file,
                rados_conf_parse_env: cluster::rados_conf_parse_env,
                rados_conf_set: cluster::rados_conf_set,
                rados_connect: cluster::rados_connect,
                rados_shutdown: cluster::rados_shutdown,
                rados_cluster_fsid: cluster::rados_cluster_fsid,
                rados_get_instance_id: cluster::rados_get_instance_id,
                rados_ioctx_create: cluster::rados_ioctx_create,
                rados_ioctx_destroy: cluster::rados_ioctx_destroy,
                rados_ioctx_set_namespace: cluster::rados_ioctx_set_namespace,
                rados_ioctx_get_id: cluster::rados_ioctx_get_id,
                rados_set_pool_full_try: cluster::rados_set_pool_full_try,
                rados_getaddrs: cluster::rados_getaddrs,
                rados_buffer_free: cluster::rados_buffer_free,
                rados_blocklist_add: cluster::rados_blocklist_add,
                rados_wait_for_latest_osdmap: cluster::rados_wait_for_latest_osdmap,
                rados_read: objects::rados_read,
                rados_remove: objects::rados_remove,
                rados_create_write_op: objects::rados_create_write_op,
                rados_release_write_op: objects::rados_release_write_op,
                rados_write_op_create: objects::rados_write_op_create,
                rados_write_op_cmpext: objects::rados_write_op_cmpext,
                rados_write_op_write_full: objects::rados_write_op_write_full,
                rados_write_op_operate: objects::rados_write_op_operate,
                rados_nobjects_list_open: objects::rados_nobjects_list_open,
                rados_nobjects_list_next: objects::rados_nobjects_list_next,
                rados_nobjects_list_close: objects::rados_nobjects_list_close,
                rados_aio_create_completion2: objects::rados_aio_create_completion2,
                rados_aio_get_return_value: objects::rados_aio_get_return_value,
                rados_aio_release: objects::rados_aio_release,
                rados_aio_read: objects::rados_aio_read,
                rados_aio_write_full: objects::rados_aio_write_full,
                rados_aio_remove: objects::rados_aio_remove,
                rbd_version: images::rbd_version,
                rbd_image_options_create: images::rbd_image_options_create,
                rbd_image_options_destroy: images::rbd_image_options_destroy,
                rbd_create4: images::rbd_create4,
                rbd_open: images::rbd_open,
                rbd_open_read_only: images::rbd_open_read_only,
                rbd_close: images::rbd_close,
                rbd_stat: images::rbd_stat,
                rbd_get_id: images::rbd_get_id,
                rbd_get_features: images::rbd_get_features,
                rbd_get_flags: images::rbd_get_flags,
                rbd_get_overlap: images::rbd_get_overlap,
                rbd_diff_iterate2: images::rbd_diff_iterate2,
                rbd_resize2: images::rbd_resize2,
                rbd_config_image_list: images::rbd_config_image_list,
                rbd_config_image_list_cleanup: images::rbd_config_image_list_cleanup,
                rbd_metadata_set: images::rbd_metadata_set,
                rbd_metadata_remove: images::rbd_metadata_remove,
                rbd_metadata_list: images::rbd_metadata_list,
                rbd_lock_acquire: images::rbd_lock_acquire,
                rbd_lock_release: images::rbd_lock_release,
                rbd_lock_break: images::rbd_lock_break,
                rbd_lock_get_owners: images::rbd_lock_get_owners,
                rbd_lock_get_owners_cleanup: images::rbd_lock_get_owners_cleanup,
                rbd_is_exclusive_lock_owner: images::rbd_is_exclusive_lock_owner,
                rbd_watchers_list: images::rbd_watchers_list,
                rbd_watchers_list_cleanup: images::rbd_watchers_list_cleanup,
                rbd_set_image_notification: images::rbd_set_image_notification,
                rbd_poll_io_events: images::rbd_poll_io_events,
                rbd_aio_create_completion: images::rbd_aio_create_completion,
                rbd_aio_get_return_value: images::rbd_aio_get_return_value,
                rbd_aio_get_arg: images::rbd_aio_get_arg,
                rbd_aio_release: images::rbd_aio_release,
                rbd_aio_read: images::rbd_aio_read,
                rbd_aio_write: images::rbd_aio_write,
                rbd_aio_flush: images::rbd_aio_flush,
                rbd_aio_write_zeroes: images::rbd_aio_write_zeroes,
            },
        })
    }
}
