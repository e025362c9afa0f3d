#!/usr/bin/env bash
# nvlane adq, `priority = "sock_ops"`: connections of a server that knows nothing of it leave by the queues of their class,
# those of its other port do not; `verify` says when the program is gone, `remove` takes it away; without the privilege, and
# where there is no control group, `apply` refuses and changes nothing.
. /lab/lib.sh
. /lab/adq.sh

stand_in && skip 'nothing stands in for nvlane adq'
pair
# `ip netns exec` hides what is mounted below /sys.
CGROUP=/tmp/cgroup
mkdir -p $CGROUP
mount -t cgroup2 none $CGROUP
cat >/tmp/layout.toml <<'TOML'
interface = "near0"
other_queues = 2
[[class]]
name = "cache"
queues = 2
traffic = ["192.0.2.2:11211", "[2001:db8::2]:11211"]
priority = "sock_ops"
TOML
dump >/tmp/before
has_line 'sock_ops programs: 0' </tmp/before

# Refused where it cannot work.
near setpriv --bounding-set -bpf,-sys_admin --inh-caps -bpf,-sys_admin "$NVLANE" adq apply --config /tmp/layout.toml --record /tmp/adq 2>/tmp/error &&
    fail 'applied without the privilege' || [ $? = 2 ]
grep -q 'it takes root' /tmp/error
sed 's|^interface|cgroup = "/tmp"\ninterface|' /tmp/layout.toml >/tmp/elsewhere.toml
adq apply --config /tmp/elsewhere.toml 2>/tmp/error && fail 'applied to no control group' || [ $? = 2 ]
grep -q 'no control group.*instead: priority = "filter"' /tmp/error
dump | cmp - /tmp/before
[ ! -e /tmp/adq/near0.json ]

adq apply --config /tmp/layout.toml
attached $CGROUP | has_line 'programs: 1'
adq verify --config /tmp/layout.toml

# A server that sets nothing sends 200 answers on each connection, of its port in the class and of another.
near python3 - <<'PY' & server=$!
import socket, threading
def serve(port):
    listener = socket.create_server(('192.0.2.2', port))
    while True:
        connection, _ = listener.accept()
        while connection.recv(1):
            connection.send(b'x')
for port in (11211, 11212):
    threading.Thread(target=serve, args=(port,)).start()
PY
listens() { near ss -ltn | has_line "$1"; }
wait_for 60 listens 11212
for port_and_queues in '11211 34' '11212 12'; do
    read -r port queues <<<"$port_and_queues"
    sent >/tmp/sent-before
    ip netns exec far python3 - "$port" <<'PY'
import socket, sys
for _ in range(4):
    connection = socket.create_connection(('192.0.2.2', int(sys.argv[1])))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(200):
        connection.send(b'x')
        connection.recv(1)
PY
    rose=$(rose /tmp/sent-before)
    [[ -n "$rose" && "$queues" == *"$rose"* ]] || fail "connections to port $port leave by queues $rose instead of $queues"
done
kill $server

# Somebody detaches the program: `verify` says so.
NAME=$(python3 -c 'import json; print(json.load(open("/tmp/adq/'"$(ls /tmp/adq)"'"))["plan"]["steps"][-1]["change"]["attach_program"]["name"])')
python3 - $CGROUP <<'PY'
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def bpf(command, words):
    result = libc.syscall(321, command, ctypes.create_string_buffer(words, 64), 64)
    assert result >= 0, os.strerror(ctypes.get_errno())
    return result
group = os.open(sys.argv[1], os.O_RDONLY)
ids = (ctypes.c_uint32 * 64)()
bpf(16, struct.pack('<IIIIQII', group, 3, 0, 0, ctypes.addressof(ids), 64, 0))
program = bpf(13, struct.pack('<I', ids[0]))
bpf(9, struct.pack('<IIII', group, program, 3, 0))
PY
adq verify --config /tmp/layout.toml >/tmp/verdict && fail 'a program that is gone is not seen' || [ $? = 5 ]
has_line "$NAME is not attached to $CGROUP" </tmp/verdict
adq remove --config /tmp/layout.toml
dump | cmp - /tmp/before

# Again, and `remove` after a kill that left everything attached.
adq apply --config /tmp/layout.toml
adq remove --config /tmp/layout.toml
dump | cmp - /tmp/before
