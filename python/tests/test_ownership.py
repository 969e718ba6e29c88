"""Whose memory is read into, and until when."""

from __future__ import annotations

import ctypes
import gc
import weakref

import numpy as np
import pytest

import feedrail
from feedrail import _core


class Dlpack:
    """An array that exports its memory by DLPack alone, as torch's tensors do."""

    def __init__(self, array: np.ndarray, *, versioned: bool = True) -> None:
        self.array, self.versioned = array, versioned

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **arguments: object) -> object:
        if not self.versioned and arguments:
            raise TypeError("an exporter of version 0 has no such argument")
        return self.array.__dlpack__(**arguments)


class OnDevice:
    """A tensor in memory of a GPU."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **_: object) -> object:
        raise AssertionError("the device is asked first")


def freed(reference: weakref.ref[object]) -> bool:
    gc.collect()
    _core.release_forgotten()
    return reference() is None


@pytest.mark.parametrize("dtype", ["u1", "<u2", "<f4", ">i8", "?", "c16"])
@pytest.mark.parametrize("shape", [(64,), (4, 4, 4), (1, 64, 1)])
def test_arrays_of_any_shape_are_read_into(
    source: feedrail.Source, content: np.ndarray, dtype: str, shape: tuple[int, ...]
) -> None:
    array = np.zeros(shape, dtype)
    source.read_many(feedrail.make_plan([777], [array.nbytes]), array)
    assert array.tobytes() == content[777 : 777 + array.nbytes].tobytes()


@pytest.mark.parametrize("versioned", [True, False])
def test_tensors_are_read_into(
    source: feedrail.Source, content: np.ndarray, *, versioned: bool
) -> None:
    array = np.zeros((5, 1, 7), np.float32)
    source.read_many(feedrail.make_plan([9], [140]), Dlpack(array, versioned=versioned))
    assert array.tobytes() == content[9:149].tobytes()


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"bytes", "read-only"),
        (np.zeros((4, 4))[:, ::2], "C-contiguous"),
        (np.zeros((4, 4), order="F"), "C-contiguous"),
        (Dlpack(np.zeros((4, 4))[::2, :2]), "C-contiguous"),
        (Dlpack(np.zeros((4, 4)).T), "C-contiguous"),
        (OnDevice(), "memory of the host only"),
        (np.zeros(4, "M8[s]"), "view"),
    ],
)
def test_memory_that_cannot_be_read_into(
    source: feedrail.Source, bad: object, said: str
) -> None:
    with pytest.raises(BufferError, match=said):
        source.register(bad)


class Packed(ctypes.Structure):
    """Its format does not name its fields."""

    _pack_ = 1
    _fields_ = (("number", ctypes.c_int), ("object", ctypes.py_object))


class Either(ctypes.Union):
    """Its format is that of a byte."""

    _fields_ = (("number", ctypes.c_int), ("object", ctypes.py_object))


class Derived(Either):
    """A union whose members are those of its base."""


WITH_OBJECT = np.dtype([("object", "O"), ("number", "<i4")])
NO_NUMBERS = [
    np.full(512, "text", dtype=object),
    np.zeros(4, WITH_OBJECT),
    np.zeros(4, [("inner", WITH_OBJECT, (2,))]),
    np.zeros(4, WITH_OBJECT)[["number"]],
    np.zeros(4, "U3"),
    (ctypes.py_object * 4)(),
    (ctypes.py_object * 2 * 2)(),
    (ctypes.c_char_p * 4)(),
    (ctypes.c_void_p * 4)(),
    (ctypes.POINTER(ctypes.c_int) * 4)(),
    (ctypes.CFUNCTYPE(None) * 4)(),
    (Packed * 4)(),
    (Either * 4)(),
    (Derived * 4)(),
]


@pytest.mark.parametrize("bad", NO_NUMBERS, ids=lambda bad: memoryview(bad).format)
def test_objects_are_neither_read_into_nor_read(source: feedrail.Source, bad: object) -> None:
    view = memoryview(bad)
    before = bytes(view)
    for use in (
        source.register,
        lambda out: source.read_many(feedrail.make_plan([0], [8]), out),
        lambda out: source.rows(0, [0], 8, out=out),
        _core.crc32c,
    ):
        with pytest.raises(BufferError, match="not plain numbers"):
            use(view)
        # ctypes exports its arrays without strides, which is refused before.
        with pytest.raises(BufferError, match="not plain numbers|strides is null"):
            use(bad)
    assert bytes(view) == before


def test_structures_of_numbers_are_read_into(
    source: feedrail.Source, content: np.ndarray
) -> None:
    # Names and strings may have letters that are codes.
    array = np.zeros(4, [("O", "<i4"), ("P", "S3"), ("inner", [("x", "c16")], (2,))])
    source.read_many(feedrail.make_plan([5], [array.nbytes]), array)
    assert array.tobytes() == content[5 : 5 + array.nbytes].tobytes()


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        (40, (2**64 - 8).to_bytes(8, "little"), "wraps around"),
        (0, (2**64 - 8).to_bytes(8, "little"), "wraps around"),
        (20, b"\x03", "not plain numbers"),
        (20, b"\xff", "not plain numbers"),
        (24, bytes(8), "without a shape"),
    ],
)
def test_tensors_that_describe_no_memory(
    source: feedrail.Source, at: int, value: bytes, said: str
) -> None:
    array = np.zeros(64, np.uint8)
    capsule = array.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # Offsets are those of `DLTensor`: data, device, dimensions, type, shape, strides, offset.
    field = (ctypes.c_char * len(value)).from_address(pointer(capsule, b"dltensor") + at)
    field.raw = value
    with pytest.raises(BufferError, match=said):
        source.register(Lies(capsule))
    assert not array.any()


def test_a_read_only_tensor_is_refused(source: feedrail.Source) -> None:
    array = np.zeros(4)
    array.flags.writeable = False
    with pytest.raises(BufferError):
        source.register(Dlpack(array))


@pytest.mark.parametrize("bad", [None, 5, "text", object()])
def test_what_has_no_memory_is_a_type_error(source: feedrail.Source, bad: object) -> None:
    with pytest.raises(TypeError, match="array or a tensor"):
        source.register(bad)


def test_the_exporter_lives_as_long_as_the_buffer(source: feedrail.Source) -> None:
    array = np.zeros(100, np.uint8)
    reference = weakref.ref(array)
    buffer = source.register(array)
    del array
    assert not freed(reference)
    source.read_many(feedrail.make_plan([0], [100]), buffer)
    view = buffer.as_numpy()
    del buffer
    assert not freed(reference)
    del view
    assert freed(reference)


def test_a_capsule_is_given_back(source: feedrail.Source) -> None:
    array = np.zeros(100, np.uint8)
    reference = weakref.ref(array)
    buffer = source.register(Dlpack(array))
    del array
    assert not freed(reference)
    del buffer
    assert freed(reference)


def test_a_bytearray_cannot_be_resized_while_registered(source: feedrail.Source) -> None:
    data = bytearray(10)
    buffer = source.register(data)
    with pytest.raises(BufferError):
        data.append(1)
    del buffer
    _core.release_forgotten()
    data.append(1)


def test_raw_pointers(source: feedrail.Source, content: np.ndarray) -> None:
    memory = ctypes.create_string_buffer(64)
    reference = weakref.ref(memory)
    buffer = source.register_ptr(ctypes.addressof(memory), 64, owner=memory)
    source.read_many(feedrail.make_plan([100], [64]), buffer)
    assert memory.raw == content[100:164].tobytes()
    del memory
    assert not freed(reference)
    del buffer
    assert freed(reference)


@pytest.mark.parametrize(("address", "length"), [(0, 10), (2**64 - 5, 10)])
def test_pointers_that_point_nowhere(
    source: feedrail.Source, address: int, length: int
) -> None:
    with pytest.raises(ValueError, match="address"):
        source.register_ptr(address, length, owner=None)


def test_other_devices_are_refused(source: feedrail.Source) -> None:
    for refused in (
        lambda: source.pool(10, device="cuda"),
        lambda: source.pool(10, pin=True),
        lambda: source.register_ptr(4096, 10, owner=None, device="cuda:0"),
    ):
        with pytest.raises(ValueError, match=r"cuda|CUDA"):
            refused()


def test_buffers_export_their_memory(source: feedrail.Source, content: np.ndarray) -> None:
    buffer = source.rows(0, [1], 1000)
    assert (buffer.nbytes, len(buffer), buffer.device, buffer.path) == (1000, 1000, "cpu", "host")
    assert buffer.__dlpack_device__() == (1, 0)
    wanted = content[1:1001]
    for view in (
        np.from_dlpack(buffer),
        np.frombuffer(buffer, np.uint8),
        np.asarray(memoryview(buffer)),
        buffer.as_numpy(),
    ):
        assert np.array_equal(view, wanted)
        assert view.__array_interface__["data"][0] == buffer.address
    assert buffer.as_numpy("<u2", (10, 50)).tobytes() == wanted.tobytes()
    assert buffer.as_numpy("<u2", 7).shape == (7,)
    assert buffer.as_numpy("<u8").shape == (125,)


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (2, 5)])
def test_capsules_that_nobody_takes_keep_nothing(
    source: feedrail.Source, version: tuple[int, int] | None
) -> None:
    buffer = source.rows(0, [1], 10)
    reference = weakref.ref(buffer)
    capsule = buffer.__dlpack__(max_version=version)
    name = "dltensor_versioned" if version and version[0] >= 1 else "dltensor"
    assert name in repr(capsule)
    del buffer
    assert reference() is not None
    del capsule
    assert reference() is None


@pytest.mark.parametrize(
    "arguments", [{"stream": 1}, {"copy": True}, {"dl_device": (2, 0)}]
)
def test_dlpack_does_not_copy(source: feedrail.Source, arguments: dict[str, object]) -> None:
    with pytest.raises(BufferError):
        source.rows(0, [1], 10).__dlpack__(**arguments)


@pytest.mark.parametrize("shape", [101, (2, 51), (-1, 2), (2**40, 2**40)])
def test_views_that_do_not_fit(source: feedrail.Source, shape: object) -> None:
    with pytest.raises(ValueError, match="shape"):
        source.rows(0, [1], 100).as_numpy("u1", shape)


def test_pools_lend_what_came_back(source: feedrail.Source, content: np.ndarray) -> None:
    pool = source.pool(3 * 4096)
    first, second = pool.take(4096), pool.take(5000)
    assert pool.free == 0
    with pytest.raises(feedrail.PoolFull, match="0 of 12288 are free"):
        pool.take(1)
    view, address = first.as_numpy(), first.address
    del first
    with pytest.raises(BufferError):
        pool.take(1, timeout=0.01)
    del view
    third = pool.take(10)
    assert third.address == address
    tensor = np.from_dlpack(third)
    del third, second
    assert pool.free == 2 * 4096
    source.read_many(feedrail.make_plan([50], [5]), tensor)
    assert np.array_equal(tensor[:5], content[50:55])
    del tensor
    whole = pool.take(3 * 4096)
    assert whole.nbytes == pool.nbytes
    with pytest.raises(feedrail.PoolFull, match="of a pool of"):
        pool.take(3 * 4096 + 1)


def test_a_pool_outlives_its_handle(source: feedrail.Source, content: np.ndarray) -> None:
    buffer = source.pool(4096).take(100)
    source.read_many(feedrail.make_plan([3], [100]), buffer)
    assert bytes(buffer) == content[3:103].tobytes()


def test_pools_have_bounds(source: feedrail.Source) -> None:
    with pytest.raises((ValueError, OSError)):
        source.pool(2**63 - 1)
    with pytest.raises(OverflowError):
        source.pool(-1)
    with pytest.raises(ValueError, match="seconds"):
        source.pool(1).take(1, timeout=-1.0)


class Lies:
    """An object whose DLPack methods return what they are told to."""

    def __init__(self, capsule: object, device: object = (1, 0)) -> None:
        self.capsule, self.device = capsule, device

    def __dlpack_device__(self) -> object:
        return self.device

    def __dlpack__(self, **_: object) -> object:
        return self.capsule


@pytest.mark.parametrize(
    "liar", [Lies(None), Lies(5), Lies(object()), Lies(None, None), Lies(None, ("cpu", 0))]
)
def test_exporters_that_lie(source: feedrail.Source, liar: Lies) -> None:
    with pytest.raises((TypeError, BufferError)):
        source.register(liar)


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_capsule_is_used_once(
    source: feedrail.Source, version: tuple[int, int] | None
) -> None:
    array = np.zeros(10, np.uint8)
    capsule = array.__dlpack__(max_version=version)
    buffer = source.register(Lies(capsule))
    with pytest.raises(BufferError, match="used already"):
        source.register(Lies(capsule))
    source.read_many(feedrail.make_plan([0], [10]), buffer)
    assert array.any()


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_empty_arrays(source: feedrail.Source, shape: tuple[int, ...]) -> None:
    for empty in (np.zeros(shape), Dlpack(np.zeros(shape))):
        buffer = source.register(empty)
        assert buffer.nbytes == 0
        source.read_many(feedrail.make_plan([], []), buffer)
        assert buffer.as_numpy().shape == (0,)
        with pytest.raises(ValueError, match="buffer of 0"):
            source.read_many(feedrail.make_plan([0], [1]), buffer)
