#!/usr/bin/env bash
# nvme fw-log: one slot, active, with the revision that Identify gives.
# Outside: any target.
. /lab/lib.sh

connect
FIRMWARE=$(xargs <"$SYSFS/firmware_rev"); export FIRMWARE
nvme fw-log "$CTRL" -o json >/tmp/log
./holds </tmp/log 'len(it) == 1'
! stand_in || skip "nvmet's firmware log is empty"
./holds </tmp/log 'next(iter(it.values()))["Active Firmware Slot (afi)"] & 7 == 1' \
    'env["FIRMWARE"] in next(iter(it.values()))["Firmware Rev Slot 1"]'
