//! Commands about devices, by `/dev/ublk-control`.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use zerocopy::{FromZeros, IntoBytes};

use crate::commands::{ControlCommand, ControlHead, DeviceInfo, Parameters};

/// The driver's own device.
const PATH: &str = "/dev/ublk-control";

/// A device, as control commands name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceName {
    /// Its number.
    pub number: u32,
    /// It belongs to a user without CAP_SYS_ADMIN: commands carry the path of its character device.
    pub is_unprivileged: bool,
}

impl DeviceName {
    /// The path of its character device, with which it is served.
    #[must_use]
    pub fn character_path(self) -> String {
        format!("/dev/ublkc{}", self.number)
    }

    /// The path of its block device.
    #[must_use]
    pub fn block_path(self) -> String {
        format!("/dev/ublkb{}", self.number)
    }
}

/// Makes, starts, stops and deletes devices. Each call waits until the kernel has done it.
pub struct Control {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    device: OwnedFd,
}

impl Control {
    /// Opens the driver's device.
    ///
    /// # Errors
    /// The kernel's: there is no such device, it is not for this user, or io_uring is forbidden here.
    pub fn open() -> io::Result<Self> {
        let device = OpenOptions::new().read(true).write(true).open(PATH)?.into();
        let ring = IoUring::builder().dontfork().build(2)?;
        Ok(Self { ring, device })
    }

    /// Features of the driver: [`feature`](crate::commands::feature).
    ///
    /// # Errors
    /// The kernel's: before Linux 6.5 there is no such command.
    pub fn features(&mut self) -> io::Result<u64> {
        let mut features = [0; 8];
        let any = DeviceName { number: u32::MAX, is_unprivileged: false };
        self.execute(ControlCommand::GetFeatures, any, 0, &mut features)?;
        Ok(u64::from_ne_bytes(features))
    }

    /// Adds a device. Returns it as the kernel has made it.
    ///
    /// # Errors
    /// The kernel's: the number is taken, there are too many, or that is not for this user.
    pub fn add(&mut self, wanted: &DeviceInfo) -> io::Result<DeviceInfo> {
        let mut info = *wanted;
        // There is no path yet.
        let name = DeviceName { number: wanted.number, is_unprivileged: false };
        self.execute(ControlCommand::AddDevice, name, 0, info.as_mut_bytes())?;
        Ok(info)
    }

    /// A device as it is.
    ///
    /// # Errors
    /// The kernel's: there is none, or it is not for this user.
    pub fn info(&mut self, number: u32) -> io::Result<DeviceInfo> {
        let mut info = DeviceInfo::new_zeroed();
        // This command carries a path in any case.
        let name = DeviceName { number, is_unprivileged: true };
        self.execute(ControlCommand::GetInfo, name, 0, info.as_mut_bytes())?;
        Ok(info)
    }

    /// Says what a device shall be like, before it is started.
    ///
    /// # Errors
    /// The kernel's: it takes no such device.
    pub fn set_parameters(&mut self, name: DeviceName, parameters: &Parameters) -> io::Result<()> {
        let mut parameters = *parameters;
        self.execute(ControlCommand::SetParameters, name, 0, parameters.as_mut_bytes())
    }

    /// What a device is like.
    ///
    /// # Errors
    /// The kernel's.
    pub fn parameters(&mut self, name: DeviceName) -> io::Result<Parameters> {
        let mut parameters = Parameters::empty();
        self.execute(ControlCommand::GetParameters, name, 0, parameters.as_mut_bytes())?;
        Ok(parameters)
    }

    /// Starts a device: its block device is there afterwards. The queues must be served meanwhile, since the kernel reads
    /// partitions.
    ///
    /// # Errors
    /// The kernel's.
    pub fn start(&mut self, name: DeviceName) -> io::Result<()> {
        self.execute(ControlCommand::StartDevice, name, std::process::id().into(), &mut [])
    }

    /// Stops a device: its block device goes away, requests under way end before, and others fail. Each queue then gets its
    /// end.
    ///
    /// # Errors
    /// The kernel's.
    pub fn stop(&mut self, name: DeviceName) -> io::Result<()> {
        self.execute(ControlCommand::StopDevice, name, 0, &mut [])
    }

    /// Deletes a device, once nobody has it open; this call does not wait for that where the kernel can do it later (6.9).
    ///
    /// # Errors
    /// The kernel's.
    pub fn delete(&mut self, name: DeviceName) -> io::Result<()> {
        match self.execute(ControlCommand::DeleteDeviceLater, name, 0, &mut []) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {
                self.execute(ControlCommand::DeleteDevice, name, 0, &mut [])
            }
            deleted => deleted,
        }
    }

    /// Takes over a device whose process has ended. Its queues are then served anew.
    ///
    /// # Errors
    /// The kernel's; EBUSY as long as it has not seen that end.
    pub fn start_recovery(&mut self, name: DeviceName) -> io::Result<()> {
        self.execute(ControlCommand::StartRecovery, name, 0, &mut [])
    }

    /// Lets the requests of such a device go on, once all queues are served.
    ///
    /// # Errors
    /// The kernel's.
    pub fn end_recovery(&mut self, name: DeviceName) -> io::Result<()> {
        self.execute(ControlCommand::EndRecovery, name, std::process::id().into(), &mut [])
    }

    /// Changes the size of a device.
    ///
    /// # Errors
    /// The kernel's: before Linux 6.16 it has no such command.
    pub fn update_size(&mut self, name: DeviceName, sectors: u64) -> io::Result<()> {
        self.execute(ControlCommand::UpdateSize, name, sectors, &mut [])
    }

    /// Executes a command, with its payload or for it.
    fn execute(
        &mut self,
        command: ControlCommand,
        name: DeviceName,
        data: u64,
        payload: &mut [u8],
    ) -> io::Result<()> {
        // With its terminating zero.
        let path = if name.is_unprivileged { name.character_path() + "\0" } else { String::new() };
        let mut bytes = [path.as_bytes(), payload].concat();
        let length = |length: usize| u16::try_from(length).map_err(|_| io::ErrorKind::InvalidInput);
        let head = ControlHead {
            number: name.number,
            queue: u16::MAX,
            length: length(bytes.len())?,
            address: if bytes.is_empty() { 0 } else { bytes.as_mut_ptr().expose_provenance() as u64 },
            data,
            path_bytes: length(path.len())?,
            ..ControlHead::new_zeroed()
        };
        let mut inline = [0; 80];
        inline[..size_of::<ControlHead>()].copy_from_slice(head.as_bytes());
        let entry =
            opcode::UringCmd80::new(Fd(self.device.as_raw_fd()), command.opcode()).cmd(inline).build();
        // SAFETY: the kernel uses `bytes` until the command has completed. `wait` returns after that, or with an error after
        // which they are leaked.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        let result = match self.wait() {
            Ok(result) => result,
            Err(error) => {
                std::mem::forget(bytes);
                return Err(error);
            }
        };
        tracing::trace!(?command, ?name, result, "ublk control command");
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        payload.copy_from_slice(&bytes[path.len()..]);
        Ok(())
    }

    /// Waits for the completion of the only command.
    fn wait(&mut self) -> io::Result<i32> {
        loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            if let Some(completion) = self.ring.completion().next() {
                return Ok(completion.result());
            }
        }
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Control({PATH})")
    }
}
