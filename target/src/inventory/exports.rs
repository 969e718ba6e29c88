//! What is exported, as generations: immutable snapshots that the cores follow.
//!
//! A core looks at one number each turn. Where that has changed it takes the next snapshot, and
//! later says that namespaces which are not in it any more are idle on this core.

use std::collections::BTreeSet;
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

/// The number of a snapshot; later ones are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ExportsNumber(u64);

impl ExportsNumber {
    /// That of a core which has ended, and uses nothing any more.
    const ENDED: Self = Self(u64::MAX);

    /// A number that is greater for later ones.
    pub(crate) fn get(self) -> u64 {
        self.0
    }

    fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The namespaces of all subsystems at one time.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    generation: ExportsNumber,
    /// The serial number of the first namespace that is not in this generation or an earlier one.
    next_serial: u32,
    /// By the slot of their index.
    slots: Vec<Option<Arc<Namespace>>>,
    /// By the slot of the subsystem's index.
    lists: Vec<SubsystemExports>,
    /// That of a subsystem which is gone.
    none: Arc<ExportedList>,
    /// Namespaces of earlier generations that a core may still use.
    retiring: Vec<Retiring>,
}

/// A published change of a namespace.
#[derive(Debug)]
pub(crate) struct NamespaceChange {
    pub(crate) generation: ExportsNumber,
    pub(crate) subsystem: Arc<Subsystem>,
    pub(crate) namespace: Arc<Namespace>,
}

/// A namespace that was removed, as far as a core has to know it. It keeps no file open.
#[derive(Clone, Debug)]
pub(crate) struct Retiring {
    index: NamespaceIndex,
    /// The first generation without it.
    since: ExportsNumber,
    pub(crate) medium: ClosingMedium,
}

/// What the subsystem with an index exports.
#[derive(Clone, Debug)]
struct SubsystemExports {
    index: SubsystemIndex,
    namespaces: Arc<ExportedList>,
}

/// A namespace and its subsystem.
#[derive(Clone, Debug)]
pub(crate) struct OwnedNamespace {
    pub(crate) subsystem: Arc<Subsystem>,
    pub(crate) namespace: Arc<Namespace>,
}

impl OwnedNamespace {
    pub(crate) fn new(subsystem: &Arc<Subsystem>, namespace: &Arc<Namespace>) -> Self {
        Self { subsystem: Arc::clone(subsystem), namespace: Arc::clone(namespace) }
    }

    /// The change that added or removed it.
    pub(crate) fn changed_in(self, generation: ExportsNumber) -> NamespaceChange {
        let Self { subsystem, namespace } = self;
        NamespaceChange { generation, subsystem, namespace }
    }
}

fn of_subsystem(
    list: &[OwnedNamespace],
    index: SubsystemIndex,
) -> impl Iterator<Item = &Arc<Namespace>> {
    list.iter().filter(move |one| one.subsystem.index == index).map(|one| &one.namespace)
}

/// The namespaces of a subsystem, sorted by NSID, each NSID once.
#[derive(Debug, Default)]
pub(crate) struct ExportedList(Vec<Arc<Namespace>>);

impl ExportedList {
    /// Of namespaces in any order, whose NSIDs differ.
    pub(crate) fn new(mut namespaces: Vec<Arc<Namespace>>) -> Self {
        namespaces.sort_by_key(|namespace| namespace.nsid);
        Self(namespaces)
    }

    /// The namespace with an id.
    pub(crate) fn get(&self, nsid: Nsid) -> Option<&Arc<Namespace>> {
        // Ids without gaps, the usual case, are found at once.
        let guess = self.0.get((nsid.0 as usize).wrapping_sub(1));
        if let Some(namespace) = guess.filter(|namespace| namespace.nsid == nsid) {
            return Some(namespace);
        }
        let found = self.0.binary_search_by_key(&nsid, |namespace| namespace.nsid);
        found.ok().map(|at| &self.0[at])
    }

