"""Reads a checkpoint volume from a file, written from docs/checkpoint-format.md alone.

    python3 reader.py IMAGE

prints the generation, and each checkpoint and entry on a line with tabs between the fields. The
last field of an entry is the CRC-32C of its bytes. The checksum of each unit is verified.
"""

import struct
import sys

SUPERBLOCKS = (0, 65536)
DATA = 131072
MANIFEST_MAX = 2**28


class Damaged(Exception):
    """Bytes that are not what the format says."""


class Newer(Exception):
    """A volume of a version that this reader does not know."""


def crc_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


TABLE = crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def check(condition, text):
    if not condition:
        raise Damaged(text)


def superblock(image, offset):
    block = image[offset : offset + 4096]
    check(len(block) == 4096 and block[:8] == b"FRCKPTV\0", "magic of a superblock")
    check(crc32c(block[:4092]) == struct.unpack_from("<I", block, 4092)[0], "CRC of a superblock")
    names = "version shift uuid required optional generation capacity first second bytes crc"
    fields = dict(zip(names.split(), struct.unpack_from("<II16sQQQQQQQI", block, 8)))
    if fields["version"] != 1 or fields["required"] != 0:
        raise Newer("superblock")
    check(12 <= fields["shift"] <= 24, "unit_shift")
    check(0 < fields["bytes"] <= MANIFEST_MAX, "length of the manifest")
    return fields


def records(data):
    """Yields the tag and the body of each record, None as the tag of one to be skipped."""
    while data:
        check(len(data) >= 8, "head of a record")
        tag, flags, length = struct.unpack_from("<HHI", data)
        check(len(data) >= 8 + length, "body of a record")
        known = 1 <= tag <= 9
        if not known and flags & 1:
            raise Newer("record")
        yield tag if known else None, data[8 : 8 + length]
        data = data[8 + length :]


def number(body):
    check(len(body) == 8, "number")
    return struct.unpack("<Q", body)[0]


def words(form, body):
    check(len(body) % struct.calcsize(form) == 0, "array")
    return list(struct.iter_unpack(form, body))


def entry(image, unit, body):
    """Reads an entry: its name and its bytes."""
    fields = dict(records(body))
    length = number(fields[7])
    extents = words("<QQ", fields[8])
    places = [place for first, count in extents for place in range(first, first + count)]
    sums = [crc for (crc,) in words("<I", fields[9])]
    check(len(places) == len(sums) == -(-length // unit), "number of units")
    data = bytearray()
    for place, crc in zip(places, sums):
        begin = place * unit
        check(begin >= DATA, "extent")
        part = image[begin : begin + min(unit, length - len(data))]
        check(crc32c(part) == crc, f"CRC of unit {place}")
        data += part
    return fields[2].decode(), bytes(data)


def manifest(image, block, first):
    """Reads a copy of the manifest: the bodies of its checkpoints."""
    begin = first << block["shift"]
    data = image[begin : begin + block["bytes"]]
    check(len(data) == block["bytes"] and crc32c(data) == block["crc"], "CRC of the manifest")
    check(data[:8] == b"FRCKPTM\0" and data[16:32] == block["uuid"], "head of the manifest")
    if struct.unpack_from("<I", data, 8)[0] != 1:
        raise Newer("manifest")
    check(number(data[32:40]) <= block["generation"], "generation of the manifest")
    return [body for tag, body in records(data[40:]) if tag == 1]


def volume(image):
    """Returns the present superblock and the bodies of its checkpoints."""
    blocks, error = [], None
    for offset in SUPERBLOCKS:
        try:
            blocks.append(superblock(image, offset))
        except Damaged as damage:
            error = damage
    for block in sorted(blocks, key=lambda block: -block["generation"]):
        for first in (block["first"], block["second"]):
            try:
                return block, manifest(image, block, first)
            except Damaged as damage:
                error = damage
    raise error


def main():
    with open(sys.argv[1], "rb") as file:
        image = file.read()
    block, checkpoints = volume(image)
    print("generation", block["generation"], sep="\t")
    for body in checkpoints:
        fields = dict(records(body))
        name, metadata = fields[2].decode(), fields.get(5, b"").hex()
        print("checkpoint", name, number(fields[3]), number(fields[4]), metadata, sep="\t")
        for tag, inner in records(body):
            if tag == 6:
                name, data = entry(image, 1 << block["shift"], inner)
                print("entry", name, len(data), f"{crc32c(data):08x}", sep="\t")


if __name__ == "__main__":
    main()
