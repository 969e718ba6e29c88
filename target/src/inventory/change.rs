//! Adds, removes, resizes, renames, shows and hides namespaces while hosts are connected.

use std::collections::BTreeSet;
use std::slice;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use nvme_proto::{Nqn, Nsid};
use rdma::Time;
use uuid::Uuid;

use crate::backend::{
    Backend, BackendError, FileKey, OpenMode, OpenedBackend, Operation, measure_again, open_null,
};
use crate::config::identifiers::{Eui64, Identifiers, derived_nguid, share_one};
use crate::config::{DirectIo, DiskFaults, Medium, NamespaceConfig, Origin};
use crate::derived_ids::NAME_BYTES;
use crate::inventory::Registry;
use crate::inventory::allowed_host::HostsError;
use crate::inventory::ana::AnaGroupId;
use crate::inventory::error::{ChangeError, ExportError};
use crate::inventory::export::{self, Files};
use crate::inventory::exports::{ExportsNumber, NamespaceChange, OwnedNamespace};
use crate::inventory::namespace::Namespace;
use crate::inventory::persist::protection::ProtectionFile;
use crate::inventory::subsystem::Subsystem;
use crate::limits::{MAX_ALLOWED_HOSTS, MAX_NAMESPACES};
use crate::storage::{Inline, Storage, StorageReport, Submitted, Tag};

#[derive(Clone, Debug)]
pub(crate) struct NewNamespace {
    /// NSID; `None` chooses the lowest free one.
    pub nsid: Option<Nsid>,
    /// Name in log messages, 1 to `NAME_BYTES` bytes.
    pub name: String,
    /// UUID; `None` derives it from the medium.
    pub uuid: Option<Uuid>,
    /// NGUID; `None` derives it from the UUID.
    pub nguid: Option<[u8; 16]>,
    pub eui64: Option<Eui64>,
    /// Version of the content, if the operator has given one.
    pub content_id: Option<String>,
    pub direct_io: DirectIo,
    pub medium: Medium,
    pub writable: bool,
    /// Logical block size as a power of two; `None` chooses that of the medium.
    pub lba_shift: Option<u8>,
    pub ana_group: AnaGroupId,
    /// Whether only the hosts added by [`VisibilityChange::Show`] see it; if false, all hosts do.
    pub masked: bool,
    /// Name of its bdev in the management interface.
    pub bdev: String,
    /// Opened medium; `None` if [`Registry::add_namespace`] shall open it.
    pub opened: Option<OpenedBackend>,
}

/// Change to the hosts that see a namespace with a list of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VisibilityChange {
    /// Shows it to the host with this NQN.
    Show(Nqn),
    /// Hides it from the host with this NQN.
    Hide(Nqn),
}

/// Namespace before and after a change of its size; both have the same index.
#[derive(Debug)]
pub(crate) struct NamespaceResize {
    pub(crate) old: NamespaceChange,
    pub(crate) new: NamespaceChange,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// The namespace was idle: it has been flushed, with this result, and closed.
    Flushed(Result<(), BackendError>),
    /// Operations still ran at the timeout. [`Registry::close_idle`] closes it when they have
    /// ended.
    Busy,
}

