#!/usr/bin/env bash
# ext4: what was written and fsynced is there after unmount, remount and a fresh connect,
# and fsck finds nothing to repair.
# Outside: namespace 1 of 512 MiB in a file.
. /lab/lib.sh

connect --data-digest
mkfs.ext4 -q "$DISK"
write_and_reconnect
fsck.ext4 -fn "$DISK" >/tmp/fsck || { cat /tmp/fsck; fail "fsck.ext4"; }
mount -o ro "$DISK" /mnt
check_files /mnt
