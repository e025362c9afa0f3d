#!/usr/bin/env bash
# Get LBA Status, sent by nvme admin-passthru: it lists the blocks that were written, and no others.
# Outside: namespace 1 of 64 MiB in a file, with 4096-byte blocks; blocks 256 and 257 are written here.
. /lab/lib.sh

connect
wait_for 10 has_disk 1
disk=$(disk_of 1)
! stand_in || skip 'nvmet has no Get LBA Status'
# The allocated blocks (action 2) of all from the first one given, in hexadecimal; at most 1024 bytes.
list() {
    nvme admin-passthru "$disk" --opcode=0x86 --namespace-id=1 --cdw10="$1" --cdw12=255 --cdw13=0x02000000 \
        --data-len=1024 --read --raw-binary | od -An -v -tx1 -N 24 | tr -d ' \n'
}
dd if=/dev/urandom of="$disk" bs=4096 seek=256 count=2 oflag=direct status=none
# One descriptor, complete; blocks 100h and 101h; allocated.
[ "$(list 0)" = 010000000200000000010000000000000200000000020000 ] || fail "other blocks: $(list 0)"
blkdiscard -o 1048576 -l 8192 "$disk"
[[ $(list 0) == 0000000002* ]] || fail "deallocated blocks: $(list 0)"
if list 16384; then fail 'blocks behind the end are listed'; fi
