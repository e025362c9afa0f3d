#!/usr/bin/env bash
# nvlane study stacks: without the kernel's modules it names the stacks that are missing and what they need; with them every stack
# is measured, RDMA in software and 32 jobs included, also where a study server starts the targets; nothing that was set up for it
# remains. The figures of an emulated machine mean nothing.
. /lab/lib.sh

stand_in && skip 'nothing stands in for nvlane study'
NVLANE=/share/nvlane
REPORT=/var/tmp/stacks

# study OPTION...: one round of short measurements.
study() {
    rm -rf $REPORT
    $NVLANE study stacks --quick --rounds 1 --extra 0 --out $REPORT "$@" </dev/null
}

modprobe -r nvme-rdma nvme-tcp nvmet-rdma nvmet-tcp 2>/dev/null || true
study --only 'itself, read qd1' >/tmp/said
has_line 'kernel (needs modprobe -a .*nvme-tcp.*nvmet-tcp' </tmp/said
has_line 'nvlane host, kernel target (needs modprobe -a .*nvmet-tcp' </tmp/said

modprobe -a nvme-tcp nvmet-tcp nvme-rdma nvmet-rdma rdma_rxe
interface=$(ip -o -4 route show default | sed 's/.* dev \([^ ]*\).*/\1/')
rdma link add rxe0 type rxe netdev "$interface"

# every_stack NAME: the study of cells with this name has all of them. A measurement that other load disturbed is rejected, and a
# number all the same.
every_stack() {
    cat /tmp/said
    ./holds <$REPORT/results.json \
        '{cell["parameters"]["stack"] for cell in cells} == {"the file itself", "nvlane", "kernel host, nvlane target", "nvlane host, kernel target", "kernel", "kernel, RDMA"}' \
        '"RDMA device rxe0, in software: no figures of a card" in seen' \
        'environment["emulated"]'
    [ -z "$(ls /sys/class/nvme)" ] || fail "controllers remain: $(ls /sys/class/nvme)"
    [ -z "$(ls "$NVMET/subsystems" "$NVMET/ports" | grep -v :)" ] || fail 'a subsystem or port remains'
    [ -z "$(ls /tmp/load-*.img /tmp/nvlane-study-serve-* 2>/dev/null)" ] || fail 'the file remains'
}

study --only 'read qd32' >/tmp/said
every_stack
study --only 'read 32 jobs qd8' >/tmp/said
every_stack

address=$(ip -o -4 address show dev "$interface" | sed 's/.* inet \([^/]*\).*/\1/')
$NVLANE study serve --listen "$address" >/tmp/server </dev/null &
server=$!
wait_for 60 grep -q token /tmp/server
# Words of the options that the server prints.
study --only 'read qd32' $(grep -o -- '--target.*' /tmp/server) >/tmp/said
every_stack
has_line 'Measured between two machines' </tmp/said
kill $server
wait $server
