#!/bin/bash
# A Ceph cluster that fails under a target: OSDs are killed or stopped and go on, the monitor is restarted, a pool is full, the target is
# killed, its lock, its rights and its image are taken away, and an administrator blocklists it.
# Outside: NVLANE, the program, and NVLANE_LAB, that of the laboratory; CLUSTER, the directory of a cluster (cluster.sh), of which osd.2 is ended for good; an empty working
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
target= holder=
start() { # OPTIONS
    rm -f address
    # What an earlier target has said is not meant.
    [ ! -e target.log ] || { cat target.log >> targets.log; rm target.log; }
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
trap 'for pid in $target $holder; do kill -9 "$pid" 2> /dev/null || true; done; osds -CONT 2> /dev/null || true' EXIT
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

echo '# the target is killed fifty times: nothing that was answered is lost, whichever target takes the lock over'
"$NVLANE_LAB" crash-loop --of blocks --kills 25 --program "$NVLANE" --directory killed \
    --namespace "rbd:faulty/killed?conf=$PWD/nvlane.conf&id=faulty&create=4M&lock=break" \
    --namespace "rbd:faulty/killed-512?conf=$PWD/nvlane.conf&id=faulty&create=1M&lba=512&lock=break"

echo '# another client has the lock: it is named, or taken away from it'
cat > holder.py <<'END'
import os, rados, rbd, time
with rados.Rados(conffile=os.environ["CEPH_CONF"]) as cluster, cluster.open_ioctx("faulty") as pool:
    image = rbd.Image(pool, "judged")
    image.lock_acquire(rbd.RBD_LOCK_MODE_EXCLUSIVE)
    print(cluster.get_instance_id(), flush=True)
    while not os.path.exists("go"):
        time.sleep(0.1)
    try:
        image.write(bytes(4096), 0)
        print("written", flush=True)
    except rbd.Error as error:
        print(f"refused: {error}", flush=True)
    os._exit(0)
END
rm -f go
/usr/bin/python3 holder.py > holder.log 2>&1 &
holder=$!
for _ in $(seq 300); do [ -s holder.log ] && break; sleep 0.1; done
if timeout 60 "$NVLANE" target --listen 127.0.0.1:0 --namespace "$place&lock=refuse" --run true > held.log 2>&1; then
    fail 'the lock of another client is taken'
fi
grep -qF "its exclusive lock is held by client.$(head -n 1 holder.log) at " held.log || { cat held.log; fail 'the holder is not named'; }
start '&lock=break'
perf -w write --verify --fill -q 8 -d 50 > broken.log
before=$(rbd export --no-progress $image - | sha256sum)
touch go
wait $holder || true
holder=
grep -q '^refused: ' holder.log || { cat holder.log; fail 'the former holder still writes'; }
[ "$before" = "$(rbd export --no-progress $image - | sha256sum)" ] || fail 'the former holder has written'
stop

# A host of ours repeats a path error for 30 s.
echo '# all OSDs stopped for 60 s'
start '&deadline=45s'
perf --timeout 120 -w randrw --verify --fill -q 8 -t 70 > minute.log &
load=$!
sleep 10
osds -STOP
sleep 60
osds -CONT
wait $load || fail 'the load fails'
grep 'checked, 0 wrong' minute.log || fail 'blocks are wrong'
says 'the cluster answers again'

echo '# the monitor is restarted'
perf --timeout 60 -w randrw --verify --fill -q 8 -t 12 > monitor.log &
load=$!
monitor=$(cat "$CLUSTER/run/mon.a.pid")
kill "$monitor"
for _ in $(seq 100); do kill -0 "$monitor" 2> /dev/null || break; sleep 0.1; done
sleep 5
ceph-mon -i a
wait $load || fail 'the load fails'
grep 'checked, 0 wrong' monitor.log || fail 'blocks are wrong'

echo '# an administrator blocklists the target: a path error, and nothing more is written'
perf -w write --verify --fill -q 8 -d 50 > listed.log
before=$(rbd export --no-progress $image - | sha256sum)
address=$(rbd lock ls $image | awk '/^client/ { print $NF }')
ceph osd blocklist add "$address" 600 2> /dev/null
perf -w randrw --verify --fill -q 8 -d 100 > blocklisted.log &
load=$!
says 'the cluster has blocklisted this target as a client'
[ "$before" = "$(rbd export --no-progress $image - | sha256sum)" ] || fail 'it was written to'
# The new connection has another address.
kill -HUP $target
wait $load || fail 'it is not reopened'
grep 'checked, 0 wrong' blocklisted.log || fail 'blocks are wrong'

echo '# an image in use is not removed'
rbd rm --no-progress $image > rm.log 2>&1 && fail 'an image in use is removed'
grep -q 'still has watchers' rm.log || { cat rm.log; fail 'it is refused for another reason'; }
stop

echo '# the rights are revoked: the next target says which it needs'
ceph auth caps client.faulty mon 'profile rbd' osd 'allow r pool=faulty' 2> /dev/null
if timeout 60 "$NVLANE" target --listen 127.0.0.1:0 --namespace "$place" --run true > caps.log 2>&1; then
    fail 'it starts without rights'
fi
grep -qF "the user's caps do not allow it (mon 'profile rbd', osd 'profile rbd pool=" caps.log || { cat caps.log; fail 'the rights are not named'; }
ceph auth caps client.faulty mon 'profile rbd' osd 'profile rbd pool=faulty' 2> /dev/null

echo '# all OSDs stopped: commands end by their deadline, and are retried until the cluster is used again'
start '&deadline=3s'
perf -w randwrite --verify -q 4 -d 50 > before.log
osds -STOP
perf -w randrw --verify --fill -q 8 -d 200 > through.log &
load=$!
says 'command failed error=the backing store cannot be reached at present'
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
