//! Section 10: key-value namespaces.

use crate::finding::{Check, skipped};
use crate::peer::Peer;
use crate::row::Row;

pub(super) const ROWS: &[Row] = &[
    Row::new("K1", "key lengths 0 and above 16", "status 0/86", needs_keys_and_values),
    Row::new(
        "K2",
        "values beyond the limit, buffers below the value",
        "0/85; the size, and no more than fits",
        needs_keys_and_values,
    ),
    Row::new("K3", "Store options that exclude each other", "status 0/02", needs_keys_and_values),
    Row::new("K4", "races for one key", "one winner", needs_keys_and_values),
    Row::new(
        "K5",
        "List from odd keys into small buffers",
        "the right count, whole records",
        needs_keys_and_values,
    ),
    Row::new("K6", "keys that are nearly the same", "distinct", needs_keys_and_values),
    Row::new("K7", "Delete and Store during Retrieve", "one value or the other", needs_keys_and_values),
    Row::new("K8", "as much as fits, then more", "0/81; Delete still works", needs_keys_and_values),
    Row::new("K9", "ten million keys", "memory per key is bounded", needs_keys_and_values),
    Row::new("K10", "one key through two doors", "one history", needs_keys_and_values),
];

fn needs_keys_and_values(_: &Peer) -> Check {
    skipped("not written yet: it needs a key-value namespace")
}
