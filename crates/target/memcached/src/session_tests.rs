//! Protocol conversations as clients hold them, and malformed input.

mod boundaries;
mod collective;
mod edges;
mod in_place;
mod partition_refusals;
mod watch;

use proptest::prelude::*;

use super::*;
use crate::partitions::{Partitions, Sent};
use kv::{Eviction, Settings};

/// Settings of a small partition.
fn settings() -> Settings {
    Settings { memory_bytes: 4 << 20, ..Settings::default() }
}

/// The number of partitions of the clients that use all of them in place. To other numbers, messages are sent.
const IN_PLACE: usize = 4;

fn partitions(count: usize, settings: &Settings, listener: ListenerSettings) -> Partitions {
    let partitions = Partitions::new(count, settings, listener);
    if count == IN_PLACE { partitions.in_place(settings) } else { partitions }
}

struct Client {
    partitions: Partitions,
    session: Session,
    is_closed: bool,
}

impl Client {
    fn new() -> Self {
        Self::with(1)
    }

    fn with(count: usize) -> Self {
        let session = Session::new(ListenerSettings::default());
        let partitions = partitions(count, &settings(), ListenerSettings::default());
        Self { partitions, session, is_closed: false }
    }

    fn send(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut progress = self.session.on_bytes(&mut self.partitions, bytes);
        let mut answer = Vec::new();
        loop {
            loop {
                self.partitions.deliver(&mut self.session);
                assert!(self.session.fetch(&mut self.partitions), "what is kept stays");
                let count = self.session.output().len();
                if count == 0 && self.partitions.sent.is_empty() {
                    break;
                }
                answer.extend_from_slice(self.session.output());
                self.session.on_sent(count);
            }
            if progress != Progress::Stalled {
                break;
            }
            progress = self.session.resume(&mut self.partitions);
        }
        self.is_closed = progress == Progress::Close;
        answer
    }

    /// A request and its expected answer; `|` stands for the end of a line.
    fn talk(&mut self, said: &str, answered: &str) {
        let answer = self.send(said.replace('|', "\r\n").as_bytes());
        assert_eq!(String::from_utf8_lossy(&answer), answered.replace('|', "\r\n"), "to {said:?}");
    }
}

fn talk(turns: &[(&str, &str)]) {
    for count in [1, 3, IN_PLACE] {
        let mut client = Client::with(count);
        for (said, answered) in turns {
            client.talk(said, answered);
        }
    }
}

#[test]
fn classic_commands_are_answered_as_memcached_does() {
    talk(&[
        ("get a|", "END|"),
        ("set a 5 0 3|abc|", "STORED|"),
        ("get a|", "VALUE a 5 3|abc|END|"),
        ("get a  b a|", "VALUE a 5 3|abc|VALUE a 5 3|abc|END|"),
        ("add a 0 0 1|x|", "NOT_STORED|"),
        ("add b 0 0 1|x|", "STORED|"),
        ("replace c 0 0 1|x|", "NOT_STORED|"),
        ("replace b 4294967295 0 0||", "STORED|"),
        ("get b|", "VALUE b 4294967295 0||END|"),
        ("append a 9 9 2|de|prepend a 0 0 1|_|get a|", "STORED|STORED|VALUE a 5 6|_abcde|END|"),
        ("append c 0 0 1|x|", "NOT_STORED|"),
        ("delete a|delete a|delete b 0|", "DELETED|NOT_FOUND|DELETED|"),
        ("set n 0 0 2|10|incr n 5|decr n 6|get n|", "STORED|15|9|VALUE n 0 2|9 |END|"),
        ("incr n 91|decr n 1000|incr n 18446744073709551615|incr n 1|", "100|0|18446744073709551615|0|"),
        ("incr missing 1|", "NOT_FOUND|"),
        ("set t 0 0 3|abc|incr t 1|", "STORED|CLIENT_ERROR cannot increment or decrement non-numeric value|"),
        (
            "incr t x|incr t -1|",
            "CLIENT_ERROR invalid numeric delta argument|CLIENT_ERROR invalid numeric delta argument|",
        ),
        ("touch t 100|touch u 100|", "TOUCHED|NOT_FOUND|"),
        ("gat 100 t u|", "VALUE t 0 3|abc|END|"),
        ("verbosity 1|verbosity|", "OK|CLIENT_ERROR bad command line format|"),
        ("version|", "VERSION 1.6.99-nvlane-0.1.0|"),
        ("shutdown|", "SERVER_ERROR: shutdown not enabled|"),
        ("flush_all|get t|", "OK|END|"),
        ("bogus|", "ERROR|"),
    ]);
}

