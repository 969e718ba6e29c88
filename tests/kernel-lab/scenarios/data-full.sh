# The kernel host writes and reads back, verified, in every size from 512 bytes to 1 MiB and every depth from 1 to 128: half a gigabyte and more.
# set: full
# limit: 900
truncate -s 256M /disk/a.img
target_start --writable /disk/a.img
kernel_connect -i 2
for rw in write randwrite; do
    verified_fio "$DEVICE" $rw 512 1 256k
    verified_fio "$DEVICE" $rw 512 128 1M
    verified_fio "$DEVICE" $rw 4k 1 2M
    verified_fio "$DEVICE" $rw 4k 32 16M
    verified_fio "$DEVICE" $rw 4k 128 16M
    verified_fio "$DEVICE" $rw 16k 16 32M
    verified_fio "$DEVICE" $rw 64k 64 64M
    verified_fio "$DEVICE" $rw 128k 8 64M
    verified_fio "$DEVICE" $rw 256k 128 64M
    verified_fio "$DEVICE" $rw 1M 1 32M
    verified_fio "$DEVICE" $rw 1M 16 128M
done
verified_fio "$DEVICE" randrw 4k 16 16M
verified_fio "$DEVICE" randrw 64k 32 64M
verified_fio "$DEVICE" rw 512k 8 64M
verified_fio "$DEVICE" randrw 4k 64 32M --bsrange=512-256k --bs_unaligned
# Past every cache of the host: what it sees is what is in the file.
blockdev --flushbufs "$DEVICE"
cmp "$DEVICE" /disk/a.img || fail "the file differs from the disk"
[ "$(stats '.io.written_bytes >= 536870912 and .io.read_bytes >= 536870912')" = true ] || fail "less than 512 MiB: $(stats .io)"
[ "$(stats '.io.bounced')" = 0 ] || fail "I/O went through the page cache: $(stats .io)"
stats .io
nvme disconnect -n "$NQN" || fail "disconnect"
target_stop