    /// The highest NSID, or 0.
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
    /// The first generation: `lists` has the namespaces of each subsystem.
    pub(crate) fn first(lists: Vec<ExportedList>) -> Self {
        let mut exports = Self { generation: ExportsNumber(1), ..Self::default() };
        for (serial, list) in (0..).zip(lists) {
            list.iter().for_each(|namespace| exports.occupy(namespace));
            let index = SubsystemIndex { slot: serial, serial };
            exports.lists.push(SubsystemExports { index, namespaces: Arc::new(list) });
        }
        exports
    }

    fn occupy(&mut self, namespace: &Arc<Namespace>) {
        let NamespaceIndex { slot, serial } = namespace.index;
        let slot = slot as usize;
        if self.namespace(namespace.index).is_none() {
            // They are added in this order.
            self.next_serial = serial.wrapping_add(1);
        }
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, None);
        }
        self.slots[slot] = Some(Arc::clone(namespace));
    }

    /// The generation after this one. All that `settled` does not have is idle.
    pub(crate) fn changed(
        &self,
        settled: ExportsNumber,
        removed: &[OwnedNamespace],
        added: &[OwnedNamespace],
    ) -> Self {
        let is_awaited = |one: &&Retiring| one.since > settled;
        let mut next = Self {
            generation: self.generation.next(),
            next_serial: self.next_serial,
            slots: self.slots.clone(),
            lists: self.lists.clone(),
            none: Arc::clone(&self.none),
            retiring: self.retiring.iter().filter(is_awaited).cloned().collect(),
        };
        let stays: BTreeSet<_> = added.iter().map(|one| one.namespace.index).collect();
        for OwnedNamespace { namespace, .. } in removed {
            // One that has another size keeps its index.
            if !stays.contains(&namespace.index) {
                next.slots[namespace.index.slot as usize] = None;
            }
            next.retiring.push(Retiring {
                index: namespace.index,
                since: next.generation,
                medium: ClosingMedium::of(namespace.backend(), namespace.files.clone()),
            });
        }
        added.iter().for_each(|one| next.occupy(&one.namespace));
        let changed = removed.iter().chain(added).map(|one| one.subsystem.index);
        for index in changed.collect::<BTreeSet<_>>() {
            let gone: BTreeSet<_> = of_subsystem(removed, index).map(|one| one.index).collect();
            let stay = self.list(index).iter().filter(|one| !gone.contains(&one.index));
            let list = stay.chain(of_subsystem(added, index)).cloned().collect();
            next.set_list(index, Arc::new(ExportedList::new(list)));
        }
        next
    }

    /// The generation after this one, with another description of a namespace. Its medium stays in
    /// use, so nothing retires.
    pub(crate) fn redescribed(&self, settled: ExportsNumber, one: &OwnedNamespace) -> Self {
        let mut next = self.changed(settled, &[], &[]);
        let (index, new) = (one.subsystem.index, &one.namespace);
        next.occupy(new);
        let describe =
            |old: &Arc<Namespace>| Arc::clone(if old.index == new.index { new } else { old });
        let list = self.list(index).iter().map(describe).collect();
        next.set_list(index, Arc::new(ExportedList::new(list)));
        next
    }

    fn set_list(&mut self, index: SubsystemIndex, namespaces: Arc<ExportedList>) {
        let slot = index.slot as usize;
        while self.lists.len() <= slot {
            // No subsystem has it yet.
            self.lists.push(SubsystemExports { index, namespaces: Arc::clone(&self.none) });
        }
        self.lists[slot] = SubsystemExports { index, namespaces };
    }

    pub(crate) fn generation(&self) -> ExportsNumber {
        self.generation
    }

    /// The serial number of the first namespace that is not in this generation or an earlier one.
    pub(crate) fn next_serial(&self) -> u32 {
        self.next_serial
    }

    /// The slots that no namespace has when `removed` are gone, the lowest first.
    pub(crate) fn free_slots<'a>(
        &'a self,
        removed: &[OwnedNamespace],
    ) -> impl Iterator<Item = usize> + use<'a> {
        let freed: BTreeSet<_> =
            removed.iter().map(|one| one.namespace.index.slot as usize).collect();
        let is_free = |slot: &usize| self.slots.get(*slot).is_none_or(Option::is_none);
        (0..).filter(move |slot| is_free(slot) || freed.contains(slot))
    }

    /// A namespace, unless it was removed.
    pub(crate) fn namespace(&self, index: NamespaceIndex) -> Option<&Arc<Namespace>> {
        let found = self.slots.get(index.slot as usize)?.as_ref()?;
        (found.index == index).then_some(found)
    }

    /// The namespaces of a subsystem; none where it is gone.
    pub(crate) fn list(&self, subsystem: SubsystemIndex) -> &Arc<ExportedList> {
        let found = self.lists.get(subsystem.slot as usize);
        let found = found.filter(|list| list.index == subsystem);
        found.map_or(&self.none, |list| &list.namespaces)
    }

    /// The namespaces of all subsystems.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &Arc<Namespace>> {
        self.slots.iter().flatten()
    }

    /// The namespaces that are to become idle.
    pub(crate) fn retiring(&self) -> &[Retiring] {
        &self.retiring
    }

    /// The backend of a namespace that was removed, while it is open.
    pub(crate) fn retired_backend(&self, index: NamespaceIndex) -> Option<Arc<dyn Backend>> {
        let of_index = self.retiring.iter().filter(|one| one.index == index);
        // Several where it had several sizes; all are the same medium.
        of_index.filter_map(|one| one.medium.backend.upgrade()).next()
    }
}

