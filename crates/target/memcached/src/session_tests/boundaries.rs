//! The numbers of memcached's documents, each one below, at and one above.

use super::*;

/// The wall clock of the partitions, s.
const NOW_S: i64 = 1_700_000_000;

/// A line of the table as bytes: `|` is the end of a line and `\n` a line feed alone, `{x*250}` repeats, and `{now+1}`
/// is a time on the wall clock, `{5-now}` how long it is until one.
fn expand(line: &str) -> String {
    let mut bytes = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('{') {
        let (inner, behind) = after.split_once('}').expect("a closing brace");
        bytes.push_str(before);
        let number = |text: &str| text.parse::<i64>().expect("a number");
        if let Some((text, count)) = inner.split_once('*') {
            bytes.push_str(&text.repeat(count.parse().expect("a count")));
        } else if let Some(time) = inner.strip_suffix("-now") {
            bytes.push_str(&(number(time) - NOW_S).to_string());
        } else {
            let shift = inner.strip_prefix("now").expect("a repetition or a time");
            bytes.push_str(&(NOW_S + if shift.is_empty() { 0 } else { number(shift) }).to_string());
        }
        rest = behind;
    }
    bytes.push_str(rest);
    bytes.replace('|', "\r\n").replace("\\n", "\n")
}

/// The scripts (`>`) of a table to which `answer` gives another answer than the table (`<`, or `!` where nvlane's is
/// meant to differ from memcached's). Partitions do not matter to it.
fn differing(table: &str, answer: impl Fn(&mut Client, &str) -> String) -> String {
    let mut wrong = String::new();
    let mut lines = table.lines().peekable();
    while let Some(said) = lines.next() {
        let said = said.strip_prefix("> ").expect("a script");
        let mut expected = lines.next().and_then(|line| line.strip_prefix("< ")).expect("its answer");
        if let Some(differs) = lines.next_if(|line| line.starts_with('!')) {
            expected = differs.strip_prefix("! ").expect("another answer");
        }
        for count in [1, 3, IN_PLACE] {
            let mut client = Client::with(count);
            let mut answer = answer(&mut client, said);
            if client.is_closed {
                answer.push_str(" closed");
            }
            if answer.trim_start() != expand(expected).trim_start() {
                let answer = answer.replace("\r\n", "|").replace('\n', "\\n");
                wrong.push_str(&format!("> {said}\n< {expected}\n! {answer}\n"));
                break;
            }
        }
    }
    wrong
}

/// Scripts (`>`), the answers of memcached 1.6.45 (`<`), and those of nvlane (`!`) where docs/memcached.md lists a
/// difference. An answer ends with ` closed` if the connection was closed after it.
#[test]
fn numbers_of_the_text_and_meta_protocols_end_where_those_of_memcached_do() {
    let table = include_str!("../../tests/boundaries_of_memcached.txt");
    let wrong = differing(table, |client, said| {
        String::from_utf8(client.send(expand(said).as_bytes())).expect("text")
    });
    assert!(wrong.is_empty(), "{wrong}");
}

/// The packet that a part of a script describes: opcode, key, extras in hexadecimal and value, `-` for none of them,
/// and then header fields with other values than these have. `cas=last+1` is one more than the last number of an
/// answer.
fn packet_of(part: &str, last_cas: u64) -> Vec<u8> {
    let part = expand(part);
    let mut words = part.split(' ').map(|word| if word == "-" { "" } else { word });
    let mut word = || words.next().expect("opcode, key, extras and value");
    let opcode = u8::from_str_radix(word(), 16).expect("an opcode");
    let key = word();
    let extras: Vec<u8> = word()
        .as_bytes()
        .chunks(2)
        .map(|digits| std::str::from_utf8(digits).ok().and_then(|text| u8::from_str_radix(text, 16).ok()))
        .collect::<Option<_>>()
        .expect("extras in hexadecimal");
    let mut bytes = packet(opcode, &extras, key.as_bytes(), word().as_bytes(), 0);
    for (name, text) in words.filter_map(|word| word.split_once('=')) {
        let number = || text.parse::<u64>().expect("a number");
        match name {
            "magic" => bytes[0] = u8::from_str_radix(text, 16).expect("a byte"),
            "type" => bytes[5] = number() as u8,
            "vbucket" => bytes[6..8].copy_from_slice(&(number() as u16).to_be_bytes()),
            "body" => bytes[8..12].copy_from_slice(&(number() as u32).to_be_bytes()),
            "cas" => {
                let cas = match text.strip_prefix("last") {
                    Some("") => last_cas,
                    Some(shift) => last_cas.wrapping_add_signed(shift.parse().expect("a number")),
                    None => number(),
                };
                bytes[16..24].copy_from_slice(&cas.to_be_bytes());
            }
            _ => panic!("no field of a header: {name}"),
        }
    }
    bytes
}

