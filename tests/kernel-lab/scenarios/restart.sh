# The target is killed and started again during I/O: the host reconnects, and every byte is right.
# set: ci
# kernel may say: nvme nvme
truncate -s 128M /disk/a.img
target_start --writable /disk/a.img
kernel_connect -i 2 --reconnect-delay=1 --ctrl-loss-tmo=120 --keep-alive-tmo=2
fio_begin "$DEVICE" randrw 16k 16 8M
for _ in 1 2 3; do
    target_kill
    sleep 1
    target_start --writable /disk/a.img
    io_is_moving
done
fio_end
nvme disconnect -n "$NQN" || fail "disconnect"
target_stop
