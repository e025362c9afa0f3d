//! Storage of a namespace: blocks or keys and values.

use std::io;
use std::sync::Arc;

use kv::Usage;

use crate::health::Health;
use crate::key_value::{DamagePassedOver, KeyValueShape, KeyValueStore, RecoveryProgress};
use crate::namespace::{BlockStore, Generation, Grown};
use crate::open_error::OpenError;

/// The storage of a namespace, opened once and shared by all reactors. Its variant is the namespace's command set.
#[derive(Clone)]
pub enum Store {
    /// Logical blocks.
    Blocks(Arc<dyn BlockStore>),
    /// Keys and values.
    Keys(Arc<KeyValueStore>),
}

impl Store {
    /// The block storage, if the namespace has blocks.
    #[must_use]
    pub fn blocks(&self) -> Option<&dyn BlockStore> {
        match self {
            Self::Blocks(blocks) => Some(&**blocks),
            Self::Keys(_) => None,
        }
    }

    /// Properties of keys and values that hosts see; `None` for blocks.
    #[must_use]
    pub fn key_value(&self) -> Option<KeyValueShape> {
        match self {
            Self::Blocks(_) => None,
            Self::Keys(keys) => Some(keys.shape()),
        }
    }

    /// The keys and values, if the namespace has them.
    #[must_use]
    pub fn keys(&self) -> Option<&KeyValueStore> {
        match self {
            Self::Blocks(_) => None,
            Self::Keys(keys) => Some(keys),
        }
    }

    /// Whether the storage holds keys and values.
    #[must_use]
    pub fn is_key_value(&self) -> bool {
        matches!(self, Self::Keys(_))
    }

