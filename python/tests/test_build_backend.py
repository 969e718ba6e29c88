"""The build backend: where Rust is missing or too old a build ends with one sentence."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
HOOKS = ("build_wheel", "build_sdist", "build_editable", "prepare_metadata_for_build_wheel")


def imported(path: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """Imports the backend as pip does, with these programs in the search path and a maturin that has every hook."""
    (path / "bin").mkdir()
    for name, says in programs.items():
        program = path / "bin" / name
        program.write_text(f"#!/bin/sh\n{says}\n")
        program.chmod(0o755)
    (path / "maturin.py").write_text("def __getattr__(name): return name\n")
    backend = os.path.join(PACKAGE, "build-backend")
    environment = {"PATH": str(path / "bin"), "PYTHONPATH": os.pathsep.join([backend, str(path)])}
    names = ", ".join(f"feedrail_build.{name}" for name in HOOKS)
    command = [sys.executable, "-c", f"import feedrail_build; print({names})"]
    return subprocess.run(command, cwd=PACKAGE, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("programs", "there"),
    [
        ({}, "no Rust is installed"),
        ({"cargo": "exit 0"}, "no Rust is installed"),
        # rustup without a toolchain.
        ({"cargo": "exit 1", "rustc": "echo no toolchain is installed >&2; exit 1"}, "no Rust is installed"),
        ({"cargo": "exit 0", "rustc": "echo 'rustc 1.63.0'"}, "Rust 1.63 is installed"),
        ({"cargo": "exit 0", "rustc": "echo 'rustc 1.9.0 (0123 2016-05-24)'"}, "Rust 1.9 is installed"),
    ],
)
def test_a_missing_or_old_rust_is_one_sentence(tmp_path: Path, programs: dict[str, str], there: str) -> None:
    ended = imported(tmp_path, **programs)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert re.fullmatch(rf"feedrail is built from source .* needs Rust 1\.\d+ or later, and {there}: .*README.*\n", ended.stderr)


@pytest.mark.parametrize("version", ["1.95.0", "1.100.2-nightly", "2.0.0"])
def test_a_rust_that_is_new_enough_gives_the_hooks_of_maturin(tmp_path: Path, version: str) -> None:
    ended = imported(tmp_path, cargo="exit 0", rustc=f"echo 'rustc {version} (0123 2026-04-14)'")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.split() == list(HOOKS)
