//! The specification of a namespace's storage in one line: for the command line and the configuration.
//!
//! ```text
//! SPEC    = ram:SIZE | null:SIZE | file:PATH | device:PATH | pool:DIR/VOLUME | rbd:POOL/IMAGE[@SNAP]
//!           | nbd://HOST[:PORT]/EXPORT | nbd+unix:///EXPORT?socket=PATH | vhost-user:PATH
//!           | kv:ram:SIZE | kv:file:PATH | kv:rados:POOL,
//!           then ?OPTION, then &OPTION for each further one
//! OPTION  = lba=BYTES            block size: 512 to 65536, a power of two
//!         | size=SIZE            (file, kv:file) creates the file with that size; (file) lets it grow
//!         | uuid=UUID            the namespace's identity
//!         | readonly             writes are refused
//!         | small                (ram) small pages only; else huge ones (`huge`), if there are any
//!         | evict=none           (kv:ram) no pairs are evicted for new ones; else unused pairs are
//!         | item=SIZE            (kv) the longest value that memcached's clients may store: default 1M, at most 256M
//!         | flush                (kv) memcached's clients may remove everything at once, with flush_all
//!         | prefault             (kv) a thread has the system give the memory from the start on, before it is used
//!         | sparse               (kv:file) a new file gets space when it is written, else all of it at once
//!         | memory=SIZE          (kv:file) RAM for the index and used pairs; else a quarter of the file
//!         |                      (kv:rados) RAM in front of the pool; else 256M
//!         | sync=always          (kv:file) answers leave when the changes they report survive a power cut
//!         |     =batch           … at once; it survives a little later
//!         |     =none            … at once; it survives when a Flush has ended
//!         | conf=PATH            (rbd, kv:rados) Ceph's configuration file; else /etc/ceph/CLUSTER.conf
//!         | id=NAME              (rbd, kv:rados) the user client.NAME; else admin
//!         | cluster=NAME         (rbd, kv:rados) the cluster's name in the names of its files; else ceph
//!         | namespace=NAME       (rbd, kv:rados) the namespace in the pool; of keys nvlane, unless given
//!         | create=SIZE          (rbd) creates the image with that size if there is none
//!         | lock=acquire         (rbd) waits up to 45 s for the exclusive lock: a dead holder is known to be dead then
//!         |                      (kv:rados) waits 30 s for an owner that does not renew its lease
//!         |     =refuse          (rbd, kv:rados) does not wait
//!         |     =break           (rbd) takes it from its holder, whom the cluster refuses from then on
//!         |     =share           … lets other targets with lock=share write to the image as well
//!         | socket=PATH          (nbd+unix) the server's socket
//!         | connections=N        (nbd) connections at most; several only to servers that allow it, default 64
//!         | deadline=TIME        (rbd, nbd, vhost-user) time that the storage has for a request: whole seconds, default 25s
//!         | FILTER               each stands over those before it; may be given several times
//! FILTER  = delay=[KIND:]TIME[-TIME]                       for instance delay=read:50us-200us
//!         | error=[KIND:]RATE[,as=ERROR][,at=SIZE-SIZE][,seed=N]     error=write:1/1000,as=nospace, error=0.1%
//!         | limit=RATE[,RATE][,burst=TIME]                 limit=10000iops,200M/s,burst=10ms
//!         | trace
//! SIZE    = digits, then K, M, G or T (binary) or nothing       TIME = digits, then us, ms or s
//! KIND    = read | write | flush | deallocate | zeroes
//! ERROR   = injected | eio | nospace | readonly | truncated | closed | unsupported | unreachable
//! ```
//!
//! `nbd:` may stand before a URI of nbd. In a PATH, `%3F` stands for a question mark and `%25` for a percent sign.

mod parse;
mod print;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kv::log::Sync;
use memory::page_bytes;
use wire::uuid::Uuid;

use crate::block::{
    Contents, FileKind, FileSettings, FileStore, LockPolicy, MemorySettings, MemoryStore, NbdPlace, NbdStore,
    NullStore, RbdPlace, RbdSettings, RbdStore, RemoteSettings, Sharing, VhostUserDevice, VhostUserPlace,
    VhostUserStore, check_creatable, check_writable, directory_of, lacking_space, warn_of_lacking_space,
};
use crate::filter::Filter;
use crate::key_value::file::{memory_bytes_default, share_bytes_min};
use crate::key_value::{
    KeyValueFileSettings, KeyValueSettings, KeyValueStore, MEMORY_BYTES_MIN, RadosPlace, check_memory,
    superblock,
};
use crate::namespace::{BLOCK_BYTES_DEFAULT, BlockStore};
use crate::open_error::OpenError;
use crate::pool;
use crate::store::Store;

/// The specification of a namespace's storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The kind of storage.
    pub source: Source,
    /// Bytes of a logical block, if given; otherwise 4096, and for devices their own block size.
    pub block_bytes: Option<u32>,
    /// The namespace's identity, if given.
    pub uuid: Option<Uuid>,
    /// Whether writes are refused.
    pub is_read_only: bool,
    /// Filters, from the lowest up.
    pub filters: Vec<Filter>,
}

