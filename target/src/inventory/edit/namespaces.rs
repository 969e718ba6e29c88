//! Namespaces as operators add, remove, resize, rename, show and hide them.

use std::sync::Arc;

use nvme_proto::{Nqn, Nsid};

use super::{AlteredNamespace, Edit, WantedNamespace};
use crate::backend::{FileKey, OpenMode, OpenedBackend, measure_again, open_null};
use crate::config::identifiers::{Identifiers, share_one};
use crate::config::{
    DiskFaults, Medium, NamespaceConfig, NamespaceName, NamespaceSpec, Origin, QosOverride,
};
use crate::inventory::allowed_host::VisibilityChange;
use crate::inventory::error::HostsError;
use crate::inventory::error::{ChangeError, ExportError};
use crate::inventory::namespace::Namespace;
use crate::inventory::open;
use crate::inventory::published::OwnedNamespace;
use crate::limits::MAX_ALLOWED_HOSTS;

#[derive(Clone, Debug)]
pub(crate) struct NewNamespace {
    /// NSID; `None` chooses the lowest free one.
    pub(crate) nsid: Option<Nsid>,
    pub(crate) spec: NamespaceSpec,
    /// Name of its bdev in the management interface.
    pub(crate) bdev: String,
    /// Opened medium; `None` if it shall be opened.
    pub(crate) opened: Option<OpenedBackend>,
}

