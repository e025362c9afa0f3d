#!/usr/bin/env bash
# In the guest: runs one behaviour after another, until told to stop.
#
#   /share/job         from the outside: which behaviour, and its variables
#   /share/output      what the behaviour prints, while it runs
#   /share/done        from here: its status, and "clean" or "dirty", as the guest is now
#   /share/ask/ID      a behaviour asks the outside for something (lib.sh, `outside`)
#   /share/answer/ID   the status of that on the first line, then what it printed
#   /share/stop        from the outside: no more jobs
#
# Every file appears whole, by rename.
set -u
cd /lab || exit 1
. /lab/nvmet.sh

# What the kernel said since the behaviour began; of certain levels only, perhaps.
kernel_log() { dmesg "$@" | sed '1,\|'"behaviour $BEHAVIOUR starts"'|d'; }

# What a healthy kernel does not say. The host's driver reconnects by itself, so a
# protocol error could hide behind a behaviour that succeeds a little later.
complaints() {
    kernel_log --level=emerg,alert,crit,err,warn |
        grep -E 'nvme|I/O error|BUG:|WARNING:|Oops|EXT4-fs|XFS'
}

clean_up() {
    tc qdisc del dev eth0 clsact 2>/dev/null
    tc qdisc del dev lo clsact 2>/dev/null
    while umount -R /mnt 2>/dev/null; do :; done
    timeout 20 nvme disconnect-all
    nvmet_stop
    awk '$2 ~ "^/tmp/" { print $2 }' /proc/mounts | sort -r | xargs -r -n 1 umount -l
    rm -rf /tmp/* /var/tmp/*
    [ -z "$(ls /sys/class/nvme 2>/dev/null)" ] && [ -z "$(ls "$NVMET/subsystems" 2>/dev/null)" ]
}

run_behaviour() (
    . /tmp/job
    echo "<4>behaviour $BEHAVIOUR starts" >/dev/kmsg
    if [ "${STAND_IN:-}" = nvmet ]; then
        nvmet_stand_in start || { echo 'FAIL: no stand-in'; exit 1; }
    fi
    setsid bash -eu "/lab/$BEHAVIOUR.sh" </dev/null &
    wait $!
    status=$?
    pkill -KILL -s $!
    if [ $status = 0 ] && [ ! -e /tmp/disruption ] && complaints; then
        echo "FAIL: the kernel complains: $(complaints | head -n 1)"
        status=1
    fi
    [ $status = 0 ] || [ $status = 77 ] || { echo '--- kernel log'; kernel_log | tail -n 60; }
    exit $status
)

# Commands have minutes: on a busy machine an emulated kernel may stand still for seconds.
modprobe -a nvme_core
for timeout in io_timeout admin_timeout; do echo 240 >"/sys/module/nvme_core/parameters/$timeout"; done

mkdir -p /share/ask /share/answer
touch /share/ready
until [ -e /share/stop ]; do
    if [ ! -e /share/job ]; then sleep 0.1; continue; fi
    mv /share/job /tmp/job
    run_behaviour >/share/output 2>&1
    status=$?
    if clean_up >>/share/output 2>&1; then state=clean; else state=dirty; fi
    echo "$status $state" >/share/.done
    mv /share/.done /share/done
done
