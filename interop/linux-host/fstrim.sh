#!/usr/bin/env bash
# fstrim: the space of a removed file comes back in the backing file, for ext4 and XFS,
# and the file system is whole afterwards.
# Outside: namespace 1 of 512 MiB in the sparse file "disk"; says how much of it is allocated.
. /lab/lib.sh

connect
# Nothing is left for ext4 to initialise later, while we measure.
for mkfs in "mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0" "mkfs.xfs -q -f"; do
    $mkfs "$DISK"
    mount "$DISK" /mnt
    sync
    empty=$(outside allocated-kib disk)
    head -c 48M /dev/urandom >/mnt/file
    sync
    full=$(outside allocated-kib disk)
    rm /mnt/file
    sync
    fstrim /mnt
    trimmed=$(outside allocated-kib disk)
    say "${mkfs%% *}: $empty KiB, with 48 MiB in a file $full, without it $trimmed"
    [ "$full" -ge $((empty + 48 * 1024 - 4096)) ] || fail "48 MiB took $((full - empty)) KiB"
    [ "$trimmed" -le $((full - 44 * 1024)) ] || fail "only $((full - trimmed)) KiB came back"
    umount /mnt
done
xfs_repair -n "$DISK" >/tmp/repair 2>&1 || { cat /tmp/repair; fail "xfs_repair"; }
