#!/usr/bin/env bash
# Programs of libnbd, qemu, fio and Python on an export of `nvlane attach nbd`, which `--run` starts this under.
# Outside: NVLANE_DEVICE, the URI of an export of 64 MiB; BLOCK, its block size; PYTHON, an interpreter that has libnbd; an empty
# working directory.
set -eu -o pipefail

uri=$NVLANE_DEVICE
here=$(dirname "$(realpath "$0")")
fail() { echo "FAIL: $*"; exit 1; }

# What clients are told. The map first: storage in RAM that was read may count as allocated.
nbdinfo --map "$uri" >map
grep -q '0 *67108864 *3 *hole,zero' map || fail 'a new namespace is not one hole'
nbdinfo --json "$uri" >info.json
"$PYTHON" - "$BLOCK" <<'END'
import json, sys
block = int(sys.argv[1])
info = json.load(open("info.json"))
export = info["exports"][0]
assert info["protocol"] == "newstyle-fixed" and info["structured"], info
assert export["export-size"] == 64 << 20, export
assert export["contexts"] == ["base:allocation"], export
for flag in ["can_cache", "can_df", "can_fast_zero", "can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero"]:
    assert export[flag], (flag, export)
assert not export["is_read_only"] and not export["is_rotational"], export
sizes = [export[f"block_size_{name}"] for name in ("minimum", "preferred", "maximum")]
assert sizes == [block, 4096, 32 << 20], sizes
END
nbdinfo --list "$uri" >list
grep -q 'description: namespace 1 of' list || fail 'no description'

# Copies, both ways.
head -c 48M /dev/urandom >image
truncate -s 64M image
nbdcopy --flush image "$uri"
nbdinfo --map --totals "$uri" >totals
# RAM may have huge pages.
awk '$4 == "data" && $1 >= 48 * 1024 * 1024 && $1 <= 50 * 1024 * 1024 { good = 1 } END { exit !good }' totals || fail 'a copied image is not as sparse'
[ "$(qemu-img map -f raw --output=json "$uri" | grep -c '"data": true')" = 1 ] || fail 'qemu-img maps other extents'
nbdcopy "$uri" copy
cmp image copy
[ "$(stat -c %b copy)" -le $((51 << 11)) ] || fail 'the copy of a sparse namespace is not sparse'
rm copy
nbdcopy --requests=16 --connections=4 --request-size=1048576 "$uri" copy
cmp image copy
rm copy
nbddump --length=4096 "$uri" >dump
head -c 4096 image | od -An -v -tx1 | tr -d ' \n' >expected
cut -c13-60 dump | tr -d ' \n' | cmp - expected || fail 'nbddump shows other bytes'

# qemu: images from it, to it, and one on it.
qemu-img convert -f raw "$uri" -O qcow2 disk.qcow2
qemu-img compare -q -f raw -F qcow2 "$uri" disk.qcow2
qemu-img convert -n -f qcow2 disk.qcow2 -O raw "$uri"
qemu-img compare -q -f raw -F raw "$uri" image
qemu-img create -q -f qcow2 "$uri" 32M
qemu-io -f qcow2 -c 'write -P 0x11 1M 3M' -c 'write -P 0x22 5000 777' -c 'discard 2M 1M' -c flush "$uri" >qemu-io.log
qemu-img check -q -f qcow2 "$uri"
qemu-io -f qcow2 -c 'read -P 0x11 1M 1M' -c 'read -P 0x22 5000 777' "$uri" >>qemu-io.log
qemu-io -f raw \
    -c 'write -P 0x5a 0 4M' -c 'read -P 0x5a 0 4M' -c 'write -z 64k 64k' -c 'read -P 0 64k 64k' \
    -c 'write -z -u 1M 1M' -c 'read -P 0 1M 1M' -c 'discard 3M 64k' -c 'read -P 0 3M 64k' \
    -c 'write -f -P 3 8k 4k' -c 'read -P 3 8k 4k' -c 'write -P 4 1k 512' -c 'read -P 4 1k 512' \
    -c 'writev -P 5 16k 4k 8k 4k' -c 'read -P 5 16k 16k' -c 'aio_write -P 6 32k 32k' -c aio_flush -c 'read -P 6 32k 32k' \
    -c flush "$uri" >>qemu-io.log
if grep -iE 'fail|error|pattern' qemu-io.log; then fail 'qemu-io'; fi
[ "$(grep -c '^read ' qemu-io.log)" = 10 ] || fail 'qemu-io has not read all'

# fio: every block that is read is checked.
for depth in 1 16; do
    fio --name=verify --ioengine=nbd --uri="$uri" --numjobs=2 --size=12M --offset_increment=16M --rw=randrw --bs=4k \
        --iodepth=$depth --verify=crc32c --fsync=64 --output=fio-$depth.log || { cat fio-$depth.log; fail "fio, depth $depth"; }
done

"$PYTHON" "$here/libnbd.py" "$uri"
echo 'all as expected'
