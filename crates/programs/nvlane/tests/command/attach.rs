//! `nvlane attach nbd`: exports, requests of an NBD client, mistakes, the end.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use bridge::nbd::{CommandFlags, ReplyForm, Request};
use rustix::process::{Pid, Signal, kill_process};

use crate::mistakes::code_soon;
use crate::support::{Target, nvlane, run, signal};

/// A bridge of its own process, and its URIs.
fn bridge(target: &Target, socket: &Path, exports: usize) -> (Child, Vec<String>) {
    let mut command = nvlane();
    command.args(["attach", "nbd", &target.address, "--socket"]).arg(socket);
    let mut process = command.stdout(Stdio::piped()).spawn().expect("it runs");
    let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
    let uris = lines.take(exports).map(|line| line.expect("a line")).collect();
    (process, uris)
}

/// A client of the default export, or of a name, without structured replies.
fn connect(socket: &Path, name: &str) -> UnixStream {
    let mut client = UnixStream::connect(socket).expect("a bridge");
    let length = u32::try_from(name.len()).expect("short").to_be_bytes();
    // Fixed newstyle without zeroes, then the option for an export by name.
    let option = [&b"\0\0\0\x03IHAVEOPT\0\0\0\x01"[..], &length, name.as_bytes()].concat();
    client.write_all(&option).expect("a peer");
    let mut greeting = [0; 18 + 10];
    client.read_exact(&mut greeting).expect("an export of this name");
    client
}

/// The error of a request, and its data.
fn ask(client: &mut UnixStream, command: u16, offset: u64, length: u64, data: &[u8]) -> (u32, Vec<u8>) {
    let request = Request { flags: CommandFlags::default(), command, cookie: 5, offset, length };
    client.write_all(&[request.to_bytes(ReplyForm::Simple), data.to_vec()].concat()).expect("a peer");
    let mut head = [0; 16];
    client.read_exact(&mut head).expect("a reply");
    assert_eq!((&head[..4], head[15]), (&b"\x67\x44\x66\x98"[..], 5));
    let errno = u32::from_be_bytes(head[4..8].try_into().expect("four"));
    let mut bytes =
        vec![0; if command == 0 && errno == 0 { usize::try_from(length).expect("short") } else { 0 }];
    client.read_exact(&mut bytes).expect("data");
    (errno, bytes)
}

#[test]
fn a_client_reads_what_it_wrote() {
    let target = Target::serving(&["ram:1M"]);
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("nbd.sock");
    let (mut process, uris) = bridge(&target, &socket, 1);
    assert_eq!(uris, [format!("nbd+unix:///?socket={}", socket.display())]);
    let mut client = connect(&socket, "");
    let data: Vec<u8> = (0..300_000_u32 / 4096 * 4096).map(|at| at.to_le_bytes()[1]).collect();
    let length = data.len() as u64;
    assert_eq!(ask(&mut client, 1, 4096, length, &data), (0, vec![]));
    assert_eq!(ask(&mut client, 3, 0, 0, &[]), (0, vec![]));
    assert_eq!(ask(&mut client, 0, 4096, length, &[]), (0, data));
    for (command, offset, length, data, errno) in [
        (0, 512, 4096, &[][..], 22),
        (1, 0, 100, &[0; 100], 22),
        (0, 1 << 20, 4096, &[], 22),
        (1, 1 << 20, 4096, &[0; 4096], 28),
    ] {
        assert_eq!(ask(&mut client, command, offset, length, data), (errno, vec![]), "{command} at {offset}");
    }
    assert_eq!(ask(&mut client, 0, 0, 4096, &[]), (0, vec![0; 4096]));
    // The client goes on; the bridge ends.
    let pid = Pid::from_raw(i32::try_from(process.id()).expect("a pid")).expect("a pid");
    kill_process(pid, Signal::TERM).expect("it lives");
    assert_eq!(code_soon(&mut process), Some(0));
    assert_eq!(client.read(&mut [0; 1]).expect("an end"), 0);
    assert!(!socket.exists());
}

