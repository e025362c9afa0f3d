//! The control port: who gets in, and who does not.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use security::tls::{BlockingStream, CallerName, Keyring, Session};
use security::tls_key::TlsKey;
use subsystem::audit::Caller;

use super::requests::{Echo, ask};
use crate::port::{ControlPort, HANDSHAKE_COUNT_MAX};
use crate::socket::CONNECTION_COUNT_MAX;

const PATIENCE: Duration = Duration::from_secs(60);

fn name(text: &str) -> CallerName {
    text.parse().expect("a name")
}

fn key(byte: u8) -> TlsKey {
    TlsKey::new(None, vec![byte; 32].into()).expect("a key")
}

fn callers(keys: &[(&str, u8)]) -> Keyring {
    Keyring::of_callers(keys.iter().map(|(caller, byte)| (name(caller), key(*byte))))
}

fn serve(keys: &[(&str, u8)], handshake_time: Duration) -> (ControlPort, Arc<Echo>) {
    let address = "127.0.0.1:0".parse().expect("an address");
    let mut port = ControlPort::open(address, callers(keys)).unwrap_or_else(|why| panic!("{why}"));
    port.handshake_time = handshake_time;
    let service = Arc::new(Echo::default());
    port.serve(Arc::clone(&service)).expect("a thread");
    (port, service)
}

type Connection = BlockingStream<TcpStream>;

