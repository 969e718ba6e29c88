//! Subsystems, namespaces and directories of the TOML file.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use nvme_proto::{Nqn, Nsid};
use serde::Deserialize;
use toml::Spanned;
use uuid::Uuid;

use super::hosts::HostTable;
use super::reader::Reader;
use crate::backend::BackendError;
use crate::config::identifiers::Identifiers;
use crate::config::quick;
use crate::config::units::ByteCount;
use crate::config::values::{
    ConfiguredNsid, FaultDelayMicros, FaultInterval, IosPerSecond, MbytesPerSecond, Nguid,
    PrintableText,
};
use crate::config::{
    AnaGroupId, Authentication, BlockShift, ConfigError, ContentId, Description, DirectIo,
    DirectoryConfig, DiskFaults, Eui64, Medium, NamespaceConfig, NamespaceName, NamespaceSettings,
    NamespaceSpec, QosLimits, QosOverride, SubsystemConfig, SubsystemSpec,
};
use crate::derived_ids::SubsystemIdentity;
use crate::limits::{MAX_ALLOWED_HOSTS, NSID_LAST};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SubsystemTable {
    nqn: Spanned<String>,
    serial: Option<PrintableText<20>>,
    model: Option<PrintableText<40>>,
    #[serde(default)]
    allow_any_host: bool,
    allowed_hosts: Option<Vec<Spanned<String>>>,
    authentication: Option<Authentication>,
    #[serde(default)]
    host: Vec<Spanned<HostTable>>,
    #[serde(default)]
    each_host: QosOverride,
    deallocate: Option<bool>,
    dataset_id: Option<Uuid>,
    #[serde(default)]
    namespace: Vec<Spanned<NamespaceTable>>,
    #[serde(default)]
    directory: Vec<Spanned<DirectoryTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamespaceTable {
    nsid: Option<Spanned<ConfiguredNsid>>,
    kind: Option<BackingKind>,
    path: Option<Spanned<PathBuf>>,
    size_bytes: Option<Spanned<ByteCount>>,
    name: Option<NamespaceName>,
    read_only: Option<bool>,
    content_id: Option<ContentId>,
    description: Option<Description>,
    uuid: Option<Uuid>,
    nguid: Option<Nguid>,
    eui64: Option<Eui64>,
    lba_bytes: Option<BlockShift>,
    direct_io: Option<Spanned<DirectIo>>,
    #[serde(default)]
    ana_group: AnaGroupId,
    visible_to: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    rw_ios_per_sec: IosPerSecond,
    #[serde(default)]
    rw_mbytes_per_sec: MbytesPerSecond,
    #[serde(default)]
    r_mbytes_per_sec: MbytesPerSecond,
    #[serde(default)]
    w_mbytes_per_sec: MbytesPerSecond,
    #[serde(default)]
    faults: DiskFaults,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct FaultsTable {
    fail_every: Option<FaultInterval>,
    #[serde(default)]
    fail_with: FailWith,
    delay_us: Option<FaultDelayMicros>,
    tear_every: Option<FaultInterval>,
}

impl From<FaultsTable> for DiskFaults {
    fn from(table: FaultsTable) -> Self {
        Self {
            fail_every: table.fail_every.map(|every| every.0),
            fail_with: match table.fail_with {
                FailWith::Medium => BackendError::from_errno(libc::EIO),
                FailWith::NoSpace => BackendError::from_errno(libc::ENOSPC),
                FailWith::Gone => BackendError::from_errno(libc::ENODEV),
            },
            delay: table.delay_us.map(|delay| Duration::from_micros(delay.0)),
            tear_every: table.tear_every.map(|every| every.0),
        }
    }
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FailWith {
    #[default]
    Medium,
    NoSpace,
    Gone,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum BackingKind {
    File,
    Block,
    Null,
    Memory,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DirectoryTable {
    path: PathBuf,
    #[serde(default)]
    suffix: String,
    read_only: Option<bool>,
    content_id: Option<ContentId>,
    lba_bytes: Option<BlockShift>,
    #[serde(default)]
    direct_io: DirectIo,
    #[serde(default)]
    watch: bool,
}

impl Reader<'_> {
    pub(super) fn subsystems(
        &self,
        tables: Vec<Spanned<SubsystemTable>>,
    ) -> Result<Vec<SubsystemConfig>, ConfigError> {
        if tables.is_empty() && !self.managed {
            let message = "nothing to export; add [[subsystem]] with nqn = \"nqn....\", or management = \"PATH\" \
                           to add subsystems at run time";
            return Err(self.document.error(0, message));
        }
        let mut seen = BTreeSet::new();
        let mut identifiers = Identifiers::default();
        let mut subsystems = Vec::with_capacity(tables.len());
        for table in tables {
            let nqn_at = table.get_ref().nqn.span().start;
            let subsystem = self.subsystem(table, &mut identifiers)?;
            if !seen.insert(subsystem.nqn.to_string()) {
                let message = "another subsystem has this name; NQNs must be unique";
                return Err(self.document.error(nqn_at, message));
            }
            subsystems.push(subsystem);
        }
        Ok(subsystems)
    }

    fn subsystem(
        &self,
        table: Spanned<SubsystemTable>,
        identifiers: &mut Identifiers,
    ) -> Result<SubsystemConfig, ConfigError> {
        let at = table.span().start;
        let table = table.into_inner();
        let nqn = self.subsystem_nqn(&table.nqn)?;
        if table.namespace.is_empty() && table.directory.is_empty() && !self.managed {
            let message = "has no namespace; add [[subsystem.namespace]] or [[subsystem.directory]], or \
                           management = \"PATH\" to add namespaces at run time";
            return Err(self.document.error(at, message));
        }
        let listed = table.allowed_hosts.as_deref();
        let tables = &table.host;
        let hosts = self.listed_hosts(tables)?;
        let keyless =
            listed.into_iter().flatten().chain(tables.iter().map(|one| &one.get_ref().nqn));
        let authentication =
            self.authentication(table.authentication, keyless, &hosts.with_keys)?;
        let spec = SubsystemSpec {
            nqn,
            serial: table.serial,
            model: table.model,
            hosts: self.hosts(at, table.allow_any_host, listed, tables)?,
            deallocate: table.deallocate.unwrap_or(true),
            dataset_id: table.dataset_id,
        };
        let subsystem = spec.resolve(&self.machine, self.document.origin(at));
        Ok(SubsystemConfig {
            authentication,
            host_entries: hosts.with_keys,
            host_limits: hosts.limits,
            each_host: table.each_host.over(QosLimits::default()),
            namespaces: self.namespaces(table.namespace, &subsystem.identity, identifiers)?,
            directories: self.directories(table.directory),
            ..subsystem
        })
    }

    pub(super) fn discovery_nqn(
        &self,
        text: &Spanned<String>,
        subsystems: &[SubsystemConfig],
    ) -> Result<Nqn, ConfigError> {
        let nqn = self.nqn(text)?;
        if subsystems.iter().any(|subsystem| subsystem.nqn == nqn) {
            let message = "a subsystem has this name; the discovery service needs one of its own";
            return Err(self.document.error(text.span().start, message));
        }
        Ok(nqn)
    }

    fn subsystem_nqn(&self, text: &Spanned<String>) -> Result<Nqn, ConfigError> {
        let nqn = self.nqn(text)?;
        if nqn.is_discovery() {
            let message =
                "this is the name of the discovery service, which is always there; choose another";
            return Err(self.document.error(text.span().start, message));
        }
        Ok(nqn)
    }

    fn namespaces(
        &self,
        tables: Vec<Spanned<NamespaceTable>>,
        identity: &SubsystemIdentity,
        identifiers: &mut Identifiers,
    ) -> Result<Vec<NamespaceConfig>, ConfigError> {
        let taken = self.explicit_nsids(&tables)?;
        let nsids = (1..=NSID_LAST).map(ConfiguredNsid);
        let mut free = nsids.filter(|nsid| !taken.contains(nsid));
        let mut namespaces = Vec::with_capacity(tables.len());
        for table in tables {
            let at = table.span().start;
            let nsid = match &table.get_ref().nsid {
                Some(nsid) => *nsid.get_ref(),
                None => {
                    let free = free.next().ok_or_else(|| {
                        self.document.error(at, format!("more than {NSID_LAST} namespaces"))
                    });
                    free?
                }
            };
            let namespace = self.namespace(nsid, table, identity)?;
            identifiers
                .add(identity, &namespace)
                .map_err(|error| self.document.error(at, error.to_string()))?;
            namespaces.push(namespace);
        }
        Ok(namespaces)
    }

    fn explicit_nsids(
        &self,
        tables: &[Spanned<NamespaceTable>],
    ) -> Result<BTreeSet<ConfiguredNsid>, ConfigError> {
        let mut taken = BTreeSet::new();
        for nsid in tables.iter().filter_map(|table| table.get_ref().nsid.as_ref()) {
            if !taken.insert(*nsid.get_ref()) {
                let message =
                    "another namespace of this subsystem has this nsid; they must be unique";
                return Err(self.document.error(nsid.span().start, message));
            }
        }
        Ok(taken)
    }

    fn namespace(
        &self,
        nsid: ConfiguredNsid,
        table: Spanned<NamespaceTable>,
        identity: &SubsystemIdentity,
    ) -> Result<NamespaceConfig, ConfigError> {
        let at = table.span().start;
        let table = table.into_inner();
        let medium = self.medium(at, &table)?;
        let synthetic = matches!(table.kind, Some(BackingKind::Null | BackingKind::Memory));
        if let Some(direct_io) = table.direct_io.as_ref().filter(|_| synthetic) {
            let message = "memory and null namespaces do no I/O; remove direct_io";
            return Err(self.document.error(direct_io.span().start, message));
        }
        let default_name = || match &medium {
            Medium::File { path, .. } | Medium::Block { path } => NamespaceName::of_file(path),
            Medium::Null { .. } => NamespaceName::numbered("null", nsid),
            Medium::Memory { .. } => NamespaceName::numbered("memory", nsid),
        };
        let settings = NamespaceSettings {
            name: table.name.unwrap_or_else(default_name),
            medium,
            writable: !table.read_only.unwrap_or(!synthetic),
            eui64: table.eui64,
            content_id: table.content_id,
            description: table.description,
            block_shift: table.lba_bytes,
            direct_io: table.direct_io.map(Spanned::into_inner).unwrap_or_default(),
            ana_group: table.ana_group,
            visible_to: table.visible_to.map(|hosts| self.visible_to(&hosts)).transpose()?,
            qos: QosLimits {
                rw_ios: table.rw_ios_per_sec,
                rw_mbytes: table.rw_mbytes_per_sec,
                r_mbytes: table.r_mbytes_per_sec,
                w_mbytes: table.w_mbytes_per_sec,
            },
            faults: table.faults,
        };
        let spec = NamespaceSpec { uuid: table.uuid, nguid: table.nguid, settings };
        Ok(spec.resolve(Nsid(nsid.0), identity, self.document.origin(at)))
    }

    fn visible_to(&self, hosts: &[Spanned<String>]) -> Result<BTreeSet<Nqn>, ConfigError> {
        if let Some(host) = hosts.get(MAX_ALLOWED_HOSTS) {
            let message = format!("more than {MAX_ALLOWED_HOSTS} hosts");
            return Err(self.document.error(host.span().start, message));
        }
        hosts.iter().map(|host| self.host(host)).collect()
    }

    fn medium(&self, at: usize, table: &NamespaceTable) -> Result<Medium, ConfigError> {
        Ok(match table.kind {
            None => quick::medium(self.path_only(at, table)?),
            Some(BackingKind::File) => {
                Medium::File { path: self.path_only(at, table)?, root: None }
            }
            Some(BackingKind::Block) => Medium::Block { path: self.path_only(at, table)? },
            Some(BackingKind::Null) => Medium::Null { size_bytes: self.size_only(at, table)? },
            Some(BackingKind::Memory) => Medium::Memory { size_bytes: self.size_only(at, table)? },
        })
    }

    fn path_only(&self, at: usize, table: &NamespaceTable) -> Result<PathBuf, ConfigError> {
        match (&table.path, &table.size_bytes) {
            (Some(path), None) => Ok(self.document.resolve(path.get_ref())),
            (_, Some(size)) => {
                let message = "a file or block device has its own size; remove size_bytes";
                Err(self.document.error(size.span().start, message))
            }
            (None, None) => {
                let message = "path is missing; name the file or block device to export \
                               (or set kind = \"memory\" or \"null\" and size_bytes)";
                Err(self.document.error(at, message))
            }
        }
    }

    fn size_only(&self, at: usize, table: &NamespaceTable) -> Result<u64, ConfigError> {
        let lba_bytes = table.lba_bytes.map_or(512, |shift| u64::from(shift.bytes()));
        match (&table.path, &table.size_bytes) {
            (Some(path), _) => {
                let message =
                    "memory and null namespaces have no file; remove path or set kind = \"file\"";
                Err(self.document.error(path.span().start, message))
            }
            (None, Some(size))
                if size.get_ref().0 == 0 || !size.get_ref().0.is_multiple_of(lba_bytes) =>
            {
                let message =
                    format!("must be a positive multiple of the block size, {lba_bytes} bytes");
                Err(self.document.error(size.span().start, message))
            }
            (None, Some(size)) => Ok(size.get_ref().0),
            (None, None) => {
                let message = "size_bytes is missing, as in size_bytes = \"1GiB\"";
                Err(self.document.error(at, message))
            }
        }
    }

    fn directories(&self, tables: Vec<Spanned<DirectoryTable>>) -> Vec<DirectoryConfig> {
        let directory = |table: Spanned<DirectoryTable>| {
            let origin = self.document.origin(table.span().start);
            let table = table.into_inner();
            DirectoryConfig {
                path: self.document.resolve(&table.path),
                suffix: table.suffix,
                writable: !table.read_only.unwrap_or(true),
                content_id: table.content_id,
                block_shift: table.lba_bytes,
                direct_io: table.direct_io,
                watch: table.watch,
                origin,
            }
        };
        tables.into_iter().map(directory).collect()
    }
}
