//! Keys of the hosts of a subsystem, and which hosts have to authenticate.

use std::collections::BTreeMap;
use std::sync::Arc;

use feedrail_auth::{
    AuthPolicy, DhGroup, HashFunction, HostEntry, HostKeys, HostSecrets, KeyFileError, Preference,
    check_hosts,
};
use nvme_proto::Nqn;

use crate::config::{Authentication, Origin, SubsystemConfig};
use crate::inventory::error::ExportError;
use crate::inventory::named_host::NamedHost;

/// Entry of a host, and the secrets in its key files.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HostCredentials {
    pub(crate) entry: HostEntry,
    secrets: HostSecrets,
    /// Names in the keyring of the key and of the subsystem's key; `None` for keys that a
    /// configuration file names.
    pub(crate) names: Option<(String, Option<String>)>,
}

impl HostCredentials {
    /// Reads the key files of an entry.
    ///
    /// # Errors
    /// [`KeyFileError`] of the first file that is refused.
    pub(crate) fn read(
        entry: HostEntry,
        names: Option<(String, Option<String>)>,
    ) -> Result<Self, KeyFileError> {
        let secrets = entry.read_secrets_with(&crate::confinement::open)?;
        Ok(Self { entry, secrets, names })
    }
}

/// Keys of hosts, by NQN.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostKeyring {
    pub(crate) authentication: Authentication,
    hosts: BTreeMap<Nqn, Arc<HostCredentials>>,
}

/// Keys of a host and the negotiable parameters of its transactions.
#[derive(Clone, Debug)]
pub(crate) struct TransactionTerms {
    /// `None` for a host without keys, which is refused.
    pub(crate) keys: Option<Arc<HostKeys>>,
    pub(crate) policy: Arc<AuthPolicy>,
}

impl HostKeyring {
    /// Reads the key files that a configuration names.
    ///
    /// # Errors
    /// A key file cannot be used, or two hosts have one key.
    pub(crate) fn of(config: &SubsystemConfig) -> Result<Self, ExportError> {
        Self::read(config.authentication, &config.host_entries, &config.origin)
    }

    /// Reads the key files of these entries, which `origin` has.
    ///
    /// # Errors
    /// A key file cannot be used, or two hosts have one key.
    pub(crate) fn read(
        authentication: Authentication,
        entries: &[HostEntry],
        origin: &Origin,
    ) -> Result<Self, ExportError> {
        let refused = |error: String| ExportError::HostKey { origin: origin.clone(), error };
        let mut read = Vec::with_capacity(entries.len());
        for entry in entries {
            let secrets = entry.read_secrets_with(&crate::confinement::open);
            read.push((entry.clone(), secrets.map_err(|error| refused(error.to_string()))?));
        }
        check_hosts(&read).map_err(|error| refused(error.to_string()))?;
        let hosts = read.into_iter().map(|(entry, secrets)| {
            (entry.nqn.0, Arc::new(HostCredentials { entry, secrets, names: None }))
        });
        Ok(Self { authentication, hosts: hosts.collect() })
    }

    /// Whether a host has to authenticate.
    pub(crate) fn demands(&self, host: &NamedHost) -> bool {
        match self.authentication {
            Authentication::Required => true,
            Authentication::Offered => self.of_named(host).is_some(),
            Authentication::Off => false,
        }
    }

    /// Returns the terms for the next transaction of a host with the subsystem of this name.
    pub(crate) fn terms(
        &self,
        host: &NamedHost,
        subsystem: &Nqn,
        target: &AuthPolicy,
    ) -> TransactionTerms {
        match self.of_named(host) {
            None => TransactionTerms { keys: None, policy: Arc::new(target.clone()) },
            Some(credentials) => TransactionTerms {
                keys: Some(Arc::new(credentials.secrets.keys(&host.nqn, subsystem))),
                policy: Arc::new(credentials.entry.policy(target)),
            },
        }
    }

    /// Credentials of a host, if it sent its NQN.
    fn of_named(&self, host: &NamedHost) -> Option<&Arc<HostCredentials>> {
        self.get(&host.nqn.0).filter(|_| host.named)
    }

    pub(crate) fn get(&self, host: &Nqn) -> Option<&Arc<HostCredentials>> {
        self.hosts.get(host)
    }

    /// Hosts with keys, in the order of their names.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = (&Nqn, &Arc<HostCredentials>)> {
        self.hosts.iter()
    }

    /// Sets or removes the keys of a host, for transactions that come later.
    pub(crate) fn set(&mut self, host: Nqn, credentials: Option<Arc<HostCredentials>>) {
        match credentials {
            Some(credentials) => _ = self.hosts.insert(host, credentials),
            None => _ = self.hosts.remove(&host),
        }
    }
}

/// Hash functions and groups for hosts whose entries name none; `None` are the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NegotiableByDefault {
    pub(crate) hashes: Option<Vec<HashFunction>>,
    pub(crate) groups: Option<Vec<Option<DhGroup>>>,
}

impl NegotiableByDefault {
    /// Policy that allows these. The group of the default policy is preferred, if it is allowed.
    pub(crate) fn policy(&self) -> AuthPolicy {
        let mut policy = AuthPolicy::default();
        if let Some(hashes) = &self.hashes {
            policy.hashes = Preference { preferred: None, allowed: hashes.clone() };
        }
        if let Some(groups) = &self.groups {
            let preferred = policy.groups.preferred.filter(|group| groups.contains(group));
            policy.groups = Preference { preferred, allowed: groups.clone() };
        }
        policy
    }
}
