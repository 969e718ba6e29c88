"""Decoders of samples, against bytes of the libraries that own the formats and bytes made by hand.

Files in `dataset/tests/data/formats` are made by mosaicml-streaming, tfrecord and webdataset.
"""

from __future__ import annotations

import decimal
import io
import json
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, Serve

import feedrail
from feedrail.formats import RawBatch, mds, npy, tfrecord, webdataset
from feedrail.index import build
from feedrail.megatron import MegatronIndex

FIXTURES = ROOT / "dataset" / "tests" / "data" / "formats"


def batch_of(*samples: bytes, shard: int | None = None) -> RawBatch:
    """A batch as a read makes it; with a shard, sample `i` is at 1000 times its number."""
    data = np.frombuffer(bytearray(b"".join(samples)), np.uint8)
    offsets = np.cumsum([0, *map(len, samples)])
    plan = None
    if shard is not None:
        lengths = np.diff(offsets)
        plan = feedrail.make_plan(np.arange(len(samples)) * 1000, lengths, shard=shard)
    return RawBatch(data, offsets, np.arange(len(samples)) + 70, plan)


def whole_file(source: feedrail.Source) -> RawBatch:
    index = build(source)
    return RawBatch.read(source, index, np.arange(len(index)))


def is_view(value: Any, batch: RawBatch) -> bool:
    return np.shares_memory(np.frombuffer(value, np.uint8), batch.data)


# A batch


def view(data: memoryview) -> memoryview:
    return data


DECODED = {
    "mds": (
        mds.Decoder(
            [mds.Column("a", "bytes", None), mds.Column("b", "ndarray:uint8:2", 2), mds.Column("c", "str", 1)],
            decoders={"c": view},
        ),
        np.array([3], "<u4").tobytes() + b"abc" + b"12" + b"x",
    ),
    "tfrecord": (tfrecord.Decoder(), b"\n\x0e\n\x0c\n\x01a\x12\x07\n\x05\n\x03abc"),
    "webdataset": (webdataset.Decoder({"txt": view}), None),
    "npy": (npy.Decoder("u1", (3,)), b"abc"),
    "sequence": (npy.SequenceDecoder("u1"), b"abc"),
    "none": (RawBatch.of, b"abc"),
}


@pytest.mark.parametrize("format", DECODED)
def test_what_decoders_make_can_be_pickled(format: str) -> None:
    decoder, sample = DECODED[format]
    batch = batch_of(piece(a__bin=b"abc", a__txt=b"x") if sample is None else sample)
    decoded = pickle.loads(pickle.dumps(decoder))(batch)
    again = pickle.loads(pickle.dumps(decoded))
    assert type(again) is type(decoded) and len(again) == 1
    assert format == "none" or repr(again) == repr(decoded)
    if format != "npy":
        assert again.indices.tolist() == [70] and again.state is None


def test_decoded_samples_are_like_a_list() -> None:
    decoded = npy.SequenceDecoder("u1")(batch_of(b"a", b"b", b"c"))
    assert len(decoded) == 3 and decoded[-1].item() == 99
    assert [x.item() for x in decoded[1:]] == [98, 99]
    assert [x.item() for x in decoded] == [97, 98, 99]


def test_samples_are_views_of_one_buffer() -> None:
    batch = batch_of(b"abc", b"", b"de")
    assert [bytes(sample) for sample in batch] == [b"abc", b"", b"de"] and bytes(batch[-1]) == b"de"
    assert is_view(batch[0], batch) and len(batch) == 3
    with pytest.raises(IndexError):
        batch[3]
    with pytest.raises(TypeError, match="a Batch or a RawBatch, not list"):
        mds.Decoder([])([b"abc"])


def test_samples_that_are_not_there(source: feedrail.Source) -> None:
    index = feedrail.index.Index.of([0, 5], [5, 7])
    for wrong in ([2], [-1]):
        with pytest.raises(IndexError):
            RawBatch.read(source, index, wrong)
    assert len(RawBatch.read(source, index, [])) == 0


