#!/usr/bin/env bash
# nvme list-ns: exactly the configured namespaces, ascending, gaps and all; a list that
# starts behind one; and the kernel has a disk for each.
# Outside: namespaces 1, 2 and 7.
. /lab/lib.sh

connect
nvme list-ns "$CTRL" -o json | ./holds '[n["nsid"] for n in nsid_list] == [1, 2, 7]'
nvme list-ns "$CTRL" --namespace-id=2 -o json | ./holds '[n["nsid"] for n in nsid_list] == [2, 7]'
stand_in || nvme list-ns "$CTRL" --all -o json | ./holds '[n["nsid"] for n in nsid_list] == [1, 2, 7]'
for nsid in 1 2 7; do wait_for 10 has_disk $nsid; done
