//! TOML file: its shape, and its conversion to a [`Config`].

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nvme_proto::{Nqn, Nsid};
use rdma::shm::SharingGroup;
use serde::Deserialize;
use toml::Spanned;
use uuid::Uuid;

use super::document::Document;
use super::identifiers::{Eui64, Identifiers, derived_nguid};
use super::units::{ByteCount, show_bytes};
use super::{
    AnaGroupId, Config, ConfigError, Cores, DirectIo, DirectoryConfig, DiskFaults, HostPolicy,
    Medium, MetricsDetail, NamespaceConfig, PortConfig, ProviderChoice, SubsystemConfig,
};
use crate::backend::BackendError;
use crate::derived_ids::{self, Machine, SubsystemIdentity};
use crate::limits::{
    ANA_GROUPS, CntlidRange, Limits, MAX_ALLOWED_HOSTS, MAX_POOL_BYTES, NSID_LAST,
};

impl Config {
    /// Reads and checks a configuration file. Paths in it are relative to its folder. `machine` is
    /// the machine that it is for; `None` finds it out.
    ///
    /// # Errors
    /// The file cannot be read, or a value in it is wrong: one line with the place and the remedy.
    pub fn from_file(path: &Path, machine: Option<Machine>) -> Result<Self, ConfigError> {
        let read = |error| ConfigError::Read { path: path.to_owned(), error };
        let text = std::fs::read_to_string(path).map_err(read)?;
        Self::read(path, &text, machine)
    }

    /// Checks a configuration given as text; `path` names it in errors and anchors relative paths.
    ///
    /// # Errors
    /// The errors of [`Config::from_file`], except that the file is not read.
    pub fn from_toml(path: &Path, text: &str) -> Result<Self, ConfigError> {
        Self::read(path, text, None)
    }

