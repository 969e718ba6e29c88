# A target at a wildcard address serves those that the machine gets later, and one that its management adds, until that goes.
# set: ci
# kernel may say: Connect rejected: status 8
# kernel may say: rdma connection establishment failed
LATER=10.1.0.4
head -c 4M /dev/urandom >/tmp/data
if [ "$provider" = soft ]; then device=veth1; else device=veth0; fi
ours ip addr del $LATER/24 dev $device 2>/dev/null
target_run --listen 0.0.0.0:4420 --management /tmp/target.sock /tmp/data
reads() {
    kernel_connect_to "$1" "$2" "$NQN" -i 2
    dd if="$DEVICE" bs=1M count=4 iflag=direct status=none | cmp - /tmp/data || fail "$DEVICE differs from /tmp/data"
    nvme disconnect -d "$(basename "$CONTROLLER")" || fail "disconnect"
}
reads "$ADDRESS" 4420

# Its hosts hear of the new address.
discovered() { nvme discover -t rdma -a "$ADDRESS" -s 4420 -o json | jq '[.records[] | select(.subnqn == $nqn) | .traddr] | sort | join(" ")' -r --arg nqn "$NQN"; }
discovered | grep -q $LATER && fail "$LATER is listened on already"
ours ip addr add $LATER/24 dev $device || fail "cannot add $LATER"
trap 'ours ip addr del $LATER/24 dev $device' EXIT
eventually eval 'discovered | grep -q $LATER'
reads $LATER 4420

# A port that no configuration has.
ours /job/bin/feedrail target add-listener "$NQN" $LATER:5000 --socket /tmp/target.sock || fail "add-listener"
reads $LATER 5000
ours /job/bin/feedrail target remove-listener "$NQN" $LATER:5000 --socket /tmp/target.sock || fail "remove-listener"
refuse "failed to write to nvme-fabrics device" nvme connect -t rdma -a $LATER -s 5000 -n "$NQN"
reads "$ADDRESS" 4420
target_stop
