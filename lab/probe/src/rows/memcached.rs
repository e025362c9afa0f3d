//! Section 15: memcached's protocols, for targets that support them.

mod binary;

use std::io::Write;
use std::net::UdpSocket;

use peer::memcached::{After, Client};

use super::prelude::*;
use crate::rows::common_header::expect_term_req;

pub(super) const ROWS: &[TargetRow] = &[
    row("E1", odd_lengths),
    row("E2", odd_keys),
    row("E3", odd_lines),
    row("E4", many_keys),
    row("E5", binary::odd),
    row("E6", binary::sasl),
    row("E7", meta),
    row("E8", arithmetic),
    row("E9", times),
    row("E10", udp),
    slow_row("E11", slow),
    row("E12", operator),
    row("E13", wrong_protocols),
];

pub(super) fn connect(peer: &Target) -> Check<Client> {
    let Some(address) = peer.settings.memcached else {
        return skipped("the address of the memcached listener is unknown: --memcached");
    };
    if !peer.settings.may_overwrite {
        return skipped("it writes: allow that with --overwrite");
    }
    Client::connect(address, peer.settings.host.patience)
        .map_err(|error| Finding::Dies(format!("memcached's port does not connect: {error}")))
}

/// [`Client::wrong`] on a new connection; at least one refusal must arrive unless the target closes.
fn refused(peer: &Target, bytes: &[u8]) -> Check {
    match connect(peer)?.wrong(bytes, &[])? {
        After::Goes(lines) => holds(!lines.is_empty(), "it is ignored"),
        After::Closed => Ok(()),
    }
}

fn odd_lengths(peer: &Target) -> Check {
    let lengths = [
        "-1",
        "-2147483648",
        "-9223372036854775808",
        "2147483648",
        "4294967295",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "123456789012345678901234567890",
        "0x10",
        "1e3",
        "five",
        "",
    ];
    for length in lengths {
        for verb in ["set", "add", "append", "cas"] {
            let line = format!("{verb} probe-e1 0 0 {length}\r\nvalue\r\n");
            refused(peer, line.as_bytes()).about(format!("{verb} of {length:?} bytes"))?;
        }
    }
    // Some implementations accept a sign in numbers.
    connect(peer)?.wrong(b"set probe-e1 0 0 +5\r\nvalue\r\n", &["STORED"])?;
    for field in
        ["set probe-e1 x 0 5", "set probe-e1 0 x 5", "set probe-e1 -1 0 5", "set probe-e1 4294967296 0 5"]
    {
        let line = format!("{field}\r\nvalue\r\n");
        connect(peer)?.wrong(line.as_bytes(), &["STORED"]).about(field)?;
    }
    let mut client = connect(peer)?;
    client.expect("set probe-e1 0 0 5\r\nvalue\r\n", "STORED")?;
    client.expect("delete probe-e1\r\n", "DELETED")
}

fn odd_keys(peer: &Target) -> Check {
    let long = "k".repeat(250);
    let mut client = connect(peer)?;
    client.expect(&format!("set {long} 0 0 4\r\nlong\r\n"), "STORED").about("a key of 250 bytes")?;
    for length in [251, 252, 1000, 1900] {
        let key = "k".repeat(length);
        for line in
            [format!("set {key} 0 0 5\r\nwrong\r\n"), format!("get {key}\r\n"), format!("delete {key}\r\n")]
        {
            refused(peer, line.as_bytes()).about(format!("a key of {length} bytes"))?;
        }
    }
    holds(client.get(&long)?.as_deref() == Some(b"long"), "a longer key was taken for its front")?;
    client.expect(&format!("delete {long}\r\n"), "DELETED")?;
    for line in ["set\r\n", "set  0 0 5\r\nvalue\r\n", "get\r\n", "get \r\n", "delete\r\n", "incr probe\r\n"]
    {
        refused(peer, line.as_bytes()).about(line.escape_debug())?;
    }
    for byte in [0_u8, 1, 7, 0x0B, 0x1B, 0x7F, 0x80, 0xFF] {
        let key = [b"probe-e2".as_slice(), &[byte], b"x"].concat();
        let store = [b"set ".as_slice(), &key, b" 0 0 5\r\nvalue\r\n"].concat();
        let stored = connect(peer)?.wrong(&store, &["STORED"]).about(format!("byte {byte:#04x}"))?;
        // The sign is never the end of the key.
        holds(client.get("probe-e2")?.is_none(), format!("byte {byte:#04x} ends a key"))?;
        if matches!(&stored, After::Goes(lines) if lines.iter().any(|line| line == "STORED")) {
            let delete = [b"delete ".as_slice(), &key, b"\r\n"].concat();
            connect(peer)?.wrong(&delete, &["DELETED"])?;
        }
    }
    Ok(())
}

