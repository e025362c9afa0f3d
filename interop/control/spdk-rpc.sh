#!/usr/bin/env bash
# SPDK's own client of its JSON-RPC makes a subsystem with bdevs, a listener and hosts on a target of nvlane, reads it back, and removes
# it; a host finds what was made, and finds it again after the target was killed. What nvlane cannot follow is refused.
# Outside: NVLANE, the program; SPDK_RPC, spdk-rpc of the Python package spdk; an empty working directory.
set -eu -o pipefail

socket=$PWD/spdk.sock
nqn=nqn.2026-01.io.nvlane:by-spdk
cat >nvlane.toml <<END
[reactors]
count = 1
[[listener]]
address = "127.0.0.1:0"
[[pool]]
name = "lvs0"
dir = "$PWD/pool"
END
mkdir pool
# On XFS, where this machine and user can have one: snapshots and clones share blocks there.
mounted=
if [ "$(id -u)" = 0 ] && command -v mkfs.xfs >/dev/null; then
    truncate -s 320M pool.img
    mkfs.xfs -q pool.img && mount -o loop pool.img pool && mounted=pool
fi
ended() {
    kill $target 2>/dev/null || true
    [ -z "$mounted" ] || umount -l "$mounted"
}

rpc() { "$SPDK_RPC" -s "$socket" "$@"; }
fail() { echo "FAIL: $*"; exit 1; }
start() {
    "$NVLANE" target --config nvlane.toml --control "$socket" &
    target=$!
    trap ended EXIT
    "$SPDK_RPC" -s "$socket" -r 100 framework_wait_init
}
# Whether a value is at a place of the JSON on standard input, as Python names it.
has() { "$PYTHON" -c 'import json, sys; it = json.load(sys.stdin); assert eval(sys.argv[1]), it' "$1"; }

start
rpc spdk_get_version | grep nvlane >/dev/null
rpc rpc_get_methods | has '"nvmf_create_subsystem" in it and "bdev_malloc_create" in it'
rpc nvmf_create_transport -t TCP -q 128 -c 8192
rpc nvmf_get_transports | has 'it[0]["trtype"] == "TCP"'
[ "$(rpc bdev_malloc_create 64 512 -b Malloc0)" = Malloc0 ] || fail 'the name of a bdev'
[ "$(rpc bdev_malloc_create 8 4096)" = Malloc1 ] || fail 'a name that was chosen'
rpc bdev_null_create Null0 1024 4096
truncate -s 16M image
rpc bdev_aio_create "$PWD/image" Aio0 512
rpc bdev_get_bdevs | has '[bdev["name"] for bdev in it] == ["Aio0", "Malloc0", "Malloc1", "Null0"]'
rpc bdev_get_bdevs -b Malloc0 | has 'it[0]["num_blocks"] == 131072 and it[0]["block_size"] == 512 and not it[0]["claimed"]'
rpc bdev_set_qos_limit Malloc0 --rw-ios-per-sec 20000 --w-mbytes-per-sec 100
rpc bdev_get_bdevs -b Malloc0 | has 'it[0]["assigned_rate_limits"] == {"rw_ios_per_sec": 20000, "rw_mbytes_per_sec": 0, "r_mbytes_per_sec": 0, "w_mbytes_per_sec": 100}'
# A pool is a store of logical volumes.
rpc bdev_lvol_get_lvstores -l lvs0 | has 'it[0]["name"] == "lvs0" and it[0]["free_clusters"] > 0'
volume=$(rpc bdev_lvol_create -l lvs0 -t db 16)
rpc bdev_lvol_resize lvs0/db 32
rpc bdev_get_bdevs -b lvs0/db | has "it[0]['name'] == '$volume' and it[0]['num_blocks'] == 8192"
rpc bdev_lvol_get_lvols -l lvs0 | has "it[0]['alias'] == 'lvs0/db' and it[0]['uuid'] == '$volume'"
if rpc bdev_lvol_snapshot lvs0/db monday >made 2>&1; then
    snapshot=$(cat made)
    rpc bdev_lvol_clone lvs0/monday test
    rpc bdev_lvol_delete lvs0/test
    rpc bdev_lvol_delete "$snapshot"
else
    grep -q 'shares no blocks' made || { cat made; fail 'a snapshot was refused'; }
