//! The HTTP server: one thread, few connections, each with one request and deadlines.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use subsystem::config::LivePage;

use crate::http::{self, Answer, Format, REQUEST_BYTES_MAX, Received, Request, Resource};
use crate::live::Live;
use crate::live_page;
use crate::render::{Renderer, Scrape, plain_text};

/// Where the server gets its answers from.
pub trait Source: Send + 'static {
    /// Asks the target for its state.
    ///
    /// # Errors
    /// Why there is none: the reactors do not answer, or the target has not started or is ending.
    fn scrape(&mut self) -> Result<Scrape, String>;

    /// Asks the target for the data of the live page.
    ///
    /// # Errors
    /// As for [`Self::scrape`].
    fn live(&mut self) -> Result<Live, String>;

    /// Who sees the live page and its data.
    fn live_page(&self) -> LivePage;

    /// Whether hosts can connect.
    ///
    /// # Errors
    /// Why they cannot.
    fn readiness(&self) -> Result<(), String>;

    /// Whether the target is starting or ending: then it has no reactors to ask, and is not to be restarted for that.
    fn is_between(&self) -> bool;
}

/// Connections at the same time. One more closes the oldest that has not sent a request.
const CONNECTION_COUNT_MAX: usize = 32;

/// Connections accepted before others are served.
const ACCEPT_COUNT: usize = 16;

/// Limits of one connection, from its beginning and from the beginning of its answer.
const REQUEST_TIME: Duration = Duration::from_secs(5);
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// How long, and how many bytes of, what a client sends after its request is read, so that the answer is not lost by a
/// reset.
const DRAIN_TIME: Duration = Duration::from_secs(1);
const DRAIN_BYTES_MAX: usize = 64 << 10;

/// A scrape answers requests for this long, so that clients cannot make reactors answer more often.
const SCRAPE_AGE_MAX: Duration = Duration::from_millis(50);

const PLAIN: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

const INDEX: &str = "nvlane target: /metrics, /healthz, /readyz\n";

/// What a client is told that does not see the live page.
const NO_LIVE_PAGE: &str = "the live page is off: start the target with --live-page loopback or any";
const NOT_FROM_HERE: &str = "the live page is for users of the target's machine: ssh -L 9420:ADDR:PORT to it, and open \
                             http://localhost:9420/; or start the target with --live-page any";

/// A running server. Ends when it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on this address, and serves from a thread of its own.
    ///
    /// # Errors
    /// If it cannot listen.
    pub fn start(address: SocketAddr, source: impl Source) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let stopped = Arc::clone(&stop);
        let work = move || {
            // Reactors go first where cores are short.
            if let Err(error) = linux::lower_priority() {
                tracing::debug!(%error, "metrics thread keeps its priority");
            }
            let answers = Answers { source, renderer: Renderer::default(), last: None, last_live: None };
            let mut serving = Serving { listener, answers, connections: Vec::new(), serial: 0 };
            if let Err(error) = serving.run(&stopped) {
                tracing::error!(%error, "metrics are no longer served");
            }
        };
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(work)?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// The bound address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Serving<S> {
    listener: TcpListener,
    answers: Answers<S>,
    connections: Vec<Connection>,
    /// Connections accepted.
    serial: u64,
}

impl<S: Source> Serving<S> {
    fn run(&mut self, stop: &OwnedFd) -> io::Result<()> {
        loop {
            let now = Instant::now();
            self.connections.retain_mut(|connection| connection.is_in_time(now));
            let ready = self.wait(stop, now)?;
            let Some(ready) = ready else { return Ok(()) };
            // Requests that are there go before connections that may displace them.
            for (connection, is_ready) in self.connections.iter_mut().zip(ready) {
                if is_ready {
                    connection.go_on();
                }
            }
            self.accept();
            for connection in &mut self.connections {
                if let Phase::Asking(request) = connection.phase {
                    let is_local = connection.is_local();
                    connection.answer(self.answers.to(request, is_local));
                    connection.go_on();
                }
            }
            self.connections.retain(|connection| !matches!(connection.phase, Phase::Over));
        }
    }

