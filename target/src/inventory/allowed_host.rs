//! Hosts that may connect to a subsystem.

use std::collections::BTreeMap;
use std::sync::Arc;

use nvme_proto::Nqn;

use crate::config::{Authentication, HostPolicy, QosLimits, QosOverride, SubsystemConfig};
use crate::inventory::error::{ExportError, HostsError};
use crate::inventory::host_keys::{HostCredentials, HostKeyring};
use crate::inventory::named_host::NamedHost;
use crate::limits::MAX_ALLOWED_HOSTS;

/// Hosts that may connect to a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllowedHosts {
    /// Whether unlisted hosts may connect as well.
    pub(crate) any: bool,
    /// NQNs of the hosts that may connect even if `any` is false.
    pub(crate) listed: Vec<Nqn>,
    /// Keys of hosts that have to authenticate.
    pub(crate) keyring: HostKeyring,
    pub(crate) limits: HostLimits,
}

/// Limits of the hosts of a subsystem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostLimits {
    /// Limits of each host, as far as it has none of its own.
    pub(crate) each: QosLimits,
    /// Limits of single hosts.
    of: BTreeMap<Nqn, QosOverride>,
}

impl HostLimits {
    /// Limits of a host.
    pub(crate) fn of(&self, host: &Nqn) -> QosLimits {
        self.own(host).over(self.each)
    }

    /// Limits that the host has of its own.
    pub(crate) fn own(&self, host: &Nqn) -> QosOverride {
        self.of.get(host).copied().unwrap_or_default()
    }

    /// Hosts with limits of their own, in the order of their names.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = (&Nqn, &QosOverride)> {
        self.of.iter()
    }

    fn set(&mut self, host: Nqn, limits: QosOverride) {
        match limits.is_empty() {
            true => _ = self.of.remove(&host),
            false => _ = self.of.insert(host, limits),
        }
    }
}

/// Change to the [`AllowedHosts`] of a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostsChange {
    /// Allows the host with this NQN, which has to authenticate if it has keys.
    Add(Nqn, Option<Arc<HostCredentials>>),
    /// Sets or removes the keys of the host with this NQN.
    SetKeys(Nqn, Option<Arc<HostCredentials>>),
    /// Sets which hosts have to authenticate.
    Authenticate(Authentication),
    /// Removes the host with this NQN from the list.
    Remove(Nqn),
    /// Sets whether unlisted hosts may connect.
    AllowAny(bool),
    /// Sets the limits of the host with this NQN in place of its own ones.
    Limit(Nqn, QosOverride),
    /// Sets the limits of each host that has none of its own.
    LimitEach(QosLimits),
}

/// Change to the hosts that see a namespace with a list of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VisibilityChange {
    Show(Nqn),
    /// Hides it from the host with this NQN.
    Hide(Nqn),
}

impl AllowedHosts {
    /// Whether a host may connect. A host without an NQN may only if `any` is set.
    pub(crate) fn allows(&self, host: &NamedHost) -> bool {
        self.any || (host.named && self.listed.contains(&host.nqn.0))
    }

    /// Adds or removes a host, or changes whether any host may connect.
    ///
    /// # Errors
    /// The host to add is listed already, the host to remove is not, or the list is full.
    pub(crate) fn change(&mut self, change: HostsChange) -> Result<(), HostsError> {
        match change {
            HostsChange::Add(host, _) if self.listed.contains(&host) => {
                Err(HostsError::Listed(host.to_string()))
            }
            HostsChange::Add(..) if self.listed.len() >= MAX_ALLOWED_HOSTS => {
                Err(HostsError::TooMany)
            }
            HostsChange::Add(host, credentials) => {
                self.listed.push(host);
                self.keyring.set(host, credentials);
                Ok(())
            }
            HostsChange::SetKeys(host, _) if !self.listed.contains(&host) => {
                Err(HostsError::NotListed(host.to_string()))
            }
            HostsChange::SetKeys(host, credentials) => {
                self.keyring.set(host, credentials);
                Ok(())
            }
            HostsChange::Authenticate(authentication) => {
                self.keyring.authentication = authentication;
                Ok(())
            }
            HostsChange::Remove(host) => {
                let found = self.listed.iter().position(|listed| *listed == host);
                self.listed.remove(found.ok_or_else(|| HostsError::NotListed(host.to_string()))?);
                self.keyring.set(host, None);
                self.limits.set(host, QosOverride::default());
                Ok(())
            }
            HostsChange::AllowAny(any) => {
                self.any = any;
                Ok(())
            }
            HostsChange::Limit(host, limits) => {
                if !self.listed.contains(&host) {
                    if !self.any {
                        return Err(HostsError::NotListed(host.to_string()));
                    }
                    self.change(HostsChange::Add(host, None))?;
                }
                self.limits.set(host, limits);
                Ok(())
            }
            HostsChange::LimitEach(limits) => {
                self.limits.each = limits;
                Ok(())
            }
        }
    }
}

