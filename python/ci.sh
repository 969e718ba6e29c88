#!/usr/bin/env bash
# Builds the wheel, installs it into a virtual environment that has nothing but its dependencies, and tests it there.
# Environments and wheels are in out/python; a second run makes only what has changed. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
. python/environments.sh

venv "$out/test" 'numpy>=1.26' 'pytest>=8' 'fsspec>=2024.6' 'pyarrow>=17' 'mypy>=1.15' 'nbclient>=0.10' 'ipykernel>=6.29' \
    'matplotlib>=3.9' 'tqdm>=4.66'
build_wheel
(cd python && "$out/test/bin/mypy")
test_wheel "$out/test" "$PWD/python/tests" "$@"
