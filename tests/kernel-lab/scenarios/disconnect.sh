# nvme disconnect during I/O: the target frees everything each time, and serves the next.
# set: full
# kernel may say: I/O error, dev nvme
# kernel may say: no available path - failing I/O
truncate -s 128M /disk/a.img
target_start --writable /disk/a.img
for round in 1 2 3 4 5; do
    kernel_connect -i 2
    fio_begin "$DEVICE" randrw 64k 32 64M
    nvme disconnect -n "$NQN" || fail "disconnect $round"
    # It goes on until its disk is gone.
    wait "$FIO"
    eventually target_is_free
done
kernel_connect -i 2
verified_fio "$DEVICE" randwrite 16k 16 16M
nvme disconnect -n "$NQN" || fail "disconnect"
target_stop
