//! A running target: the threads that serve the exports of a configuration.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::applied_config::AppliedConfig;
use crate::config::{Config, Cores, MetricsDetail};
use crate::controller::Associations;
use crate::controller::authenticator::AuthThread;
use crate::driver::assembly::Assembly;
use crate::driver::directory_watch::DirectoryWatch;
use crate::driver::file_watch::{close_removed, watch_files};
use crate::driver::periodic::Periodic;
use crate::driver::threads::{Runtime, RuntimeError, RuntimeOptions, tell_of_few_cores};
use crate::driver::turn_mark::TurnWatch;
use crate::inventory::Inventory;
use crate::inventory::error::ExportError;
use crate::inventory::namespace::Namespace;
use crate::inventory::open::OpenPurpose;
use crate::inventory::subsystem::Subsystem;
use crate::limits::{NAMESPACES_REPORTED, PEERS_REPORTED};
use crate::listen_error::AddressError;
use crate::listen_retries::{MissingAddresses, rdma_devices};
use crate::listeners::Listeners;
use crate::listening::{Listening, NotListening, listen_everywhere};
use crate::management::{Management, SocketError};
use crate::metrics::exposition::MetricsFormat;
use crate::metrics::page::{NamespaceSnapshot, SubsystemSnapshot, TargetSnapshot};
use crate::metrics::quotas::{QuotaSnapshot, QuotaSnapshots};
use crate::metrics::snapshot::{IoStats, Stats, SystemCallStats};
use crate::poll_group::PollGroupStats;
use crate::reloader::{ConfigSource, Reloader};
use crate::status::TargetStatus;

/// Running target. Dropping it closes every connection immediately.
pub struct Target {
    // This is dropped first, since it uses files that are released with the other fields.
    _management: Vec<Management>,
    _files: Periodic,
    _removed: Periodic,
    _directories: Option<DirectoryWatch>,
    _addresses: Periodic,
    _authentication: AuthThread,
    runtime: Runtime,
    associations: Arc<Associations>,
    reloader: Option<Arc<Reloader>>,
    listening: Vec<Listening>,
    not_listening: Vec<NotListening>,
}

/// Reason that a target cannot start; its message is one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A namespace or directory cannot be opened.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The threads cannot be started.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// No configured address can be listened on.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The management socket cannot be created.
    #[error(transparent)]
    Management(#[from] SocketError),
    /// Memory or file descriptors of the buffer pool are not available.
    #[error("cannot allocate the buffer pool (limits.pool_bytes): {0}")]
    Pool(io::Error),
}

