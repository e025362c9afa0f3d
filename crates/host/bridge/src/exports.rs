//! Namespaces as exports: their names, sizes and flags.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use host::wire::identify::capabilities::Oncs;
use host::wire::identify::namespace::DeallocatedValue;
use host::{Association, FlushEpoch, Namespace, Nsid};

use crate::buffers::Pool;
use crate::flush_ledger::{FlushMember, SharedFlushes};
use crate::nbd::{Export, ExportFlags};

/// Preferred size of a request, unless a block is larger, bytes.
const PREFERRED_BYTES: u32 = 4096;

/// Which namespaces are exported, and how.
#[derive(Clone, Debug, Default)]
pub struct ExportSettings {
    /// The name of the export, if it is only one; empty for the default export.
    pub name: String,
    /// Refuse whatever changes data.
    pub is_read_only: bool,
}

/// There is nothing to export.
#[derive(Debug, thiserror::Error)]
pub enum NoExport {
    /// The namespace that was named cannot be used, or there is none.
    #[error(transparent)]
    Host(#[from] host::Error),
    /// A name for several exports.
    #[error(
        "there are {count} namespaces, whose exports are named by their ids, {first} for example: name one namespace to give \
         its export a name, as in HOST/NQN?ns={first}"
    )]
    NameForSeveral {
        /// Namespaces.
        count: usize,
        /// The first one's id.
        first: Nsid,
    },
}

/// The exports of an association.
#[derive(Debug)]
pub(crate) struct Exports {
    association: Association,
    settings: ExportSettings,
    /// The only namespace that is exported; `None` for all.
    only: Option<Nsid>,
    /// What the connections of one namespace share.
    flushes: Mutex<BTreeMap<Nsid, SharedFlushes>>,
}

impl Exports {
    /// The namespace that the address names, or else all block namespaces.
    ///
    /// # Errors
    /// [`NoExport`].
    pub(crate) fn new(association: Association, settings: ExportSettings) -> Result<Self, NoExport> {
        let blocks = block_namespaces(&association);
        let only = match (association.address().nsid, &blocks[..]) {
            (None, [first, _, ..]) if settings.name.is_empty() => {
                // Reports an unusable one early.
                association.namespace(*first)?;
                None
            }
            (None, [first, _, ..]) => {
                return Err(NoExport::NameForSeveral { count: blocks.len(), first: *first });
            }
            _ => Some(association.addressed_namespace()?.nsid()),
        };
        Ok(Self { association, settings, only, flushes: Mutex::default() })
    }

    pub(crate) fn association(&self) -> &Association {
        &self.association
    }

    /// The exports of this moment, with their namespaces.
    pub(crate) fn list(&self) -> Vec<(Export, Namespace)> {
        let nsids = self.only.map_or_else(|| block_namespaces(&self.association), |only| vec![only]);
        let namespaces = nsids.into_iter().filter_map(|nsid| self.association.namespace(nsid).ok());
        namespaces.map(|namespace| (self.export(&namespace), namespace)).collect()
    }

    /// A new connection's part in what the connections of this namespace share.
    pub(crate) fn join(&self, nsid: Nsid) -> (FlushEpoch, FlushMember) {
        let mut flushes = self.flushes.lock().unwrap_or_else(PoisonError::into_inner);
        flushes.entry(nsid).or_default().join()
    }

    fn export(&self, namespace: &Namespace) -> Export {
        let nsid = namespace.nsid();
        let (info, limits) = (namespace.info(), namespace.limits());
        let block_bytes = namespace.lba_bytes();
        let is_read_only = self.settings.is_read_only || info.is_write_protected;
        let can = |command| !is_read_only && limits.commands.contains(command);
        let flags = ExportFlags::BASE
            .with(ExportFlags::CACHE)
            .with_if(ExportFlags::READ_ONLY, is_read_only)
            .with_if(ExportFlags::TRIM, can(Oncs::DATASET_MANAGEMENT))
            .with_if(ExportFlags::WRITE_ZEROES.with(ExportFlags::FAST_ZERO), can(Oncs::WRITE_ZEROES));
        let name = if self.only.is_some() { self.settings.name.clone() } else { nsid.to_string() };
        let subsystem = self.association.subsystem();
        let part_bytes = Pool::part_bytes(block_bytes, namespace.transfer_blocks_max());
        Export {
            name,
            description: format!("namespace {nsid} of {subsystem}"),
            size_bytes: namespace.size_bytes(),
            block_bytes,
            preferred_bytes: PREFERRED_BYTES.max(block_bytes),
            whole_read_bytes_max: Pool::whole_read_bytes_max(part_bytes),
            flags,
            zeroes_fast: info.write_zeroes_deallocates && info.deallocated_value == DeallocatedValue::ZEROES,
        }
    }
}

/// The block namespaces of an association, in order.
#[must_use]
pub fn block_namespaces(association: &Association) -> Vec<Nsid> {
    let namespaces = association.namespaces();
    namespaces.iter().filter(|info| info.geometry.is_ok()).map(|info| info.nsid).collect()
}
