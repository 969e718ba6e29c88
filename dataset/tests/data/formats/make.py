#!/usr/bin/env python3
"""Makes the files of this folder by the libraries that own the formats.

    make.py basic      numpy 2.4, webdataset 1.0.2, tfrecord 1.14, safetensors 0.8, pyarrow 26
    make.py mds        mosaicml-streaming 0.13 (numpy below 2.2)
    make.py megatron   megatron-core 0.16 and torch

Beside each file NAME is NAME.json: the samples as the library reads them. A sample has `key`, or
null; `data`, the hexadecimal digits of its bytes, or null; and `members`, each with its name and
its bytes. For Parquet a member has an offset and a length in place of the bytes.
"""

import io
import json
import pathlib
import sys
import tarfile

HERE = pathlib.Path(__file__).parent


def expect(name, samples):
    text = ",\n".join(json.dumps(sample) for sample in samples)
    (HERE / f"{name}.json").write_text(f"[\n{text}\n]\n")


def sample(data=None, key=None, members=()):
    data = None if data is None else bytes(data).hex()
    return {"key": key, "data": data, "members": list(members)}


def tokens(name, array, dtype):
    """Blocks of 16 tokens and the next one, which begin every 16 tokens."""
    rows = [array[at : at + 17].astype(dtype) for at in range(0, len(array) - 16, 16)]
    expect(name, [sample(row.tobytes()) for row in rows])


def make_tokens():
    import numpy as np

    array = np.arange(0, 301 * 7, 7)
    array.astype(np.uint16).tofile(HERE / "nanogpt.bin")
    tokens("nanogpt.bin", array, np.uint16)
    # As write_datafile of llm.c does (dev/data/data_common.py).
    for name, magic, version, dtype in [
        ("llmc-gpt2.bin", 20240520, 1, np.uint16),
        ("llmc-llama3.bin", 20240801, 7, np.uint32),
    ]:
        header = np.zeros(256, np.int32)
        header[:3] = magic, version, len(array)
        (HERE / name).write_bytes(header.tobytes() + array.astype(dtype).tobytes())
        tokens(name, array, dtype)


def add(tar, name, data=b"", **attributes):
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for attribute, value in attributes.items():
        setattr(member, attribute, value)
    tar.addfile(member, io.BytesIO(data))


def make_tar(name, format, long):
    with tarfile.open(HERE / name, "w", format=format) as tar:
        add(tar, "__meta__", b"no sample")
        add(tar, "__meta__/a.json", b"no sample")
        add(tar, "folder", type=tarfile.DIRTYPE)
        add(tar, "folder/a.jpg", b"a")
        add(tar, "folder/a.CLS", b"12")
        add(tar, "folder/a.seg.png", b"x" * 513)
        add(tar, "link.jpg", type=tarfile.SYMTYPE, linkname="folder/a.jpg")
        add(tar, "folder.d/a.jpg", b"")
        add(tar, "README", b"no sample")
        add(tar, "folder.d/.hidden", b"no sample")
        add(tar, "hidden/.a.txt", b"a sample of the folder's name")
        if long:
            add(tar, "long/" + "l" * 150 + ".txt", b"long")
            add(tar, "long/" + "l" * 150 + ".json", b"{}", linkname="")
        add(tar, "folder/a.jpg", b"the key of the first comes back")


