# Our initiator against the kernel's target: byte ranges of any alignment, verified on the kernel's disk.
# set: ci smoke
kernel_target_up 64M
expect "$KERNEL_NQN" feedrail discover -a $KERNEL --provider "$provider"
feedrail discover -a $KERNEL --provider "$provider" -o json |
    jq -e --arg nqn $KERNEL_NQN '.records | map(select(.subnqn == $nqn)) | .[0] | .trtype == "rdma" and .trsvcid == "4420"' ||
    fail "discovery as JSON"
expect "$KERNEL_NQN" feedrail list -a $KERNEL --provider "$provider"
model=$(cat $NVMET/subsystems/$KERNEL_NQN/attr_model)
serial=$(cat $NVMET/subsystems/$KERNEL_NQN/attr_serial)
initiator id-ctrl -o json | tee /tmp/id-ctrl | jq -e --arg mn "$model" --arg sn "$serial" --arg nqn $KERNEL_NQN \
    '(.mn | startswith($mn)) and (.sn | startswith($sn)) and .subnqn == $nqn and .cntlid > 0' || fail "id-ctrl: $(cat /tmp/id-ctrl)"
initiator id-ns -o json | jq -e '.nsze == 131072' || fail "id-ns"

head -c 5000001 /dev/urandom >/tmp/written
initiator write --offset 12345 --length 5000001 --file /tmp/written || fail "write"
initiator read --offset 12345 --length 5000001 --file /tmp/read || fail "read"
cmp /tmp/written /tmp/read || fail "what was read differs"
truncate -s 64M /tmp/model
dd if=/tmp/written of=/tmp/model bs=1M seek=12345 oflag=seek_bytes conv=notrunc status=none

# Each range overlaps what was written before: offset, length.
while read -r offset length; do
    head -c "$length" /dev/urandom >/tmp/part
    initiator write --offset "$offset" --file /tmp/part || fail "write $length at $offset"
    dd if=/tmp/part of=/tmp/model bs=1M seek="$offset" oflag=seek_bytes conv=notrunc status=none
done <<'RANGES'
20000 1
20479 2
20992 512
21000 511
21503 514
24576 4096
28671 4098
131071 131074
65535 1048577
67108352 512
67108863 1
RANGES
blockdev --flushbufs "$LOOP"
cmp "$LOOP" /tmp/model || fail "what is on the disk differs"

while read -r offset length; do
    initiator read --offset "$offset" --length "$length" >/tmp/part || fail "read $length at $offset"
    [ "$(stat -c %s /tmp/part)" = "$length" ] || fail "read $length at $offset gave $(stat -c %s /tmp/part)"
    cmp -n "$length" -i "0:$offset" /tmp/part /tmp/model || fail "read $length at $offset differs"
done <<'RANGES'
0 1
12344 2
20479 1025
20480 4096
24575 8193
131071 131074
65537 2097149
67108863 1
RANGES
refuse "past the end: namespace 1 has 67108864 bytes" initiator read --offset 67108863 --length 2
initiator perf --rw randread --bs 4k --iodepth 32 --runtime 5 || fail "perf"
kernel_target_down
