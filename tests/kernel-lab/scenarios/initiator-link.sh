# The link to the kernel's target is down for a while during I/O; a host that is idle stays connected, and one that was
# stopped comes back.
# set: full
kernel_target_up 64M
head -c 64M /dev/urandom >/tmp/content
dd if=/tmp/content of="$LOOP" bs=1M oflag=direct status=none

# A short outage is bridged.
initiator read --timeout 60000 2>/tmp/said | slowly /tmp/read &
eventually is_connected
sleep 2
ip link set veth0 down
sleep 4
kill -0 $! || fail "the read was over before the link was up again: $(cat /tmp/said)"
ip link set veth0 up
wait $! || fail "the read did not survive the outage: $(cat /tmp/said)"
cmp /tmp/content /tmp/read || fail "what was read over the outage differs: $(cat /tmp/said)"

# A long one is a clean error, and the next command works.
initiator perf --timeout 4000 --rw randread --bs 4k --iodepth 8 --runtime 60 >/tmp/said 2>&1 &
sleep 3
ip link set veth0 down
wait $! && fail "perf did not notice the outage"
ip link set veth0 up
grep -q "target lost, not back after 4 s\|no result within 4 s" /tmp/said || fail "of the outage it said: $(cat /tmp/said)"
eventually initiator read --length 4096
initiator read --file /tmp/read || fail "read after the outage"
cmp /tmp/content /tmp/read || fail "what was read after the outage differs"

# Its reader takes nothing for several keep-alive times.
dmesg -C
initiator read --keep-alive-tmo 2 | (sleep 10; cat >/tmp/read)
cmp /tmp/content /tmp/read || fail "what was read with a pause differs"
dmesg | grep "keep-alive timer" && fail "an idle host was dropped"

# Stopped, it cannot keep alive: the kernel ends its association, and it begins another one.
mkfifo /tmp/pipe
ours /job/bin/feedrail read -a $KERNEL --provider "$provider" -n $KERNEL_NQN -k 2 --timeout 60000 >/tmp/pipe 2>/tmp/said &
host=$!
exec 5</tmp/pipe
sleep 2
kill -STOP $host
for _ in $(seq 100); do
    dmesg | grep -q "keep-alive timer" && break
    sleep 0.2
done
dmesg | grep "keep-alive timer" || fail "the kernel did not miss a host that was stopped"
kill -CONT $host
cat <&5 >/tmp/read
exec 5<&-
wait $host || fail "the read did not survive: $(cat /tmp/said)"
cmp /tmp/content /tmp/read || fail "what was read after the pause differs"
kernel_target_down