fn odd_lines(peer: &Target) -> Check {
    for (what, part) in [("letters", &b"abcdefgh"[..]), ("spaces", b"        "), ("zeros", &[0; 8])] {
        let mut client = connect(peer)?;
        let chunk = part.repeat(8 << 10);
        let mut sent = 0;
        while sent < 64 << 20 && client.send(&chunk)? {
            sent += chunk.len();
        }
        if sent >= 64 << 20 {
            // The whole input was accepted as one line: then at least one refusal is required.
            match client.wrong(b"", &[]).about(what)? {
                After::Goes(lines) => holds(!lines.is_empty(), "a line of 64 MiB is ignored")?,
                After::Closed => {}
            }
        }
    }
    connect(peer)?.wrong(b"version\nget probe-e3\n", &["END"]).map(drop).or_else(
        |finding| match finding {
            // Both answers look alike.
            Finding::Differs(_) => Ok(()),
            finding => Err(finding),
        },
    )?;
    let mut client = connect(peer)?;
    for end in ["XX", "\n\n", "\r\r", "\nX"] {
        client.wrong(format!("set probe-e3 0 0 5\r\nvalue{end}").as_bytes(), &[]).about("a value's end")?;
        client = connect(peer)?;
        holds(client.get("probe-e3")?.is_none(), "a value is stored that does not end as it should")?;
    }
    Ok(())
}

fn many_keys(peer: &Target) -> Check {
    const COUNT: usize = 100_000;
    let mut client = connect(peer)?;
    client.expect("set probe-e4 0 0 8\r\nrepeated\r\n", "STORED")?;
    for (key, count) in [("probe-e4-none", 0), ("probe-e4", COUNT)] {
        let mut client = connect(peer)?;
        let line = format!("get{}\r\n", format!(" {key}").repeat(COUNT));
        // Reads answers while sending: neither side may wait for the other.
        let mut writer = client.stream().try_clone().map_err(|error| Finding::Dies(error.to_string()))?;
        let sender = std::thread::spawn(move || {
            let _ = writer.write_all(line.as_bytes());
        });
        let result = read_values(&mut client, key);
        let _ = client.stream().shutdown(std::net::Shutdown::Both);
        let _ = sender.join();
        if let Some(values) = result.about(format!("{COUNT} keys"))? {
            holds(values == count, format!("{values} values for {count} keys"))?;
        }
    }
    client.expect("delete probe-e4\r\n", "DELETED")
}

/// Values up to `END`; `None` if the command is refused.
fn read_values(client: &mut Client, key: &str) -> Check<Option<usize>> {
    let mut values = 0;
    loop {
        match client.next_line()?.as_deref() {
            Some("END") => return Ok(Some(values)),
            Some(line) if line == format!("VALUE {key} 0 8") => {
                let value = client.next_line()?;
                holds(value.as_deref() == Some("repeated"), "another value")?;
                values += 1;
            }
            Some(line) if line.contains("ERROR") => return Ok(None),
            None => return Ok(None),
            Some(line) => return differs(format!("{line:?} among values")),
        }
    }
}

fn meta(peer: &Target) -> Check {
    let opaque = |length: usize| format!("mg probe-e7 v O{}\r\n", "o".repeat(length));
    let flags = format!("mg probe-e7{}\r\n", " v".repeat(50));
    for line in [
        "mg\r\n",
        "mg probe-e7 v v\r\n",
        &opaque(32),
        &opaque(1000),
        &flags,
        "mg $$$$ b v\r\n",
        "mg YWJ b v\r\n",
        "ms probe-e7\r\n",
        "ms probe-e7 -1\r\n",
        "ms probe-e7 abc\r\nvalue\r\n",
        "ms probe-e7 99999999999999999999\r\n",
        "ms probe-e7 5 Tx\r\nvalue\r\n",
        "ms probe-e7 5 MZ\r\nvalue\r\n",
        "ma probe-e7 Dx\r\n",
        "ma probe-e7 MQ\r\n",
        "md\r\n",
        "me\r\n",
    ] {
        refused(peer, line.as_bytes()).about(line.trim().escape_debug())?;
    }
    // An unknown flag may be ignored.
    connect(peer)?.wrong(b"mg probe-e7 v ! Z\r\n", &["EN"])?;
    let mut client = connect(peer)?;
    client.expect("ms probe-e7 5\r\nvalue\r\n", "HD")?;
    client.expect(&opaque(31), &format!("VA 5 O{}", "o".repeat(31)))?;
    client.expect("", "value")?;
    client.expect("mn\r\n", "MN")?;
    client.expect("md probe-e7\r\n", "HD")
}

