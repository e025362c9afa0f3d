//! Targets other than nvlane's that serve a file: the kernel's and SPDK's, on this machine.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use host::Address;
use load::account::Account;

use crate::error::Error;
use crate::file_target_kind::FileTargetKind;
use crate::kernel_nvme::target::KernelTarget;
use crate::kernel_nvme::{Transport, nqn, rdma_device};
use crate::spdk;
use crate::spdk::target::SpdkTarget;

impl FileTargetKind {
    const fn transport(self) -> Transport {
        match self {
            Self::KernelTcp | Self::Spdk => Transport::Tcp,
            Self::KernelRdma => Transport::Rdma,
        }
    }

    /// Checks that it can be used, at the address that is wanted or at any.
    pub(crate) fn check(self, wanted: Option<IpAddr>) -> Result<(), String> {
        match self {
            Self::KernelTcp | Self::KernelRdma => KernelTarget::check(self.transport(), wanted),
            Self::Spdk => spdk::target::program().map(drop),
        }
    }

    /// Facts about it for the reader: the RDMA device, or SPDK's version.
    pub(crate) fn described(self, wanted: Option<IpAddr>) -> Option<String> {
        match self {
            Self::KernelTcp => None,
            Self::KernelRdma => {
                rdma_device(wanted).map(|device| format!("RDMA device {}", device.described()))
            }
            Self::Spdk => spdk::described(),
        }
    }
}

/// A target that serves a file as the only namespace of a subsystem. It ends with this value.
#[derive(Debug)]
pub(crate) struct FileTarget {
    pub(crate) address: Address,
    target: Target,
}

#[derive(Debug)]
enum Target {
    Kernel { _target: KernelTarget },
    Spdk(SpdkTarget),
}

impl FileTarget {
    /// Serves a file with direct I/O, at the address that is wanted or at any. SPDK's target has a thread on each of
    /// `cores`; the kernel decides where its own threads run.
    pub(crate) fn serve(
        kind: FileTargetKind,
        (wanted, port): (Option<IpAddr>, u16),
        file: &Path,
        cores: &[usize],
    ) -> Result<Self, Error> {
        let transport = kind.transport();
        let (place, nqn) = (SocketAddr::new(transport.address(wanted).map_err(Error::Lacking)?, port), nqn());
        let target = match kind {
            FileTargetKind::KernelTcp | FileTargetKind::KernelRdma => {
                Target::Kernel { _target: KernelTarget::serve(transport, place, &nqn, file)? }
            }
            FileTargetKind::Spdk => Target::Spdk(SpdkTarget::serve(place, &nqn, file, cores)?),
        };
        Ok(Self { address: format!("{place}/{nqn}").parse().expect("an address of ours"), target })
    }

    /// The account of its process; `None` of the kernel's.
    pub(crate) fn account(&self) -> Option<Arc<dyn Account>> {
        match &self.target {
            Target::Kernel { .. } => None,
            Target::Spdk(target) => Some(target.account()),
        }
    }
}
