//! The udev link of a namespace: the same on every Linux host, and unique to the namespace. The number in
//! `/dev/nvme0n1` is assigned by the kernel and may change with each connect.

use wire::uuid::Uuid;

/// The link to the namespace with these identities, formed as Linux forms its `wwid`; `None` without a globally unique
/// identifier.
pub(crate) fn disk_path(
    uuid: Option<Uuid>,
    nguid: Option<[u8; 16]>,
    eui64: Option<[u8; 8]>,
) -> Option<String> {
    let hex = |bytes: &[u8]| {
        let is_known = bytes.iter().any(|byte| *byte != 0);
        is_known.then(|| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    };
    let eui =
        || nguid.and_then(|nguid| hex(&nguid)).or_else(|| hex(&eui64?)).map(|digits| format!("eui.{digits}"));
    let wwid = uuid.filter(|uuid| !uuid.is_nil()).map(|uuid| format!("uuid.{uuid}")).or_else(eui)?;
    Some(format!("/dev/disk/by-id/nvme-{wwid}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux 6.1 and 6.12, drivers/nvme/host: the UUID goes before the NGUID, and that before the EUI-64.
    #[test]
    fn the_link_is_named_as_linux_names_the_namespace() {
        let uuid: Uuid = "801301fa-a9ed-57a4-ada0-31f0ede1153f".parse().expect("well formed");
        let path = |uuid, nguid, eui64| disk_path(uuid, nguid, eui64).unwrap_or_default();
        let by_uuid = "/dev/disk/by-id/nvme-uuid.801301fa-a9ed-57a4-ada0-31f0ede1153f";
        assert_eq!(path(Some(uuid), Some([0xAB; 16]), Some([1; 8])), by_uuid);
        let by_nguid = format!("/dev/disk/by-id/nvme-eui.{}", "ab".repeat(16));
        assert_eq!(path(Some(Uuid::from_bytes([0; 16])), Some([0xAB; 16]), Some([1; 8])), by_nguid);
        assert_eq!(path(None, Some([0; 16]), Some([1; 8])), "/dev/disk/by-id/nvme-eui.0101010101010101");
        assert_eq!(path(None, None, None), "");
    }
}
