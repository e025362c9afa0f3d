#!/usr/bin/env bash
# nvlane perf verifies its data against nvmet over a file, with direct I/O and through the
# page cache: 4 KiB to 1 MiB (the file's blocks are of 4096 bytes), digests, depths and lanes.
# Outside: nvlane, which reaches nvmet at $OUTSIDE_ADDR.
. /lab/lib.sh

truncate -s 64M /var/tmp/direct /var/tmp/buffered
nvmet_namespace "$TARGET_NQN" 1 /var/tmp/direct
mkdir "$NVMET/subsystems/$TARGET_NQN/namespaces/2"
echo 1 >"$NVMET/subsystems/$TARGET_NQN/namespaces/2/buffered_io"
nvmet_namespace "$TARGET_NQN" 2 /var/tmp/buffered
nvmet_listen "$TARGET_NQN" 0.0.0.0 4420
for NSID in 1 2; do
    verified_perf <<'ROWS'
4096     32 2   1 1    128 1   8 4
65536    4 4    8 2    1 3   16 1
1048576  1 1    2 3    2 2   1 4
ROWS
done
