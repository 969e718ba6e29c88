#!/usr/bin/env python3
"""Makes data sets of real data, from packages, in a folder that is kept.

    real_data.py FOLDER

`dataset-fashion-mnist` of Debian, 70,000 images, is written in each format by that format's own
library; `linux-source-6.1` becomes `train.bin`, its C files as tokens of GPT-2. What is there is
kept, and a format whose library is missing here is left to a run with another interpreter.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pyarrow

#: Bytes of C that are tokenised: a minute's work of two cores.
SOURCE_BYTES = 64 << 20
#: `train.bin` ends this many bytes after a block of 512, as one of OpenWebText does.
TAIL_BYTES = 492
#: Of the merges of GPT-2 (r50k_base.tiktoken).
MERGES_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
END_OF_TEXT = 50256


def main() -> None:
    folder = Path(sys.argv[1])
    for name, (libraries, make) in MADE.items():
        if (folder / name).exists() or not all(map(importlib.util.find_spec, libraries)):
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            make(Path(scratch) / "made", folder)
            os.rename(Path(scratch) / "made", folder / name)


def debian(package: str) -> Callable[[Path, Path], None]:
    """Makes a folder with the files of a package, which is not installed."""

    def make(path: Path, _: Path) -> None:
        path.mkdir()
        subprocess.run(["apt-get", "--quiet", "download", package], cwd=path, check=True)
        (archive,) = path.glob("*.deb")
        subprocess.run(["dpkg-deb", "--extract", archive, path], check=True)
        archive.unlink()

    return make


def images(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The images, shape `(70000, 28, 28)`, and their labels, shape `(70000,)`, of the package."""
    import numpy as np

    found = folder / "packages" / "fashion-mnist" / "usr" / "share" / "datasets" / "fashion-mnist"

    def both(name: str, header_bytes: int) -> np.ndarray:
        parts = [gzip.open(found / f"{part}-{name}-ubyte.gz").read() for part in ("train", "t10k")]
        return np.concatenate([np.frombuffer(part, np.uint8)[header_bytes:] for part in parts])

    return both("images-idx3", 16).reshape(-1, 28, 28), both("labels-idx1", 8)


def samples(folder: Path) -> Iterator[tuple[bytes, int]]:
    pixels, labels = images(folder)
    for image, label in zip(pixels, labels.tolist(), strict=True):
        yield image.tobytes(), label


def make_npy(path: Path, folder: Path) -> None:
    import numpy as np

    path.mkdir()
    for name, array in zip(("images", "labels"), images(folder), strict=True):
        np.save(path / f"{name}.npy", array)


def make_npz(path: Path, folder: Path) -> None:
    import numpy as np

    path.mkdir()
    pixels, labels = images(folder)
    np.savez(path / "all.npz", images=pixels, labels=labels)


def make_safetensors(path: Path, folder: Path) -> None:
    from safetensors.numpy import save_file

    path.mkdir()
    pixels, labels = images(folder)
    save_file({"images": pixels, "labels": labels}, path / "all.safetensors")


def make_tar(path: Path, folder: Path) -> None:
    import webdataset

    path.mkdir()
    with webdataset.ShardWriter(str(path / "%03d.tar"), maxcount=20_000, verbose=0) as writer:
        for number, (image, label) in enumerate(samples(folder)):
            writer.write({"__key__": f"{number:06}", "bin": image, "cls": label})


def make_parquet(path: Path, folder: Path) -> None:
    from pyarrow import parquet

    path.mkdir()
    table = arrow_table(folder)
    parquet.write_table(table[:40_000], path / "0.parquet", row_group_size=5000)
    parquet.write_table(table[40_000:], path / "1.parquet", row_group_size=5000)


def make_arrow(path: Path, folder: Path) -> None:
    import pyarrow

    path.mkdir()
    table = arrow_table(folder)
    with pyarrow.OSFile(str(path / "all.arrow"), "wb") as file:
        # Streams are what the library datasets reads.
        with pyarrow.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=5000)


