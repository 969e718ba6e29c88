# Our initiator against the kernel's target with blocks of 4,096 bytes, two namespaces and two subsystems.
# set: full
kernel_target_up 32M 4096
second=$(loop_device second 8M)
kernel_namespace "$KERNEL_NQN" 7 "$second"
third=$(loop_device third 8M)
other=$KERNEL_NQN-other
kernel_subsystem "$other"
kernel_namespace "$other" 1 "$third"
kernel_link 4420 "$other"

initiator id-ns -o json | tee /tmp/id-ns | jq -e '.nsze == 8192' || fail "id-ns: $(cat /tmp/id-ns)"
initiator id-ns --namespace-id 7 -o json | jq -e '.nsze == 16384' || fail "id-ns of namespace 7"
list=$(feedrail list -a $KERNEL --provider "$provider" -o json) || fail "list"
jq -e --arg one "$KERNEL_NQN" --arg two "$other" '[.. | strings] | index($one) and index($two)' <<<"$list" || fail "list: $list"

# Where blocks are larger than the range, its neighbours in the block must survive.
head -c 300000 /dev/urandom >/tmp/one
head -c 300000 /dev/urandom >/tmp/two
head -c 300000 /dev/urandom >/tmp/three
initiator write --offset 4095 --file /tmp/one || fail "write to blocks of 4,096"
initiator write --offset 100000 --length 1 --file <(printf x) || fail "write of a byte"
initiator write --namespace-id 7 --offset 4095 --file /tmp/two || fail "write to namespace 7"
feedrail write -a $KERNEL --provider "$provider" -n "$other" --offset 4095 --file /tmp/three || fail "write to the other subsystem"
printf x | dd of=/tmp/one bs=1 seek=95905 conv=notrunc status=none
for written in "$LOOP one" "$second two" "$third three"; do
    read -r device file <<<"$written"
    blockdev --flushbufs "$device"
    cmp -n 300000 -i 4095:0 "$device" "/tmp/$file" || fail "$device does not hold what was written"
    cmp -n 4095 "$device" /dev/zero || fail "$device: bytes before the range were touched"
    cmp -n 100000 -i 304095:0 "$device" /dev/zero || fail "$device: bytes behind the range were touched"
done
initiator read --offset 5000 --length 200000 | cmp -n 200000 -i 0:905 - /tmp/one || fail "read of blocks of 4,096"
initiator read --namespace-id 7 --offset 5000 --length 200000 | cmp -n 200000 -i 0:905 - /tmp/two || fail "read of namespace 7"
refuse "no active namespace" initiator read --namespace-id 3 --length 1

# Two hosts at a time. On soft each needs an address of its own, because a kernel answers at UDP port 4791.
from=()
[ "$provider" = soft ] && in_soft ip addr add 10.1.0.3/24 dev veth1 && from=(-w 10.1.0.3)
initiator perf --rw randread --bs 4k --iodepth 8 --runtime 3 -o json >/tmp/first.json &
initiator perf "${from[@]}" --rw randread --bs 16k --iodepth 8 --runtime 3 -o json >/tmp/other.json || fail "the second host"
wait $! || fail "the first host"
[ "$provider" = soft ] && in_soft ip addr del 10.1.0.3/24 dev veth1
for file in /tmp/first.json /tmp/other.json; do
    jq -e '.results.read.total_ios > 0 and .results.reconnects == 0' $file || fail "perf: $(cat $file)"
done
kernel_target_down
