//! Keys of hosts, as operators change them at run time. Methods and parameters have SPDK's names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use feedrail_auth::{DhGroup, HashFunction, HostEntry, read_key_file_with};
use nvme_proto::{HostNqn, Nqn};
use serde::Deserialize;
use serde_json::{Value, json};

use super::method::{Methods, parse_nqn};
use super::rpc::{NoParams, Params, RpcError, read};
use super::subsystem::parse_host;
use crate::inventory::Inventory;
use crate::inventory::allowed_host::HostsChange;
use crate::inventory::host_keys::{HostCredentials, NegotiableByDefault};
use crate::limits::MAX_ALLOWED_HOSTS;

/// Key files by name. What a key file contains is read when a host gets it.
#[derive(Debug, Default)]
pub(super) struct Keyring(BTreeMap<String, PathBuf>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyParams {
    name: String,
    path: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyName {
    name: String,
}

/// Parameters of `nvmf_subsystem_add_host` and `nvmf_subsystem_set_keys`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostKeyParams {
    nqn: String,
    host: String,
    /// Name of the host's key, or the absolute path of its file.
    dhchap_key: Option<String>,
    /// Name of the subsystem's key towards the host, or the absolute path of its file.
    dhchap_ctrlr_key: Option<String>,
    /// Hash functions for this host. SPDK has no such parameter.
    dhchap_digests: Option<Vec<String>>,
    /// Groups for this host. SPDK has no such parameter.
    dhchap_dhgroups: Option<Vec<String>>,
}

/// Parameters of `nvmf_set_config`; those of other parts of SPDK are ignored.
#[derive(Deserialize)]
struct NegotiableParams {
    dhchap_digests: Option<Vec<String>>,
    dhchap_dhgroups: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReauthenticateParams {
    nqn: String,
    /// Host that has to authenticate again; all if omitted.
    host: Option<String>,
    /// Time until the queues are closed that have not.
    #[serde(default = "a_minute")]
    within_s: u32,
}

fn a_minute() -> u32 {
    60
}

impl Keyring {
    /// Returns the name and the file of a key. An absolute path stands for itself.
    fn find(&self, name: &str) -> Result<PathBuf, RpcError> {
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
}

impl Methods {
    pub(super) fn add_key(&self, params: Params) -> Result<Value, RpcError> {
        let KeyParams { name, path } = read(params)?;
        if !path.is_absolute() {
            return Err(RpcError::invalid_params("path: is not absolute"));
        }
        let mut keyring = self.keyring();
        if keyring.0.contains_key(&name) {
            return Err(RpcError::invalid_params(format_args!("there is a key {name:?} already")));
        }
        if keyring.0.len() >= 2 * MAX_ALLOWED_HOSTS {
            return Err(RpcError::invalid_params("too many keys"));
        }
        read_key_file_with(&path, &crate::confinement::open)
            .map_err(|error| RpcError::invalid_params(format_args!("path: {error}")))?;
        keyring.0.insert(name, path);
        Ok(true.into())
    }

    /// Removes a key that no host uses.
    pub(super) fn remove_key(&self, params: Params) -> Result<Value, RpcError> {
        let KeyName { name } = read(params)?;
        let mut keyring = self.keyring();
        let has_it = |credentials: &HostCredentials| {
            credentials
                .names
                .as_ref()
                .is_some_and(|(key, ctrlr_key)| *key == name || ctrlr_key.as_ref() == Some(&name))
        };
        for subsystem in self.associations.inventory().subsystems() {
            let hosts = subsystem.hosts().keyring;
            if let Some((host, _)) = hosts.hosts().find(|(_, credentials)| has_it(credentials)) {
                let nqn = subsystem.nqn;
                return Err(RpcError::invalid_params(format_args!(
                    "host {host} of {nqn} has the key {name:?}: remove the host, or set other keys"
                )));
            }
        }
        match keyring.0.remove(&name) {
            Some(_) => Ok(true.into()),
            None => Err(RpcError::invalid_params(format_args!("there is no key {name:?}"))),
        }
    }

    pub(super) fn get_keys(&self, params: Params) -> Result<Value, RpcError> {
        let NoParams {} = read(params)?;
        let describe = |(name, path): (&String, &PathBuf)| json!({ "name": name, "module": "keyring_file", "removed": false, "path": path.display().to_string() });
        Ok(self.keyring().0.iter().map(describe).collect())
    }

    pub(super) fn add_host(&self, params: Params) -> Result<Value, RpcError> {
        self.change_keys(params, HostsChange::Add)
    }

    /// Sets or removes the keys of a host. They count for transactions that begin later.
    pub(super) fn set_keys(&self, params: Params) -> Result<Value, RpcError> {
        self.change_keys(params, HostsChange::SetKeys)
    }

    fn change_keys(
        &self,
        params: Params,
        change: fn(Nqn, Option<Arc<HostCredentials>>) -> HostsChange,
    ) -> Result<Value, RpcError> {
        let params: HostKeyParams = read(params)?;
        let (nqn, host) = (parse_nqn(&params.nqn)?, parse_host(&params.host)?);
        // The lock is held so that no client removes the keys before they are used.
        let keyring = self.keyring();
        let credentials = params.credentials(&keyring, host)?.map(Arc::new);
        self.edit(|edit| edit.change_hosts(&nqn, change(host, credentials)))?;
        Ok(true.into())
    }

    pub(super) fn set_config(&self, params: Params) -> Result<Value, RpcError> {
        let params: NegotiableParams = read(params)?;
        let negotiable = NegotiableByDefault {
            hashes: said(params.dhchap_digests).as_deref().map(hashes).transpose()?,
            groups: said(params.dhchap_dhgroups).as_deref().map(groups).transpose()?,
        };
        *self.associations.inventory().negotiable() = negotiable;
        Ok(true.into())
    }

    /// Requires hosts to authenticate again, since no message of the protocol asks them to. Returns
    /// the number of their controllers.
    pub(super) fn reauthenticate(&self, params: Params) -> Result<Value, RpcError> {
        let ReauthenticateParams { nqn, host, within_s } = read(params)?;
        let nqn = parse_nqn(&nqn)?;
        let host = host.as_deref().map(parse_host).transpose()?;
        self.associations.inventory().find_subsystem(&nqn).map_err(super::method::refusal)?;
        let within = Duration::from_secs(within_s.into());
        Ok(self.associations.demand_proof(&nqn, host.as_ref(), within).into())
    }
}

impl HostKeyParams {
    /// Reads the keys; `None` if the parameters have none.
    fn credentials(
        self,
        keyring: &Keyring,
        host: Nqn,
    ) -> Result<Option<HostCredentials>, RpcError> {
        let Some(key) = self.dhchap_key else {
            if self.dhchap_ctrlr_key.is_some() {
                let message = "dhchap_ctrlr_key: the host needs a key as well (dhchap_key)";
                return Err(RpcError::invalid_params(message));
            }
            return Ok(None);
        };
        let entry = HostEntry {
            nqn: HostNqn(host),
            dhchap_key: keyring.find(&key)?,
            dhchap_ctrl_key: self
                .dhchap_ctrlr_key
                .as_deref()
                .map(|name| keyring.find(name))
                .transpose()?,
            hashes: self.dhchap_digests.as_deref().map(hashes).transpose()?.unwrap_or_default(),
            groups: self.dhchap_dhgroups.as_deref().map(groups).transpose()?.unwrap_or_default(),
        };
        let read = HostCredentials::read(entry, Some((key, self.dhchap_ctrlr_key)));
        read.map(Some).map_err(RpcError::invalid_params)
    }
}

/// Leaves out an empty list, as SPDK saves one that was not set.
fn said(names: Option<Vec<String>>) -> Option<Vec<String>> {
    names.filter(|names| !names.is_empty())
}

fn hashes(names: &[String]) -> Result<Vec<HashFunction>, RpcError> {
    of_names(names, HashFunction::named, "dhchap_digests: name sha256, sha384, sha512")
}

fn groups(names: &[String]) -> Result<Vec<Option<DhGroup>>, RpcError> {
    let expected =
        "dhchap_dhgroups: name null, ffdhe2048, ffdhe3072, ffdhe4096, ffdhe6144, ffdhe8192";
    of_names(names, DhGroup::named, expected)
}

fn of_names<T>(
    names: &[String],
    named: impl Fn(&str) -> Option<T>,
    expected: &str,
) -> Result<Vec<T>, RpcError> {
    let known: Option<Vec<T>> = names.iter().map(|name| named(name)).collect();
    known.filter(|list| !list.is_empty()).ok_or_else(|| RpcError::invalid_params(expected))
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