/// Where the latest generation is, and which ones the cores have reached.
#[derive(Debug)]
pub(crate) struct Publication {
    /// That of `published`, for a look without the lock.
    latest: AtomicU64,
    published: Mutex<LatestExports>,
    /// A core has reached another generation.
    progress: Condvar,
}

#[derive(Debug)]
struct LatestExports {
    exports: Arc<Exports>,
    cores: Vec<CoreProgress>,
}

struct CoreProgress {
    bell: Arc<Doorbell>,
    /// It starts nothing that a later generation than this does not have.
    adopted: ExportsNumber,
    /// All that this generation does not have is idle on it.
    settled: ExportsNumber,
}

impl fmt::Debug for CoreProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "adopted {:?}, settled {:?}", self.adopted, self.settled)
    }
}

impl Publication {
    pub(crate) fn new() -> Arc<Self> {
        let published = LatestExports { exports: Arc::default(), cores: Vec::new() };
        Arc::new(Self {
            latest: AtomicU64::new(0),
            published: Mutex::new(published),
            progress: Condvar::new(),
        })
    }

    /// The latest generation. For the control path: it takes a lock.
    pub(crate) fn exports(&self) -> Arc<Exports> {
        Arc::clone(&self.published().exports)
    }

    /// Makes a generation the latest one. The caller keeps others from publishing between its look
    /// at [`Publication::exports`] and this.
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

    /// Adds a core, which is woken by `bell`.
    pub(crate) fn join(self: &Arc<Self>, bell: Arc<Doorbell>) -> CoreExports {
        let mut published = self.published();
        let exports = Arc::clone(&published.exports);
        let (adopted, settled) = (exports.generation, exports.generation);
        published.cores.push(CoreProgress { bell, adopted, settled });
        let core = published.cores.len() - 1;
        drop(published);
        CoreExports { publication: Arc::clone(self), core, exports, settled: true }
    }

    /// Whether all that a generation does not have is idle on every core.
    pub(crate) fn is_settled(&self, generation: ExportsNumber) -> bool {
        self.published().is_settled(generation)
    }

    /// The latest generation that all cores have settled.
    pub(crate) fn settled(&self) -> ExportsNumber {
        let published = self.published();
        published.cores.iter().map(|core| core.settled).min().unwrap_or(ExportsNumber::ENDED)
    }

