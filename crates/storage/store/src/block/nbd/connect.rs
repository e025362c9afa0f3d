//! Connects to a server and negotiates, by blocking calls: never in a thread of a reactor.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nbd_wire::block_status::ALLOCATION;
use nbd_wire::negotiation::{
    FIXED_NEWSTYLE, GREETING_MAGIC, NO_ZEROES, OPTION_MAGIC, REPLY_MAGIC, info, option, reply,
};
use nbd_wire::{ExportFlags, PAYLOAD_BYTES_MAX};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, socket_with,
};

use super::place::{NbdPlace, NbdServer};
use super::wire::NbdWire;
use crate::block::remote::{Abilities, Connected};

/// Longest reply to an option, bytes: names and texts have 4096.
const REPLY_BYTES_MAX: u32 = 16 << 10;

/// Replies to one option.
const REPLY_COUNT_MAX: usize = 64;

/// Shortest limit of data that a server may tell, bytes.
const PAYLOAD_BYTES_MIN: u32 = 64 << 10;

/// What a server told of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ExportInfo {
    bytes: u64,
    flags: ExportFlags,
    /// Offsets and lengths are multiples of it.
    block_bytes_min: u32,
    /// Longest data of a request.
    payload_bytes_max: u32,
    /// The server's number of `base:allocation`, if it tells of holes.
    allocation: Option<u32>,
}

/// Why there is no connection, and what to do about it.
pub(super) type Problem = String;

/// Connects, and negotiates until the export is ready. Takes up to `limit`.
pub(super) fn connect(place: &NbdPlace, limit: Duration) -> Result<Connected<NbdWire>, Problem> {
    let until = Instant::now() + limit;
    let socket = match &place.server {
        NbdServer::Unix(path) => {
            connect_by_unix(path, limit).map_err(|error| format!("cannot connect: {error}"))?
        }
        NbdServer::Tcp(host, port) => connect_by_tcp(host, *port, until, place.deadline_s)?,
    };
    let mut conversation = Conversation { socket, until };
    let export = conversation.negotiate(&place.export)?;
    let socket = conversation.socket;
    for direction in [Timeout::Recv, Timeout::Send] {
        sockopt::set_socket_timeout(&socket, direction, None).map_err(|error| error.to_string())?;
    }
    let wire = NbdWire::new(socket, export.allocation);
    Ok(Connected { wire, abilities: abilities_of(place, &export) })
}

/// Bytes zeroed by one request.
const ZEROED_BYTES: u64 = 64 << 20;

fn abilities_of(place: &NbdPlace, export: &ExportInfo) -> Abilities {
    let has = |flag| export.flags.has(flag);
    Abilities {
        bytes: export.bytes,
        is_read_only: has(ExportFlags::READ_ONLY),
        has_flush: has(ExportFlags::FLUSH),
        has_fua: has(ExportFlags::FUA),
        has_zeroes: has(ExportFlags::WRITE_ZEROES),
        has_map: export.allocation.is_some(),
        block_bytes_min: export.block_bytes_min,
        data_bytes_max: export.payload_bytes_max,
        zeroed_bytes_max: ZEROED_BYTES,
        // Others serve one client at a time.
        connection_count: if has(ExportFlags::MULTI_CONN) { place.connection_limit.into() } else { 1 },
    }
}

pub(in crate::block) fn connect_by_unix(path: &Path, limit: Duration) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // A server with a full queue has a client wait.
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn connect_by_tcp(host: &str, port: u16, until: Instant, deadline_s: u32) -> Result<OwnedFd, Problem> {
    let addresses = (host, port).to_socket_addrs().map_err(|error| format!("cannot find {host}: {error}"))?;
    let mut failed = format!("{host} has no address");
    for address in addresses {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                let prepared = stream
                    .set_nodelay(true)
                    .and_then(|()| Ok(sockopt::set_socket_keepalive(&stream, true)?))
                    .and_then(|()| Ok(sockopt::set_tcp_keepidle(&stream, Duration::from_secs(10))?))
                    // TCP ends a connection without acknowledgements at the deadline of its requests.
                    .and_then(|()| {
                        Ok(sockopt::set_tcp_user_timeout(&stream, deadline_s.saturating_mul(1000))?)
                    });
                prepared.map_err(|error| error.to_string())?;
                return Ok(stream.into());
            }
            Err(error) => failed = format!("cannot connect to {address}: {error}"),
        }
    }
    Err(failed)
}

