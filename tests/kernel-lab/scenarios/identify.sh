# nvme-cli against our target: everything that it shows of a controller and a namespace.
# set: ci bookworm
[ "$provider" = soft ] && capture
truncate -s 64M /disk/a.img
head -c 18071 /dev/urandom >/disk/b.bin
target_start /disk/a.img /disk/b.bin

expect "$NQN" nvme discover -t rdma -a "$ADDRESS" -s 4420
[ "$(nvme discover -t rdma -a "$ADDRESS" -s 4420 -o json | jq -r '.records[].subnqn' | grep -c "$NQN")" = 1 ] ||
    fail "discovery as JSON"
kernel_connect -i 2
expect "$DEVICE" nvme list
nvme id-ctrl "$CONTROLLER" -o json | jq -e '.kas > 0 and .sgls > 0 and .nn >= 2' || fail "id-ctrl"
nvme id-ns "$CONTROLLER" -n 1 -o json | jq -e '.nsze == 131072' || fail "id-ns of a.img"
# 18,071 bytes are 36 blocks of 512, the last one padded.
nvme id-ns "$CONTROLLER" -n 2 -o json | jq -e '.nsze == 36' || fail "id-ns of b.bin"
eventually test -b "${CONTROLLER}n2"
cmp -n 18071 /disk/b.bin "$(block_device 2)" || fail "b.bin differs"
cmp -n 361 -i 18071:0 "$(block_device 2)" /dev/zero || fail "the padding of b.bin is not zeros"
expect "uuid" nvme ns-descs "$CONTROLLER" -n 1
expect "available_spare" nvme smart-log "$CONTROLLER"
expect "error_count\|Error Log" nvme error-log "$CONTROLLER"
expect "ACS\|CSUPP\|Log" nvme effects-log "$CONTROLLER"
expect "cap" nvme show-regs "$CONTROLLER"
expect "Number of Queues\|0x" nvme get-feature "$CONTROLLER" -f 7
refuse "Write Protected\|write protected\|rotect\|Read-only\|Permission\|permitted" \
    dd if=/dev/zero of="$(block_device 1)" bs=4096 count=1 oflag=direct
nvme disconnect -n "$NQN" || fail "disconnect"
target_stop
rm -f /disk/a.img /disk/b.bin
