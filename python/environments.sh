# Virtual environments in which the Python package is tested. Sourced by ci.sh and torch-ci.sh, in the root of the checkout.

out=$PWD/out/python
python=${PYTHON:-python3}
# maturin takes another interpreter from it, and compiles all that depends on one anew.
unset VIRTUAL_ENV

# wanted [--over FOLDER]... REQUIREMENT...: what an environment is made of, on one line.
wanted() {
    echo "$("$python" -V) $*"
}

# complete FOLDER [--over FOLDER]... REQUIREMENT...: whether `venv` has nothing to do.
complete() {
    [ "$(cat "$1/requirements" 2>/dev/null)" = "$(wanted "${@:2}")" ]
}

# venv FOLDER [--over FOLDER]... REQUIREMENT...: an environment with these packages, made anew when the list or the interpreter
# changes. It sees the packages of the environments that it lies over, behind its own.
venv() {
    local folder=$1 made_of
    complete "$@" && return
    shift
    made_of=$(wanted "$@")
    rm -rf "$folder"
    "$python" -m venv "$folder"
    while [ "${1:-}" = --over ]; do
        echo "$2"/lib/python3.*/site-packages >>"$(echo "$folder"/lib/python3.*/site-packages)/over.pth"
        shift 2
    done
    [ $# = 0 ] || "$folder/bin/pip" install --quiet --disable-pip-version-check "$@"
    echo "$made_of" >"$folder/requirements"
}

# build_wheel: builds the wheel in $out/wheels, in the profile of all tests, and the programs that tests start where FEEDRAIL_BIN_DIR
# names no others.
build_wheel() {
    venv "$out/build" 'maturin>=1.15,<2'
    [ -n "${FEEDRAIL_BIN_DIR:-}" ] || cargo build --quiet --package feedrail-target --package feedrail-cli
    rm -rf "$out/wheels"
    # As python/build-backend does: before 3.11 the stable interface has no buffers.
    local features=()
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || features=(--no-default-features)
    (cd python && "$out/build/bin/maturin" build --quiet --locked "${features[@]}" --interpreter "$python" --out "$out/wheels")
}

# test_wheel FOLDER ARGUMENT...: installs the wheel in an environment, and runs pytest there.
test_wheel() (
    folder=$1 tests=$PWD/python
    shift
    "$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$out"/wheels/*.whl
    # From elsewhere: what starts there looks for modules in the current folder first, and python/feedrail has no native module.
    cd "$folder"
    installed=$("$folder/bin/python" -c 'import feedrail; print(feedrail.__file__)')
    case $installed in
    "$folder"/*) ;;
    *) echo "the wheel is not what is imported: $installed" >&2 && return 1 ;;
    esac
    "$folder/bin/python" -m pytest --config-file "$tests/pyproject.toml" --rootdir "$tests" "$@"
)
