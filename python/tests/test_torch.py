"""Tensors of torch's, where it is installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import Serve

import feedrail

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32, torch.bfloat16])
def test_tensors_are_read_into(
    source: feedrail.Source, content: np.ndarray, dtype: torch.dtype
) -> None:
    tensor = torch.zeros((3, 1, 5), dtype=dtype)
    source.read_many(feedrail.make_plan([11], [tensor.nbytes]), tensor)
    got = tensor.reshape(-1).view(torch.uint8).numpy()
    assert np.array_equal(got, content[11 : 11 + tensor.nbytes])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bfloat16, torch.bool])
def test_tensors_are_written(serve: Serve, tmp_path: Path, dtype: torch.dtype) -> None:
    path = tmp_path / "scratch.img"
    path.write_bytes(bytes(1 << 16))
    source = feedrail.open(serve("--writable", path).url)
    tensor = torch.arange(6000).reshape(60, 100).to(dtype)
    assert source.pwrite(tensor, 777) == tensor.nbytes
    source.flush()
    assert path.read_bytes()[777:][: tensor.nbytes] == tensor.view(torch.uint8).numpy().tobytes()
    assert torch.equal(source.rows(0, [777], tensor.nbytes).as_tensor(dtype, (60, 100)), tensor)
    for refused in (tensor.T, tensor[:, ::2], tensor.float().requires_grad_()):
        with pytest.raises(BufferError):
            source.pwrite(refused, 0)


@pytest.mark.parametrize("make", [lambda t: t.T, lambda t: t[:, ::2], lambda t: t.requires_grad_()])
def test_tensors_that_cannot_be_read_into(source: feedrail.Source, make: object) -> None:
    with pytest.raises(BufferError):
        source.register(make(torch.zeros(4, 6)))


@pytest.mark.parametrize("dtype", ["u2", "uint8", torch.int16, np.float64])
def test_buffers_become_tensors(
    source: feedrail.Source, content: np.ndarray, dtype: object
) -> None:
    buffer = source.rows(0, [3], 1600)
    tensor = buffer.as_tensor(dtype, (10, 20))
    nbytes = tensor.nbytes
    assert tensor.shape == (10, 20) and tensor.data_ptr() == buffer.address
    assert np.array_equal(tensor.reshape(-1).view(torch.uint8).numpy(), content[3 : 3 + nbytes])
    flat = buffer.as_tensor(dtype)
    del buffer, tensor
    assert flat.nbytes == 1600
    with pytest.raises(ValueError, match="shape"):
        source.rows(0, [3], 10).as_tensor(torch.int64, 2)


class Rows(Dataset):
    """Rows of 1,000 bytes, a batch of them in one call."""

    def __init__(self, source: feedrail.Source) -> None:
        self.source = source

    def __len__(self) -> int:
        return 800

    def __getitems__(self, rows: list[int]) -> torch.Tensor:
        return self.source.rows(0, [row * 1000 for row in rows], 1000).as_tensor(
            torch.uint8, (len(rows), 1000)
        )


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("workers", [0, 2])
def test_data_loaders(
    source: feedrail.Source, content: np.ndarray, method: str, workers: int
) -> None:
    loader = DataLoader(
        Rows(source),
        batch_size=50,
        num_workers=workers,
        collate_fn=_as_it_is,
        multiprocessing_context=method if workers else None,
    )
    got = torch.cat(list(loader)).numpy()
    assert np.array_equal(got.reshape(-1), content[:800_000])


def _as_it_is(batch: torch.Tensor) -> torch.Tensor:
    return batch
