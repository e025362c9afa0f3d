//! OpenSSL and GnuTLS as the other end, over loopback.

use std::io::{BufRead, BufReader, Read as _, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nvlane_security::hash::HashFunction;
use nvlane_security::tls::{Failure, IdentityOffer, Read, Session};

use crate::{host_keys, host_name, key, keyring, subsystem};

/// A peer's process, which ends with the test.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Peer {
    fn start(program: &str, arguments: &[&str]) -> Self {
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Self(child.unwrap_or_else(|error| panic!("{program}: {error}")))
    }

    fn say(&mut self, line: &str) {
        writeln!(self.0.stdin.as_mut().expect("piped"), "{line}").expect("written");
    }

    /// What it printed until it ended.
    fn told(mut self) -> String {
        drop(self.0.stdin.take());
        let mut text = String::new();
        let _ = self.0.stdout.take().expect("piped").read_to_string(&mut text);
        let _ = self.0.stderr.take().expect("piped").read_to_string(&mut text);
        text
    }
}

/// Exchanges bytes of a session with a socket until `is_done`.
fn drive(
    session: &mut Session,
    socket: &mut TcpStream,
    received: &mut Vec<u8>,
    is_done: impl Fn(&Session, &[u8]) -> bool,
) -> Result<(), Failure> {
    socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
    let mut buffer = [0; 1000];
    loop {
        let outcome = loop {
            match session.read(&mut buffer) {
                Ok(Read::Bytes(count)) => received.extend_from_slice(&buffer[..count]),
                other => break other,
            }
        };
        match outcome {
            Ok(Read::Ended) => return Ok(()),
            Ok(_) => {}
            Err(failure) => {
                let _ = socket.write_all(session.output());
                return Err(failure);
            }
        }
        let output = session.output().to_vec();
        socket.write_all(&output).expect("sent");
        session.on_sent(output.len());
        if is_done(session, received) {
            return Ok(());
        }
        let count = session.receive(usize::MAX, |room| {
            let count = socket.read(room).expect("bytes in time");
            (count, count)
        });
        if count == Some(0) {
            session.on_input_end();
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Identity and key in hex that both ends use: version 1, SHA-256.
fn known() -> (String, String) {
    let offer =
        host_keys(key(HashFunction::Sha256, 1)).offer(IdentityOffer::Both, &host_name(), &subsystem());
    (offer[0].identity.clone(), hex(offer[0].key.expose()))
}

fn connect(port: u16) -> TcpStream {
    let begun = Instant::now();
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(socket) => return socket,
            Err(error) if begun.elapsed() > Duration::from_secs(30) => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port()
}

/// Our target's session with a client of another library, which says a line.
fn serve(
    program: &str,
    arguments: impl Fn(u16) -> Vec<String>,
) -> (Result<Session, Failure>, Vec<u8>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let arguments = arguments(port);
    let mut peer = Peer::start(program, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let (mut socket, _) = listener.accept().expect("a connection");
    let mut session = Session::target(keyring([key(HashFunction::Sha256, 1)]));
    let mut received = Vec::new();
    let mut outcome =
        drive(&mut session, &mut socket, &mut received, |session, _| session.established().is_some());
    if outcome.is_ok() {
        session.write(b"greetings\n").expect("encrypted");
        session.update_key().expect("updated");
        session.write(b"after an update\n").expect("encrypted");
        let output = session.output().to_vec();
        socket.write_all(&output).expect("sent");
        session.on_sent(output.len());
        peer.say("a line");
        outcome =
            drive(&mut session, &mut socket, &mut received, |_, received| received.ends_with(b"line\n"));
        session.close();
        socket.write_all(session.output()).expect("sent");
    }
    drop(socket);
    (outcome.map(|()| session), received, peer.told())
}

/// Our host's session with a server of another library, which echoes or says a line.
fn ask(
    program: &str,
    arguments: &[&str],
    port: u16,
    byte: u8,
) -> (Result<Session, Failure>, Vec<u8>, String) {
    let mut peer = Peer::start(program, arguments);
    // gnutls-serv says when it is ready, s_server too; connecting is tried until then.
    let mut socket = connect(port);
    let offer =
        host_keys(key(HashFunction::Sha256, byte)).offer(IdentityOffer::Both, &host_name(), &subsystem());
    let mut session = Session::host(&offer[..1]).expect("a session");
    let mut received = Vec::new();
    let mut outcome =
        drive(&mut session, &mut socket, &mut received, |session, _| session.established().is_some());
    if outcome.is_ok() {
        session.update_key().expect("updated");
        session.write(b"after an update\n").expect("encrypted");
        peer.say("a line");
        outcome = drive(&mut session, &mut socket, &mut received, |_, received| !received.is_empty());
        session.close();
        let _ = socket.write_all(session.output());
    }
    drop(socket);
    // `openssl s_server` exits after one connection; what it received is in its output by then.
    let begun = Instant::now();
    while program == "openssl"
        && begun.elapsed() < Duration::from_secs(30)
        && matches!(peer.0.try_wait(), Ok(None))
    {
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = peer.0.kill();
    (outcome.map(|()| session), received, peer.told())
}

#[test]
fn a_host_of_openssl_is_served() {
    let (identity, psk) = known();
    let (session, received, told) = serve("openssl", |port| {
        [
            "s_client",
            "-connect",
            &format!("127.0.0.1:{port}"),
            "-tls1_3",
            "-psk",
            &psk,
            "-psk_identity",
            &identity,
        ]
        .into_iter()
        .chain(["-ciphersuites", "TLS_AES_128_GCM_SHA256", "-quiet"])
        .map(str::to_owned)
        .collect()
    });
    let session = session.unwrap_or_else(|failure| panic!("{failure}: {told}"));
    assert_eq!(received, b"a line\n", "{told}");
    assert!(told.contains("greetings") && told.contains("after an update"), "{told}");
    assert!(session.established().is_some());
}

#[test]
fn a_host_of_openssl_with_another_key_gets_an_alert() {
    let (identity, _) = known();
    let (session, _, told) = serve("openssl", |port| {
        ["s_client", "-connect", &format!("127.0.0.1:{port}"), "-tls1_3", "-psk", &"ab".repeat(32)]
            .into_iter()
            .chain(["-psk_identity", &identity, "-ciphersuites", "TLS_AES_128_GCM_SHA256"])
            .map(str::to_owned)
            .collect()
    });
    assert_eq!(
        session.expect_err("another key"),
        Failure::Protocol("PSK binder did not match the expected value")
    );
    assert!(told.contains("alert decrypt error"), "{told}");
}

#[test]
fn a_host_of_gnutls_is_served() {
    let (identity, psk) = known();
    let (session, received, told) = serve("gnutls-cli", |port| {
        ["--port", &port.to_string(), "--pskusername", &identity, "--pskkey", &psk, "--no-ca-verification"]
            .into_iter()
            .chain(["--priority", "NORMAL:-VERS-ALL:+VERS-TLS1.3:-KX-ALL:+ECDHE-PSK:+DHE-PSK", "127.0.0.1"])
            .map(str::to_owned)
            .collect()
    });
    session.unwrap_or_else(|failure| panic!("{failure}: {told}"));
    assert_eq!(received, b"a line\n", "{told}");
    assert!(told.contains("greetings") && told.contains("after an update"), "{told}");
}

#[test]
fn a_target_of_openssl_is_reached_and_one_with_another_key_refused() {
    let (identity, psk) = known();
    for byte in [1, 2] {
        let port = free_port();
        let accept = port.to_string();
        let arguments =
            ["s_server", "-accept", &accept, "-nocert", "-tls1_3", "-num_tickets", "0", "-psk", &psk];
        let more = ["-psk_identity", &identity, "-ciphersuites", "TLS_AES_128_GCM_SHA256", "-naccept", "1"];
        let (session, received, told) = ask("openssl", &[&arguments[..], &more].concat(), port, byte);
        if byte == 1 {
            session.unwrap_or_else(|failure| panic!("{failure}: {told}"));
            assert_eq!(received, b"a line\n", "{told}");
            assert!(told.contains("after an update"), "{told}");
        } else {
            assert!(session.is_err(), "{told}");
        }
    }
}

#[test]
fn a_target_of_gnutls_is_reached() {
    let (identity, psk) = known();
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    // A name with other characters than letters is written in hex.
    writeln!(file, "#{}:{psk}", hex(identity.as_bytes())).expect("written");
    let port = free_port();
    let (port_text, path) = (port.to_string(), file.path().to_string_lossy().into_owned());
    let arguments = ["--port", &port_text, "--pskpasswd", &path, "--echo", "--nocookie", "--noticket"];
    let priority = ["--priority", "NORMAL:-VERS-ALL:+VERS-TLS1.3:-KX-ALL:+ECDHE-PSK:+DHE-PSK"];
    let (session, received, told) = ask("gnutls-serv", &[&arguments[..], &priority].concat(), port, 1);
    session.unwrap_or_else(|failure| panic!("{failure}: {told}"));
    assert_eq!(received, b"after an update\n", "{told}");
}

#[test]
fn the_programs_are_there() {
    for program in ["openssl", "gnutls-cli", "gnutls-serv"] {
        let version =
            Command::new(program).arg(if program == "openssl" { "version" } else { "--version" }).output();
        let text = version.unwrap_or_else(|error| panic!("{program}: {error}")).stdout;
        assert!(BufReader::new(&text[..]).lines().next().is_some(), "{program}");
    }
}
