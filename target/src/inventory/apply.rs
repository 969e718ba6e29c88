//! Makes edits of the exports, all differences of one in one generation, or none.

use crate::inventory::edit::{AlteredNamespace, Edit, StepKind, SubsystemStep};
use crate::inventory::error::ExportError;
use crate::inventory::open::OpenPurpose;
use crate::inventory::plan::{OpenedNamespace, Plan};
use crate::inventory::published::{ExportsNumber, NamespaceChange, OwnedNamespace};
use crate::inventory::report::{ExportChange, UnopenedFile};
use crate::inventory::{Inventory, NextSerials};

/// Edit that has been published. Its caller tells hosts of it, and closes the removed namespaces.
#[derive(Debug)]
pub(crate) struct Applied {
    pub(crate) changes: Vec<ExportChange>,
    /// Generation of the namespaces below; `None` if no namespace has changed.
    pub(crate) generation: Option<ExportsNumber>,
    pub(crate) removed: Vec<OwnedNamespace>,
    pub(crate) added: Vec<OwnedNamespace>,
    pub(crate) altered: Vec<AlteredNamespace>,
    /// Whether hosts may find other subsystems, or may no longer use those that they do.
    pub(crate) changes_access: bool,
    pub(crate) unopened: Vec<UnopenedFile>,
}

impl Applied {
    /// Namespaces whose media have to be closed, those before a change of their size included.
    pub(crate) fn closing(self) -> Vec<NamespaceChange> {
        let Some(generation) = self.generation else { return Vec::new() };
        let resized = self.altered.into_iter().filter_map(|AlteredNamespace { old, new }| {
            (!old.namespace.shares_backend(&new.namespace)).then_some(old)
        });
        self.removed.into_iter().chain(resized).map(|one| one.changed_in(generation)).collect()
    }
}

