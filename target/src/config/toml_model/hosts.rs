//! Hosts of a subsystem or of the discovery service in the TOML file.

use std::collections::BTreeSet;
use std::path::PathBuf;

use feedrail_auth::{DhGroup, HashFunction, HostEntry, groups_from_names, hashes_from_names};
use nvme_proto::{HostNqn, Nqn};
use serde::Deserialize;
use toml::Spanned;

use super::reader::Reader;
use crate::config::quick;
use crate::config::values::{IosPerSecond, MbytesPerSecond};
use crate::config::{Authentication, ConfigError, HostPolicy, QosOverride};

/// `[[subsystem.host]]`: a host with keys, or limits, or both.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostTable {
    pub(super) nqn: Spanned<String>,
    dhchap_key: Option<PathBuf>,
    dhchap_ctrl_key: Option<PathBuf>,
    #[serde(default, deserialize_with = "hashes_from_names")]
    hashes: Vec<HashFunction>,
    #[serde(default, deserialize_with = "groups_from_names")]
    groups: Vec<Option<DhGroup>>,
    rw_ios_per_sec: Option<IosPerSecond>,
    rw_mbytes_per_sec: Option<MbytesPerSecond>,
    r_mbytes_per_sec: Option<MbytesPerSecond>,
    w_mbytes_per_sec: Option<MbytesPerSecond>,
}

/// Hosts of a subsystem that the file has tables for.
#[derive(Default)]
pub(super) struct ListedHosts {
    pub(super) with_keys: Vec<HostEntry>,
    pub(super) limits: Vec<(Nqn, QosOverride)>,
}

impl Reader<'_> {
    pub(super) fn hosts(
        &self,
        at: usize,
        any: bool,
        listed: Option<&[Spanned<String>]>,
        entries: &[Spanned<HostTable>],
    ) -> Result<HostPolicy, ConfigError> {
        match (any, listed) {
            (true, None) => Ok(HostPolicy::Any),
            (false, Some(list)) => {
                let nqns = list.iter().map(|nqn| self.host(nqn)).collect::<Result<_, _>>()?;
                Ok(HostPolicy::Listed(nqns))
            }
            (true, Some(_)) => {
                let message = "has both allow_any_host and allowed_hosts; keep one";
                Err(self.document.error(at, message))
            }
            (false, None) if !entries.is_empty() => Ok(HostPolicy::Listed(Vec::new())),
            (false, None) => {
                let message = "allows no host to connect; add allowed_hosts = [\"nqn....\"], \
                               [[subsystem.host]] or allow_any_host = true";
                Err(self.document.error(at, message))
            }
        }
    }

    /// Reads the tables of hosts. A host has one table, with a key or a limit.
    pub(super) fn listed_hosts(
        &self,
        tables: &[Spanned<HostTable>],
    ) -> Result<ListedHosts, ConfigError> {
        let mut hosts = ListedHosts::default();
        let mut seen = BTreeSet::new();
        for table in tables {
            let at = table.span().start;
            let table = table.get_ref();
            let nqn = self.host(&table.nqn)?;
            let limits = QosOverride {
                rw_ios: table.rw_ios_per_sec,
                rw_mbytes: table.rw_mbytes_per_sec,
                r_mbytes: table.r_mbytes_per_sec,
                w_mbytes: table.w_mbytes_per_sec,
            };
            let HostTable { dhchap_key, dhchap_ctrl_key, hashes, groups, .. } = table;
            let of_keys = dhchap_ctrl_key.is_some() || !hashes.is_empty() || !groups.is_empty();
            if dhchap_key.is_none() && (of_keys || limits.is_empty()) {
                let message = "has no dhchap_key, with which the host authenticates, and no limit \
                               (rw_ios_per_sec, rw_mbytes_per_sec, r_mbytes_per_sec, w_mbytes_per_sec)";
                let message = if of_keys { "has no dhchap_key" } else { message };
                return Err(self.document.error(at, message));
            }
            if !seen.insert(nqn) {
                let message =
                    format!("the host {nqn} has two entries in one subsystem: remove one of them");
                return Err(self.document.error(table.nqn.span().start, message));
            }
            if let Some(key) = dhchap_key {
                hosts.with_keys.push(HostEntry {
                    nqn: HostNqn(nqn),
                    dhchap_key: self.document.resolve(key),
                    dhchap_ctrl_key: dhchap_ctrl_key.as_ref().map(|key| self.document.resolve(key)),
                    hashes: hashes.clone(),
                    groups: groups.clone(),
                });
            }
            if !limits.is_empty() {
                hosts.limits.push((nqn, limits));
            }
        }
        Ok(hosts)
    }

    /// Takes the entries of hosts with keys, whose paths start at the folder of the file.
    pub(super) fn host_entries(
        &self,
        tables: Vec<Spanned<HostEntry>>,
    ) -> Result<Vec<HostEntry>, ConfigError> {
        let resolve = |table: Spanned<HostEntry>| {
            let at = table.span().start;
            let entry = table.into_inner();
            quick::parse_host(entry.nqn.0.as_str())
                .map_err(|message| self.document.error(at, message))?;
            Ok(HostEntry {
                dhchap_key: self.document.resolve(&entry.dhchap_key),
                dhchap_ctrl_key: entry.dhchap_ctrl_key.map(|path| self.document.resolve(&path)),
                ..entry
            })
        };
        tables.into_iter().map(resolve).collect()
    }

    /// Decides which hosts have to authenticate: all, if one has a key and nothing else is said.
    pub(super) fn authentication<'a>(
        &self,
        said: Option<Authentication>,
        mut listed: impl Iterator<Item = &'a Spanned<String>>,
        entries: &[HostEntry],
    ) -> Result<Authentication, ConfigError> {
        let authentication = said.unwrap_or_else(|| Authentication::of_entries(entries));
        let keyless = |host: &&Spanned<String>| {
            !entries.iter().any(|entry| entry.nqn.0.as_str() == host.get_ref())
        };
        let keyless = listed.find(keyless);
        match keyless.filter(|_| authentication == Authentication::Required) {
            None => Ok(authentication),
            Some(host) => {
                let message = "this host has to authenticate, but has no key: add [[subsystem.host]] with its nqn and \
                               dhchap_key, or authentication = \"offered\" to let it in by its name";
                Err(self.document.error(host.span().start, message))
            }
        }
    }
}
