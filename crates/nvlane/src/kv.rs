//! `nvlane kv`: keys and values, by NVMe's key-value commands and by those of our own.

pub(crate) mod address;
mod bench;
mod number;
mod pairs;
mod transfer;
mod vector;
mod words;

use std::time::Duration;

use clap::{Args, Subcommand};
use host::BlockingKeyValue;
use host::reconnect::ReconnectSettings;
use host::{Address, Options};

use crate::Ended;
use crate::connection::{DigestOptions, Identity, Waits, with_subsystem};
use crate::exit::Failure;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nvlane target --listen 127.0.0.1:4420 --namespace kv:ram:1G &
  export NVLANE_ADDR=127.0.0.1:4420/NQN           (`nvlane discover 127.0.0.1:4420` tells the NQN)
  nvlane kv set greeting hello       a value on the command line
  nvlane kv set model --file w.bin   from a file; - for standard input
  nvlane kv get model --file w.bin   into a file
  nvlane kv incr visits 1 --initial 0
  nvlane kv vector weights update --element f32 --function add 0.5
  nvlane kv bench --mix ycsb-b --distribution zipf:0.99 --batch 64 --verify
  nvlane kv dump > all.jsonl && nvlane kv load OTHER/NQN all.jsonl

Each verb takes the address as its first argument; where that is none (it has no /nqn. in it), $NVLANE_ADDR is the address.

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
    /// The namespace: `HOST[:PORT]/NQN[?ns=1]`. It may be left out where $NVLANE_ADDR has it.
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

/// How long to wait for any one answer, unless --timeout says otherwise: a target that gives a long value memory it has not used before
/// may take its time.
const ANSWER: Duration = Duration::from_secs(30);

/// As whom, and how.
#[derive(Debug, Args)]
struct Way {
    #[command(flatten)]
    identity: Identity,
    #[command(flatten)]
    digests: DigestOptions,
    #[command(flatten)]
    waits: Waits,
}

impl Way {
    fn options(&self) -> Result<Options, Failure> {
        let options = Options {
            digests: self.digests.digests(),
            identity: Some(self.identity.read()?),
            reconnect: ReconnectSettings::never(),
            ..Options::default()
        };
        Ok(self.waits.apply(options, ANSWER))
    }

    /// How long to wait for any one answer.
    fn answer(&self) -> Duration {
        self.waits.answer(ANSWER)
    }

    fn connect(&self, address: &Address) -> Result<BlockingKeyValue, Failure> {
        let options = self.options()?;
        let address = with_subsystem(address.clone(), &options)?;
        Ok(BlockingKeyValue::connect(&address, options)?)
    }
}

impl OnlyPlace {
    fn connect(&self) -> Result<BlockingKeyValue, Failure> {
        let missing =
            || Failure::usage("no address: write HOST[:PORT]/NQN behind the command, or set NVLANE_ADDR");
        self.way.connect(self.address.as_ref().ok_or_else(missing)?)
    }
}

impl Place {
    fn connect(&self) -> Result<BlockingKeyValue, Failure> {
        self.way.connect(&self.address)
    }
}
