//! Targets: one association, which several threads may use.

use std::ffi::{CStr, c_char, c_int};

use host::{Address, Association, KeyValueNamespace, Namespace, Nsid};
use linux::block_signals;

use crate::argument::{self, put, wanted};
use crate::entry::{Guard, Handle, call, close, give, share};
use crate::error::{Error, NVLANE_ERROR_NAMESPACE, Result, wrong_kind};
use crate::options::Options;

/// A connected subsystem of a target: opened by nvlane_open. It has a thread, which keeps the association alive and
/// connects it again after a loss. The only kind of handle that several threads may use at once.
#[derive(Debug)]
pub struct Target {
    guard: Guard,
    pub(crate) association: Association,
}

impl Handle for Target {
    const MISSING: &'static CStr = c"target is NULL";

    fn guard(&self) -> &Guard {
        &self.guard
    }
}

/// A namespace of either kind.
#[derive(Debug)]
pub(crate) enum AnyNamespace {
    Blocks(Namespace),
    Keys(KeyValueNamespace),
}

impl AnyNamespace {
    pub(crate) fn find(association: &Association, nsid: u32) -> Result<Self> {
        if let Some(nsid) = argument::nsid(nsid)?.or(association.address().nsid) {
            return Self::named(association, nsid);
        }
        let namespaces = association.namespaces();
        let has_blocks = namespaces.iter().any(|info| info.geometry.is_ok());
        Ok(match has_blocks || namespaces.is_empty() {
            true => Self::Blocks(association.addressed_namespace()?),
            false => Self::Keys(association.addressed_key_value()?),
        })
    }

    fn named(association: &Association, nsid: Nsid) -> Result<Self> {
        let namespaces = association.namespaces();
        let has_keys = namespaces.iter().any(|info| info.nsid == nsid && info.keys.is_some());
        Ok(match has_keys {
            true => Self::Keys(association.key_value(nsid)?),
            false => Self::Blocks(association.namespace(nsid)?),
        })
    }

    pub(crate) fn nsid(&self) -> Nsid {
        match self {
            Self::Blocks(namespace) => namespace.nsid(),
            Self::Keys(namespace) => namespace.nsid(),
        }
    }

    #[inline]
    pub(crate) fn blocks(&self) -> Result<&Namespace> {
        match self {
            Self::Blocks(namespace) => Ok(namespace),
            Self::Keys(namespace) => Err(wrong_kind(Some(namespace))),
        }
    }

    #[inline]
    pub(crate) fn keys(&self) -> Result<&KeyValueNamespace> {
        match self {
            Self::Keys(namespace) => Ok(namespace),
            Self::Blocks(_) => Err(wrong_kind(None)),
        }
    }

    /// As the target reports it now.
    pub(crate) fn refreshed(&self, association: &Association) -> Result<Self> {
        Self::named(association, self.nsid())
    }

    pub(crate) fn info(&self) -> NamespaceInfo {
        match self {
            Self::Blocks(namespace) => NamespaceInfo {
                nsid: namespace.nsid().get(),
                kind: NVLANE_BLOCKS,
                size_bytes: namespace.size_bytes(),
                block_bytes: namespace.lba_bytes(),
                transfer_bytes_max: namespace.transfer_blocks_max() * namespace.lba_bytes(),
                key_bytes_max: 0,
                reserved: 0,
            },
            Self::Keys(namespace) => NamespaceInfo {
                nsid: namespace.nsid().get(),
                kind: NVLANE_KEY_VALUE,
                size_bytes: namespace.keys().bytes,
                block_bytes: 0,
                transfer_bytes_max: namespace.paired_value_bytes_max(),
                key_bytes_max: namespace.long_key_bytes_max().into(),
                reserved: 0,
            },
        }
    }
}

/// A namespace of blocks.
pub const NVLANE_BLOCKS: u32 = 1;
/// A namespace of keys and values.
pub const NVLANE_KEY_VALUE: u32 = 2;

/// What a namespace is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NamespaceInfo {
    /// Its id.
    pub nsid: u32,
    /// NVLANE_BLOCKS or NVLANE_KEY_VALUE.
    pub kind: u32,
    /// Its size, bytes; of keys and values: their capacity, 0 if the target does not say.
    pub size_bytes: u64,
    /// Size of a block, bytes: offsets and lengths are multiples of it. 0 for keys and values.
    pub block_bytes: u32,
    /// Longest transfer of one command, or longest value, bytes.
    pub transfer_bytes_max: u32,
    /// Longest key, bytes; 0 for blocks.
    pub key_bytes_max: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<NamespaceInfo>() == 32);

/// The version of the library, such as "0.1.0": a text that is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn nvlane_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// Connects to a subsystem: `address` is `HOST[:PORT]/NQN[?ns=NSID]` or `traddr=... trsvcid=... subnqn=... ns=...`. `options` may
/// be NULL. Both are not used after the call. On success `*target` is a handle; close it with nvlane_close. The call makes one
/// attempt, and waits for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_open(
    address: *const c_char,
    options: *mut Options,
    target: *mut *mut Target,
) -> c_int {
    // SAFETY: as this function's; options are of this thread.
    unsafe {
        call(|| {
            let target = wanted(c"target is NULL", target)?;
            put(target, std::ptr::null_mut());
            let address: Address = argument::text("address", address)?.parse().map_err(host::Error::from)?;
            let options = options.as_ref().map_or_else(|| Options::new().finish(), Options::finish)?;
            // The signals of the program are for its own threads.
            let mask = block_signals();
            let association = Association::connect(&address, options);
            mask.restore();
            put(target, give(Target { guard: Guard::new(), association: association? }));
            Ok(0)
        })
    }
}

/// Closes a target; NULL is allowed. Handles that were opened of it keep the association until they are closed too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_close(target: *mut Target) {
    // SAFETY: as this function's.
    unsafe { close(target) }
}

/// The namespaces of a target, as it reports them now: fills at most `count` entries of `namespaces`. Returns the number of all
/// namespaces, or an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_namespaces(
    target: *const Target,
    namespaces: *mut NamespaceInfo,
    count: usize,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        share(target, |target| {
            let room = argument::room(namespaces, count);
            let all = target.association.namespaces();
            // Those that cannot be used are left out.
            let usable =
                all.iter().filter_map(|info| AnyNamespace::named(&target.association, info.nsid).ok());
            let mut found = 0;
            for (at, namespace) in usable.enumerate() {
                found = at + 1;
                if let Some(place) = room.get_mut(at) {
                    place.write(namespace.info());
                }
            }
            c_int::try_from(found).map_err(|_| Error::of_text(NVLANE_ERROR_NAMESPACE, c"too many namespaces"))
        })
    }
}

/// Whether the target is connected now: 1 or 0, or an error. While it is not, commands wait (options give-up, fast-fail).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_is_connected(target: *const Target) -> c_int {
    // SAFETY: as this function's.
    unsafe { share(target, |target| Ok(target.association.is_up().into())) }
}
