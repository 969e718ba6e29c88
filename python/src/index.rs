//! Builders of indexes, for `feedrail.index.build`.

use std::fs::File;
use std::io;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use feedrail_dataset::Sample;
use feedrail_dataset::formats::{
    ChunkedReads, FormatError, FormatProblem, ReadAt, SampleOptions, ShardBytes, ShardFile,
    ShardFormat, ShardSource, TokenBlocks, detect,
};
use feedrail_dataset::index::SampleKeys;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use zerocopy::IntoBytes as _;

use crate::errors;
use crate::exported::ExportedBytes;

/// Number of samples that are passed to Python at a time.
const BATCH: usize = 16 << 10;

/// Source of the bytes of a shard: a path, or its length and a function of offset and length.
#[derive(FromPyObject)]
pub(crate) enum ShardAccess {
    Read(u64, Py<PyAny>),
    Path(PathBuf),
}

/// Options for finding samples: arguments of `feedrail.index.build`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct BuildOptions {
    format: Option<String>,
    dtype: Option<String>,
    block_size: u32,
    stride: Option<u64>,
    array: Option<String>,
    ignore_zeros: bool,
    crc: bool,
}

/// Keys and members of samples, from which `keys.npz` is made.
#[pyclass(frozen, name = "Keys", module = "feedrail._core")]
pub(crate) struct KeysObject(Mutex<SampleKeys>);

#[pymethods]
impl KeysObject {
    #[new]
    fn new() -> Self {
        Self(Mutex::default())
    }

    /// Returns the arrays of `keys.npz`: data type and bytes by name.
    fn arrays<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for array in self.keys().arrays() {
            all.set_item(array.name, (array.dtype, PyBytes::new(py, array.bytes)))?;
        }
        Ok(all)
    }
}

impl KeysObject {
    fn keys(&self) -> MutexGuard<'_, SampleKeys> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Finds the samples of a shard, and returns the name of its format. `sink` is called with the
/// bytes of many records of the index, and the number of bytes of the shard that are done.
#[pyfunction]
#[pyo3(signature = (number, name, data, idx, options, keys, sink))]
#[expect(
    clippy::too_many_arguments,
    reason = "a shard, how to read it, and what takes its samples"
)]
pub(crate) fn index_shard(
    py: Python<'_>,
    number: u32,
    name: &str,
    data: ShardAccess,
    idx: Option<ShardAccess>,
    options: BuildOptions,
    keys: Option<&Bound<'_, KeysObject>>,
    sink: Py<PyAny>,
) -> PyResult<&'static str> {
    let samples = options.samples()?;
    let format = options.format.as_deref().map(str::parse::<ShardFormat>).transpose();
    let format = format.map_err(|error| PyValueError::new_err(error.to_string()))?;
    let keys = keys.map(Bound::get);
    let build = move || {
        let data = data.open(samples.checksum)?;
        let idx = idx.map(|idx| idx.open(false)).transpose()?;
        let data = ShardBytes::new(number, &*data);
        let idx = idx.as_deref().map(|idx: &dyn ReadAt| ShardBytes::new(number, idx));
        let format = match (format, idx) {
            (Some(format), _) => format,
            // A Megatron data file cannot be detected by its first bytes; only this format has an
            // index file.
            (None, Some(_)) => ShardFormat::Megatron,
            (None, None) => detect(name, data)?,
        };
        let found = format.samples(ShardSource { data, idx }, &samples)?;
        let (mut batch, mut done) = (Vec::with_capacity(BATCH), 0);
        for sample in found {
            let sample = sample?;
            if let Some(keys) = keys {
                keys.keys().append(&sample);
            }
            done = done.max(sample.sample.offset.get() + u64::from(sample.sample.length.get()));
            batch.push(sample.sample);
            if batch.len() == BATCH {
                give(&sink, &batch, done)?;
                batch.clear();
            }
        }
        give(&sink, &batch, data.whole().end())?;
        Ok(format.name())
    };
    py.detach(build).map_err(|error: BuildError| error.into_exception(py))
}