impl Registry {
    /// Adds a namespace to a subsystem. Cores export it once they adopt its generation.
    pub(crate) fn add_namespace(
        &self,
        nqn: &Nqn,
        new: NewNamespace,
    ) -> Result<NamespaceChange, ChangeError> {
        let subsystem = self.find_subsystem(nqn)?;
        let mut serials = self.serials();
        let exports = self.publication().exports();
        let list = exports.list(subsystem.index);
        let nsid = match new.nsid {
            Some(nsid) => nsid,
            None => (1..=subsystem.nsid_last)
                .map(Nsid)
                .find(|nsid| list.get(*nsid).is_none())
                .unwrap_or(Nsid::MAX),
        };
        if !(1..=subsystem.nsid_last).contains(&nsid.0) {
            return Err(ChangeError::OutOfRange(subsystem.nsid_last));
        }
        if list.get(nsid).is_some() {
            return Err(ChangeError::Taken { nqn: nqn.to_string(), nsid });
        }
        let derived = || new.medium.namespace_uuid(&subsystem.identity, &new.name);
        let uuid = new.uuid.unwrap_or_else(derived);
        let config = NamespaceConfig {
            nsid,
            uuid,
            name: new.name,
            nguid: new.nguid.unwrap_or_else(|| derived_nguid(uuid)),
            eui64: new.eui64,
            medium: new.medium,
            faults: DiskFaults::NONE,
            writable: new.writable,
            content_id: new.content_id,
            lba_shift: new.lba_shift,
            direct_io: new.direct_io,
            ana_group: new.ana_group,
            visible_to: new.masked.then(BTreeSet::new),
            origin: Origin(format!("{nqn}, namespace {nsid}")),
        };
        self.identifiers_shared_with(&config).add(&subsystem.identity, &config)?;
        let key = config.medium.place().and_then(FileKey::of_place);
        let same_file = exports.namespaces().filter(|other| key.is_some() && other.file_key == key);
        let mut files = Files::of(same_file, self.cache_room());
        files.add(&config)?;
        let slot = exports.free_slots(&[]).next().unwrap_or(MAX_NAMESPACES);
        let index = export::index(slot, serials.namespace)?;
        let namespace = export::open_one(index, &config, new.bdev, new.opened, &files)?;
        let namespace = Arc::new(namespace.taking_over(subsystem.had_namespace(nsid)));
        if config.writable && ProtectionFile::open(&self.state_dir, nqn)?.contains(config.uuid) {
            namespace.protect(true);
        }
        serials.namespace = serials.namespace.wrapping_add(1);
        let added = OwnedNamespace::new(&subsystem, &namespace);
        let generation = self.publish_change(&[], slice::from_ref(&added));
        tracing::info!(%nqn, %nsid, name = namespace.name(), path = ?namespace.path(), "namespace added");
        Ok(added.changed_in(generation))
    }

    /// UUID, NGUID and EUI64 of the exported namespaces that have one of them in common with `new`.
    fn identifiers_shared_with(&self, new: &NamespaceConfig) -> Identifiers {
        let mut identifiers = Identifiers::default();
        for subsystem in self.subsystems() {
            for namespace in subsystem.namespaces().iter() {
                if share_one(&namespace.config, new) {
                    // It is exported already, so its conflicts with other exported namespaces do
                    // not matter.
                    let _ = identifiers.add(&subsystem.identity, &namespace.config);
                }
            }
        }
        identifiers
    }

    /// Publishes the latest exports with some namespaces removed and others added. The caller has
    /// held the lock on `serials` since before it read the exports.
    pub(super) fn publish_change(
        &self,
        removed: &[OwnedNamespace],
        added: &[OwnedNamespace],
    ) -> ExportsNumber {
        let publication = self.publication();
        publication.publish(publication.exports().changed(publication.idle(), removed, added))
    }

    /// Removes a namespace from a subsystem. Cores refuse commands for it once they adopt the
    /// change's generation; [`Registry::close`] closes it.
    pub(crate) fn remove_namespace(
        &self,
        nqn: &Nqn,
        nsid: Nsid,
    ) -> Result<NamespaceChange, ChangeError> {
        let subsystem = self.find_subsystem(nqn)?;
        let _one_at_a_time = self.serials();
        let namespace = subsystem.find_namespace(nsid)?;
        let removed = OwnedNamespace::new(&subsystem, &namespace);
        subsystem.note_removed(nsid);
        let generation = self.publish_change(slice::from_ref(&removed), &[]);
        tracing::info!(%nqn, %nsid, name = namespace.name(), path = ?namespace.path(), "namespace removed");
        Ok(removed.changed_in(generation))
    }

