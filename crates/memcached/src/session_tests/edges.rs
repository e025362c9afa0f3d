//! Arguments at the edge of what is valid, answered as memcached does.

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
