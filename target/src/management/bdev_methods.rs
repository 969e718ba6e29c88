//! Methods of the management socket that concern bdevs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::bdev::{Bdev, BdevKind, FileParams, bdev_name};
use super::iostat::describe_io;
use super::method::{Methods, done};
use super::method_params::{BdevFilter, BdevName, IostatFilter, NullSize};
use super::rpc::{NANOS_PER_SECOND, Params, RpcError, read};
use crate::inventory::Inventory;
use crate::inventory::namespace::Namespace;
use crate::inventory::published::OwnedNamespace;

impl Methods {
    pub(super) fn create_file(&self, params: Params, kind: BdevKind) -> Result<Value, RpcError> {
        let params: FileParams = read(params)?;
        self.check_export_root(params.filename())?;
        Ok(self.bdevs().create_file(params, kind)?.into())
    }

    pub(super) fn delete_bdev(&self, params: Params, kind: BdevKind) -> Result<Value, RpcError> {
        let BdevName { name } = read(params)?;
        let mut bdevs = self.bdevs();
        bdevs.get(&name)?;
        if self.associations.inventory().uses_bdev(&name) {
            let message = format!("{name} is the bdev of a namespace; remove that before");
            return Err(RpcError::invalid_params(message));
        }
        done(bdevs.delete(&name, kind))
    }

    /// Resizes the namespace of a bdev to the present size of its file or device.
    pub(super) fn rescan_bdev(&self, params: Params, kind: BdevKind) -> Result<Value, RpcError> {
        let BdevName { name } = read(params)?;
        let bdevs = self.bdevs();
        bdevs.get_of(&name, kind)?;
        done(self.resize_bdev(&name, None))
    }

    pub(super) fn resize_null(&self, params: Params) -> Result<Value, RpcError> {
        let NullSize { name, new_size } = read(params)?;
        let size_bytes = new_size.checked_mul(1 << 20).filter(|bytes| *bytes > 0);
        let wrong = || RpcError::invalid_params("new_size: is zero or too large");
        let size_bytes = size_bytes.ok_or_else(wrong)?;
        let mut bdevs = self.bdevs();
        bdevs.get_of(&name, BdevKind::Null)?;
        self.resize_bdev(&name, Some(size_bytes))?;
        bdevs.set_null_size(&name, size_bytes);
        Ok(true.into())
    }

    /// Resizes the namespace of a bdev. Does nothing without one: its size is read when one is
    /// added.
    fn resize_bdev(&self, name: &str, size_bytes: Option<u64>) -> Result<(), RpcError> {
        for OwnedNamespace { subsystem, namespace } in self.associations.inventory().owned() {
            if namespace.bdev.as_deref() == Some(name) {
                let (nqn, nsid) = (subsystem.nqn, namespace.nsid);
                self.associations.edit(|edit| edit.resize_namespace(&nqn, nsid, size_bytes))?;
            }
        }
        Ok(())
    }

    pub(super) fn get_bdevs(&self, BdevFilter { name }: BdevFilter) -> Result<Value, RpcError> {
        let bdevs = self.bdevs();
        if let Some(name) = &name {
            bdevs.get(name)?;
        }
        let wanted = |(other, _): &(&String, &Bdev)| name.as_ref().is_none_or(|one| one == *other);
        let exported = exported_bdevs(self.associations.inventory());
        let describe = |(name, bdev): (&String, &Bdev)| {
            let namespace = exported.get(name).map(Arc::as_ref);
            let (block_bytes, size_bytes) = match namespace {
                Some(namespace) => (namespace.lba_bytes(), Some(namespace.exact_bytes)),
                // 512 is SPDK's default.
                None => (bdev.block_bytes().unwrap_or(512), bdev.size_bytes().ok()),
            };
            json!({
                "name": name,
                "product_name": bdev.kind.product_name(),
                "uuid": namespace.map(|one| one.uuid()).or(bdev.spec.uuid).map(|id| id.to_string()),
                "block_size": block_bytes,
                "num_blocks": size_bytes.map(|bytes| bytes / u64::from(block_bytes)),
                "claimed": namespace.is_some(),
                "filename": bdev.medium().path().map(|path| path.display().to_string()),
                "readonly": !bdev.writable(),
                "assigned_rate_limits": bdev.spec.settings.qos,
            })
        };
        Ok(bdevs.iter().filter(wanted).map(describe).collect())
    }

    /// Returns the I/O counters of each namespace since it was added, under the name of its bdev.
    pub(super) fn get_iostat(&self, params: Params) -> Result<Value, RpcError> {
        let IostatFilter { name, names } = read(params)?;
        let wanted: Vec<String> = names.into_iter().flatten().chain(name).collect();
        let mut described = Vec::new();
        let mut found = BTreeSet::new();
        for OwnedNamespace { subsystem, namespace } in self.associations.inventory().owned() {
            let name = bdev_name(&namespace);
            if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
                found.insert(name.to_owned());
                described.push(describe_io(&subsystem.nqn, &namespace));
            }
        }
        // A bdev without a namespace has no counters; a name that is no bdev is an error.
        for name in wanted.iter().filter(|name| !found.contains(*name)) {
            self.bdevs().get(name)?;
        }
        let ticks = self.clock.now().as_nanos();
        Ok(json!({ "tick_rate": NANOS_PER_SECOND, "ticks": ticks, "bdevs": described }))
    }
}

fn exported_bdevs(inventory: &Inventory) -> BTreeMap<String, Arc<Namespace>> {
    let named = |one: OwnedNamespace| Some((one.namespace.bdev.clone()?, one.namespace));
    inventory.owned().filter_map(named).collect()
}
