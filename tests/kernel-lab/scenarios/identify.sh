# nvme-cli against our target: everything that it shows of discovery, a controller and its namespaces has the right value.
# set: ci
[ "$provider" = soft ] && capture
truncate -s 64M /disk/a.img
# 36 blocks of 512, the last one padded.
head -c 18071 /dev/urandom >/disk/b.bin
target_start /disk/a.img /disk/b.bin
# json FILTER COMMAND...: a jq filter says true to what the command prints.
json() {
    local filter=$1 output
    shift
    output=$("$@" -o json) || fail "$* failed"
    jq -e "$filter" <<<"$output" >/dev/null || fail "$*: not $filter in $output"
}

json ".records | length == 2 and .[1].subtype == \"current discovery subsystem\" and .[0].trtype == \"rdma\" and .[0].adrfam == \"ipv4\" and .[0].subtype == \"nvme subsystem\" and
    .[0].traddr == \"$ADDRESS\" and .[0].trsvcid == \"4420\" and .[0].subnqn == \"$NQN\" and .[0].rdma_cms == \"rdma-cm\"" \
    nvme discover -t rdma -a "$ADDRESS" -s 4420
# The controller of the discovery service is gone again.
eventually target_is_free

kernel_connect -i 2
eventually block_device 1
eventually block_device 2
nvme list | grep "Feedrail .*67.11  MB" || fail "nvme list: $(nvme list)"
json ".cntrltype == 1 and .subnqn == \"$NQN\" and .nn == 2 and .mdts == 8 and .sqes == 102 and .cqes == 68 and .maxcmd == 128 and .kas > 0 and
    .ioccsz == 260 and .iorcsz == 1 and .icdoff == 0 and .msdbd == 1 and .ver == 131072 and (.mn | startswith(\"Feedrail \"))" nvme id-ctrl "$CONTROLLER"
json '.nsze == 131072 and .ncap == 131072 and .flbas == 0 and .lbafs[0].ds == 9 and .lbafs[0].ms == 0 and .nsattr == 1' nvme id-ns "$CONTROLLER" -n 1
json '.nsze == 36' nvme id-ns "$CONTROLLER" -n 2
expect "uuid *: [0-9a-f]\{8\}-[0-9a-f]\{4\}-5[0-9a-f]\{3\}-" nvme ns-descs "$CONTROLLER" -n 1
expect "0x00010001\|0x10001" nvme get-feature "$CONTROLLER" -f 7
expect "0x00001388\|0x1388" nvme get-feature "$CONTROLLER" -f 0xf
for command in 'ACS6 .*Identify' 'ACS24 .*Keep Alive' 'IOCS2 .*Read' 'IOCS5 .*Compare'; do
    expect "$command" nvme effects-log "$CONTROLLER"
done

cmp -n 18071 /disk/b.bin "$(block_device 2)" || fail "b.bin differs"
cmp -n 361 -i 18071:0 "$(block_device 2)" /dev/zero || fail "the padding of b.bin is not zeros"
json '.critical_warning == 0 and .avail_spare == 100 and .host_read_commands > 0 and .host_write_commands == 0 and .num_err_log_entries == 0' \
    nvme smart-log "$CONTROLLER"
refuse "LBA" nvme read "$(block_device 1)" -s 131072 -c 0 -z 512 -d /tmp/beyond
# What went wrong is in the error log: LBA Out of Range (80h), do not retry, there.
json '.errors[0].error_count == 1 and .errors[0].lba == 131072 and .errors[0].nsid == 1' nvme error-log "$CONTROLLER" -e 1
json '.num_err_log_entries == 1' nvme smart-log "$CONTROLLER"
[ "$(blockdev --getro "$(block_device 1)")" = 1 ] || fail "the read-only namespace looks writable"
refuse "rotect\|permitted\|Read-only" dd if=/dev/zero of="$(block_device 1)" bs=4096 count=1 oflag=direct
# Ready, and nothing else.
expect "csts *: \(0x\)\?1$" nvme show-regs "$CONTROLLER"
nvme disconnect -n "$NQN" || fail "disconnect"
target_stop
