#!/bin/bash
# RBD images of a real cluster behind a target: what a host writes is what `rbd export` reads; identity, snapshots, resizing, locks, and
# the messages for what is wrong.
# Outside: NVLANE, the program; CLUSTER, the directory of a cluster (cluster.sh); an empty working directory.
set -eu -o pipefail

export CEPH_CONF=$CLUSTER/ceph.conf
fail() { echo "FAIL: $*"; exit 1; }
ceph() { timeout 60 ceph "$@"; }
rbd() { timeout 60 rbd "$@"; }
image=rbd/judged

# What an earlier run has left.
rbd snap purge --no-progress $image 2> /dev/null || true
rbd rm --no-progress $image 2> /dev/null || true
# The least rights that the guide names.
ceph auth get-or-create client.nvlane mon 'profile rbd' osd 'profile rbd pool=rbd' > nvlane.keyring
{ echo '[global]'; grep mon_host "$CEPH_CONF"; echo "keyring = $PWD/nvlane.keyring"; } > nvlane.conf
place="rbd:$image?conf=$PWD/nvlane.conf&id=nvlane"
# A target for one command.
serve() { timeout -k 10 600 "$NVLANE" --log info target --listen 127.0.0.1:0 --namespace "$1" "${@:3}" --run "$2"; }
refused() { # SPEC TEXT
    if serve "$1" true > refused.log 2>&1; then fail "$1 was not refused"; fi
    grep -qF "$2" refused.log || { cat refused.log; fail "$1 is not refused with: $2"; }
}

echo '# created, written under verification, and read by Ceph'
serve "$place&create=16M" 'set -e
    "$NVLANE" perf "$NVLANE_ADDR" -w randrw --verify --fill -q 16 -o 4k/50:64k/50 -d 1000
    "$NVLANE" attach nbd "$NVLANE_ADDR" --run "nbdcopy \"\$NVLANE_DEVICE\" host.img"'
rbd export --no-progress $image ceph.img
cmp host.img ceph.img || fail 'Ceph reads something else than hosts'
rbd status $image | grep -q 'Watchers: none' || fail 'the image was not closed'

echo '# zeroes, deallocation, flush; one reactor, epoll'
cat > change.py <<'END'
import nbd, os
h = nbd.NBD()
h.connect_uri(os.environ["NVLANE_DEVICE"])
h.zero(1 << 20, 5 << 20)
h.zero(1 << 20, 8 << 20, nbd.CMD_FLAG_NO_HOLE)
h.trim(3 * 4096, 4096)
h.pwrite(bytes([7]) * 4096, 0, nbd.CMD_FLAG_FUA)
h.flush()
END
serve "$place" '"$NVLANE" attach nbd "$NVLANE_ADDR" --run "/usr/bin/python3 change.py"' --cores 1 --engine epoll
rbd export --no-progress $image - | python3 -c '
import sys
now, before = sys.stdin.buffer.read(), bytearray(open("host.img", "rb").read())
for start, length in (5 << 20, 1 << 20), (8 << 20, 1 << 20), (4096, 3 * 4096):
    before[start:start + length] = bytes(length)
before[:4096] = bytes([7]) * 4096
assert now == before, next(i for i in range(len(now)) if now[i] != before[i])'

echo '# holes are known from the object map'
cat > sparse.py <<'END'
import json, nbd, os
h = nbd.NBD()
h.add_meta_context("base:allocation")
h.connect_uri(os.environ["NVLANE_DEVICE"])
h.pwrite(bytes([7]) * 4096, 9 << 20)
h.trim(4 << 20, 0)
extents = []
h.block_status(h.get_size(), 0, lambda context, offset, entries, error: extents.extend(zip(entries[::2], entries[1::2])))
wanted = [(mib << 20, flags) for mib, flags in json.loads(os.environ["WANTED"])]
assert extents == wanted, extents
END
sparse() { WANTED=$2 serve "$1" '"$NVLANE" attach nbd "$NVLANE_ADDR" --run "/usr/bin/python3 sparse.py"'; }
thin="rbd:rbd/thin?conf=$PWD/nvlane.conf&id=nvlane"
rbd rm --no-progress rbd/thin 2> /dev/null || true
sparse "$thin&create=32M" '[[8, 3], [4, 0], [20, 3]]'
rbd snap create --no-progress rbd/thin@parent
rbd snap protect rbd/thin@parent
rbd clone rbd/thin@parent rbd/clone
sparse "rbd:rbd/clone?conf=$PWD/nvlane.conf&id=nvlane" '[[32, 0]]'
rbd flatten --no-progress rbd/clone
sparse "rbd:rbd/clone?conf=$PWD/nvlane.conf&id=nvlane" '[[8, 3], [4, 0], [20, 3]]'
rbd feature disable rbd/thin fast-diff
sparse "$thin" '[[32, 0]]'
rbd rm --no-progress rbd/clone
rbd snap unprotect rbd/thin@parent
rbd snap purge --no-progress rbd/thin
rbd rm --no-progress rbd/thin

