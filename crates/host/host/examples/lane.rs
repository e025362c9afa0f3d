//! Reads at depth 32 on one lane, from the caller's own thread: 32 commands are outstanding until 10,000 have completed.
//!
//! ```text
//! cargo run --release --example lane -- 127.0.0.1:4420/nqn.2016-06.io.nvlane:disk
//! ```

use std::time::Instant;

use nvlane_host::{Address, Association, Completion, Lane, Options};

const DEPTH: u16 = 32;
const READS: u64 = 10_000;
const BYTES: u32 = 4096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address: Address = std::env::args().nth(1).ok_or("usage: lane HOST[:PORT]/NQN[?ns=1]")?.parse()?;
    let association = Association::connect(&address, Options::default().with_depth(DEPTH))?;
    let namespace = association.addressed_namespace()?;
    let blocks = BYTES / namespace.lba_bytes();
    let places = namespace.block_count() / u64::from(blocks);
    let mut lane: Lane = association.lane()?;

    let start = Instant::now();
    let mut submitted = 0;
    let mut completed: Vec<Completion<Vec<u8>>> = Vec::new();
    // The buffers of the first commands; each goes on with the next command.
    let mut buffers = vec![vec![0; BYTES as usize]; DEPTH.into()];
    let mut done = 0;
    while done < READS {
        while submitted < READS
            && let Some(buffer) = buffers.pop()
        {
            // Any order of the blocks: a multiplication scatters them.
            let lba = submitted.wrapping_mul(0x9e37_79b9) % places * u64::from(blocks);
            lane.submit(namespace.read(lba, blocks)?, Some(buffer), submitted)?;
            submitted += 1;
        }
        // Sends what was submitted, and takes what has arrived; sleeps if there is nothing.
        lane.wait(&mut completed, std::time::Duration::from_secs(1));
        for completion in completed.drain(..) {
            completion.result?;
            buffers.extend(completion.buffer);
            done += 1;
        }
    }
    let counters = lane.counters();
    let (seconds, sends) = (start.elapsed().as_secs_f64(), counters.sends);
    println!("{done} reads in {seconds:.3} s, {:.1} commands in a send", done as f64 / sends as f64);
    Ok(())
}
