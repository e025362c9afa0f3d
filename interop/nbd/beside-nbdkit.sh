#!/usr/bin/env bash
# Measures `nvlane attach nbd` beside nbdkit's memory plugin, in turn: 4 KiB, depths 1 and 16, fio's nbd engine over Unix sockets.
# Takes two minutes, and a machine without other work. Outside: NVLANE, the program, optimized; nbdkit, fio, nbdcopy.
set -eu -o pipefail

dir=$(mktemp -d)
cd "$dir"
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$dir"' EXIT
nbdkit -f -U k.sock memory 1G &
kit=$!
"$NVLANE" --log warn target --listen 127.0.0.1:0 --cores 0 --namespace ram:1G --run "echo \$NVLANE_ADDR >address; sleep 600" &
target=$!
until [ -s address ] && [ -S k.sock ]; do sleep 0.1; done
"$NVLANE" --log warn attach nbd "$(cat address)" --socket b.sock >uri &
bridge=$!
until [ -s uri ]; do sleep 0.1; done

kit_uri="nbd+unix:///?socket=$dir/k.sock"
bridge_uri="nbd+unix:///?socket=$dir/b.sock"
head -c 256M /dev/urandom >image
nbdcopy image "$kit_uri"
nbdcopy image "$bridge_uri"

# Ticks of processor time of processes.
ticks() { for pid in "$@"; do cut -d ' ' -f 14,15 "/proc/$pid/stat"; done | awk '{ sum += $1 + $2 } END { print sum }'; }

# NAME URI DEPTH PATTERN PID...: a run, and the processor time of these processes.
measure() {
    local name=$1 uri=$2 depth=$3 pattern=$4 before
    shift 4
    before=$(ticks "$@")
    fio --name=a --ioengine=nbd --uri="$uri" --rw="$pattern" --bs=4k --iodepth="$depth" --size=256M --time_based --runtime=3 \
        --output-format=json --output=fio.json >fio.log
    python3 - "$name" "$depth" "$pattern" $(($(ticks "$@") - before)) "$(getconf CLK_TCK)" <<'END'
import json, sys
name, depth, pattern, ticks, per_second = sys.argv[1:]
job = json.load(open("fio.json"))["jobs"][0]
side = job["read" if "read" in pattern else "write"]
times = side["clat_ns"]["percentile"]
cpu_s = int(ticks) / int(per_second)
print(f"{name:17} {pattern:9} depth {depth:>2}  {side['iops']:8.0f} IOPS  p50 {times['50.000000'] / 1000:6.1f} us  "
      f"p99 {times['99.000000'] / 1000:7.1f} us  {side['total_ios'] / cpu_s:8.0f} IOPS per core")
END
}

for _ in 1 2 3; do
    for depth in 1 16; do
        for pattern in randread randwrite; do
            measure nbdkit "$kit_uri" $depth $pattern $kit
            measure bridge "$bridge_uri" $depth $pattern $bridge
        done
    done
done
for depth in 1 16; do measure 'bridge and target' "$bridge_uri" $depth randread $bridge $target; done
