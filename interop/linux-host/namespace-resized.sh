#!/usr/bin/env bash
# A namespace that grows in the configuration grows in the kernel by itself; its data stays,
# the new space reads as zeroes and can be written.
# Outside: namespace 1 of 64 MiB in a file; makes it 96 MiB when asked.
. /lab/lib.sh

connect
head -c 8M /dev/urandom >/tmp/data
dd if=/tmp/data of="$DISK" bs=1M oflag=direct status=none
outside namespaces 1=file:disk:96M
wait_for 10 eval '[ "$(bytes_of "$DISK")" = $((96 << 20)) ]'
dd if="$DISK" bs=1M count=8 iflag=direct status=none | cmp - /tmp/data || fail "old data differs"
dd if="$DISK" bs=1M skip=64 count=32 iflag=direct status=none | cmp - <(head -c 32M /dev/zero) || fail "new space is not zero"
dd if=/tmp/data of="$DISK" bs=1M seek=88 oflag=direct status=none
dd if="$DISK" bs=1M skip=88 iflag=direct status=none | cmp - /tmp/data || fail "new data differs"
