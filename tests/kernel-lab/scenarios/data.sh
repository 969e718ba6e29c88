# The kernel host writes to our target and reads back, verified.
# set: ci smoke bookworm
truncate -s 128M /disk/a.img
target_start --writable /disk/a.img
kernel_connect -i 2
verified_fio "$DEVICE" randwrite 4k 16 8M
verified_fio "$DEVICE" randwrite 512 4 1M
verified_fio "$DEVICE" write 128k 8 32M
verified_fio "$DEVICE" randrw 64k 8 16M
verified_fio "$DEVICE" randwrite 1M 4 32M
verified_fio "$DEVICE" randwrite 4k 128 4M
nvme disconnect -n "$NQN" || fail "disconnect"
target_stop