echo '# the same identity before every target, another one for a snapshot, which is not written'
identity() { serve "$1" '"$NVLANE" identify "$NVLANE_ADDR" -o json' 2> identity.log | grep -oi '"nguid": *"[^"]*"'; }
first=$(identity "$place")
[ "$first" = "$(NVLANE_MACHINE_ID=another identity "$place")" ] || fail 'another machine gives it another identity'
rbd snap create --no-progress $image@monday
snapshot="rbd:$image@monday?conf=$PWD/nvlane.conf&id=nvlane"
[ "$first" != "$(identity "$snapshot")" ] || fail 'a snapshot has the identity of its image'
serve "$snapshot" '! "$NVLANE" perf "$NVLANE_ADDR" -w write -d 1'
serve "$snapshot" '"$NVLANE" perf "$NVLANE_ADDR" -w read -d 100'

echo '# resized elsewhere'
serve "$place" 'set -e
    rbd resize --no-progress --size 32M '$image'
    for _ in $(seq 100); do
        "$NVLANE" identify "$NVLANE_ADDR" -o json | grep -q "\"nsze\": *8192" && exit 0
        sleep 0.2
    done
    exit 1' || fail 'the size is not noticed'

echo '# one target at a time'
serve "$place" '
    timeout 60 "$NVLANE" target --listen 127.0.0.1:0 --namespace "'"$place"'&lock=refuse" --run true > second.log 2>&1 && exit 1
    grep -q "its exclusive lock is held by client\.[0-9]* at " second.log'

echo '# messages'
refused "rbd:rbd/none?conf=$PWD/nvlane.conf&id=nvlane" 'cannot open the image rbd/none: No such file or directory (os error 2): create it with `rbd create`, or give create=SIZE'
refused "rbd:none/none?conf=$PWD/nvlane.conf&id=nvlane" 'cannot find the pool none'
refused "rbd:$image?conf=$PWD/none.conf" "cannot read $PWD/none.conf"
refused "rbd:$image?conf=$PWD/nvlane.conf&id=stranger" 'as client.stranger: Permission denied (os error 13): no keyring has a key of this user that the cluster takes'
sed 's/.....==$/AAAAA==/' nvlane.keyring > wrong.keyring
sed "s/nvlane.keyring/wrong.keyring/" nvlane.conf > wrong.conf
refused "rbd:$image?conf=$PWD/wrong.conf&id=nvlane" 'as client.nvlane: Permission denied (os error 13)'
sed "s/nvlane.keyring/no.keyring/" nvlane.conf > unkeyed.conf
refused "rbd:$image?conf=$PWD/unkeyed.conf&id=nvlane" 'no keyring has a key of this user'
sed "s/^mon_host.*/mon_host = 127.0.0.1:1/" nvlane.conf > unreachable.conf
refused "rbd:$image?conf=$PWD/unreachable.conf&id=nvlane" 'no monitor answers at the addresses of mon_host'
rbd feature disable $image object-map exclusive-lock 2> /dev/null || rbd feature disable $image fast-diff object-map exclusive-lock
refused "$place" "rbd feature enable $image exclusive-lock"
rbd feature enable $image exclusive-lock

rbd snap rm --no-progress $image@monday
rbd rm --no-progress $image
echo '# all is well'