/// A part of an answer: printable bytes as they are, others in hexadecimal after an `x`.
fn text_of(bytes: &[u8]) -> String {
    let hexadecimal = || bytes.iter().map(|byte| format!("{byte:02x}"));
    match bytes {
        [] => "-".to_owned(),
        _ if bytes.iter().all(|byte| (b' '..=b'~').contains(byte)) => {
            String::from_utf8_lossy(bytes).replace(' ', "_")
        }
        _ => std::iter::once("x".to_owned()).chain(hexadecimal()).collect(),
    }
}

/// As above, with packets in place of lines. An answer is opcode, status, extras, key and value.
#[test]
fn numbers_of_the_binary_protocol_end_where_those_of_memcached_do() {
    let table = include_str!("../../tests/binary_boundaries_of_memcached.txt");
    let wrong = differing(table, |client, said| {
        let (mut answers, mut last_cas) = (Vec::new(), 0);
        for part in said.split("; ") {
            if client.is_closed {
                break;
            }
            let bytes = client.send(&packet_of(part, last_cas));
            let mut rest = &bytes[..];
            while let Some((head, body)) = rest.split_first_chunk::<24>() {
                let (key, extras) =
                    (usize::from(u16::from_be_bytes([head[2], head[3]])), usize::from(head[4]));
                let (_, status, whole, cas) = responses(
                    &rest[..24 + u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize],
                )
                .remove(0);
                let (extras, more) = whole.split_at(extras);
                let (key, value) = more.split_at(key);
                let extras = text_of(extras).replace('x', "");
                answers.push(format!(
                    "{:02x} {status:x} {extras} {} {}",
                    head[1],
                    text_of(key),
                    text_of(value)
                ));
                last_cas = if cas == 0 { last_cas } else { cas };
                rest = &body[whole.len()..];
            }
        }
        answers.join("; ")
    });
    assert!(wrong.is_empty(), "{wrong}");
}

/// The longest value of the listener, one byte less and one more, in each command that stores one.
#[test]
fn a_value_is_stored_up_to_the_limit_of_the_listener_and_not_beyond() {
    const LARGE: &str = "SERVER_ERROR object too large for cache";
    let whole = ListenerSettings::default().value_bytes_max;
    let value = "v".repeat(whole + 1);
    for length in [whole - 1, whole, whole + 1] {
        let fits = length <= whole;
        let (value, answer) = (&value[..length], if fits { "STORED" } else { LARGE });
        let mut client = Client::new();
        for line in ["set a 0 0", "add b 0 0", "set c 0 0 1|1|replace c 0 0"] {
            let first = if line.contains('|') { "STORED|" } else { "" };
            client.talk(&format!("{line} {length}|{value}|"), &format!("{first}{answer}|"));
        }
        let meta = if fits { "HD" } else { LARGE };
        client.talk(
            &format!("ms d {length}|{value}|mg d s|"),
            &format!("{meta}|{}|", if fits { format!("HD s{length}") } else { "EN".to_owned() }),
        );
        // Two parts of a value, the second of which is appended or prepended.
        let (more, answer) = (length - 7, if fits { "STORED" } else { "NOT_STORED" });
        for verb in ["append", "prepend"] {
            client.talk(
                &format!("set e 0 0 7|{}|{verb} e 0 0 {more}|{}|mg e s|", &value[..7], &value[..more]),
                &format!("STORED|{answer}|HD s{}|", if fits { length } else { 7 }),
            );
        }
        let mut client = Client::new();
        for (opcode, extras) in [(0x01, &[0; 8][..]), (0x0e, &[])] {
            let before = responses(&client.send(&packet(0x01, &[0; 8], b"a", b"", 0))).remove(0).1;
            let status =
                responses(&client.send(&packet(opcode, extras, b"a", value.as_bytes(), 0))).remove(0).1;
            assert_eq!((before, status), (0, if fits { 0 } else { 3 }), "{length} bytes by {opcode:#x}");
        }
    }
}

/// A number is at the start of a value of at most 4096 bytes.
#[test]
fn a_value_is_a_number_up_to_4096_bytes() {
    for (length, answer) in
        [(4095, "8"), (4096, "8"), (4097, "CLIENT_ERROR cannot increment or decrement non-numeric value")]
    {
        let value = format!("7 {}", "x".repeat(length - 2));
        talk(&[(&format!("set n 0 0 {length}|{value}|incr n 1|"), &format!("STORED|{answer}|"))]);
    }
}
