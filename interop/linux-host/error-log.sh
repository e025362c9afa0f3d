#!/usr/bin/env bash
# nvme error-log: a command that fails leaves an entry that says which, where and why,
# newest first, and the count in the SMART log follows.
# Outside: namespace 1 of 64 MiB with 512-byte blocks.
. /lab/lib.sh

connect
beyond=$((1 << 30))
for lba in $beyond $((beyond + 1)); do
    ! nvme io-passthru "$DISK" --opcode=2 --namespace-id=1 --cdw10="$lba" --data-len=512 --read >/tmp/refused 2>&1 ||
        fail "a read beyond the end succeeds"
    stand_in || grep -qi 'LBA out of range' /tmp/refused || fail "$(cat /tmp/refused)"
done
LBA=$beyond; export LBA
nvme error-log "$CTRL" -e 2 -o json >/tmp/log
./holds </tmp/log 'len(errors) == 2' 'errors[0]["error_count"] == errors[1]["error_count"] + 1' \
    'all(e["nsid"] == 1 and e["sqid"] >= 1 for e in errors)' '[e["lba"] - int(env["LBA"]) for e in errors] == [1, 0]'
# nvmet calls it an internal error.
stand_in || ./holds </tmp/log 'all(e["status_field"] & 0x7ff == 0x80 for e in errors)'
COUNT=$(field error_count </tmp/log); export COUNT
nvme smart-log "$CTRL" -o json | ./holds 'int(num_err_log_entries) >= int(env["COUNT"]) >= 2'
