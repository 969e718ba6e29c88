# Kinds of namespace: a file of any size, read-only; a loop device as block device; memory; blocks of 4,096 bytes.
# set: full
# kernel may say: I/O error, dev nvme
head -c 1000001 /dev/urandom >/disk/odd.bin
truncate -s 16M /disk/under.img /disk/large.img
loop=$(losetup --find --show --direct-io=on /disk/under.img)
cat >/tmp/target.toml <<END
[[port]]
address = "$ADDRESS:4420"
[[subsystem]]
nqn = "nqn.2026-01.org.example:kinds"
allow_any_host = true
[[subsystem.namespace]]
path = "/disk/odd.bin"
[[subsystem.namespace]]
kind = "block"
path = "$loop"
read_only = false
[[subsystem.namespace]]
kind = "memory"
size_bytes = "16MiB"
[[subsystem.namespace]]
path = "/disk/large.img"
lba_bytes = 4096
read_only = false
END
target_run --config /tmp/target.toml
kernel_connect -i 2
for nsid in 1 2 3 4; do eventually block_device $nsid; done

odd=$(block_device 1)
[ "$(blockdev --getsize64 "$odd")" = 1000448 ] || fail "1,000,001 bytes are not 1,954 blocks"
[ "$(blockdev --getro "$odd")" = 1 ] || fail "the read-only namespace looks writable"
cmp -n 1000001 /disk/odd.bin "$odd" || fail "the file differs"
cmp -n 447 -i 1000001:0 "$odd" /dev/zero || fail "the rest of the last block is not zeros"
sum=$(sha256sum </disk/odd.bin)
refuse "rotect" nvme write "$odd" -n 1 -s 0 -c 0 -z 512 -d /disk/odd.bin
refuse "rotect" nvme write-zeroes "$odd" -n 1 -s 0 -c 0
refuse "rotect" nvme dsm "$odd" -n 1 --ad --slbs=0 --blocks=8
[ "$(sha256sum </disk/odd.bin)" = "$sum" ] || fail "a read-only file was changed"

block=$(block_device 2)
[ "$(blockdev --getsize64 "$block")" = 16777216 ] || fail "the size of the block device"
verified_fio "$block" randwrite 4k 16 4M
blkdiscard -o 8M -l 1M "$block" || fail "blkdiscard of a block device"
nvme flush "$block" -n 2 || fail "flush of a block device"
cmp "$block" "$loop" || fail "the loop device differs"

verified_fio "$(block_device 3)" randwrite 4k 16 4M

large=$(block_device 4)
[ "$(blockdev --getss "$large")" = 4096 ] || fail "blocks are not of 4,096 bytes"
verified_fio "$large" randwrite 4k 16 4M
verified_fio "$large" write 1M 2 8M
nvme disconnect -n "$NQN" || fail "disconnect"
target_stop
cmp -n 4194304 /disk/under.img "$loop" || fail "what was written did not reach the file under the loop device"
refuse "truncate -s" /job/bin/feedrail-target --check --writable --listen "$ADDRESS" /disk/odd.bin
