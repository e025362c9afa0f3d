#!/usr/bin/env bash
# Another program makes a namespace's file longer, and the kernel's disk grows by itself. It cuts the file, and
# nothing on that disk succeeds any more, until the file is long again and the target reloaded; a sync of what was written
# before then fails once. The namespace beside it goes on.
# Outside: namespace 1 of 64 MiB in a file whose size the configuration does not say, namespace 2 of 32 MiB.
. /lab/lib.sh

stand_in && skip "nvmet does not look after its files"
connect
wait_for 10 has_disk 2
OTHER=$(disk_of 2)
head -c 8M /dev/urandom >/tmp/data
dd if=/tmp/data of="$DISK" bs=1M oflag=direct conv=fsync status=none
outside size disk 96
wait_for 30 eval '[ "$(bytes_of "$DISK")" = $((96 << 20)) ]'
dd if=/tmp/data of="$DISK" bs=1M seek=88 oflag=direct conv=fsync status=none
dd if="$DISK" bs=1M skip=88 iflag=direct status=none | cmp - /tmp/data || fail "new data differs"

expect_disruption
outside size disk 64
! dd if=/tmp/data of="$DISK" bs=1M count=1 oflag=direct status=none || fail "a write to a cut file succeeds"
outside size disk 96
! dd if=/tmp/data of="$DISK" bs=1M count=1 oflag=direct status=none || fail "a write succeeds before the reload"
! dd if="$DISK" of=/dev/null bs=1M skip=88 count=1 iflag=direct status=none || fail "zeroes are read where data was"
! blockdev --flushbufs "$DISK" || true
! dd if=/dev/zero of="$DISK" bs=4k count=1 conv=fsync status=none || fail "a sync succeeds before the reload"
same_data "$OTHER" 8

outside reload
can_write() { dd if=/tmp/data of="$DISK" bs=1M oflag=direct status=none; }
wait_for 30 can_write
[ "$(bytes_of "$DISK")" = $((96 << 20)) ] || fail "the disk has $(bytes_of "$DISK") bytes"
# Its first flush may say once more that something was lost.
can_sync() { dd if=/tmp/data of="$DISK" bs=1M oflag=direct conv=fsync status=none; }
wait_for 30 can_sync
dd if="$DISK" bs=1M count=8 iflag=direct status=none | cmp - /tmp/data || fail "data differs"
