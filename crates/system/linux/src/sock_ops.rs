//! The `bpf` system call for programs of sockets (`sock_ops`), which a control group runs when one of its processes
//! connects, listens or accepts (`linux/bpf.h`).

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Commands of the system call.
const LOAD: libc::c_int = 5;
const ATTACH: libc::c_int = 8;
const DETACH: libc::c_int = 9;
const BY_ID: libc::c_int = 13;
const INFO: libc::c_int = 15;
const QUERY: libc::c_int = 16;
/// Type of a program, and of its place in a control group.
const TYPE_SOCK_OPS: u32 = 13;
const PLACE_SOCK_OPS: u32 = 3;
/// Flag of an attachment: programs of others stay (`BPF_F_ALLOW_MULTI`).
const BESIDE_OTHERS: u32 = 2;
/// Bytes of the arguments: those of the longest command here, rounded up; fields that a kernel does not know must be
/// zero.
const ARGUMENT_BYTES: usize = 128;
/// Bytes of the kernel's explanation of a refused program.
const EXPLANATION_BYTES: usize = 16 * 1024;
/// Bytes of `struct bpf_prog_info` up to the name, which has the last 16.
const INFO_BYTES: usize = 80;
const NAME_BYTES: usize = 16;
/// Most programs that are listed; a control group takes 64.
const PROGRAM_COUNT_MAX: usize = 64;

/// Arguments of the system call, which are read and written in place.
#[repr(C, align(8))]
struct Arguments([u8; ARGUMENT_BYTES]);

