//! The file that an experiment puts load on: of this machine, or of that of the study server, which makes it.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use host::Address;
use load::account::Account;
use load::disturbance::Side;
use peer::port::free_address;

use crate::bench::{Bench, Load, Times};
use crate::cell::Values;
use crate::distribution::Distribution;
use crate::error::{Doing, Error};
use crate::file_target::FileTarget;
use crate::file_target_kind::FileTargetKind;
use crate::remote::target::Numbered;
use crate::remote::{FileLoadOutcome, Request, ServerConnection, StartFileLoad};
use crate::scratch::ScratchFile;
use crate::served_options::ServedOptions;

/// A file whose every block has been written.
#[derive(Debug)]
pub(crate) enum StudyFile {
    Here(ScratchFile),
    /// Of this size, bytes: the server makes it before it is first used.
    There(Arc<ServerConnection>, u64),
}

impl StudyFile {
    /// A file of this size, on the machine of the targets.
    pub(crate) fn new(bench: &Bench, bytes: u64) -> Result<Self, Error> {
        match &bench.server {
            Some(server) => Ok(Self::There(Arc::clone(server), bytes)),
            None => ScratchFile::new(&bench.scratch, bytes).map(Self::Here),
        }
    }

    /// Options of a target of nvlane that serves it.
    pub(crate) fn served(&self) -> ServedOptions {
        match self {
            Self::Here(file) => ServedOptions::of([format!("file:{}", file.path().display())]),
            Self::There(_, bytes) => {
                ServedOptions { scratch_bytes: Some(*bytes), ..ServedOptions::of::<String>([]) }
            }
        }
    }

    /// Runs a load on the file itself, on its machine and from as many cores as the load has. The distribution of latency is
    /// recorded with the bench.
    pub(crate) fn run(&self, bench: &Bench, load: Load) -> Result<Values, Error> {
        match self {
            Self::Here(file) => {
                bench.run_local(&file.storage(), load).map(|finished| bench.values_of(&finished))
            }
            Self::There(server, bytes) => run_there(bench, server, *bytes, &load),
        }
    }

    /// Serves it by another target, SPDK's with threads on this number of cores.
    pub(crate) fn serve_by(
        &self,
        kind: FileTargetKind,
        bench: &Bench,
        core_count: u32,
    ) -> Result<OtherTarget, Error> {
        match self {
            Self::Here(file) => {
                let here = serve_here(kind, file.path(), bench, core_count)?;
                Ok(OtherTarget {
                    address: here.address.clone(),
                    account: here.account(),
                    is_of_this_kernel: kind != FileTargetKind::Spdk,
                    _process: Box::new(here),
                })
            }
            Self::There(server, bytes) => {
                let request = Request::StartFileTarget { kind, bytes: *bytes, core_count };
                let (there, started) = Numbered::start(server, &request)?;
                Ok(OtherTarget {
                    address: server.target_address(&started.address)?,
                    account: Some(there.account()),
                    is_of_this_kernel: false,
                    _process: Box::new(there),
                })
            }
        }
    }
}

/// Runs a load on the study server's file, from as many of the server's cores as the load has of this machine.
fn run_there(bench: &Bench, server: &ServerConnection, bytes: u64, load: &Load) -> Result<Values, Error> {
    let Load { workload, cores, .. } = load;
    let Times { warm_up, measure, .. } = bench.times;
    server.request::<()>(&Request::StartFileLoad(StartFileLoad {
        bytes,
        pattern: workload.pattern.name().to_owned(),
        read_percent: workload.pattern.shares().read,
        io_bytes: workload.sizes.largest_bytes(),
        jobs: workload.lanes,
        depth: workload.depth,
        warm_up,
        measure,
        core_count: u32::try_from(cores.len()).unwrap_or(u32::MAX).max(1),
    }))?;
    bench.sleep(warm_up + measure);
    if bench.is_stopped() {
        return Err(server.loss().unwrap_or(Error::Stopped));
    }
    let outcome: FileLoadOutcome = server.request(&Request::EndFileLoad)?;
    bench.note_loss(Side::Host, outcome.loss);
    bench.note_latency(Distribution::of(outcome.bins));
    Ok(outcome.values)
}

fn serve_here(
    kind: FileTargetKind,
    file: &Path,
    bench: &Bench,
    core_count: u32,
) -> Result<FileTarget, Error> {
    let free = free_address().doing("a port for the target")?;
    let mut cores = bench.target_side(core_count);
    if cores.is_empty() {
        cores.push(0);
    }
    FileTarget::serve(kind, (None, free.port()), file, &cores)
}

/// A target of the kernel or of SPDK, on this machine or on that of the study server. It ends with this value.
#[derive(Debug)]
pub(crate) struct OtherTarget {
    /// Its address, with its subsystem.
    pub(crate) address: Address,
    /// The account of its process, or of its machine.
    pub(crate) account: Option<Arc<dyn Account>>,
    /// Whether it is a part of this machine's kernel.
    pub(crate) is_of_this_kernel: bool,
    _process: Box<dyn Any + Send>,
}
