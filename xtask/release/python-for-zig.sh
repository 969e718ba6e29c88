#!/usr/bin/env bash
# The python3 that runs zig for the Python module: it has zig link the unwinder of the system, libgcc_s, and not one of its own. Python up to
# 3.13 ends daemon threads with pthread_exit, which unwinds with libgcc_s; frames of Rust that ask another unwinder crash the process.
# FEEDRAIL_LIBGCC is the library to link with.
set -euo pipefail
arguments=()
for argument in "$@"; do
    case $argument in
    -lunwind) argument=$FEEDRAIL_LIBGCC ;;
    @*) sed --in-place "s|^\"\?-lunwind\"\?\$|$FEEDRAIL_LIBGCC|" "${argument#@}" ;;
    esac
    arguments+=("$argument")
done
exec python3 "${arguments[@]}"