/// Scripts (`>`), the answers of memcached 1.6.45 (`<`), and those of nvlane (`!`) where docs/memcached.md lists a
/// difference.
#[test]
fn scripts_are_answered_as_memcached_answered_them() {
    let text = include_str!("../tests/answers_of_memcached.txt");
    let mut wrong = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(said) = lines.next() {
        let said = said.strip_prefix("> ").expect("a script").replace('|', "\r\n");
        let mut answered = lines.next().and_then(|line| line.strip_prefix("< ")).expect("its answer");
        if let Some(differs) = lines.next_if(|line| line.starts_with('!')) {
            answered = differs.strip_prefix("! ").expect("another answer");
        }
        for count in [1, 3, IN_PLACE] {
            let answer = Client::with(count).send(said.as_bytes());
            let answer = String::from_utf8_lossy(&answer).replace("\r\n", "|");
            if answer != answered {
                wrong.push(format!("> {}\n< {answered}\n! {answer}\n", said.replace("\r\n", "|")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.concat());
}

#[test]
fn noreply_means_no_answer() {
    talk(&[
        ("set a 0 0 1 noreply|1|add a 0 0 1 noreply|2|append a 0 0 1 noreply|3|", ""),
        ("incr a 1 noreply|decr a 2 noreply|touch a 0 noreply|get a|", "VALUE a 0 2|12|END|"),
        (
            "delete a noreply|delete a 0 noreply|flush_all noreply|flush_all 0 noreply|verbosity 1 noreply|mn|",
            "MN|",
        ),
    ]);
}

#[test]
fn noreply_silences_errors_and_what_follows_is_understood() {
    let (long, value) = ("k".repeat(251), "v".repeat(2_000_000));
    talk(&[
        (&format!("set a 0 0 2000000 noreply|{value}|add a 0 0 2000000 noreply|{value}|mn|"), "MN|"),
        (&format!("set {long} 0 0 3 noreply|abc|set a x 0 3 noreply|get|cas a 0 0 1 x noreply|1|mn|"), "MN|"),
        ("set a 0 0 3 noreply|abcdexyz|mn|", "ERROR|MN|"),
        ("set t 0 0 3|abc|incr t 1 noreply|incr t abc noreply|decr t -1 noreply|mn|", "STORED|MN|"),
        ("touch t x noreply|touch missing 5 noreply|flush_all x noreply|delete t 5 noreply|mn|", "MN|"),
        (&format!("delete {long} noreply|incr {long} 1 noreply|touch {long} 1 noreply|mn|"), "MN|"),
        ("verbosity x noreply|bogus noreply|lru_crawler noreply|cache_memlimit x noreply|mn|", "MN|"),
        // A line that cannot be a command of its kind is answered.
        (
            "set a 0 0 -1 noreply|incr noreply|get|mn|",
            "CLIENT_ERROR bad command line format|CLIENT_ERROR bad command line format|CLIENT_ERROR bad command line format|MN|",
        ),
        // So is each error of a quiet meta command.
        ("ms t 3 q|abcdexyz|mn|", "CLIENT_ERROR bad data chunk|ERROR|MN|"),
        (
            "set t 0 0 1|x|ma t q|mn|",
            "STORED|CLIENT_ERROR cannot increment or decrement non-numeric value|MN|",
        ),
    ]);
}

#[test]
fn a_client_without_answers_keeps_step_when_a_long_value_ends_wrong_or_finds_no_memory() {
    for count in [1, 3, IN_PLACE] {
        let mut client = client_of_large(count, 8 << 20, Eviction::None);
        let value = "x".repeat(2_000_000);
        client.talk(
            &format!(
                "set a 0 0 2000000 noreply|{value}yyset b 0 0 200000 noreply|{}yymn|",
                &value[..200_000]
            ),
            "MN|",
        );
        client.talk(&format!("set a 0 0 30000000 noreply|{}|get a|", "x".repeat(30_000_000)), "END|");
        client.partitions = Partitions::new(
            count,
            &settings(),
            ListenerSettings { allows_flush: false, ..ListenerSettings::default() },
        );
        client.talk("flush_all noreply|flush_all|", "CLIENT_ERROR flush_all not allowed|");
    }
}

#[test]
fn numbers_of_values_change_with_each_store_and_only_then() {
    let mut client = Client::new();
    let cas = |client: &mut Client| {
        let answer = String::from_utf8(client.send(b"gets a\r\n")).expect("text");
        answer.lines().next().and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).expect("a number")
    };
    client.talk("set a 0 0 1|1|", "STORED|");
    let first = cas(&mut client);
    client.talk("touch a 100|", "TOUCHED|");
    assert_eq!(cas(&mut client), first);
    client.talk(&format!("cas a 0 0 1 {}|2|", first + 100), "EXISTS|");
    client.talk(&format!("cas b 0 0 1 {first}|2|"), "NOT_FOUND|");
    client.talk(&format!("cas a 0 0 1 {first}|2|"), "STORED|");
    client.talk(&format!("cas a 0 0 1 {first}|3|"), "EXISTS|");
    let second = cas(&mut client);
    client.talk("incr a 1|", "3|");
    assert_ne!(cas(&mut client), second);
    // A small pair that returns to the index keeps no number, so none matches.
    let third = cas(&mut client);
    client.talk("set a 0 0 1|3|", "STORED|");
    client.talk(&format!("cas a 0 0 1 {third}|2|"), "EXISTS|");
}

#[test]
fn values_end_when_they_should() {
    let mut client = Client::new();
    client.talk(
        "set a 0 10 1|1|set b 0 -1 1|1|set c 0 1700000005 1|1|set d 0 2592001 1|1|",
        "STORED|STORED|STORED|STORED|",
    );
    client.talk("get a b c d|", "VALUE a 0 1|1|VALUE c 0 1|1|END|");
    client.talk("mg a t|", "HD t10|");
    client.partitions.wait(6);
    client.talk("get a b c d|", "VALUE a 0 1|1|END|");
    client.talk("gat 20 a|", "VALUE a 0 1|1|END|");
    client.partitions.wait(10);
    client.talk("get a|touch a -1|get a|", "VALUE a 0 1|1|END|TOUCHED|END|");
    client.talk("set a 0 0 1|1|flush_all 5|get a|", "STORED|OK|VALUE a 0 1|1|END|");
    client.partitions.wait(5);
    client.talk("get a|", "END|");
}

/// The wall clock is set while pairs are stored: by an operator, by NTP after a start in 1970, to years that do not fit
/// in 32 bits.
///
/// hostile R11
#[test]
fn times_to_live_uptime_and_ages_do_not_follow_steps_of_the_wall_clock() {
    const START_S: i64 = 1_700_000_000;
    for unix_s in [START_S + 600, START_S - 600, 30, 2_147_483_640, 4_294_967_290, 5_000_000_000] {
        let mut client = Client::new();
        let uptime = |client: &mut Client, expected: &str| {
            let stats = String::from_utf8(client.send(b"stats\r\n")).expect("text");
            assert!(stats.contains(&format!("STAT uptime {expected}\r\n")), "{unix_s}: {stats}");
        };
        client.talk("set a 0 300 1|1|set b 0 3 1|1|set c 0 1700000060 1|1|", "STORED|STORED|STORED|");
        client.talk("mg a l|mg b|", "HD l0|HD|");
        client.partitions.set_wall_clock(unix_s - START_S);
        client.talk("mg a t l|mg b t|mg c t|", "HD t300 l0|HD t3|HD t60|");
        uptime(&mut client, "0");
        let dump = String::from_utf8(client.send(b"lru_crawler metadump all\r\n")).expect("text");
        let line = format!("key=a exp={} la={unix_s} ", unix_s + 300);
        assert!(dump.contains(&line), "{unix_s}: {dump}");
        // Absolute times are by the wall clock at the store.
        let (soon_s, past_s) = (unix_s + 60, unix_s - 1);
        let expected = if soon_s > 2_592_000 { ("HD t60|", "EN|") } else { ("HD t90|", "HD t29|") };
        client.talk(&format!("ms d 1 T{soon_s}|1|mg d t|"), &format!("HD|{}", expected.0));
        client.talk(&format!("ms d 1 T{past_s}|1|mg d t|"), &format!("HD|{}", expected.1));
        client.partitions.wait(3);
        client.talk("mg b|mg a t|", "EN|HD t297|");
        client.talk("flush_all 5|", "OK|");
        client.partitions.set_wall_clock(START_S - unix_s);
        client.talk("mg a t|mg c t|", "HD t297|HD t57|");
        client.partitions.wait(5);
        client.talk("mg a|mg c|", "EN|EN|");
        uptime(&mut client, "8");
    }
}

#[test]
fn broken_lines_are_refused_and_what_follows_is_understood() {
    let long = "k".repeat(251);
    talk(&[
        ("|", "CLIENT_ERROR bad command line format|"),
        ("get|get |", "CLIENT_ERROR bad command line format|CLIENT_ERROR bad command line format|"),
        (
            "set a 0 0 -1|set a 0 0|mn|",
            "CLIENT_ERROR bad command line format|CLIENT_ERROR bad command line format|MN|",
        ),
        (
            "set a 0 0 2147483648|set a 0 0 9223372036854775808|set a 0 0 +1|set a 0 0 0x1|mn|",
            "CLIENT_ERROR bad command line format|CLIENT_ERROR bad command line format|CLIENT_ERROR bad command line format|CLIENT_ERROR bad command line format|MN|",
        ),
        ("set a -1 0 3|get|mn|", "CLIENT_ERROR bad command line format|MN|"),
        (
            "set a x 0 3|get|set a 0 x 3|get|mn|",
            "CLIENT_ERROR bad command line format|CLIENT_ERROR bad command line format|MN|",
        ),
        ("set a 0 0 3|abcdefg|mn|", "CLIENT_ERROR bad data chunk|ERROR|MN|"),
        ("get a|", "END|"),
        (
            &format!("set {long} 0 0 3|abc|get {long} a|delete {long}|mn|"),
            "CLIENT_ERROR bad command line format|CLIENT_ERROR bad command line format|CLIENT_ERROR bad command line format|MN|",
        ),
        (
            "set a\u{1}b\t 0 0 1|1|get c a\u{1}b\t|delete a\u{1}b\t|",
            "STORED|VALUE a\u{1}b\t 0 1|1|END|DELETED|",
        ),
        (
            "set a 0 0 1\n1\r\nget a\nmn\nx|mn|",
            "STORED|VALUE a 0 1|1|END|CLIENT_ERROR bad command line format|CLIENT_ERROR bad command line format|MN|",
        ),
        (
            "delete a 5|delete|",
            "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]|CLIENT_ERROR bad command line format|",
        ),
    ]);
}

#[test]
fn lines_without_end_and_other_protocols_close_the_connection() {
    let mut client = Client::new();
    client.talk(&"x".repeat(2047), "");
    assert!(!client.is_closed);
    client.talk("x", "");
    assert!(client.is_closed);
    for bytes in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], b"quit\r\n", b"\x81\x00\x00\x00"] {
        let mut client = Client::new();
        client.send(bytes);
        if bytes[0] != 0x81 {
            assert!(client.is_closed, "{bytes:?}");
        }
    }
    // An NVMe/TCP host begins with a zero byte: the connection closes without waiting for the end of a line.
    for bytes in [&[0][..], b"\0\0\x80\0\x80\0\0\0", b"\0get a\r\n"] {
        let mut client = Client::new();
        assert_eq!(client.send(bytes), b"");
        assert!(client.is_closed, "{bytes:?}");
    }
    // Lines of keys may have any length.
    let mut client = Client::new();
    let line = format!("get {}|", "k ".repeat(100_000));
    client.talk("set k 0 0 0||", "STORED|");
    client.talk(&line, &format!("{}END|", "VALUE k 0 0||".repeat(100_000)));
}

#[test]
fn values_have_a_limit() {
    let mut client = Client::new();
    client.talk("set a 0 0 1|1|", "STORED|");
    client.talk(
        &format!("set a 0 0 1048576|{}|get a|", "x".repeat(1_048_576)),
        "SERVER_ERROR object too large for cache|END|",
    );
    let value = "y".repeat(1_048_000);
    client.talk(&format!("set a 0 0 1048000|{value}|"), "STORED|");
    client.talk("get a|", &format!("VALUE a 0 1048000|{value}|END|"));
    // Several at once are sent piece by piece.
    client.talk("get a a a|", &format!("{}END|", format!("VALUE a 0 1048000|{value}|").repeat(3)));
    client.talk(&format!("append a 0 0 1000|{}|", "z".repeat(1000)), "NOT_STORED|");
}

/// A client of partitions with `memory_bytes` of memory, which may store values of any length.
fn client_of_large(count: usize, memory_bytes: usize, eviction: Eviction) -> Client {
    let settings = Settings { memory_bytes, eviction, ..Settings::default() };
    let listener = ListenerSettings { value_bytes_max: 256 << 20, ..ListenerSettings::default() };
    let partitions = partitions(count, &settings, listener);
    Client { partitions, session: Session::new(listener), is_closed: false }
}

/// Sends bytes in pieces, some of them directly into place.
fn send_in_pieces(client: &mut Client, bytes: &[u8], piece: usize) -> Vec<u8> {
    let mut answer = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let mut now = &rest[..piece.min(rest.len())];
        rest = &rest[now.len()..];
        if let Some(place) = client.session.place() {
            let count = place.len().min(now.len() / 2);
            place[..count].copy_from_slice(&now[..count]);
            client.session.on_placed(count);
            now = &now[count..];
        }
        answer.extend(client.send(now));
    }
    answer
}

