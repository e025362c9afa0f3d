//! Requests to the HTTP server of metrics: whatever arrives is a part, a request, or refused, however it is cut.

use metrics::http::{Answer, REQUEST_BYTES_MAX, Received, read};

/// Input: the bytes of a connection.
pub fn metrics_request(data: &[u8]) {
    let whole = read(data);
    if data.len() >= REQUEST_BYTES_MAX {
        assert_ne!(whole, Received::Part, "more than the longest request is waited for");
    }
    // The server looks after each receive, and at no more than the longest request.
    let mut decided = None;
    for length in 1..=data.len().min(REQUEST_BYTES_MAX) {
        match (read(&data[..length]), &decided) {
            (Received::Part, None) => {}
            (Received::Part, Some(before)) => panic!("{before:?}, then waits after {length} bytes"),
            (now @ Received::Request(_), Some(before)) => assert_eq!(&now, before, "after {length} bytes"),
            (now, _) => decided = Some(now),
        }
    }
    match decided.unwrap_or(whole) {
        Received::Part => {}
        Received::Request(request) => {
            let head = Answer::Ok.head(request.format.content_type(), data.len());
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"));
            assert_eq!(head.matches("\r\n\r\n").count(), 1);
        }
        Received::Refused(answer) => assert!(!answer.status().starts_with('2')),
    }
}
