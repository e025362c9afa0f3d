#!/usr/bin/env bash
# Steps of the wall clock while keys are stored, in memory and in a file: times to live and the uptime do not follow them, and Unix
# time is converted as it arrives. A file that is read again with a clock that was set back or forward, after a stop or a kill,
# has what has not expired and nothing that had.
. /lab/lib.sh

stand_in && skip 'nothing stands in for nvlane target'
NVLANE=/tmp/nvlane
# From the share each page would come by itself.
cp /share/nvlane $NVLANE

serve() {
    "$NVLANE" target --listen 127.0.0.1:4420 --memcached 127.0.0.1:11211 --namespace "$1" >/tmp/target.log 2>&1 & TARGET=$!
    wait_for 60 grep -q ' ready ' /tmp/target.log
}

# ask LINE...: what memcached's protocol answers to these lines.
ask() { printf '%s\r\n' "$@" quit | timeout 20 nc 127.0.0.1 11211 | tr -d '\r'; }

# has KEY; lacks KEY: whether there is a value.
has() { ask "get $1" | has_line "^VALUE $1 " || fail "$1 is gone: $2"; }
lacks() { if ask "get $1" | has_line "^VALUE $1 "; then fail "$1 is there: $2"; fi; }

# ahead SECONDS: sets the wall clock so far ahead of the time.
read -r up _ </proc/uptime
start=$(($(date +%s) - ${up%.*}))
ahead() {
    read -r up _ </proc/uptime
    date -s "@$((start + ${up%.*} + $1))" >/dev/null
}

for storage in kv:ram:32M 'kv:file:/tmp/keys?size=64M'; do
    serve "$storage"
    ask 'set long 0 3000 1' x >/dev/null
    ahead 3600
    has long "a step of an hour forward, $storage"
    uptime=$(ask stats | sed -n 's/^STAT uptime //p')
    [ "$uptime" -lt 600 ] || fail "uptime is $uptime after a step forward"
    ahead -3600
    ask 'set short 0 3 1' x "set absolute 0 $(($(date +%s) + 3000)) 1" x >/dev/null
    has absolute "$storage"
    sleep 5
    lacks short "a step of an hour back, $storage"
    ahead 0
    has long "the clock is right again, $storage"
    has absolute "the clock is right again, $storage"
    [[ $storage = kv:file:* ]] || { kill "$TARGET"; wait "$TARGET"; }
done

stops=("KILL -86400" "TERM 3600")
if whole; then stops+=("KILL 3600" "TERM -86400"); fi
for stop in "${stops[@]}"; do
    read -r signal step <<<"$stop"
    ask 'set short 0 3 1' x >/dev/null
    sleep 5
    kill -$signal "$TARGET"
    wait "$TARGET" || [ $signal = KILL ] || fail 'the target'
    ahead $step
    serve "$storage"
    has long "read again after SIG$signal"
    has absolute "read again after SIG$signal"
    lacks short "read again after SIG$signal"
done
kill "$TARGET"
wait "$TARGET"
ahead 0
