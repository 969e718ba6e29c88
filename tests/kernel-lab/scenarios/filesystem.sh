# A file system on our namespace holds a tree, and survives disconnecting.
# set: ci
truncate -s 128M /disk/a.img
target_start --writable /disk/a.img
kernel_connect -i 2
mkfs.ext4 -q "$DEVICE" || fail "mkfs"
mount "$DEVICE" /mnt || fail "mount"
cp -r /usr/share/perl5 /usr/lib/python3 /etc /mnt/ 2>/dev/null
[ "$(find /mnt -type f | wc -l)" -gt 50 ] || fail "the tree is too small to prove anything"
cp -r /mnt /tmp/tree
umount /mnt
nvme disconnect -n "$NQN" || fail "disconnect"
kernel_connect -i 2
fsck.ext4 -fn "$DEVICE" || fail "fsck"
mount "$DEVICE" /mnt || fail "mount again"
diff -r --no-dereference /tmp/tree /mnt || fail "the tree differs"
umount /mnt
blkdiscard -o 0 -l 1M "$DEVICE" || fail "blkdiscard"
nvme write-zeroes "$DEVICE" -s 4096 -c 255 || fail "write-zeroes"
nvme flush "$CONTROLLER" -n 1 || fail "flush"
cmp -n 131072 <(dd if="$DEVICE" bs=512 skip=4096 count=256 2>/dev/null) /dev/zero || fail "zeroes"
nvme disconnect -n "$NQN" || fail "disconnect"
target_stop
