#!/usr/bin/env bash
# The target dies by SIGKILL under verified fio and starts again, at once and after a
# while: the kernel reconnects, fio ends without an error, what was acknowledged is there.
# Outside: namespace 1 of 64 MiB in a file; kills and starts the target when asked.
. /lab/lib.sh

expect_disruption
connect --keep-alive-tmo 5 --reconnect-delay 1 --ctrl-loss-tmo 120
# Two processes, rather than two jobs of one, and verified at the end: fio's list of what is to be verified is not locked against
# the writes (--verify_backlog), and fio has crashed of that.
loads=()
for offset in 0 16M; do
    verified_fio --name="load-$offset" --filename="$DISK" --rw=randrw --bs=4k --size=12M --offset="$offset" \
        --iodepth=16 --rate_iops=100,100 &
    loads+=($!)
done
sleep 3
say "killed"
outside kill
outside start
wait_for 30 is_live
sleep 3
kill -0 "${loads[@]}" || fail "fio ended too early"
say "killed again"
outside kill
sleep 3
outside start
wait_for 30 is_live
say "live"
for load in "${loads[@]}"; do
    wait "$load"
done
