# Namespaces come, go, change hands, grow and shrink while a kernel host works, which sees it without a rescan by hand.
# set: ci
manage() { feedrail target "$@" --socket /tmp/target.sock || fail "feedrail target $*"; }
has_size() { [ "$(blockdev --getsize64 "$1")" = "$2" ]; }
# The device of namespace 2 holds what a file does.
second_holds() { (dd if="$(block_device 2)" bs=1M iflag=direct status=none | cmp - "$1"); }
no_second() { ! grep -qx 2 /sys/block/nvme*n*/nsid; }

truncate -s 64M /disk/a.img
for name in b c; do head -c 16M /dev/urandom >/disk/$name.img; done
target_start --writable --management /tmp/target.sock /disk/a.img
kernel_connect -i 2
fio_begin "$DEVICE" randrw 16k 16 8M

manage add-ns "$NQN" /disk/b.img --nsid 2
eventually second_holds /disk/b.img
manage remove-ns "$NQN" 2
eventually no_second
manage add-ns "$NQN" /disk/c.img --nsid 2
eventually second_holds /disk/c.img
# At once: the host hears of both changes together.
manage remove-ns "$NQN" 2
manage add-ns "$NQN" /disk/b.img --nsid 2
eventually second_holds /disk/b.img

# A namespace that only hosts see which were named.
cp /disk/c.img /disk/d.img
manage add-ns "$NQN" /disk/d.img --nsid 3 --no-auto-visible
listed() { nvme list-ns "${DEVICE%n*}" -o json | jq -c '[.nsid_list[].nsid]'; }
[ "$(listed)" = "[1,2]" ] || fail "hidden: $(listed)"
manage add-host "$NQN" "$(cat /etc/nvme/hostnqn)" --nsid 3
eventually block_device 3
[ "$(listed)" = "[1,2,3]" ] || fail "shown: $(listed)"
dd if="$(block_device 3)" bs=1M iflag=direct status=none | cmp - /disk/d.img || fail "what was shown"
manage remove-host "$NQN" "$(cat /etc/nvme/hostnqn)" --nsid 3
eventually eval '! grep -qx 3 /sys/block/nvme*n*/nsid'
[ "$(listed)" = "[1,2]" ] || fail "hidden again: $(listed)"

truncate -s 128M /disk/a.img
manage resize "$NQN" 1
eventually has_size "$DEVICE" $((128 << 20))
head -c 4M /dev/urandom >/tmp/tail
dd if=/tmp/tail of="$DEVICE" bs=1M seek=120 oflag=direct status=none || fail "writing what was added"
dd if="$DEVICE" bs=1M skip=120 count=4 iflag=direct status=none | cmp - /tmp/tail || fail "what was added"
truncate -s 64M /disk/a.img
manage resize "$NQN" 1
eventually has_size "$DEVICE" $((64 << 20))
io_is_moving
fio_end
nvme disconnect -n "$NQN" || fail "disconnect"
eventually target_is_free
target_stop
[ "$(stat -c %s /disk/a.img)" = $((64 << 20)) ] || fail "the file has another size"
