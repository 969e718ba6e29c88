"""Types of elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


def torch_dtype(dtype: DTypeLike | torch.dtype | None) -> torch.dtype:
    """torch's name of a type; `uint8` for `None`.

    Raises:
        TypeError: torch has no such type, or the bytes are in another order than this machine's.
    """
    if dtype is None:
        return torch.uint8
    if isinstance(dtype, torch.dtype):
        return dtype
    kind = np.dtype(dtype)
    found = getattr(torch, kind.name, None)
    if not kind.isnative or not isinstance(found, torch.dtype):
        raise TypeError(f"torch has no tensors of {kind}")
    return found
