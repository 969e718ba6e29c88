# Many queues: several controllers of one host, each with queues of every kind, all busy at once.
# set: full
truncate -s 128M /disk/a.img
target_start --cores 2 --writable /disk/a.img
kernel_connect -i 8 -W 2 -P 2
for _ in 1 2 3; do
    nvme connect -t rdma -a "$ADDRESS" -s 4420 -n "$NQN" -i 8 -W 2 -P 2 --duplicate-connect || fail "one more controller"
done
# Two processors: two queues of each of the three kinds, and an admin queue.
eventually eval '[ "$(stats "[.associations, .connections] == [4, 28]")" = true ]'
# The namespace is one, on four paths; all of them shall be used.
echo round-robin >"$(echo /sys/class/nvme-subsystem/nvme-subsys*/iopolicy)" || fail "iopolicy"
verified_fio "$DEVICE" randwrite 4k 64 8M --numjobs=4 --offset_increment=16M
verified_fio "$DEVICE" randrw 64k 16 16M --numjobs=4 --offset_increment=16M
verified_fio "$DEVICE" write 512 128 1M --numjobs=2 --offset_increment=16M
nvme disconnect -n "$NQN" || fail "disconnect"
eventually target_is_free
target_stop
