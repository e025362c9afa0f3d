#!/bin/bash
# A Linux host on an image: verified load on the device while an OSD is killed, ext4 and XFS with what they promise, fsx on both; what
# the host reads from the device at the end is what `rbd export` reads.
# Outside: NVLANE, the program; CLUSTER, the directory of a cluster (cluster.sh); KERNEL_LAB, the lab's script, and KERNEL; FSX, the file
# system exerciser; an empty working directory.
set -eu -o pipefail

export CEPH_CONF=$CLUSTER/ceph.conf
fail() { echo "FAIL: $*"; exit 1; }
ceph() { timeout 60 ceph "$@"; }
rbd() { timeout 60 rbd "$@"; }
image=rbd/linux nqn=nqn.2026-01.com.example:linux

rbd rm --no-progress $image 2> /dev/null || true
ceph auth get-or-create client.linux mon 'profile rbd' osd 'profile rbd pool=rbd' > nvlane.keyring
{ echo '[global]'; grep mon_host "$CEPH_CONF"; echo "keyring = $PWD/nvlane.keyring"; } > nvlane.conf
# XFS takes no less than 300 MiB.
"$NVLANE" --log info target --cores 0 --listen 127.0.0.1:0 --nqn $nqn \
    --namespace "rbd:$image?conf=$PWD/nvlane.conf&id=linux&create=320M" \
    --run 'echo "$NVLANE_ADDR" > address.new; mv address.new address; while kill -0 $PPID 2> /dev/null; do sleep 0.5; done' > target.log 2>&1 &
target=$! killer=
trap 'for pid in $target $killer; do kill "$pid" 2> /dev/null || true; done' EXIT
for _ in $(seq 600); do [ -e address ] && break; kill -0 $target || { tail target.log; fail 'the target does not start'; }; sleep 0.1; done

# An OSD is killed once the guest asks for it, and comes back once it asks for that.
mkdir -p share
rm -f share/*
cp "$FSX" share/fsx
asked() { for _ in $(seq 9000); do [ -e "share/$1" ] && return; sleep 0.1; done; return 1; }
osd() {
    asked kill || return
    kill -9 "$(cat "$CLUSTER/run/osd.1.pid")"
    asked restart || return
    ceph-osd -i 1 --keyring "$CLUSTER/osd.1/keyring"
    for _ in $(seq 600); do ceph osd stat | grep -q '3 up' && break; sleep 0.1; done
}
osd > osd.log 2>&1 &
killer=$!
"$KERNEL_LAB" run --kernel "$KERNEL" --timeout 900 --share "$PWD/share" --env TARGET_ADDR=10.0.2.2 \
    --env "TARGET_PORT=$(sed 's|.*:\([0-9]*\)/.*|\1|' address)" --env "TARGET_NQN=$nqn" \
    "${BASH_SOURCE%/*}/linux-guest.sh" "${BASH_SOURCE%/*}/../lab/lib.sh" "${BASH_SOURCE%/*}/../lab/nvmet.sh" \
    > guest.log 2>&1 || { grep -v '^\[ *[0-9.]*\] *$' guest.log | tail -n 40; tail -n 20 target.log; fail 'the guest'; }
wait $killer || { cat osd.log; fail 'the OSD does not come back'; }
killer=
grep '^guest: ' guest.log
grep -E 'panicked|namespace closed' target.log && fail 'the log of the target'
kill $target
wait $target || true
target=
[ "$(rbd export --no-progress $image - | sha256sum | cut -c1-64)" = "$(cat share/sum)" ] || fail 'Ceph reads something else than the host'
rbd rm --no-progress $image
echo '# all is well'
