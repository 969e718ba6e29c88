//! `framework_get_config`: the calls that restore the present exports in an empty target.

use std::sync::Arc;

use nvme_proto::Nqn;
use nvme_proto::log::AnaState;
use serde_json::{Value, json};
use uuid::Uuid;

use super::ana::state_name;
use super::bdev::{BdevKind, Bdevs};
use super::keyring::{describe_keys, negotiable_call};
use super::limit_calls::{bdev_limit_call, host_limit_call};
use super::subsystem::{describe_address, describe_socket_address};
use crate::config::values::derived_nguid;
use crate::config::{
    Authentication, DiskFaults, Medium, NamespaceName, NamespaceSettings, NamespaceSpec,
};
use crate::inventory::Inventory;
use crate::inventory::ana::AnaGroupId;
use crate::inventory::host_keys::HostKeyring;
use crate::inventory::namespace::Namespace;
use crate::inventory::published::OwnedNamespace;
use crate::inventory::referral::Referral;
use crate::inventory::subsystem::Subsystem;

/// Names of the parts of a saved configuration (`bdev`, `nvmf`), in the order of loading.
pub(super) fn parts() -> Value {
    json!([
        { "subsystem": "bdev", "depends_on": [] },
        { "subsystem": "keyring", "depends_on": [] },
        { "subsystem": "nvmf", "depends_on": ["bdev", "keyring"] },
    ])
}

/// Calls that create the bdevs: those of clients, and one for each namespace of the configuration
/// file.
pub(super) fn bdev_calls(bdevs: &Bdevs, inventory: &Inventory) -> Vec<Value> {
    let named = bdevs.iter().flat_map(|(name, bdev)| {
        let NamespaceSpec { uuid, settings, .. } = &bdev.spec;
        let call = bdev_call(bdev.kind, name, *uuid, settings, bdev.block_bytes());
        [Some(call), bdev_limit_call(name, &settings.qos)].into_iter().flatten()
    });
    let mut calls: Vec<_> = named.collect();
    let of_file = inventory.owned().filter(|one| one.namespace.bdev.is_none());
    for OwnedNamespace { subsystem, namespace } in of_file {
        let name = medium_name(&subsystem, &namespace);
        let settings = &namespace.config.settings;
        let kind = BdevKind::of(&settings.medium);
        calls.push(bdev_call(kind, &name, None, settings, Some(namespace.lba_bytes())));
        calls.extend(bdev_limit_call(&name, &settings.qos));
    }
    calls
}

fn bdev_call(
    kind: BdevKind,
    name: &str,
    uuid: Option<Uuid>,
    settings: &NamespaceSettings,
    block_bytes: Option<u32>,
) -> Value {
    let mut params = json!({ "name": name });
    if let Some(uuid) = uuid {
        params["uuid"] = uuid.to_string().into();
    }
    match &settings.medium {
        Medium::File { path, .. } | Medium::Block { path } => {
            // A relative path in the configuration file starts at the target's working directory.
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            params["filename"] = path.display().to_string().into();
            params["readonly"] = (!settings.writable).into();
            if let Some(bytes) = block_bytes {
                params["block_size"] = bytes.into();
            }
        }
        Medium::Null { size_bytes } | Medium::Memory { size_bytes } => {
            let bytes = block_bytes.unwrap_or(512);
            params["block_size"] = bytes.into();
            params["num_blocks"] = (size_bytes / u64::from(bytes)).into();
            if !settings.writable {
                params["readonly"] = true.into();
            }
        }
    }
    json!({ "method": kind.create_method(), "params": params })
}

/// Calls that create referrals, subsystems, and namespaces made of the bdevs.
pub(super) fn nvmf_calls(inventory: &Inventory) -> Vec<Value> {
    let referral = |referral: Referral| {
        let mut params = json!({ "address": describe_socket_address(referral.address) });
        if let Some(hosts) = &referral.hosts {
            params["hosts"] = hosts.iter().map(Nqn::as_str).collect();
        }
        json!({ "method": "nvmf_discovery_add_referral", "params": params })
    };
    let negotiable = negotiable_call(&inventory.negotiable());
    let referrals = inventory.referrals().list().into_iter().map(referral);
    let subsystems = inventory.subsystems();
    let subsystems = subsystems.iter().flat_map(|subsystem| subsystem_calls(inventory, subsystem));
    negotiable.into_iter().chain(referrals).chain(subsystems).collect()
}

