"""Training frameworks, and pandas, that write files of a checkpoint volume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_fsspec_files import Volume, fs, names, volume

from feedrail.fsspec import NvmfFileSystem

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch

__all__ = ["fs", "volume"]


def make_module(lightning: Any) -> Any:
    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        """A model of one layer, which counts its steps."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.layer = torch.nn.Linear(40, 3)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    return Module()


@pytest.mark.filterwarnings("ignore")
def test_lightning(volume: Volume, fs: NvmfFileSystem, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.callbacks import ModelCheckpoint

    data = torch.utils.data.TensorDataset(torch.randn(32, 40))

    def trainer(epochs: int, *callbacks: Any) -> Any:
        return lightning.Trainer(
            accelerator="cpu",
            max_epochs=epochs,
            default_root_dir=tmp_path,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=bool(callbacks),
            callbacks=list(callbacks),
        )

    loader = torch.utils.data.DataLoader(data, batch_size=8)
    folder = volume.of("run-1/epochs")
    every_epoch = ModelCheckpoint(dirpath=folder, filename="{epoch}", save_top_k=2, monitor="step", mode="max", save_last=True)
    module = make_module(lightning)
    first = trainer(3, every_epoch)
    first.fit(module, loader)
    # Of the others, the callback has deleted one.
    assert names(fs, volume) == [f"run-1/epochs/{name}.ckpt" for name in ("epoch=1", "epoch=2", "last")]
    first.save_checkpoint(volume.of("run-1/end.ckpt"))

    for name in ("end.ckpt", "epochs/last.ckpt"):
        again = make_module(lightning)
        second = trainer(3)
        second.fit(again, loader, ckpt_path=volume.of(f"run-1/{name}"))
        assert second.global_step == first.global_step == 12
        assert torch.equal(again.layer.weight, module.layer.weight)
    longer = trainer(5)
    longer.fit(make_module(lightning), loader, ckpt_path=volume.of("run-1/end.ckpt"))
    assert longer.global_step == 20


@pytest.mark.filterwarnings("ignore")
def test_transformers(volume: Volume, fs: NvmfFileSystem, tmp_path: Path) -> None:
    """`save_pretrained` and `from_pretrained` know folders of this machine only."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    config = transformers.LlamaConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    model = transformers.LlamaForCausalLM(config)
    saved, loaded = tmp_path / "saved", tmp_path / "loaded"
    model.save_pretrained(saved)
    fs.put(str(saved), volume.of("step-1/model"), recursive=True)
    assert "step-1/model/model.safetensors" in names(fs, volume)
    fs.get(volume.of("step-1/model"), str(loaded), recursive=True)
    again = transformers.AutoModelForCausalLM.from_pretrained(loaded)
    tokens = torch.arange(20).reshape(2, 10)
    assert torch.equal(again(tokens).logits, model(tokens).logits)


def test_pandas_writes(volume: Volume) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": range(1000), "b": [f"{i}" for i in range(1000)]})
    frame.to_csv(volume.of("step-1/frame.csv"), index=False)
    frame.to_parquet(volume.of("step-1/frame.parquet"))
    assert pandas.read_csv(volume.of("step-1/frame.csv"), dtype={"b": str}).equals(frame)
    assert pandas.read_parquet(volume.of("step-1/frame.parquet")).equals(frame)
