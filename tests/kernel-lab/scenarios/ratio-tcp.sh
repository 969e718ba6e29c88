# How fast our target is for a kernel host, beside the kernel's own target over NVMe/TCP, at the same address with a twin of the file.
# set: full
# limit: 1500
. ./ratio.sh
modprobe nvmet_tcp || fail "this kernel has no NVMe/TCP target"
modprobe nvme_tcp || fail "this kernel has no NVMe/TCP host"
twins_up
kernel_port 4421 tcp "$ADDRESS"
# The port listens where the link is made. `ip netns exec` would hide configfs.
if [ "$provider" = soft ]; then there="nsenter --net=/run/netns/soft"; else there=; fi
kernel_link 4421 $KERNEL_NQN $there
transport=tcp kernel_connect_to "$ADDRESS" 4421 $KERNEL_NQN
THEIRS=$DEVICE

twins_compare
twins_down
