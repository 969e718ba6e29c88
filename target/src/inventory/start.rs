//! Opens the exports of a configuration at the start of a target.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use crate::backend::CacheRoom;
use crate::config::Config;
use crate::inventory::edit::Edit;
use crate::inventory::edit::configuration::Refuse;
use crate::inventory::error::ExportError;
use crate::inventory::open::{Decorate, OpenPurpose};
use crate::inventory::open_warnings::log_unopened;
use crate::inventory::persist::protection::{ProtectionError, ProtectionWriter};
use crate::inventory::plan::Plan;
use crate::inventory::port::Port;
use crate::inventory::published::Publication;
use crate::inventory::referral::Referrals;
use crate::inventory::report::UnopenedFile;
use crate::inventory::{Inventory, NextSerials};

impl Inventory {
    /// Opens all namespaces of a configuration and creates the inventory that exports them.
    ///
    /// # Errors
    /// The first [`ExportError`]. The files and devices opened before it are closed.
    pub fn open(config: &Config, purpose: OpenPurpose) -> Result<Arc<Self>, ExportError> {
        Self::open_with(config, purpose, &|_, backend| backend)
    }

    /// Opens a configuration as [`Inventory::open`] does, with backends wrapped by `decorate`.
    ///
    /// # Errors
    /// The first [`ExportError`]. The files and devices opened before it are closed.
    pub fn open_with(
        config: &Config,
        purpose: OpenPurpose,
        decorate: Decorate<'_>,
    ) -> Result<Arc<Self>, ExportError> {
        Self::start(config, purpose, decorate, &mut Err)
    }

    /// Opens a configuration to check it, and collects all errors.
    ///
    /// # Errors
    /// One error for each namespace, directory and state file that is unusable.
    pub fn check(config: &Config) -> Result<Arc<Self>, Vec<ExportError>> {
        let mut errors = Vec::new();
        let refuse = &mut |error| {
            errors.push(error);
            Ok(())
        };
        let started = Self::start(config, OpenPurpose::Check, &|_, backend| backend, refuse);
        match started {
            Ok(inventory) if errors.is_empty() => Ok(inventory),
            started => {
                errors.extend(started.err());
                Err(errors)
            }
        }
    }

    fn start(
        config: &Config,
        purpose: OpenPurpose,
        decorate: Decorate<'_>,
        refuse: Refuse<'_>,
    ) -> Result<Arc<Self>, ExportError> {
        let inventory = Arc::new(Self::without_exports(config, purpose)?);
        let mut serials = inventory.serials();
        let mut edit = Edit::new(&inventory, *serials);
        edit.take_configuration(config, &[], refuse)?;
        let mut plan = Plan::of(edit, decorate, refuse)?;
        refuse_empty(&mut plan, refuse)?;
        plan.apply(purpose, &mut serials)?;
        drop(serials);
        for subsystem in inventory.subsystems() {
            let namespaces = subsystem.namespaces().len();
            tracing::info!(nqn = %subsystem.nqn, namespaces, "subsystem");
        }
        Ok(inventory)
    }

    fn without_exports(config: &Config, purpose: OpenPurpose) -> Result<Self, ProtectionError> {
        let writable = config.subsystems.iter().any(|of| {
            of.namespaces.iter().any(|one| one.writable)
                || of.directories.iter().any(|one| one.writable)
        });
        let keeps = purpose == OpenPurpose::Serve && (config.is_managed() || writable);
        let keeper = keeps.then(|| ProtectionWriter::start(&config.state_dir)).transpose()?;
        let ports = config.ports.iter().filter(|port| !port.is_wildcard());
        Ok(Self {
            limits: config.limits.clone(),
            machine: config.machine,
            discovery_nqn: config.discovery_nqn,
            discovery_keyring: Mutex::default(),
            negotiable: Mutex::default(),
            managed: config.is_managed(),
            ports: Mutex::new(ports.map(|port| Arc::new(Port::new(port))).collect()),
            subsystems: Mutex::default(),
            referrals: Referrals::default(),
            publication: Publication::new(),
            serials: Mutex::new(NextSerials { namespace: 0, subsystem: 0 }),
            leaving: Mutex::default(),
            state_dir: config.state_dir.clone(),
            cache_room: Arc::new(CacheRoom::of_this_machine()),
            keeper,
            core_io_stats: Mutex::default(),
        })
    }
}

/// Logs the files of directories that cannot be opened, and refuses subsystems without any
/// file that can.
fn refuse_empty(plan: &mut Plan<'_>, refuse: Refuse<'_>) -> Result<(), ExportError> {
    log_unopened(&plan.unopened);
    let mut told: BTreeSet<_> = plan.added.iter().map(|one| one.owned.subsystem.index).collect();
    for UnopenedFile { subsystem, config, error } in std::mem::take(&mut plan.unopened) {
        if told.insert(subsystem.index) {
            refuse(ExportError::cannot_open(&config, error))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