fn arithmetic(peer: &Target) -> Check {
    const NOT_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
    const NO_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument";
    let mut client = connect(peer)?;
    for (value, line, right) in [
        ("18446744073709551615", "incr probe-e8 1", "0"),
        ("18446744073709551614", "incr probe-e8 3", "1"),
        ("5", "decr probe-e8 7", "0"),
        ("10", "decr probe-e8 1", "9"),
        ("007", "incr probe-e8 1", "8"),
        ("0", "incr probe-e8 18446744073709551615", "18446744073709551615"),
        ("five", "incr probe-e8 1", NOT_NUMERIC),
        ("", "incr probe-e8 1", NOT_NUMERIC),
        ("-1", "incr probe-e8 1", NOT_NUMERIC),
        ("123456789012345678901", "incr probe-e8 1", NOT_NUMERIC),
        ("5", "incr probe-e8 abc", NO_DELTA),
        ("5", "incr probe-e8 -1", NO_DELTA),
        ("5", "decr probe-e8 18446744073709551616", NO_DELTA),
        ("5", "incr probe-e8-none 1", "NOT_FOUND"),
    ] {
        let set = client.set("probe-e8", value.as_bytes())?;
        holds(set == "STORED", format!("set: {set}"))?;
        client.expect(&format!("{line}\r\n"), right).about(format!("of {value:?}"))?;
        let is_refused = right.starts_with("CLIENT_ERROR") || right == "NOT_FOUND";
        if is_refused {
            let is_same = client.get("probe-e8")?.as_deref() == Some(value.as_bytes());
            holds(is_same, format!("{line} of {value:?} is refused and changes the value"))?;
        }
    }
    client.expect("delete probe-e8\r\n", "DELETED")
}

fn times(peer: &Target) -> Check {
    let (mut one, mut other) = (connect(peer)?, connect(peer)?);
    for round in 0..50 {
        one.expect("set probe-e9 0 0 1\r\n0\r\n", "STORED")?;
        let line = one.line("gets probe-e9\r\n")?;
        one.expect("", "0")?;
        one.expect("", "END")?;
        let Some(unique) = line.strip_prefix("VALUE probe-e9 0 1 ") else {
            return differs(format!("{line:?} in answer to gets"));
        };
        let cas = format!("cas probe-e9 0 0 1 {unique}\r\n");
        one.send(format!("{cas}1\r\n").as_bytes())?;
        other.send(format!("{cas}2\r\n").as_bytes())?;
        let answers = [one.line("")?, other.line("")?];
        let stored = answers.iter().filter(|answer| *answer == "STORED").count();
        let refused = answers.iter().filter(|answer| *answer == "EXISTS").count();
        holds(stored == 1 && refused == 1, format!("round {round} of cas: {answers:?}"))?;
        let winner = if answers[0] == "STORED" { b"1" } else { b"2" };
        holds(one.get("probe-e9")?.as_deref() == Some(winner), "another value than the winner's")?;
    }
    // Expiry now, in the past, and more than a day ago: all have expired already.
    for exptime in ["-1", "-2147483648", "2592001"] {
        one.expect(&format!("set probe-e9 0 {exptime} 1\r\nx\r\n"), "STORED").about(exptime)?;
        holds(one.get("probe-e9")?.is_none(), format!("a value with exptime {exptime} is there"))?;
    }
    for exptime in ["0", "2592000", "2147483647", "4102444800"] {
        one.expect(&format!("set probe-e9 0 {exptime} 1\r\nx\r\n"), "STORED").about(exptime)?;
        holds(one.get("probe-e9")?.is_some(), format!("a value with exptime {exptime} is gone"))?;
    }
    one.wrong(b"set probe-e9 0 99999999999999999999 1\r\nx\r\n", &["STORED"])?;
    one.expect("set probe-e9-touched 0 2 1\r\nx\r\n", "STORED")?;
    one.expect("set probe-e9-left 0 2 1\r\nx\r\n", "STORED")?;
    one.expect("touch probe-e9-touched 100\r\n", "TOUCHED")?;
    std::thread::sleep(Duration::from_millis(3200));
    holds(one.get("probe-e9-touched")?.is_some(), "a value is gone whose time was put off")?;
    holds(one.get("probe-e9-left")?.is_none(), "a value is there whose time is over")?;
    one.expect("touch probe-e9-left 100\r\n", "NOT_FOUND")?;
    one.expect("delete probe-e9-touched\r\n", "DELETED")?;
    one.line("delete probe-e9\r\n").map(drop)
}

fn udp(peer: &Target) -> Check {
    let Some(address) = peer.settings.memcached else {
        return skipped("the address of the memcached listener is unknown: --memcached");
    };
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let failed = |error: std::io::Error| Finding::Skipped(format!("no UDP from here: {error}"));
    let socket = UdpSocket::bind(any).map_err(failed)?;
    socket.connect(address).map_err(failed)?;
    socket.set_read_timeout(Some(Duration::from_millis(500))).map_err(failed)?;
    let mut bytes = [0; 2048];
    for request in ["stats\r\n", "version\r\n"] {
        let frame = [&[0, 1, 0, 0, 0, 1, 0, 0], request.as_bytes()].concat();
        // Refused by the host's kernel, or never answered: either is right.
        let _ = socket.send(&frame);
        if let Ok(count) = socket.recv(&mut bytes) {
            return differs(format!("an answer of {count} bytes by UDP"));
        }
    }
    Ok(())
}

