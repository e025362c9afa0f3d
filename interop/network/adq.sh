#!/usr/bin/env bash
# nvlane adq: a layout on a veth pair, in the kernel's own eyes: tc and sysfs show what was planned, packets take the
# queues of their class, drift is named, and removing leaves the device as it was, also after a kill at any time.
#
# User-mode networking gives virtio_net one queue pair, whatever the device asks for. A tap device gives several: with
# `kernel-lab run --smp 4 --tap TAP,4`, as root, the same is tried on eth1, with interrupts and queue pairs of a device.
. /lab/lib.sh
. /lab/adq.sh

stand_in && skip 'nothing stands in for nvlane adq'
pair
dump >/tmp/before
LAYOUT=(--interface near0 --other-queues 2 --class nvme:2=192.0.2.1:4420 --initiator)

# A plan changes nothing.
adq plan "${LAYOUT[@]}" >/tmp/plan
grep -q 'mqprio num_tc 2' /tmp/plan
dump | cmp - /tmp/before

adq apply "${LAYOUT[@]}"
near tc qdisc show dev near0 root | has_line 'mqprio ad00: root'
near tc qdisc show dev near0 root | has_line -E 'queues:\(0:1\) \(2:3\)'
near sh -c '[ "$(cat /sys/class/net/near0/queues/tx-3/xps_rxqs)" = 8 ]'
adq verify --interface near0
# Twice is refused, and changes nothing.
dump >/tmp/applied
if adq apply "${LAYOUT[@]}" 2>/tmp/error; then fail 'a second layout was applied'; fi
grep -q 'remove it first' /tmp/error
dump | cmp - /tmp/applied

# Packets of the class take its queues: on veth the sender's transmit queue is the receiver's receive queue, off by none.
near python3 - <<'PY' || fail 'priority 1 does not take queues 2 and 3'
import socket, subprocess, re
def sent():
    text = subprocess.run(['tc', '-s', 'class', 'show', 'dev', 'near0'], capture_output=True, text=True).stdout
    counts = {}
    for handle, packets in re.findall(r'class mqprio ad00:(\w+).*?\n Sent \d+ bytes (\d+) pkt', text):
        counts[int(handle, 16)] = int(packets)
    return counts
before = sent()
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 1)
for port in range(5000, 5100):
    s.sendto(b'x', ('192.0.2.1', port))
after = sent()
rose = {k for k in after if after[k] - before.get(k, 0) >= 10 and k <= 4}
assert rose and rose <= {3, 4}, rose
PY

# Drift: the trap that leaves the discipline in the list while its map is gone.
near ethtool -L near0 tx 2 rx 2
adq verify --interface near0 && fail 'drift is not seen' || [ $? = 5 ]
near ethtool -L near0 tx 4 rx 4
adq verify --interface near0 && fail 'drift is not seen after the queues are back' || [ $? = 5 ]
adq remove --interface near0
dump | cmp - /tmp/before

# A target gives its connections the priority of its class, and says what is out of line with the layout.
cat >/tmp/target-side.toml <<'TOML'
interface = "near0"
other_queues = 2
[[class]]
name = "nvme"
queues = 2
traffic = ["192.0.2.2:4420"]
priority = "program"
TOML
adq apply --config /tmp/target-side.toml
ip netns exec near "$NVLANE" target --listen 192.0.2.2:4420 --listen 192.0.2.2:4421 --namespace ram:16M --nqn nqn.2026-01.io.nvlane:adq \
    --cores 0,1 --adq-record /tmp/adq --state /tmp/state.json 2>/tmp/target.log & target=$!
wait_for 60 grep -q ready /tmp/target.log
deviations() { python3 -c 'import json; print("; ".join(json.load(open("/tmp/state.json"))["adq"][0]["deviations"]))'; }
[ -z "$(deviations)" ] || fail "out of line: $(deviations)"
load() { ip netns exec far "$NVLANE" perf "192.0.2.2:$1/nqn.2026-01.io.nvlane:adq" -t 1 -a 0 -w randread >/dev/null; }
for port_and_queues in '4420 34' '4421 12'; do
    read -r port queues <<<"$port_and_queues"
    sent >/tmp/sent-before
    load "$port"
    taken=$(rose /tmp/sent-before)
    [[ -n "$taken" && "$queues" == *"$taken"* ]] || fail "connections to port $port leave by queues $taken instead of $queues"
