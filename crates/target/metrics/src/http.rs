//! Requests of HTTP/1.1 as the server understands them: GET and HEAD of a few paths. No state, no I/O.

use std::net::{Ipv4Addr, Ipv6Addr};

use httparse::{EMPTY_HEADER, Error, Status};

/// The longest request: its line and its headers, bytes.
pub const REQUEST_BYTES_MAX: usize = 8192;

/// The most headers.
const HEADER_COUNT_MAX: usize = 64;

/// What the bytes received so far are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// The beginning of a request.
    Part,
    /// A request. Bytes may follow it, which are not read: each connection has one request.
    Request(Request),
    /// No request that is answered otherwise.
    Refused(Answer),
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is asked for.
    pub resource: Resource,
    /// Whether only the head of the answer is asked for.
    pub is_head: bool,
    /// The form of metrics that the client prefers.
    pub format: Format,
    /// Whether the name by which the client knows the server, if it says one, is an address or `localhost`. Any other one
    /// may be a name that a page from elsewhere has, and that leads to this machine now (DNS rebinding).
    pub names_address: bool,
}

/// What the server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// `/`: the live page, or where the others are.
    Index,
    /// `/live.json`: the data of the live page.
    Live,
    /// `/metrics`.
    Metrics,
    /// `/healthz`: whether the reactors work.
    Health,
    /// `/readyz`: whether hosts can connect.
    Readiness,
}

/// The form of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text 0.0.4.
    Text,
}

impl Format {
    /// The type of the content.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The status of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Here it is.
    Ok,
    /// No HTTP.
    BadRequest,
    /// Not for this client.
    Forbidden,
    /// No such path.
    NotFound,
    /// Another method than GET and HEAD.
    MethodNotAllowed,
    /// The request did not arrive in time.
    Timeout,
    /// More than [`REQUEST_BYTES_MAX`].
    TooLarge,
    /// Not now.
    Unavailable,
}

impl Answer {
    /// Its line.
    #[must_use]
    pub const fn status(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::BadRequest => "400 Bad Request",
            Self::Forbidden => "403 Forbidden",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::Timeout => "408 Request Timeout",
            Self::TooLarge => "431 Request Header Fields Too Large",
            Self::Unavailable => "503 Service Unavailable",
        }
    }

    /// The head of this answer, up to a body of this length. The connection ends with it.
    #[must_use]
    pub fn head(self, content_type: &str, body_bytes: usize) -> String {
        let allow = if self == Self::MethodNotAllowed { "Allow: GET, HEAD\r\n" } else { "" };
        self.head_with(content_type, body_bytes, allow)
    }

    /// As [`Self::head`], with further header lines.
    #[must_use]
    pub fn head_with(self, content_type: &str, body_bytes: usize, lines: &str) -> String {
        format!(
            "HTTP/1.1 {}\r\nContent-Type: {content_type}\r\nContent-Length: {body_bytes}\r\n{lines}\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
            self.status()
        )
    }
}

/// Reads the bytes received so far.
#[must_use]
pub fn read(bytes: &[u8]) -> Received {
    let mut headers = [EMPTY_HEADER; HEADER_COUNT_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(Status::Complete(length)) if length <= REQUEST_BYTES_MAX => {}
        Ok(Status::Partial) if bytes.len() < REQUEST_BYTES_MAX => return Received::Part,
        Ok(_) | Err(Error::TooManyHeaders) => return Received::Refused(Answer::TooLarge),
        Err(_) => return Received::Refused(Answer::BadRequest),
    }
    let is_head = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Received::Refused(Answer::MethodNotAllowed),
    };
    let Some(resource) = request.path.and_then(resource) else { return Received::Refused(Answer::NotFound) };
    let accepted = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("accept"));
    let format = preferred(accepted.filter_map(|header| std::str::from_utf8(header.value).ok()));
    let mut hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    let names_address = hosts.all(|header| std::str::from_utf8(header.value).is_ok_and(is_address));
    Received::Request(Request { resource, is_head, format, names_address })
}

