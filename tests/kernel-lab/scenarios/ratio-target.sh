# How fast our target is for a kernel host, beside the kernel's own target with a twin of the file.
# set: full
# providers: verbs
# limit: 1500
. ./ratio.sh
dd if=/dev/urandom of=/disk/a.img bs=1M count=128 oflag=direct status=none
dd if=/dev/urandom of=/disk/b.img bs=1M count=128 oflag=direct status=none

target_start --writable /disk/a.img
kernel_connect
OURS=$DEVICE
# 4420 is taken.
kernel_subsystem $KERNEL_NQN
kernel_namespace $KERNEL_NQN 1 /disk/b.img
kernel_port 4421
kernel_link 4421 $KERNEL_NQN
kernel_connect_to $KERNEL 4421 $KERNEL_NQN
THEIRS=$DEVICE

on_ours() { fio_iops "$OURS" "$@"; }
on_theirs() { fio_iops "$THEIRS" "$@"; }
statistics() { kill -USR1 "$TARGET"; sleep 0.5; tail -1 "$log/target.out"; grep ctxt "/proc/$TARGET"/task/*/status; }
statistics
compare on_ours on_theirs
statistics
nvme disconnect-all
target_stop
kernel_target_down
