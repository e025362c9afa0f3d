//! Values of keys of up to 250 bytes, moved between targets and Python's memory without a copy, many at once.

use host::{
    AtomicOperation, Error, Failure, InvalidCommand, Key, Moved, Pin, StoreOptions, TargetHealth, ValueLanes,
    ValueSpread, ValueTransfer,
};

use crate::memory::Memory;
use crate::open::Connection;
use crate::worker::State;

/// Longest piece of a value: pieces of one value are retrieved by several lanes.
const PIECE_BYTES: usize = 1 << 20;

/// Attempts to read a value that is replaced or lost between the question for its length and its retrieval.
pub(crate) const ATTEMPT_COUNT_MAX: u32 = 8;

/// Lanes for values.
pub(crate) enum Values {
    /// Of one target.
    One(Box<ValueLanes<Memory>>),
    /// Of several targets.
    Many {
        spread: Box<ValueSpread<Memory>>,
        /// What cannot be reached is a miss.
        is_immutable: bool,
    },
}

impl State for Values {
    fn is_over(&self) -> bool {
        match self {
            Self::One(lanes) => lanes.association().over().is_some(),
            Self::Many { .. } => false,
        }
    }
}

/// The memory of a value, in pieces.
fn pieces(memory: &[Memory]) -> Vec<Memory> {
    let cut = |memory: &Memory| {
        let memory = memory.clone();
        (0..memory.len()).step_by(PIECE_BYTES).map(move |start| memory.piece(start, PIECE_BYTES))
    };
    memory.iter().flat_map(cut).collect()
}

impl Values {
    /// Connects.
    ///
    /// # Errors
    /// As the host library's.
    pub(crate) fn open(connection: &Connection) -> Result<Self, Error> {
        match connection.clone() {
            Connection::One(address, options) => {
                let lanes = ValueLanes::connect(&address, options)?.with_checksums();
                Ok(Self::One(Box::new(lanes)))
            }
            Connection::Many(targets, options, spread) => {
                let is_immutable = spread.is_immutable;
                let spread = ValueSpread::connect(targets, options, spread)?.with_checksums();
                Ok(Self::Many { spread: Box::new(spread), is_immutable })
            }
        }
    }

    /// Bytes of the longest value.
    pub(crate) fn value_bytes_max(&self) -> u32 {
        match self {
            Self::One(lanes) => lanes.namespace().paired_value_bytes_max(),
            Self::Many { spread, .. } => spread.value_bytes_max().unwrap_or(u32::MAX),
        }
    }

    /// Whether a value that cannot be reached is a miss.
    fn is_miss(&self, failure: Failure) -> bool {
        matches!(self, Self::Many { is_immutable: true, .. }) && failure.status().is_none()
    }

