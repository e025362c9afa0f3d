//! Other places for chunks of language-model states: redis and memcached, by clients that pipeline commands and receive values
//! straight into the caller's buffers as nvlane's does, and files.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use load::prompts::{Chunk, ChunkEnd, ChunkStore, PromptError};
use tempfile::TempDir;

use crate::error::{Doing, Error};
use crate::text_load::Protocol;

/// Time limit of an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// The longest line of an answer, bytes.
const LINE_BYTES_MAX: u64 = 4096;

/// One connection to redis or memcached.
#[derive(Debug)]
pub(crate) struct TextChunks {
    protocol: Protocol,
    answers: BufReader<TcpStream>,
}

impl TextChunks {
    pub(crate) fn connect(place: SocketAddr, protocol: Protocol) -> Result<Self, Error> {
        let open = || {
            let stream = TcpStream::connect(place)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            // As in loads on lanes.
            reactor::suit_loopback(&stream, Some(place));
            io::Result::Ok(stream)
        };
        let stream = open().doing("connect to a server")?;
        Ok(Self { protocol, answers: BufReader::with_capacity(16 << 10, stream) })
    }

    /// Sends one command for each chunk in one go.
    fn ask(&mut self, chunks: &[Chunk], command: impl Fn(&Chunk) -> String) -> io::Result<()> {
        let commands: String = chunks.iter().map(command).collect();
        self.answers.get_mut().write_all(commands.as_bytes())
    }

    /// The next line, without its end.
    fn line(&mut self) -> Result<String, PromptError> {
        let mut line = Vec::new();
        (&mut self.answers).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        let text = String::from_utf8_lossy(&line).into_owned();
        text.strip_suffix("\r\n").map(str::to_owned).ok_or_else(|| PromptError::Answer(text.clone()))
    }

    /// Receives the value of an answer whose first line this is; `false` if there is none.
    fn value(&mut self, first: &str, bytes: &mut [u8]) -> Result<bool, PromptError> {
        let wrong = || PromptError::Answer(first.to_owned());
        let length = match self.protocol {
            Protocol::Redis if first == "$-1" => return Ok(false),
            Protocol::Redis => first.strip_prefix('$'),
            Protocol::Memcached if first == "END" => return Ok(false),
            Protocol::Memcached => first.strip_prefix("VALUE ").and_then(|rest| rest.rsplit(' ').next()),
        };
        if length.and_then(|length| length.parse().ok()) != Some(bytes.len()) {
            return Err(wrong());
        }
        self.answers.read_exact(bytes)?;
        let ends: &[&str] = match self.protocol {
            Protocol::Redis => &[""],
            Protocol::Memcached => &["", "END"],
        };
        for expected in ends {
            let line = self.line()?;
            if line != *expected {
                return Err(PromptError::Answer(line));
            }
        }
        Ok(true)
    }
}

impl ChunkStore for TextChunks {
    fn leading(&mut self, chunks: &[Chunk]) -> Result<usize, PromptError> {
        let protocol = self.protocol;
        self.ask(chunks, |Chunk { key, .. }| match protocol {
            Protocol::Redis => format!("*2\r\n$6\r\nEXISTS\r\n${}\r\n{key}\r\n", key.len()),
            Protocol::Memcached => format!("mg {key}\r\n"),
        })?;
        let mut is_there = Vec::with_capacity(chunks.len());
        for _ in chunks {
            let line = self.line()?;
            is_there.push(match line.as_str() {
                ":1" | "HD" => true,
                ":0" | "EN" => false,
                _ => return Err(PromptError::Answer(line)),
            });
        }
        Ok(is_there.iter().take_while(|is_there| **is_there).count())
    }

