//! Methods that change namespaces, and the description of a namespace.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Arc;

use nvme_proto::{Nqn, Nsid};
use serde_json::{Value, json};
use uuid::Uuid;

use super::ana;
use super::bdev::bdev_name;
use super::method::{Methods, done, parse_nqn};
use super::method_params::{
    AddParams, NamespaceHostParams, ProtectParams, RemoveParams, RenameParams, ResizeParams,
};
use super::rpc::{Params, RpcError, read};
use super::subsystem::parse_host;
use crate::config::values::Nguid;
use crate::config::{NamespaceName, NamespaceSettings, NamespaceSpec};
use crate::inventory::allowed_host::VisibilityChange;
use crate::inventory::edit::namespaces::NewNamespace;
use crate::inventory::error::ChangeError;
use crate::inventory::namespace::Namespace;
use crate::inventory::report::UnclosedNamespace;

impl Methods {
    pub(super) fn add_namespace(&self, params: Params) -> Result<Value, RpcError> {
        let AddParams { nqn, namespace } = read(params)?;
        let nqn = parse_nqn(&nqn)?;
        let name = &namespace.bdev_name;
        // The lock is held until the namespace is added, so that no client deletes the bdev or
        // makes another namespace of it.
        let bdevs = self.bdevs();
        let bdev = bdevs.get(name)?;
        if self.associations.inventory().uses_bdev(name) {
            let message = format!("{name} is the bdev of a namespace already");
            return Err(RpcError::invalid_params(message));
        }
        // 0 lets the target choose the NSID, as in SPDK.
        let nsid = namespace.nsid.filter(|nsid| *nsid != 0).map(Nsid);
        // 0 stands for the default group (in SPDK, for the group with the number of the NSID).
        let ana_group = namespace.anagrpid.filter(|id| *id != 0).map(ana::group).transpose()?;
        let NamespaceSpec { uuid, settings, .. } = bdev.spec.clone();
        let settings = NamespaceSettings {
            name: namespace.name.map(parse_name).transpose()?.unwrap_or(settings.name),
            eui64: parse("eui64: ", namespace.eui64)?,
            content_id: parse("content_id ", namespace.content_id)?,
            description: parse("description: ", namespace.description)?,
            direct_io: namespace.direct_io,
            ana_group: ana_group.unwrap_or_default(),
            visible_to: namespace.no_auto_visible.then(BTreeSet::new),
            ..settings
        };
        let nguid = namespace.nguid.map(|id| Nguid(id.into_bytes()));
        let spec = NamespaceSpec { uuid: namespace.uuid.or(uuid), nguid, settings };
        let new = NewNamespace { nsid, spec, bdev: name.clone(), opened: bdev.memory() };
        let (nsid, _) = self.associations.edit(|edit| edit.add_namespace(&nqn, new))?;
        Ok(nsid.0.into())
    }

    pub(super) fn remove_namespace(&self, params: Params) -> Result<Value, RpcError> {
        let RemoveParams { nqn, nsid } = read(params)?;
        let nqn = parse_nqn(&nqn)?;
        let (_, report) = self.associations.edit(|edit| edit.remove_namespace(&nqn, Nsid(nsid)))?;
        match report.warnings.first() {
            None => Ok(true.into()),
            Some(UnclosedNamespace { problem, .. }) => {
                Err(RpcError::internal(format_args!("the namespace is removed, but {problem}")))
            }
        }
    }

    /// Returns the size in bytes after the call, even if it is unchanged. A failed flush of the old
    /// size is not an error: hosts can flush the same writes through the new one.
    pub(super) fn resize_namespace(&self, params: Params) -> Result<Value, RpcError> {
        let ResizeParams { nqn, nsid, size_bytes } = read(params)?;
        let nqn = parse_nqn(&nqn)?;
        let (bytes, _) =
            self.associations.edit(|edit| edit.resize_namespace(&nqn, Nsid(nsid), size_bytes))?;
        Ok(bytes.into())
    }

    pub(super) fn rename_namespace(&self, params: Params) -> Result<Value, RpcError> {
        let RenameParams { nqn, nsid, name } = read(params)?;
        let (nqn, name) = (parse_nqn(&nqn)?, parse_name(name)?);
        done(self.associations.edit(|edit| edit.rename_namespace(&nqn, Nsid(nsid), name)))
    }

    pub(super) fn protect_namespace(&self, params: Params) -> Result<Value, RpcError> {
        let ProtectParams { nqn, nsid, protected } = read(params)?;
        let nqn = parse_nqn(&nqn)?;
        done(self.associations.protect_namespace(&nqn, Nsid(nsid), protected))
    }

    pub(super) fn change_visibility(
        &self,
        params: Params,
        change: fn(Nqn) -> VisibilityChange,
    ) -> Result<Value, RpcError> {
        let NamespaceHostParams { nqn, nsid, host } = read(params)?;
        let (nqn, change) = (parse_nqn(&nqn)?, change(parse_host(&host)?));
        done(self.associations.edit(|edit| edit.change_visibility(&nqn, Nsid(nsid), change)))
    }
}

pub(super) fn describe_namespace(namespace: &Arc<Namespace>) -> Value {
    let name = bdev_name(namespace);
    let mut described = json!({
        "nsid": namespace.nsid.0,
        "bdev_name": name,
        "name": namespace.name(),
        "uuid": namespace.uuid().to_string(),
        "size_bytes": namespace.exact_bytes,
        "block_size": namespace.lba_bytes(),
        "read_only": namespace.write_protected(),
        "write_protected": namespace.is_protected(),
        "direct_io": namespace.config.direct_io.word(),
        "content_id": namespace.config.content_id.as_deref(),
        "anagrpid": namespace.ana_group.get(),
        "nguid": Uuid::from_bytes(namespace.config.nguid).simple().to_string().to_uppercase(),
    });
    if let Some(description) = &namespace.config.description {
        described["description"] = (**description).into();
    }
    if !namespace.config.qos.is_none() {
        described["limits"] = json!(namespace.config.qos);
    }
    if let Some(eui64) = namespace.config.eui64 {
        described["eui64"] = eui64.to_string().to_uppercase().into();
    }
    if let Some(hosts) = &namespace.config.visible_to {
        let host = |nqn: &Nqn| json!({ "nqn": nqn.as_str() });
        described["hosts"] = hosts.iter().map(host).collect();
    }
    described
}

fn parse_name(name: String) -> Result<NamespaceName, RpcError> {
    NamespaceName::try_from(name).map_err(|_| RpcError::from(ChangeError::Name))
}

/// Parses a text that may be missing. Messages of errors begin with `label`.
fn parse<T: TryFrom<String, Error: Display>>(
    label: &str,
    text: Option<String>,
) -> Result<Option<T>, RpcError> {
    let parsed = text.map(T::try_from).transpose();
    parsed.map_err(|error| RpcError::invalid_params(format_args!("{label}{error}")))
}
