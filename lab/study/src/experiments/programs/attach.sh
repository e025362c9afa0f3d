# Prints a block device for the file or device of $NVLANE_DEVICE, or the directory of a file system on it if $FILES is set, and takes
# both away when its input ends.
trap '' INT
loop= place=
end() {
    if [ -n "$place" ]; then
        tries=0
        # Programs that have files open are about to end.
        while mountpoint -q "$place" && [ $tries -lt 50 ]; do
            umount "$place" 2>/dev/null || sleep .1
            tries=$((tries + 1))
        done
        rmdir "$place"
    fi
    [ -z "$loop" ] || losetup --detach "$loop"
}
trap end EXIT
trap 'exit 1' TERM HUP
set -e
device=$NVLANE_DEVICE
if [ ! -b "$device" ]; then
    loop=$(losetup --find --show --direct-io=on --sector-size 4096 "$device")
    device=$loop
fi
if [ -n "$FILES" ]; then
    mkfs.ext4 -q -F -b 4096 -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 "$device" >&2
    place=$(mktemp --directory)
    chmod 755 "$place"
    mount -o noatime "$device" "$place"
fi
echo "${place:-$device}"
read -r _ || true
