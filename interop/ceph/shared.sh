#!/bin/bash
# One image behind two targets that share it: one disk with two paths to a Linux host, which loses nothing with either target; the
# refusals of what does not go together; a target that stood still while the other went on writes nothing more.
# Outside: NVLANE, the program; CLUSTER, the directory of a cluster (cluster.sh); KERNEL_LAB, the lab's script, and KERNEL; an empty working
# directory.
set -eu -o pipefail

export CEPH_CONF=$CLUSTER/ceph.conf
fail() { echo "FAIL: $*"; exit 1; }
rbd() { timeout 60 rbd "$@"; }
image=rbd/shared nqn=nqn.2026-01.com.example:shared

rbd rm --no-progress $image 2> /dev/null || true
timeout 60 ceph auth get-or-create client.sharing mon 'profile rbd' osd 'profile rbd pool=rbd' > nvlane.keyring
{ echo '[global]'; grep mon_host "$CEPH_CONF"; echo "keyring = $PWD/nvlane.keyring"; } > nvlane.conf
place="rbd:$image?conf=$PWD/nvlane.conf&id=sharing"
rbd create --size 32M $image

declare -A target
# A target on a free port, in NAME.address, with these controller IDs. Its command ends with it.
start() { # NAME FIRST LAST
    cat > "$1.toml" <<END
[[listener]]
address = "127.0.0.1:0"
[[subsystem]]
nqn = "$nqn"
hosts = "any"
serial = "SHARED"
cntlids = [$2, $3]
[[subsystem.namespace]]
storage = "$place&lock=share&deadline=5s"
END
    rm -f "$1.address"
    "$NVLANE" --log debug target --config "$1.toml" --cores 0 \
        --run "echo \"\$NVLANE_ADDR\" > $1.new; mv $1.new $1.address; while kill -0 \$PPID 2> /dev/null; do sleep 0.5; done" >> "$1.log" 2>&1 &
    target[$1]=$!
    for _ in $(seq 900); do
        [ -e "$1.address" ] && return
        kill -0 "${target[$1]}" 2> /dev/null || { unset "target[$1]"; return 1; }
        sleep 0.1
    done
    fail "$1 does not start"
}
stop() { kill "${target[$1]}"; wait "${target[$1]}" || true; unset "target[$1]"; }
trap 'for pid in "${target[@]}"; do kill -CONT "$pid" 2> /dev/null || true; kill -9 "$pid" 2> /dev/null || true; done' EXIT
says() { # NAME TEXT
    for _ in $(seq 600); do grep -qF "$2" "$1.log" && return; sleep 0.1; done
    fail "the log of $1 does not say: $2"
}
perf() { # NAME OPTION...
    timeout 200 "$NVLANE" --log error perf "$(cat "$1.address")" "${@:2}"
}
export_of() { rbd export --no-progress $image - | sha256sum; }

echo '# what one writes the other reads'
start one 1 1000
start two 1001 2000
rbd image-meta ls $image | grep -q "nvlane.target.*1-1000 $nqn" || fail 'a target is not entered'
perf one -w write --verify --fill -q 16 -d 1000 > written.log
perf two -w verify -q 16 | grep 'checked, 0 wrong' || fail 'two reads something else'
perf two -w randwrite --verify --fill -q 8 -o 4k/50:64k/50 -d 500 > mixed.log
perf one -w verify -q 16 | grep 'checked, 0 wrong' || fail 'one reads something else'
# Blocks of their own, at the same time: the lock passes to and fro, which takes a tenth of a second or more each time.
perf one -w randrw --verify --fill -q 8 -d 200 --blocks 64 > at-once.log &
load=$!
perf two -w randrw --verify --fill -q 8 -d 200 --first 64 --blocks 64 | grep 'checked, 0 wrong' || fail 'blocks of two are wrong'
wait $load
grep 'checked, 0 wrong' at-once.log || fail 'blocks of one are wrong'

