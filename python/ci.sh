#!/usr/bin/env bash
# Builds the wheel, installs it into a virtual environment that has nothing but its dependencies, and tests it there.
# Environments and wheels are in out/python; a second run makes only what has changed. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

out=$PWD/out/python
python=${PYTHON:-python3}
# maturin takes another interpreter from it, and compiles all that depends on one anew.
unset VIRTUAL_ENV

# venv NAME REQUIREMENT...: an environment with these packages, made anew when the list or the interpreter changes.
venv() {
    local folder=$out/$1 wanted
    shift
    wanted="$("$python" -V) $*"
    if [ "$(cat "$folder/requirements" 2>/dev/null)" != "$wanted" ]; then
        rm -rf "$folder"
        "$python" -m venv "$folder"
        "$folder/bin/pip" install --quiet --disable-pip-version-check "$@"
        echo "$wanted" >"$folder/requirements"
    fi
}

venv build 'maturin>=1.9.4,<2'
venv test 'numpy>=1.26' 'pytest>=8' 'fsspec>=2024.6' 'pyarrow>=17' 'mypy>=1.15'

cargo build --quiet --package feedrail-target --package feedrail-cli
rm -rf "$out/wheels"
(cd python && "$out/build/bin/maturin" build --quiet --release --locked --interpreter "$out/test/bin/python" --out "$out/wheels")
"$out/test/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$out"/wheels/*.whl

(cd python && "$out/test/bin/mypy")
# From elsewhere: programs that tests start look for modules in the current folder first, and python/feedrail has no native module.
tests=$PWD/python
cd "$out"
installed=$("$out/test/bin/python" -c 'import feedrail; print(feedrail.__file__)')
case $installed in
"$out"/test/*) ;;
*) echo "the wheel is not what is imported: $installed" >&2 && exit 1 ;;
esac
exec "$out/test/bin/pytest" --config-file "$tests/pyproject.toml" --rootdir "$tests" "$tests/tests" "$@"