fn slow(peer: &Target) -> Check {
    let mut healthy = connect(peer)?;
    let value = vec![b'v'; 500_000];
    let stored = healthy.set("probe-e11", &value)?;
    holds(stored == "STORED", format!("a value of 500,000 bytes: {stored}"))?;
    let mut deaf = connect(peer)?;
    deaf.send("get probe-e11\r\n".repeat(1000).as_bytes())?;
    let mut mute = connect(peer)?;
    mute.send(b"set probe-e11-mute 0 0 100000\r\n")?;
    for _ in 0..8 {
        std::thread::sleep(Duration::from_secs(5));
        mute.send(b"x")?;
        let start = Instant::now();
        healthy.expect("mn\r\n", "MN").about("another client meanwhile")?;
        let took = start.elapsed();
        let limit = peer.settings.pause_limit.max(Duration::from_millis(500));
        holds(took <= limit, format!("another client waits for {} ms", took.as_millis()))?;
    }
    // Connections that were accepted must get correct answers.
    let mut bytes = 0;
    while deaf.more(Instant::now() + Duration::from_secs(2)).unwrap_or(false) && bytes < 600_000_000 {
        let input = deaf.take_input();
        bytes += input.len();
        let front = input.iter().take(16).all(|byte| b"VALUE probe-11END\r\nv05".contains(byte));
        holds(front, "something else than the value")?;
    }
    healthy.expect("get probe-e11-mute\r\n", "END").about("a value that is not whole")?;
    // A cache may have evicted it.
    let deleted = healthy.line("delete probe-e11\r\n")?;
    holds(deleted == "DELETED" || deleted == "NOT_FOUND", format!("delete: {deleted}"))
}

fn operator(peer: &Target) -> Check {
    let mut client = connect(peer)?;
    for line in ["shutdown", "shutdown graceful", "lru mode flat", "slabs reassign 1 2"] {
        refused(peer, format!("{line}\r\n").as_bytes()).about(line)?;
    }
    let limit = client.line("cache_memlimit 0\r\n")?;
    holds(limit != "OK", "a cache without memory")?;
    for line in ["slabs automove 2", "misbehave", "debugtime p"] {
        connect(peer)?.wrong(format!("{line}\r\n").as_bytes(), &[]).about(line)?;
    }
    client.expect("set probe-e12 0 0 1\r\nx\r\n", "STORED")?;
    connect(peer)?.wrong(b"verbosity 100000\r\n", &["OK"])?;
    // A watcher gets no more answers.
    let watch = connect(peer)?.line("watch fetchers\r\n")?;
    holds(watch == "OK" || watch.contains("ERROR"), format!("watch: {watch}"))?;
    match connect(peer)?.wrong(b"flush_all\r\n", &["OK"])? {
        After::Goes(lines) if lines.iter().any(|line| line == "OK") => {
            holds(client.get("probe-e12")?.is_none(), "flush_all says OK, and leaves a key")
        }
        _ => {
            holds(client.get("probe-e12")?.is_some(), "flush_all is refused, and carried out")?;
            client.expect("delete probe-e12\r\n", "DELETED")
        }
    }
}

fn wrong_protocols(peer: &Target) -> Check {
    let request = IcReq::new(DataAlignment::NONE, Digests::empty(), 1);
    let mut client = connect(peer)?;
    let long = [request.as_bytes(), &[0; 4096]].concat();
    if client.send(&long)? {
        client.wrong(b"", &[]).about("NVMe at a memcached listener")?;
    }
    for text in
        ["GET / HTTP/1.1\r\nHost: probe\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nstats\r\n"]
    {
        let mut client = connect(peer)?;
        match client.wrong(text.as_bytes(), &[]) {
            Err(Finding::Differs(why)) if why.contains("STAT") => {
                return differs("a command within an HTTP request is carried out");
            }
            result => drop(result.about("HTTP at a memcached listener")?),
        }
    }
    for text in ["stats\r\n\0\0\0\0", "set key 0 0 5\r\nvalue\r\n", "get key\r\n\0\0"] {
        expect_term_req(peer.host().tcp()?, text.as_bytes(), &[term(2), term_at(1, 0)])
            .about(format!("{:?} at an NVMe listener", text.escape_debug().to_string()))?;
    }
    expect_term_req(peer.host().tcp()?, &[0x80; 64], &[term(2), term_at(1, 0)])
        .about("a binary request at an NVMe listener")
}
