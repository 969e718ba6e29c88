//! Manifests, as Python objects.

use std::sync::Arc;

use feedrail_dataset::index::Index;
use feedrail_dataset::manifest::{Manifest, ShardEntry, TargetIndex};
use feedrail_dataset::placement::Placement;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::exported::ExportedBytes;

/// A valid manifest, with the preferred targets of its shards.
#[pyclass(frozen, name = "Manifest", module = "feedrail._core")]
pub(crate) struct ManifestObject {
    manifest: Arc<Manifest>,
    placement: Arc<Placement>,
}

#[pymethods]
impl ManifestObject {
    /// Parses a manifest; `ValueError` names the first rule that it violates.
    #[new]
    fn new(text: &[u8]) -> PyResult<Self> {
        let manifest =
            Manifest::parse(text).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let placement = Arc::new(Placement::new(&manifest));
        Ok(Self { manifest: Arc::new(manifest), placement })
    }

    #[getter]
    fn name(&self) -> &str {
        self.manifest.name().as_str()
    }

    #[getter]
    fn hash(&self) -> String {
        self.manifest.hash().to_string()
    }

    #[getter]
    fn content_hash(&self) -> String {
        self.manifest.content_hash().to_string()
    }

    /// Returns name, URL and NQN of each target, sorted by name.
    fn targets(&self) -> Vec<(&str, String, String)> {
        let targets = self.manifest.targets().iter();
        let target = targets.map(|(name, entry)| {
            (name.as_str(), entry.url.to_string(), entry.nqn.as_str().to_owned())
        });
        target.collect()
    }

    /// Returns the properties of each shard; `replicas` are indexes of targets.
    fn shards<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.manifest.shards().iter().map(|shard| properties(py, shard)).collect()
    }

    /// Returns file, hash and number of samples of the index, if there is one.
    fn index(&self) -> Option<(&str, String, u64)> {
        let index = self.manifest.index()?;
        Some((index.file.as_str(), index.hash.to_string(), index.samples))
    }

    /// Returns the indexes of a shard's targets, in descending order of preference for reads.
    fn ranked(&self, shard: u32) -> Vec<u32> {
        self.placement.ranked(shard).iter().map(|target| target.0).collect()
    }

    /// Checks that an index has the hash of the manifest, and that its samples lie in the shards.
    fn check_index(&self, py: Python<'_>, index: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = ExportedBytes::of(index)?.to_vec();
        let check = || -> Result<(), String> {
            let index = Index::parse(&bytes).map_err(|error| error.to_string())?;
            self.manifest.check_index(&index).map_err(|error| error.to_string())?;
            self.manifest.check_samples(&index).map_err(|error| error.to_string())
        };
        py.detach(check).map_err(PyValueError::new_err)
    }
}

impl ManifestObject {
    pub(crate) fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    pub(crate) fn placement(&self) -> &Arc<Placement> {
        &self.placement
    }
}

fn properties<'py>(
    py: Python<'py>,
    shard: &ShardEntry<TargetIndex>,
) -> PyResult<Bound<'py, PyDict>> {
    let properties = PyDict::new(py);
    properties.set_item("name", shard.name.as_str())?;
    properties.set_item("nbytes", shard.bytes)?;
    properties.set_item("uuid", shard.uuid.map(|uuid| uuid.simple().to_string()))?;
    properties.set_item("generation", shard.generation.map(|generation| generation.0))?;
    properties.set_item("crc32c", shard.crc32c.map(|crc32c| crc32c.0))?;
    let replicas: Vec<u32> = shard.replicas.iter().map(|target| target.0).collect();
    properties.set_item("replicas", replicas)?;
    Ok(properties)
}
