#!/usr/bin/env bash
# A key-value namespace: the kernel makes a character device of it and no disk, and all five
# commands do what they should through it.
# Outside: namespace 1 of blocks, namespace 2 of keys and values.
. /lab/lib.sh

! stand_in || skip "nvmet has no key-value namespaces"
connect
NUMBER=${CTRL#/dev/nvme}
# device NSID: what a namespace is called behind /dev/nvme or /dev/ng. Kernels number namespaces as they learn of them,
# several at a time. In sysfs each has a disk, hidden if it is none of blocks.
device() {
    local disk
    for disk in "/sys/block/nvme${NUMBER}n"*; do
        [ "$(cat "$disk/nsid" 2>/dev/null)" != "$1" ] || { echo "${disk##*/nvme}"; return 0; }
    done
    return 1
}
wait_for 10 device 2
KV=/dev/ng$(device 2)
wait_for 10 test -c "$KV"
[ ! -b "/dev/nvme$(device 2)" ] || fail "the kernel made a disk of it"

# kv OPCODE KEY [OPTION...]: a command on a key of at most 16 bytes. What was read is in /tmp/read, as long as
# the room for it, what was said in /tmp/said.
kv() {
    local opcode=$1 key=$2 bytes hex word words=(); shift 2
    hex=$(printf %s "$key" | od -An -v -tx1 | tr -d ' \n')0000000000000000000000000000000000
    for word in 0 8 16 24; do
        bytes=${hex:word:8}
        words+=("0x${bytes:6:2}${bytes:4:2}${bytes:2:2}${bytes:0:2}")
    done
    nvme io-passthru "$KV" -o "$opcode" -n 2 --cdw2="${words[0]}" --cdw3="${words[1]}" \
        --cdw14="${words[2]}" --cdw15="${words[3]}" "$@" >/tmp/read 2>/tmp/said
}
length() { printf %s "$1" | wc -c; }
store() { kv 0x01 "$1" --cdw10="$(stat -c %s "$2")" --cdw11=$((${3:-0} << 8 | $(length "$1"))) -w -l "$(stat -c %s "$2")" -i "$2"; }
retrieve() { kv 0x02 "$1" --cdw10="$2" --cdw11="$(length "$1")" -r -l "$2" -b; }
delete() { kv 0x10 "$1" --cdw11="$(length "$1")"; }
exist() { kv 0x14 "$1" --cdw11="$(length "$1")"; }

head -c 5000 /dev/urandom >/tmp/a
head -c 500 /dev/urandom >/tmp/b
head -c 1048576 /dev/urandom >/tmp/large
store key /tmp/a || fail "store: $(cat /tmp/said)"
exist key || fail "exist: $(cat /tmp/said)"
! exist other || fail "a key exists that was never stored"
retrieve key 5000 || fail "retrieve: $(cat /tmp/said)"
cmp <(head -c 5000 /tmp/read) /tmp/a || fail "another value came back"
retrieve key 1000 || fail "a short buffer is no error: $(cat /tmp/said)"
cmp <(head -c 1000 /tmp/read) <(head -c 1000 /tmp/a) || fail "the first part is another"
# Without data its length is the result.
kv 0x02 key --cdw10=0 --cdw11=3 || fail "retrieve of nothing: $(cat /tmp/said)"
grep -qi 'result: *0x0*1388' /tmp/said /tmp/read || fail "the length is not 5000: $(cat /tmp/said /tmp/read)"
store key /tmp/b || fail "store over it: $(cat /tmp/said)"
retrieve key 500 && cmp <(head -c 500 /tmp/read) /tmp/b || fail "the value was not replaced"
store 0123456789abcdef /tmp/large || fail "a value of 1 MiB: $(cat /tmp/said)"
retrieve 0123456789abcdef 1048576 && cmp <(head -c 1048576 /tmp/read) /tmp/large || fail "1 MiB came back otherwise"

# Store only if it is there, and only if not.
! store absent /tmp/a 1 || fail "stored what had to exist"
store absent /tmp/a 2 || fail "store if absent: $(cat /tmp/said)"
! store absent /tmp/a 2 || fail "stored what had not to exist"
! kv 0x01 12345678 --cdw10=4 --cdw11=17 -w -l 4 -i /tmp/b || fail "a key of 17 bytes"

# List: three keys, whole ones only.
kv 0x06 "" --cdw10=4096 --cdw11=0 -r -l 4096 -b || fail "list: $(cat /tmp/said)"
[ "$(od -An -tu4 -N4 /tmp/read | tr -d ' ')" = 3 ] || fail "not three keys: $(od -An -tx1 -N64 /tmp/read)"
for key in key absent 0123456789abcdef; do
    grep -qa "$key" /tmp/read || fail "$key is not in the list"
done
delete key || fail "delete: $(cat /tmp/said)"
! exist key || fail "a deleted key exists"
delete key || fail "to delete nothing is no error: $(cat /tmp/said)"

# As Mooncake's NVMe-KV storage sends them: keys of 16 bytes with 01h as the twelfth, a number of 512-byte blocks in Dword 12, stores
# only of what is not there, and a first read of 4 KiB whose result tells the length.
key=$(printf 'mooncake-ke\001tail')
head -c 8192 /dev/urandom >/tmp/object
object() { kv 0x01 "$key" --cdw10=8192 --cdw11=0x210 --cdw12=15 -w -l 8192 -i /tmp/object; }
object || fail "an object: $(cat /tmp/said)"
! object || fail "the object was stored twice"
grep -qi '0x[0-9a-f]*89' /tmp/said || fail "the status of the second store is not 89h, Key Exists: $(cat /tmp/said)"
kv 0x02 "$key" --cdw10=4096 --cdw11=16 --cdw12=7 -r -l 4096 -b || fail "the first 4 KiB: $(cat /tmp/said)"
cmp <(head -c 4096 /tmp/read) <(head -c 4096 /tmp/object) || fail "the first 4 KiB are other bytes"
kv 0x02 "$key" --cdw10=0 --cdw11=16 || fail "the length: $(cat /tmp/said)"
grep -qi 'result: *0x0*2000' /tmp/said /tmp/read || fail "the length is not 8192: $(cat /tmp/said /tmp/read)"
kv 0x02 "$key" --cdw10=8192 --cdw11=16 --cdw12=15 -r -l 8192 -b && cmp <(head -c 8192 /tmp/read) /tmp/object || fail "the object came back otherwise"
kv 0x10 "$key" --cdw11=16 || fail "delete the object: $(cat /tmp/said)"
! kv 0x02 "$key" --cdw10=4096 --cdw11=16 --cdw12=7 -r -l 4096 -b || fail "a deleted object is there"
grep -qi '0x[0-9a-f]*87' /tmp/said || fail "the status is not 87h, Key Does Not Exist: $(cat /tmp/said)"
