# Functions of all behaviours. Sourced in the guest by every script, under `bash -eu`.
#
# The outside gives $TARGET_NQN, and to linux-host behaviours $TARGET_ADDR, $TARGET_PORT and
# $DISCOVERY_PORT, to linux-target behaviours $OUTSIDE_ADDR. $STAND_IN is set when nvlane
# is not there: "nvmet" (in this guest) is the target, or "probe" the host. $WHOLE is set unless
# the behaviour is to be short.
# shellcheck shell=bash
set -E -o pipefail
trap 'echo "FAIL: line $LINENO: $BASH_COMMAND"' ERR
. /lab/nvmet.sh

PORTAL=(-t tcp -a "${TARGET_ADDR:-}" -s "${TARGET_PORT:-}")

fail() { echo "FAIL: $*"; exit 1; }
skip() { echo "SKIP: $*"; exit 77; }
say() { echo "[$SECONDS s] $*"; }

# Is nvlane not there? For what its stand-in cannot do.
stand_in() { [ -n "${STAND_IN:-}" ]; }

# Is every part of the behaviour tried? Where not (make test), the parts that differ little from others are left out.
whole() { [ -n "${WHOLE:-}" ]; }

# The kernel is going to lose its target, and may say so.
expect_disruption() { touch /tmp/disruption; }

# has_line GREP-OPTION... PATTERN: whether such a line is in the standard input, which is read to its end: a writer whose reader
# has gone fails.
has_line() { local all; all=$(cat); grep -q "$@" <<<"$all"; }

# wait_for SECONDS COMMAND...: until COMMAND succeeds.
wait_for() {
    local end=$((SECONDS + $1)); shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || fail "not in time: $*"
        sleep 0.1
    done
}

# tls_daemon: starts tlshd, or skips the behaviour where it is not installed. Returns when tlshd has joined the kernel's
# multicast group for handshakes: before that the kernel refuses them.
tls_daemon() {
    [ -x /sbin/tlshd ] || skip 'no tlshd'
    modprobe -a tls nvme-keyring
    tlshd -s </dev/null >/tmp/tlshd.log 2>&1 &
    wait_for 10 grep -Eq '^[0-9a-f]+ +16 +[0-9]+ +(0*[1-9a-f])' /proc/net/netlink
}

# outside VERB...: has the outside do something; prints what it prints (as an error if it
# failed), ends as it ends.
outside() {
    local id status
    if [ "${STAND_IN:-}" = nvmet ]; then nvmet_stand_in "$@"; return; fi
    id=$(mktemp -u XXXXXXXX)
    printf '%s\n' "$@" >"/share/ask/.$id"
    mv "/share/ask/.$id" "/share/ask/$id"
    until [ -e "/share/answer/$id" ]; do sleep 0.1; done
    { read -r status; if [ "$status" = 0 ]; then cat; else cat >&2; fi; } <"/share/answer/$id"
    rm "/share/answer/$id"
    return "$status"
}

# disk_of NSID: the kernel's disk of that namespace. The number in its name is another.
disk_of() {
    local nsid
    for nsid in /sys/block/nvme*/nsid; do
        if [[ $nsid != */nvme*c*/nsid && -e $nsid && $(<"$nsid") = "$1" ]]; then
            nsid=${nsid%/nsid}
            echo "/dev/${nsid##*/}"
        fi
    done
}

has_disk() { [ -b "$(disk_of "$1")" ]; }

# connect [OPTION...]: connects to the target and waits for namespace 1. Sets CTRL
# (/dev/nvme0), SYSFS (its directory) and DISK (/dev/nvme0n1). On a busy machine an emulated kernel
# may stand still for seconds: unless a behaviour asks for another one, the keep-alive timeout is 60 s.
connect() {
    CTRL=$(nvme connect "${PORTAL[@]}" -n "$TARGET_NQN" -o json --keep-alive-tmo 60 "$@" | field device)
    [ -n "$CTRL" ] || fail "cannot connect with: $*"
    SYSFS=/sys/class/nvme/$CTRL
    CTRL=/dev/$CTRL
    wait_for 10 has_disk 1
    DISK=$(disk_of 1)
}