    /// Waits until no core starts anything any more that a generation does not have; false if that
    /// takes longer.
    pub(crate) fn wait_adopted(&self, generation: ExportsNumber, patience: Duration) -> bool {
        self.wait(patience, |published| published.is_adopted(generation))
    }

    /// Waits for [`Publication::is_settled`]; false if that takes longer.
    pub(crate) fn wait_settled(&self, generation: ExportsNumber, patience: Duration) -> bool {
        self.wait(patience, |published| published.is_settled(generation))
    }

    fn wait(&self, patience: Duration, reached: impl Fn(&LatestExports) -> bool) -> bool {
        let not_yet = |published: &mut LatestExports| !reached(published);
        let waited = self.progress.wait_timeout_while(self.published(), patience, not_yet);
        let (published, _) = waited.unwrap_or_else(PoisonError::into_inner);
        reached(&published)
    }

    fn published(&self) -> MutexGuard<'_, LatestExports> {
        // Nothing that holds the lock leaves the state half changed.
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LatestExports {
    fn is_adopted(&self, generation: ExportsNumber) -> bool {
        self.cores.iter().all(|core| core.adopted >= generation)
    }

    fn is_settled(&self, generation: ExportsNumber) -> bool {
        self.cores.iter().all(|core| core.settled >= generation)
    }
}

/// The generation that a core uses.
#[derive(Debug)]
pub(crate) struct CoreExports {
    publication: Arc<Publication>,
    core: usize,
    exports: Arc<Exports>,
    settled: bool,
}

impl CoreExports {
    /// Takes the latest generation. Returns whether the core has yet to say that the namespaces
    /// which retire are idle. One load where nothing has changed.
    pub(crate) fn follow(&mut self) -> bool {
        if self.publication.latest.load(Ordering::Acquire) != self.exports.generation.0 {
            let mut published = self.publication.published();
            let latest = Arc::clone(&published.exports);
            published.cores[self.core].adopted = latest.generation;
            drop(published);
            self.publication.progress.notify_all();
            self.exports = latest;
            self.settled = false;
        }
        !self.settled
    }

