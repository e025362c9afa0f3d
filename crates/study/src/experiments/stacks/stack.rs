//! A host and a target, and how a load runs on them.

use std::net::SocketAddr;
use std::sync::Arc;

use host::Address;
use load::account::Account;
use load::runner::Finished;
use peer::port::free_address;

use super::FILE_BYTES;
use crate::bench::{Load, distribution};
use crate::experiments::prelude::*;
use crate::kernel_nvme::host::KernelHost;
use crate::kernel_nvme::target::KernelTarget;
use crate::kernel_nvme::{Transport, nqn};
use crate::queue_load::QueueLoad;
use crate::scratch::ScratchFile;
use crate::spdk;
use crate::spdk::target::SpdkTarget;

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
    /// Checks that it can be used here.
    ///
    /// # Errors
    /// What there has to be.
    pub(super) fn check(self) -> Result<(), String> {
        if self.host == Software::Kernel {
            KernelHost::check(self.transport)?;
        }
        if self.target == Software::Kernel {
            KernelTarget::check(self.transport)?;
        }
        if self.host == Software::Spdk {
            spdk::host::program()?;
        }
        if self.target == Software::Spdk {
            spdk::target::program()?;
        }
        Ok(())
    }

    /// Whether both sides need a core of their own, because a program of SPDK never gives its core away.
    pub(super) fn needs_two_cores(self) -> bool {
        [self.host, self.target].contains(&Software::Spdk)
    }

    /// Runs a load on it. `file`: on this machine; without one, the study server makes it.
    pub(super) fn run(
        self,
        bench: &Bench,
        file: Option<&ScratchFile>,
        load: QueueLoad,
    ) -> Result<Values, Error> {
        let core_count = bench.core_count_for(load.jobs);
        match self.target {
            Software::None => {
                let finished = bench.run_local(&of_here(file)?.storage(), of_bench(bench, load))?;
                Ok(measured(bench, &finished))
            }
            Software::Nvlane => {
                let options = match file {
                    Some(file) => ServedOptions::of([format!("file:{}", file.path().display())]),
                    None => {
                        ServedOptions { scratch_bytes: Some(FILE_BYTES), ..ServedOptions::of::<String>([]) }
                    }
                };
                let served = bench.serve_with(options.on_cores(core_count))?;
                let values = self.run_on(bench, served.address(), Some(served.account()), load)?;
                served.stop()?;
                Ok(values)
            }
            Software::Kernel => {
                let address =
                    SocketAddr::new(self.transport.address().map_err(Error::Lacking)?, free_port()?);
                let target = KernelTarget::serve(self.transport, address, &nqn(), of_here(file)?.path())?;
                self.run_on(bench, &address_of(target.address(), target.nqn()), None, load)
            }
            Software::Spdk => {
                let address =
                    SocketAddr::new(self.transport.address().map_err(Error::Lacking)?, free_port()?);
                let mut cores = bench.target_side(core_count);
                if cores.is_empty() {
                    cores.push(0);
                }
                let target = SpdkTarget::serve(address, &nqn(), of_here(file)?.path(), &cores)?;
                self.run_on(bench, &address_of(target.address(), target.nqn()), Some(target.account()), load)
            }
        }
    }

    /// Runs a load of its host on a target. `account`: of the target's process, if it has one.
    fn run_on(
        self,
        bench: &Bench,
        target: &Address,
        account: Option<Arc<dyn Account>>,
        load: QueueLoad,
    ) -> Result<Values, Error> {
        match self.host {
            Software::Kernel => {
                self.run_kernel(bench, target, load).map(|finished| measured(bench, &finished))
            }
            Software::Spdk => spdk::host::run(bench, target, account.as_ref(), load),
            Software::None | Software::Nvlane => bench
                .run_at(target, account, of_bench(bench, load))
                .map(|finished| measured(bench, &finished)),
        }
    }

    /// Runs a load on the block device that the kernel's host makes of a target.
    fn run_kernel(self, bench: &Bench, target: &Address, load: QueueLoad) -> Result<Finished, Error> {
        let (Ok(ip), Some(port), Some(nqn)) =
            (target.host.to_string().parse(), target.port, &target.subsystem)
        else {
            return Err(Error::Target(format!("has the address {target}")));
        };
        let host = KernelHost::connect(self.transport, SocketAddr::new(ip, port), nqn.as_str(), load.jobs)?;
        bench.run_local(&host.storage(), of_bench(bench, load))
    }
}

/// A load of nvlane's generator.
fn of_bench(bench: &Bench, load: QueueLoad) -> Load {
    let mut of_bench = bench.load(load.pattern, None, load.io_bytes, load.depth);
    of_bench.workload.lanes = load.jobs;
    of_bench.cores = bench.host_side(bench.core_count_for(load.jobs));
    of_bench
}

/// What nvlane's generator measured. The distribution of latency is recorded with the bench.
fn measured(bench: &Bench, finished: &Finished) -> Values {
    bench.note_latency(distribution(&finished.report));
    let mut values = values(&finished.report);
    let p90 = finished.report.total.latency().percentile_ns(90.0);
    values.extend(p90.map(|ns| ("p90_us", us(ns))));
    values
}

fn free_port() -> Result<u16, Error> {
    let address = free_address().map_err(|error| Error::system("a port for the target", error))?;
    Ok(address.port())
}

fn address_of(address: SocketAddr, nqn: &str) -> Address {
    format!("{address}/{nqn}").parse().expect("an address of ours")
}

/// The file of this machine, which these stacks need.
fn of_here(file: Option<&ScratchFile>) -> Result<&ScratchFile, Error> {
    file.ok_or_else(|| Error::Lacking("this stack is measured on one machine only".into()))
}
