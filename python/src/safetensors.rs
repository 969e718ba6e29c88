//! Headers of safetensors files, for `feedrail.formats.safetensors`.

use feedrail_dataset::formats::{SafetensorsHeader, ShardBytes};
use pyo3::prelude::*;

use crate::index::{BuildError, PythonReads};

/// Name, type as the format names it, shape, first byte and length in bytes of a tensor.
type TensorPlace = (String, String, Vec<usize>, u64, u64);

/// Returns the tensors of a file, whose header is read by a function of offset and length.
#[pyfunction]
pub(crate) fn safetensors_tensors(
    py: Python<'_>,
    shard: u32,
    length: u64,
    read: Py<PyAny>,
) -> PyResult<Vec<TensorPlace>> {
    let find = move || {
        let bytes = PythonReads::new(length, read);
        let header = SafetensorsHeader::open(ShardBytes::new(shard, &bytes))?;
        let tensors = header.tensors().map(|tensor| {
            let tensor = tensor?;
            let (offset, length) = (tensor.range.offset(), tensor.range.length());
            Ok((tensor.name, tensor.dtype, tensor.shape, offset, length))
        });
        tensors.collect::<Result<Vec<_>, BuildError>>()
    };
    py.detach(find).map_err(|error: BuildError| error.into_exception(py))
}
