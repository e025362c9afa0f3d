//! `nvlane kv bench --profile kv-cache`: prompts whose beginnings are shared, in chunks.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use command_line::connection::with_subsystem;
use command_line::exit::{Failure, Kind};
use command_line::signals::EndOnSignal;
use host::{Address, Options, SpreadOptions, SpreadTarget, ValueSpread};
use load::account::{Account, ProcessAccount};
use load::prompts::{PromptError, PromptLoad, PromptReport, run};
use load::workload::Sizes;

use super::super::Ended;
use super::BenchArguments;
use crate::perf::local_pid;

/// What the load is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Profile {
    /// A cache of language-model states: see above
    KvCache,
}

#[derive(Debug, Args)]
pub(super) struct PromptArguments {
    /// Put another kind of load there, from one thread: kv-cache has prompts that begin with a document, some documents more
    /// often than others, and go on with chunks of their own. Each prompt asks which of its chunks exist, retrieves the
    /// leading ones and stores the rest; every retrieved chunk is checked. A chunk has -o bytes.
    #[arg(
        long, value_enum, help_heading = "Prompts (--profile kv-cache)",
        conflicts_with_all = ["mix", "keys", "batch", "depth", "verify", "no_partition_map"]
    )]
    pub(super) profile: Option<Profile>,
    /// Number of documents.
    #[arg(long, value_name = "COUNT", default_value_t = PromptLoad::default().documents, requires = "profile", help_heading = "Prompts (--profile kv-cache)")]
    documents: u64,
    /// Chunks of a document.
    #[arg(long, value_name = "COUNT", default_value_t = PromptLoad::default().shared_chunks, requires = "profile", help_heading = "Prompts (--profile kv-cache)")]
    shared_chunks: u32,
    /// Chunks that each prompt has behind its document.
    #[arg(long, value_name = "COUNT", default_value_t = PromptLoad::default().own_chunks, requires = "profile", help_heading = "Prompts (--profile kv-cache)")]
    own_chunks: u32,
    /// Another target; may be repeated. Chunks are spread over all of them, and one that is lost costs misses.
    #[arg(long, value_name = "ADDR", requires = "profile", help_heading = "Prompts (--profile kv-cache)")]
    also: Vec<Address>,
}

/// The load of prompts.
pub(super) fn bench(arguments: &BenchArguments, address: &Address) -> Ended {
    let load = prompt_load(arguments)?;
    load.check().map_err(Failure::usage)?;
    let mut options = None;
    let mut targets = Vec::new();
    for address in std::iter::once(address).chain(&arguments.prompts.also) {
        let (address, found) = with_subsystem(address.clone(), |address| arguments.way.options(address))?;
        options.get_or_insert(found);
        targets.push(address);
    }
    let options: Options = options.expect("there is an address").with_lanes(arguments.lanes);
    let spread = SpreadOptions::default();
    // A single target has nobody to take its place.
    let is_alone = targets.len() == 1;
    let spread = if is_alone { spread.with_deadline(arguments.way.answer()) } else { spread };
    let accounts: Vec<_> = targets.iter().map(account).collect();
    let members = targets.iter().cloned().map(SpreadTarget::new).collect();
    let mut values = ValueSpread::<Vec<u8>>::connect(members, options, spread)?;
    if let Some(&core) = arguments.cores.as_ref().and_then(|cores| cores.cores().first()) {
        linux::pin(core).map_err(|error| Failure::new(Kind::Failed, error))?;
    }
    let stops = Arc::new(AtomicBool::new(false));
    let _handlers = EndOnSignal::new(&stops)?;
    let mut edges = Vec::new();
    let mut on_edge = || edges.push(used_ns(&accounts));
    let ran = run(&mut values, &load, &mut on_edge, &mut || stops.load(Ordering::Relaxed));
    let result = ran.map_err(failure)?;
    let target_ns = match edges[..] {
        [Some(before), Some(after)] => Some(after.saturating_sub(before)),
        _ => None,
    };
    arguments.write(address, &PromptReport::new(&load, &result, target_ns))?;
    if result.mismatch_count > 0 {
        let message = format!("{} chunks differ from what was stored", result.mismatch_count);
        return Err(Failure::new(Kind::Mismatch, message));
    }
    if result.failed_count > 0 {
        let causes: Vec<_> = values.health().into_iter().filter(|target| target.loss_count > 0).collect();
        let lost = causes.iter().map(|target| format!("; {} was lost", target.name)).collect::<String>();
        let message = format!("{} chunks could not be moved{lost}", result.failed_count);
        return Err(Failure::new(Kind::Failed, message));
    }
    Ok(ExitCode::SUCCESS)
}

fn prompt_load(arguments: &BenchArguments) -> Result<PromptLoad, Failure> {
    let usual = PromptLoad::default();
    let chunk_bytes = match arguments.value_size.as_ref().map(Sizes::entries) {
        None => usual.chunk_bytes,
        Some([(bytes, _)]) => *bytes,
        Some(_) => {
            return Err(Failure::usage(
                "--value-size: all chunks of --profile kv-cache have one size, such as 4M",
            ));
        }
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let PromptArguments { documents, shared_chunks, own_chunks, .. } = arguments.prompts;
    Ok(PromptLoad {
        documents,
        distribution: arguments.distribution.unwrap_or(usual.distribution),
        shared_chunks,
        own_chunks,
        chunk_bytes,
        fills: !arguments.no_fill,
        warm_up: arguments.warm_up,
        runtime: arguments.time,
        seed: arguments.seed,
        run: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
    })
}

fn failure(error: PromptError) -> Failure {
    match error {
        PromptError::Load(error) => Failure::usage(error),
        PromptError::Host(error) => error.into(),
        other => Failure::new(Kind::Failed, other),
    }
}

/// The process of a target on this machine.
fn account(address: &Address) -> Option<ProcessAccount> {
    address.resolve().ok().and_then(|peers| local_pid(&peers)).map(ProcessAccount)
}

/// Processor time of all targets, if they are processes of this machine.
fn used_ns(accounts: &[Option<ProcessAccount>]) -> Option<u64> {
    accounts.iter().map(|account| account.as_ref()?.read().map(|reading| reading.run_ns())).sum()
}
