#!/usr/bin/env bash
# nvme discover lists the subsystem with its advertised address, on the discovery port
# and on the I/O port alike, and says which entry is the discovery subsystem itself.
# Outside: a target on both ports that advertises $TARGET_ADDR.
. /lab/lib.sh

for port in "$DISCOVERY_PORT" "$TARGET_PORT"; do
    nvme discover -t tcp -a "$TARGET_ADDR" -s "$port" -o json >/tmp/log
    ./holds <"/tmp/log" 'genctr >= 1' 'len(records) >= 1' \
        'all(r["trtype"] == "tcp" and r["adrfam"] == "ipv4" for r in records)' \
        'all(r["traddr"] == env["TARGET_ADDR"] for r in records)' \
        '[r["trsvcid"] for r in records if r["subtype"] == "nvme subsystem" and r["subnqn"] == env["TARGET_NQN"]].count(env["TARGET_PORT"]) == 1' \
        'all(r["subnqn"].startswith("nqn.") for r in records if r["subtype"] == "current discovery subsystem")'
done
[ -z "$(ls /sys/class/nvme)" ] || fail "a discovery controller stayed behind"