fn give(sink: &Py<PyAny>, samples: &[Sample], done_bytes: u64) -> Result<(), BuildError> {
    Python::attach(|py| {
        py.check_signals()?;
        sink.call1(py, (PyBytes::new(py, samples.as_bytes()), done_bytes))?;
        Ok(())
    })
}

impl BuildOptions {
    fn samples(&self) -> PyResult<SampleOptions> {
        let block_size = NonZeroU32::new(self.block_size);
        let stride = self.stride.map(|stride| NonZeroU64::new(stride).ok_or("stride"));
        let zero = |name: &str| PyValueError::new_err(format!("{name} 0: it is 1 or more"));
        let adjacent = TokenBlocks::adjacent(block_size.ok_or_else(|| zero("block_size"))?);
        let stride = stride.transpose().map_err(zero)?.unwrap_or(adjacent.stride);
        let dtype = self.dtype.as_deref().map(str::parse).transpose();
        Ok(SampleOptions {
            blocks: TokenBlocks { stride, ..adjacent },
            dtype: dtype.map_err(|error| PyValueError::new_err(format!("dtype: {error}")))?,
            array: self.array.clone(),
            ignore_zeros: self.ignore_zeros,
            checksum: self.crc,
        })
    }
}

impl ShardAccess {
    /// Opens the shard for reads of parts, or, if `is_whole`, for reading all of it in order.
    fn open(self, is_whole: bool) -> Result<Box<dyn ReadAt>, BuildError> {
        Ok(match self {
            Self::Path(path) => {
                let about = |error| BuildError::Python(cannot_open(&path, error));
                let file = File::open(&path).and_then(ShardFile::new).map_err(about)?;
                Box::new(Interruptible(file))
            }
            Self::Read(length, read) if is_whole => {
                Box::new(ChunkedReads::new(PythonReads { length, read }))
            }
            Self::Read(length, read) => Box::new(PythonReads { length, read }),
        })
    }
}

/// Converts an error to the exception that Python's own `open` raises.
fn cannot_open(path: &std::path::Path, error: io::Error) -> PyErr {
    let message = error.to_string();
    match error.raw_os_error() {
        Some(errno) => PyOSError::new_err((errno, message, path.to_owned())),
        None => PyOSError::new_err(message),
    }
}

/// A reader that runs the handlers of signals before each read.
struct Interruptible<R>(R);

impl<R: ReadAt> ReadAt for Interruptible<R> {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        Python::attach(|py| py.check_signals()).map_err(io::Error::other)?;
        self.0.read_at(offset, into)
    }
}

/// A shard that is read by a Python function.
pub(crate) struct PythonReads {
    length: u64,
    read: Py<PyAny>,
}

impl PythonReads {
    /// Returns a shard of `length` bytes; `read` is called with an offset and a length.
    pub(crate) fn new(length: u64, read: Py<PyAny>) -> Self {
        Self { length, read }
    }
}

impl ReadAt for PythonReads {
    fn len(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let read = |py: Python<'_>| {
            let read = self.read.bind(py).call1((offset, into.len()))?;
            PyResult::Ok(ExportedBytes::of(&read)?.copy(0, into))
        };
        let copied = Python::attach(read).map_err(io::Error::other)?;
        copied.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// Error for a shard whose samples could not be found.
pub(crate) enum BuildError {
    Format(FormatError),
    Python(PyErr),
}

impl BuildError {
    /// Returns the exception that a read or the sink raised, or `FormatError` for a damaged shard.
    pub(crate) fn into_exception(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Python(error) => error,
            Self::Format(FormatError { problem: FormatProblem::Read(error), shard, offset }) => {
                match error.downcast::<PyErr>() {
                    Ok(raised) => raised,
                    Err(error) => {
                        let problem = FormatProblem::Read(error);
                        errors::format(py, &FormatError { problem, shard, offset })
                    }
                }
            }
            Self::Format(error) => errors::format(py, &error),
        }
    }
}

impl From<FormatError> for BuildError {
    fn from(error: FormatError) -> Self {
        Self::Format(error)
    }
}

impl From<PyErr> for BuildError {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}
