//! A running target.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rdma::soft::{PortChoice, Soft, SoftDevice, SoftOptions};
use rdma::verbs::{Verbs, VerbsDevice, VerbsError, VerbsOptions};
use rdma::{Choice, ProviderKind, Selection};

use crate::assembly::{AddError, Assembly};
use crate::config::{Config, Cores, ProviderChoice};
use crate::export::{ExportError, Purpose};
use crate::limits::PEERS_REPORTED;
use crate::registry::Registry;
use crate::runtime::{Runtime, RuntimeOptions};
use crate::stats::{NetworkStats, PoolStats, Stats, SystemCallStats};
use crate::storage::UringError;

/// A target with its threads. Dropping it ends every connection at once.
pub struct Target {
    runtime: Runtime,
    registry: Arc<Registry>,
    listening: Vec<Listening>,
}

/// Where a target listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listening {
    /// The address that hosts connect to.
    pub address: SocketAddr,
    /// The name of the provider.
    pub provider: &'static str,
    /// Why that provider.
    pub reason: String,
}

/// Why a target does not start; one line that says what would help.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Something can not be exported.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// io_uring is not to be had.
    #[error(transparent)]
    Uring(#[from] UringError),
    /// No provider serves an address.
    #[error("{address}: {error}")]
    Provider {
        /// The address.
        address: IpAddr,
        /// Why.
        error: rdma::SelectError,
    },
    /// The soft provider can not serve an address.
    #[error(transparent)]
    Soft(#[from] rdma::soft::OpenError),
    /// The verbs provider can not serve an address.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A port can not be listened on, or a device refuses resources.
    #[error(transparent)]
    Add(#[from] AddError),
    /// Memory or descriptors are not to be had.
    #[error("cannot make the buffer pool: {0}")]
    Pool(io::Error),
}

impl Target {
    /// Opens what a configuration exports, listens, and starts serving.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing keeps running then.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        let registry = Registry::open(config, Purpose::Serve)?;
        let cores = config.cores.count();
        let mut assembly = Assembly::new(Arc::clone(&registry), cores).map_err(StartError::Pool)?;
        let selections = add_devices(&mut assembly, config)?;
        let listening = (registry.ports().iter())
            .map(|port| {
                let address = port.address();
                let (provider, reason) = selections[&address.ip()].clone();
                Listening { address, provider, reason }
            })
            .collect();
        let pins = match &config.cores {
            Cores::Count(_) => Vec::new(),
            Cores::Pinned(list) => list.clone(),
        };
        let runtime = Runtime::start(assembly, &RuntimeOptions { polling: config.polling, pins })?;
        Ok(Self { runtime, registry, listening })
    }

    /// Where it listens, in the order of the configuration.
    pub fn listening(&self) -> &[Listening] {
        &self.listening
    }

    /// What it exports and who is connected.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Its counters.
    pub fn stats(&self) -> Stats {
        let groups = self.runtime.group_stats();
        let reception = self.runtime.reception_stats();
        let mut network = rdma::GroupStats::default();
        let mut system_calls = SystemCallStats::default();
        let mut pool = PoolStats::default();
        let mut io = self.registry.io_stats();
        for group in &groups {
            crate::poll_group::add(&mut network, &group.network);
            system_calls.uring_enter += group.engine.enters;
            system_calls.uring_wait += group.engine.waits;
            system_calls.uring_register += group.engine.registers;
            system_calls.file += group.engine.plain;
            io.direct += group.engine.direct;
            io.bounced += group.engine.buffered;
            pool.bytes += group.pool_bytes;
            pool.used_bytes += group.pool_used_bytes;
            pool.waits += group.pool_waits;
        }
        system_calls.send = network.send_calls;
        system_calls.receive = network.receive_calls;
        Stats {
            uptime_ms: u64::try_from(self.runtime.uptime().as_millis()).unwrap_or(u64::MAX),
            associations: self.registry.controllers().len() as u64,
            connections: reception.connections,
            connections_accepted: reception.accepted,
            connections_rejected: reception.rejected,
            io,
            system_calls,
            network: network_stats(&network),
            pool,
            resident_bytes: resident_bytes().unwrap_or(0),
            peer_errors: self.registry.peer_errors().worst(PEERS_REPORTED),
        }
    }

    /// Takes no more connections or commands, lets commands under way end for at most `patience`, and stops.
    pub fn drain(self, patience: Duration) {
        self.runtime.stop(patience);
        self.registry.stop();
    }

    /// Ends every connection and stops.
    pub fn stop(self) {
        self.drain(Duration::ZERO);
    }
}

/// Opens a device for each address of a port and says which provider serves it, and why.
fn add_devices(
    assembly: &mut Assembly,
    config: &Config,
) -> Result<BTreeMap<IpAddr, (&'static str, String)>, StartError> {
    let mut selections = BTreeMap::new();
    for port in &config.ports {
        let address = port.address.ip();
        if selections.contains_key(&address) {
            continue;
        }
        let Selection { choice, reason, .. } = rdma::select(kind(config.provider), address)
            .map_err(|error| StartError::Provider { address, error })?;
        match choice {
            Choice::Verbs => {
                let device = VerbsDevice::open(address, VerbsOptions::default())?;
                assembly.add::<Verbs>(device)?;
            }
            Choice::Soft => {
                let mut options = SoftOptions::new(address, PortChoice::Roce);
                options.groups = config.cores.count();
                assembly.add::<Soft>(SoftDevice::open(&options)?)?;
            }
        }
        selections.insert(address, (choice.name(), reason));
    }
    Ok(selections)
}

fn kind(choice: ProviderChoice) -> ProviderKind {
    match choice {
        ProviderChoice::Auto => ProviderKind::Auto,
        ProviderChoice::Verbs => ProviderKind::Verbs,
        ProviderChoice::Soft => ProviderKind::Soft,
    }
}

fn network_stats(stats: &rdma::GroupStats) -> NetworkStats {
    NetworkStats {
        packets_sent: stats.packets_sent,
        packets_received: stats.packets_received,
        payload_bytes_sent: stats.payload_bytes_sent,
        payload_bytes_received: stats.payload_bytes_received,
        packets_retransmitted: stats.packets_retransmitted,
        packets_dropped: stats.packets_dropped,
        icrc_failures: stats.icrc_failures,
        ack_timeouts: stats.ack_timeouts,
        rnr_naks_sent: stats.rnr_naks_sent,
        rnr_naks_received: stats.rnr_naks_received,
        sequence_naks_sent: stats.sequence_naks_sent,
        sequence_naks_received: stats.sequence_naks_received,
        doorbells: stats.doorbells,
    }
}

/// Resident memory of this process.
fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