    fn read(path: &Path, text: &str, machine: Option<Machine>) -> Result<Self, ConfigError> {
        let document = Document::new(path, text);
        let file: File = toml::from_str(text).map_err(|error| document.refusal(&error))?;
        let state_dir = file
            .state_dir
            .as_ref()
            .map_or_else(derived_ids::default_state_dir, |dir| document.resolve(dir));
        let machine = match machine {
            Some(machine) => machine,
            None => Machine::this(&state_dir)?,
        };
        let managed = file.management.is_some();
        Reader { document, machine, managed }.config(file, state_dir)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    provider: ProviderChoice,
    send_with_invalidate: Option<bool>,
    shared_memory_group: Option<Spanned<String>>,
    cores: Option<Cores>,
    polling_us: Option<Spanned<u32>>,
    state_dir: Option<PathBuf>,
    discovery_nqn: Option<Spanned<String>>,
    management: Option<PathBuf>,
    metrics: Option<SocketAddr>,
    #[serde(default)]
    metrics_detail: MetricsDetail,
    #[serde(default)]
    limits: LimitsTable,
    #[serde(default)]
    port: Vec<Spanned<PortTable>>,
    #[serde(default)]
    subsystem: Vec<Spanned<SubsystemTable>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsTable {
    queue_depth: Option<Spanned<u16>>,
    io_queues: Option<Spanned<u16>>,
    in_capsule_data_bytes: Option<Spanned<ByteCount>>,
    max_transfer_bytes: Option<Spanned<ByteCount>>,
    pool_bytes: Option<Spanned<ByteCount>>,
    connections: Option<Spanned<u32>>,
    connections_per_host: Option<Spanned<u32>>,
    host_timeout_ms: Option<Spanned<u64>>,
    slow_command_ms: Option<Spanned<u64>>,
    command_quiesce_ms: Option<Spanned<u64>>,
    cntlid_min: Option<Spanned<u16>>,
    cntlid_max: Option<Spanned<u16>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PortTable {
    id: Option<Spanned<u16>>,
    address: Spanned<String>,
    subsystems: Option<Vec<Spanned<String>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubsystemTable {
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
    uuid: Option<Spanned<Uuid>>,
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

/// Converts tables to the configuration, with the document at hand for errors.
struct Reader<'a> {
    document: Document<'a>,
    machine: Machine,
    /// Whether exports can be added at run time.
    managed: bool,
}

impl Reader<'_> {
    fn config(&self, file: File, state_dir: PathBuf) -> Result<Config, ConfigError> {
        let subsystems = self.subsystems(file.subsystem)?;
        let discovery_nqn = file.discovery_nqn.map(|nqn| self.discovery_nqn(&nqn, &subsystems));
        let polling_us = file.polling_us.map_or(Ok(super::quick::POLLING_US), |us| {
            self.in_range(&us, 0, 1_000_000, "microseconds of polling before it sleeps")
        })?;
        let cores = file.cores.unwrap_or(Cores::Count(1));
        Ok(Config {
            provider: file.provider,
            send_with_invalidate: file.send_with_invalidate.unwrap_or(true),
            shared_memory_group: file
                .shared_memory_group
                .map(|name| self.sharing_group(&name))
                .transpose()?,
            polling: Duration::from_micros(polling_us.into()),
            discovery_nqn: discovery_nqn.transpose()?.unwrap_or(Nqn::DISCOVERY),
            management: file.management.map(|path| self.document.resolve(&path)),
            metrics: file.metrics,
            metrics_detail: file.metrics_detail,
            state_dir,
            machine: self.machine,
            limits: self.limits(file.limits, cores.count())?,
            cores,
            ports: self.ports(file.port, &subsystems)?,
            subsystems,
        })
    }

    fn limits(&self, table: LimitsTable, cores: usize) -> Result<Limits, ConfigError> {
        let mut limits = Limits::default();
        if let Some(depth) = table.queue_depth {
            limits.queue_depth = self.in_range(&depth, 2, 1024, "entries of an I/O queue")?;
        }
        if let Some(queues) = table.io_queues {
            limits.io_queues =
                self.in_range(&queues, 1, 1024, "I/O queues of one host connection")?;
        }
        if let Some(connections) = table.connections {
            limits.connections = self.in_range(&connections, 1, 1 << 20, "connections")?;
        }
        limits.connections_per_host = match table.connections_per_host {
            Some(share) => {
                self.in_range(&share, 1, limits.connections, "connections of one host")?
            }
            None => limits.connections.div_ceil(2),
        };
        if let Some(timeout) = table.host_timeout_ms {
            let what = "milliseconds that a host may take no response";
            let timeout = self.in_range(&timeout, 100, 600_000, what)?;
            limits.host_timeout = Duration::from_millis(timeout);
        }
        if let Some(slow) = table.slow_command_ms {
            let slow = self.in_range(&slow, 1, 600_000, "milliseconds of a slow command")?;
            limits.slow_command = Some(Duration::from_millis(slow));
        }
        if let Some(quiesce) = table.command_quiesce_ms {
            let what = "milliseconds that storage continues commands of lost hosts";
            let quiesce = self.in_range(&quiesce, 0, u16::MAX.into(), what)?;
            limits.command_quiesce = Duration::from_millis(quiesce);
        }
        limits.cntlids = self.cntlids(table.cntlid_min, table.cntlid_max)?;
        if let Some(bytes) = table.in_capsule_data_bytes {
            limits.in_capsule_data_bytes =
                self.bytes(&bytes, 0, 1 << 16, |b| b.is_multiple_of(16), "a multiple of 16")?;
        }
        if let Some(bytes) = &table.max_transfer_bytes {
            limits.max_transfer_bytes =
                self.bytes(bytes, 4096, 16 << 20, u64::is_power_of_two, "a power of two")?;
        }
        let least_pool = limits.least_pool_bytes(cores);
        match table.pool_bytes {
            Some(pool) if pool.get_ref().0 < least_pool => {
                let (least, transfer) =
                    (show_bytes(least_pool), show_bytes(limits.max_transfer_bytes.into()));
                let message = format!(
                    "must be at least {least}: each of {cores} cores needs 4 times max_transfer_bytes, which is {transfer}; \
                     raise it, or lower max_transfer_bytes or cores"
                );
                return Err(self.document.error(pool.span().start, message));
            }
            Some(pool) if pool.get_ref().0 > MAX_POOL_BYTES => {
                let message = format!("must be at most {}", show_bytes(MAX_POOL_BYTES));
                return Err(self.document.error(pool.span().start, message));
            }
            Some(pool) => limits.pool_bytes = pool.get_ref().0,
            None => limits.pool_bytes = limits.pool_bytes.max(least_pool),
        }
        Ok(limits)
    }

    fn cntlids(
        &self,
        min: Option<Spanned<u16>>,
        max: Option<Spanned<u16>>,
    ) -> Result<CntlidRange, ConfigError> {
        let CntlidRange { mut first, mut last } = CntlidRange::ALL;
        if let Some(min) = min {
            first = self.in_range(&min, first, last, "controller ids")?;
        }
        if let Some(max) = max {
            last = self.in_range(&max, first, last, "controller ids from cntlid_min on")?;
        }
        Ok(CntlidRange { first, last })
    }

    fn bytes(
        &self,
        value: &Spanned<ByteCount>,
        least: u64,
        most: u64,
        also: impl Fn(u64) -> bool,
        rule: &str,
    ) -> Result<u32, ConfigError> {
        let bytes = value.get_ref().0;
        match u32::try_from(bytes) {
            Ok(fitting) if (least..=most).contains(&bytes) && also(bytes) => Ok(fitting),
            _ => {
                let [bytes, least, most] = [bytes, least, most].map(show_bytes);
                let message = format!("is {bytes}; must be {rule} from {least} to {most}");
                Err(self.document.error(value.span().start, message))
            }
        }
    }

    fn sharing_group(&self, name: &Spanned<String>) -> Result<SharingGroup, ConfigError> {
        SharingGroup::named(name.get_ref())
            .map_err(|error| self.document.error(name.span().start, error.to_string()))
    }

    fn in_range<T: Copy + PartialOrd + std::fmt::Display>(
        &self,
        value: &Spanned<T>,
        least: T,
        most: T,
        what: &str,
    ) -> Result<T, ConfigError> {
        let number = *value.get_ref();
        if number < least || number > most {
            let message = format!("is {number}; must be {least} to {most} ({what})");
            return Err(self.document.error(value.span().start, message));
        }
        Ok(number)
    }

    fn ports(
        &self,
        tables: Vec<Spanned<PortTable>>,
        subsystems: &[SubsystemConfig],
    ) -> Result<Vec<PortConfig>, ConfigError> {
        if tables.is_empty() {
            let message = "no port to listen on; add [[port]] with address = \"IP:4420\"";
            return Err(self.document.error(0, message));
        }
        let mut ports: Vec<PortConfig> = Vec::with_capacity(tables.len());
        for (index, table) in tables.into_iter().enumerate() {
            let port = self.port(index, table, subsystems)?;
            let twin = |other: &PortConfig| {
                other.id == port.id || (other.address == port.address && port.address.port() != 0)
            };
            if let Some(other) = ports.iter().find(|other| twin(other)) {
                return Err(ConfigError::Usage(format!(
                    "{}: has the same id ({}) or address ({}) as {}; make them differ",
                    port.origin, other.id, other.address, other.origin
                )));
            }
            ports.push(port);
        }
        Ok(ports)
    }

    fn port(
        &self,
        index: usize,
        table: Spanned<PortTable>,
        subsystems: &[SubsystemConfig],
    ) -> Result<PortConfig, ConfigError> {
        let at = table.span().start;
        let origin = self.document.origin(at);
        let table = table.into_inner();
        let address = self.address(&table.address)?;
        if !self.managed && table.subsystems.as_ref().is_some_and(Vec::is_empty) {
            let message = "subsystems is empty; name one, or leave the key out to serve all";
            return Err(self.document.error(at, message));
        }
        let serves = table
            .subsystems
            .map(|list| list.iter().map(|nqn| self.known_subsystem(nqn, subsystems)).collect());
        let id = match &table.id {
            Some(id) => self.in_range(id, 1, u16::MAX, "port id")?,
            None => u16::try_from(index + 1).unwrap_or(u16::MAX),
        };
        Ok(PortConfig { id, address, subsystems: serves.transpose()?, origin })
    }

    fn address(&self, text: &Spanned<String>) -> Result<SocketAddr, ConfigError> {
        super::quick::parse_address(text.get_ref())
            .map_err(|message| self.document.error(text.span().start, message))
    }

    fn known_subsystem(
        &self,
        nqn: &Spanned<String>,
        subsystems: &[SubsystemConfig],
    ) -> Result<Nqn, ConfigError> {
        let name = self.nqn(nqn)?;
        if subsystems.iter().any(|subsystem| subsystem.nqn == name) {
            return Ok(name);
        }
        let known: Vec<_> = subsystems.iter().map(|s| s.nqn.to_string()).collect();
        let message = format!("no [[subsystem]] is named {name}; there are {}", known.join(", "));
        Err(self.document.error(nqn.span().start, message))
    }

    fn nqn(&self, text: &Spanned<String>) -> Result<Nqn, ConfigError> {
        super::quick::parse_nqn(text.get_ref())
            .map_err(|message| self.document.error(text.span().start, message))
    }

    fn subsystems(
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

    fn discovery_nqn(
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
        super::quick::parse_host(text.get_ref())
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
        let uuid = match &table.uuid {
            Some(uuid) => *uuid.get_ref(),
            None => medium.namespace_uuid(identity, &name),
        };
        Ok(NamespaceConfig {
            nsid: Nsid(nsid),
            uuid,
            nguid: self.nguid(table.nguid.as_ref())?.unwrap_or_else(|| derived_nguid(uuid)),
            eui64: table.eui64.as_ref().map(|text| self.eui64(text)).transpose()?,
            medium,
            faults: self.faults(table.faults.as_ref())?,
            writable: !table.read_only.unwrap_or(!synthetic),
            content_id: self.content_id(table.content_id.as_ref())?,
            lba_shift,
            direct_io: table.direct_io.map(Spanned::into_inner).unwrap_or_default(),
            ana_group: self.ana_group(table.ana_group.as_ref())?,
            visible_to: table.visible_to.map(|hosts| self.visible_to(&hosts)).transpose()?,
            origin: self.document.origin(at),
            name,
        })
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
            None => Ok(super::quick::medium(self.path_only(at, table)?)),
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
