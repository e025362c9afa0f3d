//! A host and a target, and how a load runs on them.

use load::runner::Finished;

use crate::bench::{FarSide, Load};
use crate::experiments::prelude::*;
use crate::file_target_kind::FileTargetKind;
use crate::kernel_nvme::Transport;
use crate::kernel_nvme::host::KernelHost;
use crate::queue_load::QueueLoad;
use crate::remote::Request;
use crate::study_file::StudyFile;
use crate::{spdk, spdk_host};

/// The software of a host or a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Software {
    /// None: the load reads and writes the file itself.
    None,
    Nvlane,
    Kernel,
    Spdk,
}

/// A host and a target, and the transport between them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stack {
    pub(super) name: &'static str,
    pub(super) host: Software,
    pub(super) target: Software,
    pub(super) transport: Transport,
}

pub(super) const LOCAL: &str = "the file itself";
pub(crate) const OURS: &str = "nvlane";
pub(super) const KERNEL: &str = "kernel";
pub(crate) const KERNEL_RDMA: &str = "kernel, RDMA";
pub(super) const SPDK: &str = "SPDK";
/// SPDK's host on nvlane's target.
pub(super) const SPDK_ON_OURS: &str = "SPDK host, nvlane target";

pub(super) const STACKS: [Stack; 9] = [
    Stack { name: LOCAL, host: Software::None, target: Software::None, transport: Transport::Tcp },
    Stack { name: OURS, host: Software::Nvlane, target: Software::Nvlane, transport: Transport::Tcp },
    Stack {
        name: "kernel host, nvlane target",
        host: Software::Kernel,
        target: Software::Nvlane,
        transport: Transport::Tcp,
    },
    Stack {
        name: "nvlane host, kernel target",
        host: Software::Nvlane,
        target: Software::Kernel,
        transport: Transport::Tcp,
    },
    Stack { name: KERNEL, host: Software::Kernel, target: Software::Kernel, transport: Transport::Tcp },
    Stack { name: KERNEL_RDMA, host: Software::Kernel, target: Software::Kernel, transport: Transport::Rdma },
    Stack { name: SPDK_ON_OURS, host: Software::Spdk, target: Software::Nvlane, transport: Transport::Tcp },
    Stack {
        name: "nvlane host, SPDK target",
        host: Software::Nvlane,
        target: Software::Spdk,
        transport: Transport::Tcp,
    },
    Stack { name: SPDK, host: Software::Spdk, target: Software::Spdk, transport: Transport::Tcp },
];

impl Stack {
    /// Checks that it can be used on the machines of a bench.
    pub(super) fn check(self, bench: &Bench) -> Result<(), String> {
        let host = match self.host {
            Software::Kernel => KernelHost::check(self.transport),
            Software::Spdk => spdk::host_program().map(drop),
            Software::None | Software::Nvlane => Ok(()),
        };
        let has_cores = bench.is_remote() || bench.cores.is_some() || !self.needs_two_cores();
        let cores = if has_cores { Ok(()) } else { Err("a core for each side".into()) };
        let target = self.target_kind().map_or(Ok(()), |kind| check_target(kind, bench).map(drop));
        all_needs([host, target, cores])
    }

    /// Facts about its target, for the reader.
    pub(super) fn target_described(self, bench: &Bench) -> Option<String> {
        check_target(self.target_kind()?, bench).ok().flatten()
    }

    /// Facts about its host, for the reader.
    pub(super) fn host_described(self) -> Option<String> {
        (self.host == Software::Spdk).then(spdk::described).flatten()
    }

    /// Its target, if that is not one of nvlane's.
    fn target_kind(self) -> Option<FileTargetKind> {
        match self.target {
            Software::Kernel => Some(match self.transport {
                Transport::Tcp => FileTargetKind::KernelTcp,
                Transport::Rdma => FileTargetKind::KernelRdma,
            }),
            Software::Spdk => Some(FileTargetKind::Spdk),
            Software::None | Software::Nvlane => None,
        }
    }

    /// Whether both sides need a core of their own, because a program of SPDK never gives its core away.
    fn needs_two_cores(self) -> bool {
        [self.host, self.target].contains(&Software::Spdk)
    }

    /// Runs a load on it.
    pub(super) fn run(self, bench: &Bench, file: &StudyFile, load: QueueLoad) -> Result<Values, Error> {
        let core_count = bench.core_count_for(load.jobs);
        if let Some(kind) = self.target_kind() {
            let target = file.serve_by(kind, bench, core_count)?;
            let far = FarSide {
                address: &target.address,
                account: target.account.clone(),
                is_of_this_kernel: target.is_of_this_kernel,
            };
            return self.run_on(bench, far, load);
        }
        if self.target == Software::None {
            return file.run(bench, of_bench(bench, load));
        }
        let served = bench.serve_with(file.served().on_cores(core_count))?;
        let values = self.run_on(bench, FarSide::process(served.address(), served.account()), load)?;
        served.stop()?;
        Ok(values)
    }

    /// Runs a load of its host on a target.
    fn run_on(self, bench: &Bench, far: FarSide<'_>, load: QueueLoad) -> Result<Values, Error> {
        match self.host {
            Software::Kernel => self.run_kernel(bench, far, load).map(|finished| bench.values_of(&finished)),
            Software::Spdk => spdk_host::run(bench, far.address, far.account.as_ref(), load),
            Software::None | Software::Nvlane => {
                bench.run_at(far, of_bench(bench, load)).map(|finished| bench.values_of(&finished))
            }
        }
    }

    /// Runs a load on the block device that the kernel's host makes of a target.
    fn run_kernel(self, bench: &Bench, far: FarSide<'_>, load: QueueLoad) -> Result<Finished, Error> {
        let FarSide { address, account, .. } = far;
        let host = KernelHost::connect(self.transport, address, load.jobs)?;
        bench.run_device(&host.storage(), account, of_bench(bench, load))
    }
}

/// All that several checks find missing.
fn all_needs(checks: impl IntoIterator<Item = Result<(), String>>) -> Result<(), String> {
    let mut needs: Vec<String> = Vec::new();
    for need in checks.into_iter().filter_map(Result::err) {
        // Both sides may need the same.
        let of = need.split("; ").map(str::to_owned).filter(|need| !needs.contains(need));
        let new: Vec<_> = of.collect();
        needs.extend(new);
    }
    if needs.is_empty() { Ok(()) } else { Err(needs.join("; ")) }
}

/// Checks that the machine of the targets has one of this kind. Returns facts about it for the reader.
fn check_target(kind: FileTargetKind, bench: &Bench) -> Result<Option<String>, String> {
    match &bench.server {
        Some(server) => {
            let facts: Result<Option<String>, String> =
                server.request(&Request::FileTarget { kind }).map_err(|error| error.to_string())?;
            facts.map_err(|needs| format!("{needs}, on the targets' machine, {}", server.address.ip()))
        }
        None => kind.check(None).map(|()| kind.described(None)),
    }
}

/// A load of nvlane's generator.
fn of_bench(bench: &Bench, load: QueueLoad) -> Load {
    let mut of_bench = bench.load(load.pattern, None, load.io_bytes, load.depth);
    of_bench.workload.lanes = load.jobs;
    of_bench.cores = bench.host_side(bench.core_count_for(load.jobs));
    of_bench
}
