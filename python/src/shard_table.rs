//! The table of shards of an index, as a Python object.

use feedrail_dataset::Name;
use feedrail_dataset::index::{IndexShard, ShardTable};
use feedrail_dataset::manifest::{Crc32c, Generation};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use uuid::Uuid;

/// Name, size in bytes, samples, UUID in hexadecimal digits, generation and CRC-32C of a shard.
type DescribedShard = (String, u64, u64, Option<String>, Option<u64>, Option<u32>);

/// Shards of an index, in the order of the shard numbers of its samples.
#[pyclass(frozen, name = "ShardTable", module = "feedrail._core")]
pub(crate) struct ShardTableObject(ShardTable);

#[pymethods]
impl ShardTableObject {
    /// Raises `ValueError` for a name that no shard can have.
    #[new]
    fn new(shards: Vec<DescribedShard>) -> PyResult<Self> {
        Ok(Self(ShardTable::new(described(shards)?)))
    }

    /// Parses the table after the records of an index; `None` for a file of the old format.
    #[staticmethod]
    fn parse(behind_records: &[u8]) -> PyResult<Option<Self>> {
        Ok(ShardTable::parse(behind_records).map_err(invalid)?.map(Self))
    }

    /// Returns the bytes that follow the records.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.0.to_bytes()?))
    }

    fn shards(&self) -> Vec<DescribedShard> {
        let shard = |shard: &IndexShard| {
            (
                shard.name.as_str().to_owned(),
                shard.bytes,
                shard.samples,
                shard.uuid.map(|uuid| uuid.simple().to_string()),
                shard.generation.map(|generation| generation.0),
                shard.crc32c.map(|crc32c| crc32c.0),
            )
        };
        self.0.shards().iter().map(shard).collect()
    }

    /// Returns the number of each shard in a source, `None` for those without samples. `ValueError`
    /// names the first shard that the source does not have, or that differs there.
    fn numbers_in(&self, source: Vec<DescribedShard>) -> PyResult<Vec<Option<u32>>> {
        self.0.numbers_in(&described(source)?).map_err(invalid)
    }
}

fn described(shards: Vec<DescribedShard>) -> PyResult<Vec<IndexShard>> {
    let shard = |(name, bytes, samples, uuid, generation, crc32c): DescribedShard| {
        let named: Name = name.parse().map_err(|error| {
            PyValueError::new_err(format!("{name:?} cannot name a shard: {error}"))
        })?;
        let uuid = uuid.map(|uuid| uuid.parse::<Uuid>()).transpose().map_err(invalid)?;
        Ok(IndexShard {
            samples,
            uuid,
            generation: generation.map(Generation),
            crc32c: crc32c.map(Crc32c),
            ..IndexShard::new(named, bytes)
        })
    };
    shards.into_iter().map(shard).collect()
}

fn invalid(error: impl ToString) -> PyErr {
    PyValueError::new_err(error.to_string())
}
