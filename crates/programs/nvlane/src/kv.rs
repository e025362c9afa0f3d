//! `nvlane kv`: key-value namespaces, through NVMe's key-value commands and nvlane's own.

pub(crate) mod address;
mod bench;
mod file;
mod number;
mod pairs;
mod transfer;
mod vector;
mod words;

use std::time::Duration;

use clap::{Args, Subcommand};
use command_line::connection::{HostOptions, with_subsystem};
use command_line::exit::{Ended, Failure};
use host::{Address, Options};
use host::{BlockingKeyValue, ValueLanes};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nvlane target --listen 127.0.0.1:4420 --namespace kv:ram:1G &
  export NVLANE_ADDR=127.0.0.1:4420/NQN           (`nvlane discover 127.0.0.1:4420` lists the NQN)
  nvlane kv set greeting hello       a value on the command line
  nvlane kv set model --file w.bin   from a file; - for standard input
  nvlane kv get model --file w.bin   into a file
  nvlane kv get model --range 0:4096 --range 8192:512   some bytes of it
  nvlane kv set session x --ttl 60   for a minute
  nvlane kv pin session model --seconds 600   not evicted for ten minutes
  nvlane kv incr visits 1 --initial 0
  nvlane kv vector weights update --element f32 --function add 0.5
  nvlane kv bench --mix ycsb-b --distribution zipf:0.99 --batch 64 --verify
  nvlane kv dump > all.jsonl && nvlane kv load OTHER/NQN all.jsonl
  nvlane kv check FILE                            of a kv:file: namespace, without a target
  nvlane kv repair FILE --out NEW

Each verb but check and repair takes the address as its first argument. If the first argument is not an address (contains no /nqn.), $NVLANE_ADDR is used.

A key is 1 to 16 bytes, for get, set, delete and exist with an nvlane target up to 250: text, or bytes in hexadecimal with --hex (then values on the \
command line are hexadecimal too). Values are bytes, up to 256 MiB. Numbers are little-endian values of 8 bytes, or of 4 with --narrow; memcached's numbers, which are digits, differ. \
pin, incr, cas, vector, --range, --ttl and batches need an nvlane target.

Commands that change a number are never sent twice: if the connection is lost before the answer, they fail with an error that says so.")]
pub(crate) struct KvArguments {
    #[command(subcommand)]
    command: KvCommand,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)] // There is one of them, once.
enum KvCommand {
    /// Write the value of a key to standard output or a file.
    Get(pairs::GetArguments),
    /// Store a value.
    Set(pairs::SetArguments),
    /// Delete keys. A missing key is not an error.
    Delete(pairs::KeysArguments),
    /// Check whether keys exist: exit code 0 if all do, 1 if not. Several keys at once need an nvlane target.
    Exist(pairs::ExistArguments),
    /// Keep pairs from being evicted for some seconds: exit code 0 if all are pinned, 1 if not.
    Pin(pairs::PinArguments),
    /// Take one pin of each pair back: exit code 0 if all exist, 1 if not.
    Unpin(pairs::KeysArguments),
    /// List keys.
    List(pairs::ListArguments),
    /// Add to or subtract from a number, and print its old and new value.
    Incr(number::IncrArguments),
    /// Replace a number if it has the expected value: exit code 1 if it has another.
    Cas(number::CasArguments),
    /// Update, reduce or filter a vector of numbers in place, on the target.
    Vector(vector::VectorArguments),
    /// Put load on a namespace and measure it.
    Bench(bench::BenchArguments),
    /// Store pairs from a file of JSON lines.
    Load(transfer::LoadArguments),
    /// Read a key-value file that no target uses, and print what is damaged: exit code 0 if nothing is, else 1.
    Check(file::CheckArguments),
    /// Write what is certain in a damaged key-value file to a new one.
    Repair(file::RepairArguments),
    /// Write all pairs as lines for `load`, except those with keys longer than 16 bytes.
    Dump(transfer::DumpArguments),
}

pub(crate) fn kv(arguments: &KvArguments) -> Ended {
    match &arguments.command {
        KvCommand::Get(arguments) => pairs::get(arguments),
        KvCommand::Set(arguments) => pairs::set(arguments),
        KvCommand::Delete(arguments) => pairs::delete(arguments),
        KvCommand::Exist(arguments) => pairs::exist(arguments),
        KvCommand::Pin(arguments) => pairs::pin(arguments),
        KvCommand::Unpin(arguments) => pairs::unpin(arguments),
        KvCommand::List(arguments) => pairs::list(arguments),
        KvCommand::Incr(arguments) => number::incr(arguments),
        KvCommand::Cas(arguments) => number::cas(arguments),
        KvCommand::Vector(arguments) => vector::vector(arguments),
        KvCommand::Bench(arguments) => bench::bench(arguments),
        KvCommand::Load(arguments) => transfer::load(arguments),
        KvCommand::Check(arguments) => file::check(arguments),
        KvCommand::Repair(arguments) => file::repair(arguments),
        KvCommand::Dump(arguments) => transfer::dump(arguments),
    }
}

/// Address, host identity and connection options.
#[derive(Debug, Args)]
struct Place {
    /// The namespace: `HOST[:PORT]/NQN[?ns=1]`. May be omitted if $NVLANE_ADDR is set.
    #[arg(value_name = "ADDR")]
    address: Address,
    #[command(flatten)]
    way: Way,
}

/// The same for verbs without further arguments that could be taken for the address.
#[derive(Debug, Args)]
struct OnlyPlace {
    /// The namespace: `HOST[:PORT]/NQN[?ns=1]`.
    #[arg(value_name = "ADDR", env = "NVLANE_ADDR")]
    address: Option<Address>,
    #[command(flatten)]
    way: Way,
}

/// Default timeout of one command: a target may need seconds to give memory that it has not used before to a long
/// value.
const ANSWER: Duration = Duration::from_secs(30);

/// Host identity and connection options.
#[derive(Debug, Args)]
struct Way {
    #[command(flatten)]
    host: HostOptions,
}

impl Way {
    fn options(&self, address: &Address) -> Result<Options, Failure> {
        self.host.options(ANSWER, address)
    }

    /// Timeout of one command.
    fn answer(&self) -> Duration {
        self.host.answer(ANSWER)
    }

    fn connect(&self, address: &Address) -> Result<BlockingKeyValue, Failure> {
        let (address, options) = with_subsystem(address.clone(), |address| self.options(address))?;
        Ok(BlockingKeyValue::connect(&address, options)?)
    }
}

impl OnlyPlace {
    fn connect(&self) -> Result<BlockingKeyValue, Failure> {
        let missing =
            || Failure::usage("no address: write HOST[:PORT]/NQN after the command, or set NVLANE_ADDR");
        self.way.connect(self.address.as_ref().ok_or_else(missing)?)
    }
}

impl Place {
    fn connect(&self) -> Result<BlockingKeyValue, Failure> {
        self.way.connect(&self.address)
    }

    /// Lanes for long values.
    fn values(&self) -> Result<ValueLanes, Failure> {
        let (address, options) = with_subsystem(self.address.clone(), |address| self.way.options(address))?;
        Ok(ValueLanes::connect(&address, options)?)
    }
}