# MDS


def test_mds_of_streaming(serve: Serve) -> None:
    folder = FIXTURES / "mds"
    files = [folder / "index.json", *sorted(folder.glob("*.mds"))]
    source = feedrail.open(serve(*files).url)
    decoder = mds.Decoder.of(source)
    batch = whole_file(source)
    decoded = decoder(batch)
    assert [(s["id"], bytes(s["image"]), s["text"]) for s in decoded] == [
        (number, bytes([number]) * 10 * number, f"text {number}") for number in range(10)
    ]
    assert type(decoded[3]["id"]) is int and type(decoded[3]["image"]) is bytes
    assert decoded.indices.tolist() == list(range(10)) and decoded.state is None
    again = pickle.loads(pickle.dumps(decoder))
    assert again(batch) == decoded


def encoded(*parts: bytes, sizes: list[int] | None = None) -> bytes:
    return np.array(sizes or [], "<u4").tobytes() + b"".join(parts)


def column(encoding: str, size: int | None = None) -> list[mds.Column]:
    return [mds.Column("c", encoding, size)]


def decode_mds(encoding: str, data: bytes, size: int | None = None, **options: Any) -> Any:
    sample = data if size is not None else encoded(data, sizes=[len(data)])
    return mds.Decoder(column(encoding, size), **options)(batch_of(sample))[0]["c"]


@pytest.mark.parametrize(
    ("encoding", "data", "value"),
    [
        ("str", "Grüße".encode(), "Grüße"),
        ("bytes", b"\0\1", b"\0\1"),
        ("jpeg", b"\xff\xd8", b"\xff\xd8"),
        ("jpeg:90", b"\xff\xd8", b"\xff\xd8"),
        ("png", b"\x89PNG", b"\x89PNG"),
        ("pil", b"1234", b"1234"),
        ("json", b'{"a": [1, null]}', {"a": [1, None]}),
        ("str_int", b"-123456789012345678901234567890", -123456789012345678901234567890),
        ("str_float", b"1e-3", 0.001),
        ("str_decimal", b"0.10", decimal.Decimal("0.10")),
    ],
)
def test_mds_encodings(encoding: str, data: bytes, value: Any) -> None:
    got = decode_mds(encoding, data)
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize("dtype", ["u1", "<u2", "<u4", "<u8", "i1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8"])
def test_mds_scalars_and_arrays(dtype: str) -> None:
    kind = np.dtype(dtype)
    codes = {"uint8": 8, "int8": 9, "uint16": 16, "int16": 17, "float16": 18, "uint32": 32,
             "int32": 33, "float32": 34, "uint64": 64, "int64": 65, "float64": 66}
    code = bytes([codes[kind.name]])
    array = np.arange(6).astype(kind).reshape(2, 3)
    scalar = decode_mds(kind.name, array[1, 2].tobytes(), kind.itemsize)
    assert scalar == 5 and scalar.dtype == kind
    small, large = bytes([2 << 2, 2, 3]), bytes([2 << 2 | 1]) + struct.pack("<HH", 2, 3)
    for encoding, data, size in [
        ("ndarray", code + small + array.tobytes(), None),
        ("ndarray", code + large + array.tobytes(), None),
        (f"ndarray:{kind.name}", small + array.tobytes(), None),
        (f"ndarray:{kind.name}:2,3", array.tobytes(), array.nbytes),
    ]:
        got = decode_mds(encoding, data, size)
        assert got.dtype == kind and np.array_equal(got, array), encoding


def test_mds_arrays_are_not_copied() -> None:
    batch = batch_of(encoded(np.arange(4, dtype="<f4").tobytes()))
    array = mds.Decoder(column("ndarray:float32:2,2", 16))(batch)[0]["c"]
    assert np.shares_memory(array, batch.data)


