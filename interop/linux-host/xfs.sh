#!/usr/bin/env bash
# XFS: what was written and fsynced is there after unmount, remount and a fresh connect,
# and xfs_repair finds nothing to repair.
# Outside: namespace 1 of 512 MiB in a file, with 4096-byte blocks.
. /lab/lib.sh

connect --hdr-digest
mkfs.xfs -q "$DISK"
write_and_reconnect
xfs_repair -n "$DISK" >/tmp/repair 2>&1 || { cat /tmp/repair; fail "xfs_repair"; }
mount -o ro "$DISK" /mnt
check_files /mnt