#[test]
fn values_of_mebibytes_arrive_in_parts_and_are_sent_from_where_they_lie() {
    let value =
        |seed: usize, length: usize| -> Vec<u8> { (0..length).map(|at| (at / 1000 + seed) as u8).collect() };
    let set = |key: &str, value: &[u8]| {
        let mut said = format!("set {key} 5 0 {}\r\n", value.len()).into_bytes();
        said.extend_from_slice(value);
        said.extend_from_slice(b"\r\n");
        said
    };
    let got = |key: &str, flags: u32, value: &[u8]| {
        let mut answer = format!("VALUE {key} {flags} {}\r\n", value.len()).into_bytes();
        answer.extend_from_slice(value);
        answer.extend_from_slice(b"\r\nEND\r\n");
        answer
    };
    for count in [1, 3, IN_PLACE] {
        for piece in [100_000, 1_500_000, usize::MAX] {
            let mut client = client_of_large(count, 48 << 20, Eviction::Clock);
            for (number, length) in [1 << 20, (1 << 20) + 7, 5_000_000].into_iter().enumerate() {
                let key = format!("key-{number}");
                let first = value(number, length);
                let answer = send_in_pieces(&mut client, &set(&key, &first), piece);
                assert_eq!(String::from_utf8_lossy(&answer), "STORED\r\n");
                assert!(client.send(format!("get {key}\r\n").as_bytes()) == got(&key, 5, &first));
                // Append to it, prepend to it, and prepend it to others.
                client.talk(&format!("append {key} 0 0 3|end|"), "STORED|");
                let long = value(9, 1_100_000);
                let mut said = format!("prepend {key} 0 0 {}\r\n", long.len()).into_bytes();
                said.extend_from_slice(&long);
                said.extend_from_slice(b"\r\n");
                assert_eq!(send_in_pieces(&mut client, &said, piece), b"STORED\r\n");
                let whole = [&long[..], &first, b"end"].concat();
                assert!(client.send(format!("get {key}\r\n").as_bytes()) == got(&key, 5, &whole));
                let twice = client.send(format!("get {key} {key}\r\nmn\r\n").as_bytes());
                let one = got(&key, 5, &whole);
                let expected = [&one[..one.len() - 5], &one, b"MN\r\n"].concat();
                assert!(twice == expected, "{} of {} bytes", twice.len(), expected.len());
                // The meta and the binary protocol.
                let mut said = format!("ms {key} {} s\r\n", first.len()).into_bytes();
                said.extend_from_slice(&first);
                said.extend_from_slice(b"\r\n");
                let answer = send_in_pieces(&mut client, &said, piece);
                assert_eq!(String::from_utf8_lossy(&answer), format!("HD s{}\r\n", first.len()));
                let mut expected = format!("VA {}\r\n", first.len()).into_bytes();
                expected.extend_from_slice(&first);
                expected.extend_from_slice(b"\r\n");
                assert!(client.send(format!("mg {key} v\r\n").as_bytes()) == expected);
                let mut binary =
                    Client { session: Session::new(*client.partitions.all[0].1.settings()), ..client };
                let mut said = vec![0x80, 1, 0, key.len() as u8, 8, 0, 0, 0];
                said.extend_from_slice(&((8 + key.len() + whole.len()) as u32).to_be_bytes());
                said.extend_from_slice(&[0; 12]);
                said.extend_from_slice(&[0; 8]);
                said.extend_from_slice(key.as_bytes());
                said.extend_from_slice(&whole);
                let answer = send_in_pieces(&mut binary, &said, piece);
                assert_eq!((answer[0], answer[1], &answer[6..8], answer.len()), (0x81, 1, &[0, 0][..], 24));
                let mut said = vec![0x80, 0, 0, key.len() as u8, 0, 0, 0, 0, 0, 0, 0, key.len() as u8];
                said.extend_from_slice(&[0; 12]);
                said.extend_from_slice(key.as_bytes());
                let answer = binary.send(&said);
                assert_eq!(answer[8..12], ((4 + whole.len()) as u32).to_be_bytes());
                assert!(answer[28..] == whole[..]);
                client = Client { session: Session::new(*binary.partitions.all[0].1.settings()), ..binary };
            }
        }
    }
}