def cut_padding(path):
    """Leaves two of the blocks of zeros that fill an archive up to 10 KiB."""
    archive = path.read_bytes().rstrip(b"\0")
    blocks = -(-len(archive) // 512) + 2
    path.write_bytes(archive.ljust(blocks * 512, b"\0"))


def make_webdataset():
    import webdataset

    with webdataset.TarWriter(str(HERE / "webdataset.tar")) as writer:
        for number in range(3):
            writer.write({"__key__": f"sample{number}", "txt": f"text {number}", "cls": number})
    make_tar("gnu.tar", tarfile.GNU_FORMAT, True)
    make_tar("pax.tar", tarfile.PAX_FORMAT, True)
    make_tar("ustar.tar", tarfile.USTAR_FORMAT, False)
    for name in ["webdataset.tar", "gnu.tar", "pax.tar", "ustar.tar"]:
        cut_padding(HERE / name)
        samples = []
        path = str(HERE / name)
        for found in webdataset.WebDataset(path, shardshuffle=False, empty_check=False):
            parts = [(part, data) for part, data in found.items() if not part.startswith("__")]
            members = [[part, data.hex()] for part, data in parts]
            samples.append(sample(key=found["__key__"], members=members))
        expect(name, samples)


def make_tfrecord():
    import tfrecord

    path = str(HERE / "records.tfrecord")
    writer = tfrecord.TFRecordWriter(path)
    for number in range(4):
        writer.write({"number": (number, "int"), "bytes": (b"b" * 100 * number, "byte")})
    writer.close()
    records = tfrecord.reader.tfrecord_iterator(path)
    expect("records.tfrecord", [sample(record) for record in records])


def make_safetensors():
    import numpy as np
    from safetensors.numpy import safe_open, save_file

    tensors = {
        "weight": np.arange(12, dtype=np.float32).reshape(3, 4),
        "bias": np.arange(5, dtype=np.float64),
        "scalar": np.array(7, dtype=np.int8),
        "empty": np.zeros((0, 4), dtype=np.float16),
    }
    path = HERE / "model.safetensors"
    save_file(tensors, path, metadata={"format": "np"})
    with safe_open(path, "np") as file:
        samples = [sample(file.get_tensor(name).tobytes(), name) for name in file.offset_keys()]
    expect("model.safetensors", samples)


def make_numpy():
    import numpy as np

    rows = np.arange(24, dtype=">i2").reshape(4, 3, 2)
    np.save(HERE / "rows.npy", rows)
    with open(HERE / "rows-2.npy", "wb") as file:
        np.lib.format.write_array(file, rows, version=(2, 0))
    for name in ["rows.npy", "rows-2.npy"]:
        expect(name, [sample(row.tobytes()) for row in np.load(HERE / name)])
    x = np.arange(60, dtype=np.uint8).reshape(3, 20)
    np.savez(HERE / "arrays.npz", x=x, y=np.arange(3.0), text=np.array(["a", "bc"]))
    with np.load(HERE / "arrays.npz") as arrays:
        expect("arrays.npz", [sample(arrays[name].tobytes(), name) for name in arrays.files])
        expect("arrays.npz.x", [sample(row.tobytes()) for row in arrays["x"]])
    np.savez_compressed(HERE / "compressed.npz", x=x)


def make_parquet():
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({
        "number": list(range(100)),
        "word": ["a", "b"] * 50,
        "nested": [{"list": [number, None], "text": "x" * number} for number in range(100)],
    })
    path = HERE / "table.parquet"
    pyarrow.parquet.write_table(table, path, row_group_size=40, use_dictionary=["word"])
    groups = []
    metadata = pyarrow.parquet.read_metadata(path)
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        members = []
        for column in map(group.column, range(group.num_columns)):
            begin = column.data_page_offset
            if column.has_dictionary_page:
                begin = column.dictionary_page_offset
            members.append([column.path_in_schema, begin, column.total_compressed_size])
        groups.append(sample(members=members))
    expect("table.parquet", groups)


def make_basic():
    make_tokens()
    make_webdataset()
    make_tfrecord()
    make_safetensors()
    make_numpy()
    make_parquet()


def make_mds():
    import importlib.util
    import shutil
    import types
    from unittest import mock

    # Writer and reader do not use torch, which streaming itself imports.
    for name in ["torch", "torch.distributed", "torch.utils", "torch.utils.data"]:
        sys.modules[name] = mock.MagicMock()
    for name in ["streaming", "streaming.base", "streaming.base.storage"]:
        package = types.ModuleType(name)
        root = pathlib.Path(importlib.util.find_spec("numpy").origin).parent.parent
        package.__path__ = [str(root / name.replace(".", "/"))]
        sys.modules[name] = package
    from streaming.base.format.mds import MDSReader, MDSWriter

    columns = {"id": "int", "image": "bytes", "text": "str"}
    for folder, compression in [("mds", None), ("mds-zstd", "zstd")]:
        shutil.rmtree(HERE / folder, ignore_errors=True)
        with MDSWriter(out=str(HERE / folder), columns=columns, size_limit=800,
                       compression=compression) as writer:
            for number in range(10):
                image = bytes([number]) * 10 * number
                writer.write({"id": number, "image": image, "text": f"text {number}"})
    index = json.loads((HERE / "mds" / "index.json").read_text())
    for shard in index["shards"]:
        reader = MDSReader.from_json(str(HERE / "mds"), None, shard)
        samples = [sample(reader.get_sample_data(number)) for number in range(shard["samples"])]
        expect("mds/" + shard["raw_data"]["basename"], samples)


def make_megatron():
    import numpy as np
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

    for name, dtype, multimodal in [("megatron", np.uint16, False), ("modes", np.int32, True)]:
        builder = IndexedDatasetBuilder(str(HERE / f"{name}.bin"), dtype, multimodal)
        for document in range(3):
            lengths = [document + 1, 5]
            items = torch.arange(sum(lengths)) + 100 * document
            modes = [0, 1] if multimodal else None
            builder.add_document(items, lengths, modes)
        builder.finalize(str(HERE / f"{name}.idx"))
        dataset = IndexedDataset(str(HERE / name), multimodal)
        rows = [dataset[number] for number in range(len(dataset))]
        rows = [row[0] if multimodal else row for row in rows]
        expect(f"{name}.bin", [sample(row.tobytes()) for row in rows])
        (HERE / f"{name}.documents.json").write_text(
            json.dumps([int(boundary) for boundary in dataset.document_indices]) + "\n")


{"basic": make_basic, "mds": make_mds, "megatron": make_megatron}[sys.argv[1]]()