/// A client whose handshake waits for the target does not hold up the end.
#[test]
fn a_bridge_without_its_target_ends_at_once() {
    let target = Target::serving(&["ram:1M"]);
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("nbd.sock");
    let mut command = nvlane();
    command.args(["--log", "info", "attach", "nbd", &target.address, "--socket"]).arg(&socket);
    let mut process = command.stderr(Stdio::piped()).spawn().expect("it runs");
    let mut log = BufReader::new(process.stderr.take().expect("piped")).lines().map_while(Result::ok);
    log.find(|line| line.contains("NBD export")).expect("it serves");
    drop(target);
    log.find(|line| line.contains("association lost")).expect("it notices");
    let mut client = UnixStream::connect(&socket).expect("a bridge");
    client.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").expect("a peer");
    client.read_exact(&mut [0; 18]).expect("a greeting");
    // The bridge reads the option meanwhile. If it has not, it ends the sooner.
    std::thread::sleep(Duration::from_millis(200));
    signal(process.id(), Signal::TERM);
    assert_eq!(process.wait().expect("it ends").code(), Some(0));
    assert!(log.all(|line| !line.contains("are cut")), "the client was waited for");
    assert_eq!(client.read(&mut [0; 1]).expect("an end"), 0);
}

#[test]
fn each_namespace_is_an_export() {
    let target = Target::serving(&["ram:1M", "kv:ram:16M", "ram:2M?lba=512"]);
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("nbd.sock");
    let (mut process, uris) = bridge(&target, &socket, 2);
    assert_eq!(uris, [1, 3].map(|nsid| format!("nbd+unix:///{nsid}?socket={}", socket.display())));
    let (mut first, mut third) = (connect(&socket, "1"), connect(&socket, "3"));
    assert_eq!(ask(&mut third, 1, (2 << 20) - 512, 512, &[7; 512]), (0, vec![]));
    assert_eq!(ask(&mut first, 0, (1 << 20) - 4096, 4096, &[]), (0, vec![0; 4096]));
    assert_eq!(ask(&mut third, 0, (2 << 20) - 512, 512, &[]), (0, vec![7; 512]));
    process.kill().expect("it lives");
    process.wait().expect("it ends");
    let named = run(["attach", "nbd", &target.address, "--name", "disk", "--listen", "0"]).complaint(2);
    assert!(named.contains("there are 2 namespaces") && named.contains("?ns=1"), "{named}");
    let keys = format!("{}?ns=2", target.address);
    let line = run(["attach", "nbd", &keys, "--listen", "0"]).complaint(4);
    assert!(line.contains("`nvlane identify` shows what it is"), "{line}");
}

#[test]
fn the_command_of_run_has_the_uri_and_gives_its_code() {
    let target = Target::serving(&["ram:1M"]);
    let uri = run(["attach", "nbd", &target.address, "--run", "printf %s \"$NVLANE_DEVICE\""]).text();
    let path = uri.strip_prefix("nbd+unix:///?socket=").expect("a socket of its own");
    assert!(!Path::new(path).exists(), "it is removed");
    let port = ["--name", "disk", "--listen", "0", "--run", "printf %s \"$NVLANE_DEVICE\"; exit 7"];
    let ended = run([&["attach", "nbd", &target.address][..], &port].concat());
    assert_eq!(ended.code, 7, "{ended:?}");
    assert!(ended.stdout.starts_with("nbd://127.0.0.1:") && ended.stdout.ends_with("/disk"), "{ended:?}");
}

#[test]
fn mistakes_are_told_before_anything_is_served() {
    let target = Target::serving(&["ram:1M"]);
    let complaint = |options: &[&str], code| {
        run([&["attach", "nbd", &target.address][..], options].concat()).complaint(code)
    };
    let nowhere = complaint(&[], 2);
    assert!(nowhere.contains("--socket PATH, --listen PORT, or --run COMMAND"), "{nowhere}");
    let port = complaint(&["--listen", "127.0.0.1:http"], 2);
    assert!(port.contains("--listen 127.0.0.1:http") && port.contains("write HOST:PORT"), "{port}");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("file");
    std::fs::write(&file, "precious").expect("a file");
    let in_the_way = complaint(&["--socket", file.to_str().expect("text")], 2);
    assert!(in_the_way.contains("it is no socket"), "{in_the_way}");
    assert_eq!(std::fs::read_to_string(&file).expect("still there"), "precious");
    let name = complaint(&["--name", &"n".repeat(4097), "--run", "true"], 2);
    assert!(name.contains("4097 bytes") && name.contains("4096 at most"), "{name}");
    let help = run(["attach", "nbd", "--help"]).text();
    for word in ["NVLANE_DEVICE", "--fast-io-fail", "--dhchap-secret", "--tls-key", "nbd-client", "qemu-img"]
    {
        assert!(help.contains(word), "{word}");
    }
    assert!(run(["completions", "bash"]).text().contains("--fast-io-fail"));
}
