# Our initiator against the kernel's target: byte ranges of any alignment, verified on the kernel's disk.
# set: ci
kernel_target_up 64M
address="-t rdma -a $KERNEL -s 4420 --provider $provider"
feedrail() { ours timeout 60 /job/bin/feedrail "$@"; }
expect "$KERNEL_NQN" feedrail discover $address
expect "$KERNEL_NQN" feedrail discover $address -o json
feedrail id-ctrl $address -n $KERNEL_NQN -o json | jq -e .cntlid || fail "id-ctrl"
feedrail id-ns $address -n $KERNEL_NQN -o json | jq -e '.nsze == 131072' || fail "id-ns"
expect "$KERNEL_NQN" feedrail list $address

head -c 5000001 /dev/urandom >/tmp/written
feedrail write $address -n $KERNEL_NQN --offset 12345 --length 5000001 --file /tmp/written || fail "write"
feedrail read $address -n $KERNEL_NQN --offset 12345 --length 5000001 --file /tmp/read || fail "read"
cmp /tmp/written /tmp/read || fail "what was read differs"
blockdev --flushbufs "$LOOP"
cmp -n 5000001 -i 12345:0 "$LOOP" /tmp/written || fail "what is on the disk differs"
cmp -n 12345 "$LOOP" /dev/zero || fail "bytes before the range were touched"
cmp -n 100000 -i 5012346:0 "$LOOP" /dev/zero || fail "bytes behind the range were touched"
feedrail read $address -n $KERNEL_NQN --offset 77 --length 1 | cmp -n 1 - /dev/zero || fail "one byte"
refuse "end" feedrail read $address -n $KERNEL_NQN --offset 67108863 --length 2
feedrail perf $address -n $KERNEL_NQN --rw randread --bs 4k --iodepth 32 --runtime 5 || fail "perf"
kernel_target_down
