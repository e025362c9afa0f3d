//! Arguments at the edge of the valid range, answered as memcached does.

use super::*;

#[test]
fn a_key_may_be_called_noreply() {
    talk(&[
        ("set noreply 0 0 1|5|delete noreply|delete noreply|", "STORED|DELETED|NOT_FOUND|"),
        (
            "set noreply 0 0 1|5|touch noreply 10|incr noreply 1|gat 0 noreply|",
            "STORED|TOUCHED|6|VALUE noreply 0 1|6|END|",
        ),
        ("delete noreply noreply|get noreply|", "END|"),
        ("set noreply 0 0 1 noreply|5|md noreply|", "HD|"),
    ]);
}

/// A number that cannot be kept would never match again.
#[test]
fn a_cas_number_of_more_than_48_bits_is_refused() {
    let (last, next) = ((1u64 << 48) - 1, 1u64 << 48);
    const REFUSED: &str = "CLIENT_ERROR CAS number of flag E is not one of 48 bits|";
    talk(&[
        (&format!("ms k 1 E{last}|x|mg k c|ms k 1 C{last}|y|"), &format!("HD|HD c{last}|HD|")),
        (&format!("ms k 1 E{next}|x|ms k 1 E{}|x|mg k v|", u64::MAX), &format!("{REFUSED}{REFUSED}VA 1|y|")),
        (&format!("md k E{next}|md k I E{next}|mn|"), &format!("{REFUSED}{REFUSED}MN|")),
        (&format!("ma k E{next}|"), "CLIENT_ERROR invalid or duplicate flag|"),
        (&format!("ms k 1 E5|x|ms k 1 C{}|y|cas k 0 0 1 {}|z|", next + 5, next + 5), "HD|EX|EXISTS|"),
    ]);
}

/// Number 0 is that of no value.
#[test]
fn a_set_that_expects_number_0_never_matches_and_an_extension_expects_nothing() {
    talk(&[
        ("ms k 1 C0|1|ms k 1 I C0|1|ms k 1 MR C0|1|cas k 0 0 1 0|1|", "NF|NF|NF|NOT_FOUND|"),
        ("ms k 1 E9|1|ms k 1 C0|2|ms k 1 I C0|2|ms k 1 MR C0|2|cas k 0 0 1 0|2|", "HD|EX|EX|EX|EXISTS|"),
        // A stale value, which a number that is too low replaces otherwise.
        ("md k I E9|ms k 1 I C0|2|ms k 1 C0 I T5|2|mg k v c|", "HD|EX|EX|VA 1 c9 X W|1|"),
        ("ms k 1 I C8|2|mg k v|", "HD|VA 1 Z X|2|"),
        ("ms k 1|1|ms k 1 MA C0|2|ms k 1 MP C0|0|ms k 1 MA C1|3|mg k v|", "HD|HD|HD|EX|VA 3|012|"),
        ("ms k 1|1|ma k C0 v|ma k C1 v|md k C0|md k|", "HD|VA 1|2|EX|EX|HD|"),
        ("ms k 1 E7|1|ms k 1 E0|1|ms k 1 C7|2|ms k 1 C0|2|md k C0|", "HD|HD|EX|EX|EX|"),
    ]);
}

/// The value that is too long is not that of the request, so the old value stays.
#[test]
fn an_extension_whose_result_is_too_long_is_not_stored() {
    let (long, half) = ("v".repeat(1_000_000), "w".repeat(100_000));
    talk(&[
        (&format!("set a 5 0 1000000|{long}|"), "STORED|"),
        (&format!("append a 0 0 100000|{half}|prepend a 0 0 100000|{half}|"), "NOT_STORED|NOT_STORED|"),
        (&format!("append a 0 0 100000 noreply|{half}|mn|"), "MN|"),
        (
            &format!("ms a 100000 MA|{half}|ms a 100000 MP k O7|{half}|ms a 100000 MA N0|{half}|"),
            "NS|NS ka O7|NS|",
        ),
        ("mg a s f|append a 0 0 1|x|mg a s|", "HD s1000000 f5|STORED|HD s1000001|"),
        // The value of the request itself: it is refused as that of a set is.
        (
            &format!("append a 0 0 2000000|{long}{long}|mg a s|"),
            "SERVER_ERROR object too large for cache|HD s1000001|",
        ),
    ]);
    let mut client = Client::with(1);
    client.send(&packet(0x01, &[0; 8], b"a", long.as_bytes(), 0));
    for opcode in [0x0e, 0x0f] {
        let answer = responses(&client.send(&packet(opcode, &[], b"a", half.as_bytes(), 0))).remove(0);
        assert_eq!((answer.1, answer.2), (5, b"Not stored.".to_vec()));
    }
}

#[test]
fn a_binary_request_for_unknown_statistics_is_refused() {
    let mut client = Client::with(1);
    for of in [&b"bogus"[..], b"cachedump 1 0", b"detail"] {
        assert_eq!(responses(&client.send(&packet(0x10, &[], of, &[], 0))).remove(0).1, 1);
    }
    for of in [&b"detail on"[..], b"detail dump", b"detail off"] {
        assert_eq!(responses(&client.send(&packet(0x10, &[], of, &[], 0))).remove(0).1, 0);
    }
}

#[test]
fn a_binary_touch_returns_the_flags_also_of_a_pair_that_expires_at_once() {
    let mut client = Client::with(1);
    let mut ask = |bytes: Vec<u8>| responses(&client.send(&bytes)).remove(0);
    let (_, _, _, cas) = ask(packet(0x01, &[0, 0, 0, 7, 0, 0, 0, 0], b"e", b"v", 0));
    for exptime in [100u32, 2_592_001] {
        assert_eq!(ask(packet(0x1c, &exptime.to_be_bytes(), b"e", &[], 0)), (0x1c, 0, vec![0, 0, 0, 7], cas));
    }
    assert_eq!(ask(packet(0x1c, &100u32.to_be_bytes(), b"e", &[], 0)).1, 1);
}