impl Inventory {
    /// Makes an edit. Returns the value of `edit` and what hosts have to be told.
    ///
    /// # Errors
    /// The error of `edit`, or the first [`ExportError`]. Nothing has changed then.
    pub(crate) fn edit<T, E: From<ExportError>>(
        &self,
        edit: impl FnOnce(&mut Edit<'_>) -> Result<T, E>,
    ) -> Result<(T, Applied), E> {
        self.close_idle();
        let mut serials = self.serials();
        let (value, plan) = self.plan(*serials, edit)?;
        let applied = plan.apply(OpenPurpose::Serve, &mut serials)?;
        for ExportChange { nqn, kind } in &applied.changes {
            tracing::info!(%nqn, change = ?kind, "exports changed");
        }
        for AlteredNamespace { new, .. } in &applied.altered {
            let OwnedNamespace { subsystem, namespace } = new;
            tracing::info!(nqn = %subsystem.nqn, change = ?namespace, "namespace changed");
        }
        Ok((value, applied))
    }

    /// Plans an edit without making it. Returns the changes that it would make.
    ///
    /// # Errors
    /// The same as those of [`Inventory::edit`].
    pub(crate) fn try_edit<E: From<ExportError>>(
        &self,
        edit: impl FnOnce(&mut Edit<'_>) -> Result<(), E>,
    ) -> Result<Vec<ExportChange>, E> {
        self.close_idle();
        let serials = self.serials();
        Ok(self.plan(*serials, edit)?.1.changes())
    }

    fn plan<T, E: From<ExportError>>(
        &self,
        serials: NextSerials,
        edit: impl FnOnce(&mut Edit<'_>) -> Result<T, E>,
    ) -> Result<(T, Plan<'_>), E> {
        let mut differences = Edit::new(self, serials);
        let value = edit(&mut differences)?;
        Ok((value, Plan::of(differences, &|_, backend| backend, &mut Err)?))
    }
}

impl Plan<'_> {
    /// Publishes a plan. The caller has held the lock on `serials` since before it made the edit.
    pub(super) fn apply(
        mut self,
        purpose: OpenPurpose,
        serials: &mut NextSerials,
    ) -> Result<Applied, ExportError> {
        if purpose == OpenPurpose::Serve {
            self.edit.listed.iter_mut().try_for_each(|(_, listed)| listed.save())?;
        }
        let changes = self.changes();
        let Plan { edit, added, unopened } = self;
        let Edit { inventory, exports: _, subsystems, steps, removed, altered, listed, .. } = edit;
        *serials = edit.serials;
        let rekeyed = edit.discovery_keyring.is_some_and(|keyring| {
            let mut present = inventory.discovery_keyring();
            let differs = *present != keyring;
            *present = keyring;
            differs
        });
        for (subsystem, listed) in listed {
            subsystem.set_left_out_files(listed.left_out);
        }
        // First remove and then add, so that hosts that find a new subsystem find all its
        // namespaces.
        for SubsystemStep { subsystem, kind } in &steps {
            match kind {
                StepKind::Remove => {
                    inventory.ports().iter().for_each(|port| _ = port.remove(subsystem));
                }
                StepKind::Unserve(port) => _ = port.remove(subsystem),
                StepKind::Allow(hosts) => subsystem.set_hosts(hosts.clone()),
                StepKind::Add | StepKind::Serve(_) => {}
            }
        }
        *inventory.lock_subsystems() = subsystems;
        for OwnedNamespace { subsystem, namespace } in &removed {
            subsystem.note_removed(namespace.nsid);
        }
        let added: Vec<_> = added.into_iter().map(|OpenedNamespace { owned, .. }| owned).collect();
        altered.iter().for_each(|one| one.new.namespace.apply_limits());
        let generation = inventory.publish(&removed, &added, &altered);
        for SubsystemStep { subsystem, kind } in &steps {
            match kind {
                StepKind::Serve(port) => _ = port.add(subsystem),
                StepKind::Remove => inventory.close_io_stats(subsystem),
                StepKind::Add | StepKind::Allow(_) | StepKind::Unserve(_) => {}
            }
        }
        let changes_access =
            rekeyed || steps.iter().any(|step| !matches!(step.kind, StepKind::Add));
        Ok(Applied { changes, generation, removed, added, altered, changes_access, unopened })
    }
}

impl Inventory {
    /// Publishes the latest exports with these changes, if there are any.
    fn publish(
        &self,
        removed: &[OwnedNamespace],
        added: &[OwnedNamespace],
        altered: &[AlteredNamespace],
    ) -> Option<ExportsNumber> {
        let old = altered.iter().map(|one| &one.old);
        let new = altered.iter().map(|one| &one.new);
        let removed: Vec<_> = removed.iter().chain(old).cloned().collect();
        let added: Vec<_> = added.iter().chain(new).cloned().collect();
        let publication = self.publication();
        let changes = !(removed.is_empty() && added.is_empty());
        if added.iter().any(|one| one.namespace.quota().is_limited()) {
            publication.limits_set();
        }
        let next = || publication.exports().changed(publication.idle(), &removed, &added);
        changes.then(|| publication.publish(next()))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use nvme_proto::{Nqn, Nsid};

    use super::*;
    use crate::config::{Config, HostPolicy, Medium, NamespaceSettings, SubsystemSpec};
    use crate::doorbell::Doorbell;
    use crate::inventory::edit::namespaces::NewNamespace;
    use crate::inventory::error::ChangeError;

    const NQN: &str = "nqn.2026-01.io.feedrail:t";

    fn nqn() -> Nqn {
        NQN.parse().expect("valid")
    }

    fn inventory() -> Arc<Inventory> {
        let text = format!(
            "management = \"socket\"\n[[port]]\naddress = \"127.0.0.1\"\n\
             [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nkind = \"null\"\nsize_bytes = 4096\nread_only = true\n"
        );
        let config = Config::from_toml(Path::new("/t.toml"), &text).expect("valid");
        Inventory::open(&config, OpenPurpose::Check).expect("opened")
    }

    fn exported(inventory: &Inventory) -> Vec<(u32, String, u64)> {
        let namespaces = inventory.namespaces();
        namespaces.iter().map(|one| (one.nsid.0, one.name().to_owned(), one.exact_bytes)).collect()
    }

    #[test]
    fn an_edit_that_fails_changes_nothing() {
        let inventory = inventory();
        let (before, generation) = (exported(&inventory), inventory.exports().generation());
        let medium = Medium::File { path: "/no/such/file".into(), root: None };
        let spec = NamespaceSettings::new("gone".into(), medium, false).into();
        let new = NewNamespace { nsid: None, spec, bdev: "gone".into(), opened: None };
        let edited = inventory.edit(|edit| {
            edit.remove_namespace(&nqn(), Nsid(1))?;
            edit.add_namespace(&nqn(), new)
        });
        let error = edited.expect_err("there is no file");
        assert!(matches!(error, ChangeError::Export(ExportError::Open { .. })), "{error}");
        assert_eq!(exported(&inventory), before);
        assert_eq!(inventory.exports().generation(), generation);
        assert_eq!(inventory.try_edit(|edit| edit.remove_namespace(&nqn(), Nsid(9))).ok(), None);
        let tried = inventory.try_edit(|edit| edit.remove_namespace(&nqn(), Nsid(1)));
        assert_eq!(tried.expect("it is there").len(), 1);
        assert_eq!(exported(&inventory), before);
    }

    #[test]
    fn only_another_backend_is_waited_for() {
        let inventory = inventory();
        let mut core = inventory.publication().join(Doorbell::new().expect("a descriptor"));
        let index = inventory.namespaces()[0].index;
        let renamed = inventory.edit(|edit| edit.rename_namespace(&nqn(), Nsid(1), "other".into()));
        let (_, applied) = renamed.expect("it is there");
        assert!(core.follow() && core.draining().is_empty());
        assert_eq!(applied.closing().len(), 0);
        let resize = |edit: &mut Edit<'_>| edit.resize_namespace(&nqn(), Nsid(1), Some(8192));
        let (bytes, applied) = inventory.edit(resize).expect("it is null");
        assert_eq!((bytes, applied.closing().len()), (8192, 1));
        assert!(core.follow());
        assert_eq!(core.draining().len(), 1);
        assert_eq!(core.namespace(index).map(|one| one.exact_bytes), Some(8192));
        let (bytes, applied) = inventory.edit(resize).expect("it has that size");
        assert_eq!((bytes, applied.generation), (8192, None));
        assert_eq!(exported(&inventory), [(1, "other".to_owned(), 8192)]);
    }

    #[test]
    fn a_slot_of_a_removed_subsystem_is_used_again() {
        let inventory = inventory();
        let add = |name: &str| {
            let nqn: Nqn = name.parse().expect("valid");
            let new = SubsystemSpec::new(nqn, HostPolicy::Listed(Vec::new()));
            inventory.edit(|edit| edit.add_subsystem(new, None)).expect("a new name");
            let index = inventory.subsystem(&nqn).expect("it is there").index;
            (index.slot, index.serial)
        };
        assert_eq!(add("nqn.2026-01.io.feedrail:a"), (1, 1));
        inventory.edit(|edit| edit.remove_subsystem(&nqn())).expect("it is there");
        assert_eq!(exported(&inventory), []);
        assert_eq!(add("nqn.2026-01.io.feedrail:b"), (0, 2));
        let error = inventory.edit(|edit| edit.remove_subsystem(&nqn())).expect_err("it is gone");
        assert!(matches!(error, ChangeError::NoSubsystem(_)), "{error}");
    }
}