impl AllowedHosts {
    /// Takes the hosts of a configuration, and reads their keys.
    ///
    /// # Errors
    /// A key file is refused, as [`HostKeyring::of`] says.
    pub(crate) fn of(config: &SubsystemConfig) -> Result<Self, ExportError> {
        let keyring = HostKeyring::of(config)?;
        let mut hosts = Self { keyring, ..Self::from(&config.hosts) };
        hosts.limits.each = config.each_host;
        for (host, limits) in &config.host_limits {
            hosts.limits.set(*host, *limits);
        }
        let of_entries = hosts.keyring.hosts().map(|(host, _)| host);
        for host in of_entries.chain(config.host_limits.iter().map(|(host, _)| host)) {
            if !hosts.listed.contains(host) {
                hosts.listed.push(*host);
            }
        }
        Ok(hosts)
    }

    /// Returns the changes that turn `self` into `other`; the order of the listed hosts is ignored.
    pub(crate) fn changes_to(&self, other: &Self) -> Vec<HostsChange> {
        let (before, after) = (&self.keyring, &other.keyring);
        let any = (self.any != other.any).then_some(HostsChange::AllowAny(other.any));
        let authentication = (before.authentication != after.authentication)
            .then_some(HostsChange::Authenticate(after.authentication));
        let (stay, added): (Vec<Nqn>, Vec<Nqn>) =
            other.listed.iter().partition(|host| self.listed.contains(host));
        let removed = self.listed.iter().filter(|host| !other.listed.contains(host));
        let keys = |host: &Nqn| after.get(host).cloned();
        let rekeyed = stay.into_iter().filter(|host| before.get(host) != after.get(host));
        let each = (self.limits.each != other.limits.each)
            .then_some(HostsChange::LimitEach(other.limits.each));
        let limited = other.listed.iter().filter_map(|host| {
            let limits = other.limits.own(host);
            (self.limits.own(host) != limits).then_some(HostsChange::Limit(*host, limits))
        });
        any.into_iter()
            .chain(authentication)
            .chain(added.into_iter().map(|host| HostsChange::Add(host, keys(&host))))
            .chain(removed.copied().map(HostsChange::Remove))
            .chain(rekeyed.map(|host| HostsChange::SetKeys(host, keys(&host))))
            .chain(each)
            .chain(limited)
            .collect()
    }
}

impl From<&HostPolicy> for AllowedHosts {
    fn from(policy: &HostPolicy) -> Self {
        let (any, listed) = match policy {
            HostPolicy::Any => (true, Vec::new()),
            HostPolicy::Listed(listed) => (false, listed.clone()),
        };
        Self { any, listed, keyring: HostKeyring::default(), limits: HostLimits::default() }
    }
}

#[cfg(test)]
mod tests {
    use nvme_proto::{HostId, HostNqn};

    use super::*;

    fn nqn(text: &str) -> Nqn {
        Nqn::new(text).expect("valid")
    }

    #[test]
    fn changes_are_made_or_refused() {
        let [one, other] = ["nqn.2026-01.a:one", "nqn.2026-01.a:other"].map(nqn);
        let mut hosts = AllowedHosts::from(&HostPolicy::Listed(vec![one]));
        let host = |nqn| NamedHost { nqn: HostNqn(nqn), named: true, id: HostId([7; 16]) };
        assert!(hosts.allows(&host(one)) && !hosts.allows(&host(other)));
        assert_eq!(
            hosts.change(HostsChange::Add(one, None)),
            Err(HostsError::Listed(one.to_string()))
        );
        assert_eq!(
            hosts.change(HostsChange::Remove(other)),
            Err(HostsError::NotListed(other.to_string()))
        );
        assert_eq!(hosts.change(HostsChange::Add(other, None)), Ok(()));
        assert_eq!(hosts.change(HostsChange::Remove(one)), Ok(()));
        assert!(!hosts.allows(&host(one)) && hosts.allows(&host(other)));
        assert!(!hosts.allows(&NamedHost { named: false, ..host(other) }));
        assert_eq!(hosts.change(HostsChange::AllowAny(true)), Ok(()));
        assert!(hosts.allows(&host(one)));
    }

    #[test]
    fn changes_lead_from_some_hosts_to_others() {
        let [one, two, three] = ["nqn.2026-01.a:1", "nqn.2026-01.a:2", "nqn.2026-01.a:3"].map(nqn);
        let hosts = |any, listed| AllowedHosts {
            any,
            listed,
            keyring: HostKeyring::default(),
            limits: HostLimits::default(),
        };
        let some = hosts(false, vec![one, two]);
        let others = hosts(true, vec![three, two]);
        let changes = some.changes_to(&others);
        let expected =
            [HostsChange::AllowAny(true), HostsChange::Add(three, None), HostsChange::Remove(one)];
        assert_eq!(changes, expected);
        let reordered = hosts(false, vec![two, one]);
        assert_eq!(some.changes_to(&reordered), []);
    }

    #[test]
    fn their_number_is_bounded() {
        let mut hosts = AllowedHosts::from(&HostPolicy::Any);
        hosts.listed =
            (0..MAX_ALLOWED_HOSTS).map(|at| nqn(&format!("nqn.2026-01.a:{at}"))).collect();
        let another = HostsChange::Add(nqn("nqn.2026-01.a:another"), None);
        assert_eq!(hosts.change(another), Err(HostsError::TooMany));
    }
}
