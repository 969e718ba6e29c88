# Checkpoints on the kernel's target: after 50 kills of the writer, and outages of the target, each is whole or not there.
# set: full
# providers: soft
# limit: 2400
# kernel may say: nvmet
VOLUMES=10
KEEP=2
kernel_subsystem $KERNEL_NQN
for number in $(seq $VOLUMES); do
    kernel_namespace $KERNEL_NQN "$number" "$(loop_device "volume$number" 48M)"
done
kernel_port 4420
kernel_link 4420 $KERNEL_NQN
echo "the controller's ONCS is $(initiator id-ctrl -o json | jq .oncs): bit 0 would be Compare"

# volume NUMBER COMMAND [OPTIONS]: a command of ours for one of the volumes.
volume() {
    local number=$1 command=$2
    shift 2
    ours timeout 300 /job/bin/feedrail checkpoint "$command" "nvmf://$KERNEL/$KERNEL_NQN/nsid:$number" "$@" \
        --provider "$provider" --timeout 60000
}

# put NUMBER NAME [OPTIONS]: saves the folder /tmp/NUMBER/NAME.
put() { volume "$1" put "$2" "/tmp/$1/$2" --keep $KEEP --lease 10 --wait 200 "${@:3}"; }

# source_of NUMBER NAME: makes that folder, with a file of up to 4 MB and a small one.
source_of() {
    mkdir -p "/tmp/$1/$2/rank0"
    head -c $((RANDOM * 125)) /dev/urandom >"/tmp/$1/$2/rank0/model"
    echo "$2" >"/tmp/$1/$2/config"
}

# follow NUMBER NAME LAST: the volume is whole, and has the known checkpoints or those with NAME. LAST is whether NAME must be there.
follow() {
    local now after
    now=$(volume "$1" list -o json | jq -r '.checkpoints | map(.name) | join(" ")') || fail "list of volume $1"
    after=$(echo "${known[$1]} $2" | xargs -n 1 | tail -n $KEEP | xargs)
    if [ "$now" = "$after" ]; then
        known[$1]=$after
        found=$((found + 1))
    elif [ "$3" = yes ] || [ "$now" != "${known[$1]}" ]; then
        fail "volume $1 has '$now', and had '${known[$1]}' before $2"
    fi
    # An emulated guest under load may lose the connection.
    for _ in 1 2 3; do
        volume "$1" verify >/tmp/verify 2>&1 && return
        grep -q damaged /tmp/verify && break
    done
    fail "verify of volume $1 after $2: $(cat /tmp/verify)"
}

declare -A known
found=0
for number in $(seq $VOLUMES); do
    volume "$number" format || fail "format"
    source_of "$number" first
    began=$(date +%s%N)
    put "$number" first || fail "put"
    taken=$((($(date +%s%N) - began) / 1000000))
    known[$number]=first
done

# Volumes take turns, so that the lease of a killed writer has nearly ended when its volume is written again.
for round in $(seq 5); do
    for number in $(seq $VOLUMES); do
        source_of "$number" "kill$round"
        put "$number" "kill$round" >/dev/null 2>&1 &
        writer=$!
        delay=$((RANDOM % (taken * 5 / 4)))
        sleep "$((delay / 1000)).$(printf %03d $((delay % 1000)))"
        pkill -KILL -x feedrail
        if wait $writer; then follow "$number" "kill$round" yes; else follow "$number" "kill$round" no; fi
    done
done
echo "50 kills of the writer within $((taken * 5 / 4)) ms: $found checkpoints are there"

# While the target is away, the writer waits for it.
for number in 1 2 3 4; do
    source_of "$number" outage
    put "$number" outage >"/tmp/said" 2>&1 &
    writer=$!
    sleep "$((number * taken / 5000)).5"
    kernel_unlink 4420 $KERNEL_NQN
    sleep 1
    kernel_link 4420 $KERNEL_NQN
    if wait $writer; then
        follow "$number" outage yes
    else
        echo "volume $number: $(cat /tmp/said)"
        follow "$number" outage no
    fi
done

for number in $(seq $VOLUMES); do
    source_of "$number" last
    put "$number" last || fail "the next writer of volume $number"
    follow "$number" last yes
    for name in ${known[$number]}; do
        volume "$number" get "$name" "/tmp/$number/got/$name" || fail "get $name"
        diff -r "/tmp/$number/$name" "/tmp/$number/got/$name" || fail "$name of volume $number differs"
    done
done
kernel_target_down
