#!/usr/bin/env bash
# nvme show-regs: the properties are those of an enabled controller, and one that does not
# exist over fabrics is no error. nvme-cli 2.3 reads them all and takes "invalid field" for
# "not there" only if DNR is not set.
# Outside: any target.
. /lab/lib.sh

connect
property() { nvme get-property "$CTRL" -o "$1" | sed -n 's/.*value: *\([0-9a-f]*\).*/0x\1/p'; }
VER=$(nvme id-ctrl "$CTRL" -o json | field ver); export VER
[ $(($(property 0x8))) = "$VER" ] || fail "version $(property 0x8)"
[ $(($(property 0x1c))) = 1 ] || fail "CSTS $(property 0x1c)"
! stand_in || skip "nvme show-regs cannot read nvmet's: it sets DNR"
nvme show-regs "$CTRL" -o json >/tmp/regs
./holds </tmp/regs 'vs == int(env["VER"])' 'csts == 1' 'cc & 1' 'cc >> 16 & 15 == 6' 'cc >> 20 & 15 == 4' \
    'cap & 0xffff >= 127' 'cap >> 16 & 1' 'cap >> 24 & 0xff >= 1' 'cap >> 37 & 1' 'cap >> 48 & 15 == 0'
