//! Writes a block, makes it durable, reads it back.
//!
//! ```text
//! cargo run -p nvlane-host --example readback -- 127.0.0.1:4420/nqn.2016-06.io.nvlane:disk
//! ```
//! It changes the first block of the namespace, and puts it back as it was.

use nvlane_host::blocking::Namespace;
use nvlane_host::{Address, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address: Address =
        std::env::args().nth(1).ok_or("usage: readback HOST[:PORT]/NQN[?ns=1]")?.parse()?;
    let mut disk = Namespace::connect(&address, Options::default())?;
    let (blocks, bytes) = (disk.info().block_count(), disk.info().lba_bytes());
    println!("{}: namespace {} of {blocks} blocks of {bytes} bytes", address, disk.info().nsid());

    let mut before = vec![0; bytes as usize];
    disk.read_at(0, &mut before)?;

    let greeting = vec![b'n'; bytes as usize];
    disk.write_at(0, &greeting)?;
    disk.flush()?;

    let mut after = vec![0; bytes as usize];
    disk.read_at(0, &mut after)?;
    assert_eq!(after, greeting, "what was written is read");

    disk.write_durably_at(0, &before)?;
    println!("written, flushed, read back, and put back as it was");
    Ok(())
}
