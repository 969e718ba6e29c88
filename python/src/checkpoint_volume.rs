//! A volume of checkpoints, open for reading or writing.

use std::sync::Arc;

use feedrail_checkpoint_store::{
    CheckpointStore, DamagedUnit, FormatOptions, RepairReport, RepairScope, ReplicaState,
    ReplicatedStore, StoreError, VerifyReport,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::checkpoint_save::CheckpointSaveObject;
use crate::entry_file::EntryFileObject;
use crate::foreign_bytes::TargetMemory;
use crate::released;
use crate::shared_store::SharedStore;
use crate::signal_poll::SignalPoll;
use crate::store_errors;
use crate::volume_places::VolumeOptions;

/// Name, step, milliseconds since 1970, metadata, number of entries and bytes of a checkpoint.
type CheckpointParts<'py> = (String, u64, u64, Bound<'py, PyBytes>, usize, u64);
/// Replica, checkpoint, entry, offset and length in the entry, and offset in the namespace of a
/// damaged unit.
type DamagedParts = (usize, (String, String, u64, u64, u64));

/// Replica, names of the checkpoints that it got and of those deleted on it, bytes copied, units
/// rewritten, and units that are still damaged.
type RepairParts = (usize, Vec<String>, Vec<String>, u64, usize, Vec<DamagedParts>);

/// Saves, their bytes and seconds, reads, their bytes and seconds, and failed reads of a replica.
type StoreStatsParts = (u64, u64, f64, u64, u64, f64, u64);

/// A volume of checkpoints with its replicas: `feedrail.CheckpointStore` wraps it.
#[pyclass(frozen, weakref, name = "CheckpointVolume", module = "feedrail._core")]
pub(crate) struct CheckpointVolumeObject {
    shared: Arc<SharedStore>,
}

#[pymethods]
impl CheckpointVolumeObject {
    /// Connects to the replicas and opens them: `mode` is `r`, `w` for a writer with the lease, or
    /// `repair` for one that needs no quorum.
    #[new]
    fn new(
        py: Python<'_>,
        urls: Vec<String>,
        mode: &str,
        options: VolumeOptions,
    ) -> PyResult<Self> {
        released::drain(py);
        let open = match mode {
            "r" => ReplicatedStore::open,
            "w" => ReplicatedStore::open_writer,
            "repair" => ReplicatedStore::open_repair,
            _ => return Err(PyValueError::new_err(format!("mode {mode:?}: it is 'r' or 'w'"))),
        };
        let places = options.connect(py, &urls)?;
        let opened =
            py.detach(|| open(places, options.quorum(urls.len()), options.store_options()));
        let store = opened.map_err(|error| store_errors::exception(py, &error))?;
        Ok(Self { shared: Arc::new(SharedStore::new(store)) })
    }

    /// Makes empty volumes of namespaces, with one UUID, which it returns as text.
    #[staticmethod]
    fn format(
        py: Python<'_>,
        urls: Vec<String>,
        force: bool,
        unit_shift: u32,
        options: VolumeOptions,
    ) -> PyResult<String> {
        released::drain(py);
        let places = options.connect(py, &urls)?;
        let format = FormatOptions { unit_shift, is_forced: force, ..FormatOptions::default() };
        let formatted = py.detach(|| ReplicatedStore::format(&places, &format));
        formatted.map_err(|error| store_errors::exception(py, &error))?;
        Ok(format.uuid.to_string())
    }

    /// Begins a save, whose commit deletes all checkpoints but the last `keep`.
    fn begin(
        &self,
        py: Python<'_>,
        name: &str,
        step: u64,
        metadata: &[u8],
        keep: Option<usize>,
    ) -> PyResult<CheckpointSaveObject> {
        released::drain(py);
        let saves = self.shared.with(py, |store| {
            let mut saves = store.begin_saves(name, step, metadata)?;
            keep.into_iter().for_each(|count| saves.keep(count));
            Ok(saves)
        })?;
        Ok(CheckpointSaveObject::new(&self.shared, saves))
    }

