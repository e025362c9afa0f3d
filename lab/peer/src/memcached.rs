//! A client of memcached's text protocol, for tests, the probe and loads. It reads each answer by hand, with a time
//! limit.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::finding::{About, Check, Finding, differs, holds};

/// Maximum length of an answer line, bytes.
const LINE_BYTES_MAX: usize = 64 << 10;

/// A command for one key.
#[derive(Clone, Copy, Debug)]
pub enum Command<'a> {
    /// `get`.
    Get,
    /// `set` without flags and expiry.
    Set(&'a [u8]),
    /// `delete`.
    Delete,
    /// `incr`.
    Increment(u64),
}

impl Command<'_> {
    /// Appends the command for `key` to `bytes`.
    pub fn write(&self, key: &str, bytes: &mut Vec<u8>) {
        let line = match self {
            Self::Get => format!("get {key}\r\n"),
            Self::Set(value) => format!("set {key} 0 0 {}\r\n", value.len()),
            Self::Delete => format!("delete {key}\r\n"),
            Self::Increment(by) => format!("incr {key} {by}\r\n"),
        };
        bytes.extend_from_slice(line.as_bytes());
        if let Self::Set(value) = self {
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
    }
}

/// A connection to a memcached listener.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    patience: Duration,
    /// Bytes received and not consumed.
    input: Vec<u8>,
}

/// Reaction to an invalid line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum After {
    /// The refusals received before the next command was answered normally.
    Goes(Vec<String>),
    /// The target closed the connection.
    Closed,
}

impl Client {
    /// Connects; each answer may take as long as `patience`.
    ///
    /// # Errors
    /// What the system says.
    pub fn connect(address: SocketAddr, patience: Duration) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self { stream, patience, input: Vec::new() })
    }

    /// The connection, for loads that read the answers themselves.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Bytes that were received and not consumed; consumes them.
    pub fn take_input(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.input)
    }

    /// Sends bytes. Returns whether the target still receives.
    ///
    /// # Errors
    /// It stops receiving.
    pub fn send(&mut self, bytes: &[u8]) -> Check<bool> {
        match self.stream.write_all(bytes) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(Finding::Hangs("it stops receiving".into()))
            }
            Err(_) => Ok(false),
        }
    }

    /// Receives more bytes; `false` at the end of the connection.
    ///
    /// # Errors
    /// None came until then.
    pub fn more(&mut self, until: Instant) -> Check<bool> {
        let mut bytes = [0; 64 << 10];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Finding::Hangs(format!("no answer in {} ms", self.patience.as_millis())));
            }
            let _ = self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))));
            match self.stream.read(&mut bytes) {
                Ok(0) => return Ok(false),
                Ok(count) => {
                    self.input.extend_from_slice(&bytes[..count]);
                    return Ok(true);
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    _ => return Ok(false),
                },
            }
        }
    }

    /// Receives `count` bytes; `None` if the connection ends first.
    ///
    /// # Errors
    /// They do not come in time.
    pub fn take(&mut self, count: usize) -> Check<Option<Vec<u8>>> {
        let until = Instant::now() + self.patience;
        while self.input.len() < count {
            if !self.more(until)? {
                return Ok(None);
            }
        }
        Ok(Some(self.input.drain(..count).collect()))
    }

    /// Receives a line, without its end; `None` if the connection ends first.
    ///
    /// # Errors
    /// It does not come in time, or is no line of text.
    pub fn next_line(&mut self) -> Check<Option<String>> {
        let until = Instant::now() + self.patience;
        let mut seen = 0;
        loop {
            if let Some(at) = self.input[seen..].iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.input.drain(..=seen + at).collect();
                let is_right = line.ends_with(b"\r\n") && line.is_ascii();
                holds(is_right, format!("a line that is none: {}", line.escape_ascii()))?;
                return Ok(Some(String::from_utf8_lossy(&line[..line.len() - 2]).into_owned()));
            }
            seen = self.input.len();
            holds(seen < LINE_BYTES_MAX, "an answer without an end")?;
            if !self.more(until)? {
                return Ok(None);
            }
        }
    }

    /// Receives the value of `key` that `line` announces, up to `END`; `None` if the connection ends first.
    ///
    /// # Errors
    /// As [`next_line`](Self::next_line), or this is not an answer to `get`.
    pub fn value(&mut self, key: &str, line: &str) -> Check<Option<Vec<u8>>> {
        let words: Vec<_> = line.split(' ').collect();
        let length = match words[..] {
            ["VALUE", name, _, length] if name == key => length.parse::<usize>().ok(),
            _ => None,
        };
        let Some(length) = length else { return differs(format!("{line:?} in answer to a get")) };
        let Some(mut value) = self.take(length + 2)? else { return Ok(None) };
        let Some(end) = self.next_line()? else { return Ok(None) };
        holds(value.ends_with(b"\r\n") && end == "END", "a value that does not end as it should")?;
        value.truncate(length);
        Ok(Some(value))
    }

    /// Sends a command and returns the answer line.
    ///
    /// # Errors
    /// As [`next_line`](Self::next_line), or the connection ends first.
    pub fn line(&mut self, text: &str) -> Check<String> {
        self.send(text.as_bytes())?;
        match self.next_line()? {
            Some(line) => Ok(line),
            None => differs(format!("closed after {text:?}")),
        }
    }

    /// Sends a command and expects this answer line.
    ///
    /// # Errors
    /// As [`line`](Self::line), or it is another one.
    pub fn expect(&mut self, text: &str, right: &str) -> Check {
        let line = self.line(text).about(text.escape_debug())?;
        holds(line == right, format!("{:?}: {line:?}, not {right:?}", text.escape_debug().to_string()))
    }

    /// The value of a key; `None` if it does not exist.
    ///
    /// # Errors
    /// As [`value`](Self::value).
    pub fn get(&mut self, key: &str) -> Check<Option<Vec<u8>>> {
        let line = self.line(&format!("get {key}\r\n"))?;
        if line == "END" {
            return Ok(None);
        }
        match self.value(key, &line)? {
            None => differs("a value that does not end as it should"),
            value => Ok(value),
        }
    }

    /// Stores a value and returns the answer.
    ///
    /// # Errors
    /// As [`line`](Self::line).
    pub fn set(&mut self, key: &str, value: &[u8]) -> Check<String> {
        let mut bytes = Vec::new();
        Command::Set(value).write(key, &mut bytes);
        self.send(&bytes)?;
        self.line("")
    }

    /// Sends invalid input, then a valid command: only refusals and lines in `others` may precede its answer.
    ///
    /// # Errors
    /// Another line precedes it, or it does not come in time.
    pub fn wrong(&mut self, bytes: &[u8], others: &[&str]) -> Check<After> {
        let what = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).escape_debug().to_string();
        let question: &[u8] = if bytes.ends_with(b"\n") { b"version\r\n" } else { b"\r\nversion\r\n" };
        let is_open = self.send(bytes)? && self.send(question)?;
        let mut lines = Vec::new();
        for _ in 0..10_000 {
            let Some(line) = self.next_line().about(&what)? else { return Ok(After::Closed) };
            if line.starts_with("VERSION ") && is_open {
                return Ok(After::Goes(lines));
            }
            let is_refusal =
                ["ERROR", "CLIENT_ERROR", "SERVER_ERROR"].iter().any(|word| line.starts_with(word));
            holds(is_refusal || others.contains(&line.as_str()), format!("{what}: {line:?}"))?;
            lines.push(line);
        }
        differs(format!("{what}: 10,000 lines"))
    }
}