#[test]
fn a_value_that_ends_wrong_or_finds_no_memory_is_refused_and_what_follows_is_understood() {
    for count in [1, 3, IN_PLACE] {
        let mut client = client_of_large(count, 8 << 20, Eviction::None);
        client.talk("set a 0 0 3|old|", "STORED|");
        let value = "x".repeat(2_000_000);
        client.talk(
            &format!("set a 0 0 2000000|{value}yyget a|"),
            "CLIENT_ERROR bad data chunk|VALUE a 0 3|old|END|",
        );
        let value = "x".repeat(30_000_000);
        // As with memcached, the previous value is removed.
        client.talk(
            &format!("set a 0 0 30000000|{value}|get a|"),
            "SERVER_ERROR out of memory storing object|END|",
        );
        client.talk(&format!("set a 0 0 2000000 noreply|{}|get b|", "z".repeat(2_000_000)), "END|");
        client.talk("get a|", &format!("VALUE a 0 2000000|{}|END|", "z".repeat(2_000_000)));
        // A value that never arrives completely leaves nothing behind.
        client.send(b"set a 0 0 5000000\r\n0123456789");
        assert!(client.session.is_within_command());
        client.session = Session::new(*client.partitions.all[0].1.settings());
        client.talk("delete a|", "DELETED|");
        client.talk(&format!("set a 0 0 5000000|{}|", "w".repeat(5_000_000)), "STORED|");
        // A value is refused by a command that takes none, however long it is.
        let mut said = vec![0x80, 0, 0, 1, 0, 0, 0, 0];
        said.extend_from_slice(&2_000_001u32.to_be_bytes());
        said.extend_from_slice(&[0; 12]);
        said.extend_from_slice(&vec![b'a'; 2_000_001]);
        let mut binary = Client { session: Session::new(*client.partitions.all[0].1.settings()), ..client };
        let answer = binary.send(&said);
        assert_eq!((answer[0], answer[7]), (0x81, 4));
    }
}

#[test]
fn meta_commands_are_answered_as_memcached_does() {
    talk(&[
        ("mn|", "MN|"),
        ("mg a|mg a v|mg a k Oq|mg a q|", "EN|EN|EN ka Oq|"),
        ("ms a 3|abc|mg a|mg a v|", "HD|HD|VA 3|abc|"),
        ("mg a s v f t h k O123|", "VA 3 s3 f0 t-1 h0 ka O123|abc|"),
        ("mg a h|", "HD h1|"),
        ("ms a 2 F5 T100 k Oz|de|mg a f t v|", "HD ka Oz|VA 2 f5 t100|de|"),
        ("ms b 1 ME|1|ms b 1 ME|2|ms c 1 MR|1|ms b 1 MA|2|ms b 1 MP|0|mg b v|", "HD|NS|NS|HD|HD|VA 3|012|"),
        ("ms c 1 MA|1|ms c 1 MA N0|1|mg c v|", "NS|HD|VA 1|1|"),
        ("ms b 1 MX|1|mn|", "CLIENT_ERROR invalid mode for ms M token|MN|"),
        ("ms b 1 q|1|mg b q v|mn|", "VA 1|1|MN|"),
        ("md b q|md b|md b k Ox|", "NF|NF kb Ox|"),
        ("ma n|ma n N0 J10|ma n|ma n v D5|ma n MD v D100|", "NF|HD|HD|VA 2|16|VA 1|0|"),
        ("ma a|", "CLIENT_ERROR cannot increment or decrement non-numeric value|"),
        ("ms Zm9v 2 b|hi|get foo|mg Zm9v b k v|", "HD|VALUE foo 0 2|hi|END|VA 2 kZm9v b|hi|"),
        (
            "mg Zm9= b|mg Z b|mg !!!! b|",
            "EN|CLIENT_ERROR error decoding key|CLIENT_ERROR error decoding key|",
        ),
        ("mg a k k|", "CLIENT_ERROR duplicate flag|"),
        ("mg a O0123456789012345678901234567890123|", "CLIENT_ERROR opaque token too long|"),
        (
            "ms a x|ms a|ms a -1|mn|",
            "CLIENT_ERROR bad command line format|CLIENT_ERROR bad command line format|CLIENT_ERROR bad command line format|MN|",
        ),
        ("me nothing|", "EN|"),
        // Flags that only proxies read.
        ("mg a P1 L2 v|", "VA 2|de|"),
    ]);
}

