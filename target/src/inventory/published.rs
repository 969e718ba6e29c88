//! Exports in generations: each change publishes an immutable snapshot of all namespaces.
//!
//! A core compares one number per turn of its loop. If it has changed, the core adopts the new
//! snapshot, and reports when no operation of its own runs on namespaces missing from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvme_proto::Nsid;

use crate::backend::{Backend, ClosingMedium};
use crate::doorbell::Doorbell;

use crate::inventory::index::{NamespaceIndex, SubsystemIndex};
use crate::inventory::namespace::Namespace;
use crate::inventory::subsystem::Subsystem;

/// Number of a generation of [`Exports`]; later generations have higher numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ExportsNumber(u64);

impl ExportsNumber {
    /// Number of a core that has stopped: it counts as having reached every generation.
    const ENDED: Self = Self(u64::MAX);

    pub(crate) fn get(self) -> u64 {
        self.0
    }

    fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Namespaces of all subsystems in one generation, immutable once published.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    generation: ExportsNumber,
    /// Serial number of the next namespace to add.
    next_serial: u32,
    /// Namespaces at position [`NamespaceIndex::slot`]; `None` for a free slot.
    slots: Vec<Option<Arc<Namespace>>>,
    /// Namespaces by subsystem, at position [`SubsystemIndex::slot`].
    lists: Vec<SubsystemExports>,
    /// Empty list, returned for subsystems that were removed.
    none: Arc<ExportedList>,
    /// Removed namespaces on which a core may still run operations.
    draining: Vec<Draining>,
}

/// Namespace that was added or removed, and the first generation with the change.
#[derive(Debug)]
pub(crate) struct NamespaceChange {
    pub(crate) generation: ExportsNumber,
    pub(crate) subsystem: Arc<Subsystem>,
    pub(crate) namespace: Arc<Namespace>,
}

/// Removed namespace whose operations cores complete. It does not keep the backend open.
#[derive(Clone, Debug)]
pub(crate) struct Draining {
    index: NamespaceIndex,
    /// First generation without the namespace.
    since: ExportsNumber,
    pub(crate) medium: ClosingMedium,
}

/// Namespaces of one subsystem. An index with another serial number is that of a removed subsystem.
#[derive(Clone, Debug)]
struct SubsystemExports {
    index: SubsystemIndex,
    namespaces: Arc<ExportedList>,
}

/// Namespace with the subsystem that exports it.
#[derive(Clone, Debug)]
pub(crate) struct OwnedNamespace {
    pub(crate) subsystem: Arc<Subsystem>,
    pub(crate) namespace: Arc<Namespace>,
}

impl OwnedNamespace {
    pub(crate) fn new(subsystem: &Arc<Subsystem>, namespace: &Arc<Namespace>) -> Self {
        Self { subsystem: Arc::clone(subsystem), namespace: Arc::clone(namespace) }
    }

    pub(crate) fn changed_in(self, generation: ExportsNumber) -> NamespaceChange {
        let Self { subsystem, namespace } = self;
        NamespaceChange { generation, subsystem, namespace }
    }
}

/// Namespaces of a subsystem, sorted by NSID, without duplicates.
#[derive(Debug, Default)]
pub(crate) struct ExportedList(Vec<Arc<Namespace>>);

impl ExportedList {
    /// Sorts `namespaces`, whose NSIDs must be distinct.
    pub(crate) fn new(mut namespaces: Vec<Arc<Namespace>>) -> Self {
        namespaces.sort_by_key(|namespace| namespace.nsid);
        Self(namespaces)
    }

    pub(crate) fn get(&self, nsid: Nsid) -> Option<&Arc<Namespace>> {
        // NSIDs usually start at 1 without gaps, so that the position follows from the NSID.
        let guess = self.0.get((nsid.0 as usize).wrapping_sub(1));
        if let Some(namespace) = guess.filter(|namespace| namespace.nsid == nsid) {
            return Some(namespace);
        }
        let found = self.0.binary_search_by_key(&nsid, |namespace| namespace.nsid);
        found.ok().map(|at| &self.0[at])
    }

