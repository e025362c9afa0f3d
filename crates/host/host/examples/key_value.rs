//! Stores, retrieves, lists and deletes keys of a key-value namespace, as NVMe's key-value command set has them.
//!
//! ```text
//! nvlane target --kv 64M &
//! cargo run --example key_value -- '127.0.0.1:4420/nqn.2016-06.io.nvlane:disk?ns=1'
//! ```

use nvlane_host::{Address, BlockingKeyValue, Key, Options, StoreOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address: Address = std::env::args().nth(1).ok_or("usage: key_value HOST[:PORT]/NQN?ns=1")?.parse()?;
    let mut keys = BlockingKeyValue::connect(&address, Options::default())?;
    let key = Key::new(b"greeting").ok_or("a key has 1 to 16 bytes")?;

    keys.store(&key, b"hello")?;
    assert_eq!(keys.retrieve(&key)?.as_deref(), Some(&b"hello"[..]));
    // A store can demand that the key does not exist yet, or that it does.
    assert!(!keys.store_if(&key, b"other", StoreOptions::MUST_NOT_EXIST)?, "it exists");
    println!("{} keys from \"greeting\" on", keys.list(Some(&key))?.len());

    keys.delete(&key)?;
    assert_eq!(keys.retrieve(&key)?, None);
    println!("stored, retrieved, listed and deleted");
    Ok(())
}
