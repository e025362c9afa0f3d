#!/usr/bin/env bash
# Another file under a namespace in use is not taken at SIGHUP: what ext4 has cached of the first never reaches the second. The rest of the
# reload is applied, and under an NSID of its own the second file is another disk.
# Outside: namespace 1 of 64 MiB in a file; changes namespaces when asked.
. /lab/lib.sh
! stand_in || skip "nvmet has no configuration that is read again"

connect
mkfs.ext4 -q "$DISK"
mount "$DISK" /mnt
write_files /mnt
say "swapped under a mounted file system"
outside namespaces 1=file:other:64M 2=ram:16M
# Namespace 2 shows that the reload is over.
wait_for 10 has_disk 2
! outside allocated-kib other 2>/dev/null || fail "the other file was opened"
head -c 1M /dev/urandom >/mnt/more
md5sum /mnt/more >/tmp/more
umount /mnt
[ "$(disk_of 1)" = "$DISK" ] || fail "the disk changed"
fsck.ext4 -fn "$DISK" >/tmp/fsck || { cat /tmp/fsck; fail "fsck.ext4"; }
mount "$DISK" /mnt
check_files /mnt
md5sum --quiet -c /tmp/more
umount /mnt
say "under a number of its own"
outside namespaces 1=file:disk:64M 2=ram:16M 3=file:other:64M
wait_for 10 has_disk 3
[ "$(cat "/sys/block/$(basename "$(disk_of 3)")/wwid")" != "$(cat "/sys/block/$(basename "$DISK")/wwid")" ] || fail "one identity"
dd if="$(disk_of 3)" bs=1M iflag=direct status=none | cmp -n 67108864 - /dev/zero || fail "data of the first file"