impl Edit<'_> {
    /// Adds a namespace to a subsystem, and returns its NSID.
    pub(crate) fn add_namespace(
        &mut self,
        nqn: &Nqn,
        new: NewNamespace,
    ) -> Result<Nsid, ChangeError> {
        let subsystem = self.subsystem(nqn)?;
        let list = self.exports.list(subsystem.index);
        let mut free = (1..=subsystem.nsid_last).map(Nsid).filter(|nsid| list.get(*nsid).is_none());
        let nsid = new.nsid.or_else(|| free.next()).unwrap_or(Nsid::MAX);
        if !(1..=subsystem.nsid_last).contains(&nsid.0) {
            return Err(ChangeError::OutOfRange(subsystem.nsid_last));
        }
        if list.get(nsid).is_some() {
            return Err(ChangeError::Taken { nqn: nqn.to_string(), nsid });
        }
        let origin = Origin(format!("{nqn}, namespace {nsid}"));
        let config = new.spec.resolve(nsid, &subsystem.identity, origin);
        self.identifiers_shared_with(&config).add(&subsystem.identity, &config)?;
        let NewNamespace { bdev, opened, .. } = new;
        let bdev = Some(bdev);
        self.wanted.push(WantedNamespace { subsystem, config, replaces: None, bdev, opened });
        Ok(nsid)
    }

    /// UUID, NGUID and EUI64 of the exported namespaces that have one of them in common with `new`.
    fn identifiers_shared_with(&self, new: &NamespaceConfig) -> Identifiers {
        let mut identifiers = Identifiers::default();
        for subsystem in &self.subsystems {
            for namespace in self.exports.list(subsystem.index).iter() {
                if share_one(&namespace.config, new) {
                    // It is exported already, so its conflicts with other exported namespaces do
                    // not matter.
                    let _ = identifiers.add(&subsystem.identity, &namespace.config);
                }
            }
        }
        identifiers
    }

    pub(crate) fn remove_namespace(&mut self, nqn: &Nqn, nsid: Nsid) -> Result<(), ChangeError> {
        let removed = self.namespace(nqn, nsid)?;
        self.removed.push(removed);
        Ok(())
    }

    /// Shows a namespace to a host, or hides it. The host's commands in progress complete normally.
    pub(crate) fn change_visibility(
        &mut self,
        nqn: &Nqn,
        nsid: Nsid,
        change: VisibilityChange,
    ) -> Result<(), ChangeError> {
        let old = self.namespace(nqn, nsid)?;
        let hosts = old.namespace.config.visible_to.clone();
        let mut hosts =
            hosts.ok_or_else(|| ChangeError::NotMasked { nqn: nqn.to_string(), nsid })?;
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
        self.alter(old, |namespace| namespace.visible_to(Some(hosts)));
        Ok(())
    }

    /// Sets the limits that `limits` gives. Returns nothing if the namespace has these already.
    pub(crate) fn limit_namespace(
        &mut self,
        nqn: &Nqn,
        nsid: Nsid,
        limits: QosOverride,
    ) -> Result<(), ChangeError> {
        let old = self.namespace(nqn, nsid)?;
        let limits = limits.over(old.namespace.config.qos);
        self.alter(old, |namespace| namespace.limited_to(limits));
        Ok(())
    }

    /// Renames a namespace. Its UUID and NGUID stay, even if they were derived from the old name.
    pub(crate) fn rename_namespace(
        &mut self,
        nqn: &Nqn,
        nsid: Nsid,
        name: NamespaceName,
    ) -> Result<(), ChangeError> {
        let old = self.namespace(nqn, nsid)?;
        self.alter(old, |namespace| namespace.named(name));
        Ok(())
    }

    /// Resizes a namespace to the present size of its file or device, or a null namespace to
    /// `size_bytes`. Commands in progress complete with the old size. Returns its size in bytes.
    pub(crate) fn resize_namespace(
        &mut self,
        nqn: &Nqn,
        nsid: Nsid,
        size_bytes: Option<u64>,
    ) -> Result<u64, ChangeError> {
        let old = self.namespace(nqn, nsid)?;
        let refuse = |reason| ChangeError::NotResizable { nqn: nqn.to_string(), nsid, reason };
        let mut config = old.namespace.config.clone();
        if let (Medium::Null { size_bytes }, Some(wanted)) =
            (&mut config.settings.medium, size_bytes)
        {
            *size_bytes = wanted;
        }
        let opened = self.open_resized(&old.namespace, &config, size_bytes, refuse)?;
        let exact_bytes = opened.exact_bytes;
        if exact_bytes == old.namespace.exact_bytes {
            return Ok(exact_bytes);
        }
        if opened.lba_shift != old.namespace.lba_shift {
            return Err(refuse("its blocks would have another size"));
        }
        self.alter(old, |namespace| namespace.resized(config, opened));
        Ok(exact_bytes)
    }

    /// Opens the medium of a namespace with its new size.
    fn open_resized(
        &self,
        old: &Namespace,
        config: &NamespaceConfig,
        size_bytes: Option<u64>,
        refuse: impl Fn(&'static str) -> ChangeError,
    ) -> Result<OpenedBackend, ChangeError> {
        if config.faults != DiskFaults::NONE {
            return Err(refuse("it misbehaves on purpose"));
        }
        let place = match (&config.medium, config.medium.place(), size_bytes) {
            (Medium::Memory { .. }, ..) => return Err(refuse("its memory has a fixed size")),
            (Medium::Null { .. }, _, None) => return Err(refuse("say which size it is to have")),
            (Medium::Null { size_bytes }, ..) => {
                let mode = OpenMode { lba_shift: Some(old.lba_shift), ..OpenMode::default() };
                let opened = open_null(*size_bytes, mode);
                return Ok(opened.map_err(|error| ExportError::cannot_open(config, error))?);
            }
            (Medium::File { .. } | Medium::Block { .. }, _, Some(_)) => {
                return Err(refuse("its size is that of its file or device; change that before"));
            }
            (Medium::File { .. } | Medium::Block { .. }, place, None) => place,
        };
        if old.health().write_back_failed() {
            return Err(refuse("what was written to it was lost"));
        }
        if place.and_then(FileKey::of_place) != old.file_key {
            return Err(refuse("another file has its path; reload or add that"));
        }
        let opened = match (old.writable, old.file(), place) {
            (true, Some(file), Some(place)) => measure_again(file, place, old.lba_shift),
            _ => open::open_medium(config, self.inventory.cache_room()),
        };
        Ok(opened.map_err(|error| ExportError::cannot_open(config, error))?)
    }

    fn namespace(&self, nqn: &Nqn, nsid: Nsid) -> Result<OwnedNamespace, ChangeError> {
        let subsystem = self.subsystem(nqn)?;
        let namespace = subsystem.find_namespace(nsid)?;
        Ok(OwnedNamespace { subsystem, namespace })
    }

    pub(super) fn alter(
        &mut self,
        old: OwnedNamespace,
        alter: impl FnOnce(&Namespace) -> Namespace,
    ) {
        let new = Arc::new(alter(&old.namespace));
        let new = OwnedNamespace::new(&old.subsystem, &new);
        self.altered.push(AlteredNamespace { old, new });
    }
}
