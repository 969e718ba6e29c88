# nvme reset during I/O: nothing is lost, and the target keeps nothing of what was.
# set: full
truncate -s 128M /disk/a.img
target_start --writable /disk/a.img
kernel_connect -i 2
before=$(stats .connections)
fio_begin "$DEVICE" randrw 16k 32 16M
for round in 1 2 3 4 5; do
    io_is_moving
    nvme reset "$CONTROLLER" || fail "reset $round"
done
fio_end
[ "$(stats .connections)" = "$before" ] || fail "$(stats .connections) connections, not $before"
nvme disconnect -n "$NQN" || fail "disconnect"
eventually target_is_free
target_stop
