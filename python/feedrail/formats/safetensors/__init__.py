"""Tensors of Hugging Face's safetensors files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedrail._checkpoints import Checkpoint
from feedrail._open import open as open_source
from feedrail._source import Source
from feedrail.formats.safetensors._entries import EntrySource
from feedrail.formats.safetensors._file import tensors_of
from feedrail.formats.safetensors._slice import Slices, Spec, shard_slices

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    import torch

    from feedrail._typing import Progress
    from feedrail.formats.safetensors._stream import TensorStream

__all__ = ["Slices", "Spec", "load_file", "shard_slices", "stream"]


def load_file(
    source: str | os.PathLike[str] | Source | Checkpoint,
    device: str | torch.device = "cpu",
    *,
    shard: str | int | Sequence[str | int] = 0,
    progress: Progress | None = None,
) -> dict[str, torch.Tensor]:
    """All tensors of a file, by name, as `safetensors.torch.load_file` gives them.

    They are those of `stream`, and so are the arguments and errors.
    """
    with stream(source, device, shard=shard, progress=progress) as tensors:
        return dict(tensors)


def stream(
    source: str | os.PathLike[str] | Source | Checkpoint,
    device: str | torch.device = "cpu",
    *,
    shard: str | int | Sequence[str | int] = 0,
    slices: Slices | None = None,
    names: Iterable[str] | None = None,
    buffer_bytes: int = 256 << 20,
    progress: Progress | None = None,
) -> TensorStream:
    """Names and tensors of a file, each once, in the order of the file, as their bytes arrive.

    The headers are read before this returns. Only the bytes of the slices are read. The memory of
    tensors that the consumer drops is used again. At most twice `buffer_bytes` of it are shared, and
    free when the last tensor in them is gone; what else the consumer keeps has its own.

    Args:
        source: A URL, a path, or a source that is open; one that this opens is closed at the end.
            Or a checkpoint, whose entries are the shards: their checksums are compared, so that
            whole units of them are read, and none ahead.
        device: Where the tensors go; anywhere but `"cpu"`, they are copied there as they arrive,
            to CUDA from pinned memory. For `"meta"` no tensor is read.
        shard: Name or number of the shard, or of several, whose tensors come one shard after the
            other. The name of a `*.safetensors.index.json` stands for the files that it lists.
        slices: Slices by name, or a function of name, dtype as the format names it (`"BF16"`) and
            shape: `None` for the whole tensor, `False` for none of it. Slices are as for indexing,
            with step 1: `slice(0, 8)`, `np.s_[..., :64]`. `shard_slices` makes those of a rank. F4
            is counted in values; an element of torch's has two.
        names: The tensors to read; all if `None`.
        buffer_bytes: Most bytes of the tensors that are begun and not handed out; one may always be.
            At most 48 MiB are in flight.
        progress: Called in the thread that waits for a tensor with the bytes that are done and
            those of all, each 100 ms and as tensors arrive; what it raises ends the stream.

    Raises:
        FormatError: a file is no safetensors file, tensors overlap or leave gaps, its header does
            not fit its size, or two files have a tensor of the same name; it is a `ValueError`.
        NotFound: there is no tensor of a name in `names` or `slices`, or no such shard. No tensor
            was read.
        ValueError: this torch has no type for a tensor, a step is not 1, or a slice of F4 does not
            begin and end at whole bytes. No tensor was read.
        IndexError: a slice has more dimensions than its tensor. No tensor was read.
        Damaged: bytes of a checkpoint do not have their checksum, on any replica.
    """
    # It imports torch.
    from feedrail.formats.safetensors._stream import TensorStream

    if isinstance(source, Checkpoint):
        opened: Source | EntrySource = EntrySource(source)
    else:
        opened = source if isinstance(source, Source) else open_source(source)
    tensors = tensors_of(opened, shard)
    return TensorStream(
        opened,
        tensors,
        device,
        slices=slices,
        names=names,
        buffer_bytes=buffer_bytes,
        progress=progress,
        is_owned=not isinstance(source, Source | Checkpoint),
    )
