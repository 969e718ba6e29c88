"""Loads a model's weights from a target: one read, straight into tensors.

    python load_safetensors.py nvmf://192.0.2.10/nqn.2026-01.org.example:models/model.safetensors

`192.0.2.10` stands for the address of your target.
"""

import sys

from feedrail.formats.safetensors import load_file

for name, tensor in load_file(sys.argv[1]).items():
    print(name, tuple(tensor.shape), tensor.dtype)
