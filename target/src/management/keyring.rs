//! Keys of hosts by name, as operators change them at run time, and how they are saved.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use feedrail_auth::{DhGroup, HashFunction, HostEntry, read_key_file_with};
use serde_json::{Value, json};

use super::rpc::RpcError;
use crate::inventory::Inventory;
use crate::inventory::host_keys::{HostCredentials, NegotiableByDefault};
use crate::limits::MAX_ALLOWED_HOSTS;

/// Key files by name. What a key file contains is read when a host gets it.
#[derive(Debug, Default)]
pub(super) struct Keyring(BTreeMap<String, PathBuf>);

impl Keyring {
    /// Returns the name and the file of a key. An absolute path stands for itself.
    pub(super) fn find(&self, name: &str) -> Result<PathBuf, RpcError> {
        if name.starts_with("DHHC-1:") {
            let message = "a key is given by its name or by the path of its file, never itself";
            return Err(RpcError::invalid_params(message));
        }
        let path = Path::new(name);
        let known = self.0.get(name).cloned();
        known.or_else(|| path.is_absolute().then(|| path.to_owned())).ok_or_else(|| {
            RpcError::invalid_params(format_args!(
                "dhchap_key: there is no key {name:?}: add it with keyring_file_add_key, or give the absolute path of its file"
            ))
        })
    }

    /// Adds a file whose key can be read.
    pub(super) fn add(&mut self, name: String, path: PathBuf) -> Result<(), RpcError> {
        if !path.is_absolute() {
            return Err(RpcError::invalid_params("path: is not absolute"));
        }
        if self.0.contains_key(&name) {
            return Err(RpcError::invalid_params(format_args!("there is a key {name:?} already")));
        }
        if self.0.len() >= 2 * MAX_ALLOWED_HOSTS {
            return Err(RpcError::invalid_params("too many keys"));
        }
        read_key_file_with(&path, &crate::confinement::open)
            .map_err(|error| RpcError::invalid_params(format_args!("path: {error}")))?;
        self.0.insert(name, path);
        Ok(())
    }

    /// Removes a key that no host of the inventory uses.
    pub(super) fn remove(&mut self, name: &str, inventory: &Inventory) -> Result<(), RpcError> {
        let has_it = |credentials: &HostCredentials| {
            credentials
                .names
                .as_ref()
                .is_some_and(|(key, ctrlr_key)| key == name || ctrlr_key.as_deref() == Some(name))
        };
        for subsystem in inventory.subsystems() {
            let hosts = subsystem.hosts().keyring;
            if let Some((host, _)) = hosts.hosts().find(|(_, credentials)| has_it(credentials)) {
                let nqn = subsystem.nqn;
                return Err(RpcError::invalid_params(format_args!(
                    "host {host} of {nqn} has the key {name:?}: remove the host, or set other keys"
                )));
            }
        }
        match self.0.remove(name) {
            Some(_) => Ok(()),
            None => Err(RpcError::invalid_params(format_args!("there is no key {name:?}"))),
        }
    }

    /// Describes the keys as `keyring_get_keys` does.
    pub(super) fn describe(&self) -> Value {
        let describe = |(name, path): (&String, &PathBuf)| json!({ "name": name, "module": "keyring_file", "removed": false, "path": path.display().to_string() });
        self.0.iter().map(describe).collect()
    }
}

/// Adds the names of a host's keys to the parameters of `nvmf_subsystem_add_host`.
pub(super) fn describe_keys(credentials: &HostCredentials, params: &mut Value) {
    let (key, ctrlr_key) = names(credentials);
    params["dhchap_key"] = key.into();
    if let Some(key) = ctrlr_key {
        params["dhchap_ctrlr_key"] = key.into();
    }
    describe_negotiable(&credentials.entry.hashes, &credentials.entry.groups, params);
}

/// Adds hash functions and groups to the parameters of a call; those of an empty list are left out.
fn describe_negotiable(hashes: &[HashFunction], groups: &[Option<DhGroup>], params: &mut Value) {
    if !hashes.is_empty() {
        params["dhchap_digests"] = hashes.iter().map(|hash| hash.name()).collect();
    }
    if !groups.is_empty() {
        params["dhchap_dhgroups"] = groups.iter().map(|group| DhGroup::name_of(*group)).collect();
    }
}

/// Names of a host's keys: those in the keyring, or the paths of files that a configuration names.
fn names(credentials: &HostCredentials) -> (String, Option<String>) {
    let path = |path: &PathBuf| path.display().to_string();
    let HostEntry { dhchap_key, dhchap_ctrl_key, .. } = &credentials.entry;
    let of_files = || (path(dhchap_key), dhchap_ctrl_key.as_ref().map(path));
    credentials.names.clone().unwrap_or_else(of_files)
}

/// Calls that add the keys of the present hosts to a keyring.
pub(super) fn keyring_calls(keyring: &Keyring, inventory: &Inventory) -> Vec<Value> {
    let mut keys = keyring.0.clone();
    for subsystem in inventory.subsystems() {
        for (_, credentials) in subsystem.hosts().keyring.hosts() {
            let (key, ctrlr_key) = names(credentials);
            let entry = &credentials.entry;
            keys.entry(key).or_insert_with(|| entry.dhchap_key.clone());
            if let Some((name, path)) = ctrlr_key.zip(entry.dhchap_ctrl_key.clone()) {
                keys.entry(name).or_insert(path);
            }
        }
    }
    let call = |(name, path): (String, PathBuf)| {
        let params = json!({ "name": name, "path": path.display().to_string() });
        json!({ "method": "keyring_file_add_key", "params": params })
    };
    keys.into_iter().map(call).collect()
}

/// Call that sets what hosts may negotiate, if it was set.
pub(super) fn negotiable_call(negotiable: &NegotiableByDefault) -> Option<Value> {
    if *negotiable == NegotiableByDefault::default() {
        return None;
    }
    let mut params = json!({});
    let NegotiableByDefault { hashes, groups } = negotiable;
    let (hashes, groups) = (hashes.as_deref(), groups.as_deref());
    describe_negotiable(hashes.unwrap_or_default(), groups.unwrap_or_default(), &mut params);
    Some(json!({ "method": "nvmf_set_config", "params": params }))
}
