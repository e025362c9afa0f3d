#!/usr/bin/env bash
# nvlane study stacks: without the kernel's modules it names the stacks that are missing and what they need; with them every stack
# is measured, RDMA in software included; nothing that was set up for it remains. The figures of an emulated machine mean nothing.
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
has_line 'kernel (needs modprobe -a .*nvme-tcp' </tmp/said
has_line 'nvlane host, kernel target (needs modprobe -a .*nvmet-tcp' </tmp/said

modprobe -a nvme-tcp nvmet-tcp nvme-rdma nvmet-rdma rdma_rxe
interface=$(ip -o -4 route show default | sed 's/.* dev \([^ ]*\).*/\1/')
rdma link add rxe0 type rxe netdev "$interface"
study --only 'read qd32' >/tmp/said
cat /tmp/said
# A measurement that other load disturbed is rejected, and a number all the same.
./holds <$REPORT/results.json \
    '{cell["parameters"]["stack"] for cell in cells} == {"the file itself", "nvlane", "kernel host, nvlane target", "nvlane host, kernel target", "kernel", "kernel, RDMA"}' \
    '"RDMA device rxe0, in software: no figures of a card" in seen' \
    'environment["emulated"]'
[ -z "$(ls /sys/class/nvme)" ] || fail "controllers remain: $(ls /sys/class/nvme)"
[ -z "$(ls "$NVMET/subsystems" "$NVMET/ports" | grep -v :)" ] || fail 'a subsystem or port remains'
[ -z "$(ls /tmp/load-*.img 2>/dev/null)" ] || fail 'the file remains'
