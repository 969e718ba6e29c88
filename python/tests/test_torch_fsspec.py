"""Libraries of torch that write checkpoints through fsspec."""

from __future__ import annotations

import json

import fsspec_jobs
import pytest
from test_fsspec_files import Volume, fs, names, volume

from feedrail.fsspec import NvmfFileSystem

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.checkpoint.fsspec_filesystem")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]

__all__ = ["fs", "volume"]


@pytest.mark.parametrize(("saved_by", "loaded_by"), [(1, 2), (2, 1), (2, 2)])
def test_distributed_checkpoints(
    volume: Volume, fs: NvmfFileSystem, saved_by: int, loaded_by: int
) -> None:
    path = volume.of("step-3")
    fsspec_jobs.run_ranks(saved_by, "save", path)
    files = [f"step-3/__{rank}_0.distcp" for rank in range(saved_by)]
    assert names(fs, volume) == ["step-3/.metadata", *files]
    fsspec_jobs.run_ranks(loaded_by, "load", path)


def test_a_path_is_enough(
    volume: Volume, fs: NvmfFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.distributed.checkpoint as dcp

    # The writer calls it where a file has no descriptor.
    monkeypatch.setattr("os.sync", lambda: None)
    state, again = {"weight": torch.randn(30, 20)}, {"weight": torch.zeros(30, 20)}
    dcp.save(state, checkpoint_id=volume.of("step-3"))
    dcp.load(again, checkpoint_id=volume.of("step-3"))
    assert torch.equal(again["weight"], state["weight"])
    assert names(fs, volume) == ["step-3/.metadata", "step-3/__0_0.distcp"]


def test_torch_save(volume: Volume, fs: NvmfFileSystem) -> None:
    model, again = torch.nn.Linear(700, 300), torch.nn.Linear(700, 300)
    with fs.open(volume.of("step-1/model.pt"), "wb") as file:
        torch.save(model.state_dict(), file)
    with fs.open(volume.of("step-1/model.pt")) as file:
        again.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(again.weight, model.weight) and torch.equal(again.bias, model.bias)


def test_safetensors(volume: Volume, fs: NvmfFileSystem) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = {"a": torch.randn(300, 700), "b": torch.arange(9).to(torch.bfloat16)}
    with fs.open(volume.of("step-1/model.safetensors"), "wb") as file:
        file.write(safetensors.save(tensors))
    loaded = safetensors.load(fs.cat_file(volume.of("step-1/model.safetensors")))
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_a_volume_of_files_is_one_of_checkpoints(volume: Volume, fs: NvmfFileSystem) -> None:
    """What `feedrail.torch` saves are files, and files are entries."""
    import torch.distributed.checkpoint as dcp

    import feedrail
    import feedrail.torch as ft

    state = {"weight": torch.randn(30, 20)}
    dcp.save(state, checkpoint_id="step-7", storage_writer=ft.CheckpointWriter(volume.path))
    assert "step-7/rank0/tensors" in names(fs, volume)
    with fs.open(volume.of("step-7/config.json"), "w") as file:
        json.dump({"lr": 0.1}, file)
    with feedrail.CheckpointStore(volume.path, mode="r") as store:
        assert json.loads(bytes(store["step-7"].read("config.json"))) == {"lr": 0.1}
    again = {"weight": torch.zeros(30, 20)}
    dcp.load(again, checkpoint_id="step-7", storage_reader=ft.CheckpointReader(volume.path))
    assert torch.equal(again["weight"], state["weight"])