def test_mds_with_fixed_and_variable_columns() -> None:
    columns = [mds.Column("a", "str", None), mds.Column("b", "int", 8), mds.Column("c", "bytes", None)]
    sample = encoded(b"xyz", struct.pack("<q", -5), b"", sizes=[3, 0])
    assert mds.Decoder(columns)(batch_of(sample)) == [{"a": "xyz", "b": -5, "c": b""}]


def test_mds_pickles_are_refused_unless_allowed() -> None:
    data = pickle.dumps({"a": 1})
    with pytest.raises(feedrail.FormatError, match="allow_pickle=True"):
        decode_mds("pkl", data)
    assert decode_mds("pkl", data, allow_pickle=True) == {"a": 1}
    assert decode_mds("pkl", data, decoders={"c": len}) == len(data)
    with pytest.raises(feedrail.FormatError, match="not known"):
        decode_mds("tiff", b"")
    assert decode_mds("tiff", b"12", decoders={"c": bytes}) == b"12"
    with pytest.raises(feedrail.FormatError, match="is no array"):
        decode_mds("ndarray:complex64", b"")


@pytest.mark.parametrize(
    ("encoding", "size", "sample", "at", "said"),
    [
        ("bytes", None, b"\1\0", 0, "too few for 1 lengths"),
        ("bytes", None, encoded(b"abc", sizes=[4]), 4, "has 4 bytes, and 3 are left"),
        ("bytes", None, encoded(b"abc", sizes=[2]), 6, "1 bytes behind"),
        ("int", 8, b"1234567", 0, "has 8 bytes, and 7 are left"),
        ("uint16", None, encoded(b"abc", sizes=[3]), 4, "3 bytes, for a uint16"),
        ("str", None, encoded(b"\xff", sizes=[1]), 4, "utf-8"),
        ("json", None, encoded(b"{", sizes=[1]), 4, "column 'c' of json"),
        ("str_int", None, encoded(b"x", sizes=[1]), 4, "invalid literal"),
        ("str_decimal", None, encoded(b"x", sizes=[1]), 4, "decimal"),
        ("ndarray", None, encoded(b"\x07", sizes=[1]), 4, "no type of an array"),
        ("ndarray", None, encoded(b"", sizes=[0]), 4, "no type of an array"),
        ("ndarray", None, encoded(b"\x08", sizes=[1]), 5, "ends before its shape"),
        ("ndarray", None, encoded(b"\x08\x08\x01", sizes=[3]), 5, "within its shape of 2 axes"),
        ("ndarray", None, encoded(b"\x08\x04\x03ab", sizes=[5]), 7, "2 bytes, for an array (3,)"),
    ],
)
def test_damaged_mds(encoding: str, size: int | None, sample: bytes, at: int, said: str) -> None:
    decoder = mds.Decoder(column(encoding, size))
    good = b"12345678" if encoding == "int" else None
    samples = [sample] if good is None else [good, sample]
    with pytest.raises(feedrail.FormatError) as raised:
        decoder(batch_of(*samples, shard=3))
    error, number = raised.value, len(samples) - 1
    assert said in str(error)
    assert (error.sample, error.shard) == (70 + number, 3)
    assert (error.offset, error.length) == (1000 * number + at, len(sample))
    with pytest.raises(feedrail.FormatError, match=f"byte {at}") as raised:
        decoder(batch_of(*samples))
    assert (raised.value.shard, raised.value.offset) == (None, at)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"shards": [1]}',
        b'{"shards": [{"format": "json"}]}',
        json.dumps({"shards": [{"format": "mds", "compression": "zstd"}]}).encode(),
        (FIXTURES / "mds" / "index.json").read_bytes().replace(b"shard.00000", b"../shard"),
        (FIXTURES / "mds" / "index.json").read_bytes().replace(b'"int", ', b""),
        (FIXTURES / "mds-zstd" / "index.json").read_bytes(),
    ],
)
def test_index_jsons_that_are_none(text: bytes) -> None:
    with pytest.raises(feedrail.FormatError):
        mds.MdsIndex.parse(text)


