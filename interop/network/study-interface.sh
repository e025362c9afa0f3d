#!/usr/bin/env bash
# nvlane study serve --interface: a target of a study from another machine gets a queue pair of the interface, or aRFS. Nothing of
# that remains when the study has ended, when it or its server was killed and its layout removed, and when the server was stopped.
. /lab/lib.sh
. /lab/adq.sh

stand_in && skip 'nothing stands in for nvlane study'
ulimit -n "$(ulimit -Hn)"
[ "$(ulimit -n)" -ge 9000 ] || ulimit -n 20000
pair
export NVLANE_ADQ_RECORD=/tmp/adq
REPORT=/var/tmp/study-interface
ON='memcached, 32 connections, on'
dump >/tmp/before

# serve COMMAND...: starts a study server on near0 by this command; sets $server and $token.
serve() {
    "$@" "$NVLANE" study serve --listen 192.0.2.2 --cores 1 --interface near0 >/tmp/served 2>&1 & server=$!
    until grep -q -- --token /tmp/served; do
        kill -0 $server || fail "the server: $(cat /tmp/served)"
        sleep 0.1
    done
    token=$(sed -n 's/.*--token //p' /tmp/served)
}

# study OPTION...: a study on the other machine.
study() {
    ip netns exec far "$NVLANE" study adq --target 192.0.2.2 --token "$token" --out $REPORT -t 0.3 --extra 0 "$@" </dev/null
}

has_layout() { near tc qdisc show dev near0 root | grep mqprio >/dev/null; }
is_as_before() { dump | cmp -s - /tmp/before; }

serve ip netns exec near
study --only "$ON" --rounds 1 >/tmp/said & pid=$!
wait_for 120 has_layout
# The class is of the target's memcached listener, whose port is not known before.
near "$NVLANE" adq status --interface near0 -o json >/tmp/status || true
wait $pid || { cat /tmp/said /tmp/served; fail 'the study'; }
cat /tmp/said
is_as_before || fail 'the layout outlives its target'
has_line '^near0: a layout of nvlane adq for a target of the study$' </tmp/served
has_line '^near0: as before$' </tmp/served
has_line 'near0 of the targets. machine. Its driver has no offload' </tmp/said
./holds <$REPORT/results.json \
    'target_machine["steering"] == {"interface": "near0", "has_arfs": False}' \
    'len(cells) == 1'
grep -q '"traffic"' /tmp/status || fail 'no class was seen'

# A study that is killed.
study --only "$ON" --rounds 1000 >/dev/null 2>&1 & pid=$!
wait_for 120 has_layout
pkill -KILL -f 'nvlane-lab study adq'
wait $pid || true
wait_for 60 is_as_before

# A server that is stopped.
study --only "$ON" --rounds 1000 >/dev/null 2>&1 & pid=$!
wait_for 120 has_layout
kill $server
wait $server || fail "the server ended with $?: $(cat /tmp/served)"
is_as_before || fail 'the layout outlives its server'
wait $pid && fail 'a study without its server succeeds'

# A server that is killed cannot take anything back: the next one says what does.
serve ip netns exec near
study --only "$ON" --rounds 1000 >/dev/null 2>&1 & pid=$!
wait_for 120 has_layout
pkill -KILL -f 'nvlane-lab study serve'
wait $pid && fail 'a study without its server succeeds'
if near "$NVLANE" study serve --listen 192.0.2.2 --interface near0 2>/tmp/error; then fail 'a layout is there'; fi
has_line 'near0 has a layout already: .nvlane adq remove --interface near0.' </tmp/error
near "$NVLANE" adq remove --interface near0
is_as_before || fail 'the layout was not removed'

# aRFS, in the first network namespace, which alone has the kernel's table of flows. A program in place of ethtool says that the
# driver has rules for flows. What an administrator has set before is there afterwards, queue by queue.
ip -n near link set near0 netns 1
ip addr add 192.0.2.2/24 dev near0
ip link set near0 up
mkdir -p /tmp/bin
ETHTOOL=$(command -v ethtool)
cat >/tmp/bin/ethtool <<SH
#!/bin/sh
case "\$1 \$3" in
    '-K ntuple') echo "\$4" >/tmp/ntuple ;;
    '-k ') $ETHTOOL "\$@" | sed "s/^ntuple-filters:.*/ntuple-filters: \$(cat /tmp/ntuple)/" ;;
    *) exec $ETHTOOL "\$@" ;;
esac
SH
chmod +x /tmp/bin/ethtool
echo off >/tmp/ntuple
echo 256 >/proc/sys/net/core/rps_sock_flow_entries
echo 64 >/sys/class/net/near0/queues/rx-1/rps_flow_cnt
flows() { cat /tmp/ntuple /proc/sys/net/core/rps_sock_flow_entries /sys/class/net/near0/queues/rx-*/rps_flow_cnt | xargs; }
[ "$(flows)" = 'off 256 0 64 0 0' ] || fail "before aRFS: $(flows)"
serve env PATH="/tmp/bin:$PATH"
is_on() { [ "$(flows)" = 'on 32768 4096 4096 4096 4096' ]; }
study --only 'nvme, 32 connections, aRFS' --rounds 1 >/tmp/said & pid=$!
wait_for 120 is_on
wait $pid || { cat /tmp/said /tmp/served; fail 'the study with aRFS'; }
[ "$(flows)" = 'off 256 0 64 0 0' ] || fail "after aRFS: $(flows)"
kill $server
wait $server
