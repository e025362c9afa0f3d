//! Requests as bytes, also hostile ones, and the socket.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Value, json};
use subsystem::audit::Caller;

use crate::CallError;
use crate::rpc::{BATCH_MAX, Call, DEPTH_MAX, REQUEST_BYTES_MAX, REQUEST_TIME, Splitter, answer};
use crate::socket::{CONNECTION_COUNT_MAX, ControlSocket, Service};

fn echo(call: &Call) -> Result<Value, CallError> {
    match call.method.as_str() {
        "fail" => Err(CallError::new(-1, "failed")),
        _ => Ok(json!({ "method": call.method, "params": call.params })),
    }
}

fn answered(text: &str) -> Value {
    answer(text.as_bytes(), |call| echo(&call))
        .map_or(Value::Null, |bytes| serde_json::from_slice(&bytes).expect("JSON"))
}

#[test]
fn requests_are_answered_by_the_rules_of_json_rpc() {
    assert_eq!(
        answered("{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"m\",\"params\":{\"a\":1}}"),
        json!({ "jsonrpc": "2.0", "id": 7, "result": { "method": "m", "params": { "a": 1 } } })
    );
    assert_eq!(
        answered("{\"id\":\"x\",\"method\":\"fail\"}")["error"],
        json!({ "code": -1, "message": "failed" })
    );
    assert_eq!(answered("{\"method\":\"m\"}"), Value::Null, "a notification has no answer");
    assert_eq!(answered("{\"id\":null,\"method\":\"m\"}")["id"], Value::Null);
    for (text, code) in [
        ("{", -32700),
        ("{\"id\":1e999,\"method\":\"m\"}", -32700),
        ("{\"id\":1,\"method\":\"\u{0}\"}", -32700),
        ("[]", -32600),
        ("{\"id\":1}", -32600),
        ("{\"id\":{},\"method\":\"m\"}", -32600),
        ("{\"id\":1,\"method\":7}", -32600),
        ("{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"m\"}", -32600),
        ("{\"id\":1,\"method\":\"m\",\"params\":[1]}", -32602),
    ] {
        assert_eq!(answered(text)["error"]["code"], code, "{text}");
    }
    let batch = answered("[{\"id\":1,\"method\":\"a\"},{\"method\":\"b\"},7,{\"id\":2,\"method\":\"fail\"}]");
    let ids: Vec<_> = batch.as_array().expect("a batch").iter().map(|one| one["id"].clone()).collect();
    assert_eq!(ids, [json!(1), Value::Null, json!(2)]);
    assert_eq!(answered("[{\"method\":\"a\"}]"), Value::Null);
    let many = format!("[{}{{\"id\":1,\"method\":\"a\"}}]", "{\"id\":1,\"method\":\"a\"},".repeat(BATCH_MAX));
    assert_eq!(answered(&many)["error"]["code"], -32600);
}

#[test]
fn what_no_request_can_be_cut_from_ends_the_stream() {
    for (bytes, why) in [
        ("GET / HTTP/1.1".to_owned(), "expected a JSON object"),
        ("[".repeat(DEPTH_MAX + 1), "levels deep"),
        (format!("{{\"a\":\"{}", "x".repeat(REQUEST_BYTES_MAX)), "at most 1048576 bytes"),
    ] {
        let mut splitter = Splitter::default();
        splitter.add(bytes.as_bytes());
        assert!(splitter.next_value().expect_err("unusable").0.contains(why), "{why}");
    }
    let mut splitter = Splitter::default();
    splitter.add(b"{\"a\":");
    assert_eq!(splitter.next_value(), Ok(None));
    let now = Instant::now();
    assert!(!splitter.is_late(now) && splitter.is_late(now + REQUEST_TIME));
    splitter.add(b"1}");
    assert_eq!(splitter.next_value(), Ok(Some(b"{\"a\":1}".to_vec())));
    assert!(!splitter.is_late(now + REQUEST_TIME), "nothing has begun");
}

proptest! {
    /// Values are cut the same, however the bytes arrive.
    #[test]
    fn any_split_of_a_stream_gives_the_same_values(
        texts in prop::collection::vec("[a-z\\[\\]{}\"\\\\ ]{0,12}", 1..6),
        gaps in prop::collection::vec("[ \n]{0,3}", 6),
        cuts in prop::collection::vec(1..9_usize, 1..60),
    ) {
        let values: Vec<Vec<u8>> = texts.iter().map(|text| json!({ text: [text] }).to_string().into_bytes()).collect();
        let stream: Vec<u8> = values.iter().zip(&gaps).flat_map(|(value, gap)| value.iter().copied().chain(gap.bytes())).collect();
        let (mut splitter, mut found, mut rest) = (Splitter::default(), Vec::new(), &stream[..]);
        for cut in cuts.iter().cycle() {
            let (piece, behind) = rest.split_at((*cut).min(rest.len()));
            splitter.add(piece);
            while let Some(value) = splitter.next_value().expect("JSON") {
                found.push(value);
            }
            rest = behind;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(found, values);
    }

    /// No bytes do anything but end in an answer or an error.
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut splitter = Splitter::default();
        splitter.add(&bytes);
        while let Ok(Some(value)) = splitter.next_value() {
            answer(&value, |call| echo(&call));
        }
    }
}