# TFRecord


def test_tfrecords_of_the_library(serve: Serve) -> None:
    path = FIXTURES / "records.tfrecord"
    source = feedrail.open(serve(path).url)
    batch = whole_file(source)
    decoded = tfrecord.Decoder()(batch)
    assert [sample["number"].tolist() for sample in decoded] == [[0], [1], [2], [3]]
    assert [bytes(*sample["bytes"]) for sample in decoded] == [b"b" * 100 * n for n in range(4)]
    assert type(decoded[2]["bytes"][0]) is bytes
    framed = list(tfrecord.records(path.read_bytes()))
    assert framed == [bytes(sample) for sample in batch]


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, data: bytes | int) -> bytes:
    if isinstance(data, int):
        return varint(number << 3) + varint(data)
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(**features: bytes) -> bytes:
    entries = [field(1, field(1, n.encode()) + field(2, f)) for n, f in features.items()]
    return field(1, b"".join(entries))


NUMBERS = [0, 1, 127, 128, 300, -1, 2**63 - 1, -(2**63), 2**31]


@pytest.mark.parametrize("packed", [True, False])
def test_examples(packed: bool) -> None:
    floats = np.array([0.5, -1e30, np.inf], "<f4")
    if packed:
        integers = field(1, b"".join(map(varint, NUMBERS)))
        reals = field(1, floats.tobytes())
    else:
        integers = b"".join(field(1, number & (1 << 64) - 1) for number in NUMBERS)
        reals = b"".join(varint(1 << 3 | 5) + value.tobytes() for value in floats)
    sample = example(
        i=field(3, integers),
        f=field(2, reals),
        b=field(1, field(1, b"one") + field(1, b"")),
        none=b"",
        empty=field(3, b""),
        packed_empty=field(3, field(1, b"")),
    )
    batch = batch_of(sample)
    (got,) = tfrecord.Decoder()(batch)
    assert got["i"].tolist() == NUMBERS and got["i"].dtype == np.int64
    assert got["f"].dtype == np.float32 and np.array_equal(got["f"], floats)
    assert got["b"] == [b"one", b""] and got["none"] == []
    assert len(got["empty"]) == len(got["packed_empty"]) == 0
    assert np.shares_memory(got["f"], batch.data) == packed


def test_only_wanted_features() -> None:
    sample = example(a=field(3, field(1, 7)), b=field(1, field(1, b"x")))
    (got,) = tfrecord.Decoder(["a"])(batch_of(sample))
    assert list(got) == ["a"] and got["a"].tolist() == [7]
    with pytest.raises(feedrail.FormatError, match="no feature 'c'"):
        tfrecord.Decoder(["a", "c"])(batch_of(sample))


def test_unknown_fields_are_passed_over() -> None:
    more = field(9, b"later") + varint(10 << 3 | 1) + bytes(8) + field(11, 5)
    sample = more + example(a=more + field(3, more + field(1, 7))) + more
    assert tfrecord.Decoder()(batch_of(sample))[0]["a"].tolist() == [7]
    # A later list of another kind takes the place of the first.
    twice = example(a=field(1, field(1, b"x")) + field(3, field(1, 1)) + field(3, field(1, 2)))
    assert tfrecord.Decoder()(batch_of(twice))[0]["a"].tolist() == [1, 2]


GOOD = example(a=field(3, field(1, b"\x01\x02")), b=field(1, field(1, b"x" * 20)))


