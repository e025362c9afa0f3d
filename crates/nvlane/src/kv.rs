//! `nvlane kv`: keys and values, by NVMe's key-value commands and by those of our own.

mod bench;
mod number;
mod pairs;
mod transfer;
mod vector;
mod words;

use std::time::Duration;

use clap::{Args, Subcommand};
use host::blocking::KeyValue;
use host::reconnect::ReconnectSettings;
use host::{Address, Options};
use wire::pdu::Digests;

use crate::Ended;
use crate::connection::{Identity, with_subsystem};
use crate::exit::Failure;
use crate::perf::run_time;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nvlane target --listen 127.0.0.1:4420 --namespace kv:ram:1G &
  export NVLANE_ADDR=127.0.0.1:4420/NQN           (`nvlane discover 127.0.0.1:4420` tells the NQN)
  nvlane kv set $NVLANE_ADDR greeting hello       a value on the command line
  nvlane kv set $NVLANE_ADDR model --file w.bin   from a file; - for standard input
  nvlane kv get $NVLANE_ADDR model --file w.bin   into a file
  nvlane kv incr $NVLANE_ADDR visits 1 --initial 0
  nvlane kv vector $NVLANE_ADDR weights update --element f32 --function add 0.5
  nvlane kv bench $NVLANE_ADDR --mix ycsb-b --distribution zipf:0.99 --batch 64 --verify
  nvlane kv dump $NVLANE_ADDR > all.jsonl && nvlane kv load OTHER all.jsonl

list, dump and bench take the address from $NVLANE_ADDR where none is given.

A key is 1 to 16 bytes: text, or bytes in hexadecimal with --hex (then values on the command line are hexadecimal too). Values are \
bytes, up to 256 MiB; numbers are values of 8 bytes, or of 4 with --narrow, little-endian: not memcached's, which are digits. \
incr, cas, vector and batches need an nvlane target.

What changes a number is never sent twice: if the connection is lost before the answer, it ends with an error that says so.")]
pub(crate) struct KvArguments {
    #[command(subcommand)]
    command: KvCommand,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)] // There is one of them, once.
enum KvCommand {
    /// Write a key's value to standard output or a file.
    Get(pairs::GetArguments),
    /// Store a value.
    Set(pairs::SetArguments),
    /// Delete keys.
    Delete(pairs::DeleteArguments),
    /// Say whether a key is there: exit code 0 if it is, 1 if not.
    Exist(pairs::ExistArguments),
    /// List keys.
    List(pairs::ListArguments),
    /// Add to a number, or take away, and show what it was before and is now.
    Incr(number::IncrArguments),
    /// Replace a number if it is the expected one: exit code 1 if it is another.
    Cas(number::CasArguments),
    /// Change, fold or filter a value that is a vector of numbers, where it is.
    Vector(vector::VectorArguments),
    /// Put load on a namespace and measure it.
    Bench(bench::BenchArguments),
    /// Store many pairs from a file of lines.
    Load(transfer::LoadArguments),
    /// Write all pairs as lines that `load` takes; not those of memcached's clients whose keys are longer than 16 bytes.
    Dump(transfer::DumpArguments),
}

pub(crate) fn kv(arguments: &KvArguments) -> Ended {
    match &arguments.command {
        KvCommand::Get(arguments) => pairs::get(arguments),
        KvCommand::Set(arguments) => pairs::set(arguments),
        KvCommand::Delete(arguments) => pairs::delete(arguments),
        KvCommand::Exist(arguments) => pairs::exist(arguments),
        KvCommand::List(arguments) => pairs::list(arguments),
        KvCommand::Incr(arguments) => number::incr(arguments),
        KvCommand::Cas(arguments) => number::cas(arguments),
        KvCommand::Vector(arguments) => vector::vector(arguments),
        KvCommand::Bench(arguments) => bench::bench(arguments),
        KvCommand::Load(arguments) => transfer::load(arguments),
        KvCommand::Dump(arguments) => transfer::dump(arguments),
    }
}

/// Where to, as whom and how.
#[derive(Debug, Args)]
struct Place {
    /// The namespace: `HOST[:PORT]/NQN[?ns=1]`.
    #[arg(value_name = "ADDR")]
    address: Address,
    #[command(flatten)]
    way: Way,
}

/// The same for verbs with no word behind it that could be taken for the address.
#[derive(Debug, Args)]
struct OnlyPlace {
    /// The namespace: `HOST[:PORT]/NQN[?ns=1]`.
    #[arg(value_name = "ADDR", env = "NVLANE_ADDR")]
    address: Option<Address>,
    #[command(flatten)]
    way: Way,
}

/// As whom, and how.
#[derive(Debug, Args)]
struct Way {
    #[command(flatten)]
    identity: Identity,
    /// Digests over headers.
    #[arg(short = 'g', long, help_heading = "Connection")]
    header_digest: bool,
    /// Digests over data.
    #[arg(short = 'G', long, help_heading = "Connection")]
    data_digest: bool,
    /// Seconds to wait for any one answer, such as 0.5. A target that gives a long value memory it has not used before may take its
    /// time.
    #[arg(long, value_name = "SECONDS", value_parser = run_time, default_value = "30", help_heading = "Connection")]
    timeout: Duration,
}

impl Way {
    fn options(&self) -> Result<Options, Failure> {
        let mut digests = Digests::empty();
        digests.set(Digests::HEADER, self.header_digest);
        digests.set(Digests::DATA, self.data_digest);
        Ok(Options {
            digests,
            identity: Some(self.identity.read()?),
            connect_timeout: self.timeout,
            admin_timeout: self.timeout,
            command_timeout: self.timeout,
            reconnect: ReconnectSettings::never(),
            ..Options::default()
        })
    }

    fn connect(&self, address: &Address) -> Result<KeyValue, Failure> {
        let options = self.options()?;
        let address = with_subsystem(address.clone(), &options)?;
        Ok(KeyValue::connect(&address, options)?)
    }
}

impl OnlyPlace {
    fn connect(&self) -> Result<KeyValue, Failure> {
        let missing =
            || Failure::usage("no address: write HOST[:PORT]/NQN behind the command, or set NVLANE_ADDR");
        self.way.connect(self.address.as_ref().ok_or_else(missing)?)
    }
}

impl Place {
    fn connect(&self) -> Result<KeyValue, Failure> {
        self.way.connect(&self.address)
    }
}
