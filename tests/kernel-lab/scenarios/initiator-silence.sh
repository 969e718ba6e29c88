# No packet passes between our initiator and the kernel's target for a while: a short time is bridged, a long one is an error.
# set: full
# providers: soft
# kernel may say: nvmet
kernel_target_up 64M
head -c 64M /dev/urandom >/tmp/content
dd if=/tmp/content of="$LOOP" bs=1M oflag=direct status=none

initiator read --timeout 60000 2>/tmp/said | slowly /tmp/read &
eventually is_connected
sleep 2
packets_lost
sleep 8
kill -0 $! || fail "the read was over before packets passed again: $(cat /tmp/said)"
packets_pass
wait $! || fail "the read did not survive the outage: $(cat /tmp/said)"
cmp /tmp/content /tmp/read || fail "what was read over the outage differs: $(cat /tmp/said)"

dmesg -C
initiator perf --timeout 4000 --rw randread --bs 4k --iodepth 8 --runtime 60 >/tmp/said 2>&1 &
eventually is_connected
sleep 2
packets_lost
wait $! && fail "perf did not notice the outage"
grep "target lost, not back after 4 s\|no result within 4 s" /tmp/said || fail "of the outage it said: $(cat /tmp/said)"
packets_pass
eventually initiator read --length 4096
initiator read --file /tmp/read || fail "read after the outage"
cmp /tmp/content /tmp/read || fail "what was read after the outage differs"
kernel_target_down
