# discover, connect, connect-all, list, disconnect: by nvme-cli of every age, and nothing is left behind.
# set: ci smoke bookworm
truncate -s 64M /disk/a.img /disk/b.img
target_start --writable /disk/a.img /disk/b.img
expect "$NQN" nvme discover -t rdma -a "$ADDRESS" -s 4420
kernel_connect -i 2
expect "$DEVICE" nvme list
expect "Feedrail" nvme id-ctrl "$CONTROLLER"
verified_fio "$DEVICE" randwrite 4k 4 256k
nvme disconnect -n "$NQN" || fail "disconnect"
eventually target_is_free

nvme connect-all -t rdma -a "$ADDRESS" -s 4420 || fail "connect-all"
eventually block_device 2
verified_fio "$(block_device 2)" randwrite 4k 4 256k
nvme disconnect -n "$NQN" || fail "disconnect after connect-all"
eventually target_is_free
target_stop