    /// Returns the checkpoints, in the order of their commits.
    fn list<'py>(&self, py: Python<'py>) -> PyResult<Vec<CheckpointParts<'py>>> {
        let all = self.shared.with(py, |store| store.list())?;
        let parts = all.into_iter().map(|one| {
            let metadata = PyBytes::new(py, &one.metadata);
            (one.name, one.step, one.created_ms, metadata, one.entries, one.bytes)
        });
        Ok(parts.collect())
    }

    /// Returns names and lengths of the entries of a checkpoint.
    fn entries(&self, py: Python<'_>, checkpoint: &str) -> PyResult<Vec<(String, u64)>> {
        let all = self.shared.with(py, |store| store.entries(checkpoint))?;
        Ok(all.into_iter().map(|one| (one.name, one.length)).collect())
    }

    /// Reads bytes of an entry from `offset` on into memory, which decides how many.
    fn read(
        &self,
        py: Python<'_>,
        checkpoint: &str,
        entry: &str,
        offset: u64,
        into: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        released::drain(py);
        let target = TargetMemory::of(into)?;
        let stores = self.stores(py)?;
        let mut signals = SignalPoll::new();
        let result = py.detach(|| {
            let end = offset.saturating_add(target.length() as u64);
            let mut result = Ok(());
            for (_, store) in &stores {
                result = store.read_with(checkpoint, entry, offset..end, &mut |at, bytes| {
                    target.copy_in((at - offset) as usize, bytes);
                    signals.poll()
                });
                if !matches!(&result, Err(StoreError::Damaged { .. } | StoreError::Host(_))) {
                    break;
                }
            }
            result
        });
        signals.finish()?;
        result.map_err(|error| store_errors::exception(py, &error))
    }

    /// Begins a file: an entry that the commit adds to a checkpoint. It makes a missing checkpoint.
    fn begin_file(
        &self,
        py: Python<'_>,
        checkpoint: &str,
        entry: &str,
    ) -> PyResult<EntryFileObject> {
        released::drain(py);
        let file = self.shared.with(py, |store| store.begin_file(checkpoint, entry))?;
        Ok(EntryFileObject::new(&self.shared, file))
    }

    /// Renames an entry, all entries of a folder (`name/`), or without `entry` the checkpoint.
    fn rename(
        &self,
        py: Python<'_>,
        checkpoint: &str,
        entry: Option<&str>,
        to_checkpoint: &str,
        to_entry: Option<&str>,
        replace: bool,
    ) -> PyResult<()> {
        released::drain(py);
        let (from, to) = ((checkpoint, entry), (to_checkpoint, to_entry));
        self.shared.with(py, |store| store.rename(from, to, replace))
    }

    /// Removes an entry, all entries of a folder (`name/`), or without `entry` the checkpoint.
    fn remove(&self, py: Python<'_>, checkpoint: &str, entry: Option<&str>) -> PyResult<()> {
        released::drain(py);
        self.shared.with(py, |store| store.remove(checkpoint, entry))
    }

    /// Deletes a checkpoint on all replicas that have the newest ones.
    fn delete(&self, py: Python<'_>, checkpoint: &str) -> PyResult<()> {
        released::drain(py);
        self.shared.with(py, |store| store.delete(checkpoint))
    }

    /// Deletes all checkpoints but the last `count`.
    fn keep(&self, py: Python<'_>, count: usize) -> PyResult<()> {
        released::drain(py);
        self.shared.with(py, |store| store.keep(count))
    }

    /// Renews the lease if half of it has passed.
    fn renew(&self, py: Python<'_>) -> PyResult<()> {
        released::drain(py);
        self.shared.with(py, ReplicatedStore::renew_if_due)
    }

    /// Reads a checkpoint, or all, from each replica that has the newest ones. Returns the bytes
    /// that were read, the damaged units, and the replicas with a damaged manifest.
    fn verify(
        &self,
        py: Python<'_>,
        checkpoint: Option<&str>,
    ) -> PyResult<(u64, Vec<DamagedParts>, Vec<usize>)> {
        released::drain(py);
        let (mut bytes, mut damaged, mut manifests) = (0, Vec::new(), Vec::new());
        for (replica, store) in self.stores(py)? {
            let mut signals = SignalPoll::new();
            let report = py.detach(|| store.verify(checkpoint, &mut |_| signals.poll()));
            signals.finish()?;
            let report: VerifyReport =
                report.map_err(|error| store_errors::exception(py, &error))?;
            bytes += report.bytes;
            if report.damaged_manifest_copies.contains(&true) {
                manifests.push(replica);
            }
            let units = report.damaged.into_iter();
            damaged.extend(units.map(|unit| damaged_parts(replica, unit)));
        }
        Ok((bytes, damaged, manifests))
    }

    /// Makes stale replicas equal to the newest, and rewrites damaged units unless `missed_only`.
    fn repair(&self, py: Python<'_>, missed_only: bool) -> PyResult<Vec<RepairParts>> {
        released::drain(py);
        let scope = if missed_only { RepairScope::Missed } else { RepairScope::AllUnits };
        let mut signals = SignalPoll::new();
        let reports = self.shared.with(py, |store| store.repair(scope, &mut |_| signals.poll()));
        signals.finish()?;
        let parts = |one: RepairReport| {
            let damaged = one.damaged.into_iter().map(|unit| damaged_parts(one.replica, unit));
            let damaged = damaged.collect();
            (one.replica, one.copied, one.deleted, one.bytes, one.rewritten, damaged)
        };
        Ok(reports?.into_iter().map(parts).collect())
    }

    /// Returns the state of each replica, `current`, `stale` or `away`, and why it is away.
    fn replicas(&self, py: Python<'_>) -> PyResult<Vec<(&'static str, Option<PyErr>)>> {
        let all = self.shared.with(py, |store| Ok(store.replicas()))?;
        let parts = all.into_iter().map(|one| match one {
            ReplicaState::Current => ("current", None),
            ReplicaState::Stale => ("stale", None),
            ReplicaState::Away(error) => ("away", Some(store_errors::exception(py, &error))),
            _ => ("away", None),
        });
        Ok(parts.collect())
    }

    /// Returns the counters of each replica.
    fn stats(&self, py: Python<'_>) -> PyResult<Vec<StoreStatsParts>> {
        let all = self.shared.with(py, |store| Ok(store.stats()))?;
        let parts = all.into_iter().map(|one| {
            (
                one.saves,
                one.saved_bytes,
                one.save_time.as_secs_f64(),
                one.reads,
                one.read_bytes,
                one.read_time.as_secs_f64(),
                one.failed_reads,
            )
        });
        Ok(parts.collect())
    }

    /// Returns facts about the volume.
    fn summary<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let summary = self.shared.with(py, |store| Ok(store.newest()?.summary()))?;
        let facts = PyDict::new(py);
        facts.set_item("uuid", summary.uuid.to_string())?;
        facts.set_item("generation", summary.generation)?;
        facts.set_item("unit_bytes", summary.unit_bytes)?;
        facts.set_item("capacity_bytes", summary.capacity_bytes)?;
        facts.set_item("free_bytes", summary.free_bytes)?;
        facts.set_item("writer", summary.lease.map(|lease| lease.host.to_string()))?;
        Ok(facts)
    }

    /// Gives the lease back and ends the connections. Closing twice is no error.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        released::drain(py);
        self.shared.close(py)
    }
}

fn damaged_parts(replica: usize, unit: DamagedUnit) -> DamagedParts {
    let DamagedUnit { checkpoint, entry, offset, length, namespace_offset, .. } = unit;
    (replica, (checkpoint, entry, offset, length, namespace_offset))
}

impl CheckpointVolumeObject {
    /// Returns the replicas that have the newest checkpoints, to read without the lock.
    fn stores(&self, py: Python<'_>) -> PyResult<Vec<(usize, CheckpointStore)>> {
        self.shared.with(py, |store| {
            store.newest()?;
            Ok(store.current())
        })
    }
}
