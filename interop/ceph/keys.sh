#!/bin/bash
# Keys and values in a pool of a real cluster (kv:rados:): NVMe's and memcached's clients, long values in parts, what a killed target
# leaves, one owner at a time, and the messages for what is wrong.
# Outside: NVLANE, the program; CLUSTER, the directory of a cluster (cluster.sh); an empty working directory.
set -eu -o pipefail

export CEPH_CONF=$CLUSTER/ceph.conf
fail() { echo "FAIL: $*"; exit 1; }
ceph() { timeout 60 ceph "$@"; }
rados() { timeout 60 rados -p keys "$@"; }

ceph osd pool create keys 16 2> pool.log
# What an earlier run has left.
for namespace in judged judged.parts; do
    rados -N $namespace ls | while read -r object; do rados -N $namespace rm "$object"; done
done
# The least rights that the guide names.
ceph auth get-or-create client.kv mon 'profile rbd' osd 'allow rwx pool=keys' > kv.keyring
{ echo '[global]'; grep mon_host "$CEPH_CONF"; echo "keyring = $PWD/kv.keyring"; } > kv.conf
place="kv:rados:keys?conf=$PWD/kv.conf&id=kv&namespace=judged&memory=64M"
serve() { timeout -k 10 600 "$NVLANE" --log info target --listen 127.0.0.1:0 --namespace "$1" "${@:3}" --run "$2"; }
refused() { # SPEC TEXT
    if serve "$1" true > refused.log 2>&1; then fail "$1 was not refused"; fi
    grep -qF "$2" refused.log || { cat refused.log; fail "$1 is not refused with: $2"; }
}
objects() { rados -N "$1" ls | grep -v '^%owner$' | sort | tr '\n' ' '; }

echo '# verbs of NVMe hosts'
head -c 21000000 /dev/urandom > long
serve "$place" 'set -e
    kv() { "$NVLANE" kv "$@"; }
    kv set greeting hello && [ "$(kv get greeting)" = hello ]
    kv set --hex 00ff25 686578 && [ "$(kv get --hex 00ff25)" = 686578 ]
    kv set model --file long && kv get model | cmp - long
    kv incr visits 5 --initial 37 && kv incr visits 5
    kv set brief gone --ttl 1 && kv delete greeting && ! kv exist greeting
    kv list > listed'
[ "$(objects judged)" = '%00%FF%25 brief model visits ' ] || fail "other objects: $(objects judged)"
[ "$(objects judged.parts | wc -w)" = 6 ] || fail "other parts: $(objects judged.parts)"
rados -N judged get visits visits
[ "$(tail -c 8 visits | od -An -tu8 | tr -d ' ')" = 47 ] || fail 'another number'

echo '# another target has them all, with one reactor and epoll, and removes parts that nothing refers to'
rados -N judged.parts put model%1.0 long
serve "$place" 'set -e
    "$NVLANE" kv get model | cmp - long
    ! "$NVLANE" kv get brief
    [ "$("$NVLANE" kv incr visits 1 | tr -dc "0-9 " )" ]
    "$NVLANE" kv set model short' --cores 1 --engine epoll
for _ in $(seq 50); do
    [ "$(objects judged.parts)" = '' ] && break
    sleep 0.2
done
[ "$(objects judged.parts)" = '' ] || fail "parts are left: $(objects judged.parts)"

echo '# memcached'
cat > memcached.py <<'PY'
import socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
f = s.makefile("rb")
def say(text, lines=1):
    s.sendall(text.encode() + b"\r\n")
    return [f.readline().decode().strip() for _ in range(lines)]
assert say("set user:1 7 0 5\r\nalice") == ["STORED"]
assert say("add user:1 0 0 1\r\nx") == ["NOT_STORED"]
value, data, end = say("gets user:1", 3)
assert (data, value.split()[:4]) == ("alice", ["VALUE", "user:1", "7", "5"])
cas = value.split()[4]
assert say(f"cas user:1 7 0 3 {cas}\r\nbob") == ["STORED"]
assert say(f"cas user:1 7 0 3 {cas}\r\neve") == ["EXISTS"]
assert say("append user:1 0 0 3\r\nby!") == ["STORED"]
assert say("set count 0 0 2\r\n41") == ["STORED"]
assert say("incr count 1") == ["42"]
assert say("incr none 1") == ["NOT_FOUND"]
assert say("delete none") == ["NOT_FOUND"]
assert say("touch user:1 1000") == ["TOUCHED"]
assert say("flush_all")[0].startswith(("ERROR", "CLIENT_ERROR", "SERVER_ERROR"))
big = "x" * 1000000
assert say(f"set big 0 0 {len(big)}\r\n{big}") == ["STORED"]
assert say("get user:1 count nothing big", 7)[1::2] == ["bobby!", "42", big]
PY
serve "$place" 'python3 memcached.py 43899' --memcached 127.0.0.1:43899

