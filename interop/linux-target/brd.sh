#!/usr/bin/env bash
# nvlane perf verifies its data against nvmet over a RAM disk: 512 bytes to 1 MiB, every
# combination of digests, depths from 1 to 128, 1 to 4 lanes. Each block size meets each
# digest setting; depths and lanes are spread so that each meets every digest setting too.
# Outside: nvlane, which reaches nvmet at $OUTSIDE_ADDR.
. /lab/lib.sh

modprobe brd rd_nr=1 rd_size=262144
nvmet_namespace "$TARGET_NQN" 1 /dev/ram0
nvmet_listen "$TARGET_NQN" 0.0.0.0 4420
# bytes: depth and lanes without digests, with -H, with -I, with -H -I.
verified_perf <<'ROWS'
512      1 1   128 4    32 2   4 3
4096     128 4   1 1    4 3   32 2
8192     4 2    32 3    1 4   128 1
16384    32 3   4 2    128 1   1 4
131072   8 1    1 4    4 2   8 3
524288   1 4    4 1    2 3   1 2
1048576  2 2    1 3    4 1   2 4
ROWS
