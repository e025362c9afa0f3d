#!/usr/bin/env bash
# nvme effects-log: it lists the commands that the controller carries out, in step with
# what Identify says about optional ones.
# Outside: any target.
. /lab/lib.sh

connect
# Without --csi, nvme-cli 2.3 wants to map registers, which only PCI has.
nvme effects-log "$CTRL" --csi 0 -o json >/tmp/log
ONCS=$(nvme id-ctrl "$CTRL" -o json | field oncs); export ONCS
./holds </tmp/log 'len(it) == 1 and it[0]["command_set_identifier"] == 0' \
    '{2, 6, 9, 10, 12, 24} <= {int(k.split()[0][4:]) for k in it[0]["admin_cmd_set"]}' \
    '{0, 1, 2} <= {int(k.split()[0][5:]) for k in it[0]["io_cmd_set"]}' \
    'all(v & 1 for page in it for table in ("admin_cmd_set", "io_cmd_set") for v in page[table].values())' \
    '[o for o, bit in ((5, 0), (9, 2), (8, 3), (12, 7), (25, 8)) if any(k.startswith(f"IOCS_{o} ") for k in it[0]["io_cmd_set"]) != bool(int(env["ONCS"]) >> bit & 1)] == []'