    /// All namespaces that retire are idle on this core.
    pub(crate) fn settle(&mut self) {
        self.settled = true;
        self.publication.published().cores[self.core].settled = self.exports.generation;
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
        (core.adopted, core.settled) = (ExportsNumber::ENDED, ExportsNumber::ENDED);
        drop(published);
        self.publication.progress.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::inventory::Registry;
    use crate::inventory::change::{Closed, NewNamespace};
    use crate::inventory::error::ChangeError;
    use crate::inventory::export::OpenPurpose;

    const NQN: &str = "nqn.2026-01.io.feedrail:t";

    const FIRST: SubsystemIndex = SubsystemIndex { slot: 0, serial: 0 };

    fn registry(dir: &std::path::Path) -> Arc<Registry> {
        let text = format!(
            "state_dir = \"state\"\nmanagement = \"socket\"\n[[port]]\naddress = \"127.0.0.1\"\n\
             [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nkind = \"memory\"\nsize_bytes = 4096\n"
        );
        let config = Config::from_toml(&dir.join("t.toml"), &text).expect("valid");
        Registry::open(&config, OpenPurpose::Check).expect("opened")
    }

    fn nqn() -> nvme_proto::Nqn {
        nvme_proto::Nqn::new(NQN).expect("valid")
    }

    fn file(path: &std::path::Path) -> NewNamespace {
        NewNamespace {
            nsid: None,
            name: "file".into(),
            uuid: None,
            nguid: None,
            eui64: None,
            content_id: None,
            direct_io: crate::config::DirectIo::default(),
            ana_group: crate::inventory::ana::AnaGroupId::DEFAULT,
            masked: false,
            medium: crate::config::Medium::File { path: path.to_owned(), root: None },
            writable: true,
            lba_shift: None,
            bdev: "file".into(),
            opened: None,
        }
    }

    #[test]
    fn a_core_uses_one_generation_until_it_follows() {
        let dir = tempfile::tempdir().expect("a folder");
        let registry = registry(dir.path());
        let mut core = registry.publication().join(Doorbell::new().expect("a descriptor"));
        assert!(!core.follow());
        let first = Arc::clone(core.list(FIRST));
        let removed = registry.remove_namespace(&nqn(), Nsid(1)).expect("it is there");
        let index = removed.namespace.index;
        assert!(core.namespace(index).is_some() && core.list(FIRST).get(Nsid(1)).is_some());
        assert!(!registry.publication().wait_adopted(removed.generation, Duration::ZERO));
        assert!(core.follow());
        assert!(registry.publication().wait_adopted(removed.generation, Duration::ZERO));
        assert!(core.namespace(index).is_none() && core.list(FIRST).get(Nsid(1)).is_none());
        assert!(core.retired_backend(index).is_some());
        assert!(first.get(Nsid(1)).is_some(), "a snapshot does not change");
        assert!(core.follow(), "it is not settled");
        assert_eq!(registry.close(removed, Duration::ZERO), Closed::Busy);
        drop(first);
        core.settle();
        assert!(!core.follow());
        registry.close_idle();
        assert!(core.retired_backend(index).is_none(), "it is closed");
    }

    #[test]
    fn a_core_that_has_ended_keeps_nothing_open() {
        let dir = tempfile::tempdir().expect("a folder");
        let registry = registry(dir.path());
        let core = registry.publication().join(Doorbell::new().expect("a descriptor"));
        let removed = registry.remove_namespace(&nqn(), Nsid(1)).expect("it is there");
        drop(core);
        assert_eq!(registry.close(removed, Duration::ZERO), Closed::Flushed(Ok(())));
    }

    #[test]
    fn an_index_is_never_that_of_another_namespace() {
        let dir = tempfile::tempdir().expect("a folder");
        let registry = registry(dir.path());
        let path = dir.path().join("file");
        std::fs::write(&path, [0; 4096]).expect("written");
        let mut core = registry.publication().join(Doorbell::new().expect("a descriptor"));
        let mut earlier = Vec::new();
        for _ in 0..3 {
            let added =
                registry.add_namespace(&nqn(), file(&path)).expect("it is closed each time");
            let index = added.namespace.index;
            assert_eq!((added.namespace.nsid, index.slot), (Nsid(2), 1), "both are used again");
            drop(added);
            core.follow();
            core.settle();
            assert!(core.namespace(index).is_some());
            assert!(earlier.iter().all(|index| core.namespace(*index).is_none()));
            earlier.push(index);
            let again = registry.add_namespace(&nqn(), file(&path)).expect_err("one user");
            assert!(matches!(again, ChangeError::Identifier(_)), "{again}");
            let removed = registry.remove_namespace(&nqn(), Nsid(2)).expect("it is there");
            core.follow();
            core.settle();
            assert_eq!(registry.close(removed, Duration::ZERO), Closed::Flushed(Ok(())));
        }
        let missing = registry.remove_namespace(&nqn(), Nsid(2)).expect_err("it is gone");
        assert!(matches!(missing, ChangeError::NoNamespace { .. }), "{missing}");
    }

    #[test]
    fn nothing_is_awaited_that_all_cores_have_settled() {
        let dir = tempfile::tempdir().expect("a folder");
        let registry = registry(dir.path());
        let mut core = registry.publication().join(Doorbell::new().expect("a descriptor"));
        let path = dir.path().join("file");
        std::fs::write(&path, [0; 4096]).expect("written");
        let removed = registry.remove_namespace(&nqn(), Nsid(1)).expect("it is there");
        let added = registry.add_namespace(&nqn(), file(&path)).expect("opened");
        core.follow();
        assert_eq!((core.generation(), core.retiring().len()), (added.generation, 1));
        core.settle();
        drop(removed);
        registry.remove_namespace(&nqn(), added.namespace.nsid).expect("it is there");
        core.follow();
        assert_eq!(core.retiring().len(), 1, "only the one that was removed last");
    }
}
