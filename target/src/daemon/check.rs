//! The option `--check`: whether a target with this configuration would start. A running target is
//! not disturbed, since the check writes nothing, receives no packets and fills no memory.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::metrics_address::MetricsAddress;
use crate::config::{Config, Cores, PortConfig};
use crate::core_context::pool::{PoolMemory, PoolPlan};
use crate::driver::threads;
use crate::inventory::Inventory;
use crate::listening::{Reachable, try_address};
use crate::management::SocketPlace;
use crate::storage::Uring;
use crate::target::StartError;

/// Opens everything that a target would open at its start, and returns its exports.
///
/// # Errors
/// One line for each problem that would prevent the start.
pub(super) fn check(config: &Config) -> Result<Arc<Inventory>, Vec<String>> {
    let mut problems = Vec::new();
    let inventory = Inventory::check(config);
    let inventory =
        inventory.map_err(|errors| problems.extend(errors.iter().map(ToString::to_string))).ok();
    problems.extend(pool(config).err());
    problems.extend(Uring::new(None).map(drop).map_err(|error| error.to_string()).err());
    problems.extend(cores(&config.cores));
    let sockets = config.management.iter().chain(&config.management_read_only);
    let sockets = sockets.filter_map(|path| SocketPlace::check(path).err());
    problems.extend(sockets.map(|error| error.to_string()));
    problems.extend(config.metrics.and_then(|address| metrics(address).err()));
    problems.extend(addresses(config));
    inventory.filter(|_| problems.is_empty()).ok_or(problems)
}

/// Checks that the address space of the buffer pool can be reserved.
fn pool(config: &Config) -> Result<(), String> {
    let limits = &config.limits;
    let bytes =
        PoolPlan::new(limits.pool_bytes, config.cores.count(), limits.block_bytes()).memory_bytes();
    let memory = PoolMemory::new(bytes, limits.max_transfer_bytes as usize);
    memory.map(drop).map_err(|error| StartError::Pool(error).to_string())
}

/// Checks that the metrics page can use its address. An address in use is no error, since a running
/// target may have it.
fn metrics(address: SocketAddr) -> Result<(), String> {
    match MetricsAddress::bind(address) {
        Ok(_) => Ok(()),
        Err(error) if error.is_in_use() => {
            tracing::info!(%address, "the address of the metrics is in use: by a target that runs, or by another program");
            Ok(())
        }
        Err(error) => Err(error.to_string()),
    }
}

fn cores(cores: &Cores) -> Vec<String> {
    threads::tell_of_few_cores(cores);
    let Cores::Pinned(list) = cores else { return Vec::new() };
    list.iter().filter_map(|core| Some(threads::try_core(*core).err()?.to_string())).collect()
}

/// Checks the addresses to listen on. Problems are only warnings if at least one address can be
/// served, since the target would start.
fn addresses(config: &Config) -> Vec<String> {
    let named = config.ports.iter().filter(|port| !port.is_wildcard());
    let addresses: BTreeSet<IpAddr> = named.map(|port| port.address.ip()).collect();
    let mut problems = Vec::new();
    for address in &addresses {
        match try_address(config, *address) {
            Ok(Reachable::Free) => {}
            Ok(Reachable::InUse) => tracing::info!(
                %address,
                "UDP port 4791 is in use: by a target that runs, or by another program that would have to end first"
            ),
            Err(error) => problems.push(error.to_string()),
        }
    }
    // A wildcard address always stands for at least one usable address.
    if problems.len() < addresses.len() || config.ports.iter().any(PortConfig::is_wildcard) {
        for problem in problems.drain(..) {
            tracing::warn!("the target would start, but without an address: {problem}");
        }
    }
    problems
}
