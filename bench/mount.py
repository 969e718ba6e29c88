#!/usr/bin/env python3
"""Figures of `feedrail mount`, beside the same files on the local disk and `feedrail perf`, in one run.

    bench/mount.py FOLDER_OF_BINARIES [--folder FOLDER] [--provider shm,soft] [-o json]

FOLDER has room for 1.1 GiB and is on the disk to compare with. Pages of the file are dropped
from the cache before each figure that is cold. It needs Python alone.
"""

import argparse
import json
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

NQN = "nqn.2026-01.io.feedrail:bench"
ADDRESS = "127.77.0.1"
FILES = 10_000
BATCHES = 200
ROWS, ROW_BYTES = 480, 2_050
SECONDS = 3.0


def forget(path):
    """Has the kernel forget the pages of a file."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def make(folder, size):
    big, many = folder / "data.bin", folder / "many"
    folder.mkdir()
    block = random.Random(1).randbytes(1 << 20)
    with big.open("wb") as file:
        for number in range(size >> 20):
            file.write(number.to_bytes(8, "little") + block[8:])
        file.flush()
        os.fsync(file.fileno())
    for number in range(FILES):
        path = many / f"{number % 100:02}" / f"{number:05}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def sequential(path):
    """GB/s of one reader."""
    buffer, total = bytearray(1 << 20), 0
    begin = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        while read := file.readinto(buffer):
            total += read
    return total / (time.perf_counter() - begin) / 1e9


def random_reads(path):
    """Reads/s of 16 threads, 4 KiB each."""
    counts, end = [0] * 16, time.perf_counter() + SECONDS
    size = os.stat(path).st_size

    def work(number):
        fd, chosen = os.open(path, os.O_RDONLY), random.Random(number)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        while time.perf_counter() < end:
            os.pread(fd, 4096, chosen.randrange(size >> 12) << 12)
            counts[number] += 1
        os.close(fd)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / SECONDS


def batches(path, size):
    """Batches/s of rows out of a mapped file: as it is, and again with all of it in the page cache."""
    result = []
    for warm in (False, True):
        with open(path, "rb", buffering=0) as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
            if warm:
                for offset in range(0, size, 4096):
                    mapped[offset]
            chosen, done = random.Random(7), 0
            begin = time.perf_counter()
            while done < (BATCHES if not warm else BATCHES * 20):
                for _ in range(ROWS):
                    offset = chosen.randrange(size - ROW_BYTES)
                    mapped[offset : offset + ROW_BYTES]
                done += 1
                if time.perf_counter() - begin > SECONDS:
                    break
            result.append(done / (time.perf_counter() - begin))
    return result


def find(folder):
    """Seconds of `find -size +0` over all files, twice: of a file system that was just mounted, or files just made."""
    result = []
    for _ in range(2):
        begin = time.perf_counter()
        found = subprocess.run(["find", folder, "-type", "f", "-size", "+0"], capture_output=True, check=True)
        result.append(time.perf_counter() - begin)
        assert found.stdout.count(b"\n") >= FILES, found
    return result


def figures(root, size, empty_cache):
    """All figures of the files below a folder; `empty_cache` drops their pages."""
    big = root / "data.bin"
    first, second = find(root)
    empty_cache()
    cold, warm = batches(big, size)
    rates = []
    for _ in range(3):
        empty_cache()
        rates.append(sequential(big))
    empty_cache()
    return {
        "sequential GB/s": sorted(rates)[1],
        "16 x 4 KiB random, IOPS": random_reads(big),
        "mapped batches/s, cold": cold,
        "mapped batches/s, warm": warm,
        "find, s": first,
        "find again, s": second,
    }


def perf(binaries, provider):
    words = [binaries / "feedrail", "perf", "-a", ADDRESS, "-n", NQN, "--provider", provider, "-o", "json"]
    words += ["--rw", "read", "--bs", "1m", "--iodepth", "16", "--runtime", "3"]
    rates = []
    for _ in range(3):
        said = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
        rates.append(said["results"]["read"]["bytes_per_second"] / 1e9)
    return sorted(rates)[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binaries", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("."))
    parser.add_argument("--provider", default="shm,soft")
    parser.add_argument("--size", type=int, default=1 << 30)
    parser.add_argument("-o", "--output-format", choices=["normal", "json"], default="normal")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    target, result = None, {"load before": os.getloadavg()[0]}
    try:
        files, configuration, place = folder / "files", folder / "target.toml", folder / "mounted"
        make(files, arguments.size)
        place.mkdir()
        result["local"] = figures(files, arguments.size, lambda: forget(files / "data.bin"))
        configuration.write_text(
            f'state_dir = "{folder}/state"\n[[port]]\naddress = "{ADDRESS}:4420"\n[[subsystem]]\nnqn = "{NQN}"\n'
            f'allow_any_host = true\n[[subsystem.directory]]\npath = "{files}"\n'
        )
        command = [arguments.binaries / "feedrail-target", "--config", configuration]
        target = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        while b"listening" not in target.stdout.readline():
            if target.poll() is not None:
                sys.exit("the target does not start")
        feedrail = arguments.binaries / "feedrail"
        unmount = [feedrail, "unmount", "--force", place]
        for provider in arguments.provider.split(","):
            result[f"perf, {provider}: GB/s"] = perf(arguments.binaries, provider)
            mount = [feedrail, "mount", f"nvmf://{ADDRESS}/{NQN}", place, "--provider", provider]

            def again():
                """Mounts it again: the pages of the old one are gone."""
                subprocess.run(unmount, check=True)
                subprocess.run(mount, check=True)

            subprocess.run(mount, check=True)
            try:
                result[provider] = figures(place, arguments.size, again)
            finally:
                subprocess.run(unmount, check=True)
    finally:
        if target:
            target.send_signal(signal.SIGTERM)
            target.wait()
        shutil.rmtree(folder)
    result["load after"] = os.getloadavg()[0]
    print(json.dumps(result, indent=2) if arguments.output_format == "json" else table(result))


def table(result):
    sides = [key for key, value in result.items() if isinstance(value, dict)]
    lines = [f"{key}: {value:.2f}" for key, value in result.items() if not isinstance(value, dict)]
    lines.append(f"{'':28}" + "".join(f"{side:>12}" for side in sides))
    for key in result["local"]:
        lines.append(f"{key:28}" + "".join(f"{result[side][key]:12.2f}" for side in sides))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
