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