echo '# what does not go together'
refused() { # TEXT OPTION...
    if timeout -k 10 120 "$NVLANE" --log info target --listen 127.0.0.1:0 "${@:2}" --run true > refused.log 2>&1; then
        fail "not refused: ${*:2}"
    fi
    grep -qF "$1" refused.log || { cat refused.log; fail "not refused with: $1"; }
}
refused "it is shared by client." --namespace "$place&lock=refuse"
refused "(controller IDs 1 to 1000 of $nqn): end that client, or share it as well with lock=share" --namespace "$place&lock=refuse"
if start three 900 1100; then fail 'controller IDs of another target are taken'; fi
grep -qF 'give each target a range of its own, as in cntlids = [1, 1000]' three.log || fail 'the refusal of its controller IDs'
stop one
stop two
rbd image-meta ls $image 2>&1 | grep -q nvlane.target && fail 'entries are left'
"$NVLANE" --log info target --listen 127.0.0.1:0 --namespace "$place" --run 'touch alone; while [ -e alone ]; do sleep 0.2; done' > alone.log 2>&1 &
target[alone]=$!
for _ in $(seq 600); do [ -e alone ] && break; sleep 0.1; done
if start one 1 1000; then fail 'an image that is not shared is shared'; fi
grep -q 'its exclusive lock is held by client\.[0-9]* at .*, which does not share it' one.log || fail 'the refusal names no holder'
rm alone
wait "${target[alone]}"
unset 'target[alone]'

echo '# a target that stood still is no writer any more'
start one 1 1000
start two 1001 2000
perf one -w randwrite --verify --fill -q 8 -t 60 > stood.log 2>&1 &
stuck=$!
sleep 3
kill -STOP "${target[one]}"
# The lock of a client that stands still is broken once the cluster takes it for dead.
begun=$SECONDS
until perf two -w write -q 1 -d 1 -a 0 > taken.log 2>&1; do
    [ $((SECONDS - begun)) -lt 120 ] || { cat taken.log; fail 'two does not get the lock'; }
done
echo "two had the lock after $((SECONDS - begun)) s"
perf two -w write --verify --fill -q 16 -d 2000 > taken.log
before=$(export_of)
kill -CONT "${target[one]}"
kill $stuck 2> /dev/null || true
wait $stuck || true
perf one -w randrw --verify --fill -q 8 -d 100 > shut-out.log &
load=$!
says one 'namespace closed'
says one 'command failed error=the backing store belongs to another client'
[ "$before" = "$(export_of)" ] || fail 'it was written to'
kill -HUP "${target[one]}"
wait $load || fail 'it is not reopened'
grep 'checked, 0 wrong' shut-out.log || fail 'blocks are wrong'
perf two -w verify -q 16 | grep 'checked, 0 wrong' || fail 'two reads something else'

echo '# one disk with two paths to Linux; a target is killed under a verified load'
mkdir -p share
rm -f share/*
KILL_ONE() { for _ in $(seq 3000); do [ -e share/kill ] && break; sleep 0.1; done; kill -9 "${target[one]}"; }
KILL_ONE &
killer=$!
place_of() { sed 's|.*:\([0-9]*\)/.*|\1|' "$1.address"; }
"$KERNEL_LAB" run --kernel "$KERNEL" --timeout 600 --share "$PWD/share" --env "ONE=$(place_of one)" --env "TWO=$(place_of two)" --env "NQN=$nqn" \
    "${BASH_SOURCE%/*}/shared-guest.sh" > guest.log 2>&1 || { tail -n 40 guest.log; fail 'the guest'; }
wait $killer
wait "${target[one]}" 2> /dev/null || true
unset 'target[one]'
grep '^guest: ' guest.log
stop two
# What the host has read back last is in the image.
[ "$(rbd export --no-progress $image - | sha256sum | cut -c1-64)" = "$(cat share/sum)" ] || fail 'Ceph reads something else than the host'
rbd rm --no-progress $image
echo '# all is well'
