#!/usr/bin/env bash
# A namespace added to the configuration appears in the kernel by itself, while I/O to
# the first goes on.
# Outside: namespace 1 of 64 MiB; adds namespace 2 of 32 MiB when asked.
. /lab/lib.sh

connect
verified_fio --name=load --filename="$DISK" --rw=randrw --bs=16k --size=16M --iodepth=8 --rate_iops=100,100 &
fio=$!
outside namespaces 1=ram:64M 2=ram:32M
wait_for 10 has_disk 2
disk=$(disk_of 2)
[ "$(bytes_of "$disk")" = $((32 << 20)) ] || fail "$disk has $(bytes_of "$disk") bytes"
same_data "$disk" 4
wait $fio
