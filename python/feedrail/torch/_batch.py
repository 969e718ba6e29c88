"""Batches of samples: one tensor, and where each sample begins in it."""

from __future__ import annotations

import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self

T = TypeVar("T")

#: Where `torch.utils.data.default_collate` is, which begins with the first sample of a batch.
_DEFAULT_COLLATE = "torch.utils.data._utils.collate"


class Batch:
    """Samples of a batch, one after the other in one tensor.

    `batch[i]` is a view of sample `i`; `len`, iteration and `pin_memory` work as for a list.

    Attributes:
        indices: Numbers of the samples in the data set, `int64`, shape `(samples,)`.
        data: Elements of all samples, shape `(elements,)`, of the dtype of the data set.
        offsets: Sample `i` is `data[offsets[i]:offsets[i + 1]]`; `int64`, shape `(samples + 1,)`.
        state: What resumes a `Loader` or a `StreamDataset` after this batch, if one of them made
            it: see their `load_state_dict`.
        plan: Where each sample lies, entries of `PLAN_DTYPE`, shape `(samples,)`; decoders name it
            in their errors.
    """

    def __init__(
        self,
        indices: torch.Tensor,
        data: torch.Tensor,
        offsets: torch.Tensor,
        state: dict[str, Any] | None = None,
        plan: NDArray[np.void] | None = None,
    ) -> None:
        self.indices, self.data, self.offsets = indices, data, offsets
        self.state, self.plan = state, plan

    @property
    def nbytes(self) -> int:
        """Bytes of all samples."""
        return self.data.nbytes

    @property
    def lengths(self) -> torch.Tensor:
        """Elements of each sample, `int64`, shape `(samples,)`."""
        return self.offsets.diff()

    def stacked(self) -> torch.Tensor:
        """The samples as rows of a view of `data`, shape `(samples, elements of a sample)`.

        Raises:
            ValueError: the samples do not have equal lengths.
        """
        lengths = self.lengths
        if len(lengths) == 0:
            return self.data.reshape(0, 0)
        first = int(lengths[0])
        if not bool((lengths == first).all()):
            raise ValueError("samples of different lengths have no rows: use batch[i]")
        return self.data.view(len(lengths), first)

    def pin_memory(self) -> Self:
        """A copy in pinned memory; `DataLoader(pin_memory=True)` calls it."""
        return self._with_data(self.data.pin_memory())

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """The batch with its data on a device; indices and offsets stay on the host."""
        return self._with_data(self.data.to(device, non_blocking=non_blocking))

    def prepare(self, into: torch.Tensor) -> None:
        """Does the work that views need, which threads of a `Loader` do ahead.

        Args:
            into: Memory for it, `RangeDataset.prepared_bytes` of `uint8`.
        """

    def _with_data(self, data: torch.Tensor) -> Self:
        return type(self)(self.indices, data, self.offsets, self.state, self.plan)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> torch.Tensor:
        if i == 0 and sys._getframe(1).f_globals.get("__name__") == _DEFAULT_COLLATE:
            # Else torch says that it cannot stack a Batch.
            raise TypeError("a Batch is whole: give DataLoader collate_fn=feedrail.torch.collate")
        if not -len(self) <= i < len(self):
            raise IndexError(f"sample {i} of a batch of {len(self)}")
        i %= len(self)
        return self.data[int(self.offsets[i]) : int(self.offsets[i + 1])]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.data.split_with_sizes(self.lengths.tolist()))

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<feedrail.torch.{kind}: {len(self)} samples, {self.nbytes} bytes>"


class TokenBatch(Batch):
    """Windows of tokens, with the inputs and targets of a language model.

    `data` has the tokens as they are stored, one more for each window than its block size.
    """

    @property
    def tokens(self) -> torch.Tensor:
        """The windows as stored, shape `(samples, block_size + 1)`."""
        return self.stacked()

    @property
    def x(self) -> torch.Tensor:
        """Inputs, `int64`, shape `(samples, block_size)`."""
        return self._windows[:, :-1]

    @property
    def y(self) -> torch.Tensor:
        """Targets, `int64`: the token after each of `x`, shape `(samples, block_size)`."""
        return self._windows[:, 1:]

    def prepare(self, into: torch.Tensor) -> None:
        """Casts the tokens."""
        tokens = self.tokens
        self._windows = into.view(torch.int64).view(tokens.shape).copy_(tokens)

    @cached_property
    def _windows(self) -> torch.Tensor:
        """The tokens as torch indexes with them. torch has few operations on `uint16`."""
        return self.tokens.to(torch.int64)

    def __getstate__(self) -> dict[str, Any]:
        """What another process gets: the tokens as stored, which are fewer bytes."""
        return {name: value for name, value in vars(self).items() if name != "_windows"}


def collate(batch: T) -> T:
    """For `DataLoader(collate_fn=...)`: the batch that the data set made, as it is.

    torch's default would stack samples, which copies them.
    """
    return batch
