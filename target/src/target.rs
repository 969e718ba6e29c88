//! A running target: the threads that serve a configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use rdma::shm::{Shm, ShmDevice, ShmOptions};
use rdma::soft::{EndpointError, PortChoice, Soft, SoftDevice, SoftOptions};
use rdma::verbs::{Verbs, VerbsDevice, VerbsError, VerbsOptions};
use rdma::{Choice, ProviderKind, Selection};

use crate::config::{Config, Cores, ProviderChoice};
use crate::controller::Associations;
use crate::driver::assembly::{AddError, Assembly, ListenError};
use crate::driver::directory_watch::DirectoryWatch;
use crate::driver::file_watch::FileWatch;
use crate::driver::threads::{Runtime, RuntimeError, RuntimeOptions};
use crate::driver::turn_mark::TurnWatch;
use crate::inventory::Registry;
use crate::inventory::export::{ExportError, OpenPurpose};
use crate::inventory::namespace::Namespace;
use crate::inventory::port::Port;
use crate::inventory::subsystem::Subsystem;
use crate::limits::{NAMESPACES_REPORTED, PEERS_REPORTED};
use crate::management::{Management, SocketError};
use crate::metrics::open_metrics::{NamespaceSnapshot, SubsystemSnapshot, TargetSnapshot};
use crate::metrics::snapshot::{IoStats, Stats, SystemCallStats};
use crate::poll_group::PollGroupStats;
use crate::reloader::{AppliedConfig, ConfigSource, Reloader};

/// A target with its threads. Dropping it ends every connection at once.
pub struct Target {
    // First: they look at files that are released when the rest is gone.
    _management: Option<Management>,
    _watch: FileWatch,
    _directories: Option<DirectoryWatch>,
    runtime: Runtime,
    associations: Arc<Associations>,
    reloader: Option<Arc<Reloader>>,
    listening: Vec<Listening>,
    not_listening: Vec<NotListening>,
}

/// Where a target listens.
#[derive(Clone, Debug)]
pub struct Listening {
    /// The port of the registry.
    pub port: Arc<Port>,
    /// The address that hosts connect to.
    pub address: SocketAddr,
    /// The name of the provider.
    pub provider: &'static str,
    /// The reason for that provider, for the log.
    pub reason: String,
    /// Whether hosts on this machine may connect by shared memory instead.
    pub shared_memory: bool,
}

/// Where a target was to listen and can not, though it does elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotListening {
    /// The address of the configuration.
    pub address: SocketAddr,
    /// The cause, and the remedy.
    pub reason: String,
}

