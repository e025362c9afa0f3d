#!/usr/bin/env bash
# nvme ns-descs: the configured UUID, as the kernel shows it too, and the NGUID of the
# Identify data; the same after a reconnect.
# Outside: namespaces 1 and 2 with the UUIDs of uuid_of.
. /lab/lib.sh

for round in first second; do
    connect
    wait_for 10 has_disk 2
    for nsid in 1 2; do
        disk=$(disk_of $nsid)
        UUID=$(uuid_of $nsid); export UUID
        [ "$(cat "/sys/block/${disk##*/}/uuid")" = "$UUID" ] || fail "$disk in sysfs, $round time: $(cat "/sys/block/${disk##*/}/uuid")"
        nvme ns-descs "$disk" -o json >/tmp/descs
        ./holds </tmp/descs '[d["uuid"] for d in it["ns-descs"] if d["nidt"] == 3] == [env["UUID"]]' \
            'all(d["csi"] == "0" for d in it["ns-descs"] if d["nidt"] == 4)'
        stand_in || [ "$(nvme id-ns "$disk" -o json | field nguid | tr -d -)" = "$(field nguid </tmp/descs | tr -d -)" ] || fail "$disk: two NGUIDs"
    done
    disconnect
done