    /// Highest NSID, or 0 if there is no namespace.
    pub(crate) fn highest_nsid(&self) -> u32 {
        self.0.last().map_or(0, |namespace| namespace.nsid.0)
    }
}

impl Deref for ExportedList {
    type Target = [Arc<Namespace>];

    fn deref(&self) -> &[Arc<Namespace>] {
        &self.0
    }
}

impl Exports {
    fn occupy(&mut self, namespace: &Arc<Namespace>) {
        let NamespaceIndex { slot, serial } = namespace.index;
        let slot = slot as usize;
        if self.namespace(namespace.index).is_none() {
            // New namespaces are added in the order of their serial numbers.
            self.next_serial = serial.wrapping_add(1);
        }
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, None);
        }
        self.slots[slot] = Some(Arc::clone(namespace));
    }

    /// Creates the next generation. All cores have drained generation `idle`, so namespaces that it
    /// lacks are no longer listed as draining. A removed namespace whose index and backend an added
    /// one has is not drained.
    pub(crate) fn changed(
        &self,
        idle: ExportsNumber,
        removed: &[OwnedNamespace],
        added: &[OwnedNamespace],
    ) -> Self {
        let is_awaited = |one: &&Draining| one.since > idle;
        let mut next = Self {
            generation: self.generation.next(),
            next_serial: self.next_serial,
            slots: self.slots.clone(),
            lists: self.lists.clone(),
            none: Arc::clone(&self.none),
            draining: self.draining.iter().filter(is_awaited).cloned().collect(),
        };
        let successors: BTreeMap<_, _> =
            added.iter().map(|one| (one.namespace.index, &one.namespace)).collect();
        for OwnedNamespace { namespace, .. } in removed {
            match successors.get(&namespace.index) {
                Some(successor) if successor.shares_backend(namespace) => continue,
                Some(_) => {}
                None => next.slots[namespace.index.slot as usize] = None,
            }
            next.draining.push(Draining {
                index: namespace.index,
                since: next.generation,
                medium: ClosingMedium::of(namespace.backend(), namespace.files.clone()),
            });
        }
        let gone: BTreeSet<_> = removed.iter().map(|one| one.namespace.index).collect();
        let mut lists: BTreeMap<SubsystemIndex, Vec<Arc<Namespace>>> = BTreeMap::new();
        for OwnedNamespace { subsystem, .. } in removed.iter().chain(added) {
            lists.entry(subsystem.index).or_insert_with(|| {
                let list = self.list(subsystem.index).iter();
                list.filter(|one| !gone.contains(&one.index)).cloned().collect()
            });
        }
        for OwnedNamespace { subsystem, namespace } in added {
            next.occupy(namespace);
            lists.entry(subsystem.index).or_default().push(Arc::clone(namespace));
        }
        for (index, list) in lists {
            next.set_list(index, Arc::new(ExportedList::new(list)));
        }
        next
    }

    fn set_list(&mut self, index: SubsystemIndex, namespaces: Arc<ExportedList>) {
        let slot = index.slot as usize;
        while self.lists.len() <= slot {
            // Placeholder for slots that have no list yet.
            self.lists.push(SubsystemExports { index, namespaces: Arc::clone(&self.none) });
        }
        self.lists[slot] = SubsystemExports { index, namespaces };
    }

    pub(crate) fn generation(&self) -> ExportsNumber {
        self.generation
    }

    pub(crate) fn next_serial(&self) -> u32 {
        self.next_serial
    }

    /// Returns the free slots, those of `removed` included, in ascending order. The iterator is
    /// endless.
    pub(crate) fn free_slots<'a>(
        &'a self,
        removed: &[OwnedNamespace],
    ) -> impl Iterator<Item = usize> + use<'a> {
        let freed: BTreeSet<_> =
            removed.iter().map(|one| one.namespace.index.slot as usize).collect();
        let is_free = |slot: &usize| self.slots.get(*slot).is_none_or(Option::is_none);
        (0..).filter(move |slot| is_free(slot) || freed.contains(slot))
    }

    /// Namespace with the index; `None` if it was removed.
    pub(crate) fn namespace(&self, index: NamespaceIndex) -> Option<&Arc<Namespace>> {
        let found = self.slots.get(index.slot as usize)?.as_ref()?;
        (found.index == index).then_some(found)
    }

    /// Namespace in a slot, which the caller has found in this generation.
    #[inline]
    pub(crate) fn in_slot(&self, slot: u32) -> Option<&Namespace> {
        self.slots.get(slot as usize)?.as_deref()
    }

    /// Namespaces of a subsystem; empty if it was removed.
    pub(crate) fn list(&self, subsystem: SubsystemIndex) -> &Arc<ExportedList> {
        let found = self.lists.get(subsystem.slot as usize);
        let found = found.filter(|list| list.index == subsystem);
        found.map_or(&self.none, |list| &list.namespaces)
    }

    /// Namespaces of all subsystems, in the order of their slots.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &Arc<Namespace>> {
        self.slots.iter().flatten()
    }

    /// Removed namespaces on which a core may still run operations.
    pub(crate) fn draining(&self) -> &[Draining] {
        &self.draining
    }

    /// Backend of a removed namespace; `None` once it is closed.
    pub(crate) fn draining_backend(&self, index: NamespaceIndex) -> Option<Arc<dyn Backend>> {
        let of_index = self.draining.iter().filter(|one| one.index == index);
        // After a resize there are several backends of the same medium; any will do.
        of_index.filter_map(|one| one.medium.backend.upgrade()).next()
    }
}