fn subsystem_calls(inventory: &Inventory, subsystem: &Arc<Subsystem>) -> Vec<Value> {
    let nqn = subsystem.nqn.as_str();
    let hosts = subsystem.hosts();
    let mut calls = vec![json!({
        "method": "nvmf_create_subsystem",
        "params": {
            "nqn": nqn,
            "serial_number": subsystem.serial.text().unwrap_or_default(),
            "model_number": subsystem.model.text().unwrap_or_default(),
            "allow_any_host": hosts.any,
            "max_namespaces": subsystem.nsid_last,
        },
    })];
    if !subsystem.deallocate {
        calls[0]["params"]["deallocate"] = false.into();
    }
    calls.extend(hosts.listed.iter().map(|host| {
        let mut params = json!({ "nqn": nqn, "host": host.as_str() });
        if let Some(credentials) = hosts.keyring.get(host) {
            describe_keys(credentials, &mut params);
        }
        json!({ "method": "nvmf_subsystem_add_host", "params": params })
    }));
    if !hosts.limits.each.is_none() {
        calls.push(host_limit_call(nqn, None, hosts.limits.each.present()));
    }
    calls.extend(
        hosts
            .limits
            .hosts()
            .map(|(host, own)| host_limit_call(nqn, Some(host.as_str()), own.given())),
    );
    for namespace in subsystem.namespaces().iter() {
        let bdev_name = medium_name(subsystem, namespace);
        let mut described = json!({
            "bdev_name": bdev_name,
            "nsid": namespace.nsid.0,
            "uuid": namespace.uuid().to_string(),
        });
        let default_name = namespace.path().map(NamespaceName::of_file);
        if namespace.name() != default_name.as_deref().unwrap_or(&bdev_name) {
            described["name"] = namespace.name().into();
        }
        namespace.config.texts().for_each(|(key, text)| described[key] = text.into());
        if namespace.ana_group != AnaGroupId::DEFAULT {
            described["anagrpid"] = namespace.ana_group.get().into();
        }
        if namespace.config.nguid != derived_nguid(namespace.uuid()) {
            let nguid = Uuid::from_bytes(namespace.config.nguid);
            described["nguid"] = nguid.to_string().into();
        }
        if let Some(eui64) = namespace.config.eui64 {
            described["eui64"] = eui64.to_string().to_uppercase().into();
        }
        if namespace.config.visible_to.is_some() {
            described["no_auto_visible"] = true.into();
        }
        let params = json!({ "nqn": nqn, "namespace": described });
        calls.push(json!({ "method": "nvmf_subsystem_add_ns", "params": params }));
        calls.extend(namespace.config.visible_to.iter().flatten().map(|host| {
            let params = json!({ "nqn": nqn, "nsid": namespace.nsid.0, "host": host.as_str() });
            json!({ "method": "nvmf_ns_add_host", "params": params })
        }));
        if namespace.is_protected() {
            let params = json!({ "nqn": nqn, "nsid": namespace.nsid.0, "protected": true });
            calls.push(json!({ "method": "feedrail_protect_ns", "params": params }));
        }
    }
    for port in &inventory.ports() {
        let Some(ana) = port.ana(subsystem) else { continue };
        let params = json!({ "nqn": nqn, "listen_address": describe_address(port) });
        calls.push(json!({ "method": "nvmf_subsystem_add_listener", "params": params }));
        let differs = |group: &AnaGroupId| ana.state(*group) != AnaState::OPTIMIZED;
        calls.extend(AnaGroupId::all().filter(differs).map(|group| {
            let state = state_name(&ana, group);
            let mut params = params.clone();
            params["ana_state"] = state.into();
            params["anagrpid"] = group.get().into();
            json!({ "method": "nvmf_subsystem_listener_set_ana_state", "params": params })
        }));
    }
    calls
}

/// Settings that the calls cannot express, as one line of text each.
pub(super) fn losses(inventory: &Inventory) -> Vec<String> {
    let mut losses = Vec::new();
    for subsystem in inventory.subsystems() {
        let nqn = subsystem.nqn;
        let HostKeyring { authentication, .. } = subsystem.hosts().keyring;
        if authentication != Authentication::Offered {
            losses.push(format!(
                "authentication = \"{}\" of {nqn} is not saved: hosts with a key authenticate",
                authentication.word()
            ));
        }
        if subsystem.identity.has_dataset() {
            losses.push(format!("dataset_id of {nqn} is not saved, only the UUIDs that follow"));
        }
        let namespaces = subsystem.namespaces();
        let of_directory = |one: &&Arc<Namespace>| one.config.medium.directory().is_some();
        match namespaces.iter().filter(of_directory).count() {
            0 => {}
            count => losses.push(format!(
                "directories of {nqn} are saved as the {count} files that they have now"
            )),
        }
        for namespace in namespaces.iter() {
            losses.extend(losses_of(namespace).map(|loss| {
                format!("{loss} of namespace {} of {nqn} is not saved", namespace.nsid)
            }));
        }
    }
    losses
}

fn losses_of(namespace: &Namespace) -> impl Iterator<Item = &'static str> {
    let NamespaceSettings { faults, medium, .. } = &namespace.config.settings;
    let block_bytes = 1 << namespace.lba_shift;
    let in_blocks = match medium {
        Medium::Null { size_bytes } | Medium::Memory { size_bytes } => {
            size_bytes % block_bytes == 0
        }
        Medium::File { .. } | Medium::Block { .. } => true,
    };
    let is_text = medium.path().is_none_or(|path| path.to_str().is_some());
    let losses = [
        ("the misbehaviour on purpose (faults)", *faults != DiskFaults::NONE),
        ("the last part of a block", !in_blocks),
        ("the path, which is not UTF-8,", !is_text),
    ];
    losses.into_iter().filter(|(_, lost)| *lost).map(|(loss, _)| loss)
}

/// Name of a namespace's bdev; `NQN/NSID` for a namespace of the configuration file.
fn medium_name(subsystem: &Subsystem, namespace: &Namespace) -> String {
    let of_place = || format!("{}/{}", subsystem.nqn, namespace.nsid);
    namespace.bdev.clone().unwrap_or_else(of_place)
}
