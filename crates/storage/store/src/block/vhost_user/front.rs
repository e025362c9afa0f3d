//! Messages of vhost-user from the front end, by blocking calls with a limit: never in a thread of a reactor.
//!
//! Of the specification: <https://qemu-project.gitlab.io/qemu/interop/vhost-user.html>.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

/// Requests.
pub(super) mod request {
    pub(in super::super) const GET_FEATURES: u32 = 1;
    pub(in super::super) const SET_FEATURES: u32 = 2;
    pub(in super::super) const SET_OWNER: u32 = 3;
    pub(in super::super) const SET_MEM_TABLE: u32 = 5;
    pub(in super::super) const SET_VRING_NUM: u32 = 8;
    pub(in super::super) const SET_VRING_ADDR: u32 = 9;
    pub(in super::super) const SET_VRING_BASE: u32 = 10;
    pub(in super::super) const SET_VRING_KICK: u32 = 12;
    pub(in super::super) const SET_VRING_CALL: u32 = 13;
    pub(in super::super) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(in super::super) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(in super::super) const GET_QUEUE_NUM: u32 = 17;
    pub(in super::super) const SET_VRING_ENABLE: u32 = 18;
    pub(in super::super) const GET_CONFIG: u32 = 24;
}

/// Flags of a message: the version, a reply, and the wish for one.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Bytes of a message before its payload: request, flags and length, 4 bytes each.
pub(super) const HEAD_BYTES: usize = 12;

/// The front end's side of a connection.
pub(super) struct Front<'a> {
    pub(super) socket: &'a OwnedFd,
    pub(super) until: Instant,
    /// Whether the back end acknowledges requests that have no answer.
    pub(super) has_acknowledgements: bool,
}

pub(super) fn head(request: u32, flags: u32, length: usize) -> [u8; HEAD_BYTES] {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    let mut head = [0; HEAD_BYTES];
    for (into, number) in head.chunks_exact_mut(4).zip([request, flags, length]) {
        into.copy_from_slice(&number.to_ne_bytes());
    }
    head
}

/// A request without flags.
pub(super) fn plain_head(request: u32, length: usize) -> [u8; HEAD_BYTES] {
    head(request, VERSION, length)
}

/// Whether it is the head of the reply to a request, with a payload of this length.
pub(super) fn is_reply(received: &[u8; HEAD_BYTES], request: u32, length: usize) -> bool {
    let mut wanted = head(request, VERSION | REPLY, length);
    // The wish for a reply may be repeated in it.
    wanted[4..8].copy_from_slice(&received[4..8]);
    let flags = u32::from_ne_bytes([received[4], received[5], received[6], received[7]]);
    *received == wanted && flags & (VERSION_MASK | REPLY) == VERSION | REPLY
}

impl Front<'_> {
    /// Sends a request, and takes the acknowledgement where there are any.
    pub(super) fn tell(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), String> {
        let wish = if self.has_acknowledgements { NEED_REPLY } else { 0 };
        self.send(&head(request, VERSION | wish, payload.len()), payload, fds)?;
        if !self.has_acknowledgements {
            return Ok(());
        }
        match self.reply::<8>(request).map(u64::from_ne_bytes)? {
            0 => Ok(()),
            _ => Err(format!("the device refuses request {request} of vhost-user")),
        }
    }

    /// Asks for a number.
    pub(super) fn ask(&self, request: u32) -> Result<u64, String> {
        self.exchange::<8>(request, &[]).map(u64::from_ne_bytes)
    }

    /// Sends a request and takes its reply.
    pub(super) fn exchange<const N: usize>(&self, request: u32, payload: &[u8]) -> Result<[u8; N], String> {
        self.send(&plain_head(request, payload.len()), payload, &[])?;
        self.reply(request)
    }

    fn set_timeout(&self, direction: Timeout) -> Result<(), String> {
        let left = self.until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        sockopt::set_socket_timeout(self.socket, direction, Some(left)).map_err(|error| error.to_string())
    }

    fn send(&self, head: &[u8], payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), String> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(fds));
        }
        let slices = [IoSlice::new(head), IoSlice::new(payload)];
        loop {
            self.set_timeout(Timeout::Send)?;
            match rustix::net::sendmsg(self.socket, &slices, &mut ancillary, SendFlags::NOSIGNAL) {
                // The socket's buffer has room for many messages.
                Ok(count) if count == head.len() + payload.len() => return Ok(()),
                Ok(_) => return Err("the device does not take messages".into()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(told(errno)),
            }
        }
    }

    fn reply<const N: usize>(&self, request: u32) -> Result<[u8; N], String> {
        let head = self.take::<HEAD_BYTES>()?;
        if !is_reply(&head, request, N) {
            return Err(format!("the device broke the protocol of vhost-user at request {request}"));
        }
        self.take()
    }

    fn take<const N: usize>(&self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        let mut done = 0;
        while done < N {
            self.set_timeout(Timeout::Recv)?;
            let into = &mut bytes[done..];
            // Descriptors are not expected: without room for them the kernel closes them.
            let mut ancillary = RecvAncillaryBuffer::default();
            let slices = &mut [IoSliceMut::new(into)];
            match rustix::net::recvmsg(self.socket, slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Ok(message) if message.bytes == 0 => return Err("the device has ended the connection".into()),
                Ok(message) if message.flags.contains(ReturnFlags::CTRUNC) => {
                    return Err("the device has sent descriptors that nobody asked for".into());
                }
                Ok(message) => done += message.bytes,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(told(errno)),
            }
        }
        Ok(bytes)
    }
}

/// The error of a call on the socket.
fn told(errno: Errno) -> String {
    match errno {
        Errno::AGAIN => "the device does not answer: does it serve another front end already?".into(),
        Errno::CONNRESET | Errno::PIPE => "the device has ended the connection".into(),
        _ => std::io::Error::from(errno).to_string(),
    }
}
