#!/usr/bin/env bash
# nvme smart-log: a healthy controller, and counters that count what was read and written.
# Outside: namespace 1 of 64 MiB.
. /lab/lib.sh

connect
nvme smart-log "$CTRL" -o json >/tmp/before
./holds </tmp/before 'critical_warning == 0' 'int(media_errors) == 0' 'percent_used == 0'
dd if=/dev/zero of="$DISK" bs=64k count=256 oflag=direct status=none
dd if="$DISK" of=/dev/null bs=64k count=128 iflag=direct status=none
nvme smart-log "$CTRL" -o json >/tmp/after
WRITES=$(field host_write_commands </tmp/before) READS=$(field host_read_commands </tmp/before)
export WRITES READS
stand_in || ./holds </tmp/after 'int(host_write_commands) >= int(env["WRITES"]) + 256' \
    'int(host_read_commands) >= int(env["READS"]) + 128' \
    'int(data_units_written) >= 16 * 1024 * 1024 // 512000' 'int(data_units_read) >= 8 * 1024 * 1024 // 512000' \
    'avail_spare >= spare_thresh'