    /// Stores values for `ttl_s` seconds, or for ever if 0. Returns which were stored: all, unless options say otherwise, or
    /// targets cannot be reached.
    ///
    /// # Errors
    /// The first value that failed. Others may be stored.
    pub(crate) fn store(
        &mut self,
        values: &[(Vec<u8>, Vec<Memory>)],
        ttl_s: u32,
        options: StoreOptions,
    ) -> Result<Vec<bool>, Error> {
        let transfer = |(key, memory): &'_ (Vec<u8>, Vec<Memory>)| {
            let pieces = pieces(memory);
            (key.clone(), pieces)
        };
        let mut owned: Vec<_> = values.iter().map(transfer).collect();
        let mut transfers: Vec<_> = owned
            .iter_mut()
            .map(|(key, pieces)| ValueTransfer { options, ..ValueTransfer::new(key, std::mem::take(pieces)) })
            .collect();
        match self {
            Self::One(lanes) => lanes.store(&mut transfers, ttl_s)?,
            Self::Many { spread, .. } => spread.store(&mut transfers, ttl_s)?,
        }
        let stored = transfers.iter().zip(values).map(|(transfer, (_, memory))| match transfer.moved {
            Moved::Whole => Ok(true),
            Moved::Missing => Ok(false),
            Moved::OtherLength => {
                let length = memory.iter().map(|memory| memory.len() as u64).sum();
                Err(InvalidCommand::ValueTooLong { length, limit: self.value_bytes_max() }.into())
            }
            Moved::Failed(failure) if self.is_miss(failure) => Ok(false),
            Moved::Failed(failure) => Err(Error::Failed { command: "Store", failure }),
            _ => Err(Error::Ended),
        });
        stored.collect()
    }

    /// Fills memory with values. Returns for each `true` if it is there, whole, undamaged and as long as its memory, `false` if
    /// another value is there, and `None` if none is, or none can be reached.
    ///
    /// # Errors
    /// The first retrieval that failed.
    pub(crate) fn retrieve(&mut self, values: &[(Vec<u8>, Vec<Memory>)]) -> Result<Vec<Option<bool>>, Error> {
        let transfers = values.iter().map(|(key, memory)| ValueTransfer::new(key, pieces(memory)));
        let mut transfers: Vec<_> = transfers.collect();
        match self {
            Self::One(lanes) => lanes.retrieve(&mut transfers)?,
            Self::Many { spread, .. } => spread.retrieve(&mut transfers)?,
        }
        let found = transfers.iter().map(|transfer| match transfer.moved {
            Moved::Whole => Ok(Some(true)),
            Moved::OtherLength | Moved::Damaged => Ok(Some(false)),
            Moved::Missing => Ok(None),
            Moved::Failed(failure) if self.is_miss(failure) => Ok(None),
            Moved::Failed(failure) => Err(Error::Failed { command: "Retrieve", failure }),
            _ => Err(Error::Ended),
        });
        found.collect()
    }

    /// Which keys exist.
    ///
    /// # Errors
    /// As [`ValueLanes::exist`].
    pub(crate) fn exist(&mut self, keys: &[Vec<u8>]) -> Result<Vec<bool>, Error> {
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let presence = match self {
            Self::One(lanes) => lanes.exist(&keys)?,
            Self::Many { spread, .. } => spread.exist(&keys)?,
        };
        Ok(presence.iter().collect())
    }

    /// Pins pairs, or takes pins back. Returns for which that was done.
    ///
    /// # Errors
    /// As [`ValueLanes::pin`].
    pub(crate) fn pin(&mut self, keys: &[Vec<u8>], pin: Pin) -> Result<Vec<bool>, Error> {
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let done = match self {
            Self::One(lanes) => lanes.pin(&keys, pin)?,
            Self::Many { spread, .. } => spread.pin(&keys, pin)?,
        };
        Ok(done.iter().collect())
    }

    /// Deletes keys. A key that does not exist is no error.
    ///
    /// # Errors
    /// As [`ValueLanes::delete`].
    pub(crate) fn delete(&mut self, keys: &[Vec<u8>]) -> Result<(), Error> {
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        match self {
            Self::One(lanes) => lanes.delete(&keys),
            Self::Many { spread, .. } => spread.delete(&keys),
        }
    }

    /// Length of the value of a key.
    ///
    /// # Errors
    /// As [`ValueLanes::value_bytes`].
    pub(crate) fn value_bytes(&mut self, key: &[u8]) -> Result<Option<u64>, Error> {
        match self {
            Self::One(lanes) => lanes.value_bytes(key),
            Self::Many { spread, .. } => spread.value_bytes(key),
        }
    }

    /// The value of a key, of any length.
    ///
    /// # Errors
    /// As [`retrieve`](Self::retrieve).
    pub(crate) fn value(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        for _ in 0..ATTEMPT_COUNT_MAX {
            let Some(length) = self.value_bytes(key)? else { break };
            let memory = Memory::own(usize::try_from(length).unwrap_or(usize::MAX));
            if self.retrieve(&[(key.to_vec(), vec![memory.clone()])])? == [Some(true)] {
                return Ok(Some(memory.as_slice().to_vec()));
            }
            // Another value was stored, or it was deleted, or its target is lost.
        }
        Ok(None)
    }

    /// Retrieves a value of any length to the beginning of memory, unless the value is longer. Returns the length of the value.
    ///
    /// # Errors
    /// As [`retrieve`](Self::retrieve).
    pub(crate) fn fill(&mut self, key: &[u8], memory: &Memory) -> Result<Option<u64>, Error> {
        for _ in 0..ATTEMPT_COUNT_MAX {
            let Some(length) = self.value_bytes(key)? else { break };
            let needed = usize::try_from(length).unwrap_or(usize::MAX);
            if needed > memory.len() {
                return Ok(Some(length));
            }
            if self.retrieve(&[(key.to_vec(), vec![memory.piece(0, needed)])])? == [Some(true)] {
                return Ok(Some(length));
            }
            // As above.
        }
        Ok(None)
    }

    /// Changes the number that is a key's value. Returns the number before, and whether it was changed.
    ///
    /// # Errors
    /// As [`ValueSpread::atomic`].
    pub(crate) fn atomic(&mut self, key: &Key, atomic: &AtomicOperation) -> Result<(u64, bool), Error> {
        let outcome = self.spread()?.atomic(key, atomic)?;
        Ok((outcome.before, outcome.took_effect))
    }

    /// Makes all changes durable.
    ///
    /// # Errors
    /// As [`ValueSpread::flush`].
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        self.spread()?.flush()
    }

    /// How the targets are.
    ///
    /// # Errors
    /// There is one alone.
    pub(crate) fn health(&mut self) -> Result<Vec<TargetHealth>, Error> {
        Ok(self.spread()?.health())
    }

    fn spread(&mut self) -> Result<&mut ValueSpread<Memory>, Error> {
        match self {
            Self::One(_) => Err(Error::Ended),
            Self::Many { spread, .. } => Ok(spread),
        }
    }
}
