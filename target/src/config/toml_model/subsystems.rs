//! Subsystems, namespaces and directories of the TOML file.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use nvme_proto::{Nqn, Nsid};
use serde::Deserialize;
use toml::Spanned;
use uuid::Uuid;

use super::Reader;
use crate::backend::BackendError;
use crate::config::identifiers::{Eui64, Identifiers};
use crate::config::quick;
use crate::config::units::ByteCount;
use crate::config::{
    AnaGroupId, ConfigError, DirectIo, DirectoryConfig, DiskFaults, HostPolicy, Medium,
    NamespaceConfig, NamespaceSpec, SubsystemConfig,
};
use crate::derived_ids::{self, SubsystemIdentity};
use crate::limits::{ANA_GROUPS, MAX_ALLOWED_HOSTS, NSID_LAST};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SubsystemTable {
    nqn: Spanned<String>,
    serial: Option<Spanned<String>>,
    model: Option<Spanned<String>>,
    #[serde(default)]
    allow_any_host: bool,
    allowed_hosts: Option<Vec<Spanned<String>>>,
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
    nsid: Option<Spanned<u32>>,
    kind: Option<BackingKind>,
    path: Option<Spanned<PathBuf>>,
    size_bytes: Option<Spanned<ByteCount>>,
    name: Option<Spanned<String>>,
    read_only: Option<bool>,
    content_id: Option<Spanned<String>>,
    uuid: Option<Uuid>,
    nguid: Option<Spanned<String>>,
    eui64: Option<Spanned<String>>,
    lba_bytes: Option<Spanned<u32>>,
    direct_io: Option<Spanned<DirectIo>>,
    ana_group: Option<Spanned<u32>>,
    visible_to: Option<Vec<Spanned<String>>>,
    faults: Option<FaultsTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultsTable {
    fail_every: Option<Spanned<u64>>,
    #[serde(default)]
    fail_with: FailWith,
    delay_us: Option<Spanned<u64>>,
    tear_every: Option<Spanned<u64>>,
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
    path: Spanned<PathBuf>,
    #[serde(default)]
    suffix: String,
    read_only: Option<bool>,
    content_id: Option<Spanned<String>>,
    lba_bytes: Option<Spanned<u32>>,
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
        let identity = SubsystemIdentity::new(&self.machine, nqn, table.dataset_id);
        let serial = match &table.serial {
            Some(serial) => self.ascii(serial, 20)?,
            None => identity.serial(),
        };
        let model = match &table.model {
            Some(model) => self.ascii(model, 40)?,
            None => derived_ids::MODEL.to_owned(),
        };
        Ok(SubsystemConfig {
            hosts: self.hosts(at, table.allow_any_host, table.allowed_hosts)?,
            deallocate: table.deallocate.unwrap_or(true),
            namespaces: self.namespaces(table.namespace, &identity, identifiers)?,
            directories: self.directories(table.directory)?,
            origin: self.document.origin(at),
            nqn,
            serial,
            model,
            identity,
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

    fn hosts(
        &self,
        at: usize,
        any: bool,
        listed: Option<Vec<Spanned<String>>>,
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
            (false, None) => {
                let message = "allows no host to connect; add allowed_hosts = [\"nqn....\"] \
                               or allow_any_host = true";
                Err(self.document.error(at, message))
            }
        }
    }

    fn host(&self, text: &Spanned<String>) -> Result<Nqn, ConfigError> {
        quick::parse_host(text.get_ref())
            .map_err(|message| self.document.error(text.span().start, message))
    }

    fn ascii(&self, text: &Spanned<String>, most: usize) -> Result<String, ConfigError> {
        let value = text.get_ref();
        let printable = value.bytes().all(|b| (0x20..0x7F).contains(&b));
        if value.trim().is_empty() || value.len() > most || !printable {
            let message = format!("must be 1 to {most} printable ASCII characters");
            return Err(self.document.error(text.span().start, message));
        }
        Ok(value.clone())
    }

    fn namespaces(
        &self,
        tables: Vec<Spanned<NamespaceTable>>,
        identity: &SubsystemIdentity,
        identifiers: &mut Identifiers,
    ) -> Result<Vec<NamespaceConfig>, ConfigError> {
        let taken = self.explicit_nsids(&tables)?;
        let mut free = (1..=NSID_LAST).filter(|nsid| !taken.contains(nsid));
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
    ) -> Result<BTreeSet<u32>, ConfigError> {
        let mut taken = BTreeSet::new();
        for nsid in tables.iter().filter_map(|table| table.get_ref().nsid.as_ref()) {
            self.in_range(nsid, 1, NSID_LAST, "namespace id")?;
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
        nsid: u32,
        table: Spanned<NamespaceTable>,
        identity: &SubsystemIdentity,
    ) -> Result<NamespaceConfig, ConfigError> {
        let at = table.span().start;
        let table = table.into_inner();
        let lba_shift = self.lba_shift(table.lba_bytes.as_ref())?;
        let medium = self.medium(at, &table, lba_shift)?;
        let name = self.name(nsid, &table, &medium)?;
        let synthetic = matches!(table.kind, Some(BackingKind::Null | BackingKind::Memory));
        if let Some(direct_io) = table.direct_io.as_ref().filter(|_| synthetic) {
            let message = "memory and null namespaces do no I/O; remove direct_io";
            return Err(self.document.error(direct_io.span().start, message));
        }
        let spec = NamespaceSpec {
            name,
            medium,
            writable: !table.read_only.unwrap_or(!synthetic),
            uuid: table.uuid,
            nguid: self.nguid(table.nguid.as_ref())?,
            eui64: table.eui64.as_ref().map(|text| self.eui64(text)).transpose()?,
            content_id: self.content_id(table.content_id.as_ref())?,
            lba_shift,
            direct_io: table.direct_io.map(Spanned::into_inner).unwrap_or_default(),
            ana_group: self.ana_group(table.ana_group.as_ref())?,
            visible_to: table.visible_to.map(|hosts| self.visible_to(&hosts)).transpose()?,
            faults: self.faults(table.faults.as_ref())?,
        };
        Ok(spec.resolve(Nsid(nsid), identity, self.document.origin(at)))
    }

    fn ana_group(&self, id: Option<&Spanned<u32>>) -> Result<AnaGroupId, ConfigError> {
        let Some(id) = id else { return Ok(AnaGroupId::DEFAULT) };
        AnaGroupId::new(*id.get_ref()).ok_or_else(|| {
            let message = format!("must be a group of 1 to {ANA_GROUPS}");
            self.document.error(id.span().start, message)
        })
    }

    fn visible_to(&self, hosts: &[Spanned<String>]) -> Result<BTreeSet<Nqn>, ConfigError> {
        if let Some(host) = hosts.get(MAX_ALLOWED_HOSTS) {
            let message = format!("more than {MAX_ALLOWED_HOSTS} hosts");
            return Err(self.document.error(host.span().start, message));
        }
        hosts.iter().map(|host| self.host(host)).collect()
    }

    fn faults(&self, table: Option<&FaultsTable>) -> Result<DiskFaults, ConfigError> {
        let Some(table) = table else { return Ok(DiskFaults::NONE) };
        let every = |value: &Option<Spanned<u64>>| {
            let checked = value.as_ref().map(|n| self.in_range(n, 1, u64::MAX, "operations"));
            checked.transpose()
        };
        let delay = table.delay_us.as_ref().map(|us| {
            self.in_range(us, 1, 60_000_000, "microseconds that every operation starts later")
        });
        Ok(DiskFaults {
            fail_every: every(&table.fail_every)?,
            fail_with: match table.fail_with {
                FailWith::Medium => BackendError::from_errno(libc::EIO),
                FailWith::NoSpace => BackendError::from_errno(libc::ENOSPC),
                FailWith::Gone => BackendError::from_errno(libc::ENODEV),
            },
            delay: delay.transpose()?.map(Duration::from_micros),
            tear_every: every(&table.tear_every)?,
        })
    }

    fn name(
        &self,
        nsid: u32,
        table: &NamespaceTable,
        medium: &Medium,
    ) -> Result<String, ConfigError> {
        if let Some(name) = &table.name {
            if name.get_ref().is_empty() || name.get_ref().len() > derived_ids::NAME_BYTES {
                let message = format!("must be 1 to {} bytes long", derived_ids::NAME_BYTES);
                return Err(self.document.error(name.span().start, message));
            }
            return Ok(name.get_ref().clone());
        }
        Ok(match medium {
            Medium::File { path, .. } | Medium::Block { path } => derived_ids::file_name(path),
            Medium::Null { .. } => format!("null-{nsid}"),
            Medium::Memory { .. } => format!("memory-{nsid}"),
        })
    }

    fn medium(
        &self,
        at: usize,
        table: &NamespaceTable,
        lba_shift: Option<u8>,
    ) -> Result<Medium, ConfigError> {
        match table.kind {
            None => Ok(quick::medium(self.path_only(at, table)?)),
            Some(BackingKind::File) => {
                Ok(Medium::File { path: self.path_only(at, table)?, root: None })
            }
            Some(BackingKind::Block) => Ok(Medium::Block { path: self.path_only(at, table)? }),
            Some(BackingKind::Null) => {
                Ok(Medium::Null { size_bytes: self.size_only(at, table, lba_shift)? })
            }
            Some(BackingKind::Memory) => {
                Ok(Medium::Memory { size_bytes: self.size_only(at, table, lba_shift)? })
            }
        }
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

    fn size_only(
        &self,
        at: usize,
        table: &NamespaceTable,
        lba_shift: Option<u8>,
    ) -> Result<u64, ConfigError> {
        let lba_bytes = 1_u64 << lba_shift.unwrap_or(9);
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

    fn nguid(&self, text: Option<&Spanned<String>>) -> Result<Option<[u8; 16]>, ConfigError> {
        let Some(text) = text else { return Ok(None) };
        // Written like a UUID, with or without hyphens.
        let parsed = Uuid::try_parse(text.get_ref()).map(|id| Some(id.into_bytes()));
        parsed.map_err(|_| self.document.error(text.span().start, "must be 32 hexadecimal digits"))
    }

    fn eui64(&self, text: &Spanned<String>) -> Result<Eui64, ConfigError> {
        let parsed = text.get_ref().parse();
        parsed.map_err(|error: &str| self.document.error(text.span().start, error))
    }

    fn content_id(&self, text: Option<&Spanned<String>>) -> Result<Option<String>, ConfigError> {
        match text {
            Some(text) if text.get_ref().is_empty() => {
                let message = "is empty; write what names these bytes, as a checksum or a version";
                Err(self.document.error(text.span().start, message))
            }
            text => Ok(text.map(|text| text.get_ref().clone())),
        }
    }

    fn lba_shift(&self, bytes: Option<&Spanned<u32>>) -> Result<Option<u8>, ConfigError> {
        match bytes.map(|bytes| (*bytes.get_ref(), bytes.span().start)) {
            None => Ok(None),
            Some((512, _)) => Ok(Some(9)),
            Some((1024, _)) => Ok(Some(10)),
            Some((2048, _)) => Ok(Some(11)),
            Some((4096, _)) => Ok(Some(12)),
            Some((other, at)) => {
                let message = format!("is {other}; must be 512, 1024, 2048 or 4096");
                Err(self.document.error(at, message))
            }
        }
    }

    fn directories(
        &self,
        tables: Vec<Spanned<DirectoryTable>>,
    ) -> Result<Vec<DirectoryConfig>, ConfigError> {
        let directory = |table: Spanned<DirectoryTable>| {
            let origin = self.document.origin(table.span().start);
            let table = table.into_inner();
            Ok(DirectoryConfig {
                path: self.document.resolve(table.path.get_ref()),
                suffix: table.suffix,
                writable: !table.read_only.unwrap_or(true),
                content_id: self.content_id(table.content_id.as_ref())?,
                lba_shift: self.lba_shift(table.lba_bytes.as_ref())?,
                direct_io: table.direct_io,
                watch: table.watch,
                origin,
            })
        };
        tables.into_iter().map(directory).collect()
    }
}
