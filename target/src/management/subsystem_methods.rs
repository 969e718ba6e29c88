//! Methods that change subsystems and their hosts, and the description of a subsystem.

use std::sync::Arc;

use nvme_proto::Nqn;
use serde_json::{Value, json};

use super::keyring::describe_keys;
use super::method::{Methods, done, parse_nqn};
use super::method_params::{AnyHostParams, HostParams, SubsystemFilter, SubsystemName};
use super::namespace_methods::describe_namespace;
use super::rpc::{Params, RpcError, read};
use super::subsystem::{CreateParams, describe_address, parse_host};
use crate::inventory::Inventory;
use crate::inventory::allowed_host::{AllowedHosts, HostsChange};
use crate::inventory::port::Port;
use crate::inventory::subsystem::Subsystem;

impl Methods {
    pub(super) fn get_subsystems(
        &self,
        SubsystemFilter { nqn }: SubsystemFilter,
    ) -> Result<Value, RpcError> {
        let nqn = nqn.as_deref().map(parse_nqn).transpose()?;
        let inventory = self.associations.inventory();
        nqn.map(|nqn| inventory.find_subsystem(&nqn)).transpose()?;
        let wanted = |of: &&Arc<Subsystem>| nqn.is_none_or(|nqn| of.nqn == nqn);
        let describe = |of| self.describe(of);
        Ok(inventory.subsystems().iter().filter(wanted).map(describe).collect())
    }

    fn describe(&self, subsystem: &Arc<Subsystem>) -> Value {
        let inventory = self.associations.inventory();
        let ports = ports_of(inventory, subsystem);
        let addresses = ports.iter().map(|port| describe_address(port));
        let AllowedHosts { any, listed, keyring, limits: of_hosts } = subsystem.hosts();
        let host = |nqn: &Nqn| {
            let mut host = json!({ "nqn": nqn.as_str() });
            if let Some(credentials) = keyring.get(nqn) {
                describe_keys(credentials, &mut host);
            }
            let limits = of_hosts.own(nqn);
            if !limits.is_empty() {
                host["limits"] = json!(limits);
            }
            host
        };
        let limits = inventory.limits();
        json!({
            "nqn": subsystem.nqn.as_str(),
            "subtype": "NVMe",
            "listen_addresses": addresses.collect::<Value>(),
            "listeners": ports.iter().map(|port| json!(port.status())).collect::<Value>(),
            "allow_any_host": any,
            "authentication": keyring.authentication.word(),
            "hosts": listed.iter().map(host).collect::<Value>(),
            "each_host": of_hosts.each,
            "serial_number": subsystem.serial.to_string(),
            "model_number": subsystem.model.to_string(),
            "max_namespaces": subsystem.nsid_last,
            "deallocate": subsystem.deallocate,
            "min_cntlid": limits.cntlids.first,
            "max_cntlid": limits.cntlids.last,
            "left_out_files": subsystem.left_out_files().count,
            "namespaces": subsystem.namespaces().iter().map(describe_namespace).collect::<Value>(),
        })
    }

    pub(super) fn create_subsystem(&self, params: CreateParams) -> Result<Value, RpcError> {
        let (spec, nsid_last) = params.subsystem(self.associations.inventory().limits().cntlids)?;
        done(self.associations.edit(|edit| edit.add_subsystem(spec, nsid_last)))
    }

    pub(super) fn delete_subsystem(
        &self,
        SubsystemName { nqn }: SubsystemName,
    ) -> Result<Value, RpcError> {
        let report = self.listeners.remove_subsystem(&parse_nqn(&nqn)?)?;
        if report.warnings.is_empty() {
            return Ok(true.into());
        }
        let warnings: Vec<_> = report.warnings.iter().map(ToString::to_string).collect();
        let warnings = warnings.join(", ");
        Err(RpcError::internal(format_args!("the subsystem is removed, but {warnings}")))
    }

    pub(super) fn remove_host(
        &self,
        HostParams { nqn, host }: HostParams,
    ) -> Result<Value, RpcError> {
        let (nqn, change) = (parse_nqn(&nqn)?, HostsChange::Remove(parse_host(&host)?));
        done(self.associations.edit(|edit| edit.change_hosts(&nqn, change)))
    }

    pub(super) fn allow_any_host(&self, params: Params) -> Result<Value, RpcError> {
        let AnyHostParams { nqn, allow_any_host } = read(params)?;
        let (nqn, change) = (parse_nqn(&nqn)?, HostsChange::AllowAny(allow_any_host));
        done(self.associations.edit(|edit| edit.change_hosts(&nqn, change)))
    }
}

fn ports_of(inventory: &Inventory, subsystem: &Arc<Subsystem>) -> Vec<Arc<Port>> {
    inventory.ports().into_iter().filter(|port| port.serves(subsystem)).collect()
}
