#!/usr/bin/env bash
# Two targets started with the same options are two disks to a kernel with native multipath, each with the by-id link that the target
# prints and with its own data. Of two targets with one name, only namespaces with one given UUID are one disk with two paths.
# Outside: runs `nvlane target`, several at once; one more target, not used.
. /lab/lib.sh
! stand_in || skip "nvmet has the identities that its user gives it"

# serve NAME OPTION...: a target of its own, until the file `serving` is gone; its address appears in /share/files/NAME.
serve() {
    local name=$1; shift
    printf '%s\n' nvlane target --listen 127.0.0.1:0 --cores 0 "$@" \
        --run "echo \$NVLANE_ADDR >.$name && mv .$name $name; while [ -e serving ]; do sleep 0.2; done" >/share/ask/.serve
    mv /share/ask/.serve "/share/ask/serve-$name"
}

# attach NAME: connects to that target.
attach() {
    local place nqn
    IFS=/ read -r place nqn <"/share/files/$1"
    nvme connect -t tcp -a "$TARGET_ADDR" -s "${place##*:}" -n "$nqn" --nr-io-queues 1
}

# disks: those that are shown, not their paths (nvme0c1n1).
disks() { local disk; for disk in /sys/block/nvme*; do [[ $disk == */nvme*c*n* || ! -e $disk ]] || echo "${disk##*/}"; done; }
has_disks() { [ "$(disks | wc -l)" = "$1" ]; }
# path_count WWID: controllers through which the disk with this identity is reached.
path_count() { cat /sys/class/nvme/nvme*/nvme*c*n*/wwid 2>/dev/null | grep -cxF "$1"; }

[ "$(</sys/module/nvme_core/parameters/multipath)" = Y ] || fail "no native multipath"
rm -f /share/files/*
touch /share/files/serving
trap 'rm -f /share/files/serving' EXIT
shared=uuid.6e766c61-6e65-4000-8000-000000000001
for machine in one two; do serve $machine --machine $machine --namespace ram:16M; done
for machine in three four; do
    serve $machine --machine $machine --nqn nqn.2024-01.example:shared --namespace "ram:16M?uuid=${shared#uuid.}" --namespace ram:16M
done
for machine in one two three four; do wait_for 20 test -e /share/files/$machine; done

say "two machines"
attach one
attach two
wait_for 10 has_disks 2
for disk in $(disks); do
    head -c 1M /dev/urandom >"/tmp/$disk"
    dd if="/tmp/$disk" of="/dev/$disk" bs=1M oflag=direct status=none
done
for disk in $(disks); do
    dd if="/dev/$disk" bs=1M count=1 iflag=direct status=none | cmp - "/tmp/$disk" || fail "$disk has data of the other"
done
for machine in one two; do
    outside nvlane identify "$(<"/share/files/$machine")" -o json >/tmp/identify
    link=$(field by_id </tmp/identify)
    # udev makes its link of this attribute.
    grep -qxF "${link#/dev/disk/by-id/nvme-}" /sys/block/nvme*n*/wwid || fail "$link is no disk's"
done
nvme disconnect-all

say "one name, and one UUID"
expect_disruption
attach three
wait_for 10 has_disks 2
attach four
wait_for 10 eval '[ "$(path_count $shared)" = 2 ]'
wait_for 10 eval 'dmesg | tail -n 50 | has_line "IDs don.t match for shared namespace 2"'
[ "$(cat /sys/class/nvme/nvme*/nvme*c*n*/wwid | wc -l)" = 3 ] || fail "two paths to two different disks"
