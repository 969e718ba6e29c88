#!/bin/bash
# Runs in the guest: every scenario that the host listed, each in a shell of its own; one line of result each.
cd /job
. ./lib.sh
# Read by people when the guest hung: then nobody is left to collect the parts.
dmesg --follow >kernel.log 2>&1 &
network_up
while read -r scenario provider seconds; do
    export provider log="/job/logs/$scenario-$provider"
    mkdir -p "$log"
    began=$(date +%s.%N)
    dmesg -C
    [ -e capture ] && [ "$provider" = soft ] && capture
    timeout -k 5 "$seconds" bash -c ". ./lib.sh; . scenarios/$scenario.sh" >"$log/output.log" 2>&1 </dev/null
    status=$?
    [ $status = 124 ] && echo "FAILED: not over after $seconds s" >>"$log/output.log"
    ended=$(date +%s.%N)
    clean_up >>"$log/output.log" 2>&1
    dmesg >"$log/dmesg.log"
    seconds=$(echo "$ended $began" | awk '{printf "%.1f", $1 - $2}')
    printf '%s\t%s\t%s\t%s\n' "$scenario" "$provider" "$status" "$seconds" >>results.tsv
done <scenarios.list