#[test]
fn flags_of_meta_commands_mean_what_they_mean_to_memcached() {
    const BAD_LINE: &str = "CLIENT_ERROR bad command line format|";
    const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format|";
    const BAD_MODE: &str = "CLIENT_ERROR invalid mode for ms M token|";
    const BAD_FLAG_OF_MA: &str = "CLIENT_ERROR invalid or duplicate flag|";
    let (opaque, long) = ("O".repeat(32), "O".repeat(33));
    let many = "k f v s t c q h l u x I P1 L1 O1 b";
    talk(&[
        // Reading without a trace, and without a value that the client has.
        ("ms a 1|1|mg a u h|mg a u v|mg a h|mg a h|", "HD|HD h0|VA 1|1|HD h0|HD h1|"),
        ("ms a 1 E100|1|mg a C100 v c|mg a C101 v|mg a C100|", "HD|HD c100|VA 1|1|HD|"),
        // The length of all of the value.
        ("ms a 2 s|12|ms a 3 MA s|345|ms a 1 MP s|0|ms z 2 MA N0 s|ab|", "HD s2|HD s5|HD s6|HD s2|"),
        ("ms a 1 Ms|1|ms a 1 M|1|ms a 1 Mx|1|ms a 1 MSET|1|", &format!("{BAD_MODE}{BAD_MODE}{BAD_MODE}HD|")),
        ("ma a Mincr|ma a MDECR v|ma a MI v|", "CLIENT_ERROR invalid mode for ma M token|VA 1|0|VA 1|1|"),
        // `add` ignores the CAS value.
        ("ms n 1 ME C5|1|ms n 1 ME C5|1|ms o 1 MA C5|1|ms n 1 MA C5|1|ms n 1 MR C5|1|", "HD|NS|NS|EX|EX|"),
        // Each command returns the flags that it knows.
        ("ms n 1 k f t v h l s O7 F5|1|md n k v t f c s O8|", "HD kn s1 O7|HD kn O8|"),
        (
            "ms n 1|1|ma n k s f h l t O9|ma n T30 t|ma p N90 T30 J5 v t|",
            "HD|HD kn t-1 O9|HD t30|VA 1 t30|5|",
        ),
        (
            "mg a S5|mg a z|ma a S|",
            &format!("CLIENT_ERROR invalid flag|CLIENT_ERROR invalid flag|{BAD_FLAG_OF_MA}"),
        ),
        (
            "mg a Dx|mg a Jx|mg a Cx|mg a T|",
            &format!(
                "CLIENT_ERROR invalid numeric delta value|CLIENT_ERROR invalid numeric initial value|{BAD_TOKEN}{BAD_TOKEN}"
            ),
        ),
        ("ms a 1 Fx|1|ma a Dx|ma a k k|", &format!("{BAD_LINE}{BAD_FLAG_OF_MA}{BAD_FLAG_OF_MA}")),
        (&format!("mg q {opaque}|mg q {long}|"), &format!("EN {opaque}|CLIENT_ERROR opaque token too long|")),
        (&format!("mg a {many} E1 D1 J1|"), "CLIENT_ERROR options flags are too long|"),
        // The rest of a value that is dropped: flags, time and number.
        ("ms a 3 F5 E7 T30|abc|md a x|mg a v t f c|", "HD|HD|VA 0 t-1 f0 c7||"),
        ("ms a 3 F5 E7 T30|abc|md a x I F9 T60 E8|mg a v t f c|", "HD|HD|VA 0 t60 f9 c8 X W||"),
        ("ms a 1|1|md a T60|mg a|", "HD|HD|EN|"),
    ]);
}

/// Times of accesses are those of the starts of their minutes, or of a pause without requests.
#[test]
fn the_time_since_the_last_access_is_told() {
    let mut client = Client::new();
    // A small pair has it from the first request for it on.
    client.talk("ms item 2 T0 F1|ab|ms x 1|1|mg x l|", "HD|HD|HD l0|");
    client.partitions.wait(100);
    client.talk("mg item u l h|mg x l t|", "HD l100 h0|HD l100 t-1|");
    client.talk("mg item l h|mg item l h|", "HD l100 h0|HD l0 h1|");
    client.partitions.wait(30);
    // The minute began 30 s ago, when `x` was read as well.
    client.talk("mg x l|gat 0 item|", "HD l30|VALUE item 1 2|ab|END|");
    client.partitions.wait(3600);
    let debug = client.send(b"me item\r\n");
    assert!(debug.starts_with(b"ME item exp=-1 la=3630 cas="), "{}", String::from_utf8_lossy(&debug));
    let dump = client.send(b"lru_crawler metadump all\r\n");
    let dump = String::from_utf8(dump).expect("text");
    let mut lines = dump.lines().filter(|line| !["OK", "END"].contains(line));
    assert!(lines.all(|line| line.contains(" la=1700000100 ")), "{dump}");
}

#[test]
fn a_stored_number_is_read_as_memcached_reads_it() {
    const NOT_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value|";
    let long = format!("{}7", "0".repeat(29));
    for (stored, sum) in
        [(" 1", "2 "), ("+5", "6 "), ("5 x", "6  "), ("\t5", "6 "), ("-0", "1 "), (&*long, "8")]
    {
        let (length, padded) = (stored.len(), format!("{sum:0$}", stored.len()));
        let said = format!("set n 0 0 {length}|{stored}|incr n 1|get n|");
        talk(&[(&said, &format!("STORED|{}|VALUE n 0 {length}|{padded}|END|", sum.trim_end()))]);
    }
    for stored in ["", " ", "-5", "1.5", "0x1", "+", "18446744073709551616"] {
        let said = format!("set n 0 0 {}|{stored}|incr n 1|", stored.len());
        talk(&[(&said, &format!("STORED|{NOT_NUMERIC}"))]);
    }
}

#[test]
fn one_client_makes_a_value_anew_while_the_others_wait() {
    // The winner stores too late: the value stays stale, and no other client gets the win token.
    talk(&[
        (
            "ms a 1 E100 T90|1|md a I E200|mg a v|ms a 1 C100 I T5|2|mg a v t|",
            "HD|HD|VA 1 X W|1|HD|VA 1 t90 Z X|2|",
        ),
        ("ms b 1 E100|1|ms b 1 C300 I|2|mg b v|", "HD|EX|VA 1|1|"),
    ]);
    talk(&[
        ("mg a N30 v t|", "VA 0 t30 W||"),
        ("mg a N30 v|mg a v|", "VA 0 Z||VA 0 Z||"),
        ("ms a 1 T90|1|mg a v|mg a R30|mg a R100|mg a R100|", "HD|VA 1|1|HD|HD W|HD Z|"),
        ("ms a 1|1|md a I T30|mg a v t|mg a v|", "HD|HD|VA 1 t30 X W|1|VA 1 Z X|1|"),
        ("ms a 1|2|mg a v|", "HD|VA 1|2|"),
    ]);
}

