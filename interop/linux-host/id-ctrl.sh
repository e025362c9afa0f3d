#!/usr/bin/env bash
# nvme id-ctrl: identity, limits and command support are consistent with what the
# kernel learned and with what a host needs.
# Outside: any target.
. /lab/lib.sh

connect
CNTLID=$(cat "$SYSFS/cntlid") SERIAL=$(cat "$SYSFS/serial") MODEL=$(cat "$SYSFS/model") FIRMWARE=$(cat "$SYSFS/firmware_rev")
export CNTLID SERIAL MODEL FIRMWARE
nvme id-ctrl "$CTRL" -o json >/tmp/ctrl
./holds </tmp/ctrl \
    'subnqn == env["TARGET_NQN"]' 'cntlid == int(env["CNTLID"])' '0 < cntlid < 0xfff0' \
    'sn.strip() == env["SERIAL"].strip() != ""' 'mn.strip() == env["MODEL"].strip() != ""' \
    'fr.strip() == env["FIRMWARE"].strip() != ""' \
    'ver >= 0x10300' 'cntrltype == 1' 'cmic & 2' 'oaes & 0x100' 'kas > 0' \
    'sqes == 0x66' 'cqes == 0x44' 'maxcmd >= 128' 'nn >= 1' 'mdts == 0 or mdts >= 8' \
    'sgls & 3 == 1' 'sgls >> 20 & 1' 'ioccsz >= 4 + 8192 // 16' 'iorcsz == 1' 'icdoff == 0' 'msdbd >= 1' \
    'fcatt & 1 == 0' 'oncs & 0x0c == 0x0c' 'vwc & 1' 'acl >= 3' 'aerl >= 3' 'lpa & 2' \
    'not cmic & 8 or (anatt > 0 and 0 < nanagrpid <= anagrpmax and 0 < mnan <= nn)'
# Compare, Dataset Management, Write Zeroes, timestamp, Verify, Copy; compare-and-write.
stand_in || ./holds </tmp/ctrl 'oncs & 0x1cd == 0x1cd' 'fuses & 1' 'ocfs & 1' 'elpe >= 0' 'frmw & 0xf == 3'
