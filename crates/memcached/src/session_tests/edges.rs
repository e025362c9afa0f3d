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