    /// Waits for events. Returns which connections have some; `None` if the server is to stop.
    fn wait(&self, stop: &OwnedFd, now: Instant) -> io::Result<Option<Vec<bool>>> {
        let mut events = vec![PollFd::new(stop, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        let of_connections = self.connections.iter().map(|connection| {
            let writes = matches!(connection.phase, Phase::Answering { .. });
            PollFd::from_borrowed_fd(
                connection.stream.as_fd(),
                if writes { PollFlags::OUT } else { PollFlags::IN },
            )
        });
        events.extend(of_connections);
        let until = self.connections.iter().map(|connection| connection.until).min();
        let wait = until.map(|until| until.saturating_duration_since(now));
        let wait = wait.map(|wait| Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        });
        match poll(&mut events, wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = events.iter().map(|event| !event.revents().is_empty());
        let is_stopped = ready.next() == Some(true);
        Ok((!is_stopped).then(|| ready.skip(1).collect()))
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPT_COUNT {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    // One that its client has given up, or too many open files: the next turn tries again.
                    tracing::debug!(%error, "metrics connection not accepted");
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.connections.len() >= CONNECTION_COUNT_MAX && !self.make_room() {
                // All of them are being answered, which ends soon.
                continue;
            }
            self.serial += 1;
            let mut connection = Connection::new(stream, self.serial);
            // Most requests are there at once.
            connection.go_on();
            self.connections.push(connection);
        }
    }

    /// Closes the oldest connection that waits for its client. Returns whether there was one.
    fn make_room(&mut self) -> bool {
        let waits = |connection: &&Connection| {
            matches!(connection.phase, Phase::Reading(_) | Phase::Draining(_) | Phase::Over)
        };
        let oldest = self.connections.iter().filter(waits).map(|connection| connection.serial).min();
        self.connections.retain(|connection| Some(connection.serial) != oldest);
        oldest.is_some()
    }
}

/// A connection. It has one request.
struct Connection {
    stream: TcpStream,
    serial: u64,
    phase: Phase,
    /// When it is closed.
    until: Instant,
}

/// ```text
/// Reading ─▶ Asking ─▶ Answering ─▶ Draining ─▶ Over
/// ```
enum Phase {
    /// These bytes of its request have arrived.
    Reading(Vec<u8>),
    /// Its request has no answer yet.
    Asking(Request),
    /// The answer is sent.
    Answering { answer: Reply, sent: usize },
    /// Everything is sent, and this many more bytes are read.
    Draining(usize),
    /// To be closed.
    Over,
}

/// An answer.
struct Reply {
    head: String,
    body: Arc<str>,
}

impl Connection {
    fn new(stream: TcpStream, serial: u64) -> Self {
        let phase = Phase::Reading(Vec::new());
        Self { stream, serial, phase, until: Instant::now() + REQUEST_TIME }
    }

    /// Whether the client is on this machine.
    fn is_local(&self) -> bool {
        let (Ok(peer), Ok(own)) = (self.stream.peer_addr(), self.stream.local_addr()) else { return false };
        peer.ip().to_canonical().is_loopback() || peer.ip() == own.ip()
    }

    /// Whether it stays open. A request that is late gets an answer.
    fn is_in_time(&mut self, now: Instant) -> bool {
        if now < self.until {
            return true;
        }
        if let Phase::Reading(received) = &self.phase
            && !received.is_empty()
        {
            self.answer(refusal(Answer::Timeout));
            self.go_on();
            return !matches!(self.phase, Phase::Over);
        }
        false
    }

    fn answer(&mut self, answer: Reply) {
        self.phase = Phase::Answering { answer, sent: 0 };
        self.until = Instant::now() + ANSWER_TIME;
    }

    /// Reads and writes what is possible.
    fn go_on(&mut self) {
        let result = match &mut self.phase {
            Phase::Reading(_) => self.read(),
            Phase::Asking(_) | Phase::Over => Ok(()),
            Phase::Answering { .. } => self.write(),
            Phase::Draining(_) => self.drain(),
        };
        match result {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.phase = Phase::Over,
            Ok(()) => {}
        }
    }

    fn read(&mut self) -> io::Result<()> {
        while let Phase::Reading(received) = &mut self.phase {
            let mut bytes = [0; 2048];
            let room = (REQUEST_BYTES_MAX - received.len()).min(bytes.len());
            let count = self.stream.read(&mut bytes[..room])?;
            if count == 0 {
                self.phase = Phase::Over;
                return Ok(());
            }
            received.extend_from_slice(&bytes[..count]);
            match http::read(received) {
                Received::Part => {}
                Received::Request(request) => self.phase = Phase::Asking(request),
                Received::Refused(answer) => {
                    self.answer(refusal(answer));
                    return self.write();
                }
            }
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        let Phase::Answering { answer, sent } = &mut self.phase else { return Ok(()) };
        let Reply { head, body } = &*answer;
        while *sent < head.len() + body.len() {
            let rest = match head.as_bytes().get(*sent..) {
                Some(rest) if !rest.is_empty() => rest,
                _ => &body.as_bytes()[*sent - head.len()..],
            };
            *sent += self.stream.write(rest)?;
        }
        self.stream.shutdown(Shutdown::Write)?;
        self.phase = Phase::Draining(DRAIN_BYTES_MAX);
        self.until = Instant::now() + DRAIN_TIME;
        self.drain()
    }

    fn drain(&mut self) -> io::Result<()> {
        while let Phase::Draining(left) = &mut self.phase {
            let count = self.stream.read(&mut [0; 2048])?;
            *left = left.saturating_sub(count);
            if count == 0 || *left == 0 {
                self.phase = Phase::Over;
            }
        }
        Ok(())
    }
}

fn refusal(answer: Answer) -> Reply {
    plain(answer, false, answer.status())
}

fn plain(answer: Answer, is_head: bool, text: &str) -> Reply {
    let body = format!("{}\n", text.trim_end());
    let head = answer.head(PLAIN, body.len());
    Reply { head, body: if is_head { "".into() } else { body.into() } }
}

fn page(is_head: bool) -> Reply {
    Reply { head: live_page::head(), body: if is_head { "" } else { live_page::PAGE }.into() }
}

struct Answers<S> {
    source: S,
    renderer: Renderer,
    /// The last scrape, and when it was made.
    last: Option<(Instant, Result<Texts, String>)>,
    /// The last data of the live page, and when it was made.
    last_live: Option<(Instant, Result<Arc<str>, String>)>,
}

/// A scrape as text.
#[derive(Clone)]
struct Texts {
    open_metrics: Arc<str>,
    /// Made once it is asked for.
    plain: Option<Arc<str>>,
}

impl<S: Source> Answers<S> {
    /// The answer to a client, which may be on this machine.
    fn to(&mut self, request: Request, is_local: bool) -> Reply {
        let Request { resource, is_head, format, names_address } = request;
        let no_live_page = match self.source.live_page() {
            LivePage::Any => None,
            LivePage::Loopback if is_local && names_address => None,
            LivePage::Loopback => Some(NOT_FROM_HERE),
            LivePage::Off => Some(NO_LIVE_PAGE),
        };
        let outcome = match resource {
            Resource::Index => {
                let Some(why) = no_live_page else { return page(is_head) };
                return plain(Answer::Ok, is_head, &format!("{INDEX}{why}"));
            }
            Resource::Live => {
                if let Some(why) = no_live_page {
                    return plain(Answer::Forbidden, is_head, why);
                }
                match self.live() {
                    Ok(body) => {
                        let head = Answer::Ok.head_with(JSON, body.len(), live_page::SAME_ORIGIN);
                        return Reply { head, body: if is_head { "".into() } else { body } };
                    }
                    Err(why) => Err(why),
                }
            }
            Resource::Readiness => self.source.readiness(),
            Resource::Health if self.source.is_between() => Ok(()),
            Resource::Health => self.scrape().map(drop),
            Resource::Metrics => match self.text(format) {
                Ok(body) => {
                    let head = Answer::Ok.head(format.content_type(), body.len());
                    return Reply { head, body: if is_head { "".into() } else { body } };
                }
                Err(why) => Err(why),
            },
        };
        match outcome {
            Ok(()) => plain(Answer::Ok, is_head, "ok"),
            Err(why) => plain(Answer::Unavailable, is_head, &why),
        }
    }

    fn text(&mut self, format: Format) -> Result<Arc<str>, String> {
        let texts = self.scrape()?;
        Ok(match format {
            Format::OpenMetrics => Arc::clone(&texts.open_metrics),
            Format::Text => {
                let make = || plain_text(&texts.open_metrics).into();
                Arc::clone(texts.plain.get_or_insert_with(make))
            }
        })
    }

    /// The last data of the live page, unless it is too old.
    fn live(&mut self) -> Result<Arc<str>, String> {
        let is_fresh = |(at, _): &(Instant, _)| at.elapsed() < SCRAPE_AGE_MAX;
        if !self.last_live.as_ref().is_some_and(is_fresh) {
            let live = self.source.live();
            let text = live.and_then(|live| serde_json::to_string(&live).map_err(|error| error.to_string()));
            self.last_live = Some((Instant::now(), text.map(Into::into)));
        }
        let (_, last) = self.last_live.as_ref().expect("set above");
        last.clone()
    }

    /// The last scrape, unless it is too old.
    fn scrape(&mut self) -> Result<&mut Texts, String> {
        let is_fresh = |(at, _): &(Instant, _)| at.elapsed() < SCRAPE_AGE_MAX;
        if !self.last.as_ref().is_some_and(is_fresh) {
            let scrape = self.source.scrape();
            let texts = scrape
                .map(|scrape| Texts { open_metrics: self.renderer.render(&scrape).into(), plain: None });
            self.last = Some((Instant::now(), texts));
        }
        let (_, last) = self.last.as_mut().expect("set above");
        last.as_mut().map_err(|why| why.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    /// Counts its scrapes.
    #[derive(Default)]
    struct Counting {
        count: Arc<AtomicUsize>,
        is_down: Arc<AtomicBool>,
        live_page: LivePage,
    }

    impl Source for Counting {
        fn scrape(&mut self) -> Result<Scrape, String> {
            self.count.fetch_add(1, Ordering::SeqCst);
            if self.is_down.load(Ordering::SeqCst) {
                return Err("no answer from reactor 1".into());
            }
            let (target, process) = Default::default();
            Ok(Scrape { target, process, took: Duration::from_millis(1) })
        }

        fn live(&mut self) -> Result<Live, String> {
            self.scrape().map(|_| Live { version: "</script>".into(), ..Live::default() })
        }

        fn live_page(&self) -> LivePage {
            self.live_page
        }

        fn readiness(&self) -> Result<(), String> {
            Err("starting".into())
        }

        fn is_between(&self) -> bool {
            false
        }
    }

    fn server() -> (Server, Arc<AtomicUsize>, Arc<AtomicBool>) {
        server_for(LivePage::Loopback)
    }

    fn server_for(live_page: LivePage) -> (Server, Arc<AtomicUsize>, Arc<AtomicBool>) {
        let source = Counting { live_page, ..Counting::default() };
        let (count, is_down) = (Arc::clone(&source.count), Arc::clone(&source.is_down));
        let server = Server::start("127.0.0.1:0".parse().expect("an address"), source).expect("a free port");
        (server, count, is_down)
    }

    fn connect(server: &Server) -> TcpStream {
        let stream = TcpStream::connect(server.address()).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
        stream
    }

    fn rest(mut stream: TcpStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer, and its end");
        text
    }

    fn ask(server: &Server, request: &str) -> String {
        let mut stream = connect(server);
        stream.write_all(request.as_bytes()).expect("taken");
        rest(stream)
    }

    #[test]
    fn each_path_has_its_answer() {
        let (server, _, is_down) = server();
        let get = |path: &str| ask(&server, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        let page = get("/");
        assert!(page.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n"), "{page}");
        let live = get("/live.json");
        assert!(live.contains("\r\nContent-Type: application/json\r\n"), "{live}");
        assert!(live.contains("\r\n\r\n{\"version\":\"</script>\","), "{live}");
        let metrics = get("/metrics");
        assert!(metrics.contains("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{metrics}");
        assert!(
            metrics.contains("\n# TYPE nvlane_commands_total counter\n") && !metrics.contains("# EOF"),
            "{metrics}"
        );
        let accept = "Accept: application/openmetrics-text\r\n";
        let open_metrics = ask(&server, &format!("GET /metrics HTTP/1.1\r\n{accept}\r\n"));
        assert!(
            open_metrics.contains("Content-Type: application/openmetrics-text; version=1.0.0"),
            "{open_metrics}"
        );
        assert!(open_metrics.contains("\n# TYPE nvlane_commands counter\n"), "{open_metrics}");
        assert!(open_metrics.ends_with("\n# EOF\n"), "{open_metrics}");
        let head = ask(&server, "HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        assert!(!head.contains("Content-Length: 0\r\n"), "the length of what GET gives: {head}");
        assert!(get("/healthz").ends_with("\r\n\r\nok\n"));
        let readiness = get("/readyz");
        assert!(
            readiness.starts_with("HTTP/1.1 503 ") && readiness.ends_with("\r\n\r\nstarting\n"),
            "{readiness}"
        );
        assert!(get("/x").starts_with("HTTP/1.1 404 "));
        let post = ask(&server, "POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc");
        assert!(post.starts_with("HTTP/1.1 405 ") && post.contains("\r\nAllow: GET, HEAD\r\n"), "{post}");
        is_down.store(true, Ordering::SeqCst);
        std::thread::sleep(SCRAPE_AGE_MAX);
        for path in ["/healthz", "/metrics", "/live.json"] {
            let answer = get(path);
            assert!(
                answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("no answer from reactor 1\n"),
                "{answer}"
            );
        }
    }

    #[test]
    fn the_live_page_is_for_whom_it_is_meant() {
        // A page from elsewhere whose name leads to this machine now.
        let rebound = "Host: example.com:9420\r\n";
        for (live_page, host, is_shown) in [
            (LivePage::Loopback, "Host: 127.0.0.1\r\n", true),
            (LivePage::Loopback, "", true),
            (LivePage::Loopback, rebound, false),
            (LivePage::Any, rebound, true),
            (LivePage::Off, "", false),
        ] {
            let (server, count, _) = server_for(live_page);
            let get = |path: &str| ask(&server, &format!("GET {path} HTTP/1.1\r\n{host}\r\n"));
            let (page, data) = (get("/"), get("/live.json"));
            assert_eq!(page.contains("<!doctype html>"), is_shown, "{live_page} {host}: {page}");
            assert_eq!(data.starts_with("HTTP/1.1 200 "), is_shown, "{live_page} {host}: {data}");
            if !is_shown {
                assert!(page.contains("/metrics") && page.contains("--live-page"), "{page}");
                assert!(data.starts_with("HTTP/1.1 403 ") && data.contains("--live-page"), "{data}");
                assert_eq!(count.load(Ordering::SeqCst), 0, "the target is not asked in vain");
            }
            assert!(get("/metrics").starts_with("HTTP/1.1 200 "));
        }
    }

    #[test]
    fn one_scrape_answers_many() {
        let (server, count, _) = server();
        let streams: Vec<_> = (0..20)
            .map(|_| {
                let mut stream = connect(&server);
                stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("taken");
                stream
            })
            .collect();
        for stream in streams {
            assert!(rest(stream).starts_with("HTTP/1.1 200 OK\r\n"));
        }
        let scraped = count.load(Ordering::SeqCst);
        assert!((1..10).contains(&scraped), "{scraped} scrapes for 20 requests");
        let streams: Vec<_> = (0..20)
            .map(|_| {
                let mut stream = connect(&server);
                stream.write_all(b"GET /live.json HTTP/1.1\r\n\r\n").expect("taken");
                stream
            })
            .collect();
        for stream in streams {
            assert!(rest(stream).starts_with("HTTP/1.1 200 OK\r\n"));
        }
        let shown = count.load(Ordering::SeqCst) - scraped;
        assert!((1..10).contains(&shown), "{shown} questions for 20 requests");
    }

    #[test]
    fn slow_clients_keep_no_others_out() {
        let (server, ..) = server();
        // Half requests, and none.
        let slow: Vec<_> = (0..10 * CONNECTION_COUNT_MAX)
            .map(|number| {
                let mut stream = connect(&server);
                if number % 2 == 0 {
                    // It may have been closed already.
                    let _ = stream.write_all(b"GET /metrics HTT");
                }
                stream
            })
            .collect();
        let begun = Instant::now();
        assert!(ask(&server, "GET /healthz HTTP/1.1\r\n\r\n").ends_with("ok\n"));
        assert!(begun.elapsed() < REQUEST_TIME, "{:?}", begun.elapsed());
        drop(slow);
    }

    #[test]
    fn a_request_has_its_time() {
        let (server, ..) = server();
        let mut half = connect(&server);
        half.write_all(b"GET /metrics HTT").expect("taken");
        let silent = connect(&server);
        let begun = Instant::now();
        assert!(rest(half).starts_with("HTTP/1.1 408 "));
        assert_eq!(rest(silent), "");
        let took = begun.elapsed();
        assert!((REQUEST_TIME / 2..REQUEST_TIME * 3).contains(&took), "{took:?}");
    }

    #[test]
    fn pipelined_requests_get_one_answer_and_no_reset() {
        let (server, ..) = server();
        let many = "GET /healthz HTTP/1.1\r\n\r\n".repeat(1000);
        let answer = ask(&server, &many);
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
        assert!(
            ask(&server, &format!("GET /metrics HTTP/1.1\r\n{}", "A: b\r\n".repeat(9999)))
                .starts_with("HTTP/1.1 431 ")
        );
    }
}