@pytest.mark.parametrize("cut", range(1, len(GOOD)))
def test_examples_that_are_cut(cut: int) -> None:
    with pytest.raises(feedrail.FormatError) as raised:
        tfrecord.Decoder(["a", "b"])(batch_of(GOOD[:cut], shard=2))
    assert raised.value.shard == 2 and 0 <= (raised.value.offset or 0) <= cut


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (b"\x00", "number 0"),
        (b"\x0b", "wire type 3"),
        (b"\x80" * 11, "more than 10 bytes"),
        (field(1, 5), "a number, where"),
        (example(a=field(3, field(1, b"\x80"))), "integers is cut off"),
        (example(a=field(3, field(1, b"\x80" * 10 + b"\x01"))), "more than 10 bytes"),
        (example(a=field(2, field(1, b"123"))), "not 4 bytes each"),
        (example(a=field(2, field(1, 7))), "not 4 bytes each"),
        (field(1, field(1, field(1, b"\xff") + field(2, b""))), "UTF-8"),
    ],
)
def test_damaged_examples(sample: bytes, said: str) -> None:
    with pytest.raises(feedrail.FormatError, match=said) as raised:
        tfrecord.Decoder()(batch_of(example(), sample, shard=4))
    assert (raised.value.sample, raised.value.shard) == (71, 4)
    assert 1000 <= (raised.value.offset or 0) <= 1000 + len(sample)


def test_noise_is_an_error_or_a_sample() -> None:
    random = np.random.default_rng(11)
    for _ in range(3000):
        sample = bytearray(GOOD)
        for _ in range(random.integers(1, 4)):
            sample[random.integers(len(sample))] = random.integers(256)
        try:
            tfrecord.Decoder()(batch_of(bytes(sample)))
        except feedrail.FormatError as error:
            assert error.sample == 70


def test_frames_are_checked() -> None:
    good = (FIXTURES / "records.tfrecord").read_bytes()
    assert len(list(tfrecord.records(good))) == 4
    second = 16 + int.from_bytes(good[:8], "little")
    for at, said, offset in [(0, "of the length", 0), (9, "of the length", 0), (12, "of the data", 12),
                             (second - 1, "of the data", 12), (second + 3, "of the length", second)]:
        damaged = bytearray(good)
        damaged[at] ^= 1
        with pytest.raises(feedrail.FormatError, match=said) as raised:
            list(tfrecord.records(damaged))
        assert raised.value.offset == offset
        if said == "of the data":
            assert len(list(tfrecord.records(damaged, verify=False))) == 4
    for cut in (5, 11, second - 1, second + 1, len(good) - 1):
        with pytest.raises(feedrail.FormatError):
            list(tfrecord.records(good[:cut]))
    assert list(tfrecord.records(b"")) == []


# WebDataset


@pytest.mark.parametrize("name", ["webdataset.tar", "gnu.tar", "pax.tar", "ustar.tar"])
def test_samples_of_tars(serve: Serve, name: str) -> None:
    source = feedrail.open(serve(FIXTURES / name).url)
    batch = whole_file(source)
    decoded = webdataset.Decoder({"json": bytes, "cls": bytes, "txt": bytes})(batch)
    expected = json.loads((FIXTURES / f"{name}.json").read_text())
    assert len(decoded) == len(expected) > 1
    for got, sample in zip(decoded, expected, strict=True):
        assert got.pop("__key__") == sample["key"]
        wanted = {member: bytes.fromhex(data) for member, data in sample["members"]}
        assert {member: bytes(value) for member, value in got.items()} == wanted


