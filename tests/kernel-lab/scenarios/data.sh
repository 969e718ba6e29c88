# The kernel host writes to our target and reads back, verified.
for provider in ${PROVIDERS:-soft}; do
    truncate -s 128M /disk/a.img
    target_start "$provider" --writable /disk/a.img
    kernel_connect "$provider" -i 2
    verified_fio "$DEVICE" randwrite 4k 16 8M
    verified_fio "$DEVICE" randwrite 512 4 1M
    verified_fio "$DEVICE" write 128k 8 32M
    verified_fio "$DEVICE" randrw 64k 8 16M
    verified_fio "$DEVICE" randwrite 1M 4 32M
    verified_fio "$DEVICE" randwrite 4k 128 4M
    nvme disconnect -n "$NQN" || fail "disconnect"
    target_stop
done
