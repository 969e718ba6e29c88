"""Loads a model's weights from a target, straight into tensors, each as it arrives.

    python load_safetensors.py nvmf://192.0.2.10/nqn.2026-01.org.example:models/model.safetensors

`192.0.2.10` stands for the address of your target.
"""

import sys

from feedrail.formats.safetensors import stream

for name, tensor in stream(sys.argv[1]):
    print(name, tuple(tensor.shape), tensor.dtype)
