# Commands other than reads and writes: flush, write zeroes, compare, deallocate; what they change, and what they must not.
# set: ci
truncate -s 64M /disk/a.img
target_start --writable /disk/a.img
kernel_connect -i 2
head -c 8M /dev/urandom >/tmp/expected
dd if=/tmp/expected of="$DEVICE" bs=1M oflag=direct status=none || fail "dd"

# Past the page cache of the block device, which commands from nvme-cli do not pass.
as_expected() {
    dd if="$DEVICE" bs=1M count=8 iflag=direct status=none | cmp - /tmp/expected || fail "after $1 the disk differs"
}
# zeroed FROM-BLOCK COUNT: what is expected from now on.
zeroed() { dd if=/dev/zero of=/tmp/expected bs=512 seek="$1" count="$2" conv=notrunc status=none; }

as_expected "writing"
nvme flush "$DEVICE" -n 1 || fail "flush"

head -c 4096 /tmp/expected >/tmp/block
nvme compare "$DEVICE" -s 0 -c 7 -z 4096 -d /tmp/block || fail "compare of what is there"
printf x | dd of=/tmp/block bs=1 seek=4095 conv=notrunc status=none
[ "$(tail -c 1 /tmp/block)" = "$(head -c 4096 /tmp/expected | tail -c 1)" ] && printf y | dd of=/tmp/block bs=1 seek=4095 conv=notrunc status=none
refuse "Compare Failure\|COMPARE_FAILED\|0x285\|0x4285" nvme compare "$DEVICE" -s 0 -c 7 -z 4096 -d /tmp/block
as_expected "compare"

nvme write "$DEVICE" -s 100 -c 7 -z 4096 -d /tmp/block --force-unit-access || fail "write with force unit access"
dd if=/tmp/block of=/tmp/expected bs=512 seek=100 conv=notrunc status=none
as_expected "write with force unit access"
nvme read "$DEVICE" -s 100 -c 7 -z 4096 -d /tmp/read || fail "read"
cmp /tmp/read /tmp/block || fail "read gave something else"

nvme write-zeroes "$DEVICE" -n 1 -s 201 -c 254 || fail "write-zeroes"
zeroed 201 255
as_expected "write-zeroes"
nvme write-zeroes "$DEVICE" -n 1 -s 1024 -c 1023 --deac || fail "write-zeroes with deallocate"
zeroed 1024 1024
as_expected "write-zeroes with deallocate"

nvme dsm "$DEVICE" -n 1 --ad --slbs=4096,5001 --blocks=8,17 || fail "dsm"
zeroed 4096 8
zeroed 5001 17
as_expected "dsm"
blkdiscard -o 3M -l 1M "$DEVICE" || fail "blkdiscard"
zeroed 6144 2048
as_expected "blkdiscard"
blkdiscard --zeroout -o 5M -l 1M "$DEVICE" || fail "blkdiscard --zeroout"
zeroed 10240 2048
as_expected "blkdiscard --zeroout"

# The last block is there, the one behind it is not.
nvme read "$DEVICE" -s 131071 -c 0 -z 512 -d /tmp/last || fail "reading the last block"
refuse "LBA" nvme read "$DEVICE" -s 131072 -c 0 -z 512 -d /tmp/last
refuse "LBA" nvme write-zeroes "$DEVICE" -n 1 -s 131071 -c 1
refuse "LBA" nvme dsm "$DEVICE" -n 1 --ad --slbs=131071 --blocks=2
as_expected "commands that must fail"

[ "$(stats '.io.compares == 1 and .io.flushes >= 1 and .io.write_zeroes >= 3 and .io.deallocates >= 2 and .io.failed >= 4')" = true ] ||
    fail "the counters do not say so: $(stats .io)"
nvme disconnect -n "$NQN" || fail "disconnect"
target_stop
cmp -n 8388608 /disk/a.img /tmp/expected || fail "the file differs from the disk"
[ "$(stat -c %s /disk/a.img)" = 67108864 ] || fail "the file has another size"