#[derive(Default)]
pub(super) struct Echo {
    refused: Mutex<Vec<Caller>>,
    /// Peers of the port that were refused, and why.
    pub(super) peers: Mutex<Vec<(SocketAddr, String)>>,
    /// Who has called.
    pub(super) callers: Mutex<Vec<Caller>>,
}

impl Service for Echo {
    fn perform(&self, call: Call, caller: &Caller) -> Result<Value, CallError> {
        self.callers.lock().expect("no panic").push(caller.clone());
        if call.method == "large" {
            return Ok("x".repeat(8 << 20).into());
        }
        echo(&call)
    }

    fn refuse(&self, caller: Caller) {
        self.refused.lock().expect("no panic").push(caller);
    }

    fn refuse_peer(&self, peer: SocketAddr, reason: &str) {
        self.peers.lock().expect("no panic").push((peer, reason.to_owned()));
    }
}

fn serve(path: &Path) -> (ControlSocket, Arc<Echo>) {
    let socket = ControlSocket::open(path).unwrap_or_else(|error| panic!("{error}"));
    let service = Arc::new(Echo::default());
    socket.serve(Arc::clone(&service)).expect("a thread");
    (socket, service)
}

pub(super) fn ask(connection: &mut (impl Read + Write), text: &str) -> Value {
    connection.write_all(text.as_bytes()).expect("sent");
    let mut bytes = Vec::new();
    let mut byte = [0];
    while byte != *b"\n" && connection.read(&mut byte).expect("received") == 1 {
        bytes.push(byte[0]);
    }
    serde_json::from_slice(&bytes)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&bytes)))
}

#[test]
fn callers_are_served_over_a_socket_of_their_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("control.sock");
    let (socket, _) = serve(&path);
    assert_eq!(std::fs::metadata(&path).expect("a socket").permissions().mode() & 0o777, 0o600);
    let mut connection = UnixStream::connect(&path).expect("it listens");
    // As SPDK's client sends: not delimited, several lines.
    assert_eq!(ask(&mut connection, "{\n \"id\": 1,\n \"method\": \"m\"\n}")["id"], 1);
    assert_eq!(ask(&mut connection, "{\"id\":2,\"method\":\"m\"}\n")["id"], 2);
    assert!(
        ask(&mut connection, "nonsense")["error"]["message"].as_str().expect("text").contains("JSON object")
    );
    assert_eq!(connection.read(&mut [0; 8]).expect("closed"), 0);
    drop(socket);
    assert!(!path.exists(), "the file goes with the socket");
}

#[test]
fn a_caller_that_reads_nothing_keeps_nobody_waiting() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("control.sock");
    let (_socket, _) = serve(&path);
    let mut deaf = UnixStream::connect(&path).expect("it listens");
    deaf.write_all(b"{\"id\":1,\"method\":\"large\"}").expect("sent");
    // Half a request keeps nobody waiting either.
    let mut slow = UnixStream::connect(&path).expect("it listens");
    slow.write_all(b"{\"id\":").expect("sent");
    let mut connection = UnixStream::connect(&path).expect("it listens");
    assert_eq!(ask(&mut connection, "{\"id\":1,\"method\":\"m\"}")["id"], 1);
    let mut others: Vec<UnixStream> =
        (0..CONNECTION_COUNT_MAX).map(|_| UnixStream::connect(&path).expect("it listens")).collect();
    let last = others.last_mut().expect("some");
    let mut text = String::new();
    last.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
    last.read_to_string(&mut text).expect("closed");
    assert!(text.contains("too many connections"), "{text}");
    drop(others);
    // Connections that ended make room.
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let mut again = UnixStream::connect(&path).expect("it listens");
        let mut answer = [0; 64];
        let asked = again.write_all(b"{\"id\":77,\"method\":\"m\"}").and_then(|()| again.read(&mut answer));
        if asked.is_ok() && String::from_utf8_lossy(&answer).contains("77") {
            break;
        }
        assert!(Instant::now() < until, "no room");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_socket_is_where_nobody_else_can_put_another() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let refusal = |path: &Path| ControlSocket::open(path).expect_err("refused");
    assert!(refusal(Path::new("control.sock")).contains("absolute path"));
    assert!(refusal(&at("none/control.sock")).contains("create it first"));
    assert!(refusal(&at(&"x".repeat(108))).contains("has 107 at most"));
    std::fs::write(at("file"), "x").expect("written");
    assert!(refusal(&at("file")).contains("it is no socket"));
    assert_eq!(std::fs::read(at("file")).expect("there"), b"x");
    std::fs::create_dir(at("open")).expect("created");
    std::fs::set_permissions(at("open"), PermissionsExt::from_mode(0o777)).expect("set");
    assert!(refusal(&at("open/c.sock")).contains("others may write to"));
    // A link to a socket is not followed.
    std::os::unix::fs::symlink(at("elsewhere"), at("link")).expect("a link");
    assert!(refusal(&at("link")).contains("it is no socket"));
    // One that a killed target has left is replaced; one that is served is not.
    let stale = at("stale.sock");
    drop(std::os::unix::net::UnixListener::bind(&stale).expect("bound"));
    let (socket, _) = serve(&stale);
    assert!(std::fs::symlink_metadata(&stale).expect("there").file_type().is_socket());
    let live = refusal(&stale);
    assert!(live.contains(&format!("another target (process {}) serves it", std::process::id())), "{live}");
    drop(socket);
}
