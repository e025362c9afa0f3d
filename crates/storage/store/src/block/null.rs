//! A namespace without storage: reads zeroes and discards writes. It measures the cost of everything else.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memory::{Payload, Pool};
use reactor::Completion;

use super::{done, ended};
use crate::namespace::{Backend, BlockStore, Geometry, Request, StoreError, StoreIo, Ticket};
use crate::open_error::{OpenError, check_size};

/// Its name in errors.
const NAME: &str = "the null namespace";

/// A namespace of zeroes.
pub struct NullStore {
    shape: Shape,
}

/// The zeroes for comparisons.
static ZEROES: [u8; 4096] = [0; 4096];

#[derive(Clone)]
struct Shape {
    bytes: Arc<AtomicU64>,
    block_bytes: u32,
    is_read_only: bool,
}

impl NullStore {
    /// Creates a namespace with an apparent size of `bytes`.
    ///
    /// # Errors
    /// [`OpenError::SizeNotBlocks`].
    pub fn new(bytes: u64, block_bytes: u32, is_read_only: bool) -> Result<Self, OpenError> {
        check_size(NAME, bytes, block_bytes)?;
        Ok(Self { shape: Shape { bytes: Arc::new(AtomicU64::new(bytes)), block_bytes, is_read_only } })
    }
}

impl Shape {
    fn geometry(&self) -> Geometry {
        let block_count = self.bytes.load(Ordering::Acquire) / u64::from(self.block_bytes);
        Geometry {
            is_read_only: self.is_read_only,
            can_deallocate: !self.is_read_only,
            ..Geometry::new(self.block_bytes, block_count)
        }
    }

    fn write(&self) -> Result<(), StoreError> {
        if self.is_read_only { Err(StoreError::ReadOnly) } else { Ok(()) }
    }
}

impl BlockStore for NullStore {
    fn geometry(&self) -> Geometry {
        self.shape.geometry()
    }

    fn attach(&self) -> io::Result<Box<dyn Backend>> {
        Ok(Box::new(self.shape.clone()))
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        check_size(NAME, bytes, self.shape.block_bytes).map_err(io::Error::other)?;
        self.shape.bytes.store(bytes, Ordering::Release);
        Ok(())
    }

    fn reopen(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Backend for Shape {
    fn geometry(&self) -> Geometry {
        self.geometry()
    }

    fn read_now(
        &mut self,
        _: Option<&Pool>,
        _: u64,
        length: usize,
        _: bool,
    ) -> Option<Result<Payload, StoreError>> {
        Some(Ok(Payload::Zeroes(length)))
    }

    fn write_now(&mut self, _: u64, _: &[u8], _: bool) -> Option<Result<(), StoreError>> {
        Some(self.write())
    }

    fn compare_now(&mut self, _: u64, data: &[u8]) -> Option<Result<bool, StoreError>> {
        Some(Ok(data.chunks(ZEROES.len()).all(|piece| piece == &ZEROES[..piece.len()])))
    }

    fn start(&mut self, io: &mut dyn StoreIo, ticket: Ticket, request: Request) {
        let reply = match request {
            Request::Read { mut buffer, .. } => {
                buffer.fill(0);
                ended(Ok(()), buffer)
            }
            Request::Write { buffer, .. } => ended(self.write(), buffer),
            Request::Flush => done(Ok(())),
            Request::Deallocate { .. } | Request::WriteZeroes { .. } => done(self.write()),
            Request::FindData(_) => done(Err(StoreError::Unsupported)),
        };
        io.reply(ticket, reply);
    }

    fn on_completion(&mut self, _: &mut dyn StoreIo, ticket: Ticket, _: Completion) {
        debug_assert!(false, "no operation was started for {ticket:?}");
    }

    fn on_timer(&mut self, _: &mut dyn StoreIo, _: Ticket) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, Double, Media, Step};

    #[test]
    fn it_reads_zeroes_whatever_was_written() {
        let store = NullStore::new(1 << 50, 4096, false).unwrap();
        let mut double = Double::attach(&store, &Media::new(0));
        assert_eq!(double.write(1 << 49, &[1; 8192]), Ok(vec![]));
        assert_eq!(double.read(1 << 49, 8192), Ok(vec![0; 8192]));
        assert_eq!(double.run(Step::Compare { offset: 0, data: vec![0; 8192] }), Ok(vec![1]));
        let mut other = vec![0; 8192];
        other[8191] = 1;
        assert_eq!(double.run(Step::Compare { offset: 0, data: other }), Ok(vec![0]));
        assert_eq!(double.flush(), Ok(vec![]));
        assert_eq!(double.find_data(0..8192), Err(StoreError::Unsupported), "all may have been written");
        assert!(
            double.backend.generation().is_first() && store.generation().is_first(),
            "it is never closed"
        );
        store.resize(8192).unwrap();
        assert_eq!(store.geometry().block_count, 2);
    }
}
