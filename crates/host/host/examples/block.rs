//! Reads, writes and flushes a block, one command after the other, and puts it back as it was.
//!
//! ```text
//! cargo run --example block -- 127.0.0.1:4420/nqn.2016-06.io.nvlane:disk
//! ```

use nvlane_host::{Address, BlockingNamespace, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address: Address = std::env::args().nth(1).ok_or("usage: block HOST[:PORT]/NQN[?ns=1]")?.parse()?;
    let mut disk = BlockingNamespace::connect(&address, Options::default())?;
    let (blocks, bytes) = (disk.namespace().block_count(), disk.namespace().lba_bytes());
    println!("{address}: namespace {} of {blocks} blocks of {bytes} bytes", disk.namespace().nsid());

    let mut before = vec![0; bytes as usize];
    disk.read_at(&mut before, 0)?;

    let greeting = vec![b'n'; bytes as usize];
    disk.write_at(&greeting, 0)?;
    disk.flush()?;

    let mut after = vec![0; bytes as usize];
    disk.read_at(&mut after, 0)?;
    assert_eq!(after, greeting, "what was written is read");

    // With FUA: durable when it returns, without a flush.
    disk.write_durably_at(&before, 0)?;
    println!("written, flushed, read back, and put back as it was");
    Ok(())
}