impl Target {
    /// Opens the exports of a configuration, listens, and starts to serve hosts. Addresses that
    /// cannot be served are skipped if the target can listen on another.
    ///
    /// # Errors
    /// See [`StartError`]. No thread keeps running then.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        Self::start_with(config, None)
    }

    /// Starts a target as [`Target::start`] does, with a configuration that can be reloaded.
    ///
    /// # Errors
    /// See [`StartError`]. No thread keeps running then.
    pub(crate) fn start_with(
        config: &Config,
        source: Option<ConfigSource>,
    ) -> Result<Self, StartError> {
        let inventory = Inventory::open(config, OpenPurpose::Serve)?;
        let cores = config.cores.count();
        let mut assembly = Assembly::new(inventory, cores).map_err(StartError::Pool)?;
        let associations = Arc::clone(&assembly.associations);
        // All exports are open, and threads have what this one has left. The kernel lets files of
        // RDMA devices be used only with the rights of the moment in which they were opened. On
        // other machines addresses come first, so that an error can name who has a port.
        let has_rdma_devices = !rdma_devices().is_empty();
        if has_rdma_devices {
            crate::confinement::enter_thread();
        }
        let (listening, not_listening) =
            listen_everywhere(&mut assembly.devices, associations.inventory(), config)?;
        let pins = match &config.cores {
            Cores::Count(_) => Vec::new(),
            Cores::Pinned(list) => list.clone(),
        };
        tell_of_few_cores(&config.cores);
        let options = RuntimeOptions { polling: config.polling, pins };
        if !has_rdma_devices {
            crate::confinement::enter_thread();
        }
        let authentication = AuthThread::start(Arc::clone(associations.authenticator()))
            .map_err(RuntimeError::Thread)?;
        let (runtime, devices) = Runtime::start(assembly, &options)?;
        let applied = Arc::new(AppliedConfig::new(config.clone()).map_err(RuntimeError::Thread)?);
        let listeners =
            Arc::new(Listeners::new(Arc::clone(&associations), config, devices, applied.clone()));
        let files = watch_files(Arc::clone(&associations)).map_err(RuntimeError::Thread)?;
        let removed = close_removed(Arc::clone(&associations)).map_err(RuntimeError::Thread)?;
        let addresses = watch_addresses(Arc::clone(&listeners)).map_err(RuntimeError::Thread)?;
        // Only a managed target (with a management socket or watched directories) announces to
        // hosts that its exports may change.
        let source = source.filter(|_| config.is_managed());
        let reloader = source.map(|source| Arc::new(Reloader::new(Arc::clone(&listeners), source)));
        let directories = config
            .is_managed()
            .then(|| DirectoryWatch::start(Arc::clone(&associations), applied))
            .transpose()
            .map_err(RuntimeError::Thread)?;
        let management = Management::start_all(config, listeners, reloader.clone())?;
        Ok(Self {
            _management: management,
            _files: files,
            _removed: removed,
            _directories: directories,
            _addresses: addresses,
            _authentication: authentication,
            runtime,
            associations,
            reloader,
            listening,
            not_listening,
        })
    }

    /// Reloader of the configuration; `None` if it cannot be reloaded.
    pub(crate) fn reloader(&self) -> Option<&Arc<Reloader>> {
        self.reloader.as_ref()
    }

    /// Addresses on which the target listened when it had started, in the order of the ports. Later
    /// changes are on the status page and in the management methods.
    pub fn listening(&self) -> &[Listening] {
        &self.listening
    }

    /// Configured addresses on which the target could not listen at its start.
    pub fn not_listening(&self) -> &[NotListening] {
        &self.not_listening
    }

    /// Returns the present values of the counters of all threads.
    pub fn stats(&self) -> Stats {
        let mut sum = PollGroupStats::default();
        self.runtime.group_stats().into_iter().for_each(|group| sum += group);
        let acceptor = self.runtime.acceptor_stats();
        let io = IoStats {
            direct: sum.engine.direct,
            bounced: sum.engine.buffered,
            cached: sum.engine.cached,
            cache_misses: sum.engine.cache_misses,
            cached_read_bytes: sum.engine.cached_read_bytes,
            mapped_read_bytes: sum.engine.mapped_read_bytes,
            buffered_read_bytes: sum.engine.buffered_read_bytes,
            direct_read_bytes: sum.engine.direct_read_bytes,
            ..self.associations.inventory().io_stats()
        };
        Stats {
            uptime_ms: u64::try_from(self.runtime.uptime().as_millis()).unwrap_or(u64::MAX),
            associations: self.associations.controllers().len() as u64,
            connections: acceptor.connections,
            connections_accepted: acceptor.accepted,
            connections_rejected: acceptor.rejected,
            io,
            system_calls: SystemCallStats::of(&sum.engine, &sum.network),
            network: sum.network,
            pool: sum.pool,
            cache: self.associations.inventory().cache_room().stats(),
            resident_bytes: resident_bytes().unwrap_or(0),
            storage_errors: self.associations.inventory().storage_errors(NAMESPACES_REPORTED),
            peer_errors: self.associations.peer_errors().worst(PEERS_REPORTED),
        }
    }

    /// Returns a watch that finds threads without progress, for the watchdog.
    pub(crate) fn turn_watch(&self) -> TurnWatch {
        self.runtime.turn_watch()
    }

    pub(crate) fn metrics(&self, format: MetricsFormat, detail: MetricsDetail) -> String {
        self.snapshot().to_text(format, detail)
    }

    /// Returns the state of the target as JSON, for the status page.
    pub(crate) fn status(&self) -> String {
        let status = TargetStatus {
            snapshot: &self.snapshot(),
            inventory: self.associations.inventory(),
            controllers: &self.associations.controllers(),
        };
        status.to_json().to_string()
    }

    fn snapshot(&self) -> TargetSnapshot {
        let inventory = self.associations.inventory();
        let subsystems = inventory.subsystems();
        let subsystems = subsystems.iter().map(|of| subsystem_snapshot(inventory, of)).collect();
        let authentications = self.associations.authenticator().counts.list();
        TargetSnapshot {
            stats: self.stats(),
            turns: self.runtime.turn_stats(),
            subsystems,
            authentications,
            quotas: QuotaSnapshots {
                hosts: self.host_quotas(),
                namespaces: self.namespace_quotas(),
            },
        }
    }

    /// Quotas of connected hosts that have limits.
    fn host_quotas(&self) -> Vec<QuotaSnapshot> {
        let mut quotas = BTreeMap::new();
        for controller in self.associations.controllers() {
            let (Some(subsystem), Some(quota)) = (controller.subsystem(), &controller.quota) else {
                continue;
            };
            let limits = subsystem.limits_of(&controller.host);
            if !limits.is_none() {
                let (nqn, owner) = (subsystem.nqn.to_string(), controller.host.nqn.to_string());
                // Controllers of one host share its quota.
                quotas.insert((nqn, owner), (limits, quota.stats()));
            }
        }
        let snapshot =
            |((nqn, owner), (limits, stats))| QuotaSnapshot { nqn, owner, limits, stats };
        quotas.into_iter().map(snapshot).collect()
    }

    /// Quotas of namespaces that have limits.
    fn namespace_quotas(&self) -> Vec<QuotaSnapshot> {
        let mut quotas = Vec::new();
        for subsystem in self.associations.inventory().subsystems() {
            for namespace in subsystem.namespaces().iter() {
                let limits = namespace.config.qos;
                if !limits.is_none() {
                    let (nqn, owner) = (subsystem.nqn.to_string(), namespace.nsid.to_string());
                    let stats = namespace.quota().stats();
                    quotas.push(QuotaSnapshot { nqn, owner, limits, stats });
                }
            }
        }
        quotas
    }

    /// Stops the target once commands in progress have completed, or after `timeout`. New
    /// connections and commands are refused from now on.
    pub fn drain(self, timeout: Duration) {
        self.runtime.stop(timeout);
        self.associations.stop();
        // Only now the last removed namespaces have become idle.
        self.associations.inventory().close_idle();
    }

    /// Closes every connection and stops the target.
    pub fn stop(self) {
        self.drain(Duration::ZERO);
    }
}

