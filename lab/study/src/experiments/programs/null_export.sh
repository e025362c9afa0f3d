# Prints the socket of a vhost-user device of qemu-storage-daemon that has no storage, and the daemon's process, and ends it when its
# input ends.
trap '' INT
place=$(mktemp --directory)
qemu-storage-daemon --blockdev driver=null-co,node-name=disk,size=1099511627776,read-zeroes=on \
    --export "type=vhost-user-blk,id=disk,node-name=disk,addr.type=unix,addr.path=$place/disk,num-queues=1,writable=on,logical-block-size=4096" &
daemon=$!
trap 'kill $daemon; wait $daemon; rm -r "$place"' EXIT
trap 'exit 1' TERM HUP
until [ -S "$place/disk" ]; do
    kill -0 $daemon || exit 1
    sleep .02
done
echo "$place/disk $daemon"
read -r _ || true
