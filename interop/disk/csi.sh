#!/usr/bin/env bash
# Kubernetes' volumes on this node: the kernel connects to volumes of a pool on XFS, which shares blocks, and mounts them, as
# csi-sanity asks for, all of its tests, with files and as block devices. Then volumes with ext4 and XFS are written, grown, copied
# beside themselves, mounted read-only and moved, their files checked at each step, and a block volume; and again after the driver
# was killed. Last, the kernel authenticates with a Secret of Kubernetes, and with the node's own files.
. /lab/lib.sh

stand_in && skip 'nothing stands in for nvlane target'
for program in nvlane nvlane-csi csi-sanity kubelet; do
    [ -x /share/$program ] || skip "no $program"
    cp /share/$program /tmp/$program
done
modprobe -a loop xfs ext4
mkdir -p /tmp/pool /tmp/sanity
truncate -s 3G /tmp/pool.img
mkfs.xfs -q -m reflink=1 /tmp/pool.img
mount -o loop /tmp/pool.img /tmp/pool
cat >/tmp/nvlane.toml <<'TOML'
[reactors]
count = 1
[[listener]]
address = "127.0.0.1:4420"
[[pool]]
name = "fast"
dir = "/tmp/pool"
TOML
/tmp/nvlane target --config /tmp/nvlane.toml --control /tmp/control.sock >/tmp/target.log 2>&1 & TARGET=$!
wait_for 60 grep -q ' ready ' /tmp/target.log
node=nqn.2014-08.org.nvmexpress:uuid:c0c1c2c3-0001-4000-8000-000000000001

starts=0
is_serving() { [ "$(grep -c 'driver serves' /tmp/csi.log)" = $starts ]; }
driver() {
    starts=$((starts + 1))
    /tmp/nvlane-csi csi --endpoint unix:/tmp/csi.sock --control /tmp/control.sock --mode both --node-id $node "$@" \
        >>/tmp/csi.log 2>&1 &
    DRIVER=$!
    wait_for 30 is_serving
}
driver
[ "$(stat -c %a /tmp/csi.sock)" = 600 ] || fail 'the mode of the socket'

sanity() {
    /tmp/csi-sanity --ginkgo.no-color --csi.endpoint=unix:/tmp/csi.sock --csi.mountdir=/tmp/sanity/mount \
        --csi.stagingdir=/tmp/sanity/staging --csi.testvolumesize=$((64 << 20)) --csi.testvolumeexpandsize=$((128 << 20)) \
        --csi.testvolumeaccesstype="$1" >/tmp/sanity.log 2>&1 ||
        { grep -A 20 -e 'FAIL' -e 'Panic' /tmp/sanity.log | head -n 200; tail -n 40 /tmp/csi.log; fail "csi-sanity, $1"; }
    say "$1: $(grep -E '^Ran |Passed' /tmp/sanity.log | tr '\n' ' ')"
}
sanity mount
sanity block
[ -z "$(ls /sys/class/nvme)" ] || fail 'a volume is still connected'
! grep -q /tmp/sanity /proc/mounts || fail 'a volume is still mounted'
/tmp/kubelet unix:/tmp/csi.sock /tmp/nodes || { tail -n 40 /tmp/csi.log; fail 'a volume with files'; }
say 'files and blocks'

kill -KILL $DRIVER
wait $DRIVER || true
driver
/tmp/kubelet unix:/tmp/csi.sock /tmp/nodes >/dev/null || { tail -n 40 /tmp/csi.log; fail 'after the driver was killed'; }
stop_driver() {
    kill $DRIVER
    wait $DRIVER || fail 'the driver'
    [ ! -e /tmp/csi.sock ] || fail 'the socket is left'
}
if grep -Eq '^CONFIG_NVME(_HOST)?_AUTH=' "/lib/modules/$(uname -r)/config"; then
    # The kernel is going to complain of refused secrets: what it has said until now is looked at first.
    said=$(dmesg --level=emerg,alert,crit,err,warn | sed '1,\|behaviour disk/csi starts|d' | grep -E 'nvme|I/O error|BUG:|WARNING:|EXT4-fs|XFS' || true)
    [ -z "$said" ] || fail "the kernel complains: $said"
    expect_disruption
    keys=/tmp/keys
    mkdir -p $keys/nodes
    for name in nodes target nodes/$node; do
        ( umask 077; /tmp/nvlane keys generate >$keys/$name.key )
    done
    authenticated() { /tmp/kubelet unix:/tmp/csi.sock /tmp/nodes "$@" $keys || { tail -n 40 /tmp/csi.log; fail "authentication, $1"; }; }
    authenticated shared
    stop_driver
    driver --dhchap-secret $keys/nodes/$node.key --dhchap-ctrl-secret $keys/target.key
    authenticated own
    ! grep -q DHHC /tmp/csi.log /tmp/target.log /tmp/nvlane.toml.changes || fail 'a secret is written somewhere'
    say 'authentication'
else
    say 'this kernel is built without authentication'
fi
stop_driver
kill $TARGET
wait $TARGET || fail 'the target'
umount /tmp/pool