/// The kind of a namespace's storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// In RAM.
    Memory {
        /// Size, bytes.
        bytes: u64,
        /// Whether to request huge pages: the default.
        huge_pages: bool,
    },
    /// No storage: reads return zeroes.
    Null {
        /// Apparent size, bytes.
        bytes: u64,
    },
    /// In a file.
    File {
        /// Path.
        path: PathBuf,
        /// The size that it is created with or grows to.
        bytes: Option<u64>,
    },
    /// Keys and values in RAM.
    KeyValue {
        /// Memory for keys, values and their index.
        bytes: u64,
        /// Whether unused pairs are evicted to make room for new ones.
        evicts: bool,
        /// The longest value that memcached clients may store.
        item_bytes: u32,
        /// Whether memcached clients may remove everything at once.
        allows_flush: bool,
        /// Whether memory is prefaulted.
        prefaults: bool,
    },
    /// Keys and values in a file, with the used ones in RAM.
    KeyValueFile {
        /// Path.
        path: PathBuf,
        /// The size that it is created with.
        bytes: Option<u64>,
        /// Memory, if given.
        memory_bytes: Option<u64>,
        /// When answers are sent.
        sync: Sync,
        /// The longest value that memcached clients may store.
        item_bytes: u32,
        /// Whether memcached clients may remove everything at once.
        allows_flush: bool,
        /// Whether memory is prefaulted.
        prefaults: bool,
        /// Whether a new file gets space only when it is written.
        is_sparse: bool,
    },
    /// On a block device.
    Device {
        /// Path.
        path: PathBuf,
    },
    /// In a volume or snapshot of a pool, which has its own size, block size and identity.
    Volume {
        /// Path: the pool's directory, and the volume's name.
        path: PathBuf,
    },
    /// Keys and values in a pool of a Ceph cluster, with the used ones in RAM.
    KeyValueRados(Box<RadosPlace>),
    /// On an RBD image of a Ceph cluster, which has its own size.
    Rbd(Box<RbdPlace>),
    /// On an export of an NBD server, which has its own size.
    Nbd(Box<NbdPlace>),
    /// On a block device behind a vhost-user socket, which has its own size.
    VhostUser(VhostUserPlace),
}

/// The error of a specification: the position, the problem and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("namespace '{text}', character {position}: {message}")]
pub struct SpecError {
    /// The whole text.
    pub text: String,
    /// Position of the wrong character, from 1.
    pub position: usize,
    /// The problem.
    pub message: String,
}

impl Spec {
    /// A specification without options.
    #[must_use]
    pub fn new(source: Source) -> Self {
        Self { source, block_bytes: None, uuid: None, is_read_only: false, filters: Vec::new() }
    }

    /// Whether the storage holds keys and values rather than blocks.
    #[must_use]
    pub fn is_key_value(&self) -> bool {
        matches!(
            self.source,
            Source::KeyValue { .. } | Source::KeyValueFile { .. } | Source::KeyValueRados(_)
        )
    }

    /// Says what other targets share, if they do: those of this subsystem, each with controller IDs of its own.
    pub fn share(&mut self, subsystem: &str, cntlids: &RangeInclusive<u16>) {
        if let Source::Rbd(place) = &mut self.source
            && place.lock == LockPolicy::Share
        {
            place.sharing = Some(Sharing { subsystem: subsystem.to_owned(), cntlids: cntlids.clone() });
        }
    }