fi
rpc nvmf_create_subsystem "$nqn" -s SPDK00000000000001 -d SPDK_Controller1 -m 32
rpc nvmf_subsystem_add_ns "$nqn" Malloc0
rpc nvmf_subsystem_add_ns "$nqn" Null0 -n 5
rpc nvmf_subsystem_add_ns "$nqn" Aio0
rpc nvmf_subsystem_add_ns "$nqn" lvs0/db -n 7
port=$("$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
rpc nvmf_subsystem_add_listener "$nqn" -t tcp -f ipv4 -a 127.0.0.1 -s "$port"
rpc nvmf_subsystem_get_listeners "$nqn" | has "any(one['address']['trsvcid'] == '$port' for one in it)"
rpc nvmf_subsystem_add_host "$nqn" nqn.2026-01.io.nvlane:host
rpc nvmf_get_subsystems | has "it[1]['nqn'] == '$nqn' and it[1]['serial_number'] == 'SPDK00000000000001' and not it[1]['allow_any_host']"
rpc nvmf_get_subsystems "$nqn" | has '[(one["nsid"], one["bdev_name"]) for one in it[0]["namespaces"]] == [(1, "Malloc0"), (2, "Aio0"), (5, "Null0"), (7, "'$volume'")]'

# Hosts that are not listed are refused; any host afterwards.
list() { "$NVLANE" list "127.0.0.1:$port/$nqn" -o json "$@"; }
if list 2>/dev/null; then fail 'a host came in that is not listed'; fi
rpc nvmf_subsystem_allow_any_host "$nqn" --allow-any-host
list | has '[one["NameSpace"] for one in it["Devices"]] == [1, 2, 5, 7]'
rpc nvmf_subsystem_allow_any_host "$nqn" --no-allow-any-host
if list 2>/dev/null; then fail 'a host came in that is no longer listed'; fi
rpc nvmf_subsystem_allow_any_host "$nqn" --allow-any-host

# Refusals, by SPDK's client in its own words.
refused() {
    local part=$1
    shift
    if rpc "$@" >refused 2>&1; then fail "$* was not refused"; fi
    grep -q -- "$part" refused || { cat refused; fail "no '$part'"; }
}
refused 'nvlane speaks TCP' nvmf_create_transport -t RDMA
refused 'does not offer this' nvmf_create_subsystem nqn.2026-01.io.nvlane:other -r
refused 'no bdev Nothing' nvmf_subsystem_add_ns "$nqn" Nothing
refused 'is a namespace already' nvmf_subsystem_add_ns "$nqn" Malloc0
refused 'does not offer this' bdev_malloc_create 8 512 -m 8
refused 'no subsystem' nvmf_delete_subsystem nqn.2026-01.io.nvlane:none

# All of it survives the target.
identities() { rpc nvmf_get_subsystems "$nqn" | "$PYTHON" -c 'import json, sys; print(json.load(sys.stdin)[0]["namespaces"])'; }
before=$(identities)
kill -KILL $target
wait $target || true
start
[ "$(identities)" = "$before" ] || fail 'other identities after a restart'
list | has '[one["NameSpace"] for one in it["Devices"]] == [1, 2, 5, 7]'

# Several requests at once, and a batch of them.
printf 'nvmf_get_subsystems\nbdev_get_bdevs\n' | rpc >/dev/null
printf 'nvmf_get_subsystems\nbdev_get_bdevs\n' | rpc --batch-mode >/dev/null

if rpc bdev_lvol_delete lvs0/db >refused 2>&1; then fail 'a volume went that is served'; fi
rpc nvmf_subsystem_remove_ns "$nqn" 7
rpc bdev_lvol_delete "$volume"
rpc nvmf_subsystem_remove_ns "$nqn" 5
rpc bdev_null_delete Null0
rpc nvmf_subsystem_remove_host "$nqn" nqn.2026-01.io.nvlane:host
rpc bdev_malloc_delete Malloc0
rpc nvmf_get_subsystems "$nqn" | has '[one["nsid"] for one in it[0]["namespaces"]] == [2]'
rpc nvmf_subsystem_remove_listener "$nqn" -t tcp -f ipv4 -a 127.0.0.1 -s "$port"
rpc nvmf_delete_subsystem "$nqn"
rpc bdev_aio_delete Aio0
rpc bdev_malloc_delete Malloc1
"$NVLANE" ctl --control "$socket" diff | grep "^nothing differs" >/dev/null
kill $target
wait $target
echo ok