def piece(**members: bytes) -> bytes:
    """A tar archive less its end mark."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name.replace("__", "."))
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        end = tar.offset
    return out.getvalue()[:end]


def array_bytes(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def test_extensions_tell_what_members_are() -> None:
    arrays = [np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.array(7)]
    batch = batch_of(
        piece(
            a__cls=b"12",
            a__txt="é".encode(),
            a__json=b'{"x": 1}',
            a__seg__npy=array_bytes(arrays[0]),
            a__f__npy=array_bytes(arrays[1]),
            a__s__npy=array_bytes(arrays[2]),
            a__jpg=b"\xff\xd8",
            a__pyd=pickle.dumps(1),
        )
    )
    (got,) = webdataset.Decoder({"jpg": len})(batch)
    assert (got["__key__"], got["cls"], got["txt"], got["json"]) == ("a", 12, "é", {"x": 1})
    for name, array in zip(("seg.npy", "f.npy", "s.npy"), arrays, strict=True):
        assert np.array_equal(got[name], array) and np.shares_memory(got[name], batch.data)
    assert got["jpg"] == 2 and got["pyd"] == pickle.dumps(1)


@pytest.mark.parametrize(
    ("sample", "said", "at"),
    [
        (piece(a__cls=b"x"), "member 'cls': invalid literal", 512),
        (piece(a__npy=array_bytes(np.array([None]))), "Python objects", 512),
        (piece(a__json=b"{"), "member 'json'", 512),
        (piece(a__x=b"1", b__x=b"2"), "several", 0),
        (piece(a__x=b"12345")[:-1], "blocks of tar", 512),
        (piece(a__x=b"1")[:300], "a tar header", 0),
        (bytes(1024), "one sample", 0),
        (b"", "one sample", 0),
        (b"x" * 512, "checksum", 0),
    ],
)
def test_damaged_pieces(sample: bytes, said: str, at: int) -> None:
    with pytest.raises(feedrail.FormatError, match=said) as raised:
        webdataset.Decoder()(batch_of(piece(ok__txt=b"fine"), sample, shard=1))
    error = raised.value
    assert (error.sample, error.shard, error.offset) == (71, 1, 1000 + at)


# Arrays


@pytest.mark.parametrize("name", ["rows.npy", "rows-2.npy"])
def test_rows_of_arrays(serve: Serve, name: str) -> None:
    source = feedrail.open(serve(FIXTURES / name).url)
    index = build(source)
    batch = RawBatch.read(source, index, np.arange(len(index))[::-1])
    array, got = np.load(FIXTURES / name), npy.Decoder.of(source)(batch)
    assert got.dtype == array.dtype and np.array_equal(got, array[::-1])
    assert np.shares_memory(got, batch.data)


def test_what_is_no_row(serve: Serve, tmp_path: Path) -> None:
    decoder = npy.Decoder("<u2", (3,))
    assert decoder(batch_of(b"abcdef", b"123456")).shape == (2, 3)
    assert decoder(batch_of()).shape == (0, 3)
    with pytest.raises(feedrail.FormatError, match="5 bytes, for a row") as raised:
        decoder(batch_of(b"abcdef", b"12345", shard=6))
    assert (raised.value.sample, raised.value.shard, raised.value.offset) == (71, 6, 1000)
    np.save(tmp_path / "objects.npy", np.array([None]))
    (tmp_path / "text.npy").write_bytes(b"no array at all")
    source = feedrail.open(serve(tmp_path / "objects.npy", tmp_path / "text.npy").url)
    for shard in ("objects.npy", "text.npy"):
        with pytest.raises(feedrail.FormatError):
            npy.Decoder.of(source, shard)


def test_sequences_of_megatron(serve: Serve) -> None:
    source = feedrail.open(serve(FIXTURES / "megatron.bin", FIXTURES / "megatron.idx").url)
    found = MegatronIndex.read(source, "megatron.idx")
    index = found.index(source.shards.number("megatron.bin"))
    batch = RawBatch.read(source, index, np.arange(len(index)))
    got = found.decoder()(batch)
    expected = json.loads((FIXTURES / "megatron.bin.json").read_text())
    assert [sequence.tobytes().hex() for sequence in got] == [sample["data"] for sample in expected]
    assert got[0].dtype == np.uint16 and np.shares_memory(got[1], batch.data)
    with pytest.raises(feedrail.FormatError, match="no whole number"):
        found.decoder()(batch_of(b"123"))
