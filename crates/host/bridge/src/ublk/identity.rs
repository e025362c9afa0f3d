//! The mark by which a bridge finds the device of an earlier one: a number that the kernel keeps with each device.

use host::{Association, Namespace};

/// The mark of a namespace's device. Never 0, which is that of other programs.
pub(crate) fn mark_of(association: &Association, namespace: &Namespace) -> u64 {
    let info = namespace.info();
    let text = match (&info.uuid, &info.nguid) {
        (Some(uuid), _) => format!("uuid {uuid}"),
        (None, Some(nguid)) => format!("nguid {nguid:02x?}"),
        (None, None) => format!("{} {}", association.subsystem(), info.nsid),
    };
    fnv(format!("nvlane {text}").as_bytes()).max(1)
}

/// FNV-1a: the same in each version of this program.
fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(fnv(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