/// Latest generation of [`Exports`], and how far each core has followed it.
#[derive(Debug)]
pub(crate) struct Publication {
    /// Number of the latest generation, which cores read without the lock.
    latest: AtomicU64,
    /// Number of changes of limits; 0 while no host or namespace had any.
    limit_changes: AtomicU64,
    published: Mutex<LatestExports>,
    /// Signalled when a core adopts a generation or has drained one.
    progress: Condvar,
}

#[derive(Debug)]
struct LatestExports {
    exports: Arc<Exports>,
    cores: Vec<CoreProgress>,
}

struct CoreProgress {
    /// Doorbell that wakes the core after a publication.
    bell: Arc<Doorbell>,
    /// Generation that the core has adopted: it starts no operation on namespaces missing from it.
    adopted: ExportsNumber,
    /// Generation that the core has drained: its operations on namespaces missing from it have
    /// ended.
    idle: ExportsNumber,
}

impl fmt::Debug for CoreProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "adopted {:?}, idle {:?}", self.adopted, self.idle)
    }
}

impl Publication {
    pub(crate) fn new() -> Arc<Self> {
        let published = LatestExports { exports: Arc::default(), cores: Vec::new() };
        Arc::new(Self {
            latest: AtomicU64::new(0),
            limit_changes: AtomicU64::new(0),
            published: Mutex::new(published),
            progress: Condvar::new(),
        })
    }

    /// Latest generation. Takes a lock, so only the control path may call this.
    pub(crate) fn exports(&self) -> Arc<Exports> {
        Arc::clone(&self.published().exports)
    }

    /// Publishes a generation and wakes all cores. The caller has held the inventory's lock on
    /// serial numbers since before it called [`Publication::exports`].
    pub(crate) fn publish(&self, exports: Exports) -> ExportsNumber {
        let generation = exports.generation;
        let mut published = self.published();
        let old = std::mem::replace(&mut published.exports, Arc::new(exports));
        self.latest.store(generation.0, Ordering::Release);
        published.cores.iter().for_each(|core| core.bell.ring());
        drop(published);
        drop(old);
        generation
    }

    /// Adds a core, which starts with the latest generation. `bell` wakes it after each
    /// publication.
    pub(crate) fn join(self: &Arc<Self>, bell: Arc<Doorbell>) -> CoreExports {
        let mut published = self.published();
        let exports = Arc::clone(&published.exports);
        let (adopted, idle) = (exports.generation, exports.generation);
        published.cores.push(CoreProgress { bell, adopted, idle });
        let core = published.cores.len() - 1;
        drop(published);
        CoreExports { publication: Arc::clone(self), core, exports, idle: true }
    }

