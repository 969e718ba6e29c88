"""Formats of training data: each module reads one.

| module | what |
|---|---|
| `mds` | samples of MosaicML's MDS as dictionaries |
| `tfrecord` | frames of TensorFlow's records, and `tf.train.Example` as dictionaries |
| `webdataset` | samples of WebDataset as dictionaries, and its loader over URLs |
| `npy` | rows of arrays, and sequences of Megatron |
| `safetensors` | tensors of a file as they arrive, or slices of them |

A decoder is called with the samples of a batch, in one buffer. Arrays are views of it, and bytes are
`bytes`, so that other processes can be sent them. It takes what `feedrail.torch.RangeDataset` reads, as its `transform`, or a
`RawBatch` where torch is not installed. Damaged bytes are a `FormatError` that says in which sample,
shard and offset.

Modules import the library that they need when they are used, and `feedrail` imports none of them.
"""

from feedrail.formats._batch import Decoded, RawBatch

__all__ = ["Decoded", "RawBatch"]