echo '# one owner at a time'
serve "$place" '
    timeout 100 "$NVLANE" target --listen 127.0.0.1:0 --namespace "'"$place"'&lock=refuse" --run true > second.log 2>&1 && exit 1
    timeout 100 "$NVLANE" target --listen 127.0.0.1:0 --namespace "'"$place"'" --run true > third.log 2>&1 && exit 1
    "$NVLANE" kv set last value'
for log in second.log third.log; do
    grep -q 'its keys are owned by nvlane on .*, process [0-9]*: end that target' $log || { cat $log; fail "$log"; }
done

target=
start() { # LOG
    rm -f address
    "$NVLANE" --log info target --listen 127.0.0.1:0 --namespace "$place" --run 'echo "$NVLANE_ADDR" > address.new; mv address.new address; exec sleep 600' > "$1" 2>&1 &
    target=$!
    for _ in $(seq 900); do [ -e address ] && break; kill -0 $target || { cat "$1"; fail 'the target does not start'; }; sleep 0.1; done
    export NVLANE_ADDR=$(cat address)
}
trap '[ -z "$target" ] || kill -9 $target 2> /dev/null || true' EXIT

echo '# killed: what was answered is there, and the next target waits for the lease'
start killed.log
(n=0; while "$NVLANE" kv set counted $n 2> /dev/null; do echo $n > acknowledged; n=$((n + 1)); done) &
load=$!
sleep 3
kill -9 $target
wait $target 2> /dev/null || true
kill $load 2> /dev/null || true
wait $load 2> /dev/null || true
begun=$SECONDS
start next.log
echo "the keys were taken over in $((SECONDS - begun)) s"
got=$("$NVLANE" kv get counted)
[ "$got" -ge "$(cat acknowledged)" ] || fail "$got is older than $(cat acknowledged), which was answered"

echo '# stopped for longer than its lease: it serves and writes nothing more'
"$NVLANE" kv set owned first
kill -STOP $target
stopped=$target stopped_address=$NVLANE_ADDR
start second.log
[ "$("$NVLANE" kv get owned)" = first ] || fail 'the second target has another value'
"$NVLANE" kv set owned second
kill -CONT $stopped
for verb in 'get owned' 'set owned late'; do
    if NVLANE_ADDR=$stopped_address timeout 20 "$NVLANE" kv $verb > late.log 2>&1; then cat late.log; fail "$verb succeeds without a lease"; fi
done
[ "$("$NVLANE" kv get owned)" = second ] || fail 'a late write has landed'
kill $target
wait $target || true

echo '# once the other owner has ended, it serves again, with nothing of its own'
target=$stopped
export NVLANE_ADDR=$stopped_address
begun=$SECONDS
for _ in $(seq 600); do timeout 20 "$NVLANE" kv get owned > owned 2> /dev/null && break; sleep 0.1; done
echo "it serves again after $((SECONDS - begun)) s"
[ "$(cat owned)" = second ] || fail "it has another value: $(cat owned)"
"$NVLANE" kv set owned third
kill $target
wait $target || true
target=
serve "$place" '[ "$("$NVLANE" kv get owned)" = third ]' || fail 'what it has written is gone'

echo '# messages'
refused "kv:rados:none?conf=$PWD/kv.conf&id=kv" 'cannot find the pool none'
refused "kv:rados:keys?conf=$PWD/none.conf" "cannot read $PWD/none.conf"
refused "kv:rados:keys?conf=$PWD/kv.conf&id=stranger" 'as client.stranger: Permission denied (os error 13): no keyring has a key of this user that the cluster takes'
refused "kv:rados:rbd?conf=$PWD/kv.conf&id=kv" "the user's caps do not allow it"
echo '# all is well'
