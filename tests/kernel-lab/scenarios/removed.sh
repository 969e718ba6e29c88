# A device whose port goes down and up, and which is then removed under the target: the other device's hosts do not notice. When it
# is there again, it is used again.
# set: full
# providers: verbs
# kernel may say: infiniband rxe1:
# kernel may say: nvme nvme
# kernel may say: I/O error, dev nvme
SECOND=10.2.0.1
ip link add veth2 mtu 4500 type veth peer name veth3 mtu 4500
ip link set veth3 up
ip link set veth2 up
ip addr add $SECOND/24 dev veth2
rdma link add rxe1 type rxe netdev veth2
eventually sh -c 'rdma link show rxe1/1 | grep -q ACTIVE'
# A device that a process has open would keep the link for ever.
trap 'kill -KILL $TARGET; ip link delete veth2' EXIT

truncate -s 16M /disk/a.img
target_start --listen $SECOND:4420 --writable /disk/a.img
kernel_connect -i 2
nvme connect -t rdma -a $SECOND -s 4420 -n "$NQN" -i 2 --ctrl-loss-tmo=5 || fail "nvme connect to $SECOND"
works() { dd if="$DEVICE" of=/dev/null bs=64k count=64 iflag=direct || fail "the namespace cannot be read"; }
says() { eventually grep -q "$1" "$log/target.err"; }
works

ip link set veth2 down
says "the port is down"
ip link set veth2 up
says "the port is up"
works

# The kernel's software device goes only when the last process has closed it.
rdma link delete rxe1 &
removing=$!
says "the RDMA device failed"
works
before=$(awk '{ print $14 + $15 }' "/proc/$TARGET/stat")
sleep 3
spent=$(($(awk '{ print $14 + $15 }' "/proc/$TARGET/stat") - before))
# It looks for the device now and then, which takes 20 ticks each time here.
[ "$spent" -lt 120 ] || fail "an idle target spent $spent ticks of CPU in three seconds"
works
wait "$removing" || fail "the device cannot be removed"

# Another device has the address: the target listens there again.
rdma link add rxe1 type rxe netdev veth2
says "device opened"
eventually eval 'nvme connect -t rdma -a $SECOND -s 4420 -n "$NQN" -i 2'
works
nvme disconnect-all
target_stop