#[test]
fn given_numbers_are_kept_and_compared() {
    talk(&[
        ("ms a 1 c E1000|1|mg a c|", "HD c1000|HD c1000|"),
        ("ms a 1 C999|2|ms b 1 C1|2|ms a 1 C1000 E1001|2|mg a c v|", "EX|NF|HD|VA 1 c1001|2|"),
        ("ms a 1 C5 I|3|mg a v|", "HD|VA 1 X W|3|"),
        ("md a C5|ms a 1 E7|1|md a C7|", "EX|HD|HD|"),
    ]);
}

fn packet(opcode: u8, extra: &[u8], key: &[u8], value: &[u8], cas: u64) -> Vec<u8> {
    let mut bytes = vec![0x80, opcode];
    bytes.extend((key.len() as u16).to_be_bytes());
    bytes.extend([extra.len() as u8, 0, 0, 0]);
    bytes.extend(((extra.len() + key.len() + value.len()) as u32).to_be_bytes());
    bytes.extend(0xdead_beefu32.to_be_bytes());
    bytes.extend(cas.to_be_bytes());
    [&bytes[..], extra, key, value].concat()
}

/// Opcode, status, extras + key + value, and CAS number of each response.
fn responses(mut bytes: &[u8]) -> Vec<(u8, u16, Vec<u8>, u64)> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        assert_eq!((bytes[0], &bytes[12..16]), (0x81, &0xdead_beefu32.to_be_bytes()[..]));
        let status = u16::from_be_bytes([bytes[6], bytes[7]]);
        let length = u32::from_be_bytes(bytes[8..12].try_into().expect("four")) as usize;
        let cas = u64::from_be_bytes(bytes[16..24].try_into().expect("eight"));
        all.push((bytes[1], status, bytes[24..24 + length].to_vec(), cas));
        bytes = &bytes[24 + length..];
    }
    all
}

#[test]
fn the_binary_protocol_is_spoken() {
    for count in [1, 3, IN_PLACE] {
        let mut client = Client::with(count);
        let mut ask = |bytes: Vec<u8>| responses(&client.send(&bytes));
        let set = ask(packet(0x01, &[0, 0, 0, 7, 0, 0, 0, 0], b"a", b"xyz", 0));
        let cas = set[0].3;
        assert!(set[0].1 == 0 && cas != 0);
        assert_eq!(ask(packet(0x00, &[], b"a", &[], 0)), [(0, 0, b"\0\0\0\x07xyz".to_vec(), cas)]);
        assert_eq!(ask(packet(0x0c, &[], b"a", &[], 0)), [(0x0c, 0, b"\0\0\0\x07axyz".to_vec(), cas)]);
        assert_eq!(ask(packet(0x00, &[], b"b", &[], 0))[0].1, 1);
        // Quiet commands answer only when there is something to report.
        let quiet = [
            packet(0x09, &[], b"b", &[], 0),
            packet(0x0d, &[], b"a", &[], 0),
            packet(0x0a, &[], &[], &[], 0),
        ];
        let answers = ask(quiet.concat());
        assert_eq!(answers.iter().map(|answer| answer.0).collect::<Vec<_>>(), [0x0d, 0x0a]);
        assert_eq!(ask(packet(0x01, &[0; 8], b"a", b"new", cas + 1))[0].1, 2);
        assert_eq!(ask(packet(0x01, &[0; 8], b"a", b"new", cas))[0].1, 0);
        assert_eq!(ask(packet(0x02, &[0; 8], b"a", b"new", 0))[0].1, 2);
        assert_eq!(ask(packet(0x03, &[0; 8], b"b", b"new", 0))[0].1, 1);
        assert_eq!(ask(packet(0x0e, &[], b"a", b"er", 0))[0].1, 0);
        assert_eq!(ask(packet(0x00, &[], b"a", &[], 0))[0].2, b"\0\0\0\0newer");
        assert_eq!(ask(packet(0x0e, &[], b"c", b"er", 0))[0].1, 5);
        let by = |delta: u64, initial: u64, exptime: u32| {
            [&delta.to_be_bytes()[..], &initial.to_be_bytes(), &exptime.to_be_bytes()].concat()
        };
        assert_eq!(ask(packet(0x05, &by(1, 10, u32::MAX), b"n", &[], 0))[0].1, 1);
        assert_eq!(ask(packet(0x05, &by(1, 10, 0), b"n", &[], 0))[0].2, 10u64.to_be_bytes());
        assert_eq!(ask(packet(0x05, &by(1, 10, 0), b"n", &[], 0))[0].2, 11u64.to_be_bytes());
        assert_eq!(ask(packet(0x06, &by(20, 10, 0), b"n", &[], 0))[0].2, 0u64.to_be_bytes());
        assert_eq!(ask(packet(0x05, &by(1, 10, 0), b"a", &[], 0))[0].1, 6);
        assert_eq!(ask(packet(0x1c, &60u32.to_be_bytes(), b"a", &[], 0))[0].1, 0);
        assert_eq!(ask(packet(0x1d, &60u32.to_be_bytes(), b"a", &[], 0))[0].2, b"\0\0\0\0newer");
        assert_eq!(ask(packet(0x04, &[], b"a", &[], 0))[0].1, 0);
        assert_eq!(ask(packet(0x04, &[], b"a", &[], 0))[0].1, 1);
        assert_eq!(ask(packet(0x0b, &[], &[], &[], 0))[0].2, VERSION.as_bytes());
        assert_eq!(ask(packet(0x20, &[], &[], &[], 0))[0].1, 0x81);
        assert_eq!(ask(packet(0x21, &[], b"PLAIN", b"x", 0))[0].1, 0x81);
        // A value that is too large removes the old one, if the request stores unconditionally.
        let big = vec![0; 2 << 20];
        assert_eq!(ask(packet(0x01, &[0; 8], b"big", b"small", 0))[0].1, 0);
        assert_eq!(ask(packet(0x03, &[0; 8], b"big", &big, 0))[0].1, 3);
        assert_eq!(ask(packet(0x00, &[], b"big", &[], 0))[0].1, 0);
        let answers =
            ask([packet(0x11, &[0; 8], b"big", &big, 0), packet(0x00, &[], b"big", &[], 0)].concat());
        assert_eq!(answers.iter().map(|answer| answer.1).collect::<Vec<_>>(), [3, 1]);
        assert_eq!(ask(packet(0x01, &[0; 7], b"a", b"x", 0))[0].1, 4);
        assert_eq!(ask(packet(0x00, &[], &[b'k'; 251], &[], 0))[0].1, 4);
        let stats = ask(packet(0x10, &[], &[], &[], 0));
        assert!(stats.len() > 30 && stats.last().is_some_and(|last| last.2.is_empty()));
        assert_eq!(ask(packet(0x08, &[], &[], &[], 0))[0].1, 0);
        assert_eq!(ask(packet(0x00, &[], b"n", &[], 0))[0].1, 1);
        // Contradictory lengths.
        let mut broken = packet(0x00, &[], b"a", &[], 0);
        broken[2] = 0xff;
        assert!(client.send(&broken).is_empty() && client.is_closed);
    }
}

