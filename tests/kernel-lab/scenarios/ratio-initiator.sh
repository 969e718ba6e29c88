# How fast our initiator is, beside the kernel's own host, on the same namespace of the kernel's target.
# set: full
# providers: verbs
# limit: 1500
. ./ratio.sh
kernel_target_up 128M
dd if=/dev/urandom of="$LOOP" bs=1M count=128 oflag=direct status=none
kernel_connect_to $KERNEL 4420 $KERNEL_NQN

ours_iops() {
    initiator perf --rw "$1" --bs "$2" --iodepth "$3" --runtime $SECONDS_EACH --allow-writes -o json >/tmp/perf.json ||
        fail "perf"
    jq '.results | .read.iops + .write.iops' /tmp/perf.json
}
theirs_iops() { fio_iops "$DEVICE" "$@"; }
compare ours_iops theirs_iops
nvme disconnect -n $KERNEL_NQN
kernel_target_down
