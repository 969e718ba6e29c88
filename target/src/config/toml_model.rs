//! Tables and keys of the TOML file, and their conversion to a [`Config`].

mod hosts;
mod reader;
mod subsystems;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use feedrail_auth::HostEntry;
use nvme_proto::Nqn;
use rdma::shm::SharingGroup;
use serde::Deserialize;
use toml::Spanned;

use self::reader::Reader;
pub(super) use self::subsystems::FaultsTable;
use self::subsystems::SubsystemTable;
use super::document::Document;
use super::quick;
use super::units::{ByteCount, show_bytes};
use super::values::{
    self, Connections, HostTimeoutMs, IoQueues, PollingMicros, PortId, QueueDepth, QuiesceMs,
    SlowCommandMs,
};
use super::{
    Authentication, Config, ConfigError, ConfinementMode, Cores, Discovery, MetricsDetail,
    PortConfig, ProviderChoice, SubsystemConfig,
};
use crate::derived_ids::{self, Machine};
use crate::limits::{CntlidRange, Limits, MAX_POOL_BYTES};

impl Config {
    /// Reads and checks a configuration file. Paths in it are relative to its folder. `machine` is
    /// the identity to derive names and ids from; `None` determines that of this machine.
    ///
    /// # Errors
    /// The file cannot be read, or a value in it is wrong: one line with the place and the remedy.
    pub fn from_file(path: &Path, machine: Option<Machine>) -> Result<Self, ConfigError> {
        let read = |error| ConfigError::Read { path: path.to_owned(), error };
        let text = crate::confinement::read_to_string(path).map_err(read)?;
        Self::read(path, &text, machine)
    }

    /// Checks a configuration given as text; `path` is its path in errors, and relative paths in it
    /// start at the folder of `path`.
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
    polling_us: Option<PollingMicros>,
    state_dir: Option<PathBuf>,
    discovery_nqn: Option<Spanned<String>>,
    discovery: Option<Spanned<DiscoveryTable>>,
    management: Option<PathBuf>,
    management_read_only: Option<PathBuf>,
    export_roots: Option<Vec<PathBuf>>,
    confinement: Option<ConfinementMode>,
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DiscoveryTable {
    authentication: Option<Authentication>,
    #[serde(default)]
    host: Vec<Spanned<HostEntry>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsTable {
    queue_depth: Option<QueueDepth>,
    io_queues: Option<IoQueues>,
    in_capsule_data_bytes: Option<Spanned<ByteCount>>,
    max_transfer_bytes: Option<Spanned<ByteCount>>,
    pool_bytes: Option<Spanned<ByteCount>>,
    connections: Option<Connections>,
    connections_per_host: Option<Spanned<u32>>,
    host_timeout_ms: Option<HostTimeoutMs>,
    slow_command_ms: Option<SlowCommandMs>,
    command_quiesce_ms: Option<QuiesceMs>,
    cntlid_min: Option<Spanned<u16>>,
    cntlid_max: Option<Spanned<u16>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PortTable {
    id: Option<PortId>,
    address: Spanned<String>,
    subsystems: Option<Vec<Spanned<String>>>,
}

impl Reader<'_> {
    fn config(&self, file: File, state_dir: PathBuf) -> Result<Config, ConfigError> {
        let subsystems = self.subsystems(file.subsystem)?;
        let discovery_nqn = file.discovery_nqn.map(|nqn| self.discovery_nqn(&nqn, &subsystems));
        let polling_us = file.polling_us.map_or(quick::POLLING_US, |us| us.0);
        let cores = file.cores.unwrap_or(Cores::Count(1));
        Ok(Config {
            provider: file.provider,
            send_with_invalidate: file.send_with_invalidate.unwrap_or(true),
            shared_memory_group: file
                .shared_memory_group
                .map(|name| self.checked(&name, SharingGroup::named))
                .transpose()?,
            polling: Duration::from_micros(polling_us.into()),
            discovery: match file.discovery {
                Some(table) => self.discovery(table)?,
                None => Discovery::open(),
            },
            discovery_nqn: discovery_nqn.transpose()?.unwrap_or(Nqn::DISCOVERY),
            management: file.management.map(|path| self.document.resolve(&path)),
            management_read_only: file
                .management_read_only
                .map(|path| self.document.resolve(&path)),
            export_roots: file
                .export_roots
                .map(|roots| roots.iter().map(|root| self.document.resolve(root)).collect()),
            confinement: file.confinement,
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

    fn discovery(&self, table: Spanned<DiscoveryTable>) -> Result<Discovery, ConfigError> {
        let origin = self.document.origin(table.span().start);
        let table = table.into_inner();
        let host_entries = self.host_entries(table.host)?;
        let said = table.authentication;
        let authentication = said.unwrap_or_else(|| Authentication::of_entries(&host_entries));
        Ok(Discovery { authentication, host_entries, origin })
    }

    fn limits(&self, table: LimitsTable, cores: usize) -> Result<Limits, ConfigError> {
        let mut limits = Limits::default();
        if let Some(QueueDepth(depth)) = table.queue_depth {
            limits.queue_depth = depth;
        }
        if let Some(IoQueues(queues)) = table.io_queues {
            limits.io_queues = queues;
        }
        if let Some(Connections(connections)) = table.connections {
            limits.connections = connections;
        }
        limits.connections_per_host = match table.connections_per_host {
            Some(share) => {
                self.in_range(&share, 1, limits.connections, "connections of one host")?
            }
            None => limits.connections.div_ceil(2),
        };
        if let Some(HostTimeoutMs(timeout)) = table.host_timeout_ms {
            limits.host_timeout = Duration::from_millis(timeout);
        }
        limits.slow_command = table.slow_command_ms.map(|slow| Duration::from_millis(slow.0));
        if let Some(QuiesceMs(quiesce)) = table.command_quiesce_ms {
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

    fn in_range<T: Copy + PartialOrd + std::fmt::Display>(
        &self,
        value: &Spanned<T>,
        least: T,
        most: T,
        what: &str,
    ) -> Result<T, ConfigError> {
        values::in_range(*value.get_ref(), least..=most, what)
            .map_err(|message| self.document.error(value.span().start, message))
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
        let address = self.checked(&table.address, quick::parse_address)?;
        if !self.managed && table.subsystems.as_ref().is_some_and(Vec::is_empty) {
            let message = "subsystems is empty; name one, or leave the key out to serve all";
            return Err(self.document.error(at, message));
        }
        let serves = table
            .subsystems
            .map(|list| list.iter().map(|nqn| self.known_subsystem(nqn, subsystems)).collect());
        let by_place = || u16::try_from(index + 1).unwrap_or(u16::MAX);
        let id = table.id.map_or_else(by_place, |PortId(id)| id);
        Ok(PortConfig { id, address, subsystems: serves.transpose()?, origin })
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
}