def arrow_table(folder: Path) -> pyarrow.Table:
    import pyarrow

    pixels, labels = images(folder)
    return pyarrow.table({"image": [image.tobytes() for image in pixels], "label": labels})


def make_tfrecord(path: Path, folder: Path) -> None:
    import tfrecord

    path.mkdir()
    writer = tfrecord.TFRecordWriter(str(path / "all.tfrecord"))
    for image, label in samples(folder):
        writer.write({"image": (image, "byte"), "label": (label, "int")})
    writer.close()


def make_mds(path: Path, folder: Path) -> None:
    from streaming import MDSWriter

    columns = {"image": "bytes", "label": "int"}
    with MDSWriter(out=str(path), columns=columns, size_limit=16 << 20) as writer:
        for image, label in samples(folder):
            writer.write({"image": image, "label": label})


def make_tokens(path: Path, folder: Path) -> None:
    import numpy as np
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe
    from tiktoken_ext.openai_public import r50k_pat_str

    with tempfile.TemporaryDirectory() as scratch:
        merges = load_tiktoken_bpe(str(merges_file(Path(scratch))), MERGES_SHA256)
    gpt2 = tiktoken.Encoding(
        "gpt2",
        pat_str=r50k_pat_str,
        mergeable_ranks=merges,
        special_tokens={"<|endoftext|>": END_OF_TEXT},
    )
    with path.open("wb") as file:
        for text in c_files(folder):
            np.array([*gpt2.encode_ordinary(text), END_OF_TEXT], np.uint16).tofile(file)
        size = file.tell()
        file.truncate(size - (size - TAIL_BYTES) % 512)


def c_files(folder: Path) -> Iterator[str]:
    """C files of Linux in the order of the archive, some 64 MiB of them."""
    archive = folder / "packages" / "linux-source" / "usr" / "src" / "linux-source-6.1.tar.xz"
    taken = 0
    with tarfile.open(archive, "r|xz") as tar:
        for member in tar:
            # Headers of registers are most of the bytes under drivers, and little but numbers.
            if re.search(r"^[^/]+/(?!drivers/).*\.[ch]$", member.name) and member.isfile():
                data = tar.extractfile(member)
                assert data is not None
                text = data.read().decode("utf-8", "replace")
                yield text
                taken += len(text)
                if taken >= SOURCE_BYTES:
                    return


def merges_file(scratch: Path) -> Path:
    """GPT-2's merges. tiktoken downloads them from elsewhere; the package of Whisper has them."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch]
    subprocess.run([*pip, "--no-binary=openai-whisper", "openai-whisper==20250625"], check=True)
    (archive,) = scratch.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        (name,) = (name for name in tar.getnames() if name.endswith("/gpt2.tiktoken"))
        data = tar.extractfile(name)
        assert data is not None
        with (scratch / "gpt2.tiktoken").open("wb") as file:
            shutil.copyfileobj(data, file)
    return scratch / "gpt2.tiktoken"


#: What is made, in this order; and the libraries that it takes.
MADE: dict[str, tuple[list[str], Callable[[Path, Path], None]]] = {
    "packages/fashion-mnist": ([], debian("dataset-fashion-mnist")),
    "samples/npy": (["numpy"], make_npy),
    "samples/npz": (["numpy"], make_npz),
    "samples/safetensors": (["safetensors"], make_safetensors),
    "samples/tar": (["webdataset"], make_tar),
    "samples/parquet": (["pyarrow"], make_parquet),
    "samples/arrow": (["pyarrow"], make_arrow),
    "samples/tfrecord": (["tfrecord"], make_tfrecord),
    "samples/mds": (["streaming"], make_mds),
    "packages/linux-source": ([], debian("linux-source-6.1")),
    "samples/train.bin": (["tiktoken"], make_tokens),
}

if __name__ == "__main__":
    main()
