# How fast our target is for a kernel host, beside the kernel's own target with a twin of the file.
# set: full
# providers: verbs
# limit: 1500
. ./ratio.sh
twins_up
# 4420 is taken.
kernel_port 4421
kernel_link 4421 $KERNEL_NQN
kernel_connect_to $KERNEL 4421 $KERNEL_NQN
THEIRS=$DEVICE

statistics() { kill -USR1 "$TARGET"; sleep 0.5; tail -1 "$log/target.out"; grep ctxt "/proc/$TARGET"/task/*/status; }
statistics
twins_compare
statistics
twins_down
