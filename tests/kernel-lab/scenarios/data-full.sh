# The kernel host writes and reads back, verified, in every size from 512 bytes to 1 MiB and every depth from 1 to 128: half a gigabyte and more.
# set: full
# limit: 1200
truncate -s 128M /disk/a.img
target_start --writable /disk/a.img
kernel_connect -i 2
for rw in write randwrite; do
    verified_fio "$DEVICE" $rw 512 1 128k
    verified_fio "$DEVICE" $rw 512 128 512k
    verified_fio "$DEVICE" $rw 4k 1 1M
    verified_fio "$DEVICE" $rw 4k 32 8M
    verified_fio "$DEVICE" $rw 4k 128 8M
    verified_fio "$DEVICE" $rw 16k 16 16M
    verified_fio "$DEVICE" $rw 64k 64 48M
    verified_fio "$DEVICE" $rw 128k 8 48M
    verified_fio "$DEVICE" $rw 256k 128 64M
    verified_fio "$DEVICE" $rw 1M 1 16M
    verified_fio "$DEVICE" $rw 1M 16 80M
done
verified_fio "$DEVICE" randrw 4k 16 8M
verified_fio "$DEVICE" randrw 64k 32 32M
verified_fio "$DEVICE" rw 512k 8 32M
verified_fio "$DEVICE" randwrite 4k 64 16M --bsrange=512-256k
# What the host sees is what is in the file.
blockdev --flushbufs "$DEVICE"
cmp -n 83886080 "$DEVICE" /disk/a.img || fail "the file differs from the disk"
[ "$(stats '.io.written_bytes >= 536870912 and .io.read_bytes >= 536870912')" = true ] || fail "less than 512 MiB: $(stats .io)"
[ "$(stats '.io.bounced')" = 0 ] || fail "I/O went through the page cache: $(stats .io)"
stats .io
nvme disconnect -n "$NQN" || fail "disconnect"
target_stop
