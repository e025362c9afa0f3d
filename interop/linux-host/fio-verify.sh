#!/usr/bin/env bash
# fio, random reads and writes of 4 KiB to 1 MiB over several queues, every block with a
# CRC32C that is checked when it is read back; with and without digests.
# Outside: namespace 1 of 64 MiB.
. /lab/lib.sh

settings=("--hdr-digest --data-digest")
if whole; then settings+=(""); fi
for digests in "${settings[@]}"; do
    # shellcheck disable=SC2086
    connect --nr-io-queues 2 --nr-write-queues 1 $digests
    verified_fio --filename="$DISK" --rw=randrw --numjobs=2 --offset_increment=32M --stonewall \
        --name=4k --bs=4k --size=4M --iodepth=32 \
        --name=16k --bs=16k --size=4M --iodepth=16 \
        --name=64k --bs=64k --size=8M --iodepth=8 \
        --name=256k --bs=256k --size=16M --iodepth=4 \
        --name=1m --bs=1m --size=16M --iodepth=4
    disconnect
done
