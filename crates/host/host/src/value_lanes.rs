//! Many values at once, between a target and buffers of the caller.

use host_core::failure::Failure;
use host_core::key_value::{KeyValueNamespace, Pin};
use proto::host_queue::DataBuffer;
use wire::kv::batch::Operation;
use wire::kv::presence::Presence;
use wire::opcode::KvOpcode;

use crate::address::Address;
use crate::association::Association;
use crate::error::Error;
use crate::options::Options;
use crate::value_pairs::PairBuffer;
use crate::value_targets::{Effort, RefusedTransfer, ValueTarget, ValueTargets};
use crate::value_transfer::ValueTransfer;

/// Attempts of a pair whose connection is lost. Neither a retrieval nor a store without a condition does harm twice.
const ATTEMPT_COUNT_MAX: u8 = 3;

/// Lanes of the calling thread that move many values at once, directly from and into the caller's buffers.
///
/// ```no_run
/// use nvlane_host::{Moved, Options, ValueLanes, ValueTransfer};
///
/// let address = "192.0.2.1:4420/nqn.2016-06.io.nvlane:cache".parse()?;
/// let mut values = ValueLanes::connect(&address, Options::default().with_lanes(4))?;
/// let mut transfers = vec![ValueTransfer::new(b"model@0@layers", vec![vec![1u8; 8 << 20]; 4])];
/// values.store(&mut transfers, 0)?;
/// values.retrieve(&mut transfers)?;
/// assert_eq!(transfers[0].moved, Moved::Whole);
/// # Ok::<(), nvlane_host::Error>(())
/// ```
#[derive(Debug)]
pub struct ValueLanes<B = Vec<u8>> {
    targets: ValueTargets<B>,
    namespace: KeyValueNamespace,
    association: Association,
}

impl<B: DataBuffer + Default> ValueLanes<B> {
    /// Connects to the namespace that `address` names, or to the only key-value namespace of the subsystem, with as many
    /// lanes as the options say.
    ///
    /// # Errors
    /// As [`Association::connect`], [`Association::addressed_key_value`] and [`Association::lane`].
    pub fn connect(address: &Address, options: Options) -> Result<Self, Error> {
        let association = Association::connect(address, options)?;
        let namespace = association.addressed_key_value()?;
        Self::new(&association, namespace)
    }

    /// All lanes of an existing association.
    ///
    /// # Errors
    /// As [`Association::lane`].
    pub fn new(association: &Association, namespace: KeyValueNamespace) -> Result<Self, Error> {
        let lanes = association.every_lane::<PairBuffer<B>>()?;
        let mut targets = ValueTargets::new(1)?;
        let target = ValueTarget { namespace, association: association.clone() };
        targets.replace(vec![(0, Some((target, lanes)))])?;
        Ok(Self { targets, namespace, association: association.clone() })
    }

    /// Stores values with a CRC32C of their bytes, kept beside them in memory and in a log, where memcached has its flags; and
    /// compares it with what is retrieved, but for ranges. Values without one are not compared.
    #[must_use]
    pub fn with_checksums(mut self) -> Self {
        self.targets.set_checksums();
        self
    }

    /// Values that did not have their checksum.
    #[must_use]
    pub fn damaged_count(&self) -> u64 {
        self.targets.damaged_count()
    }

    /// The namespace: its limits, and the constructor of its commands.
    #[must_use]
    pub fn namespace(&self) -> &KeyValueNamespace {
        &self.namespace
    }

    /// The association.
    #[must_use]
    pub fn association(&self) -> &Association {
        &self.association
    }

