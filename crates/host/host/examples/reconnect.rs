//! Keeps writing while the target restarts: the reconnect policy, its events, and the two failures that a writer handles.
//!
//! ```text
//! cargo run --example reconnect -- 127.0.0.1:4420/nqn.2016-06.io.nvlane:disk
//! ```
//! It overwrites the first block of the namespace, every 50 ms for 3 s. Restart the target meanwhile.

use std::time::{Duration, Instant};

use nvlane_host::{
    Address, Association, BlockingNamespace, Error, Event, Failure, Options, ReconnectSettings, ReplayPolicy,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address: Address =
        std::env::args().nth(1).ok_or("usage: reconnect HOST[:PORT]/NQN[?ns=1]")?.parse()?;
    let reconnect = ReconnectSettings::default()
        .with_delay_first(Duration::from_millis(10))
        .with_delay_max(Duration::from_millis(200))
        .with_give_up_after(Duration::from_secs(30));
    // Writes are not sent a second time by the library: this program decides. `Idempotent` leaves it to the library.
    let options = Options::default().with_reconnect(reconnect).with_replay(ReplayPolicy::ReadsOnly);
    let association = Association::connect(&address, options)?;
    let events = association.events();
    let log = std::thread::spawn(move || {
        for event in events {
            match event {
                Event::Down { cause } => println!("lost: {cause}"),
                Event::AttemptFailed { attempts, .. } => println!("attempt {attempts} failed"),
                Event::Up => println!("up again"),
                Event::Over(_) => break,
                _ => {}
            }
        }
    });

    let mut disk = BlockingNamespace::new(&association, association.addressed_namespace()?)?;
    let block = vec![7; disk.namespace().lba_bytes() as usize];
    println!("writing");
    let (start, mut writes, mut repeated) = (Instant::now(), 0, 0);
    while start.elapsed() < Duration::from_secs(3) {
        match disk.write_at(&block, 0).and_then(|()| disk.flush()) {
            Ok(()) => writes += 1,
            // It may have happened, and may still happen: the same block is written again, so that does no harm.
            // `Unflushed`: the target may have lost what was written before the last flush.
            Err(Error::Failed {
                failure: Failure::Interrupted | Failure::TimedOut | Failure::Unflushed,
                ..
            }) => {
                repeated += 1;
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("{writes} writes, {repeated} of them repeated");
    drop(disk);
    association.close();
    let _ = log.join();
    Ok(())
}