/// A connection during the negotiation.
struct Conversation {
    socket: OwnedFd,
    until: Instant,
}

impl Conversation {
    fn set_timeout(&self, direction: Timeout) -> io::Result<()> {
        match self.until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            Some(left) => Ok(sockopt::set_socket_timeout(&self.socket, direction, Some(left))?),
            None => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    fn read(&mut self, mut into: &mut [u8]) -> Result<(), Problem> {
        while !into.is_empty() {
            self.set_timeout(Timeout::Recv).map_err(|error| told(&error))?;
            match rustix::net::recv(&self.socket, &mut *into, RecvFlags::empty()) {
                Ok((0, _)) => return Err("the server ended the connection during the negotiation".into()),
                Ok((count, _)) => into = into.get_mut(count..).unwrap_or_default(),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(told(&errno.into())),
            }
        }
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Problem> {
        let mut bytes = [0; N];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<(), Problem> {
        while !bytes.is_empty() {
            self.set_timeout(Timeout::Send).map_err(|error| told(&error))?;
            match rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(told(&errno.into())),
            }
        }
        Ok(())
    }

    fn negotiate(&mut self, export: &str) -> Result<ExportInfo, Problem> {
        let magic = self.take::<16>()?;
        if magic[..8] != GREETING_MAGIC[..8] {
            return Err("this is no NBD server".into());
        }
        if magic != GREETING_MAGIC {
            return Err(
                "the server has the negotiation of before 2012 (oldstyle): a newer one is needed".into()
            );
        }
        let flags = u32::from(u16::from_be_bytes(self.take()?));
        if flags & FIXED_NEWSTYLE == 0 {
            return Err("the server has no fixed newstyle negotiation: a newer one is needed".into());
        }
        self.write(&(flags & (FIXED_NEWSTYLE | NO_ZEROES)).to_be_bytes())?;
        self.ask(option::STRUCTURED_REPLY, &[])?;
        let mut kind_and_text = self.reply(option::STRUCTURED_REPLY)?;
        if kind_and_text.0 & reply::IS_ERROR != 0 && kind_and_text.0 != reply::ERR_UNSUP {
            return Err(refusal(kind_and_text.0, &kind_and_text.1));
        }
        let name = export.as_bytes();
        let length = u32::try_from(name.len()).unwrap_or(u32::MAX).to_be_bytes();
        let is_structured = kind_and_text.0 == reply::ACK;
        let allocation = if is_structured { self.choose_allocation(&length, name)? } else { None };
        let wanted = [1u16.to_be_bytes(), info::BLOCK_SIZE.to_be_bytes()].concat();
        self.ask(option::GO, &[&length[..], name, &wanted].concat())?;
        let (mut size_and_flags, mut sizes) = (None, (1, PAYLOAD_BYTES_MAX));
        for _ in 0..REPLY_COUNT_MAX {
            kind_and_text = self.reply(option::GO)?;
            let (kind, data) = &kind_and_text;
            match *kind {
                reply::ACK => {
                    let Some((bytes, flags)) = size_and_flags else {
                        return Err("the server has not told the size of the export".into());
                    };
                    let (block_bytes_min, payload_bytes_max) = sizes;
                    return Ok(ExportInfo { bytes, flags, block_bytes_min, payload_bytes_max, allocation });
                }
                reply::INFO => match data.split_first_chunk::<2>() {
                    Some((kind, data)) if u16::from_be_bytes(*kind) == info::EXPORT => {
                        size_and_flags = read_size(data).or(size_and_flags);
                    }
                    Some((kind, data)) if u16::from_be_bytes(*kind) == info::BLOCK_SIZE => {
                        sizes = read_block_sizes(data)?;
                    }
                    _ => {}
                },
                kind if kind & reply::IS_ERROR != 0 => return Err(refusal(kind, data)),
                _ => {}
            }
        }
        Err("the server does not come to an end about the export".into())
    }

    /// Asks for block status. A server that refuses has none, or tells the problem when the export is opened.
    fn choose_allocation(&mut self, length: &[u8], name: &[u8]) -> Result<Option<u32>, Problem> {
        let query = ALLOCATION.as_bytes();
        let query_length = u32::try_from(query.len()).unwrap_or(u32::MAX).to_be_bytes();
        let count = 1u32.to_be_bytes();
        self.ask(option::SET_META_CONTEXT, &[length, name, &count, &query_length, query].concat())?;
        let mut chosen = None;
        for _ in 0..REPLY_COUNT_MAX {
            let (kind, data) = self.reply(option::SET_META_CONTEXT)?;
            match (kind, data.split_first_chunk::<4>()) {
                (reply::ACK, _) => return Ok(chosen),
                (reply::META_CONTEXT, Some((id, name))) if name == query => {
                    chosen = Some(u32::from_be_bytes(*id));
                }
                (kind, _) if kind & reply::IS_ERROR != 0 => return Ok(None),
                _ => {}
            }
        }
        Err("the server does not come to an end about metadata contexts".into())
    }

    fn ask(&mut self, option: u32, data: &[u8]) -> Result<(), Problem> {
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes();
        self.write(&[&OPTION_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &length, data].concat())
    }

    /// A reply to the option: its type and data.
    fn reply(&mut self, option: u32) -> Result<(u32, Vec<u8>), Problem> {
        let magic = u64::from_be_bytes(self.take()?);
        let answered = u32::from_be_bytes(self.take()?);
        let kind = u32::from_be_bytes(self.take()?);
        let length = u32::from_be_bytes(self.take()?);
        if magic != REPLY_MAGIC || answered != option || length > REPLY_BYTES_MAX {
            return Err("the server broke the protocol during the negotiation".into());
        }
        let mut data = vec![0; length as usize];
        self.read(&mut data)?;
        Ok((kind, data))
    }
}

fn read_size(data: &[u8]) -> Option<(u64, ExportFlags)> {
    let (size, flags) = data.split_first_chunk::<8>()?;
    let flags = u16::from_be_bytes(*flags.first_chunk()?);
    Some((u64::from_be_bytes(*size), ExportFlags::from_bits(flags)))
}

/// The minimum of a request and the maximum of its data, bytes.
fn read_block_sizes(data: &[u8]) -> Result<(u32, u32), Problem> {
    let numbers = data.as_chunks::<4>().0;
    let [minimum, _, maximum] = numbers else { return Err("the server told no block sizes".into()) };
    let (minimum, maximum) = (u32::from_be_bytes(*minimum), u32::from_be_bytes(*maximum));
    if !minimum.is_power_of_two() || minimum > PAYLOAD_BYTES_MIN {
        return Err(format!(
            "its blocks have {minimum} bytes: a power of two up to {PAYLOAD_BYTES_MIN} is needed"
        ));
    }
    if maximum < PAYLOAD_BYTES_MIN {
        return Err(format!("its requests have {maximum} bytes at most: {PAYLOAD_BYTES_MIN} are needed"));
    }
    // In units of which every block size is a part.
    Ok((minimum, maximum.min(PAYLOAD_BYTES_MAX) / PAYLOAD_BYTES_MIN * PAYLOAD_BYTES_MIN))
}

/// The error of a call on the socket.
fn told(error: &io::Error) -> Problem {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "the server does not answer: does it serve another client already?".into()
        }
        _ => error.to_string(),
    }
}

fn refusal(kind: u32, text: &[u8]) -> Problem {
    let what = match kind {
        reply::ERR_UNSUP => {
            "the server does not know the option that opens an export (NBD_OPT_GO): a newer one is needed"
        }
        reply::ERR_POLICY => "the server refuses it",
        reply::ERR_TLS_REQD => "the server wants TLS, which is not there for nbd: yet",
        reply::ERR_UNKNOWN => "the server has no export of this name: `nbdinfo --list` shows what it has",
        reply::ERR_SHUTDOWN => "the server is ending",
        _ => "the server refuses the export",
    };
    let text: String = String::from_utf8_lossy(text).chars().filter(|c| !c.is_control()).take(200).collect();
    if text.is_empty() { what.into() } else { format!("{what} (it says: {text})") }
}