/// The cause for which a target does not start; one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Something can not be exported.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// Threads do not start.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// No provider serves an address.
    #[error(transparent)]
    Provider(#[from] rdma::SelectError),
    /// The soft provider can not serve an address.
    #[error(transparent)]
    Soft(EndpointError),
    /// The soft provider's port is taken, perhaps by the RDMA device that was not chosen.
    #[error("{error} (it is to be soft, because of this: {reason})")]
    PortTaken {
        /// Why soft was chosen.
        reason: String,
        /// The cause for which it can not listen there.
        error: EndpointError,
    },
    /// The shared-memory provider can not serve an address.
    #[error("no shared memory with peers: {0}")]
    Shm(io::Error),
    /// The verbs provider can not serve an address.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A port can not be listened on, or a device refuses resources.
    #[error(transparent)]
    Add(#[from] AddError),
    /// The system refuses an address.
    #[error("cannot listen at {address}: {error}")]
    Address {
        /// The address of the configuration.
        address: IpAddr,
        /// The error of the system call.
        error: io::Error,
    },
    /// There is no management socket.
    #[error(transparent)]
    Management(#[from] SocketError),
    /// Memory or descriptors are not to be had.
    #[error("cannot make the buffer pool, whose size limits.pool_bytes says: {0}")]
    Pool(io::Error),
}

impl Target {
    /// Opens the exports of a configuration, listens, and starts serving. An address that can not
    /// be served is left out as long as there is another.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing keeps running then.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        Self::start_with(config, None)
    }

    /// As [`Target::start`], with a configuration that can be read again.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing keeps running then.
    pub(crate) fn start_with(
        config: &Config,
        source: Option<ConfigSource>,
    ) -> Result<Self, StartError> {
        let registry = Registry::open(config, OpenPurpose::Serve)?;
        let cores = config.cores.count();
        let mut assembly = Assembly::new(registry, cores).map_err(StartError::Pool)?;
        let associations = Arc::clone(&assembly.associations);
        let (listening, not_listening) = listen(&mut assembly, config)?;
        let pins = match &config.cores {
            Cores::Count(_) => Vec::new(),
            Cores::Pinned(list) => list.clone(),
        };
        let runtime = Runtime::start(assembly, &RuntimeOptions { polling: config.polling, pins })?;
        let watch = FileWatch::start(Arc::clone(&associations)).map_err(RuntimeError::Thread)?;
        let applied = Arc::new(AppliedConfig::new(config.clone()).map_err(RuntimeError::Thread)?);
        let reloader = |source| Reloader::new(Arc::clone(&associations), applied.clone(), source);
        // Hosts expect no changes of a target that is not managed.
        let source = source.filter(|_| config.is_managed());
        let reloader = source.map(reloader).map(Arc::new);
        let directories = config
            .is_managed()
            .then(|| DirectoryWatch::start(Arc::clone(&associations), applied))
            .transpose()
            .map_err(RuntimeError::Thread)?;
        let management = config.management.as_deref();
        let management = management
            .map(|path| Management::start(path, Arc::clone(&associations), reloader.clone()))
            .transpose()?;
        Ok(Self {
            _management: management,
            _watch: watch,
            _directories: directories,
            runtime,
            associations,
            reloader,
            listening,
            not_listening,
        })
    }

    /// What reads the configuration again, where that is possible.
    pub(crate) fn reloader(&self) -> Option<&Arc<Reloader>> {
        self.reloader.as_ref()
    }

    /// Where it listens, in the order of the configuration.
    pub fn listening(&self) -> &[Listening] {
        &self.listening
    }

    /// Where it was to listen and can not.
    pub fn not_listening(&self) -> &[NotListening] {
        &self.not_listening
    }

    /// Counters of all threads, asked for now.
    pub fn stats(&self) -> Stats {
        let mut sum = PollGroupStats::default();
        self.runtime.group_stats().into_iter().for_each(|group| sum += group);
        let reception = self.runtime.reception_stats();
        let io = IoStats {
            direct: sum.engine.direct,
            bounced: sum.engine.buffered,
            cached: sum.engine.cached,
            cached_read_bytes: sum.engine.cached_read_bytes,
            mapped_read_bytes: sum.engine.mapped_read_bytes,
            buffered_read_bytes: sum.engine.buffered_read_bytes,
            direct_read_bytes: sum.engine.direct_read_bytes,
            ..self.associations.registry().io_stats()
        };
        Stats {
            uptime_ms: u64::try_from(self.runtime.uptime().as_millis()).unwrap_or(u64::MAX),
            associations: self.associations.controllers().len() as u64,
            connections: reception.connections,
            connections_accepted: reception.accepted,
            connections_rejected: reception.rejected,
            io,
            system_calls: SystemCallStats::of(&sum.engine, &sum.network),
            network: sum.network,
            pool: sum.pool,
            resident_bytes: resident_bytes().unwrap_or(0),
            storage_errors: self.associations.registry().storage_errors(NAMESPACES_REPORTED),
            peer_errors: self.associations.peer_errors().worst(PEERS_REPORTED),
        }
    }

    /// A watch of the threads that serve hosts.
    pub(crate) fn turn_watch(&self) -> TurnWatch {
        self.runtime.turn_watch()
    }

    /// The counters of all threads, and those of each subsystem and namespace, in the text format
    /// of OpenMetrics 1.0.
    pub fn metrics(&self) -> String {
        let registry = self.associations.registry();
        let of_namespace = |namespace: &Arc<Namespace>| NamespaceSnapshot {
            nsid: namespace.nsid.0,
            name: namespace.name().to_owned(),
            size_bytes: namespace.exact_bytes,
            read_errors: namespace.storage_errors.reads(),
            write_errors: namespace.storage_errors.writes(),
            write_back_failed: namespace.health().write_back_failed(),
            shrank: namespace.health().shrank(),
            io: namespace.io.stats(),
        };
        let of_subsystem = |subsystem: &Arc<Subsystem>| SubsystemSnapshot {
            nqn: subsystem.nqn.to_string(),
            io: registry.io_stats_of(subsystem),
            namespaces: subsystem.namespaces().iter().map(of_namespace).collect(),
        };
        let subsystems = registry.subsystems().iter().map(of_subsystem).collect();
        let turns = self.runtime.turn_stats();
        TargetSnapshot { stats: self.stats(), turns, subsystems }.to_text()
    }

    /// Takes no more connections or commands, lets commands under way end for at most `patience`,
    /// and stops.
    pub fn drain(self, patience: Duration) {
        self.runtime.stop(patience);
        self.associations.stop();
    }

    /// Ends every connection and stops.
    pub fn stop(self) {
        self.drain(Duration::ZERO);
    }
}

/// Listens on all ports whose address can be served; an error only if there is none.
fn listen(
    assembly: &mut Assembly,
    config: &Config,
) -> Result<(Vec<Listening>, Vec<NotListening>), StartError> {
    let mut served = BTreeMap::new();
    let mut failed: BTreeMap<u16, String> = BTreeMap::new();
    let mut first_error = None;
    let addresses: BTreeSet<IpAddr> = config.ports.iter().map(|port| port.address.ip()).collect();
    for address in addresses {
        match add_device(assembly, config, address) {
            Ok((selection, refused)) => {
                failed.extend(
                    refused.into_iter().map(|refused| (refused.port_id, refused.to_string())),
                );
                served.insert(address, selection);
            }
            Err(error) => {
                let ports = config.ports.iter().filter(|port| port.address.ip() == address);
                failed.extend(ports.map(|port| (port.id, error.to_string())));
                first_error.get_or_insert(error);
            }
        }
    }
    if let Some(error) = first_error.filter(|_| served.is_empty()) {
        return Err(error);
    }
    // After all of them, so that it takes no other address the place.
    let shared = match config.provider {
        ProviderChoice::Auto => share_memory(assembly, config, served.keys().copied()),
        ProviderChoice::Verbs | ProviderChoice::Soft | ProviderChoice::Shm => BTreeSet::new(),
    };
    let (lost, kept): (Vec<_>, Vec<_>) = (assembly.associations.registry().ports().iter())
        .partition(|port| failed.contains_key(&port.id));
    let listening = |port: &Arc<Port>| {
        let Selection { choice, reason, .. } = served[&port.configured_address().ip()].clone();
        let (address, provider) = (port.address(), choice.name());
        let shared_memory = choice == Choice::Shm || shared.contains(&port.id);
        Listening { port: Arc::clone(port), address, provider, reason, shared_memory }
    };
    let not_listening = |port: &Arc<Port>| {
        let address = port.configured_address();
        NotListening { address, reason: failed[&port.id].clone() }
    };
    Ok((kept.into_iter().map(listening).collect(), lost.into_iter().map(not_listening).collect()))
}

/// Opens the device that serves an address and listens on its ports. Says which device, and which
/// ports can not be listened on although others can.
fn add_device(
    assembly: &mut Assembly,
    config: &Config,
    address: IpAddr,
) -> Result<(Selection, Vec<ListenError>), StartError> {
    let selection = rdma::select(kind(config.provider), address)?;
    if let Some(down) = &selection.down {
        tracing::warn!(%address, "nothing gets through yet: {down}");
    }
    let refused = match selection.choice {
        Choice::Verbs => assembly.add::<Verbs>(open_verbs(config, address)?)?,
        Choice::Soft => {
            let mut options = SoftOptions::new(address, PortChoice::Roce);
            options.groups = config.cores.count();
            let device = SoftDevice::open(&options).map_err(|error| match error {
                EndpointError::PortTaken { .. } => {
                    StartError::PortTaken { reason: selection.reason.clone(), error }
                }
                _ => StartError::Soft(error),
            })?;
            assembly.add::<Soft>(device)?
        }
        Choice::Shm => assembly.add::<Shm>(open_shm(config, address)?)?,
    };
    Ok((selection, refused))
}

/// Listens in shared memory too, for hosts on this machine, as far as that is possible. Returns the
/// ids of the ports where it does.
fn share_memory(
    assembly: &mut Assembly,
    config: &Config,
    addresses: impl Iterator<Item = IpAddr>,
) -> BTreeSet<u16> {
    let mut shared = BTreeSet::new();
    for address in addresses.filter(|&address| rdma::auto_shares_memory(address)) {
        let refused = open_shm(config, address)
            .and_then(|device| Ok(assembly.add_beside::<Shm>(device)?))
            .inspect_err(|error| {
                tracing::warn!(%address, "hosts on this machine use the network: {error}");
            });
        let Ok(refused) = refused else { continue };
        for error in &refused {
            tracing::warn!(%address, "hosts on this machine use the network: {error}");
        }
        let ports = assembly.associations.registry().ports().iter();
        let ports = ports.filter(|port| port.configured_address().ip() == address);
        let is_refused = |id| refused.iter().any(|error| error.port_id == id);
        shared.extend(ports.filter(|p| p.is_bound() && !is_refused(p.id)).map(|port| port.id));
    }
    shared
}

fn open_shm(config: &Config, address: IpAddr) -> Result<ShmDevice, StartError> {
    let options = ShmOptions {
        groups: config.cores.count(),
        sharing_group: config.shared_memory_group,
        ..ShmOptions::new(address)
    };
    ShmDevice::open(&options).map_err(StartError::Shm)
}

fn open_verbs(config: &Config, address: IpAddr) -> Result<VerbsDevice, VerbsError> {
    let no_send_with_invalidate = !config.send_with_invalidate;
    VerbsDevice::open(address, VerbsOptions { no_send_with_invalidate, ..VerbsOptions::default() })
}

/// Whether an address can be served, as far as can be told beside a target that serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reachable {
    /// Its UDP port is free, or the verbs device there opened.
    Free,
    /// Its UDP port has an owner, which may be a target that runs.
    InUse,
}

