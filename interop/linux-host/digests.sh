#!/usr/bin/env bash
# Header and data digests, alone and together: data of odd and of large sizes arrives
# as it was sent, in capsules, through R2T and in read data.
# Outside: namespace 1 of 64 MiB.
. /lab/lib.sh

head -c 8M /dev/urandom >/tmp/data
for digests in "" "--hdr-digest" "--data-digest" "--hdr-digest --data-digest"; do
    # shellcheck disable=SC2086
    connect $digests
    for bytes in 512 4096 8192 69632 1048576; do
        dd if=/tmp/data of="$DISK" bs="$bytes" count=8 oflag=direct status=none
        dd if="$DISK" bs="$bytes" count=8 iflag=direct status=none |
            cmp - <(head -c $((8 * bytes)) /tmp/data) || fail "$bytes bytes differ with: $digests"
        blkdiscard --zeroout --length $((8 * bytes)) "$DISK"
    done
    disconnect
done
