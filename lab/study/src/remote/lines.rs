//! Lines of JSON over a socket: bounded in length and in time.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Time that a read waits until it checks whether the caller still wants the line.
const LOOK: Duration = Duration::from_millis(500);

/// Time for the peer to take a line.
const SEND_TIME: Duration = Duration::from_secs(10);

/// Longest description of a malformed line, characters.
const FORM_CHARS_MAX: usize = 120;

/// Why there is no message.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LineError {
    #[error("it closed the connection")]
    Closed,
    #[error("nothing came for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("a line has more than {0} bytes")]
    Long(usize),
    #[error("a line is no message of nvlane study: {0}")]
    Form(String),
    #[error("{0}")]
    System(#[from] io::Error),
    #[error("stopped")]
    Stopped,
}

impl LineError {
    /// Text of the peer may be part of the parser's message: a beginning of it is enough.
    fn form(error: &serde_json::Error) -> Self {
        Self::Form(error.to_string().chars().take(FORM_CHARS_MAX).collect())
    }
}

/// A connection whose messages are lines.
#[derive(Debug)]
pub(crate) struct Lines {
    stream: TcpStream,
    /// Received bytes that are not read yet.
    received: Vec<u8>,
}

impl Lines {
    /// Takes over a connection.
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOOK))?;
        stream.set_write_timeout(Some(SEND_TIME))?;
        Ok(Self { stream, received: Vec::new() })
    }

    /// Sends a message.
    pub(crate) fn send<Message: Serialize>(&mut self, message: &Message) -> Result<(), LineError> {
        let mut line = serde_json::to_vec(message).map_err(|error| LineError::form(&error))?;
        line.push(b'\n');
        Ok(self.stream.write_all(&line)?)
    }

    /// Receives a message of at most `bytes_max` bytes, whose last byte arrives within `time`.
    pub(crate) fn receive<Message: DeserializeOwned>(
        &mut self,
        bytes_max: usize,
        time: Duration,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Message, LineError> {
        let end = Instant::now() + time;
        let mut searched = 0;
        loop {
            let fresh = self.received.get(searched..).unwrap_or_default();
            if let Some(at) = fresh.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=searched + at).collect();
                if line.len() > bytes_max {
                    return Err(LineError::Long(bytes_max));
                }
                return serde_json::from_slice(&line).map_err(|error| LineError::form(&error));
            }
            searched = self.received.len();
            if searched >= bytes_max {
                return Err(LineError::Long(bytes_max));
            }
            if is_stopped() {
                return Err(LineError::Stopped);
            }
            if Instant::now() >= end {
                return Err(LineError::Silent(time));
            }
            let mut buffer = [0; 8 << 10];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(LineError::Closed),
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {}
                    io::ErrorKind::ConnectionReset => return Err(LineError::Closed),
                    _ => return Err(error.into()),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    /// Both ends of a connection, the second one without lines.
    fn pair() -> (Lines, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Lines::new(listener.accept().unwrap().0).unwrap(), far)
    }

    fn receive(lines: &mut Lines) -> Result<u32, LineError> {
        lines.receive(64, Duration::from_millis(700), &|| false)
    }

    #[test]
    fn messages_are_whole_lines_however_they_arrive() {
        let (mut lines, mut far) = pair();
        far.write_all(b"1").unwrap();
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            far.write_all(b"2\n3\n").unwrap();
            far
        });
        assert_eq!(receive(&mut lines).unwrap(), 12);
        assert_eq!(receive(&mut lines).unwrap(), 3);
        drop(late.join().unwrap());
        assert!(matches!(receive(&mut lines), Err(LineError::Closed)));
    }

    #[test]
    fn long_silent_and_malformed_input_is_bounded() {
        let (mut lines, mut far) = pair();
        assert!(matches!(receive(&mut lines), Err(LineError::Silent(_))));
        far.write_all(b"\xff{\n").unwrap();
        assert!(matches!(receive(&mut lines), Err(LineError::Form(_))));
        far.write_all(&[b'['; 5000]).unwrap();
        assert!(matches!(receive(&mut lines), Err(LineError::Long(64))));
        let stopped = lines.receive::<u32>(1 << 20, Duration::from_secs(60), &|| true);
        assert!(matches!(stopped, Err(LineError::Stopped)));
    }

    #[test]
    fn deep_json_is_an_error_and_no_overflow_of_the_stack() {
        let (mut lines, mut far) = pair();
        let mut text = vec![b'['; 16 << 10];
        text.push(b'\n');
        far.write_all(&text).unwrap();
        let got = lines.receive::<serde_json::Value>(1 << 20, Duration::from_secs(5), &|| false);
        assert!(matches!(got, Err(LineError::Form(_))));
    }
}
