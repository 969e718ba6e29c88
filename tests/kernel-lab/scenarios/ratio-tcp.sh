# How fast our target is for a kernel host, beside the kernel's own target over NVMe/TCP, at the same address with a twin of the file.
# set: full
# limit: 1500
. ./ratio.sh
modprobe nvmet_tcp || fail "this kernel has no NVMe/TCP target"
modprobe nvme_tcp || fail "this kernel has no NVMe/TCP host"
dd if=/dev/urandom of=/disk/a.img bs=1M count=128 oflag=direct status=none
dd if=/dev/urandom of=/disk/b.img bs=1M count=128 oflag=direct status=none

target_start --writable /disk/a.img
kernel_connect
OURS=$DEVICE

kernel_subsystem $KERNEL_NQN
kernel_namespace $KERNEL_NQN 1 /disk/b.img
kernel_port 4421
echo tcp >$NVMET/ports/4421/addr_trtype
echo "$ADDRESS" >$NVMET/ports/4421/addr_traddr
# The port listens in the network namespace of whoever links the subsystem; `ip netns exec` would hide configfs.
if [ "$provider" = soft ]; then
    nsenter --net=/run/netns/soft ln -s $NVMET/subsystems/$KERNEL_NQN $NVMET/ports/4421/subsystems/ || fail "cannot export $KERNEL_NQN"
else
    kernel_link 4421 $KERNEL_NQN
fi
ls /dev/nvme*n* | sort >/tmp/devices.before
nvme connect -t tcp -a "$ADDRESS" -s 4421 -n $KERNEL_NQN || fail "nvme connect over TCP"
eventually new_block_device
THEIRS=$(new_block_device)

on_ours() { fio_iops "$OURS" "$@"; }
on_theirs() { fio_iops "$THEIRS" "$@"; }
compare on_ours on_theirs
nvme disconnect-all
target_stop
kernel_target_down
