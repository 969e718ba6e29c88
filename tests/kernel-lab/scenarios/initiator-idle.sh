# A host that is idle stays connected to the kernel's target; one that was stopped comes back.
# set: full
# kernel may say: nvmet: ctrl
is_missed() { dmesg | grep -q "keep-alive timer"; }

kernel_target_up 64M
head -c 64M /dev/urandom >/tmp/content
dd if=/tmp/content of="$LOOP" bs=1M oflag=direct status=none

# Its reader takes nothing for several keep-alive times.
dmesg -C
initiator read --keep-alive-tmo 2 | (sleep 10; cat >/tmp/read)
cmp /tmp/content /tmp/read || fail "what was read with a pause differs"
dmesg | grep "keep-alive timer" && fail "an idle host was dropped"

# Stopped, it cannot keep alive: the kernel ends its association, and it begins another one.
dmesg -C
mkfifo /tmp/pipe
ours /job/bin/feedrail read -a $KERNEL --provider "$provider" -n $KERNEL_NQN -k 2 --timeout 60000 >/tmp/pipe 2>/tmp/said &
host=$!
exec 5</tmp/pipe
eventually is_connected
sleep 1
pkill -STOP -x feedrail
eventually is_missed
pkill -CONT -x feedrail
cat <&5 >/tmp/read
exec 5<&-
wait $host || fail "the read did not survive: $(cat /tmp/said)"
cmp /tmp/content /tmp/read || fail "what was read after the pause differs"
kernel_target_down