/// Whether the value of a Host header is an address or `localhost`, with or without a port.
fn is_address(host: &str) -> bool {
    let host = host.trim();
    let name = match host.rsplit_once(':') {
        // The colons of an IPv6 address are in brackets.
        Some((name, port)) if !port.ends_with(']') => name,
        _ => host,
    };
    let inside = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<Ipv4Addr>().is_ok()
        || inside.is_some_and(|name| name.parse::<Ipv6Addr>().is_ok())
}

fn resource(target: &str) -> Option<Resource> {
    // A client that believes that this is a proxy names it, too.
    let target = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    };
    match target.split('?').next()? {
        "/" => Some(Resource::Index),
        "/live.json" => Some(Resource::Live),
        "/metrics" => Some(Resource::Metrics),
        "/healthz" => Some(Resource::Health),
        "/readyz" => Some(Resource::Readiness),
        _ => None,
    }
}

/// OpenMetrics if a client names it and prefers nothing that is served as text; otherwise text, which every client reads.
fn preferred<'a>(accepted: impl Iterator<Item = &'a str>) -> Format {
    let (mut open_metrics, mut text) = (0, 0);
    for range in accepted.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let (mut weight, mut version) = (1000, "");
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            let value = value.trim().trim_matches('"');
            match name.trim().to_ascii_lowercase().as_str() {
                "q" => weight = thousandths(value),
                "version" => version = value,
                _ => {}
            }
        }
        match (name.as_str(), version) {
            ("application/openmetrics-text", "" | "1.0.0") => open_metrics = open_metrics.max(weight),
            ("text/plain", "" | "0.0.4") | ("text/*" | "*/*", "") => text = text.max(weight),
            _ => {}
        }
    }
    if open_metrics > 0 && open_metrics >= text { Format::OpenMetrics } else { Format::Text }
}

