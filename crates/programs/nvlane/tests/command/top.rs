//! `nvlane top`: in a terminal, for scripts, and where there is no target.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZero;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use host::{Address, Association, BlockingNamespace, HostIdentity, Options};
use peer::port::free_address;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use wire::id::Nsid;

use crate::support::{nvlane, program, run};

const PATIENCE: Duration = Duration::from_secs(60);
const NQN: &str = "nqn.2026-01.io.nvlane:watched";

/// As a hostile peer calls itself.
const HOST: &str = "nqn.2026-01.io.nvlane:<b>$(reboot)";

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "never: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A target with a control socket and a metrics port, which can be started again at the same places.
struct Watched {
    directory: TempDir,
    process: Option<Child>,
    listen: SocketAddr,
    metrics: SocketAddr,
}

impl Watched {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let [listen, metrics] = [(); 2].map(|()| free_address().expect("a free port"));
        let mut watched = Self { directory, process: None, listen, metrics };
        watched.begin();
        watched
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("control.sock")
    }

    fn begin(&mut self) {
        let mut command = nvlane();
        command.args(["target", "--engine", "epoll", "--cores", "0", "--nqn", NQN, "--listen"]);
        command.arg(self.listen.to_string()).args([
            "--namespace",
            "ram:4M",
            "--namespace",
            "null:1G",
            "--control",
        ]);
        command.arg(self.socket()).args(["--metrics", &self.metrics.to_string()]);
        self.process = Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"));
        let (socket, listen) = (self.socket(), self.listen);
        until("the target listens", || {
            UnixStream::connect(&socket).is_ok() && TcpStream::connect(listen).is_ok()
        });
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    fn connect(&self) -> Association {
        let address: Address = format!("{}/{NQN}", self.listen).parse().expect("an address");
        let identity = HostIdentity { nqn: HOST.parse().expect("a name"), ..HostIdentity::of_this_machine() };
        let mut options = Options::default();
        options.identity = Some(identity);
        Association::connect(&address, options).expect("it connects")
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.kill();
    }
}

fn cells(count: u16) -> NonZero<u16> {
    NonZero::new(count).expect("a size")
}

/// A program in a terminal of a size, made by script(1).
struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<vt100::Parser>>,
    tty: PathBuf,
}