fn connect(address: SocketAddr, caller: &str, byte: u8) -> Result<Connection, String> {
    let socket = TcpStream::connect(address).expect("it listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("set");
    let session = Session::caller(&name(caller), key(byte)).expect("a session");
    let mut stream = BlockingStream::new(session, socket);
    match stream.handshake() {
        Ok(true) => Ok(stream),
        Ok(false) => Err("no answer".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// Waits until a peer was refused for such a reason.
fn wait_for_refusal(service: &Echo, part: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        let peers = service.peers.lock().expect("no panic");
        if peers.iter().any(|(peer, why)| peer.ip().is_loopback() && why.contains(part)) {
            return;
        }
        assert!(Instant::now() < until, "{part}: {peers:?}");
        drop(peers);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn only_callers_with_their_key_are_served() {
    let (port, service) = serve(&[("csi", 1), ("ops", 2)], PATIENCE);
    let address = port.address();
    let mut csi = connect(address, "csi", 1).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(ask(&mut csi, "{\"id\":1,\"method\":\"m\"}")["id"], 1);
    assert_eq!(ask(&mut csi, "{\"id\":2,\"method\":\"m\"}\n")["id"], 2);
    csi.write_all(b"{\"id\":3,\"method\":\"large\"}").expect("sent");
    let mut large = String::new();
    BufReader::new(&mut csi).read_line(&mut large).expect("received");
    assert!(large.len() > 8 << 20 && large.ends_with("\"}\n"), "{} bytes", large.len());
    let called = service.callers.lock().expect("no panic")[0].clone();
    assert!(
        matches!(&called, Caller::Named { name, peer } if name == "csi" && peer.ip().is_loopback()),
        "{called:?}"
    );
    // The key of another caller, one of nobody, and a name that nobody has.
    for (caller, byte) in [("csi", 2), ("csi", 3), ("root", 1)] {
        assert!(connect(address, caller, byte).is_err_and(|why| why.contains("alert")), "{caller} {byte}");
        wait_for_refusal(&service, &format!("{caller} nqn.2026-01.io.nvlane:control"));
    }
    for (sent, why) in [
        (&b"{\"id\":1,\"method\":\"m\"}\n"[..], "does not speak TLS"),
        (b"GET / HTTP/1.1\r\n\r\n", "does not speak TLS"),
        (b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\xff", "ClientHello"),
        (b"\x16", "closed the connection"),
    ] {
        let mut plain = TcpStream::connect(address).expect("it listens");
        plain.write_all(sent).expect("sent");
        plain.shutdown(std::net::Shutdown::Write).expect("shut down");
        let mut answer = Vec::new();
        // Its end may be a reset: not all was read.
        let _ = plain.read_to_end(&mut answer);
        assert!(!answer.contains(&b'{'), "{answer:?}");
        wait_for_refusal(&service, why);
    }
    // It is served still.
    assert_eq!(ask(&mut csi, "{\"id\":4,\"method\":\"m\"}")["id"], 4);
    assert_eq!(service.callers.lock().expect("no panic").len(), 4, "nobody else has called");
}

#[test]
fn a_handshake_has_an_end_of_its_time() {
    let (port, service) = serve(&[("csi", 1)], Duration::from_millis(200));
    let mut slow = TcpStream::connect(port.address()).expect("it listens");
    slow.set_nodelay(true).expect("set");
    // The beginning of a long ClientHello, byte by byte.
    let began = Instant::now();
    for byte in b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc".iter().chain(std::iter::repeat(&b'x')) {
        if slow.write_all(&[*byte]).is_err() {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "it is listened to for ever");
        std::thread::sleep(Duration::from_millis(5));
    }
    wait_for_refusal(&service, "not complete in time");
    // One that is silent.
    let mut silent = TcpStream::connect(port.address()).expect("it listens");
    silent.set_read_timeout(Some(PATIENCE)).expect("set");
    assert_eq!(silent.read(&mut [0; 8]).expect("closed"), 0);
    // A caller has no such end.
    let mut csi = connect(port.address(), "csi", 1).unwrap_or_else(|why| panic!("{why}"));
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(ask(&mut csi, "{\"id\":1,\"method\":\"m\"}")["id"], 1);
}

#[test]
fn strangers_keep_no_caller_out_and_callers_are_counted() {
    let (port, _) = serve(&[("csi", 1)], PATIENCE * 100);
    let mut strangers: Vec<TcpStream> =
        (0..HANDSHAKE_COUNT_MAX).map(|_| TcpStream::connect(port.address()).expect("it listens")).collect();
    let mut callers: Vec<Connection> = Vec::new();
    for _ in 0..CONNECTION_COUNT_MAX {
        callers.push(connect(port.address(), "csi", 1).unwrap_or_else(|why| panic!("{why}")));
        let last = callers.last_mut().expect("some");
        assert_eq!(ask(last, "{\"id\":1,\"method\":\"m\"}")["id"], 1);
    }
    // The oldest stranger had to go; the youngest has not.
    strangers[0].set_read_timeout(Some(PATIENCE)).expect("set");
    assert_eq!(strangers[0].read(&mut [0; 8]).expect("closed"), 0);
    let youngest = strangers.last_mut().expect("some");
    youngest.set_nonblocking(true).expect("set");
    assert!(youngest.read(&mut [0; 8]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    let mut text = String::new();
    connect(port.address(), "csi", 1).expect("a session").read_to_string(&mut text).expect("closed");
    assert!(text.contains("too many connections"), "{text}");
    callers.clear();
    // Connections that ended make room.
    let until = Instant::now() + PATIENCE;
    loop {
        let mut again = connect(port.address(), "csi", 1).unwrap_or_else(|why| panic!("{why}"));
        if ask(&mut again, "{\"id\":77,\"method\":\"m\"}")["id"] == 77 {
            break;
        }
        assert!(Instant::now() < until, "no room");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn changed_keys_end_connections() {
    let (port, _) = serve(&[("csi", 1)], PATIENCE);
    let mut old = connect(port.address(), "csi", 1).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(ask(&mut old, "{\"id\":1,\"method\":\"m\"}")["id"], 1);
    assert!(!port.replace(callers(&[("csi", 1)])), "they are the same");
    assert_eq!(ask(&mut old, "{\"id\":2,\"method\":\"m\"}")["id"], 2);
    assert!(port.replace(callers(&[("csi", 2)])));
    assert_eq!(old.read(&mut [0; 8]).expect("closed"), 0);
    assert!(connect(port.address(), "csi", 1).is_err());
    let mut new = connect(port.address(), "csi", 2).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(ask(&mut new, "{\"id\":3,\"method\":\"m\"}")["id"], 3);
}