/// A weight of a preference, 0 to 1, in thousandths; 0 if it is none.
fn thousandths(text: &str) -> u32 {
    let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.len() != 1 || rest.len() > 3 || !is_number(whole) || !is_number(rest) {
        return 0;
    }
    format!("{whole}{rest:0<3}").parse().map_or(0, |weight: u32| weight.min(1000))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As Prometheus 2.42 sends it.
    const PROMETHEUS: &str = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;\
                              q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

    fn get(path: &str, accept: &str) -> Received {
        read(format!("GET {path} HTTP/1.1\r\nHost: a\r\nAccept: {accept}\r\n\r\n").as_bytes())
    }

    fn format(accept: &str) -> Format {
        match get("/metrics", accept) {
            Received::Request(request) => request.format,
            other => panic!("{accept}: {other:?}"),
        }
    }

    #[test]
    fn a_client_gets_the_form_that_it_prefers() {
        for open_metrics in [
            PROMETHEUS,
            "application/openmetrics-text",
            "Application/OpenMetrics-Text; Version=\"1.0.0\"; charset=utf-8",
            "text/plain;q=0.3, application/openmetrics-text;version=1.0.0;q=0.6, */*;q=0.2",
            // Prometheus 3.
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;\
             version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,\
             */*;q=0.2",
        ] {
            assert_eq!(format(open_metrics), Format::OpenMetrics, "{open_metrics}");
        }
        for text in [
            "",
            "*/*",
            "text/plain",
            "text/html,application/xhtml+xml,*/*;q=0.8",
            "application/json",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=nan",
            "application/openmetrics-text;version=2.0.0",
            "application/openmetrics-text;q=0.4,text/plain;q=0.5",
            "application/openmetrics-text;q=-1, ,;;=,q=",
        ] {
            assert_eq!(format(text), Format::Text, "{text}");
        }
    }

    #[test]
    fn paths_and_methods_are_told_apart() {
        let resource = |line: &str| match read(format!("{line} HTTP/1.0\r\n\r\n").as_bytes()) {
            Received::Request(Request { resource, is_head, .. }) => Ok((resource, is_head)),
            Received::Refused(answer) => Err(answer),
            Received::Part => panic!("{line}"),
        };
        assert_eq!(resource("GET /"), Ok((Resource::Index, false)));
        assert_eq!(resource("HEAD /metrics?x=1"), Ok((Resource::Metrics, true)));
        assert_eq!(resource("GET http://a:9/healthz"), Ok((Resource::Health, false)));
        assert_eq!(resource("GET http://a"), Ok((Resource::Index, false)));
        assert_eq!(resource("GET /readyz"), Ok((Resource::Readiness, false)));
        assert_eq!(resource("GET /live.json?1"), Ok((Resource::Live, false)));
        for path in ["/metrics/", "/../metrics", "/METRICS", "*", "/%6detrics", "metrics"] {
            assert_eq!(resource(&format!("GET {path}")), Err(Answer::NotFound), "{path}");
        }
        for method in ["POST", "PUT", "OPTIONS", "get", "CONNECT", "GETGETGET"] {
            assert_eq!(resource(&format!("{method} /metrics")), Err(Answer::MethodNotAllowed), "{method}");
        }
    }

    #[test]
    fn names_of_the_server_are_told_from_addresses() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:9420",
            "[::1]",
            "[::1]:9420",
            "localhost",
            "LOCALHOST:80",
            " 192.0.2.1:1",
        ] {
            assert!(is_address(host), "{host}");
        }
        for host in
            ["", "a", "a:80", "127.0.0.1.example", "[::1", "::1", "[a]:1", "localhost.example:9420", "[]"]
        {
            assert!(!is_address(host), "{host}");
        }
        let names_address = |headers: &str| match read(format!("GET / HTTP/1.1\r\n{headers}\r\n").as_bytes())
        {
            Received::Request(request) => request.names_address,
            other => panic!("{other:?}"),
        };
        assert!(names_address("") && names_address("Host: [::1]:1\r\n"));
        assert!(!names_address("Host: 127.0.0.1\r\nhost: example.com\r\n"));
    }

    #[test]
    fn hostile_requests_are_refused() {
        let refused = |bytes: &[u8]| match read(bytes) {
            Received::Refused(answer) => answer,
            other => panic!("{other:?}: {}", bytes.escape_ascii()),
        };
        for bytes in [
            &b"GET /metrics HTTP/1.1\r\nA\0: b\r\n\r\n"[..],
            b"GET /\0 HTTP/1.1\r\n\r\n",
            b"\0\0\0\0",
            b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
            b"GET /metrics HTTP/2.0\r\n\r\n",
            b"GET /metrics\r\n\r\n",
            b"GET /metrics HTTP/1.1\r\n: none\r\n\r\n",
            b"GET /metrics HTTP/1.1\r\nA: \x01\r\n\r\n",
        ] {
            assert_eq!(refused(bytes), Answer::BadRequest, "{}", bytes.escape_ascii());
        }
        let long = format!("GET /metrics HTTP/1.1\r\nA: {}", "x".repeat(REQUEST_BYTES_MAX));
        assert_eq!(refused(long.as_bytes()), Answer::TooLarge);
        assert_eq!(refused(format!("{long}\r\n\r\n").as_bytes()), Answer::TooLarge);
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(HEADER_COUNT_MAX + 1));
        assert_eq!(refused(many.as_bytes()), Answer::TooLarge);
    }

    #[test]
    fn what_follows_a_request_is_not_read() {
        let one = b"GET /healthz HTTP/1.1\r\n\r\n";
        let two = [&one[..], b"GET /metrics HTTP/1.1\r\n\r\n\0\xff"].concat();
        assert_eq!(read(&two), read(one));
    }

    proptest! {
        /// However a request is cut: each part is a part, until the whole is there.
        #[test]
        fn a_request_arrives_in_parts(cut in 1usize..300) {
            let whole = format!("GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: {PROMETHEUS}\r\n\r\n");
            let cut = cut.min(whole.len() - 1);
            prop_assert_eq!(read(&whole.as_bytes()[..cut]), Received::Part);
            let request = Request {
                resource: Resource::Metrics,
                is_head: false,
                format: Format::OpenMetrics,
                names_address: false,
            };
            prop_assert_eq!(read(whole.as_bytes()), Received::Request(request));
        }

        /// No bytes make it fail, and none above the limit are waited for.
        #[test]
        fn any_bytes_are_answered(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
            bytes.resize(REQUEST_BYTES_MAX, b'A');
            prop_assert!(read(&bytes) != Received::Part);
        }
    }
}
