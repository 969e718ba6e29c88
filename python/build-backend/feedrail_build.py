"""The build backend of the package: maturin, where Rust is there and new enough.

Without this, pip's last lines are a traceback of cargo's, or maturin downloads a compiler of its own.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HOW = "README.md says how to install it, at https://github.com/feedrail/feedrail#from-python"


def needed() -> str:
    """The oldest Rust that compiles the package: `rust-version` of the workspace."""
    # Of a checkout, or of an unpacked source distribution.
    for manifest in (Path("../Cargo.toml"), Path("Cargo.toml")):
        if manifest.is_file():
            found = re.search(r'^rust-version = "([0-9.]+)"', manifest.read_text(), re.MULTILINE)
            if found:
                return found[1]
    sys.exit("feedrail cannot be built: no Cargo.toml here says which Rust it needs")


def installed() -> "str | None":
    """The version of the compiler that cargo calls; None where one of the two is missing."""
    if shutil.which(os.environ.get("CARGO", "cargo")) is None:
        return None
    try:
        asked = subprocess.run([os.environ.get("RUSTC", "rustc"), "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.match(r"rustc (\d+\.\d+)", asked.stdout)
    return found and found[1]


def check_rust() -> None:
    """Ends the build with one sentence where Rust is missing or too old."""
    wanted, found = needed(), installed()
    if found is None:
        sys.exit(f"feedrail is built from source here, which needs Rust {wanted} or later, and no Rust is installed: {HOW}")
    if numbers(found) < numbers(wanted):
        sys.exit(f"feedrail is built from source here, which needs Rust {wanted} or later, and Rust {found} is installed: {HOW}")


def numbers(version: str) -> "tuple[int, ...]":
    return tuple(int(number) for number in version.split("."))


def build_for_this_python() -> None:
    """Has maturin build a module for Python 3.10 alone there: the stable interface has no buffers before 3.11."""
    if sys.version_info < (3, 11):
        arguments = os.environ.get("MATURIN_PEP517_ARGS", "")
        os.environ["MATURIN_PEP517_ARGS"] = f"{arguments} --no-default-features".strip()


check_rust()
build_for_this_python()

from maturin import (  # noqa: E402, F401: the hooks of PEP 517 and PEP 660
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
