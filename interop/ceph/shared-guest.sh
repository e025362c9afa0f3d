#!/usr/bin/env bash
# In a guest of shared.sh: two controllers of one subsystem are one disk, which goes on when the target of one of them is killed.
set -eu -o pipefail
say() { echo "guest: $*"; }
fail() { say "FAIL: $*"; exit 1; }
modprobe nvme-tcp
[ "$(cat /sys/module/nvme_core/parameters/multipath)" = Y ] || fail 'no native multipath'
for port in "$ONE" "$TWO"; do
    nvme connect -t tcp -a 10.0.2.2 -s "$port" -n "$NQN" --nr-io-queues 1 --keep-alive-tmo 60 --reconnect-delay 2
done
paths() { cat /sys/class/nvme/nvme*/nvme*c*n*/wwid 2> /dev/null | wc -l; }
for _ in $(seq 100); do [ "$(paths)" = 2 ] && break; sleep 0.1; done
disks=$(for disk in /sys/block/nvme*; do [[ $disk == *nvme*c*n* ]] || echo "${disk##*/}"; done)
[ "$(wc -w <<< "$disks")" = 1 ] && [ "$(paths)" = 2 ] || fail "disks: $disks, paths: $(paths)"
[ "$(cat /sys/class/nvme/nvme*/cntlid | sort -n | tr '\n' ' ' | awk '{ print ($1 <= 1000) ($2 > 1000) }')" = 11 ] || fail 'the controller IDs'
disk=/dev/$disks
say "one disk, $(paths) paths"

# Each round writes other bytes everywhere, and reads them back; the target dies in the second one.
round() {
    openssl enc -aes-128-ctr -K "$(printf '%032x' "$1")" -iv "$(printf '%032x' 0)" -in /dev/zero 2> /dev/null | head -c 32M > /tmp/bytes || true
    [ "$(stat -c %s /tmp/bytes)" = $((32 << 20)) ] || head -c 32M /dev/urandom > /tmp/bytes
    dd if=/tmp/bytes of="$disk" bs=128k oflag=direct status=none
    dd if="$disk" bs=128k iflag=direct status=none | cmp - /tmp/bytes || fail "round $1: other bytes"
}
round 1
(sleep 1; touch /share/kill) &
round 2
round 3
wait
round 4
sha256sum < /tmp/bytes | cut -c1-64 > /share/sum
say "four rounds, one over the remaining path; states: $(cat /sys/class/nvme/nvme*/state | tr '\n' ' ')"