const SCRIPT: &[u8] = b"set a 1 0 3\r\nabc\r\nget a b a\r\nms k 2 T0 c\r\nhi\r\nmg k v s\r\nincr n 1\r\nset n 0 0 1 noreply\r\n5\r\n\
    incr n 1\r\nset big 0 0 20\r\n01234567890123456789\r\ngets big\r\ngat 0 a n\r\nset bad 0 0 2\r\nxyz\r\nbogus\r\nmd k q\r\nmn\r\n\
    set w -1 0 4\r\nabcd\r\nget a\r\nget a b\r\nget b a \r\nget  a\r\nget a\nget a k\r\nget\r\nget a\x01 k\r\ngets a\r\nget k\r\n\
    version\r\nflush_all\r\nget a\r\n";

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The answers do not depend on how the input is split, or on which partitions have the keys.
    #[test]
    fn any_split_gives_the_same_answers(cuts in prop::collection::vec(0..SCRIPT.len(), 0..20), count in 1usize..4) {
        let expected = Client::with(count).send(SCRIPT);
        let mut cuts = cuts;
        cuts.push(SCRIPT.len());
        cuts.sort_unstable();
        let (mut client, mut answer, mut start) = (Client::with(count), Vec::new(), 0);
        for cut in cuts {
            answer.extend(client.send(&SCRIPT[start..cut]));
            start = cut;
        }
        prop_assert_eq!(String::from_utf8_lossy(&answer), String::from_utf8_lossy(&expected));
    }

    /// Consecutive additions are answered as if each came alone, whatever they add up to.
    #[test]
    fn additions_together_are_the_same_as_one_after_the_other(
        start in prop_oneof![Just("".to_owned()), Just("text".to_owned()), (0..u64::MAX, 0..64u32).prop_map(|(number, shift)| (number >> shift).to_string())],
        commands in prop::collection::vec(
            (prop::sample::select(vec!["a", "b", "a", "a", "longer-than-eight"]), any::<u64>(), 0..64u32, 0..12u32), 1..100
        ),
        count in 1usize..3,
    ) {
        let lines = commands.iter().map(|(key, number, shift, kind)| match kind {
            0 => format!("incr {key} {} noreply\r\n", number >> shift),
            1 => format!("decr {key} {}\r\n", number >> shift),
            2 => format!("gets {key}\r\n"),
            3 => format!("incr {key}  0{}\r\n", number >> shift),
            4 => format!("incr {key} 1x\r\n"),
            5 => format!("set {key} 0 0 1\r\n9\r\n"),
            _ => format!("incr {key} {}\r\n", number >> shift),
        });
        let lines: Vec<_> = lines.collect();
        let [mut together, mut alone] = [(); 2].map(|()| {
            let mut client = Client::with(count);
            for key in ["a", "b"].into_iter().filter(|_| !start.is_empty()) {
                client.send(format!("set {key} 0 0 {}\r\n{start}\r\n", start.len()).as_bytes());
            }
            client
        });
        let answer = together.send(lines.concat().as_bytes());
        let expected: Vec<u8> = lines.iter().flat_map(|line| alone.send(line.as_bytes())).collect();
        prop_assert_eq!(String::from_utf8_lossy(&answer), String::from_utf8_lossy(&expected));
        let [hits, expected_hits] = [&mut together, &mut alone].map(|client| {
            client.partitions.all.iter().map(|(_, service)| service.counters.increment_hit_count).sum::<u64>()
        });
        prop_assert_eq!(hits, expected_hits);
    }

    /// No input causes a panic.
    #[test]
    fn anything_may_be_sent(
        pieces in prop::collection::vec(prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40),
            prop::sample::select(vec![
                "set a 0 0 5\r\n", "get a", " b", "\r\n", "ms a 3 ", "mg a ", "b ", "k O1 v ", "ma n N0 J5 D3 v\r\n", "incr a 1\r\n",
                "gat 5 ", "cas a 0 0 1 5\r\n1\r\n", "append a 0 0 1\r\nx\r\n", "abc\r\n", "touch a 5\r\n", "me a\r\n", "N30 W X x I ",
                "md a I\r\n", "stats\r\n", "flush_all 1\r\n", "T-1 R5 E3 C4 F7 M? ", "\0",
            ]).prop_map(|text| text.as_bytes().to_vec()),
            (any::<u8>(), prop::sample::select(vec![0usize, 4, 8, 20]), 0usize..4).prop_map(|(opcode, extra, key)| {
                packet(opcode % 0x26, &vec![1; extra], &b"abcd"[..key], b"", 0)
            }),
        ], 0..40),
        is_binary: bool,
    ) {
        let mut client = Client::with(2);
        if is_binary {
            client.send(&packet(0x0a, &[], &[], &[], 0));
        }
        for piece in pieces {
            client.send(&piece);
        }
    }
}

/// Keys are prefetched ahead of their turn, and pairs expire in between.
#[test]
fn pairs_that_end_are_in_no_answer_of_a_line_of_keys() {
    for count in [1, 3, IN_PLACE] {
        let mut client = Client::with(count);
        let mut line = "get".to_owned();
        let mut expected = String::new();
        for at in 0..500 {
            // Some pairs are in the index and some are not, and a third of all expires.
            let (key, value) = (format!("key-{at}"), "v".repeat(at % 40));
            let exptime = if at % 3 == 0 { 1 } else { 0 };
            let store = format!("set {key} 0 {exptime} {}\r\n{value}\r\n", value.len());
            assert_eq!(client.send(store.as_bytes()), b"STORED\r\n");
            // Twice, so that one is prefetched before the pair expires.
            line += &format!(" {key} {key}");
            if exptime == 0 {
                expected += &format!("VALUE {key} 0 {}\r\n{value}\r\n", value.len()).repeat(2);
            }
        }
        client.partitions.wait(2);
        let answer = client.send(format!("{line}\r\n").as_bytes());
        assert_eq!(String::from_utf8_lossy(&answer), expected + "END\r\n");
        let ended = |at| client.partitions.at(at).partition.processor.counters().expired_count;
        assert_eq!((0..count).map(ended).sum::<u64>(), 167);
    }
}

#[test]
fn a_key_that_is_too_long_spoils_its_line_wherever_it_is() {
    let (fine, long) = ("k".repeat(250), "k".repeat(251));
    for line in [format!("get {long}"), format!("get {fine} {long} a"), format!("get a {long}")] {
        let mut client = Client::with(1);
        assert_eq!(client.send(format!("set {fine} 0 0 1\r\nv\r\n").as_bytes()), b"STORED\r\n");
        let found = if line.contains(&format!("{fine} ")) {
            format!("VALUE {fine} 0 1\r\nv\r\n")
        } else {
            String::new()
        };
        let answer = client.send(format!("{line}\r\nmn\r\n").as_bytes());
        let expected = found + "CLIENT_ERROR bad command line format\r\nMN\r\n";
        assert_eq!(String::from_utf8_lossy(&answer), expected, "{line}");
    }
}

