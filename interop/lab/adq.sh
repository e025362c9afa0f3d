# What the behaviours of nvlane adq have in common: a pair of virtual devices of four queues, far0 and near0, each in a
# network namespace of its own. Sourced after lib.sh.
# shellcheck shell=bash
NVLANE=/share/nvlane

near() { ip netns exec near "$@"; }
adq() { near "$NVLANE" adq "$@" --record /tmp/adq; }

pair() {
    # Of a behaviour that failed in this guest.
    ip netns del far 2>/dev/null || true
    ip netns del near 2>/dev/null || true
    ip netns add far
    ip netns add near
    ip link add far0 netns far numtxqueues 4 numrxqueues 4 type veth peer name near0 netns near numtxqueues 4 numrxqueues 4
    ip -n far addr add 192.0.2.1/24 dev far0
    ip -n near addr add 192.0.2.2/24 dev near0
    ip -n far link set far0 up
    ip -n near link set near0 up
}

# Everything that a layout may change, as the kernel's own tools show it.
dump() {
    near tc qdisc show dev near0
    near tc filter show dev near0 ingress 2>/dev/null
    near tc filter show dev near0 egress 2>/dev/null
    near sh -c 'grep -H . /sys/class/net/near0/queues/tx-*/xps_*'
    near ethtool -l near0
    near ethtool -k near0
    if [ -d "${CGROUP:-}" ]; then attached "$CGROUP"; fi
}

# attached DIRECTORY: how many sock_ops programs a control group has, by the system call itself.
attached() {
    python3 - "$1" <<'PY'
import ctypes, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
ids = (ctypes.c_uint32 * 64)()
query = ctypes.create_string_buffer(struct.pack('<IIIIQII', fd, 3, 0, 0, ctypes.addressof(ids), 64, 0), 64)
libc = ctypes.CDLL(None, use_errno=True)
if libc.syscall(321, 16, query, 64) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))
print('sock_ops programs:', struct.unpack_from('<I', query, 24)[0])
PY
}

# Packets of each transmit queue of near0, which mqprio counts by class.
sent() {
    near tc -s class show dev near0 |
        awk '/^class/ { sub(/.*:/, "", $3); queue = $3 } / Sent / && queue ~ /^[1-4]$/ { print queue, $4 }'
}

# rose BEFORE: the queues that have sent at least 50 packets since BEFORE, a file of `sent`.
rose() { sent | join "$1" - | awk '$3 - $2 >= 50 { printf "%s", $1 }'; }
