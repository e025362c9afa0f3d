//! Memcached listeners that trust not everybody: TLS with certificates, users with passwords, allow lists. The other end of
//! TLS is OpenSSL.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use peer::certificates::{Authority, Certificate};
use reactor::EngineKind;
use serde_json::Value;
use subsystem::allow_list::AllowList;
use subsystem::config::{
    ClientCertificates, MemcachedAddress, MemcachedListenerConfig, SecretSource, ServerTlsConfig,
    TargetConfig, Threads,
};
use tempfile::TempDir;

use crate::setup::{PATIENCE, Rig, engines, options};

/// A target with a memcached listener, and the directory of its files.
struct Trusting {
    rig: Rig,
    directory: TempDir,
    authority: Authority,
}

fn file(path: &Path) -> SecretSource {
    SecretSource::File(path.to_owned())
}

fn tls(certificate: &Certificate) -> ServerTlsConfig {
    ServerTlsConfig {
        certificate: file(&certificate.certificate),
        key: file(&certificate.key),
        client_ca: None,
        clients: ClientCertificates::Required,
    }
}

/// A client, as a user of the target.
fn listener(config: &mut TargetConfig) -> &mut MemcachedListenerConfig {
    &mut config.memcached[0]
}

impl Trusting {
    /// `change` gets the listener, and the authority that issues certificates in the directory.
    fn new(engine: EngineKind, change: impl FnOnce(&mut TargetConfig, &Authority, &Path)) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Authority::new(directory.path(), "authority");
        let rig = Rig::with(engine, &["kv:ram:64M?item=16M"], |config| {
            config.memcached = vec![config.listeners[0].address.into()];
            config.audit.file = Some(directory.path().join("audit"));
            change(config, &authority, directory.path());
        });
        Self { rig, directory, authority }
    }

    fn with_tls(engine: EngineKind) -> Self {
        Self::new(engine, |config, authority, _| listener(config).tls = Some(tls(&authority.issue("target"))))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn plain(&self) -> TcpStream {
        let stream = TcpStream::connect(self.rig.memcached()).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream
    }

    fn openssl(&self, arguments: &[&str]) -> OpenSsl {
        let mut all = vec!["-CAfile".to_owned(), self.authority.certificate().display().to_string()];
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        OpenSsl::connect(&self.rig.memcached().to_string(), &all)
    }

    /// With a certificate of the client.
    fn openssl_as(&self, certificate: &Certificate) -> OpenSsl {
        let (certificate, key) =
            (certificate.certificate.display().to_string(), certificate.key.display().to_string());
        self.openssl(&["-cert", &certificate, "-key", &key])
    }

    fn complaints(&self, reason: &str) -> u64 {
        self.rig.state().connections.complaints.get(reason).copied().unwrap_or(0)
    }

    fn await_complaints(&self, reason: &str, count: u64) {
        let until = Instant::now() + PATIENCE;
        while self.complaints(reason) < count {
            assert!(Instant::now() < until, "{reason}: {:?}", self.rig.state().connections);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for a line of the audit log.
    fn await_line(&self, event: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let text = fs::read_to_string(self.path("audit")).expect("a log");
            let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
            if let Some(line) = lines.find(|line| line["event"] == event && is_it(line)) {
                return line;
            }
            assert!(Instant::now() < until, "no such {event}: {text}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A connection of `openssl s_client`.
struct OpenSsl {
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
}

impl OpenSsl {
    fn connect(address: &str, arguments: &[String]) -> Self {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-quiet", "-verify_return_error", "-connect", address]).args(arguments);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("openssl is installed");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("piped"));
        Self { child, input, output }
    }

    fn send(&mut self, bytes: &[u8]) {
        // Whether it was refused shows in the answer.
        let _ = self.input.as_mut().expect("open").write_all(bytes);
        let _ = self.input.as_mut().expect("open").flush();
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.output.read_exact(&mut bytes).expect("as many bytes");
        bytes
    }

    /// A request and its answer.
    fn talk(&mut self, request: &str, answer: &str) {
        self.send(request.as_bytes());
        assert_eq!(String::from_utf8_lossy(&self.take(answer.len())), answer, "{request}");
    }

    /// What is answered until the connection ends.
    fn rest(&mut self) -> String {
        let mut text = String::new();
        let _ = self.output.read_to_string(&mut text);
        text
    }
}

impl Drop for OpenSsl {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn talk(stream: &mut TcpStream, request: &str, answer: &str) {
    stream.write_all(request.as_bytes()).expect("sent");
    let mut bytes = vec![0; answer.len()];
    stream.read_exact(&mut bytes).unwrap_or_else(|error| panic!("{request:?}: {error}"));
    assert_eq!(String::from_utf8_lossy(&bytes), answer, "{request}");
}

/// The connection is closed, soon.
fn assert_closed(mut stream: TcpStream) {
    let mut rest = Vec::new();
    let ended = stream.read_to_end(&mut rest);
    let is_timeout = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
    assert!(!ended.as_ref().is_err_and(is_timeout), "it hangs");
    assert!(rest.is_empty(), "{rest:?}");
}

const SET: &str = "set a 0 0 3\r\nabc\r\n";
const GOT: &str = "VALUE a 0 3\r\nabc\r\nEND\r\n";

#[test]
fn clients_of_both_versions_of_tls_are_served() {
    for engine in engines() {
        let trusting = Trusting::with_tls(engine);
        let mut first = trusting.openssl(&["-tls1_3"]);
        first.talk(SET, "STORED\r\n");
        trusting.openssl(&["-tls1_2"]).talk("get a\r\n", GOT);
        let mut older = trusting.openssl(&["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"]);
        older.send(b"get a\r\n");
        assert_eq!(older.rest(), "");
        // Keys of other reactors, and many commands at once.
        let (mut requests, mut answers) = (String::new(), String::new());
        for number in 0..2000 {
            requests.push_str(&format!("set k{number} 0 0 5\r\nvalue\r\nget k{number}\r\n"));
            answers.push_str(&format!("STORED\r\nVALUE k{number} 0 5\r\nvalue\r\nEND\r\n"));
        }
        first.talk(&requests, &answers);
        let mut settings = trusting.openssl(&[]);
        settings.send(b"stats settings\r\nquit\r\n");
        let settings = settings.rest();
        for line in
            ["STAT ssl_enabled yes\r\n", "STAT ssl_verify_mode 0\r\n", "STAT auth_enabled_ascii no\r\n"]
        {
            assert!(settings.contains(line), "{settings}");
        }
    }
}

#[test]
fn long_values_pass_through_tls_unchanged() {
    for engine in engines() {
        let trusting = Trusting::with_tls(engine);
        for bytes in [1 << 10, 100 << 10, 3 << 20, 10 << 20] {
            let value: Vec<u8> =
                (0..bytes).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let mut client = trusting.openssl(&[]);
            client.send(format!("set long 0 0 {bytes}\r\n").as_bytes());
            client.send(&value);
            client.send(b"\r\n");
            assert_eq!(client.take(8), b"STORED\r\n");
            client.send(b"get long\r\nget long\r\n");
            for _ in 0..2 {
                let head = format!("VALUE long 0 {bytes}\r\n");
                assert_eq!(client.take(head.len()), head.as_bytes());
                assert!(client.take(value.len()) == value, "{bytes} bytes");
                assert_eq!(client.take(7), b"\r\nEND\r\n");
            }
        }
    }
}

/// hostile E15
#[test]
fn a_client_in_clear_is_closed_where_tls_is_required() {
    for engine in engines() {
        let trusting = Trusting::with_tls(engine);
        let mut stream = trusting.plain();
        stream.write_all(b"get a\r\n").expect("sent");
        assert_closed(stream);
        trusting.await_complaints("in cleartext, where TLS is required", 1);
        let refused = trusting.await_line("connection_refused", |_| true);
        assert_eq!(refused["reason"], "in cleartext, where TLS is required");
        // What looks like TLS at first, and is none.
        let mut stream = trusting.plain();
        stream.write_all(b"\x16\x03\x01\x00\x05hello").expect("sent");
        let mut alert = Vec::new();
        let _ = stream.read_to_end(&mut alert);
        assert_eq!(alert.first(), Some(&21), "an alert: {alert:?}");
        trusting.await_complaints("TLS failed", 1);
        trusting.openssl(&[]).talk(SET, "STORED\r\n");
    }
}

#[test]
fn a_client_without_a_required_certificate_is_refused() {
    let trusting = Trusting::new(EngineKind::Epoll, |config, authority, _| {
        let client_ca = Some(file(authority.certificate()));
        listener(config).tls = Some(ServerTlsConfig { client_ca, ..tls(&authority.issue("target")) });
    });
    let stranger = Authority::new(trusting.directory.path(), "stranger").issue("unknown");
    for mut client in [trusting.openssl(&[]), trusting.openssl(&["-tls1_2"]), trusting.openssl_as(&stranger)]
    {
        // A client that is served after all ends its connection itself.
        client.send(format!("{SET}quit\r\n").as_bytes());
        assert_eq!(client.rest(), "");
    }
    trusting.await_complaints("TLS failed", 3);
    trusting.openssl_as(&trusting.authority.issue("client-1")).talk(SET, "STORED\r\n");
    let line = trusting.await_line("memcached_authenticated", |_| true);
    assert_eq!(line["tls"]["certificate"], "O=Example, CN=client-1");
    assert_eq!((&line["tls"]["version"], &line["user"]), (&"TLS 1.3".into(), &Value::Null));
    assert_eq!(line["listener"], trusting.rig.memcached().to_string());
    let state = &trusting.rig.state_of_memcached()[0];
    assert_eq!(state.client_certificates.as_deref(), Some("required"));
    assert_eq!(state.certificate_subject.as_deref(), Some("O=Example, CN=target"));
}

#[test]
fn an_optional_certificate_is_verified_if_it_is_shown() {
    let trusting = Trusting::new(EngineKind::Epoll, |config, authority, _| {
        let client_ca = Some(file(authority.certificate()));
        let clients = ClientCertificates::Optional;
        listener(config).tls =
            Some(ServerTlsConfig { client_ca, clients, ..tls(&authority.issue("target")) });
    });
    trusting.openssl(&[]).talk(SET, "STORED\r\n");
    trusting.openssl_as(&trusting.authority.issue("client-1")).talk("get a\r\n", GOT);
    let stranger = Authority::new(trusting.directory.path(), "stranger").issue("unknown");
    let mut client = trusting.openssl_as(&stranger);
    client.send(SET.as_bytes());
    assert_eq!(client.rest(), "");
}

#[test]
fn a_reload_replaces_certificates_and_keeps_connections() {
    for engine in engines() {
        let mut trusting = Trusting::with_tls(engine);
        let mut before = trusting.openssl(&[]);
        before.talk(SET, "STORED\r\n");
        let other = Authority::new(trusting.directory.path(), "other");
        // Of another authority, in the place of the first one.
        let renewed = other.issue("renewed");
        fs::copy(&renewed.certificate, trusting.path("target.pem")).expect("copied");
        let report = trusting.rig.try_reload(|_| {});
        assert!(
            report.to_string().contains("the private key does not belong to the certificate"),
            "{report}"
        );
        trusting.openssl(&[]).talk("get a\r\n", GOT);
        fs::copy(&renewed.key, trusting.path("target.key")).expect("copied");
        let report = trusting.rig.try_reload(|_| {});
        assert!(
            report.is_complete() && report.to_string().contains("change the certificates of"),
            "{report}"
        );
        before.talk("get a\r\n", GOT);
        let mut refusing = trusting.openssl(&[]);
        refusing.send(b"get a\r\n");
        assert_eq!(refusing.rest(), "", "it does not trust the new certificate");
        let arguments = ["-CAfile".to_owned(), other.certificate().display().to_string()];
        OpenSsl::connect(&trusting.rig.memcached().to_string(), &arguments).talk("get a\r\n", GOT);
        // A listener without TLS from now on.
        trusting.rig.reload(|config| listener(config).tls = None);
        talk(&mut trusting.plain(), "get a\r\n", GOT);
        before.talk("get a\r\n", GOT);
    }
}

/// Each port of a partition has the certificate of its listener; a reload replaces it on all of them.
#[test]
fn ports_of_partitions_have_tls() {
    for engine in engines() {
        let mut trusting = Trusting::new(engine, |config, authority, _| {
            config.reactors.threads = Threads::Count(2);
            config.memcached = vec![MemcachedAddress::Partitions(config.listeners[0].address).into()];
            listener(config).tls = Some(tls(&authority.issue("target")));
        });
        let ports: Vec<String> =
            trusting.rig.state_of_memcached().iter().map(|port| port.address.clone()).collect();
        assert_eq!(ports.len(), 2);
        let connect = |port: &str, authority: &Authority| {
            OpenSsl::connect(port, &["-CAfile".to_owned(), authority.certificate().display().to_string()])
        };
        // More than one record of TLS in each direction.
        let long = "v".repeat(100_000);
        for (number, port) in ports.iter().enumerate() {
            let mut client = connect(port, &trusting.authority);
            client.talk(&format!("set a 0 0 1\r\n{number}\r\n"), "STORED\r\n");
            client.talk(&format!("set long 0 0 100000\r\n{long}\r\n"), "STORED\r\n");
        }
        let get = |client: &mut OpenSsl, number: usize| {
            client.talk("get a\r\n", &format!("VALUE a 0 1\r\n{number}\r\nEND\r\n"));
            client.talk("get long\r\n", &format!("VALUE long 0 100000\r\n{long}\r\nEND\r\n"));
        };
        let mut before: Vec<OpenSsl> = ports.iter().map(|port| connect(port, &trusting.authority)).collect();
        before.iter_mut().enumerate().for_each(|(number, client)| get(client, number));
        let other = Authority::new(trusting.directory.path(), "other");
        let renewed = other.issue("renewed");
        fs::copy(&renewed.certificate, trusting.path("target.pem")).expect("copied");
        fs::copy(&renewed.key, trusting.path("target.key")).expect("copied");
        trusting.rig.reload(|_| {});
        for (number, port) in ports.iter().enumerate() {
            get(&mut connect(port, &other), number);
            let mut refusing = connect(port, &trusting.authority);
            refusing.send(b"get a\r\n");
            assert_eq!(refusing.rest(), "", "it does not trust the new certificate");
        }
        before.iter_mut().enumerate().for_each(|(number, client)| get(client, number));
    }
}

#[test]
fn a_client_authenticates_before_anything_else() {
    for engine in engines() {
        let mut trusting = Trusting::new(engine, |config, _, directory| {
            fs::write(directory.join("users"), "web:secret one\nother:two\n").expect("a file");
            listener(config).users = Some(file(&directory.join("users")));
        });
        let mut client = trusting.plain();
        talk(&mut client, "get a\r\n", "CLIENT_ERROR unauthenticated\r\n");
        talk(&mut client, "set auth 0 0 7\r\nweb two\r\n", "CLIENT_ERROR authentication failure\r\n");
        let failed = trusting.await_line("memcached_authentication_failed", |_| true);
        assert_eq!((&failed["user"], &failed["tls"]), (&"web".into(), &Value::Null));
        talk(&mut client, "set auth 0 0 8\r\nnone two\r\n", "CLIENT_ERROR authentication failure\r\n");
        trusting.await_line("memcached_authentication_failed", |line| line["user"].is_null());
        talk(&mut client, "set auth 0 0 14\r\nweb secret one\r\nget a\r\n", "STORED\r\nEND\r\n");
        talk(&mut client, SET, "STORED\r\n");
        let line = trusting.await_line("memcached_authenticated", |_| true);
        assert_eq!(line["user"], "web");
        client.write_all(b"stats\r\nstats settings\r\nquit\r\n").expect("sent");
        let mut stats = String::new();
        client.read_to_string(&mut stats).expect("text");
        for line in ["auth_cmds 3", "auth_errors 2", "auth_enabled_ascii yes", "ssl_enabled no"] {
            assert!(stats.contains(&format!("STAT {line}\r\n")), "{stats}");
        }
        trusting.await_complaints("memcached client not authenticated", 2);
        let text = fs::read_to_string(trusting.path("audit")).expect("a log");
        assert!(!text.contains("secret"), "{text}");
        // The binary protocol is off.
        let mut binary = trusting.plain();
        binary.write_all(&[0x80, 0x0b, 0, 0]).expect("sent");
        assert_closed(binary);
        // Users change; who has authenticated stays.
        let mut before = trusting.plain();
        talk(&mut before, "set auth 0 0 9\r\nother two\r\n", "STORED\r\n");
        fs::write(trusting.path("users"), "web:three\n").expect("a file");
        let report = trusting.rig.try_reload(|_| {});
        assert!(report.is_complete() && report.to_string().contains("change the users of"), "{report}");
        talk(&mut before, "get a\r\n", GOT);
        let mut after = trusting.plain();
        talk(&mut after, "set auth 0 0 9\r\nother two\r\n", "CLIENT_ERROR authentication failure\r\n");
        talk(&mut after, "set auth 0 0 9\r\nweb three\r\n", "STORED\r\n");
        fs::write(trusting.path("users"), "web\n").expect("a file");
        let report = trusting.rig.try_reload(|_| {}).to_string();
        assert!(
            report.starts_with("nothing changed: ") && report.contains("line 1: expected user:password"),
            "{report}"
        );
        talk(&mut after, "get a\r\n", GOT);
    }
}

#[test]
fn users_and_certificates_are_asked_for_together() {
    let trusting = Trusting::new(EngineKind::Epoll, |config, authority, directory| {
        fs::write(directory.join("users"), "web:secret\n").expect("a file");
        listener(config).users = Some(file(&directory.join("users")));
        let client_ca = Some(file(authority.certificate()));
        listener(config).tls = Some(ServerTlsConfig { client_ca, ..tls(&authority.issue("target")) });
    });
    let mut client = trusting.openssl_as(&trusting.authority.issue("client-1"));
    client.talk("get a\r\n", "CLIENT_ERROR unauthenticated\r\n");
    client.talk("set auth 0 0 10\r\nweb secret\r\nget a\r\n", "STORED\r\nEND\r\n");
    let line = trusting.await_line("memcached_authenticated", |_| true);
    assert_eq!(
        (&line["user"], &line["tls"]["certificate"]),
        (&"web".into(), &"O=Example, CN=client-1".into())
    );
}

#[test]
fn a_connection_from_an_address_that_is_not_allowed_is_closed() {
    let only = |text: &str| AllowList::Only(vec![text.parse().expect("a prefix")]);
    for engine in engines() {
        let mut trusting = Trusting::new(engine, |config, _, _| {
            listener(config).allow = only("127.0.0.0/8");
            config.listeners[0].allow = only("127.0.0.0/8");
        });
        let mut before = trusting.plain();
        talk(&mut before, SET, "STORED\r\n");
        drop(trusting.rig.connect(options()));
        trusting.rig.reload(|config| listener(config).allow = only("192.0.2.0/24"));
        assert_closed(trusting.plain());
        trusting.await_complaints("address not in the allow list of the listener", 1);
        let line = trusting.await_line("connection_refused", |_| true);
        assert_eq!(line["reason"], "address not in the allow list of the listener");
        assert!(line["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{line}");
        assert_eq!(trusting.rig.state_of_memcached()[0].allow, Some(vec!["192.0.2.0/24".to_owned()]));
        talk(&mut before, "get a\r\n", GOT);
        // Hosts are let in as before, until their list changes.
        drop(trusting.rig.connect(options()));
        trusting.rig.reload(|config| config.listeners[0].allow = only("192.0.2.0/24"));
        let stream = TcpStream::connect(trusting.rig.socket_address()).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        assert_closed(stream);
        trusting.await_complaints("address not in the allow list of the listener", 2);
        trusting.rig.reload(|config| {
            listener(config).allow = AllowList::Any;
            config.listeners[0].allow = AllowList::Any;
        });
        talk(&mut trusting.plain(), "get a\r\n", GOT);
        drop(trusting.rig.connect(options()));
    }
}

#[test]
fn connections_that_are_not_established_are_bounded_in_number_and_time() {
    for engine in engines() {
        let trusting = Trusting::new(engine, |config, authority, directory| {
            fs::write(directory.join("users"), "web:secret\n").expect("a file");
            listener(config).users = Some(file(&directory.join("users")));
            listener(config).tls = Some(tls(&authority.issue("target")));
            config.limits.unconnected_count_max = 16;
            config.timeouts.connect_ms = 1000;
        });
        let idle: Vec<TcpStream> = (0..60).map(|_| trusting.plain()).collect();
        trusting
            .await_complaints("made room: too many memcached clients without TLS or authentication", 60 - 18);
        let mut client = trusting.openssl(&[]);
        client.talk("set auth 0 0 10\r\nweb secret\r\nget a\r\n", "STORED\r\nEND\r\n");
        // TLS is set up, but the client does not authenticate.
        let mut late = trusting.openssl(&[]);
        late.talk("get a\r\n", "CLIENT_ERROR unauthenticated\r\n");
        for stream in idle {
            assert_closed(stream);
        }
        assert_eq!(late.rest(), "");
        trusting.await_complaints("memcached client without TLS or authentication in time", 1);
        client.talk(SET, "STORED\r\n");
    }
}