    /// Resizes a namespace to the present size of its file or device, or a null namespace to
    /// `size_bytes`. Commands in progress complete with the old size. Returns `None` if the size is
    /// unchanged.
    pub(crate) fn resize_namespace(
        &self,
        nqn: &Nqn,
        nsid: Nsid,
        size_bytes: Option<u64>,
    ) -> Result<Option<NamespaceResize>, ChangeError> {
        let subsystem = self.find_subsystem(nqn)?;
        let _one_at_a_time = self.serials();
        let old = subsystem.find_namespace(nsid)?;
        let refuse = |reason| ChangeError::NotResizable { nqn: nqn.to_string(), nsid, reason };
        let mut config = old.config.clone();
        if config.faults != DiskFaults::NONE {
            return Err(refuse("it misbehaves on purpose"));
        }
        let opened = match (&mut config.medium, size_bytes) {
            (Medium::Memory { .. }, _) => return Err(refuse("its memory has a fixed size")),
            (Medium::Null { .. }, None) => return Err(refuse("say which size it is to have")),
            (Medium::Null { size_bytes }, Some(wanted)) => {
                *size_bytes = wanted;
                let mode = OpenMode { lba_shift: Some(old.lba_shift), ..OpenMode::default() };
                open_null(wanted, mode).map_err(|error| ExportError::cannot_open(&config, error))?
            }
            (Medium::File { .. } | Medium::Block { .. }, Some(_)) => {
                return Err(refuse("its size is that of its file or device; change that before"));
            }
            (medium @ (Medium::File { .. } | Medium::Block { .. }), None) => {
                let Some(place) = medium.place() else { return Ok(None) };
                if old.health().write_back_failed() {
                    return Err(refuse("what was written to it was lost"));
                }
                if FileKey::of_place(place) != old.file_key {
                    return Err(refuse("another file has its path; reload or add that"));
                }
                let opened = match (old.writable, old.file()) {
                    (true, Some(file)) => measure_again(file, place, old.lba_shift),
                    _ => export::open_medium(&old.config, self.cache_room()),
                };
                opened.map_err(|error| ExportError::cannot_open(&config, error))?
            }
        };
        if opened.exact_bytes == old.exact_bytes {
            return Ok(None);
        }
        if opened.lba_shift != old.lba_shift {
            return Err(refuse("its blocks would have another size"));
        }
        let new = Arc::new(old.resized(&config, opened));
        let [before, after] = [&old, &new].map(|one| OwnedNamespace::new(&subsystem, one));
        let generation = self.publish_change(slice::from_ref(&before), slice::from_ref(&after));
        tracing::info!(
            %nqn, %nsid, name = old.name(), from = old.exact_bytes, to = new.exact_bytes,
            "namespace resized"
        );
        let [old, new] = [before, after].map(|one| one.changed_in(generation));
        Ok(Some(NamespaceResize { old, new }))
    }

    /// Shows a namespace to a host, or hides it. The host's commands in progress complete normally.
    pub(crate) fn change_visibility(
        &self,
        nqn: &Nqn,
        nsid: Nsid,
        change: VisibilityChange,
    ) -> Result<NamespaceChange, ChangeError> {
        let subsystem = self.find_subsystem(nqn)?;
        let _one_at_a_time = self.serials();
        let old = subsystem.find_namespace(nsid)?;
        let mut hosts = old
            .hosts
            .clone()
            .ok_or_else(|| ChangeError::NotMasked { nqn: nqn.to_string(), nsid })?;
        match change {
            VisibilityChange::Show(_) if hosts.len() >= MAX_ALLOWED_HOSTS => {
                return Err(HostsError::TooMany.into());
            }
            VisibilityChange::Show(host) if !hosts.insert(host) => {
                return Err(HostsError::Listed(host.to_string()).into());
            }
            VisibilityChange::Hide(host) if !hosts.remove(&host) => {
                return Err(HostsError::NotListed(host.to_string()).into());
            }
            VisibilityChange::Show(_) | VisibilityChange::Hide(_) => {}
        }
        let new = Namespace::clone(&old).visible_to(Some(hosts));
        let changed = self.publish_redescribed(&subsystem, new);
        tracing::info!(%nqn, %nsid, name = old.name(), ?change, "namespace visibility changed");
        Ok(changed)
    }