    /// Retrieves values into buffers of their lengths. Each transfer tells in [`moved`](ValueTransfer::moved) what became
    /// of it: all bytes of one version of the value are there, or none count.
    ///
    /// A value in several buffers of together 2 MiB and more is retrieved by several lanes at once.
    ///
    /// # Errors
    /// [`Error::Command`] if a key, or the length of a value, is one that no command has: nothing was sent then.
    pub fn retrieve(&mut self, transfers: &mut [ValueTransfer<'_, B>]) -> Result<(), Error> {
        let targets = vec![Some(0); transfers.len()];
        let retrieved = self.targets.retrieve(transfers, &targets, effort());
        retrieved.map_err(|RefusedTransfer { why, .. }| why.into())
    }

    /// Stores values, each as a whole or not at all, for this number of seconds; 0: for ever. Each transfer tells in
    /// [`moved`](ValueTransfer::moved) what became of it. A value takes one lane, different values take all.
    ///
    /// # Errors
    /// As [`retrieve`](Self::retrieve).
    pub fn store(&mut self, transfers: &mut [ValueTransfer<'_, B>], ttl_s: u32) -> Result<(), Error> {
        let targets = vec![Some(0); transfers.len()];
        let stored = self.targets.store(transfers, &targets, ttl_s, effort());
        stored.map_err(|RefusedTransfer { why, .. }| why.into())
    }

    /// Tests which of many keys exist: some 1,000 in one round trip, more of them by several lanes. No key is marked as used.
    ///
    /// # Errors
    /// [`Error::Command`] if the controller does not support that, or a key has no bytes or too many; [`Error::Failed`].
    pub fn exist(&mut self, keys: &[&[u8]]) -> Result<Presence, Error> {
        let targets = vec![Some(0); keys.len()];
        let operation = |key| Operation::on(KvOpcode::EXIST, key);
        let mut jobs = self.targets.batches(keys, &targets, KeyValueNamespace::presence_batch, operation)?;
        self.targets.run_batches(&mut jobs, effort());
        let mut presence = Presence::default();
        for job in &jobs {
            presence.extend(&job.presence().map_err(|error| self.named(error))?);
        }
        Ok(presence)
    }

    /// Pins pairs, or takes one pin of each back: a pinned pair is not evicted before its time is over, or before it was
    /// unpinned as often. Returns for which of them that was done, some 1,000 in one round trip; see [`Pin`]. A pair that is
    /// not pinned can be unpinned, and stays as it is.
    ///
    /// If a connection is lost before its answer, pins may have been counted: they end with their time.
    ///
    /// # Errors
    /// As [`exist`](Self::exist), and if the time is none or too long. Some pairs may be pinned then.
    pub fn pin(&mut self, keys: &[&[u8]], pin: Pin) -> Result<Presence, Error> {
        let (targets, seconds) = (vec![Some(0); keys.len()], pin.parts().1.to_le_bytes());
        let operation = |key| pin.operation(key, &seconds);
        let mut jobs = self.targets.batches(keys, &targets, |keys| keys.pin_batch(pin), operation)?;
        // Once: a second execution would count twice.
        self.targets.run_batches(&mut jobs, Effort { attempt_count_max: 1, patience: None });
        let mut presence = Presence::default();
        for job in &jobs {
            presence.extend(&job.presence().map_err(|error| self.named(error))?);
        }
        Ok(presence)
    }

    /// Deletes keys. A key that does not exist is no error.
    ///
    /// # Errors
    /// As [`exist`](Self::exist). Some keys may be deleted then.
    pub fn delete(&mut self, keys: &[&[u8]]) -> Result<(), Error> {
        let targets = vec![Some(0); keys.len()];
        let operation = |key| Operation::on(KvOpcode::DELETE, key);
        let mut jobs = self.targets.batches(keys, &targets, KeyValueNamespace::batch, operation)?;
        self.targets.run_batches(&mut jobs, effort());
        jobs.iter().try_for_each(|job| job.deleted().map_err(|error| self.named(error)))
    }

    /// Length of the value of a key; `None` if the key does not exist.
    ///
    /// # Errors
    /// As [`exist`](Self::exist).
    pub fn value_bytes(&mut self, key: &[u8]) -> Result<Option<u64>, Error> {
        let operation = |key| Operation::on(KvOpcode::EXIST, key);
        let mut jobs = self.targets.batches(&[key], &[Some(0)], KeyValueNamespace::batch, operation)?;
        self.targets.run_batches(&mut jobs, effort());
        jobs[0].value_bytes().map_err(|error| self.named(error))
    }

    /// An error, or why the association has ended.
    fn named(&self, error: Error) -> Error {
        match (error, self.association.over()) {
            (Error::Failed { failure: Failure::Unreachable, .. }, Some(over)) => Error::clone(&over),
            (error, _) => error,
        }
    }
}

fn effort() -> Effort<'static> {
    Effort { attempt_count_max: ATTEMPT_COUNT_MAX, patience: None }
}