impl Terminal {
    fn start(directory: &Path, rows: u16, columns: u16, line: &str) -> Self {
        let tty = directory.join("tty");
        let line = format!("stty rows {rows} cols {columns}; tty > {}; {line}", tty.display());
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", &line, "/dev/null"]).env("TERM", "xterm");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("script, of bsdutils");
        let screen = Arc::new(Mutex::new(vt100::Parser::new(cells(rows), cells(columns), 0)));
        let (shown, mut output) = (Arc::clone(&screen), child.stdout.take().expect("a pipe"));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                shown.lock().expect("no panic").process(&bytes[..count]);
            }
        });
        let keys = child.stdin.take().expect("a pipe");
        Self { child, keys, screen, tty }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).and_then(|()| self.keys.flush()).expect("it runs");
    }

    fn text(&self) -> String {
        self.screen.lock().expect("no panic").screen().contents()
    }

    fn shows(&self, what: &str) {
        let end = Instant::now() + PATIENCE;
        while !self.text().contains(what) {
            assert!(Instant::now() < end, "never {what:?}: {}", self.text());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn resize(&self, rows: u16, columns: u16) {
        self.screen.lock().expect("no panic").screen_mut().set_size(cells(rows), cells(columns));
        let tty = fs::read_to_string(&self.tty).expect("its name");
        let mut stty = Command::new("stty");
        stty.args(["-F", tty.trim(), "rows", &rows.to_string(), "cols", &columns.to_string()]);
        assert!(stty.status().expect("stty").success());
    }

    /// The rate of commands in the first row of the table.
    fn rate(&self, row: &str) -> Option<String> {
        let text = self.text();
        let line = text.lines().find(|line| line.contains(row) && !line.contains("connections:"))?.to_owned();
        Some(line)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads blocks until it is told to end.
fn read_on(association: &Association) -> impl FnMut() + use<> {
    let namespace = association.namespace(Nsid::new(1)).expect("namespace 1");
    let mut namespace = BlockingNamespace::new(association, namespace).expect("a lane");
    move || (0..100).for_each(|_| namespace.read_at(&mut [0; 4096], 0).expect("read"))
}

#[test]
fn a_person_watches_sorts_and_resizes() {
    let mut watched = Watched::start();
    let association = watched.connect();
    let mut read = read_on(&association);
    let line = format!(
        "{} top -i 0.2 {}; echo code $?; stty -a | grep -ow -e -icanon -e icanon",
        program(),
        watched.socket().display()
    );
    let mut terminal = Terminal::start(watched.directory.path(), 24, 80, &line);
    terminal.shows(" 1 Namespaces: 2 ");
    // Rates of commands, where there are some.
    let end = Instant::now() + PATIENCE;
    let is_busy = |terminal: &Terminal| {
        terminal.rate("nvlane:watched").is_some_and(|line| line.contains("KiB") || line.contains("MiB"))
    };
    while !is_busy(&terminal) {
        read();
        assert!(Instant::now() < end, "no rates: {}", terminal.text());
    }
    let text = terminal.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 24, "{text}");
    assert!(lines[0].starts_with("nvlane ") && lines[0].contains("control.sock"), "{text}");
    for (at, name) in
        ["commands", "data", "p50", "p99", "batch", "doorbell", "reactors"].into_iter().enumerate()
    {
        assert!(lines[at + 1].starts_with(name), "{text}");
    }
    assert!(lines[9].contains("NSID  SUBSYSTEM") && lines[9].contains("CMDS/s▼"), "{text}");
    assert!(lines[23].starts_with("q quit") && lines[23].ends_with("space pause"), "{text}");
    // By a key and by its number, tables; by arrows, the order.
    terminal.press("\t");
    terminal.shows("HOST");
    terminal.shows("<b>$(reboot)");
    terminal.press("3");
    terminal.shows("DOORBELL");
    terminal.press("4");
    terminal.shows("REACTOR▲");
    terminal.press("r");
    terminal.shows("REACTOR▼");
    terminal.press("\u{1b}[C");
    terminal.shows("LANES▼");
    terminal.press("1");
    assert!(!terminal.text().contains("STORAGE"), "{}", terminal.text());
    terminal.resize(60, 200);
    terminal.shows("STORAGE");
    let wide = terminal.text();
    assert_eq!(wide.lines().count(), 60, "{wide}");
    assert!(wide.lines().nth(59).expect("60 lines").starts_with("q quit"), "{wide}");
    terminal.resize(6, 20);
    terminal.shows("NSID");
    terminal.resize(24, 80);
    terminal.shows("q quit");

    // The target is killed, and comes back as another process.
    drop(read);
    watched.kill();
    terminal.shows("trying again");
    watched.begin();
    let association = watched.connect();
    terminal.press("2");
    terminal.shows(" 2 Hosts: 1 ");
    drop(association);
    terminal.press("q");
    terminal.shows("code 0");
    terminal.shows("icanon");
    until("it has ended", || !terminal.screen.lock().expect("no panic").screen().alternate_screen());
    let text = terminal.text();
    assert!(!terminal.screen.lock().expect("no panic").screen().hide_cursor());
    let is_set = |mode: &str| text.split_whitespace().any(|word| word == mode);
    assert!(is_set("icanon"), "{text}");
}

#[test]
fn a_signal_gives_the_terminal_back() {
    let watched = Watched::start();
    let line = format!(
        "{} top {} & top=$!; echo $top > {}; fg >/dev/null; wait $top; echo code $?; stty -a | grep -ow -e -icanon -e icanon",
        program(),
        watched.metrics,
        watched.directory.path().join("pid").display()
    );
    let terminal = Terminal::start(watched.directory.path(), 24, 80, &format!("set -m; {line}"));
    terminal.shows("q quit");
    let pid = fs::read_to_string(watched.directory.path().join("pid")).expect("its number");
    let pid = Pid::from_raw(pid.trim().parse().expect("a number")).expect("a process");
    kill_process(pid, Signal::TERM).expect("it runs");
    terminal.shows("code ");
    terminal.shows("icanon");
    let screen = terminal.screen.lock().expect("no panic");
    let text = screen.screen().contents();
    assert!(!screen.screen().alternate_screen() && !screen.screen().hide_cursor(), "{text}");
    assert!(!text.contains("-icanon"), "{text}");
}

#[test]
fn a_script_gets_rates() {
    let watched = Watched::start();
    let association = watched.connect();
    let mut read = read_on(&association);
    let [socket, metrics] = [watched.socket().display().to_string(), watched.metrics.to_string()];
    for place in [&socket, &metrics] {
        let asking = nvlane()
            .args(["top", place, "-i", "1", "-o", "json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let end = Instant::now() + Duration::from_millis(1500);
        while Instant::now() < end {
            read();
        }
        let output = asking.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{place}: {output:?}");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let rate = json["reads_per_s"].as_f64().expect("a rate");
        assert!(rate > 10.0, "{place}: {json}");
        assert_eq!((&json["namespaces_count"], &json["hosts_count"]), (&2.into(), &1.into()), "{json}");
        let first = &json["namespaces"][0];
        assert_eq!((&first["nsid"], &first["state"]), (&1.into(), &"ok".into()), "the busiest: {json}");
        assert!(first["commands_per_s"].as_f64().is_some_and(|rate| rate > 10.0), "{json}");
        let lane = &json["lanes"][0];
        assert_eq!((&lane["queue"], &lane["subsystem"]), (&1.into(), &NQN.into()), "{json}");
        assert!(lane["host"].as_str().is_some_and(|host| !host.contains('\u{1b}')), "{json}");
    }
    let text = run(["top", "--control", &socket, "--once", "-i", "0.1"]).text();
    for title in ["Namespaces: 2", "Hosts: 1", "Lanes: 2", "Reactors: 1", "SUBSYSTEM", "p99"] {
        assert!(text.contains(title), "{title}: {text}");
    }
}

#[test]
fn what_is_no_target_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let complaint = |place: &str, code: i32| run(["top", place, "--once"]).complaint(code);
    let why = complaint(&path("none"), 4);
    assert!(why.contains("no target serves it") && why.contains("--control"), "{why}");
    fs::write(path("file"), "").expect("written");
    let why = complaint(&path("file"), 4);
    assert!(why.contains("cannot connect"), "{why}");
    let strange = UnixListener::bind(path("strange")).expect("a socket");
    thread::spawn(move || {
        for mut connection in strange.incoming().flatten() {
            let _ = connection.write_all(b"220 mail.example ESMTP\n");
        }
    });
    let why = complaint(&path("strange"), 4);
    assert!(why.contains("is this the control socket of a target?"), "{why}");
    let free = free_address().expect("a free port").to_string();
    let why = complaint(&free, 4);
    assert!(why.contains("no target has its metrics there"), "{why}");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            let _ = connection.read(&mut [0; 1024]);
            let _ = connection.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope");
        }
    });
    let why = complaint(&address, 4);
    assert!(why.contains("not that of a target's metrics port"), "{why}");
    let why = complaint("what is this", 2);
    assert!(why.contains("ADDR:PORT"), "{why}");
    let why = run(["top", "-i", "0"]).complaint(2);
    assert!(why.contains("0.1 to 3600"), "{why}");
}
