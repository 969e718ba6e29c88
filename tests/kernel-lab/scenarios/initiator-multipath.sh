# Our initiator reads and writes over two ports of the kernel's target while their states change (ANA), and one of them goes away.
# set: ci
kernel_target_up 64M
head -c 64M /dev/urandom >/tmp/data
dd if=/tmp/data of="$LOOP" bs=1M oflag=direct status=none
kernel_port 4421
kernel_link 4421 $KERNEL_NQN
# The kernel's discovery service names the subsystems of its own port only.
kernel_referral 4420 4421

# reach PORT STATE
reach() { echo "$2" >"$NVMET/ports/$1/ana_groups/1/ana_state" || fail "cannot make port $1 $2"; }
# read_with OPTIONS...: reads over both ports, and compares.
read_with() { initiator perf --all-paths --verify /tmp/data --bs 16k --iodepth 16 -o json "$@" >/tmp/perf.out; }
# took NUMBER NUMBER: reads that the last run has from each port.
took() {
    jq -e ".results.paths | [.[\"$KERNEL:4420\"], .[\"$KERNEL:4421\"]] == [$1, $2]" /tmp/perf.out || fail "reads by port: $(cat /tmp/perf.out)"
}

read_with --number-ios 200 || fail "perf"
took 100 100
reach 4420 non-optimized
read_with --number-ios 200 || fail "perf"
took null 200
reach 4421 inaccessible
read_with --number-ios 200 || fail "perf"
took 200 null
reach 4420 optimized
reach 4421 optimized

(read_with --runtime 10 && touch /tmp/perf.succeeded) &
reading=$!
eventually eval '[ "$(dmesg | grep -c "creating nvm controller")" -ge 8 ]'
for port in 4421 4420; do
    for state in inaccessible change persistent-loss non-optimized; do
        reach $port $state
        sleep 0.5
        reach $port optimized
        sleep 0.2
    done
done
kernel_unlink 4421 $KERNEL_NQN
wait $reading
[ -e /tmp/perf.succeeded ] || fail "reads failed: $(tail -3 "$log/output.log")"
jq -e ".results.paths | .[\"$KERNEL:4420\"] > 0 and .[\"$KERNEL:4421\"] > 0" /tmp/perf.out || fail "reads by port: $(cat /tmp/perf.out)"

# Writes go on as well: what a port refuses, and what was under way over one that is cut off, is written over the other.
kernel_link 4421 $KERNEL_NQN
initiator perf --all-paths --rw randwrite --allow-writes --bs 16k --iodepth 16 --size 32M --runtime 20 -o json >/tmp/perf.out &
writing=$!
# A guest that is emulated on a busy machine takes seconds to connect: the first round may come too early.
for port in 4421 4420 4421 4420 4421 4420; do
    for state in inaccessible change non-optimized; do
        reach $port $state
        sleep 0.3
        reach $port optimized
        sleep 0.2
    done
done
kernel_unlink 4421 $KERNEL_NQN
wait $writing || fail "writes failed: $(tail -3 "$log/output.log")"
jq -e ".results.write.total_ios > 0 and .results.failovers > 0" /tmp/perf.out || fail "writes: $(cat /tmp/perf.out)"

# A discovery controller that lasts is told by the kernel's of each change.
feedrail discover --persistent -a $KERNEL --provider "$provider" -o json >/tmp/discovery &
following=$!
pages() { jq -s length /tmp/discovery; }
eventually eval '[ "$(pages)" = 1 ]'
echo 0 >"$NVMET/ports/4420/referrals/4421/enable"
eventually eval '[ "$(pages)" = 2 ]'
echo 1 >"$NVMET/ports/4420/referrals/4421/enable"
eventually eval '[ "$(pages)" = 3 ]'
jq -es 'map(.records | length) | .[0] == .[1] + 1 and .[2] == .[0]' /tmp/discovery || fail "discovery: $(cat /tmp/discovery)"
# It is killed, and what the kernel still holds of it does not keep the next host of its address out.
pkill -KILL -f "discover --persistent"
wait $following
feedrail list -a $KERNEL --provider "$provider" || fail "a host after one that was killed"
kernel_target_down
