//! Events of commands, for connections that watch them.
//!
//! memcached logs what its functions do: a store looks the key up first, so it is a look-up as well.

use crate::command::{Command, Mode, Verb};
use crate::execute::Executor;
use crate::number;
use crate::watch::{WatchLog, kind};
use kv::{Evicted, KeyHash, Stored};

/// The class of all items.
const CLASS: u64 = 1;

impl Executor<'_> {
    /// Executes a command while events are watched.
    #[cold]
    #[inline(never)]
    pub(crate) fn execute_watched(mut self, hash: KeyHash, command: &Command<'_>, out: &mut Vec<u8>) {
        // The record begins before the first command that may evict.
        self.log_evictions();
        let mut room = [0; kv::KEY_BYTES_MAX];
        let key = command.stored_key(&mut room);
        if matches!(command.verb, Verb::Dump(_) | Verb::Refused { .. }) {
            self.execute_unwatched(hash, command, out);
        } else {
            let found = self.log_look_up(hash, key);
            self.execute_unwatched(hash, command, out);
            let name: Option<&[u8]> = match command.verb {
                Verb::Delete { .. } => Some(b"delete"),
                Verb::Meta(b'd') => Some(b"md"),
                _ => None,
            };
            if let (Some(name), Some(length)) = (name, found)
                && self.partition.processor.look(hash, key).is_none()
            {
                self.service.watch.log(kind::DELETIONS, |out| {
                    push_key(out, b"deleted", key);
                    out.extend_from_slice(b" cmd=");
                    out.extend_from_slice(name);
                    push_number(out, b" clsid=", CLASS);
                    push_number(out, b" size=", length as u64);
                });
            }
        }
        self.log_evictions();
    }

    /// Logs that a key is looked up. Returns the length of its value, if it is there.
    fn log_look_up(&mut self, hash: KeyHash, key: &[u8]) -> Option<usize> {
        let (status, length): (&[u8], _) = match self.partition.processor.look(hash, key) {
            None => (b"not_found", None),
            Some((_, true)) => (b"expired", None),
            Some((length, false)) => (b"found", Some(length)),
        };
        let client = self.service.client;
        self.service.watch.log(kind::FETCHERS, |out| {
            push_key(out, b"item_get", key);
            out.extend_from_slice(b" status=");
            out.extend_from_slice(status);
            push_number(out, b" clsid=", if length.is_some() { CLASS } else { 0 });
            push_number(out, b" cfd=", client.into());
            push_number(out, b" size=", length.unwrap_or(0) as u64);
        });
        length
    }

    /// Logs a store: the key, how it was stored, whether under a CAS number, and the result.
    #[cold]
    pub(crate) fn log_stored(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        (mode, has_cas): (Mode, bool),
        (length, stored): (usize, Stored),
    ) {
        let status: &[u8] = match stored {
            Stored::Done => b"stored",
            _ if mode.is_too_long(stored) => b"not_stored",
            Stored::Exists if has_cas => b"exists",
            Stored::NotFound if has_cas => b"not_found",
            Stored::Exists | Stored::NotFound => b"not_stored",
            Stored::NoMemory => b"no_memory",
            Stored::LogFull => b"log_full",
            Stored::TooLarge => b"too_large",
        };
        let name: &[u8] = match mode {
            _ if has_cas => b"cas",
            Mode::Set => b"set",
            Mode::Add => b"add",
            Mode::Replace => b"replace",
            Mode::Append => b"append",
            Mode::Prepend => b"prepend",
        };
        let processor = &mut self.partition.processor;
        let place = if stored == Stored::Done { processor.find(hash, key) } else { None };
        let expiry_s = place.map_or(0, |place| processor.attributes(place).expiry_s);
        let ttl_s = expiry_s.saturating_sub(processor.now_s());
        let length = place.map_or(length, |place| processor.value_bytes(place));
        let has_none = matches!(stored, Stored::NoMemory | Stored::LogFull | Stored::TooLarge);
        let client = self.service.client;
        self.service.watch.log(kind::MUTATIONS, |out| {
            push_key(out, b"item_store", key);
            out.extend_from_slice(b" status=");
            out.extend_from_slice(status);
            out.extend_from_slice(b" cmd=");
            out.extend_from_slice(name);
            push_number(out, b" ttl=", ttl_s.into());
            push_number(out, b" clsid=", if has_none { 0 } else { CLASS });
            push_number(out, b" cfd=", client.into());
            push_number(out, b" size=", if has_none { 0 } else { length as u64 });
        });
    }

    /// Logs the pairs that were evicted since the last call, by whatever command.
    pub(crate) fn log_evictions(&mut self) {
        let processor = &mut self.partition.processor;
        processor.record_evictions(self.service.watch.watches(kind::EVICTIONS));
        let now_s = processor.now_s();
        let (evicted, lost_count) = processor.take_evicted();
        self.service.watch.count_dropped(lost_count);
        for Evicted { key, value_bytes, expiry_s, accessed_s, is_fetched } in evicted {
            self.service.watch.log(kind::EVICTIONS, |out| {
                push_key(out, b"eviction", &key);
                out.extend_from_slice(if is_fetched { b" fetch=yes" } else { b" fetch=no" });
                match expiry_s {
                    0 => out.extend_from_slice(b" ttl=-1"),
                    _ => push_number(out, b" ttl=", expiry_s.saturating_sub(now_s).into()),
                }
                push_number(out, b" la=", now_s.saturating_sub(accessed_s).into());
                push_number(out, b" clsid=", CLASS);
                push_number(out, b" size=", value_bytes as u64);
            });
        }
    }

    /// Passes to `post` the watchers' lines of the events of this turn; see [`WatchLog::flush`].
    pub fn flush_watched(&mut self, unix_us: u64, post: impl FnMut(usize, u64, Vec<u8>)) {
        self.service.watch.follow();
        self.log_evictions();
        self.service.watch.flush(unix_us, post);
    }
}

impl WatchLog {
    /// Logs the beginning of a connection, or with `reason` its end.
    pub fn log_connection(
        &mut self,
        peer: Option<std::net::SocketAddr>,
        number: u32,
        reason: Option<&'static str>,
    ) {
        self.follow();
        self.log(kind::CONNEVENTS, |out| {
            let event = if reason.is_some() { "conn_close" } else { "conn_new" };
            let text = match peer {
                Some(peer) => format!("type={event} rip={} rport={} transport=tcp", peer.ip(), peer.port()),
                None => format!("type={event} rip=unix rport=0 transport=local"),
            };
            out.extend_from_slice(text.as_bytes());
            if let Some(reason) = reason {
                out.extend_from_slice(b" reason=");
                out.extend_from_slice(reason.as_bytes());
            }
            push_number(out, b" cfd=", number.into());
        });
    }
}

fn push_key(out: &mut Vec<u8>, event: &[u8], key: &[u8]) {
    out.extend_from_slice(b"type=");
    out.extend_from_slice(event);
    out.extend_from_slice(b" key=");
    number::push_url_encoded(out, key);
}

fn push_number(out: &mut Vec<u8>, name: &[u8], value: u64) {
    out.extend_from_slice(name);
    number::push(out, value);
}