    /// Records that limits were set, so that cores compare commands with quotas from their next
    /// turn on.
    pub(crate) fn limits_set(&self) {
        self.limit_changes.fetch_add(1, Ordering::Release);
    }

    /// Wakes all cores, so that waiting commands adapt to limits that were set.
    pub(crate) fn wake_cores(&self) {
        self.published().cores.iter().for_each(|core| core.bell.ring());
    }

    /// Whether no core still runs operations on namespaces missing from a generation.
    pub(crate) fn is_idle(&self, generation: ExportsNumber) -> bool {
        self.published().is_idle(generation)
    }

    /// Latest generation that all cores have drained.
    pub(crate) fn idle(&self) -> ExportsNumber {
        let published = self.published();
        published.cores.iter().map(|core| core.idle).min().unwrap_or(ExportsNumber::ENDED)
    }

    /// Waits until all cores have adopted a generation; returns false after `timeout`.
    pub(crate) fn wait_adopted(&self, generation: ExportsNumber, timeout: Duration) -> bool {
        self.wait(timeout, |published| published.is_adopted(generation))
    }

    /// Waits until [`Publication::is_idle`] is true; returns false after `timeout`.
    pub(crate) fn wait_idle(&self, generation: ExportsNumber, timeout: Duration) -> bool {
        self.wait(timeout, |published| published.is_idle(generation))
    }

    fn wait(&self, timeout: Duration, reached: impl Fn(&LatestExports) -> bool) -> bool {
        let not_yet = |published: &mut LatestExports| !reached(published);
        let waited = self.progress.wait_timeout_while(self.published(), timeout, not_yet);
        let (published, _) = waited.unwrap_or_else(PoisonError::into_inner);
        reached(&published)
    }

    fn published(&self) -> MutexGuard<'_, LatestExports> {
        // No code that holds the lock can panic halfway through a change, so a poisoned lock is
        // usable.
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LatestExports {
    fn is_adopted(&self, generation: ExportsNumber) -> bool {
        self.cores.iter().all(|core| core.adopted >= generation)
    }

    fn is_idle(&self, generation: ExportsNumber) -> bool {
        self.cores.iter().all(|core| core.idle >= generation)
    }
}

/// Generation that one core has adopted.
#[derive(Debug)]
pub(crate) struct CoreExports {
    publication: Arc<Publication>,
    /// Position of the core in `LatestExports::cores`.
    core: usize,
    exports: Arc<Exports>,
    /// Whether the core has reported that it has drained the generation.
    idle: bool,
}

impl CoreExports {
    /// Adopts the latest generation. Returns whether [`CoreExports::report_idle`] is still due for
    /// it. If nothing has changed, this costs one atomic load.
    pub(crate) fn follow(&mut self) -> bool {
        if self.publication.latest.load(Ordering::Acquire) != self.exports.generation.0 {
            let mut published = self.publication.published();
            let latest = Arc::clone(&published.exports);
            published.cores[self.core].adopted = latest.generation;
            drop(published);
            self.publication.progress.notify_all();
            self.exports = latest;
            self.idle = false;
        }
        !self.idle
    }

    /// Number of changes of limits; 0 while no host or namespace had any.
    pub(crate) fn limit_changes(&self) -> u64 {
        self.publication.limit_changes.load(Ordering::Acquire)
    }

    /// Reports that no operation on a removed namespace runs on this core.
    pub(crate) fn report_idle(&mut self) {
        self.idle = true;
        self.publication.published().cores[self.core].idle = self.exports.generation;
        self.publication.progress.notify_all();
    }
}

impl Deref for CoreExports {
    type Target = Exports;

    fn deref(&self) -> &Exports {
        &self.exports
    }
}

impl Drop for CoreExports {
    fn drop(&mut self) {
        let mut published = self.publication.published();
        let core = &mut published.cores[self.core];
        (core.adopted, core.idle) = (ExportsNumber::ENDED, ExportsNumber::ENDED);
        drop(published);
        self.publication.progress.notify_all();
    }
}

#[cfg(test)]
mod tests;
