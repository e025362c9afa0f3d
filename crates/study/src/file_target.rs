//! Targets that are none of nvlane's and serve a file: the kernel's and SPDK's, on this machine.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

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
    ///
    /// # Errors
    /// What there has to be.
    pub(crate) fn check(self, wanted: Option<IpAddr>) -> Result<(), String> {
        match self {
            Self::KernelTcp | Self::KernelRdma => KernelTarget::check(self.transport(), wanted),
            Self::Spdk => spdk::target::program().map(drop),
        }
    }

    /// What a reader has to know of it: the RDMA device, or SPDK's version.
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
pub(crate) enum FileTarget {
    Kernel(KernelTarget),
    Spdk(SpdkTarget),
}

impl FileTarget {
    /// Serves a file with direct I/O, at the address that is wanted or at any. SPDK's target has a thread on each of `cores`;
    /// where the kernel's threads run, it decides.
    ///
    /// # Errors
    /// The kernel refuses, or the program does not start.
    pub(crate) fn serve(
        kind: FileTargetKind,
        (wanted, port): (Option<IpAddr>, u16),
        file: &Path,
        cores: &[usize],
    ) -> Result<Self, Error> {
        let transport = kind.transport();
        let address = SocketAddr::new(transport.address(wanted).map_err(Error::Lacking)?, port);
        match kind {
            FileTargetKind::KernelTcp | FileTargetKind::KernelRdma => {
                KernelTarget::serve(transport, address, &nqn(), file).map(Self::Kernel)
            }
            FileTargetKind::Spdk => SpdkTarget::serve(address, &nqn(), file, cores).map(Self::Spdk),
        }
    }

    /// Where it listens, and its subsystem, as an address.
    pub(crate) fn address(&self) -> String {
        let (place, nqn) = match self {
            Self::Kernel(target) => (target.address(), target.nqn()),
            Self::Spdk(target) => (target.address(), target.nqn()),
        };
        format!("{place}/{nqn}")
    }

    /// The account of its process; `None` of the kernel's.
    pub(crate) fn account(&self) -> Option<Arc<dyn Account>> {
        match self {
            Self::Kernel(_) => None,
            Self::Spdk(target) => Some(target.account()),
        }
    }
}