    fn retrieve(&mut self, chunks: &mut [Chunk]) -> Result<(), PromptError> {
        let protocol = self.protocol;
        self.ask(chunks, |Chunk { key, .. }| match protocol {
            Protocol::Redis => format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()),
            Protocol::Memcached => format!("get {key}\r\n"),
        })?;
        for chunk in chunks {
            let first = self.line()?;
            let is_there = self.value(&first, &mut chunk.bytes)?;
            chunk.end = if is_there { ChunkEnd::Moved } else { ChunkEnd::Missing };
        }
        Ok(())
    }

    fn store(&mut self, chunks: &mut [Chunk]) -> Result<(), PromptError> {
        for Chunk { key, bytes, .. } in chunks.iter() {
            let command = match self.protocol {
                Protocol::Redis => {
                    let (key_bytes, value_bytes) = (key.len(), bytes.len());
                    format!("*3\r\n$3\r\nSET\r\n${key_bytes}\r\n{key}\r\n${value_bytes}\r\n")
                }
                Protocol::Memcached => format!("set {key} 0 0 {}\r\n", bytes.len()),
            };
            let stream = self.answers.get_mut();
            stream.write_all(command.as_bytes())?;
            stream.write_all(bytes)?;
            stream.write_all(b"\r\n")?;
        }
        for chunk in chunks {
            let line = self.line()?;
            chunk.end = match line.as_str() {
                "+OK" | "STORED" => ChunkEnd::Moved,
                // It takes the value, or the rest of it, and throws it away.
                full if full.to_lowercase().starts_with("server_error out of memory") => ChunkEnd::Failed,
                _ => return Err(PromptError::Answer(line)),
            };
        }
        Ok(())
    }
}

/// A file for each chunk, written beside its place and renamed, as engines write theirs. The files that were not used for the
/// longest time are removed when all together are too long.
#[derive(Debug)]
pub(crate) struct FileChunks {
    directory: TempDir,
    limit_bytes: u64,
    used_bytes: u64,
    /// Names and lengths, the most recently used one last.
    files: VecDeque<(String, u64)>,
}

impl FileChunks {
    /// Files in a new directory within this one.
    pub(crate) fn new(within: &Path, limit_bytes: u64) -> Result<Self, Error> {
        let directory = tempfile::Builder::new().prefix("nvlane-study-").tempdir_in(within);
        let directory = directory.doing("a directory for chunks")?;
        Ok(Self { directory, limit_bytes, used_bytes: 0, files: VecDeque::new() })
    }

    fn path(&self, chunk: &Chunk) -> PathBuf {
        self.directory.path().join(name(chunk))
    }

    /// Makes a file the one used last.
    fn touch(&mut self, name: &str, bytes: u64) {
        if let Some(at) = self.files.iter().position(|(known, _)| known == name) {
            let (_, former) = self.files.remove(at).expect("just found");
            self.used_bytes -= former;
        }
        self.files.push_back((name.to_owned(), bytes));
        self.used_bytes += bytes;
    }
}

/// The name of a chunk's file: its key, without what a name may not have.
fn name(chunk: &Chunk) -> String {
    chunk.key.replace('/', "_")
}

impl ChunkStore for FileChunks {
    fn leading(&mut self, chunks: &[Chunk]) -> Result<usize, PromptError> {
        Ok(chunks.iter().take_while(|chunk| self.path(chunk).exists()).count())
    }

    fn retrieve(&mut self, chunks: &mut [Chunk]) -> Result<(), PromptError> {
        for chunk in chunks {
            let read = File::open(self.path(chunk)).and_then(|mut file| file.read_exact(&mut chunk.bytes));
            chunk.end = match read {
                Ok(()) => ChunkEnd::Moved,
                Err(error) if error.kind() == io::ErrorKind::NotFound => ChunkEnd::Missing,
                Err(error) => return Err(error.into()),
            };
            self.touch(&name(chunk), chunk.bytes.len() as u64);
        }
        Ok(())
    }

