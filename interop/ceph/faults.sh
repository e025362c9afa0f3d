#!/bin/bash
# A Ceph cluster that fails under a target: an OSD is killed, all OSDs are stopped and go on, a pool is full, the target is killed, and
# its lock is taken away.
# Outside: NVLANE, the program; CLUSTER, the directory of a cluster (cluster.sh), of which osd.2 is ended for good; an empty working
# directory.
set -eu -o pipefail

export CEPH_CONF=$CLUSTER/ceph.conf
fail() { echo "FAIL: $*"; exit 1; }
ceph() { timeout 60 ceph "$@"; }
rbd() { timeout 60 rbd "$@"; }
osds() { for id in 0 1 2; do kill "$1" "$(cat "$CLUSTER/run/osd.$id.pid")"; done; }
pool=faulty image=faulty/judged

ceph osd pool rm $pool $pool --yes-i-really-really-mean-it 2> /dev/null
ceph osd pool create $pool 16 2> /dev/null
rbd pool init $pool
ceph auth get-or-create client.faulty mon 'profile rbd' osd 'profile rbd pool=faulty' > nvlane.keyring
{ echo '[global]'; grep mon_host "$CEPH_CONF"; echo "keyring = $PWD/nvlane.keyring"; } > nvlane.conf
place="rbd:$image?conf=$PWD/nvlane.conf&id=faulty&create=32M"
target=
start() { # OPTIONS
    rm -f address
    "$NVLANE" --log debug target --cores 0 --listen 127.0.0.1:0 --namespace "$place$1" --run 'echo "$NVLANE_ADDR" > address.new; mv address.new address; sleep 600' >> target.log 2>&1 &
    target=$!
    for _ in $(seq 600); do [ -e address ] && break; kill -0 $target || { tail target.log; fail 'the target does not start'; }; sleep 0.1; done
    export NVLANE_ADDR=$(cat address)
}
# The log says it within a minute.
says() {
    for _ in $(seq 600); do grep -qF "$1" target.log && return; sleep 0.1; done
    fail "the log does not say: $1"
}
stop() { kill $target; wait $target || true; target=; }
trap '[ -z "$target" ] || kill -9 $target' EXIT
perf() { timeout 200 "$NVLANE" --log error perf --blocks 4096 "$@"; }

echo '# nothing that was answered is lost with the target; the next one takes the lock of the dead one over'
start ''
perf -w write --verify --fill -q 16 -d 200 > fill.log
(perf -w randwrite --verify -q 8 -t 60 > killed.log 2>&1 || true) &
load=$!
sleep 4
# With its command, as a crash would end it: the process only.
kill -9 $target
wait $target 2> /dev/null || true
kill $load 2> /dev/null || true
wait $load || true
begun=$SECONDS
start '&lock=acquire'
echo "the lock was taken over in $((SECONDS - begun)) s"
perf -w verify -q 16 | grep -E 'checked, 0 wrong' || fail 'blocks are lost'
stop

echo '# all OSDs stopped: commands end by their deadline, and are retried until the cluster is used again'
start '&deadline=3s'
perf -w randwrite --verify -q 4 -d 50 > before.log
osds -STOP
perf -w randrw --verify --fill -q 8 -d 200 > through.log &
load=$!
says 'command failed error=the backing store cannot be reached at present'
says 'command failed error=the backing store does not answer at present'
says 'the cluster does not answer'
osds -CONT
wait $load || fail 'the load fails'
grep 'checked, 0 wrong' through.log || fail 'blocks are wrong'
says 'the cluster answers again'

echo '# stopped while the OSDs are'
osds -STOP
perf -w write -q 4 -t 1 > /dev/null &
load=$!
sleep 5
begun=$SECONDS
kill $target
wait $target || true
target=
[ $((SECONDS - begun)) -lt 30 ] || fail "it ends after $((SECONDS - begun)) s"
echo "it has ended in $((SECONDS - begun)) s"
osds -CONT
kill $load 2> /dev/null || true
wait $load || true

echo '# the lock is taken away: a path error, and nothing more is written'
start '&lock=break'
perf -w write --verify --fill -q 8 -d 50 > held.log
export_of() { rbd export --no-progress $image - | sha256sum; }
locker=$(rbd lock ls $image | awk '/^client/ { print $1 }')
id=$(rbd lock ls $image --format json | python3 -c 'import json, sys; locks = json.load(sys.stdin); print(locks[0]["id"])')
rbd lock rm $image "$id" "$locker"
before=$(export_of)
perf -w randrw --verify --fill -q 8 -d 100 > fenced.log &
load=$!
says 'namespace closed'
says 'command failed error=the backing store belongs to another client'
[ "$before" = "$(export_of)" ] || fail 'it was written to'
kill -HUP $target
wait $load || fail 'it is not reopened'
grep 'checked, 0 wrong' fenced.log || fail 'blocks are wrong'

# Blocks that have space are written to all the same. Without a manager daemon pools have no statistics, and so no quotas.
echo '# a full cluster: Capacity Exceeded for blocks without space, and space again'
fill() { "$NVLANE" --log error perf -w write -q 1 -d 1 -a 0 --first $((4096 + $1 * 1024)) --blocks 8 2>&1 || true; }
ratios() {
    for each in "nearfull $1" "backfillfull $2" "full $3"; do
        # shellcheck disable=SC2086
        set -- $each
        ceph osd "set-$1-ratio" "$2" 2> /dev/null
    done
}
ratios 0.0001 0.0001 0.0001
for _ in $(seq 60); do ceph osd dump | grep -q "'$pool'.*,full," && break; sleep 1; done
fill 1 | grep -qi 'capacity exceeded' || fail 'no Capacity Exceeded'
perf -w write -q 8 -d 50 > full.log || fail 'a block that has space is not written'
ratios 0.85 0.90 0.95
for _ in $(seq 60); do fill 2 | grep -qi 'failed' || break; sleep 1; done
fill 3 | grep -qi 'failed' && fail 'no space again'

echo '# an OSD is killed under verified load'
(sleep 4; kill -9 "$(cat "$CLUSTER/run/osd.2.pid")") &
perf -w randrw --verify --fill -q 8 -t 20 | grep 'checked, 0 wrong' || fail 'blocks are wrong'
stop
echo '# all is well'