    /// Renames a namespace. Its UUID and NGUID stay, even if they were derived from the old name.
    pub(crate) fn rename_namespace(
        &self,
        nqn: &Nqn,
        nsid: Nsid,
        name: String,
    ) -> Result<NamespaceChange, ChangeError> {
        if name.is_empty() || name.len() > NAME_BYTES {
            return Err(ChangeError::Name);
        }
        let subsystem = self.find_subsystem(nqn)?;
        let _one_at_a_time = self.serials();
        let old = subsystem.find_namespace(nsid)?;
        let changed = self.publish_redescribed(&subsystem, Namespace::clone(&old).named(name));
        let to = changed.namespace.name();
        tracing::info!(%nqn, %nsid, from = old.name(), to, "namespace renamed");
        Ok(changed)
    }

    /// Publishes the latest exports with another name or visibility of a namespace, whose backend
    /// stays in use. The caller has held the lock on `serials` since before it read the exports.
    fn publish_redescribed(
        &self,
        subsystem: &Arc<Subsystem>,
        namespace: Namespace,
    ) -> NamespaceChange {
        let one = OwnedNamespace::new(subsystem, &Arc::new(namespace));
        let publication = self.publication();
        let next = publication.exports().redescribed(publication.idle(), &one);
        one.changed_in(publication.publish(next))
    }

    /// Waits until a removed namespace is idle on all cores, flushes it, and closes it. If that
    /// takes longer than `timeout`, a later [`Registry::close_idle`] closes it.
    pub(crate) fn close(&self, removed: NamespaceChange, timeout: Duration) -> Closed {
        if self.publication().wait_idle(removed.generation, timeout) {
            return Closed::Flushed(flush(removed));
        }
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner).push(removed);
        Closed::Busy
    }

    /// Whether the bdev of this name backs a namespace that is exported, or that was removed but is
    /// not closed yet.
    pub(crate) fn uses_bdev(&self, name: &str) -> bool {
        let uses = |namespace: &Namespace| namespace.bdev.as_deref() == Some(name);
        let leaving = self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        leaving.iter().any(|one| uses(&one.namespace))
            || self.exports().namespaces().any(|namespace| uses(namespace))
    }

    /// Number of removed namespaces that are not closed yet.
    pub(crate) fn closing(&self) -> usize {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Flushes and closes the removed namespaces that have become idle since [`Registry::close`].
    pub(crate) fn close_idle(&self) {
        let mut leaving = self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        let is_idle = |one: &mut NamespaceChange| self.publication().is_idle(one.generation);
        let idle: Vec<_> = leaving.extract_if(.., is_idle).collect();
        drop(leaving);
        for removed in idle {
            // `flush` logs the error.
            let _ = flush(removed);
        }
    }
}

/// Flushes and closes a removed namespace, since hosts can no longer flush it.
fn flush(removed: NamespaceChange) -> Result<(), BackendError> {
    let NamespaceChange { namespace, subsystem, .. } = removed;
    if !namespace.writable {
        return Ok(());
    }
    let flushed = flush_backend(namespace.backend());
    if let Err(error) = &flushed {
        let (nqn, nsid, name) = (&subsystem.nqn, namespace.nsid, namespace.name());
        tracing::error!(
            %nqn, %nsid, name, path = ?namespace.path(), %error,
            "a removed namespace could not be flushed: what was written last may be lost"
        );
    }
    flushed
}

fn flush_backend(backend: &Arc<dyn Backend>) -> Result<(), BackendError> {
    let mut storage = Storage::new(Box::new(Inline::new()));
    storage.reserve(1);
    let mut now = Time::ZERO;
    if let Submitted::Over(result) = storage.submit(now, Tag(0), backend, Operation::flush()) {
        return result;
    }
    loop {
        storage.turn(now);
        if let Some(StorageReport::Done { result, .. }) = storage.next_report() {
            return result;
        }
        // A decorator that delays the operation uses this clock, so the loop advances it.
        now = storage.deadline().unwrap_or(now).max(now);
    }
}