fn subsystem_snapshot(inventory: &Inventory, subsystem: &Subsystem) -> SubsystemSnapshot {
    let namespaces = subsystem.namespaces();
    SubsystemSnapshot {
        nqn: subsystem.nqn.to_string(),
        namespaces: namespaces.iter().count(),
        size_bytes: namespaces.iter().map(|namespace| namespace.exact_bytes).sum(),
        media_errors: subsystem.errors.media(),
        io: inventory.io_of(subsystem),
        used: namespaces.iter().filter_map(|namespace| used_namespace(namespace)).collect(),
        descriptions: namespaces.iter().filter_map(|one| description(one)).collect(),
    }
}

fn description(namespace: &Namespace) -> Option<(u32, String)> {
    Some((namespace.nsid.0, namespace.config.description.as_deref()?.to_owned()))
}

/// Returns the snapshot of a namespace if it had I/O commands or has a fault.
fn used_namespace(namespace: &Namespace) -> Option<NamespaceSnapshot> {
    let io = namespace.io.stats();
    let failed = namespace.storage_errors.total() > 0 || namespace.health().is_degraded();
    (io.is_some() || failed).then(|| NamespaceSnapshot {
        nsid: namespace.nsid.0,
        name: namespace.name().to_owned(),
        writable: namespace.writable,
        size_bytes: namespace.exact_bytes,
        read_errors: namespace.storage_errors.reads(),
        write_errors: namespace.storage_errors.writes(),
        write_back_failed: namespace.health().write_back_failed(),
        shrank: namespace.health().shrank(),
        io: io.unwrap_or_default(),
    })
}

/// Starts the thread that looks once a second for addresses and devices that have appeared.
fn watch_addresses(listeners: Arc<Listeners>) -> io::Result<Periodic> {
    let mut missing = MissingAddresses::default();
    Periodic::start("feedrail-listen", move || listeners.look(&mut missing))
}

/// Resident memory (RSS) of this process in bytes.
fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
