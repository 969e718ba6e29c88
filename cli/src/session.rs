//! Connections to a subsystem, with the options of the command line.

use core::net::SocketAddr;
use core::time::Duration;

use anyhow::{Context as _, Result};
use feedrail_initiator::{
    Controller, ControllerOptions, DiscoveryLog, Host, HostBuilder, Namespace, NamespaceInfo,
    RdmaProvider, ReplicaPolicy, SubsystemAddress, SubsystemPaths,
};
use nvme_proto::identify::{IdentifyController, IdentifyNamespace};
use nvme_proto::{FromBytes, Nqn, Nsid};

use crate::identity::HostIdArgs;
use crate::options::{FabricArgs, Local, ProviderArg, SubsystemArgs};
use crate::output;

/// Timeout for the demo's own target, which runs on this machine.
const NEARBY: Duration = Duration::from_secs(10);

/// Host and its connections to one subsystem. Dropping it ends them.
pub(crate) struct Session {
    controller: Controller,
    /// Further connections, each with a controller of its own.
    others: Vec<Controller>,
    /// Connections to all ports of the subsystem; then `others` is empty.
    paths: Option<SubsystemPaths>,
    host: Host,
}

impl Session {
    pub(crate) fn open(subsystem: &SubsystemArgs) -> Result<Self> {
        Self::connect(subsystem.fabric.address(), subsystem.nqn, &subsystem.fabric.local)
    }

    pub(crate) fn connect(address: SocketAddr, nqn: Nqn, local: &Local) -> Result<Self> {
        Self::over(host(local)?, SubsystemAddress { address, nqn })
    }

    /// Connects the demo to its target, under a generated host NQN.
    pub(crate) fn nearby(address: SocketAddr, nqn: Nqn, provider: ProviderArg) -> Result<Self> {
        let options = with_timeout(ControllerOptions::default(), NEARBY);
        let host =
            builder(HostIdArgs::generated(), provider).controller_options(options).build()?;
        Self::over(host, SubsystemAddress { address, nqn })
    }

    /// Connects with a host that other sessions may share.
    pub(crate) fn connect_with(host: Host, address: SocketAddr, nqn: Nqn) -> Result<Self> {
        Self::over(host, SubsystemAddress { address, nqn })
    }

    fn over(host: Host, target: SubsystemAddress) -> Result<Self> {
        let controller = host.connect(target).wait()?;
        Ok(Self { controller, others: Vec::new(), paths: None, host })
    }

    /// Connects to all ports of the subsystem that the discovery log of the address lists.
    pub(crate) fn open_paths(subsystem: &SubsystemArgs) -> Result<Self> {
        let host = host_of_paths(&subsystem.fabric.local)?;
        let targets = host.find_paths(subsystem.fabric.address(), subsystem.nqn).wait()?;
        let paths = host.connect_paths(targets).wait()?;
        for error in paths.unreachable() {
            output::note(format_args!("feedrail: without a path: {error}"));
        }
        let controller = paths.controllers().first().context("no path was connected")?.clone();
        Ok(Self { controller, others: Vec::new(), paths: Some(paths), host })
    }

    /// Whether the session has connections to all ports.
    pub(crate) fn has_paths(&self) -> bool {
        self.paths.is_some()
    }

    /// Adds connections until there are `connections` of them.
    pub(crate) fn connect_more(&mut self, connections: usize) -> Result<()> {
        while self.others.len() + 1 < connections {
            let target = *self.controller.target();
            self.others.push(self.host.connect(target).wait()?);
        }
        Ok(())
    }

    /// Returns a namespace over all paths, or over the only connection.
    pub(crate) fn multipath_namespace(
        &self,
        nsid: Nsid,
        policy: ReplicaPolicy,
    ) -> Result<Namespace> {
        match &self.paths {
            Some(paths) => Ok(paths.multipath_namespace(nsid, policy).wait()?),
            None => self.namespace(nsid),
        }
    }

