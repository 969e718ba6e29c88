# What our initiator says when the kernel's target does not let it in, and that it gets in once it may.
# set: full
# kernel may say: nvmet: connect
refuse "connection rejected: nobody listens on this port" initiator id-ctrl --timeout 5000

kernel_target_up 8M
echo 0 >$NVMET/subsystems/$KERNEL_NQN/attr_allow_any_host
mkdir $NVMET/hosts/nqn.2026-01.io.feedrail:friend
ln -s $NVMET/hosts/nqn.2026-01.io.feedrail:friend $NVMET/subsystems/$KERNEL_NQN/allowed_hosts/
refuse "connect refused: Connect Invalid Host" initiator id-ctrl -q nqn.2026-01.io.feedrail:stranger
expect cntlid initiator id-ctrl -q nqn.2026-01.io.feedrail:friend
refuse "connect refused: Connect Invalid" feedrail id-ctrl -a $KERNEL --provider "$provider" -n $KERNEL_NQN-unknown

# A port without subsystems does not listen.
kernel_unlink 4420 $KERNEL_NQN
refuse "connection rejected: nobody listens on this port" initiator id-ctrl -q nqn.2026-01.io.feedrail:friend --timeout 5000
kernel_link 4420 $KERNEL_NQN
expect cntlid initiator id-ctrl -q nqn.2026-01.io.feedrail:friend
kernel_target_down