    /// Size, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Blocks(blocks) => blocks.geometry().bytes(),
            Self::Keys(keys) => keys.bytes(),
        }
    }

    /// Bytes of a logical block; for keys and values the unit that their size is reported in.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        match self {
            Self::Blocks(blocks) => blocks.geometry().block_bytes,
            Self::Keys(_) => KeyValueStore::UNIT_BYTES,
        }
    }

    /// Whether writes are refused.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        match self {
            Self::Blocks(blocks) => blocks.geometry().is_read_only,
            Self::Keys(_) => false,
        }
    }

    /// Whether both are the same open storage.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Blocks(one), Self::Blocks(other)) => Arc::ptr_eq(one, other),
            (Self::Keys(one), Self::Keys(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Sets the number of reactors that will attach, before the first does.
    ///
    /// # Errors
    /// If keys are partitioned for another number, or memory does not suffice for one partition each.
    pub fn set_reactor_count(&self, count: usize) -> Result<(), OpenError> {
        match self {
            Self::Blocks(_) => Ok(()),
            Self::Keys(keys) => keys.set_reactor_count(count),
        }
    }

    /// Makes the namespace `bytes` long, as [`BlockStore::resize`].
    ///
    /// # Errors
    /// The reason why it cannot be resized.
    pub fn resize(&self, bytes: u64) -> io::Result<()> {
        match self {
            Self::Blocks(blocks) => blocks.resize(bytes),
            Self::Keys(keys) => keys.resize(bytes),
        }
    }

    /// Opens storage that was closed, as [`BlockStore::reopen`].
    ///
    /// # Errors
    /// The reason why it cannot be opened; the namespace stays closed.
    pub fn reopen(&self) -> io::Result<()> {
        match self {
            Self::Blocks(blocks) => blocks.reopen(),
            Self::Keys(keys) => keys.reopen(),
        }
    }

    /// The current generation of the namespace.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.watched().map_or_else(Generation::default, BlockStore::generation)
    }

    /// Why the namespace is closed; `None` while it is open.
    #[must_use]
    pub fn closed_because(&self) -> Option<String> {
        if let Some(why) = self.keys().and_then(KeyValueStore::closed_because) {
            return Some(why);
        }
        self.watched()?.closed_because()
    }

    /// The kind of the reason for which the namespace is closed; `None` while it is open.
    #[must_use]
    pub fn closed_kind(&self) -> Option<&'static str> {
        const KINDS: [(&str, &str); 10] = [
            ("a flush ", "flush"),
            ("a durable write ", "flush"),
            ("durable zeroing ", "flush"),
            ("its storage was cut ", "cut"),
            ("its file was deleted ", "deleted"),
            ("its device was removed", "removed"),
            ("the exclusive lock of its image was lost", "lock"),
            ("the cluster has blocklisted", "lock"),
            ("its keys were taken over", "lock"),
            ("it is being reopened", "reopening"),
        ];
        let why = self.closed_because()?;
        let known = KINDS.into_iter().find(|(begin, _)| why.starts_with(begin));
        Some(known.map_or("other", |(_, kind)| kind))
    }

    /// The condition of the storage at the last look.
    #[must_use]
    pub fn health(&self) -> Health {
        self.watched().map_or_else(Health::default, BlockStore::health)
    }

    /// How far the logs of a key-value file have been read; `None` once they are.
    #[must_use]
    pub fn recovery(&self) -> Option<RecoveryProgress> {
        match self {
            Self::Blocks(_) => None,
            Self::Keys(keys) => keys.recovery(),
        }
    }

    /// The usage of keys and values, as last reported by the partitions; `None` for blocks.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        match self {
            Self::Blocks(_) => None,
            Self::Keys(keys) => Some(keys.usage()),
        }
    }

    /// Memory of keys and values, bytes; 0 for blocks.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        match self {
            Self::Blocks(_) => 0,
            Self::Keys(keys) => keys.memory_bytes(),
        }
    }

    /// Damage found in the logs of a key-value file and passed over, if there is any.
    #[must_use]
    pub fn damage(&self) -> Option<DamagePassedOver> {
        match self {
            Self::Blocks(_) => None,
            Self::Keys(keys) => keys.damage(),
        }
    }

    /// Whether the storage can change without the target: [`revalidate`](Self::revalidate) has something to compare.
    #[must_use]
    pub fn can_change_underneath(&self) -> bool {
        self.watched().is_some_and(BlockStore::can_change_underneath)
    }

    /// Compares the namespace with the current state of its storage, as [`BlockStore::revalidate`].
    pub fn revalidate(&self) -> Option<Grown> {
        self.watched()?.revalidate()
    }

    /// A name of the storage that no other has on any machine, as [`BlockStore::identity`].
    #[must_use]
    pub fn identity(&self) -> Option<String> {
        if let Some(identity) = self.keys().and_then(KeyValueStore::identity) {
            return Some(identity);
        }
        self.watched()?.identity()
    }

    /// The block storage that can change or fail: the namespace's, or that of its key log.
    fn watched(&self) -> Option<&dyn BlockStore> {
        match self {
            Self::Blocks(blocks) => Some(&**blocks),
            Self::Keys(keys) => keys.below(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;
    use crate::spec::Spec;

    fn open(text: &str) -> Store {
        text.parse::<Spec>().unwrap().open(false).unwrap()
    }

    #[test]
    fn a_file_that_is_cut_closes_its_namespace_whatever_lies_over_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("storage");
        for (kind, options) in [("file", ""), ("file", "&delay=1us&trace"), ("kv:file", "")] {
            let store = open(&format!("{kind}:{}?size=4M{options}", path.display()));
            assert!(store.can_change_underneath());
            assert_eq!((store.generation(), store.closed_because()), (Generation::default(), None));
            OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
            store.revalidate();
            assert_eq!(store.closed_kind(), Some("cut"), "{kind} {options}");
            assert_ne!(store.generation(), Generation::default());
            assert!(store.reopen().is_err(), "{kind} {options}");
            drop(store);
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn memory_is_never_reopened_resized_or_cut_unasked() {
        for text in ["ram:4M", "null:4M", "kv:ram:4M"] {
            let store = open(text);
            assert!(!store.can_change_underneath(), "{text}");
            assert_eq!((store.revalidate(), store.closed_because()), (None, None), "{text}");
            assert!(store.reopen().is_ok(), "{text}");
            assert_eq!(store.generation(), Generation::default());
        }
    }
}
