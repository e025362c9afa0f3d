//! Values of keys of up to 250 bytes, moved between the target and Python's memory without a copy, many at once.

use host::wire::kv::batch::Operation;
use host::wire::opcode::KvOpcode;
use host::{
    Address, BlockingKeyValue, Error, Failure, InvalidCommand, Moved, Options, Status, StoreAttributes,
    StoreOptions, ValueLanes, ValueTransfer,
};

use crate::memory::Memory;
use crate::worker::Open;

/// Longest piece of a value: pieces of one value are retrieved by several lanes.
const PIECE_BYTES: usize = 1 << 20;

/// Lanes for values, and one for questions about keys.
pub(crate) struct Values {
    lanes: ValueLanes<Memory>,
    keys: BlockingKeyValue,
}

impl Open for Values {
    fn open(address: &Address, options: &Options) -> Result<Self, Error> {
        let keys = BlockingKeyValue::connect(address, options.clone().with_lanes(1))?;
        Ok(Self { lanes: ValueLanes::connect(address, options.clone())?.with_checksums(), keys })
    }

    fn is_over(&self) -> bool {
        self.lanes.association().over().is_some() || self.keys.association().over().is_some()
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

fn is_empty(memory: &[Memory]) -> bool {
    memory.iter().all(|memory| memory.len() == 0)
}

impl Values {
    /// Stores values for `ttl_s` seconds, or for ever if 0. Returns which were stored: all, unless options say otherwise.
    ///
    /// # Errors
    /// The first value that failed. Others may be stored.
    pub(crate) fn store(
        &mut self,
        values: &[(Vec<u8>, Vec<Memory>)],
        ttl_s: u32,
        options: StoreOptions,
    ) -> Result<Vec<bool>, Error> {
        let (empty, others): (Vec<_>, Vec<_>) = values.iter().partition(|(_, memory)| is_empty(memory));
        let mut transfers: Vec<_> = others
            .iter()
            .map(|(key, memory)| ValueTransfer { options, ..ValueTransfer::new(key, pieces(memory)) })
            .collect();
        self.lanes.store(&mut transfers, ttl_s)?;
        let stored = transfers.iter().zip(&others).map(|(transfer, (_, memory))| match transfer.moved {
            Moved::Whole => Ok(true),
            Moved::Missing => Ok(false),
            Moved::OtherLength => {
                let length = memory.iter().map(|memory| memory.len() as u64).sum();
                let limit = self.lanes.namespace().value_bytes_max();
                Err(InvalidCommand::ValueTooLong { length, limit }.into())
            }
            Moved::Failed(failure) => Err(Error::Failed { command: "Store", failure }),
            _ => Err(Error::Ended),
        });
        let mut stored = stored.collect::<Result<Vec<_>, _>>()?.into_iter();
        let mut stored_empty = self.store_empty(&empty, ttl_s, options)?.into_iter();
        let in_order = values.iter().map(|(_, memory)| match is_empty(memory) {
            true => stored_empty.next(),
            false => stored.next(),
        });
        Ok(in_order.map(Option::unwrap_or_default).collect())
    }

    /// Stores values without bytes, for which the commands of [`ValueLanes`] have no data.
    fn store_empty(
        &mut self,
        values: &[&(Vec<u8>, Vec<Memory>)],
        ttl_s: u32,
        options: StoreOptions,
    ) -> Result<Vec<bool>, Error> {
        let mut stored = Vec::new();
        for (key, _) in values {
            let mut batch = self.keys.batch()?;
            batch.store_with(key, b"", options, StoreAttributes { ttl_s, flags: 0 })?;
            let mut outcomes = self.keys.run_batch(&mut batch)?;
            let status = outcomes.next().map_or(Status::INTERNAL_ERROR, |outcome| outcome.status);
            if !status.is_success()
                && !status.is(Status::KEY_EXISTS)
                && !status.is(Status::KEY_DOES_NOT_EXIST)
            {
                return Err(Error::Failed { command: "Store", failure: Failure::Status(status) });
            }
            stored.push(status.is_success());
        }
        Ok(stored)
    }

    /// Fills memory with values. Returns which are there: whole, undamaged, and as long as their memory.
    ///
    /// # Errors
    /// The first retrieval that failed.
    pub(crate) fn retrieve(&mut self, values: &[(Vec<u8>, Vec<Memory>)]) -> Result<Vec<bool>, Error> {
        let others = values.iter().filter(|(_, memory)| !is_empty(memory));
        let mut transfers: Vec<_> =
            others.map(|(key, memory)| ValueTransfer::new(key, pieces(memory))).collect();
        self.lanes.retrieve(&mut transfers)?;
        let found = transfers.iter().map(|transfer| match transfer.moved {
            Moved::Whole => Ok(true),
            Moved::Missing | Moved::OtherLength | Moved::Damaged => Ok(false),
            Moved::Failed(failure) => Err(Error::Failed { command: "Retrieve", failure }),
            _ => Err(Error::Ended),
        });
        let mut found = found.collect::<Result<Vec<_>, _>>()?.into_iter();
        let in_order = values.iter().map(|(key, memory)| match is_empty(memory) {
            true => Ok(self.keys.value_bytes(key)? == Some(0)),
            false => Ok(found.next().unwrap_or_default()),
        });
        in_order.collect()
    }

    /// Which keys exist.
    ///
    /// # Errors
    /// As [`BlockingKeyValue::exist_many`].
    pub(crate) fn exist(&mut self, keys: &[Vec<u8>]) -> Result<Vec<bool>, Error> {
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        Ok(self.keys.exist_many(&keys)?.iter().collect())
    }

    /// Deletes keys. A key that does not exist is no error.
    ///
    /// # Errors
    /// As [`BlockingKeyValue::run_batch`], or the first one that failed.
    pub(crate) fn delete(&mut self, keys: &[Vec<u8>]) -> Result<(), Error> {
        let mut batch = self.keys.batch()?;
        let mut keys = keys.iter().peekable();
        while keys.peek().is_some() {
            batch.clear();
            while let Some(key) = keys.peek() {
                match batch.push(&Operation::on(KvOpcode::DELETE, key)) {
                    Ok(()) => drop(keys.next()),
                    Err(InvalidCommand::BatchFull { .. }) if !batch.is_empty() => break,
                    Err(error) => return Err(error.into()),
                }
            }
            for outcome in self.keys.run_batch(&mut batch)? {
                let status = outcome.status;
                if !status.is_success() && !status.is(Status::KEY_DOES_NOT_EXIST) {
                    return Err(Error::Failed { command: "Delete", failure: Failure::Status(status) });
                }
            }
        }
        Ok(())
    }

    /// The value of a key, of any length.
    ///
    /// # Errors
    /// As [`retrieve`](Self::retrieve).
    pub(crate) fn value(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        loop {
            let Some(length) = self.keys.value_bytes(key)? else { return Ok(None) };
            let memory = Memory::own(usize::try_from(length).unwrap_or(usize::MAX));
            if self.retrieve(&[(key.to_vec(), vec![memory.clone()])])? == [true] {
                return Ok(Some(memory.as_slice().to_vec()));
            }
            // Another value was stored, or it was deleted.
        }
    }
}
