//! Methods that change the keys of hosts. Methods and parameters have SPDK's names.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use feedrail_auth::{DhGroup, HashFunction, HostEntry};
use nvme_proto::{HostNqn, Nqn};
use serde::Deserialize;
use serde_json::Value;

use super::keyring::Keyring;
use super::method::{Methods, done, parse_nqn};
use super::rpc::{NoParams, Params, RpcError, params, read};
use super::subsystem::parse_host;
use crate::inventory::allowed_host::HostsChange;
use crate::inventory::host_keys::{HostCredentials, NegotiableByDefault};

params! {
    KeyParams { name: String, path: PathBuf }

    KeyName { name: String }

    /// Parameters of `nvmf_subsystem_add_host` and `nvmf_subsystem_set_keys`.
    HostKeyParams {
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
}

/// Parameters of `nvmf_set_config`; those of other parts of SPDK are ignored.
#[derive(Deserialize)]
pub(super) struct NegotiableParams {
    dhchap_digests: Option<Vec<String>>,
    dhchap_dhgroups: Option<Vec<String>>,
}

params! {
    ReauthenticateParams {
        nqn: String,
        /// Host that has to authenticate again; all if omitted.
        host: Option<String>,
        /// Time until the queues are closed that have not.
        #[serde(default = "a_minute")]
        within_s: u32,
    }
}

fn a_minute() -> u32 {
    60
}

impl Methods {
    pub(super) fn add_key(&self, KeyParams { name, path }: KeyParams) -> Result<Value, RpcError> {
        done(self.keyring().add(name, path))
    }

    pub(super) fn remove_key(&self, KeyName { name }: KeyName) -> Result<Value, RpcError> {
        let mut keyring = self.keyring();
        done(keyring.remove(&name, self.associations.inventory()))
    }

    pub(super) fn get_keys(&self, NoParams {}: NoParams) -> Result<Value, RpcError> {
        Ok(self.keyring().describe())
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
        done(self.associations.edit(|edit| edit.change_hosts(&nqn, change(host, credentials))))
    }

    pub(super) fn set_config(&self, params: NegotiableParams) -> Result<Value, RpcError> {
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
        self.associations.inventory().find_subsystem(&nqn)?;
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