done
near ethtool -L near0 tx 2 rx 2
kill -HUP $target
says() { deviations | has_line "$1"; }
wait_for 20 says 'map from priorities' || fail "not said: $(deviations)"
grep -q 'out of line' /tmp/target.log
near ethtool -L near0 tx 4 rx 4
kill $target
wait $target
adq remove --interface near0
dump | cmp - /tmp/before

# Filters for programs that set no priority, beside a filter of somebody else.
near tc qdisc add dev near0 clsact
near tc filter add dev near0 egress protocol ip prio 1 handle 1 flower ip_proto tcp dst_port 9 action skbedit priority 0
dump >/tmp/before
cat >/tmp/layout.toml <<'TOML'
interface = "near0"
other_queues = 2
side = "initiator"
[[class]]
name = "nvme"
queues = 2
traffic = ["192.0.2.1:4420", "[2001:db8::1]:4420"]
TOML
adq apply --config /tmp/layout.toml
adq verify --config /tmp/layout.toml
near tc filter show dev near0 egress >/tmp/filters
grep -A6 'dst_port 4420' /tmp/filters | has_line 'skbedit.*priority :1'
adq remove --config /tmp/layout.toml
dump | cmp - /tmp/before

# Killed at any time: remove heals.
delays='0.02 0.08 0.20'
if whole; then delays='0.00 0.01 0.02 0.03 0.04 0.05 0.06 0.08 0.10 0.13 0.16 0.20 0.25 0.30'; fi
for delay in $delays; do
    { trap - ERR; adq apply --config /tmp/layout.toml 2>/dev/null; } & pid=$!
    sleep "$delay"
    pkill -KILL -f 'nvlane adq apply' || true
    wait $pid || true
    if ls /tmp/adq/near0* >/dev/null 2>&1; then adq remove --interface near0; fi
    dump | cmp - /tmp/before || fail "killed after $delay s: the device is not as before"
done

# What cannot work is refused with a proposal, and changes nothing.
adq plan --interface near0 --class a:2:1Gbit=192.0.2.1:4420 2>/tmp/error && fail 'rates on veth' || [ $? = 2 ]
grep -q 'has no minimum rates' /tmp/error
adq plan --interface near0 --class a:4=192.0.2.1:4420 2>/tmp/error && fail 'no queue for other traffic' || [ $? = 2 ]
ip netns del near
ip netns del far

# virtio_net with several queue pairs, where the lab was given a tap device.
if [ "$(ls -d /sys/class/net/eth1/queues/tx-* 2>/dev/null | wc -l)" -ge 4 ]; then
    eth1() {
        ethtool -l eth1
        tc qdisc show dev eth1
        tc filter show dev eth1 egress
        grep -H . /sys/class/net/eth1/queues/tx-*/xps_*
        for irq in /sys/class/net/eth1/device/../msi_irqs/*; do cat "/proc/irq/${irq##*/}/smp_affinity_list"; done
    }
    ip link set eth1 up
    ethtool -L eth1 combined 4
    eth1 >/tmp/before
    cat >/tmp/eth1.toml <<'TOML'
interface = "eth1"
other_queues = 2
[[class]]
name = "nvme"
queues = 2
cores = [0, 1]
traffic = ["*:4420"]
TOML
    "$NVLANE" adq apply --config /tmp/eth1.toml --record /tmp/adq
    "$NVLANE" adq verify --interface eth1 --record /tmp/adq
    tc qdisc show dev eth1 root | has_line -E 'queues:\(0:1\) \(2:3\)'
    ethtool -L eth1 combined 2
    "$NVLANE" adq verify --interface eth1 --record /tmp/adq && fail 'drift is not seen on eth1' || [ $? = 5 ]
    ethtool -L eth1 combined 4
    "$NVLANE" adq remove --interface eth1 --record /tmp/adq
    eth1 | cmp - /tmp/before
fi