# field NAME <JSON: the first value of that name.
field() { local all; all=$(sed -n 's/.*"'"$1"'": *"\{0,1\}\([^",]*\).*/\1/p'); echo "${all%%$'\n'*}"; }

disconnect() { nvme disconnect -d "${CTRL#/dev/}" >/dev/null; }

bytes_of() { blockdev --getsize64 "$1"; }

is_live() { [ "$(cat "$SYSFS/state")" = live ]; }

# verified_fio OPTION...: fio with direct I/O, every block checksummed and read back. A Linux host sends a command from the process
# that submits it, and raises SIGPIPE there if the target has closed the connection at that moment ("failed to send request -32").
verified_fio() {
    local output=/tmp/fio.$BASHPID
    env --ignore-signal=PIPE fio --eta=never --output-format=terse --terse-version=3 --direct=1 --ioengine=libaio \
        --verify=crc32c --verify_fatal=1 --end_fsync=1 --randrepeat=1 "$@" >"$output" 2>&1 ||
        { cat "$output"; fail "fio $*"; }
}

# write_files DIR: files of all sizes with their checksums, fsynced one by one.
write_files() {
    local bytes
    for bytes in 1 511 4096 65537 1048576 12582912; do
        head -c "$bytes" /dev/urandom | dd of="$1/$bytes" bs=1M iflag=fullblock conv=fsync status=none
    done
    ( cd "$1" && md5sum -- [0-9]* ) >/tmp/sums
}

# check_files DIR: they are what write_files wrote.
check_files() { ( cd "$1" && md5sum --quiet -c /tmp/sums ) || fail "files differ"; }

# write_and_reconnect: writes files to the file system on $DISK, finds them after unmount and remount, and makes a
# fresh connect.
write_and_reconnect() {
    mount "$DISK" /mnt
    write_files /mnt
    umount /mnt
    mount "$DISK" /mnt
    check_files /mnt
    umount /mnt
    disconnect
    connect
}

# same_data DEVICE MIB [OPTION...]: writes MIB random MiB and compares them, past the cache.
same_data() {
    local device=$1 mib=$2; shift 2
    head -c "${mib}M" /dev/urandom >/tmp/data
    dd if=/tmp/data of="$device" bs=1M oflag=direct status=none "$@"
    dd if="$device" bs=1M count="$mib" iflag=direct status=none | cmp - /tmp/data || fail "$device differs"
}

# perf_is_good: the report of the last `nvlane perf` has I/O of both kinds and no error.
perf_is_good() {
    ./holds </share/files/perf.json 'all(job["error"] == 0 for job in jobs)' \
        'sum(job["read"]["total_ios"] for job in jobs) > 0' 'sum(job["write"]["total_ios"] for job in jobs) > 0' ||
        fail "the report of nvlane perf"
}

# verified_perf <ROWS: runs `nvlane perf --verify` on namespace $NSID (1). A row is a block size,
# then depth and lanes without digests, with header digest, with data digest, with both: unless everything is tried, the
# first pair without and the second with both.
verified_perf() {
    local bytes row digests length settings=("" "-H -I")
    if whole; then settings=("" "-H" "-I" "-H -I"); fi
    while read -r bytes row; do
        # Of large blocks an emulated guest may move only a few in a second: too few for both kinds of I/O.
        length="-t 0.5"
        ((bytes < 131072)) || length="-d 16"
        for digests in "${settings[@]}"; do
            # shellcheck disable=SC2086
            set -- $row
            row=${*:3}
            # shellcheck disable=SC2086
            outside nvlane perf "$OUTSIDE_ADDR/$TARGET_NQN?ns=${NSID:-1}" -o "$bytes" -q "$1" -P "$2" $digests \
                -w randrw -M 50 $length --verify --json perf.json >/tmp/perf ||
                fail "nvlane perf -o $bytes -q $1 -P $2 $digests"
            stand_in || perf_is_good
        done
    done
}
