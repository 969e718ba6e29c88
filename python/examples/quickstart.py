"""Starts a target on a sample of tokens, reads a batch into a tensor, and checks it.

    python quickstart.py [path of feedrail-target]

It needs no root and no RDMA device. Without torch the batch is an array of numpy.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

import numpy as np

import feedrail

ROWS, LENGTH = 480, 1025


def main() -> None:
    target = sys.argv[1] if len(sys.argv) > 1 else installed_or_built()
    if target is None:
        sys.exit("feedrail-target is neither in PATH nor built: cargo build --release")
    # An address of its own: RoCE has one UDP port for all processes of a machine.
    address = f"127.{random.randint(1, 254)}.{random.randint(0, 255)}.{random.randint(1, 254)}"
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "train.bin")
        tokens = np.random.default_rng(0).integers(0, 50257, 1 << 20, dtype=np.uint16)
        tokens.tofile(path)
        command = [target, "--listen", f"{address}:4420", path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
            try:
                read_and_check(f"nvmf://{address}/{listening(daemon)}", tokens)
            finally:
                daemon.terminate()


def installed_or_built() -> str | None:
    """The target of the search path, or else of the checkout that this file is in."""
    checkout = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    built = os.path.join(checkout, "out", "release", "feedrail-target")
    return shutil.which("feedrail-target") or shutil.which(built)


def listening(daemon: "subprocess.Popen[str]") -> str:
    """Waits until the target serves; its NVMe qualified name."""
    assert daemon.stdout is not None
    for line in daemon.stdout:
        said = json.loads(line)
        if said["event"] == "listening":
            return str(said["nqn"])
    sys.exit("the target ended")


def read_and_check(url: str, tokens: np.ndarray) -> None:
    offsets = np.random.default_rng(1).integers(0, len(tokens) - LENGTH, ROWS)
    rows = feedrail.open(url).rows(0, 2 * offsets, 2 * LENGTH)
    try:
        batch = rows.as_tensor("uint16", (ROWS, LENGTH))
    except ImportError:
        batch = rows.as_numpy("uint16", (ROWS, LENGTH))
    wanted = np.stack([tokens[at : at + LENGTH] for at in offsets])
    assert np.array_equal(np.asarray(batch), wanted), "these are not the bytes of the file"
    print(f"{type(batch).__module__}: {ROWS} rows of {LENGTH} tokens of {url}, all as in the file")


if __name__ == "__main__":
    main()
