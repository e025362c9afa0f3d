//! Eight tasks write and read at once, on any executor: this one is the smallest there is.
//!
//! ```text
//! cargo run --example async_block -- 127.0.0.1:4420/nqn.2016-06.io.nvlane:disk
//! ```
//! It overwrites the first 32 KiB of the namespace.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use nvlane_host::{Address, AsyncNamespace, Error, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address: Address =
        std::env::args().nth(1).ok_or("usage: async_block HOST[:PORT]/NQN[?ns=1]")?.parse()?;
    block_on(async {
        let disk: AsyncNamespace =
            AsyncNamespace::connect(&address, Options::default().with_lanes(2)).await?;
        // Each future is a command in flight: nothing waits for the one before.
        let tasks = (0..8).map(|number| Box::pin(write_and_read(&disk, number)));
        for outcome in join_all(tasks.collect()).await {
            outcome?;
        }
        disk.flush().await?;
        println!("8 tasks have written and read their blocks");
        Ok(())
    })
}

async fn write_and_read(disk: &AsyncNamespace, number: u8) -> Result<(), Error> {
    let offset = u64::from(number) * 4096;
    disk.write_at(vec![number; 4096], offset).await.map_err(|failed| failed.error)?;
    let read = disk.read_at(vec![0; 4096], offset).await.map_err(|failed| failed.error)?;
    assert_eq!(read, vec![number; 4096], "what was written is read");
    Ok(())
}

/// Polls all futures until each has its outcome.
async fn join_all<F: Future>(mut futures: Vec<Pin<Box<F>>>) -> Vec<F::Output> {
    let mut outcomes: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, outcome) in futures.iter_mut().zip(&mut outcomes) {
            if outcome.is_none()
                && let Poll::Ready(value) = future.as_mut().poll(context)
            {
                *outcome = Some(value);
            }
        }
        match outcomes.iter().all(Option::is_some) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    outcomes.into_iter().flatten().collect()
}

/// Runs a future on this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}
