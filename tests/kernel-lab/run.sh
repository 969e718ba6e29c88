#!/bin/bash
# Runs in the guest: every scenario that the host listed, each in a shell of its own; one line of result each.
cd /job
. ./lib.sh
network_up
while read -r name seconds; do
    mkdir -p "logs/$name"
    began=$(date +%s.%N)
    dmesg -c >/dev/null
    timeout -k 5 "$seconds" bash -c ". ./lib.sh; log=/job/logs/$name; . scenarios/$name.sh" >"logs/$name/output.log" 2>&1
    status=$?
    ended=$(date +%s.%N)
    clean_up >>"logs/$name/output.log" 2>&1
    dmesg >"logs/$name/dmesg.log"
    printf '%s\t%s\t%s\n' "$name" "$status" "$(echo "$ended $began" | awk '{printf "%.1f", $1 - $2}')" >>results.tsv
done <scenarios.list