/// Tries an address of a configuration, and gives it back at once.
///
/// # Errors
/// It can not be served.
pub(crate) fn try_address(config: &Config, address: IpAddr) -> Result<Reachable, StartError> {
    let selection = rdma::select(kind(config.provider), address)?;
    match selection.choice {
        Choice::Verbs => {
            open_verbs(config, address)?;
            return Ok(Reachable::Free);
        }
        // Listeners have names there, and no more than that can be taken.
        Choice::Shm => return Ok(Reachable::Free),
        Choice::Soft => {}
    }
    // A socket that shared the port, as those of a target do, would get packets that are for them.
    match UdpSocket::bind((address, rdma::soft::ROCE_PORT)) {
        Ok(_) => Ok(Reachable::Free),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(Reachable::InUse),
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            Err(rdma::SelectError::NotLocal(address).into())
        }
        Err(error) => Err(StartError::Address { address, error }),
    }
}

fn kind(choice: ProviderChoice) -> ProviderKind {
    match choice {
        ProviderChoice::Auto => ProviderKind::Auto,
        ProviderChoice::Verbs => ProviderKind::Verbs,
        ProviderChoice::Soft => ProviderKind::Soft,
        ProviderChoice::Shm => ProviderKind::Shm,
    }
}

/// Resident memory of this process.
fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
