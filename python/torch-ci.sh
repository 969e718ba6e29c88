#!/usr/bin/env bash
# The tests that need torch, those of libraries that read training data, and those of real data. What they need takes 8 GB of disk and
# many minutes to install, so it is kept between runs, in ${FEEDRAIL_CACHE:-~/.cache/feedrail}.
#
# torch-ci.sh prepare             installs what is missing
# torch-ci.sh test [ARGUMENT...]  builds the wheel and tests it, or says why it does not; arguments go to pytest
set -euo pipefail
cd "$(dirname "$0")/.."
. python/environments.sh

kept=${FEEDRAIL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/feedrail}
# Half of it is for what is built beside.
needed_gib=40
torch=("$kept/torch" 'torch>=2.15,<2.16' 'torchdata>=0.11,<0.12' 'numpy>=2.1,<3' 'pytest>=8,<10' 'fsspec[http]>=2024.6' 'pyarrow>=17,<27'
    'webdataset>=1,<2' 'safetensors>=0.5,<1' 'datasets>=4,<6' 'grain>=0.2.14,<0.3' 'ray[data]>=2.50,<3' 'tfrecord>=1.14,<2'
    'tiktoken>=0.9,<1')
# It wants an older numpy, and the torch that is there will do.
streaming=("$kept/streaming" --over "$kept/torch" 'mosaicml-streaming>=0.13,<0.14')
# What trains and saves checkpoints.
frameworks=("$kept/frameworks" --over "$kept/torch" 'lightning>=2.5,<3' 'transformers>=5,<6')

prepare() {
    local free_gib
    mkdir -p "$kept"
    # Of two runs at a time, one installs.
    exec 9>"$kept/lock"
    flock 9
    # Its last line tells why it ended.
    exec >"$kept/prepare.log" 2>&1
    trap 'echo "the time for it was over"; exit 1' TERM
    if ! complete "${torch[@]}"; then
        free_gib=$(($(df --output=avail --block-size=1G "$kept" | tail -1)))
        if [ "$free_gib" -lt "$needed_gib" ]; then
            echo "$free_gib GiB are free in $kept, and it takes $needed_gib"
            return
        fi
    fi
    # What is kept is what has been installed, not what has been downloaded as well.
    export PIP_NO_CACHE_DIR=1
    venv "${torch[@]}"
    venv "${streaming[@]}"
    venv "${frameworks[@]}"
    # Each format is written by its own library.
    "$kept/torch/bin/python" python/tests/real_data.py "$kept/data"
    "$kept/streaming/bin/python" python/tests/real_data.py "$kept/data"
    echo "nothing is missing"
}

why_not() {
    tail -1 "$kept/prepare.log" 2>/dev/null || echo "python/torch-ci.sh prepare has not run"
}

# skip WHAT WHY
skip() {
    echo "torch-ci.sh: skipped $1: $2"
    exit 0
}

test_all() {
    local tests=$PWD/python/tests
    [ -d "$kept" ] || skip "all tests that need torch" "$(why_not)"
    exec 9>"$kept/lock"
    flock --shared --nonblock 9 || skip "all tests that need torch" "they are being installed"
    complete "${torch[@]}" || skip "all tests that need torch" "$(why_not)"
    export FEEDRAIL_REAL_DATA=$kept/data
    build_wheel
    # The environments that are kept belong to no checkout: the wheel goes into others, which lie over them.
    venv "$out/torch" --over "$kept/torch"
    test_wheel "$out/torch" "$tests"/test_torch*.py "$tests/test_formats.py" "$tests/libraries" "$@"
    if complete "${frameworks[@]}"; then
        venv "$out/frameworks" --over "$kept/frameworks" --over "$kept/torch"
        test_wheel "$out/frameworks" "$tests/libraries/test_frameworks.py" "$@"
    else
        echo "torch-ci.sh: skipped Lightning and transformers: $(why_not)"
    fi
    complete "${streaming[@]}" || skip "mosaicml-streaming" "$(why_not)"
    venv "$out/streaming" --over "$kept/streaming" --over "$kept/torch"
    test_wheel "$out/streaming" "$tests"/libraries/test_{streaming,real_data}.py -k streaming "$@"
}

case ${1:-} in
prepare) prepare ;;
test) test_all "${@:2}" ;;
*) echo "usage: $0 prepare | test [ARGUMENT...]" >&2 && exit 2 ;;
esac