    /// Whether other targets share the storage.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(&self.source, Source::Rbd(place) if place.lock == LockPolicy::Share)
    }

    /// Memory that the storage takes once it is full, bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        match &self.source {
            Source::Memory { bytes, .. } | Source::KeyValue { bytes, .. } => *bytes,
            Source::KeyValueRados(place) => place.memory_bytes,
            Source::KeyValueFile { path, bytes, memory_bytes, .. } => memory_bytes.unwrap_or_else(|| {
                let existing = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
                memory_bytes_default(existing.max(bytes.unwrap_or(0)))
            }),
            Source::Null { .. }
            | Source::File { .. }
            | Source::Device { .. }
            | Source::Volume { .. }
            | Source::Rbd(_)
            | Source::Nbd(_)
            | Source::VhostUser(_) => 0,
        }
    }

    /// The memory that it gives to a key-value file or to keys in a cluster, if any, bytes.
    #[must_use]
    pub fn memory_setting(&self) -> Option<u64> {
        match &self.source {
            Source::KeyValueFile { memory_bytes, .. } => *memory_bytes,
            Source::KeyValueRados(place) => Some(place.memory_bytes),
            _ => None,
        }
    }

    /// Checks that the size suffices for one partition per reactor.
    ///
    /// # Errors
    /// The minimum size.
    pub fn check_shares(&self, reactor_count: usize) -> Result<(), OpenError> {
        match &self.source {
            Source::KeyValue { bytes, .. } => check_memory(*bytes, reactor_count, MEMORY_BYTES_MIN),
            Source::KeyValueRados(place) => check_memory(place.memory_bytes, reactor_count, MEMORY_BYTES_MIN),
            Source::KeyValueFile { path, bytes, memory_bytes, .. } => {
                if let Some(memory_bytes) = *memory_bytes {
                    let file_bytes = bytes.or_else(|| Some(std::fs::metadata(path).ok()?.len())).unwrap_or(0);
                    let share_bytes_min = share_bytes_min(file_bytes, reactor_count.max(1) as u64);
                    check_memory(memory_bytes, reactor_count, share_bytes_min)?;
                }
                match *bytes {
                    Some(bytes) => superblock::check_size(path, bytes, reactor_count.max(1) as u64),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Opens the storage, for one reactor or for several (`is_shared`).
    ///
    /// # Errors
    /// The problem of the storage, with its remedy.
    pub fn open(&self, is_shared: bool) -> Result<Store, OpenError> {
        self.open_with_pages(is_shared, page_bytes())
    }

    /// As [`open`](Self::open), in RAM with pages of this size: a multiple of those of the running kernel.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with_pages(&self, is_shared: bool, page_bytes: usize) -> Result<Store, OpenError> {
        let is_read_only = self.is_read_only;
        let block_bytes = self.block_bytes.unwrap_or(BLOCK_BYTES_DEFAULT);
        let file = || {
            let settings = self.file_settings()?;
            let settings = settings.expect("it is in a file or on a device");
            let store = FileStore::open(&settings)?;
            // Volumes are thin, and their pool warns once for all of them.
            if !matches!(self.source, Source::Volume { .. }) {
                warn_of_lacking_space(&settings);
            }
            Ok::<_, OpenError>(store)
        };
        let blocks: Arc<dyn BlockStore> = match &self.source {
            &Source::Memory { bytes, huge_pages } => {
                let settings =
                    MemorySettings { bytes, block_bytes, is_read_only, is_shared, huge_pages, page_bytes };
                Arc::new(MemoryStore::new(&settings)?)
            }
            Source::Null { bytes } => Arc::new(NullStore::new(*bytes, block_bytes, is_read_only)?),
            Source::File { .. } | Source::Device { .. } | Source::Volume { .. } => Arc::new(file()?),
            Source::Rbd(place) => {
                let place = RbdPlace::clone(place);
                let block_bytes = self.block_bytes;
                let settings = RbdSettings::new(place, block_bytes, is_read_only);
                Arc::new(RbdStore::open(&settings)?)
            }
            Source::Nbd(place) => {
                let place = NbdPlace::clone(place);
                let block_bytes = self.block_bytes;
                Arc::new(NbdStore::open(RemoteSettings { place, block_bytes, is_read_only })?)
            }
            Source::VhostUser(place) => {
                let place = VhostUserDevice::new(place.clone());
                let block_bytes = self.block_bytes;
                Arc::new(VhostUserStore::open(RemoteSettings { place, block_bytes, is_read_only })?)
            }
            &Source::KeyValue { bytes, evicts, item_bytes, allows_flush, prefaults } => {
                let settings = KeyValueSettings { bytes, evicts, item_bytes, allows_flush, prefaults };
                return Ok(Store::Keys(Arc::new(KeyValueStore::in_memory(settings))));
            }
            Source::KeyValueRados(place) => {
                return Ok(Store::Keys(Arc::new(KeyValueStore::in_cluster(place)?)));
            }
            &Source::KeyValueFile {
                ref path,
                bytes: _,
                memory_bytes,
                sync,
                item_bytes,
                allows_flush,
                prefaults,
                is_sparse: _,
            } => {
                let below = self.filtered(Arc::new(file()?));
                let path = path.clone();
                let settings =
                    KeyValueFileSettings { path, memory_bytes, sync, item_bytes, allows_flush, prefaults };
                return Ok(Store::Keys(Arc::new(KeyValueStore::in_file(settings, below))));
            }
        };
        Ok(Store::Blocks(self.filtered(blocks)))
    }

    /// How its file or device is opened, if it has one.
    fn file_settings(&self) -> Result<Option<FileSettings>, OpenError> {
        let (path, kind, contents, bytes) = match &self.source {
            Source::File { path, bytes } => (path, FileKind::Regular, Contents::Blocks, *bytes),
            Source::KeyValueFile { path, bytes, .. } => (path, FileKind::Regular, Contents::Pairs, *bytes),
            Source::Device { path } => (path, FileKind::Device, Contents::Blocks, None),
            Source::Volume { path } => return self.volume_settings(path).map(Some),
            Source::Memory { .. }
            | Source::Null { .. }
            | Source::KeyValue { .. }
            | Source::KeyValueRados(_)
            | Source::Rbd(_)
            | Source::Nbd(_)
            | Source::VhostUser(_) => {
                return Ok(None);
            }
        };
        Ok(Some(FileSettings {
            path: path.clone(),
            kind,
            contents,
            bytes,
            block_bytes: self.block_bytes,
            is_read_only: self.is_read_only,
            is_sparse: !matches!(self.source, Source::KeyValueFile { is_sparse: false, .. }),
        }))
    }

    fn volume_settings(&self, path: &Path) -> Result<FileSettings, OpenError> {
        let volume =
            pool::volume_at(path).map_err(|why| OpenError::NoVolume { path: path.to_owned(), why })?;
        Ok(FileSettings {
            path: path.to_owned(),
            kind: FileKind::Regular,
            contents: Contents::Blocks,
            bytes: None,
            block_bytes: Some(volume.record.block_bytes),
            is_read_only: self.is_read_only || volume.record.kind == pool::VolumeKind::Snapshot,
            is_sparse: true,
        })
    }

    /// Whether its file or device could be opened, or made, as far as can be seen without changing anything.
    ///
    /// # Errors
    /// The error that opening it would report. [`OpenError::Locked`] of storage that a target has open.
    pub fn inspect(&self) -> Result<(), OpenError> {
        let Some(settings) = self.file_settings()? else { return Ok(()) };
        let is_new = settings.kind == FileKind::Regular && settings.bytes.is_some() && !self.is_read_only;
        let read_only = Self { is_read_only: true, filters: Vec::new(), ..self.clone() };
        match read_only.open(false) {
            Ok(_) if settings.is_read_only => return Ok(()),
            Ok(_) => {}
            // It would be made larger.
            Err(OpenError::CannotGrow { .. }) if !self.is_read_only => {}
            Err(OpenError::Missing { path, .. }) if is_new && directory_of(&path).is_dir() => {
                return check_creatable(&settings);
            }
            Err(error) => return Err(error),
        }
        check_writable(&settings)
    }

    /// Space that its file may still need and its file system does not have, and that which it has, bytes. May block.
    #[must_use]
    pub fn lacking_space(&self) -> Option<(u64, u64)> {
        lacking_space(&self.file_settings().ok()??)
    }

    /// The filters over `below`.
    fn filtered(&self, below: Arc<dyn BlockStore>) -> Arc<dyn BlockStore> {
        self.filters.iter().fold(below, |below, filter| filter.over(below))
    }
}

/// Units of time, us, largest first.
const TIME_UNITS: [(&str, u64); 3] = [("s", 1_000_000), ("ms", 1000), ("us", 1)];

/// Sync modes by name.
const SYNCS: [(&str, Sync); 3] = [("always", Sync::Always), ("batch", Sync::Batch), ("none", Sync::None)];

/// Policies for locks by name.
const LOCKS: [(&str, LockPolicy); 4] = [
    ("acquire", LockPolicy::Acquire),
    ("refuse", LockPolicy::Refuse),
    ("break", LockPolicy::Break),
    ("share", LockPolicy::Share),
];

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use super::*;
    use crate::block::NbdServer;
    use crate::filter::{Delay, Fault, FaultKind, FaultRate, Kind, Limit};
    use crate::key_value::ITEM_BYTES_DEFAULT;
    use ceph::{ClusterName, ImageName};
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    fn sources() -> impl Strategy<Value = Source> {
        let bytes = || prop_oneof![1u64..10_000, (1u64..5000).prop_map(|count| count << 30), Just(1)];
        let memory = || prop_oneof![786_432u64..800_000, (1u64..5000).prop_map(|count| count << 20)];
        let file = || prop_oneof![802_816u64..900_000, (1u64..5000).prop_map(|count| count << 30)];
        let path = || vec(1u8.., 1..20).prop_map(|bytes| PathBuf::from(OsString::from_vec(bytes)));
        prop_oneof![
            (bytes(), any::<bool>()).prop_map(|(bytes, huge_pages)| Source::Memory { bytes, huge_pages }),
            bytes().prop_map(|bytes| Source::Null { bytes }),
            (memory(), any::<bool>(), 1024u32..=1 << 28, any::<bool>(), any::<bool>()).prop_map(
                |(bytes, evicts, item_bytes, allows_flush, prefaults)| Source::KeyValue {
                    bytes,
                    evicts,
                    item_bytes,
                    allows_flush,
                    prefaults
                }
            ),
            (path(), option::of(bytes())).prop_map(|(path, bytes)| Source::File { path, bytes }),
            path().prop_map(|path| Source::Volume { path }),
            places().prop_map(|place| Source::Rbd(Box::new(place))),
            (places(), memory(), 1024u32..=1 << 28).prop_map(|(place, memory_bytes, item_bytes)| {
                let ImageName { pool, namespace, .. } = place.image;
                let namespace = if namespace.is_empty() { "nvlane".into() } else { namespace };
                let (cluster, refuses) = (place.cluster, item_bytes % 2 == 0);
                let place = RadosPlace { cluster, pool, namespace, memory_bytes, item_bytes, refuses };
                Source::KeyValueRados(Box::new(place))
            }),
            exports().prop_map(|place| Source::Nbd(Box::new(place))),
            devices().prop_map(Source::VhostUser),
            (path(), option::of(file()), option::of(memory()), 0..SYNCS.len(), 1024u32..=1 << 28).prop_map(
                |(path, bytes, memory_bytes, sync, item_bytes)| {
                    let sync = SYNCS[sync].1;
                    let allows_flush = item_bytes % 2 == 0;
                    let item_bytes = if item_bytes % 3 == 0 { ITEM_BYTES_DEFAULT } else { item_bytes };
                    let prefaults = item_bytes % 5 == 0;
                    Source::KeyValueFile {
                        path,
                        bytes,
                        memory_bytes,
                        sync,
                        item_bytes,
                        allows_flush,
                        prefaults,
                        is_sparse: item_bytes % 7 == 0,
                    }
                }
            ),
            path().prop_map(|path| Source::Device { path }),
        ]
    }

    fn places() -> impl Strategy<Value = RbdPlace> {
        let name =
            || vec(any::<char>().prop_filter("no zero", |c| *c != '\0'), 1..6).prop_map(String::from_iter);
        let policy = proptest::sample::select(LOCKS.map(|(_, policy)| policy).to_vec());
        let names = (name(), name(), option::of(name()), option::of(name()));
        let cluster = (option::of(name()), option::of(name()), option::of(name()));
        (names, cluster, option::of(1u64..1 << 40), policy, 1u32..86_400).prop_map(
            |((pool, image, snapshot, namespace), (conf, id, cluster), create_bytes, lock, deadline_s)| {
                RbdPlace {
                    cluster: ClusterName { conf, id, cluster },
                    create_bytes: create_bytes.filter(|_| snapshot.is_none()),
                    image: ImageName { pool, namespace: namespace.unwrap_or_default(), image, snapshot },
                    lock,
                    sharing: None,
                    deadline_s,
                }
            },
        )
    }

    fn devices() -> impl Strategy<Value = VhostUserPlace> {
        let socket = vec(1u8.., 1..20).prop_map(|bytes| OsString::from_vec(bytes).into());
        (socket, 1u32..1000).prop_map(|(socket, deadline_s)| VhostUserPlace { socket, deadline_s })
    }

    fn exports() -> impl Strategy<Value = NbdPlace> {
        let path = vec(1u8.., 1..20).prop_map(|bytes| NbdServer::Unix(OsString::from_vec(bytes).into()));
        let host = prop_oneof![Just("storage.example"), Just("::1"), Just("192.0.2.7")];
        let tcp = (host, any::<u16>()).prop_map(|(host, port)| NbdServer::Tcp(host.into(), port));
        let name =
            vec(any::<char>().prop_filter("no zero", |c| *c != '\0'), 0..6).prop_map(String::from_iter);
        (prop_oneof![path, tcp], name, 1u16..200, 1u32..86_400).prop_map(
            |(server, export, connection_limit, deadline_s)| NbdPlace {
                server,
                export,
                connection_limit,
                deadline_s,
            },
        )
    }

    fn filters() -> impl Strategy<Value = Filter> {
        let kind = || option::of(proptest::sample::select(Kind::ALL.to_vec()));
        let time = || prop_oneof![0u64..5000, (0u64..80_000).prop_map(|s| s * 1_000_000)];
        let delay = (kind(), time(), time())
            .prop_map(|(kind, a, b)| Filter::Delay(Delay { kind, wait_us: a.min(b)..=a.max(b) }));
        let rate = prop_oneof![
            (1u64..).prop_map(FaultRate::Every),
            (0u32..=1_000_000).prop_map(FaultRate::PerMillion)
        ];
        let range = option::of((0u64..1 << 40, 1u64..1 << 40).prop_map(|(from, length)| from..from + length));
        let error = proptest::sample::select(FaultKind::ALL.to_vec());
        let fault = (kind(), rate, range, error, prop_oneof![Just(0), any::<u64>()]).prop_map(
            |(kind, rate, range, error, seed)| Filter::Error(Fault { kind, rate, range, error, seed }),
        );
        let limit = (option::of(1u64..1 << 30), 1u64..1 << 40, time(), any::<bool>()).prop_map(
            |(operations_per_s, bytes, burst_us, is_default)| {
                let bytes_per_s = (operations_per_s.is_none() || bytes % 2 == 0).then_some(bytes);
                let burst_us = if is_default { Limit::BURST_US_DEFAULT } else { burst_us };
                Filter::Limit(Limit { operations_per_s, bytes_per_s, burst_us })
            },
        );
        prop_oneof![delay, fault, limit, Just(Filter::Trace)]
    }

    fn specs() -> impl Strategy<Value = Spec> {
        let block_bytes = option::of((9u32..=16).prop_map(|bits| 1 << bits));
        let uuid = option::of(any::<[u8; 16]>().prop_map(Uuid::from_bytes));
        (sources(), block_bytes, uuid, any::<bool>(), vec(filters(), 0..4)).prop_map(
            |(source, block_bytes, uuid, is_read_only, filters)| {
                if matches!(source, Source::KeyValue { .. } | Source::KeyValueRados(_)) {
                    return Spec { uuid, ..Spec::new(source) };
                }
                if matches!(source, Source::KeyValueFile { .. }) {
                    return Spec { uuid, filters, ..Spec::new(source) };
                }
                let block_bytes = block_bytes.filter(|_| !matches!(source, Source::Volume { .. }));
                Spec { source, block_bytes, uuid, is_read_only, filters }
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_as_it_was(spec in specs()) {
            let text = spec.to_string();
            prop_assert_eq!(text.parse::<Spec>(), Ok(spec), "{}", text);
        }

        #[test]
        fn no_text_is_too_strange(text in "(ram|null|file|device|pool|rbd)?:?[0-9KMG]{0,3}([?&=%,:/.-]|delay|error|limit|[a-zé1])*") {
            if let Err(error) = text.parse::<Spec>() {
                prop_assert!((1..=text.chars().count() + 1).contains(&error.position));
            }
        }
    }

    #[test]
    fn a_specification_says_it_all() {
        let text = "file:/srv/a.img?size=10G&lba=512&uuid=01234567-89AB-cdef-0123-456789abcdef&readonly\
                    &delay=read:50us-2ms&error=write:1/1000,as=nospace,at=1M-2M,seed=7&error=0.25%\
                    &limit=10000iops,200M/s,burst=1s&trace";
        insta::assert_snapshot!(text.parse::<Spec>().unwrap(), @"file:/srv/a.img?size=10G&lba=512&uuid=01234567-89ab-cdef-0123-456789abcdef&readonly&delay=read:50us-2ms&error=write:1/1000,as=nospace,at=1M-2M,seed=7&error=0.25%&limit=10000iops,200M/s,burst=1s&trace");
        insta::assert_debug_snapshot!(text.parse::<Spec>().unwrap(), @r#"
        Spec {
            source: File {
                path: "/srv/a.img",
                bytes: Some(
                    10737418240,
                ),
            },
            block_bytes: Some(
                512,
            ),
            uuid: Some(
                Uuid(01234567-89ab-cdef-0123-456789abcdef),
            ),
            is_read_only: true,
            filters: [
                Delay(
                    Delay {
                        kind: Some(
                            Read,
                        ),
                        wait_us: 50..=2000,
                    },
                ),
                Error(
                    Fault {
                        kind: Some(
                            Write,
                        ),
                        rate: Every(
                            1000,
                        ),
                        range: Some(
                            1048576..2097152,
                        ),
                        error: NoSpace,
                        seed: 7,
                    },
                ),
                Error(
                    Fault {
                        kind: None,
                        rate: PerMillion(
                            2500,
                        ),
                        range: None,
                        error: Injected,
                        seed: 0,
                    },
                ),
                Limit(
                    Limit {
                        operations_per_s: Some(
                            10000,
                        ),
                        bytes_per_s: Some(
                            209715200,
                        ),
                        burst_us: 1000000,
                    },
                ),
                Trace,
            ],
        }
        "#);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place_and_what_would_be_right() {
        let wrong = [
            "",
            "ram",
            "disk:1G",
            "ram:",
            "ram:1X",
            "ram:1GB",
            "ram:x",
            "ram:0",
            "null:99999999999999999999",
            "null:9000000T",
            "file:",
            "file:?size=1G",
            "file:/100%.img",
            "file:/a%00",
            "ram:1G?",
            "ram:1G?lba",
            "ram:1G?lba=1000",
            "ram:1G?lba=128K",
            "ram:1G?lba=512&lba=512",
            "ram:1G?size=1G",
            "device:/dev/x?size=1G",
            "null:1G?huge",
            "null:1G?small",
            "ram:1G?huge=1",
            "ram:1G?small&small",
            "ram:1G?uuid=12",
            "ram:1G?colour=red",
            "file:/ä?colour=red",
            "ram:1G?delay=100",
            "ram:1G?delay=fast",
            "ram:1G?delay=2ms-1ms",
            "ram:1G?delay=1s-",
            "ram:1G?delay=100000s",
            "ram:1G?delay=trim:1ms",
            "ram:1G?error=2/3",
            "ram:1G?error=1/0",
            "ram:1G?error=101%",
            "ram:1G?error=0.00001%",
            "ram:1G?error=.%",
            "ram:1G?error=1%,as=bad",
            "ram:1G?error=1%,at=5",
            "ram:1G?error=1%,at=5-5",
            "ram:1G?error=1%,seed=x",
            "ram:1G?error=1%,x=1",
            "ram:1G?limit=10",
            "ram:1G?limit=burst=1s",
            "ram:1G?limit=0iops",
            "ram:1G?limit=1iops,2iops",
            "ram:1G?limit=1X/s",
            "ram:1G?trace=on",
            "ram:1G?trace&&trace",
            "kv:1G",
            "kv:ram:1G?lba=512",
            "kv:ram:1G?evict=some",
            "ram:1G?evict=none",
            "ram:1G?prefault",
            "kv:ram:1G?prefault=1",
            "kv:ram:1",
            "kv:ram:255K",
            "kv:ram:0",
            "kv:ram:1G?colour=red",
            "kv:file:/a?memory=1",
            "kv:file:/a?memory=786431",
            "kv:file:/a?size=1K",
            "kv:file:/a?size=783K",
            "kv:file:/a?size=1G&lba=512",
            "kv:file:/a?colour=red",
            "pool:",
            "pool:/p/db?lba=512",
            "pool:/p/db?size=1G",
            "poool:/p/db",
            "rbd:",
            "rbd:image",
            "rbd:pool/",
            "rbd:pool/image@",
            "rbd:pool/namespace/image?namespace=other",
            "rbd:pool/%zz",
            "rbd:pool/image?size=1G",
            "rbd:pool/image?user=a",
            "rbd:pool/image?conff=/etc/ceph/ceph.conf",
            "rbd:pool/image?create=0",
            "rbd:pool/image?create=1G@",
            "rbd:pool/image?lock=steal",
            "rbd:pool/image?deadline=100ms",
            "rbd:pool/image@monday?create=1G",
            "ram:1G?conf=/etc/ceph/ceph.conf",
        ];
        let messages: Vec<String> =
            wrong.iter().map(|text| text.parse::<Spec>().unwrap_err().to_string()).collect();
        insta::assert_snapshot!(messages.join("\n"), @r#"
        namespace '', character 1: expected ram:SIZE, null:SIZE, file:PATH, device:PATH, pool:DIR/VOLUME, rbd:POOL/IMAGE, nbd://HOST/EXPORT, vhost-user:SOCKET, kv:ram:SIZE, kv:file:PATH or kv:rados:POOL
        namespace 'ram', character 1: expected ram:SIZE, null:SIZE, file:PATH, device:PATH, pool:DIR/VOLUME, rbd:POOL/IMAGE, nbd://HOST/EXPORT, vhost-user:SOCKET, kv:ram:SIZE, kv:file:PATH or kv:rados:POOL
        namespace 'disk:1G', character 1: there is no 'disk': expected ram:SIZE, null:SIZE, file:PATH, device:PATH, pool:DIR/VOLUME, rbd:POOL/IMAGE, nbd://HOST/EXPORT, vhost-user:SOCKET, kv:ram:SIZE, kv:file:PATH or kv:rados:POOL
        namespace 'ram:', character 5: expected a size such as 64M or 10G
        namespace 'ram:1X', character 6: no size ends in 'X': use K, M, G or T, as in 64M
        namespace 'ram:1GB', character 6: no size ends in 'GB': use K, M, G or T, as in 64M
        namespace 'ram:x', character 5: expected a size such as 64M or 10G
        namespace 'ram:0', character 5: a namespace of no bytes
        namespace 'null:99999999999999999999', character 6: 99999999999999999999 is more than any namespace can have
        namespace 'null:9000000T', character 6: 9000000T is more than any namespace can have
        namespace 'file:', character 6: expected a path
        namespace 'file:?size=1G', character 6: expected a path
        namespace 'file:/100%.img', character 10: expected two hexadecimal digits after %: write %25 for the sign itself
        namespace 'file:/a%00', character 9: a path has no zero bytes
        namespace 'ram:1G?', character 8: expected an option
        namespace 'ram:1G?lba', character 8: lba needs a value, as in lba=4096
        namespace 'ram:1G?lba=1000', character 12: expected a power of two from 512 to 65536
        namespace 'ram:1G?lba=128K', character 12: expected a power of two from 512 to 65536
        namespace 'ram:1G?lba=512&lba=512', character 16: lba is given twice
        namespace 'ram:1G?size=1G', character 8: the size stands after the colon, as in ram:10G
        namespace 'device:/dev/x?size=1G', character 15: a device has the size it has
        namespace 'null:1G?huge', character 9: only ram: has pages of a size to choose
        namespace 'null:1G?small', character 9: only ram: has pages of a size to choose
        namespace 'ram:1G?huge=1', character 13: huge takes no value
        namespace 'ram:1G?small&small', character 14: small is given twice
        namespace 'ram:1G?uuid=12', character 13: not a UUID: expected 32 hexadecimal digits, with hyphens as 8-4-4-4-12 or none
        namespace 'ram:1G?colour=red', character 8: there is no option 'colour': expected lba, size, uuid, readonly, small, delay, error, limit or trace
        namespace 'file:/ä?colour=red', character 9: there is no option 'colour': expected lba, size, uuid, readonly, small, delay, error, limit or trace
        namespace 'ram:1G?delay=100', character 17: expected a unit of time: us, ms or s, as in 100us
        namespace 'ram:1G?delay=fast', character 14: expected a time such as 100us, 5ms or 1s
        namespace 'ram:1G?delay=2ms-1ms', character 18: ends before it begins
        namespace 'ram:1G?delay=1s-', character 17: expected a time such as 100us, 5ms or 1s
        namespace 'ram:1G?delay=100000s', character 14: more than a day
        namespace 'ram:1G?delay=trim:1ms', character 14: expected one of read, write, flush, deallocate or zeroes
        namespace 'ram:1G?error=2/3', character 14: expected 1/N for every N-th, or a chance such as 0.1%
        namespace 'ram:1G?error=1/0', character 14: expected 1/N for every N-th, or a chance such as 0.1%
        namespace 'ram:1G?error=101%', character 14: more than 100%
        namespace 'ram:1G?error=0.00001%', character 14: a chance has at most four digits after the point
        namespace 'ram:1G?error=.%', character 14: expected 1/N for every N-th, or a chance such as 0.1%
        namespace 'ram:1G?error=1%,as=bad', character 20: expected one of injected, eio, nospace, readonly, truncated, closed, unsupported or unreachable
        namespace 'ram:1G?error=1%,at=5', character 20: expected two places, as in 1M-2M
        namespace 'ram:1G?error=1%,at=5-5', character 22: ends before it begins
        namespace 'ram:1G?error=1%,seed=x', character 22: expected a number
        namespace 'ram:1G?error=1%,x=1', character 17: expected as=ERROR, at=FROM-TO or seed=NUMBER
        namespace 'ram:1G?limit=10', character 14: expected a rate such as 10000iops or 200M/s, or burst=TIME
        namespace 'ram:1G?limit=burst=1s', character 14: expected a rate such as 10000iops or 200M/s
        namespace 'ram:1G?limit=0iops', character 14: nothing would ever pass
        namespace 'ram:1G?limit=1iops,2iops', character 20: this is given twice
        namespace 'ram:1G?limit=1X/s', character 15: no size ends in 'X': use K, M, G or T, as in 64M
        namespace 'ram:1G?trace=on', character 14: trace takes no value
        namespace 'ram:1G?trace&&trace', character 14: expected an option
        namespace 'kv:1G', character 4: expected ram:SIZE, file:PATH or rados:POOL, as in kv:ram:4G
        namespace 'kv:ram:1G?lba=512', character 11: only evict, item, flush, prefault and uuid go with kv:ram:
        namespace 'kv:ram:1G?evict=some', character 17: expected none or unused
        namespace 'ram:1G?evict=none', character 8: only kv: has keys and values
        namespace 'ram:1G?prefault', character 8: only memory of kv: is touched ahead
        namespace 'kv:ram:1G?prefault=1', character 20: prefault takes no value
        namespace 'kv:ram:1', character 8: too little for keys and values: take 256K or more for each thread
        namespace 'kv:ram:255K', character 8: too little for keys and values: take 256K or more for each thread
        namespace 'kv:ram:0', character 8: a namespace of no bytes
        namespace 'kv:ram:1G?colour=red', character 11: there is no option 'colour': only evict, item, flush, prefault and uuid go with kv:ram:
        namespace 'kv:file:/a?memory=1', character 19: too little for keys and values: take 768K or more for each thread
        namespace 'kv:file:/a?memory=786431', character 19: too little for keys and values: take 768K or more for each thread
        namespace 'kv:file:/a?size=1K', character 17: too little for a log of keys and values: take 784K or more, and 776K more for each further thread
        namespace 'kv:file:/a?size=783K', character 17: too little for a log of keys and values: take 784K or more, and 776K more for each further thread
        namespace 'kv:file:/a?size=1G&lba=512', character 20: only size, sparse, memory, sync, item, flush, prefault, uuid and filters go with kv:file:
        namespace 'kv:file:/a?colour=red', character 12: there is no option 'colour': only size, sparse, memory, sync, item, flush, prefault, uuid and filters go with kv:file:
        namespace 'pool:', character 6: expected a path
        namespace 'pool:/p/db?lba=512', character 12: a volume has the block size that it was created with
        namespace 'pool:/p/db?size=1G', character 12: a volume has its own size: nvlane ctl volume resize makes it larger
        namespace 'poool:/p/db', character 1: there is no 'poool' (did you mean pool?): expected ram:SIZE, null:SIZE, file:PATH, device:PATH, pool:DIR/VOLUME, rbd:POOL/IMAGE, nbd://HOST/EXPORT, vhost-user:SOCKET, kv:ram:SIZE, kv:file:PATH or kv:rados:POOL
        namespace 'rbd:', character 5: expected POOL/IMAGE, as in rbd:volumes/db
        namespace 'rbd:image', character 5: expected POOL/IMAGE, as in rbd:volumes/db
        namespace 'rbd:pool/', character 10: expected a name
        namespace 'rbd:pool/image@', character 16: expected a name
        namespace 'rbd:pool/namespace/image?namespace=other', character 26: the namespace stands between the pool and the image already
        namespace 'rbd:pool/%zz', character 10: expected two hexadecimal digits after %: write %25 for the sign itself
        namespace 'rbd:pool/image?size=1G', character 16: an image has the size it has: create=SIZE makes a new one, rbd resize changes it
        namespace 'rbd:pool/image?user=a', character 16: there is no option 'user': only conf, id, cluster, namespace, create, lock, deadline, lba, uuid, readonly and filters go with rbd:
        namespace 'rbd:pool/image?conff=/etc/ceph/ceph.conf', character 16: there is no option 'conff' (did you mean conf?): only conf, id, cluster, namespace, create, lock, deadline, lba, uuid, readonly and filters go with rbd:
        namespace 'rbd:pool/image?create=0', character 23: a namespace of no bytes
        namespace 'rbd:pool/image?create=1G@', character 24: no size ends in 'G@': use K, M, G or T, as in 64M
        namespace 'rbd:pool/image?lock=steal', character 21: expected acquire, refuse, break or share
        namespace 'rbd:pool/image?deadline=100ms', character 25: expected whole seconds, as in 25s
        namespace 'rbd:pool/image@monday?create=1G', character 23: a snapshot is not created here: rbd snap create makes one
        namespace 'ram:1G?conf=/etc/ceph/ceph.conf', character 8: only rbd: and kv:rados: have it
        "#);
    }

    #[test]
    fn an_export_is_named_by_its_uri() {
        for (text, printed) in [
            ("nbd:nbd://storage.example", "nbd://storage.example/"),
            ("nbd://[::1]:10810/a/b?lba=512", "nbd://[::1]:10810/a%2Fb?lba=512"),
            ("nbd:nbd+unix:///?socket=/run/a%26b", "nbd+unix:///?socket=/run/a%26b"),
            ("nbd+unix:///disk?deadline=5s&socket=/s", "nbd+unix:///disk?socket=/s&deadline=5s"),
        ] {
            assert_eq!(text.parse::<Spec>().unwrap().to_string(), printed);
        }
        let wrong = [
            "nbd:disk",
            "nbd:///disk",
            "nbd://::1/disk",
            "nbd://[::1]disk/",
            "nbd://host:http/",
            "nbd+unix://run/nbd.sock",
            "nbd+unix:///disk",
            "nbd+unix:///disk?socket=",
            "nbd://host/disk?socket=/run/nbd.sock",
            "nbd://host/disk?size=1G",
            "nbd://host/disk?conections=1",
            "nbd://host/disk?connections=0",
            "nbds://host/disk",
            "ram:1G?connections=1",
            "ram:1G?deadline=5s",
            "vhost-user:",
            "vhost-usr:/run/disk.sock",
            "vhost-user:/s?dedline=5s",
            "vhost-user:/s?size=1G",
            "vhost-user:/s?connections=2",
        ];
        let messages: Vec<String> =
            wrong.iter().map(|text| text.parse::<Spec>().unwrap_err().to_string()).collect();
        insta::assert_snapshot!(messages.join("\n"), @r"
        namespace 'nbd:disk', character 5: expected a URI, as in nbd://HOST/EXPORT or nbd+unix:///EXPORT?socket=PATH
        namespace 'nbd:///disk', character 7: expected a host, as in nbd://storage.example/disk
        namespace 'nbd://::1/disk', character 7: an IPv6 address stands in brackets, as in nbd://[::1]/
        namespace 'nbd://[::1]disk/', character 7: expected [ADDRESS] or [ADDRESS]:PORT
        namespace 'nbd://host:http/', character 12: expected a port, as in nbd://HOST:10809/
        namespace 'nbd+unix://run/nbd.sock', character 12: expected a third /: the socket is an option, ?socket=PATH
        namespace 'nbd+unix:///disk', character 17: expected the server's socket, as in nbd+unix:///?socket=/run/nbd.sock
        namespace 'nbd+unix:///disk?socket=', character 18: socket needs a value, as in socket=/run/nbd.sock
        namespace 'nbd://host/disk?socket=/run/nbd.sock', character 17: only nbd+unix:// has a socket, nbd:// has a host and a port
        namespace 'nbd://host/disk?size=1G', character 17: it has the size that its server gives it
        namespace 'nbd://host/disk?conections=1', character 17: there is no option 'conections' (did you mean connections?): only socket, connections, deadline, lba, uuid, readonly and filters go with nbd:
        namespace 'nbd://host/disk?connections=0', character 29: expected a number from 1 to 65535
        namespace 'nbds://host/disk', character 1: there is no TLS to NBD servers: nbd://HOST/EXPORT within a network that you trust
        namespace 'ram:1G?connections=1', character 8: only nbd: has it
        namespace 'ram:1G?deadline=5s', character 8: only rbd:, nbd: and vhost-user: have it
        namespace 'vhost-user:', character 12: expected a path
        namespace 'vhost-usr:/run/disk.sock', character 1: there is no 'vhost-usr' (did you mean vhost-user?): expected ram:SIZE, null:SIZE, file:PATH, device:PATH, pool:DIR/VOLUME, rbd:POOL/IMAGE, nbd://HOST/EXPORT, vhost-user:SOCKET, kv:ram:SIZE, kv:file:PATH or kv:rados:POOL
        namespace 'vhost-user:/s?dedline=5s', character 15: there is no option 'dedline' (did you mean deadline?): only deadline, lba, uuid, readonly and filters go with vhost-user:
        namespace 'vhost-user:/s?size=1G', character 15: it has the size that its server gives it
        namespace 'vhost-user:/s?connections=2', character 15: only nbd: has it
        ");
    }

    #[test]
    fn keys_in_a_pool_have_the_options_of_both() {
        for (text, printed) in [
            ("kv:rados:keys", "kv:rados:keys"),
            ("kv:rados:keys?namespace=nvlane&memory=256M&lock=acquire", "kv:rados:keys"),
            (
                "kv:rados:a%2Fb?lock=refuse&id=kv&memory=1G&item=64M&conf=/c&namespace=t",
                "kv:rados:a%2Fb?conf=/c&id=kv&namespace=t&memory=1G&lock=refuse&item=67108864",
            ),
        ] {
            assert_eq!(text.parse::<Spec>().unwrap().to_string(), printed);
        }
        let wrong = [
            "kv:rados:",
            "kv:rados:keys/tenant",
            "kv:rados:keys?lock=break",
            "kv:rados:keys?memory=1K",
            "kv:rados:keys?flush",
            "kv:rados:keys?sync=none",
            "kv:rados:keys?create=1G",
            "kv:rados:keys?nmespace=a",
        ];
        let messages: Vec<String> =
            wrong.iter().map(|text| text.parse::<Spec>().unwrap_err().to_string()).collect();
        insta::assert_snapshot!(messages.join("\n"), @r"
        namespace 'kv:rados:', character 10: expected a name
        namespace 'kv:rados:keys/tenant', character 15: the namespace in the pool is an option, as in kv:rados:keys?namespace=tenant
        namespace 'kv:rados:keys?lock=break', character 20: expected acquire or refuse
        namespace 'kv:rados:keys?memory=1K', character 22: too little for keys and values: take 256K or more for each thread
        namespace 'kv:rados:keys?flush', character 15: keys in a cluster are not removed all at once: remove the objects, or take another namespace=
        namespace 'kv:rados:keys?sync=none', character 15: only conf, id, cluster, namespace, memory, lock, item and uuid go with kv:rados:
        namespace 'kv:rados:keys?create=1G', character 15: only rbd: has it
        namespace 'kv:rados:keys?nmespace=a', character 15: there is no option 'nmespace' (did you mean namespace?): only conf, id, cluster, namespace, memory, lock, item and uuid go with kv:rados:
        ");
    }

    #[test]
    fn each_reactor_has_as_much_as_it_needs() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pairs");
        let refusal = |text: &str, count| {
            let spec = text.replace("FILE", path.to_str().unwrap()).parse::<Spec>().unwrap();
            let checked = spec.check_shares(count).err()?;
            let opened = spec.open(true).unwrap().set_reactor_count(count).expect_err("as it was checked");
            assert_eq!(opened.to_string(), checked.to_string());
            Some(checked.to_string().replace(path.to_str().unwrap(), "FILE"))
        };
        for (text, count) in [
            ("kv:ram:256K", 1),
            ("kv:ram:1M", 4),
            ("kv:file:FILE?size=784K", 1),
            ("kv:file:FILE?memory=3M", 4),
            ("ram:512?lba=512", 64),
        ] {
            assert_eq!(refusal(text, count), None, "{text}");
        }
        let refusals =
            [("kv:ram:1M", 5), ("kv:file:FILE?size=2M", 3), ("kv:file:FILE?size=2M&memory=800K", 2)];
        insta::assert_snapshot!(refusals.map(|(text, count)| refusal(text, count).unwrap()).join("\n"), @r"
        1M of memory, divided among 5 threads, is too little for keys and values: take 1280K or more
        FILE has 2M: it needs at least 2336K
        800K of memory, divided among 2 threads, is too little for keys and values: take 1536K or more
        ");
    }

    #[test]
    fn what_is_opened_is_what_was_specified() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new");
        let text = format!("file:{}?size=1M&lba=512&trace", path.display());
        let store = text.parse::<Spec>().unwrap().open(true).unwrap();
        assert_eq!((store.block_bytes(), store.bytes()), (512, 1 << 20));
        for (text, block_bytes, is_read_only) in
            [("ram:1M?small&readonly", 4096, true), ("null:1T?lba=65536", 65536, false)]
        {
            let store = text.parse::<Spec>().unwrap().open(false).unwrap();
            assert_eq!((store.block_bytes(), store.is_read_only()), (block_bytes, is_read_only));
        }
        let refused = "ram:5000".parse::<Spec>().unwrap().open(true).err().unwrap();
        insta::assert_snapshot!(refused, @"the RAM namespace has 5000 bytes, not a multiple of its block size 4096: make it 8192");
    }
}
