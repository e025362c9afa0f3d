#!/usr/bin/env bash
# A namespace taken out of the configuration disappears from the kernel by itself; I/O to
# it ends, I/O to the other goes on; it comes back with its data when it is put back.
# Outside: namespaces 1 of 64 MiB and 2 of 32 MiB in files; removes and adds 2 when asked.
. /lab/lib.sh

expect_disruption
connect
wait_for 10 has_disk 2
head -c 4M /dev/urandom >/tmp/data
dd if=/tmp/data of="$(disk_of 2)" bs=1M oflag=direct status=none
verified_fio --name=load --filename="$DISK" --rw=randrw --bs=16k --size=16M --iodepth=8 --rate_iops=100,100 &
fio=$!
dd if="$(disk_of 2)" of=/dev/null bs=4k iflag=direct status=none 2>/dev/null &
reader=$!
outside namespaces 1=file:disk:64M
wait_for 10 eval '! has_disk 2'
wait_for 10 test ! -d /proc/$reader
outside namespaces 1=file:disk:64M 2=file:other:32M
wait_for 10 has_disk 2
dd if="$(disk_of 2)" bs=1M count=4 iflag=direct status=none | cmp - /tmp/data || fail "data differs"
wait $fio