    /// Returns a namespace once for each connection.
    pub(crate) fn namespaces(&self, nsid: Nsid) -> Result<Vec<Namespace>> {
        if let Some(paths) = &self.paths {
            return Ok(paths.namespace(nsid).wait()?);
        }
        let controllers = core::iter::once(&self.controller).chain(&self.others);
        controllers.map(|controller| Ok(controller.namespace(nsid).wait()?)).collect()
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    pub(crate) fn namespace(&self, nsid: Nsid) -> Result<Namespace> {
        Ok(self.controller.namespace(nsid).wait()?)
    }

    pub(crate) fn info(&self, nsid: Nsid) -> Result<NamespaceInfo> {
        Ok(self.namespace(nsid)?.info().clone())
    }

    pub(crate) fn identify_controller(&self) -> Result<IdentifyController> {
        structure(&self.controller.identify().wait()?)
    }

    pub(crate) fn identify_namespace(&self, nsid: Nsid) -> Result<IdentifyNamespace> {
        structure(&self.controller.identify_namespace(nsid).wait()?)
    }

    pub(crate) fn active_namespaces(&self) -> Result<Vec<Nsid>> {
        Ok(self.controller.active_namespaces().wait()?)
    }

    /// Names of the RDMA providers in use, with the reason for each choice.
    pub(crate) fn provider(&self) -> String {
        self.host.providers().join("; ")
    }
}

/// Whether the error is that a namespace does not exist, or was removed after it was listed.
pub(crate) fn is_no_namespace(error: &anyhow::Error) -> bool {
    error.downcast_ref::<feedrail_initiator::Error>().is_some_and(|one| one.is_no_namespace())
}

/// Parses Identify data; fails if its length is not that of the structure.
fn structure<T: FromBytes>(data: &[u8]) -> Result<T> {
    T::read_from_bytes(data).ok().context("the controller's Identify data has a wrong length")
}

/// Reads the discovery log page of the discovery controller at an address.
pub(crate) fn discover(fabric: &FabricArgs) -> Result<DiscoveryLog> {
    Ok(host(&fabric.local)?.discover(fabric.address()).wait()?)
}

/// Calls `print` with the discovery log page, and again after each change, until `print` fails.
pub(crate) fn follow_discovery(
    fabric: &FabricArgs,
    print: impl Fn(&DiscoveryLog) -> Result<()>,
) -> Result<()> {
    let controller = host(&fabric.local)?.connect_discovery(fabric.address()).wait()?;
    let mut log = controller.log().wait()?;
    loop {
        print(&log)?;
        log = controller.log_after(log.genctr).wait()?;
    }
}

/// Creates a host without connections.
pub(crate) fn host(local: &Local) -> Result<Host> {
    host_with(local, local.options()?)
}

/// Creates a host for several paths. A write that was lost with its path is sent over the next one
/// after at most two keep alive timeouts and 1 s. The default keep alive timeout makes that half of
/// the time that a command may take.
fn host_of_paths(local: &Local) -> Result<Host> {
    let options = local.options()?;
    host_with(
        local,
        match local.keep_alive_tmo {
            Some(_) => options,
            None => options.keep_alive_ms(keep_alive_of_paths(local.timeout)),
        },
    )
}

/// Keep alive timeout in milliseconds, a whole number of seconds, as targets round it.
fn keep_alive_of_paths(timeout_ms: u64) -> u32 {
    let seconds = (timeout_ms / 2).saturating_sub(1000) / 2 / 1000;
    // 1 s to 5 s.
    seconds.clamp(1, 5) as u32 * 1000
}

fn host_with(local: &Local, options: ControllerOptions) -> Result<Host> {
    Ok(host_builder(local)?.controller_options(options).build()?)
}

/// Returns a builder for hosts with the identity and provider of the command line.
pub(crate) fn host_builder(local: &Local) -> Result<HostBuilder> {
    let builder = builder(HostIdArgs::from_args(local)?, local.provider);
    let builder = match local.host_traddr {
        Some(address) => builder.source(address),
        None => builder,
    };
    Ok(builder.controller_options(local.options()?))
}

fn builder(identity: HostIdArgs, provider: ProviderArg) -> HostBuilder {
    let provider = match provider {
        ProviderArg::Auto => RdmaProvider::Auto,
        ProviderArg::Verbs => RdmaProvider::Verbs,
        ProviderArg::Soft => RdmaProvider::Soft,
        ProviderArg::Shm => RdmaProvider::Shm,
    };
    Host::builder().host_nqn(identity.nqn).host_id(identity.id).provider(provider)
}

impl FabricArgs {
    fn address(&self) -> SocketAddr {
        SocketAddr::new(self.traddr, self.trsvcid)
    }
}

impl Local {
    pub(crate) fn options(&self) -> Result<ControllerOptions> {
        let mut options =
            with_timeout(ControllerOptions::default(), Duration::from_millis(self.timeout));
        if let Some(queues) = self.nr_io_queues {
            options = options.io_queues(queues);
        }
        if let Some(entries) = self.queue_size {
            options = options.queue_entries(entries);
        }
        if let Some(seconds) = self.keep_alive_tmo {
            options = options.keep_alive_ms(seconds * 1000);
        }
        if let Some(type_of_service) = self.tos {
            options = options.type_of_service(type_of_service);
        }
        if let Some(exponent) = self.ack_timeout {
            options = options.ack_timeout_exponent(exponent);
        }
        self.secrets.add_to(options)
    }
}

/// Sets the same timeout for connects, recovery of connections, and commands.
fn with_timeout(options: ControllerOptions, timeout: Duration) -> ControllerOptions {
    options
        .connect_timeout(timeout)
        .loss_timeout(timeout)
        .io_timeout(timeout)
        .admin_timeout(timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_write_has_time_for_another_path() {
        for timeout_ms in [6_000, 10_000, 30_000, 600_000] {
            let keep_alive_ms = u64::from(keep_alive_of_paths(timeout_ms));
            assert!(2 * keep_alive_ms + 1_000 <= timeout_ms / 2, "{timeout_ms}");
        }
        assert_eq!([1, 10_000, 600_000].map(keep_alive_of_paths), [1_000, 2_000, 5_000]);
    }
}