    fn store(&mut self, chunks: &mut [Chunk]) -> Result<(), PromptError> {
        for chunk in chunks {
            let bytes = chunk.bytes.len() as u64;
            self.touch(&name(chunk), bytes);
            while self.used_bytes > self.limit_bytes && self.files.len() > 1 {
                let (oldest, length) = self.files.pop_front().expect("there are several");
                self.used_bytes -= length;
                fs::remove_file(self.directory.path().join(oldest))?;
            }
            let (path, beside) = (self.path(chunk), self.directory.path().join("beside"));
            fs::write(&beside, &chunk.bytes)?;
            fs::rename(&beside, path)?;
            chunk.end = ChunkEnd::Moved;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use load::prompts::{PromptLoad, run};

    use super::*;

    fn load() -> PromptLoad {
        PromptLoad {
            documents: 2,
            shared_chunks: 2,
            own_chunks: 1,
            chunk_bytes: 100_000,
            warm_up: Duration::ZERO,
            runtime: Duration::from_millis(30),
            ..PromptLoad::default()
        }
    }

    #[test]
    fn files_are_found_again_and_the_oldest_make_room() {
        let place = tempfile::tempdir().expect("a directory");
        let mut files = FileChunks::new(place.path(), 800_000).expect("a directory");
        let result = run(&mut files, &load(), &mut || (), &mut || false).expect("files");
        assert_eq!((result.mismatch_count, result.failed_count, result.gone_count), (0, 0, 0));
        assert!(result.hit_count > 0 && files.used_bytes <= 800_000);
        assert_eq!(fs::read_dir(files.directory.path()).expect("a directory").count(), files.files.len());
    }

    /// Chunks of three bytes.
    fn three() -> Vec<Chunk> {
        let mut chunks = vec![Chunk::new(3); 3];
        chunks.iter_mut().zip(["a", "b", "c"]).for_each(|(chunk, key)| chunk.key = key.into());
        chunks
    }

    /// A server that answers each of these parts, in one go, after the first bytes of a request.
    fn answering(parts: &'static [&'static str]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut buffer = [0; 4096];
            for part in parts {
                assert!(stream.read(&mut buffer).expect("a request") > 0);
                stream.write_all(part.as_bytes()).expect("an answer");
            }
            // Until the client has gone: an early end would be another answer.
            while stream.read(&mut buffer).is_ok_and(|count| count > 0) {}
        });
        place
    }

    #[test]
    fn answers_are_read_as_the_servers_write_them() {
        let mut chunks = three();
        let answers: &[(Protocol, &[&str])] = &[
            (Protocol::Redis, &[":1\r\n:1\r\n:0\r\n", "$3\r\nabc\r\n$-1\r\n$3\r\ndef\r\n"]),
            (
                Protocol::Memcached,
                &["HD\r\nHD\r\nEN\r\n", "VALUE k 0 3\r\nabc\r\nEND\r\nEND\r\nVALUE k 0 3\r\ndef\r\nEND\r\n"],
            ),
        ];
        for &(protocol, parts) in answers {
            let mut server = TextChunks::connect(answering(parts), protocol).expect("a connection");
            assert_eq!(server.leading(&chunks).expect("an answer"), 2);
            server.retrieve(&mut chunks).expect("answers");
            let ends: Vec<_> = chunks.iter().map(|chunk| chunk.end).collect();
            assert_eq!(ends, [ChunkEnd::Moved, ChunkEnd::Missing, ChunkEnd::Moved]);
            assert_eq!((&chunks[0].bytes[..], &chunks[2].bytes[..]), (&b"abc"[..], &b"def"[..]));
        }
        for (protocol, answer) in [
            (Protocol::Redis, &["$4\r\nabcd\r\n"][..]),
            (Protocol::Redis, &["-ERR unknown\r\n"]),
            (Protocol::Memcached, &["VALUE k 0 4\r\nabcd\r\nEND\r\n"]),
            (Protocol::Memcached, &["ERROR\r\n"]),
        ] {
            let mut server = TextChunks::connect(answering(answer), protocol).expect("a connection");
            let error = server.retrieve(&mut chunks[..1]).unwrap_err();
            assert!(matches!(error, PromptError::Answer(_)), "{error}");
        }
    }

    #[test]
    fn a_store_without_room_is_counted() {
        for part in [
            &["SERVER_ERROR out of memory storing object\r\nSTORED\r\n"],
            &["SERVER_ERROR Out of memory during read\r\nSTORED\r\n"],
        ] {
            let mut chunks = three();
            let mut server = TextChunks::connect(answering(part), Protocol::Memcached).expect("a connection");
            server.store(&mut chunks[..2]).expect("answers");
            assert_eq!([chunks[0].end, chunks[1].end], [ChunkEnd::Failed, ChunkEnd::Moved]);
        }
    }
}