impl Arguments {
    fn new(words: &[(usize, u32)]) -> Self {
        let mut arguments = Self([0; ARGUMENT_BYTES]);
        for (at, word) in words {
            arguments.0[*at..*at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        arguments
    }

    fn pointer<T>(&mut self, at: usize, pointer: *const T) {
        self.0[at..at + 8].copy_from_slice(&(pointer as u64).to_ne_bytes());
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }

    /// The call. Its result is 0 or a descriptor.
    ///
    /// # Safety
    /// Every pointer in the arguments leads to memory of the length that the arguments give beside it, which lives
    /// through the call and which nobody else uses meanwhile.
    unsafe fn call(&mut self, command: libc::c_int) -> io::Result<libc::c_int> {
        // SAFETY: the kernel reads and writes the arguments and what they lead to, by the contract of this function.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), ARGUMENT_BYTES) };
        match libc::c_int::try_from(result) {
            Ok(result) if result >= 0 => Ok(result),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn descriptor_of(fd: &impl AsFd) -> u32 {
    fd.as_fd().as_raw_fd().cast_unsigned()
}

/// A program of sockets in the kernel. It ends with this value unless it is attached to a control group.
#[derive(Debug)]
pub struct SockOps(OwnedFd);

impl SockOps {
    /// Loads a program of these instructions, 8 bytes each. `name` has at most 15 letters, digits, `_` and `.`.
    ///
    /// # Errors
    /// The kernel's reason: `PermissionDenied` without the capability to load programs, `InvalidInput` for a program
    /// that the kernel does not take, with its explanation.
    pub fn load(name: &str, instructions: &[u64]) -> io::Result<Self> {
        let license = c"MIT OR Apache-2.0";
        let mut explanation = vec![0u8; EXPLANATION_BYTES];
        let count =
            u32::try_from(instructions.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let mut load = |level: u32| {
            let log_bytes = if level == 0 { 0 } else { u32::try_from(EXPLANATION_BYTES).expect("a few") };
            let mut arguments = Arguments::new(&[
                (0, TYPE_SOCK_OPS),
                (4, count),
                (24, level),
                (28, log_bytes),
                (68, PLACE_SOCK_OPS),
            ]);
            arguments.pointer(8, instructions.as_ptr());
            arguments.pointer(16, license.as_ptr());
            if level > 0 {
                arguments.pointer(32, explanation.as_mut_ptr());
            }
            let name = &name.as_bytes()[..name.len().min(NAME_BYTES - 1)];
            arguments.0[48..48 + name.len()].copy_from_slice(name);
            // SAFETY: the arguments lead to the instructions and their count, to the license, which ends with a zero,
            // and to the explanation and its length or to none; all live through the call.
            unsafe { arguments.call(LOAD) }
        };
        let fd = match load(0) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EACCES)) => {
                load(1).map_err(|_| explained(&error, &explanation))?
            }
            result => result?,
        };
        Ok(Self(owned(fd)))
    }

    /// The program with this number.
    ///
    /// # Errors
    /// The kernel's reason: `NotFound` if it has ended, `PermissionDenied` without `CAP_SYS_ADMIN`.
    pub fn by_id(id: u32) -> io::Result<Self> {
        let mut arguments = Arguments::new(&[(0, id)]);
        // SAFETY: the arguments have no pointer.
        unsafe { arguments.call(BY_ID) }.map(|fd| Self(owned(fd)))
    }

    /// Its name.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn name(&self) -> io::Result<String> {
        let mut info = [0u64; INFO_BYTES / 8];
        let length = u32::try_from(INFO_BYTES).expect("a few");
        let mut arguments = Arguments::new(&[(0, descriptor_of(&self.0)), (4, length)]);
        arguments.pointer(8, info.as_mut_ptr());
        // SAFETY: the arguments lead to the information, with its length; it lives through the call. It is zero, so it
        // names no further memory for the kernel to write to.
        unsafe { arguments.call(INFO) }?;
        let bytes: Vec<u8> = info.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let name = &bytes[INFO_BYTES - NAME_BYTES..];
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
        Ok(String::from_utf8_lossy(&name[..end]).into_owned())
    }

    /// Attaches it to the directory of a control group, beside the programs of others. It stays when this process ends.
    ///
    /// # Errors
    /// The kernel's reason: `AlreadyExists` or `InvalidInput` if it is attached, `PermissionDenied` if the group has a
    /// program that excludes others.
    pub fn attach(&self, group: &impl AsFd) -> io::Result<()> {
        self.place(ATTACH, group, BESIDE_OTHERS)
    }

    /// Detaches it from a control group.
    ///
    /// # Errors
    /// The kernel's reason: `NotFound` if it is not attached.
    pub fn detach(&self, group: &impl AsFd) -> io::Result<()> {
        self.place(DETACH, group, 0)
    }

    fn place(&self, command: libc::c_int, group: &impl AsFd, flags: u32) -> io::Result<()> {
        let words =
            [(0, descriptor_of(group)), (4, descriptor_of(&self.0)), (8, PLACE_SOCK_OPS), (12, flags)];
        let mut arguments = Arguments::new(&words);
        // SAFETY: the arguments have no pointer.
        unsafe { arguments.call(command) }.map(drop)
    }

    /// Numbers of the programs that are attached to a control group itself, not to one above it.
    ///
    /// # Errors
    /// The kernel's reason: `PermissionDenied` without `CAP_NET_ADMIN`, `InvalidInput` if the kernel has no programs of
    /// control groups, `BadFileDescriptor` if the directory is no control group of version 2.
    pub fn attached_to(group: &impl AsFd) -> io::Result<Vec<u32>> {
        let mut ids = [0u32; PROGRAM_COUNT_MAX];
        let count = u32::try_from(PROGRAM_COUNT_MAX).expect("a few");
        let mut arguments = Arguments::new(&[(0, descriptor_of(group)), (4, PLACE_SOCK_OPS), (24, count)]);
        arguments.pointer(16, ids.as_mut_ptr());
        // SAFETY: the arguments lead to the numbers, with their count; they live through the call.
        unsafe { arguments.call(QUERY) }?;
        let count = usize::try_from(arguments.word(24)).unwrap_or(usize::MAX);
        Ok(ids.into_iter().take(count).collect())
    }
}

fn owned(fd: libc::c_int) -> OwnedFd {
    // SAFETY: the kernel has just opened this descriptor for this call, and nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A refusal with the last line of the kernel's explanation, without its statistics.
fn explained(error: &io::Error, explanation: &[u8]) -> io::Error {
    let end = explanation.iter().position(|byte| *byte == 0).unwrap_or(explanation.len());
    let text = String::from_utf8_lossy(&explanation[..end]);
    let line = text.lines().rfind(|line| !line.is_empty() && !line.starts_with("processed "));
    match line {
        Some(line) => io::Error::new(error.kind(), format!("{error}: {line}")),
        None => io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EINVAL)),
    }
}

/// The cookie of the network namespace of a socket, by which programs distinguish namespaces.
///
/// # Errors
/// The kernel's reason.
pub fn network_cookie(socket: &impl AsFd) -> io::Result<u64> {
    let mut cookie = 0u64;
    let mut length = libc::socklen_t::try_from(size_of::<u64>()).expect("eight");
    // SAFETY: the kernel writes at most `length` bytes at the cookie, and the length; both live through the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_program_has_the_kernels_words() {
        let error = io::Error::from_raw_os_error(libc::EINVAL);
        let log = b"0: (b7) r0 = 7\nAt program exit the register R0 has value (0x7; 0x0) should have been in (0x0; 0x1)\nprocessed 2 insns\n\0";
        let text = explained(&error, log).to_string();
        assert!(text.ends_with("should have been in (0x0; 0x1)"), "{text}");
        assert_eq!(explained(&error, &[0]).raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    #[cfg_attr(miri, ignore = "no such option")]
    fn sockets_of_one_network_namespace_have_one_cookie() {
        let cookie = || network_cookie(&std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        assert_ne!(cookie(), 0);
        assert_eq!(cookie(), cookie());
    }

    #[test]
    #[cfg_attr(miri, ignore = "no bpf(2)")]
    fn a_directory_that_is_no_control_group_has_no_programs() {
        let directory = std::fs::File::open("/").unwrap();
        assert!(SockOps::attached_to(&directory).is_err());
    }
}