/// A client that does not read cannot make answers take more than a few values' memory, wherever its keys are.
#[test]
fn who_reads_nothing_gets_little_executed() {
    [1, 3, IN_PLACE].into_iter().for_each(who_reads_nothing_of);
}

fn who_reads_nothing_of(count: usize) {
    const VALUE_BYTES: usize = 100_000;
    let mut client = Client::with(count);
    let mut keys = Vec::new();
    for at in 0..8 {
        let mut store = format!("set k{at} 0 0 {VALUE_BYTES}\r\n").into_bytes();
        store.resize(store.len() + VALUE_BYTES, b'v');
        store.extend_from_slice(b"\r\n");
        assert_eq!(client.send(&store), b"STORED\r\n");
        keys.push(format!("get k{at}\r\n"));
    }
    let asked = keys.concat().repeat(500);
    let mut progress = client.session.on_bytes(&mut client.partitions, asked.as_bytes());
    let mut executed = 0;
    while progress == Progress::Stalled {
        // Nothing is sent: once the answers are here, no further commands are issued.
        let count = client.partitions.sent.len();
        client.partitions.deliver(&mut client.session);
        progress = client.session.resume(&mut client.partitions);
        executed += count;
        if client.partitions.sent.is_empty() {
            break;
        }
    }
    assert!(client.session.is_full(), "{executed} executed elsewhere");
    assert!(client.session.output().len() < 80 * VALUE_BYTES, "{} bytes", client.session.output().len());
    let mut answered = Vec::new();
    loop {
        answered.extend_from_slice(client.session.output());
        let count = client.session.output().len();
        client.session.on_sent(count);
        if client.session.resume(&mut client.partitions) != Progress::Stalled {
            client.partitions.deliver(&mut client.session);
            answered.extend_from_slice(client.session.output());
            break;
        }
        client.partitions.deliver(&mut client.session);
    }
    let ends = answered.windows(5).filter(|bytes| bytes == b"END\r\n").count();
    assert_eq!(ends, 4000, "all is answered once it is read");
}

/// Short answers behind one that another partition does not give yet take little memory each, so their number is limited.
#[test]
fn behind_an_awaited_answer_no_more_than_4096_are_kept() {
    const COMMAND_COUNT: usize = 6000;
    let mut client = Client::with(2);
    let is_elsewhere = |key: &String| {
        client.session.on_bytes(&mut client.partitions, format!("delete {key}\r\n").as_bytes());
        !std::mem::take(&mut client.partitions.sent).is_empty()
    };
    let key = (0..).map(|at| format!("key-{at}")).find(is_elsewhere).expect("half of all");
    let mut client = Client::with(2);
    let said = format!("get {key}\r\n") + &format!("delete {key}\r\n").repeat(COMMAND_COUNT);
    let mut progress = client.session.on_bytes(&mut client.partitions, said.as_bytes());
    let awaited = client.partitions.sent.remove(0);
    let mut executed = 0;
    while !client.partitions.sent.is_empty() {
        executed += client.partitions.sent.len();
        client.partitions.deliver(&mut client.session);
        progress = client.session.resume(&mut client.partitions);
    }
    assert_eq!((progress, client.session.output().len()), (Progress::Stalled, 0));
    assert!((4000..=4096).contains(&executed), "{executed} executed");
    client.partitions.sent.push(awaited);
    client.partitions.deliver(&mut client.session);
    let mut answer = Vec::new();
    while client.session.resume(&mut client.partitions) == Progress::Stalled
        || !client.partitions.sent.is_empty()
    {
        client.partitions.deliver(&mut client.session);
        answer.extend_from_slice(client.session.output());
        client.session.on_sent(client.session.output().len());
    }
    assert!(answer == ("END\r\n".to_owned() + &"NOT_FOUND\r\n".repeat(COMMAND_COUNT)).as_bytes());
}

#[test]
fn a_value_whose_namespace_is_replaced_while_it_arrives_ends_the_connection() {
    for length in [200_000, 1_500_000] {
        let mut client = client_of_large(1, 16 << 20, Eviction::Clock);
        client.send(format!("set a 0 0 {length}\r\n0123456789").as_bytes());
        assert!(client.session.is_within_command());
        let settings = Settings { memory_bytes: 16 << 20, seed: 7, ..Settings::default() };
        client.partitions = Partitions::new(1, &settings, *client.partitions.all[0].1.settings());
        client.send(&vec![b'x'; length]);
        assert!(client.is_closed);
        assert_eq!(client.partitions.at(0).partition.processor.counters().pair_count, 0);
    }
}

/// A client that has to authenticate.
fn authenticating() -> Client {
    Client { session: Session::authenticating(ListenerSettings::default()), ..Client::with(2) }
}

#[test]
fn no_command_is_executed_before_the_client_has_authenticated() {
    let mut client = authenticating();
    client.talk("set a 0 0 1|1|", "CLIENT_ERROR bad authentication token format|");
    client.talk("get a|stats|", "CLIENT_ERROR unauthenticated|CLIENT_ERROR unauthenticated|");
    client.talk(
        "set a 0 0 10|user passwo|",
        "CLIENT_ERROR bad command line termination|CLIENT_ERROR unauthenticated|",
    );
    client.talk("set a 0 0 8|user pas|", "CLIENT_ERROR authentication failure|");
    assert!(client.session.is_unauthenticated());
    client.talk(
        "set a 0 0 13|user password|get a|set a 0 0 1|1|get a|",
        "STORED|END|STORED|VALUE a 0 1|1|END|",
    );
    assert!(!client.session.is_unauthenticated());
    // As with memcached a second attempt is a plain store.
    client.talk("set b 0 0 13|user password|get b|", "STORED|VALUE b 0 13|user password|END|");
}

#[test]
fn a_session_that_authenticates_speaks_text_only() {
    let mut client = authenticating();
    assert!(client.send(&[0x80, 0x0b, 0, 0]).is_empty() && client.is_closed);
    let mut client = authenticating();
    client.talk("set a 0 0 13|user password|", "STORED|");
    // A packet of the binary protocol is a line.
    let answer = client.send(b"\x80\x0b\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\r\n");
    assert_eq!(answer, b"ERROR\r\n");
}

#[test]
fn settings_say_what_the_listener_asks_of_clients() {
    let mut client = Client::new();
    let settings = String::from_utf8(client.send(b"stats settings\r\n")).expect("text");
    for line in ["STAT auth_enabled_ascii no\r\n", "STAT ssl_enabled no\r\n"] {
        assert!(settings.contains(line), "{settings}");
    }
}
