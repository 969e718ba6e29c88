# The kernel's target, made through configfs: subsystems of which each has a port of its own on $KERNEL, with loop devices
# on /disk as namespaces. And how a scenario asks our initiator for what is there.
NVMET=/sys/kernel/config/nvmet
KERNEL_NQN=nqn.2026-01.io.feedrail:kernel

# feedrail COMMAND...: our command line, where its provider can be had.
feedrail() { ours timeout 120 /job/bin/feedrail "$@"; }

# initiator COMMAND [OPTIONS]: a command of ours to the kernel's subsystem $KERNEL_NQN.
initiator() {
    local command=$1
    shift
    feedrail "$command" -a $KERNEL --provider "$provider" -n $KERNEL_NQN "$@"
}

# slowly FILE: takes what it is given with pauses, so that the command before it lasts, and has I/O to do, for a while.
slowly() {
    : >"$1"
    local before=-1
    while [ "$(stat -c %s "$1")" != $before ]; do
        before=$(stat -c %s "$1")
        head -c 2M >>"$1"
        sleep 0.4
    done
}

# kernel_target_up SIZE [BLOCK-SIZE]: subsystem $KERNEL_NQN at port 4420, its namespace 1 on loop device $LOOP.
kernel_target_up() {
    kernel_subsystem "$KERNEL_NQN"
    LOOP=$(loop_device kernel "$@")
    kernel_namespace "$KERNEL_NQN" 1 "$LOOP"
    kernel_port 4420
    kernel_link 4420 "$KERNEL_NQN"
}

# loop_device NAME SIZE [BLOCK-SIZE]: prints a new loop device on /disk/NAME.img.
loop_device() {
    truncate -s "$2" "/disk/$1.img"
    losetup --find --show --direct-io=on --sector-size "${3:-512}" "/disk/$1.img"
}

kernel_subsystem() {
    mkdir "$NVMET/subsystems/$1" || fail "cannot make subsystem $1"
    echo 1 >"$NVMET/subsystems/$1/attr_allow_any_host"
}

# kernel_namespace NQN NSID DEVICE
kernel_namespace() {
    local namespace=$NVMET/subsystems/$1/namespaces/$2
    mkdir "$namespace"
    echo "$3" >"$namespace/device_path"
    echo 1 >"$namespace/enable" || fail "cannot enable namespace $2 on $3"
}

# kernel_namespace_replace NQN NSID DEVICE: another one with the same number.
kernel_namespace_replace() {
    rmdir "$NVMET/subsystems/$1/namespaces/$2"
    kernel_namespace "$@"
}

# kernel_port NUMBER [TRANSPORT ADDRESS]: a port that listens there once a subsystem is linked to it.
kernel_port() {
    mkdir "$NVMET/ports/$1"
    kernel_address "$NVMET/ports/$1" "${2:-rdma}" "${3:-$KERNEL}" "$1"
}

# kernel_referral PORT OTHER: the discovery service at a port refers hosts to that at another one.
kernel_referral() {
    local referral=$NVMET/ports/$1/referrals/$2
    mkdir "$referral"
    kernel_address "$referral" rdma $KERNEL "$2"
    echo 1 >"$referral/enable"
}

# kernel_address FOLDER TRANSPORT ADDRESS PORT: the address of a port or a referral.
kernel_address() {
    echo "$2" >"$1/addr_trtype"
    echo ipv4 >"$1/addr_adrfam"
    echo "$3" >"$1/addr_traddr"
    echo "$4" >"$1/addr_trsvcid"
}

# kernel_link PORT NQN [COMMAND...]: exports the subsystem there; COMMAND runs the link in the network namespace to listen in.
kernel_link() { "${@:3}" ln -s "$NVMET/subsystems/$2" "$NVMET/ports/$1/subsystems/" || fail "cannot export $2"; }

# kernel_unlink PORT NQN: exports it no more, and ends the connections to it.
kernel_unlink() { rm "$NVMET/ports/$1/subsystems/$2"; }

# is_connected: the kernel's target has a controller that the kernel log still tells of.
is_connected() { dmesg | grep -q "creating nvm controller"; }

# kernel_target_down: takes all of it away, whatever is there.
kernel_target_down() {
    rm -f "$NVMET"/ports/*/subsystems/* "$NVMET"/subsystems/*/allowed_hosts/*
    local folder
    for folder in "$NVMET"/ports/*/referrals/* "$NVMET"/ports/* "$NVMET"/subsystems/*/namespaces/* "$NVMET"/subsystems/* "$NVMET"/hosts/*; do
        [ -d "$folder" ] && rmdir "$folder"
    done
    losetup -D
}
