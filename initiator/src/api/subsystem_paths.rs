//! Paths: a subsystem over several of its ports.

use std::net::SocketAddr;
use std::sync::Arc;

use nvme_proto::log::SubsystemType;
use nvme_proto::{Nqn, Nsid};

use crate::api::controller::Controller;
use crate::api::controller_handle::ControllerHandle;
use crate::api::discovery::{DiscoveryLog, discover};
use crate::api::namespace::Namespace;
use crate::api::namespace_paths::NamespacePaths;
use crate::api::pending::Pending;
use crate::driver::host_state::Inner;
use crate::engine::shard_routes::ReplicaPolicy;
use crate::types::error::{Error, ErrorKind, SubsystemAddress};

/// Limit on the discovery services that are read for the ports of a subsystem.
const MAX_SERVICES: usize = 16;

/// Connections to several ports of a subsystem, of one target or of several that serve it together.
///
/// [`SubsystemPaths::multipath_namespace`] returns a namespace over all of them, for reads and
/// writes. For plans, [`SubsystemPaths::namespace`] returns the replicas of a shard
/// ([`Shards::with_replicas`](crate::Shards::with_replicas)). The
/// [`ReplicaPolicy`](crate::ReplicaPolicy) selects the path of each range. Paths in the ANA
/// Optimized state are used before those in the ANA Non-Optimized state; on others nothing is sent
/// until the controller reports another state (Base, 8.1.1). Ranges in progress on a path that is
/// lost, or rejects them for its state, are moved to another immediately.
#[derive(Clone, Debug)]
pub struct SubsystemPaths {
    controllers: Vec<Controller>,
    unreachable: Vec<Error>,
}

impl SubsystemPaths {
    /// Connects to all addresses concurrently; the error of the first if none can be reached.
    pub(crate) async fn connect(
        host: Arc<Inner>,
        targets: Vec<SubsystemAddress>,
    ) -> Result<Self, Error> {
        let options = &host.controller;
        let connecting = targets.into_iter();
        let connecting: Vec<_> =
            connecting.map(|target| Controller::connect(&host, target, options.clone())).collect();
        let (mut controllers, mut unreachable) = (Vec::new(), Vec::new());
        for connecting in connecting {
            let connected = match connecting {
                Ok(connecting) => connecting.await,
                Err(error) => Err(error),
            };
            match connected {
                Ok(controller) => controllers.push(controller),
                Err(error) => unreachable.push(error),
            }
        }
        if controllers.is_empty() {
            let none = || ErrorKind::Invalid("no path is given").into();
            return Err(unreachable.into_iter().next().unwrap_or_else(none));
        }
        Ok(Self { controllers, unreachable })
    }

    /// Returns the paths to these addresses: existing connections are kept, the others are
    /// established. [`Namespace::change_paths`] moves a namespace to the result.
    ///
    /// # Errors
    /// That of the first address, if none of the addresses is connected and none can be reached.
    pub fn changed_to(
        &self,
        targets: impl IntoIterator<Item = SubsystemAddress>,
    ) -> Pending<Result<Self, Error>> {
        let host = Arc::clone(&self.controllers[0].handle().host);
        let (paths, targets) = (self.clone(), Vec::from_iter(targets));
        let changing = Arc::clone(&host);
        Pending::new(&host, async move { paths.change_to(changing, &targets).await })
    }

    /// Implements [`SubsystemPaths::changed_to`], for callers that await it.
    pub(crate) async fn change_to(
        &self,
        host: Arc<Inner>,
        targets: &[SubsystemAddress],
    ) -> Result<Self, Error> {
        let is_known = |target: &SubsystemAddress| {
            self.controllers.iter().any(|controller| controller.target() == target)
        };
        let new: Vec<_> = targets.iter().filter(|target| !is_known(target)).copied().collect();
        let stays = |path: &&Controller| targets.contains(path.target());
        let mut controllers: Vec<_> = self.controllers.iter().filter(stays).cloned().collect();
        if new.is_empty() && !controllers.is_empty() {
            return Ok(Self { controllers, unreachable: Vec::new() });
        }
        match Self::connect(host, new).await {
            Ok(others) => {
                controllers.extend(others.controllers);
                Ok(Self { controllers, unreachable: others.unreachable })
            }
            Err(error) if controllers.is_empty() => Err(error),
            Err(error) => Ok(Self { controllers, unreachable: vec![error] }),
        }
    }

    fn handles(&self) -> Vec<Arc<ControllerHandle>> {
        self.controllers.iter().map(|path| Arc::clone(path.handle())).collect()
    }

    /// Returns the addresses that were connected.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &SubsystemAddress> {
        self.controllers.iter().map(Controller::target)
    }

    /// Returns the controllers of the connected addresses, in their order. A connection that is
    /// lost is established again.
    pub fn controllers(&self) -> &[Controller] {
        &self.controllers
    }

    /// Returns the errors of the other addresses, to which no further attempt is made.
    pub fn unreachable(&self) -> &[Error] {
        &self.unreachable
    }

    /// Opens a namespace over all paths, at most 8, to be read and written as one: the policy
    /// selects the path of each range among those in the best ANA state, and the range is moved to
    /// another path if that one is lost.
    ///
    /// The target may still execute a write after its path was lost. So the write is sent on
    /// another path only when the lost one is connected again, which a target refuses until it has
    /// ended the commands of the old connection, or when the target must have detected the loss by
    /// the lack of Keep Alive ([`keep_alive_ms`](crate::ControllerOptions::keep_alive_ms)) and its
    /// Command Quiesce Time has passed as well. Until then other writes to the same blocks wait,
    /// and no other operations. Storage of a lost target that executes the write even later than
    /// the target reports may overwrite a newer one.
    ///
    /// The namespace keeps these paths until [`Namespace::change_paths`] replaces them.
    ///
    /// # Errors
    /// The namespace cannot be opened over one of the paths, or differs between two.
    pub fn multipath_namespace(
        &self,
        nsid: Nsid,
        policy: ReplicaPolicy,
    ) -> Pending<Result<Namespace, Error>> {
        let host = Arc::clone(&self.controllers[0].handle().host);
        let opening = self.namespace(nsid);
        Pending::new(&host, async move { Namespace::over_paths(policy, opening.await?) })
    }

    /// Opens a namespace over each path alone.
    ///
    /// # Errors
    /// The namespace cannot be opened over one of the paths, or differs between two.
    pub fn namespace(&self, nsid: Nsid) -> Pending<Result<Vec<Namespace>, Error>> {
        let host = Arc::clone(&self.controllers[0].handle().host);
        let opening: Vec<_> = self.controllers.iter().map(|path| path.namespace(nsid)).collect();
        Pending::new(&host, async move {
            let mut namespaces = Vec::new();
            for opening in opening {
                namespaces.push(opening.await?);
            }
            let first = namespaces[0].info();
            match namespaces.iter().find(|other| first.is_of_another(other.info())) {
                Some(other) => Err(other.first_path().is_different()),
                None => Ok(namespaces),
            }
        })
    }
}

impl Namespace {
    /// Replaces the paths of a namespace that [`SubsystemPaths::multipath_namespace`] opened by
    /// these, at most 8; for example by those of
    /// [`FollowedPaths::next`](crate::FollowedPaths::next). The namespace keeps its connections
    /// among them, and is opened over the others. Clones change as well; plans and
    /// [`Shards`](crate::Shards) do not.
    ///
    /// Ranges in progress stay on their paths, and continue on a new one if theirs is lost. The
    /// connection of a removed path ends when its ranges have ended and no other handle uses it.
    ///
    /// Returns the errors of the paths over which the namespace cannot be reached; they are
    /// omitted.
    ///
    /// # Errors
    /// The namespace cannot be reached over any of the paths, is a different one there, or the
    /// paths are of another host: it keeps its old paths. Or it was opened over a single
    /// controller.
    ///
    /// [`SubsystemPaths::multipath_namespace`]: crate::SubsystemPaths::multipath_namespace
    pub fn change_paths(&self, paths: &SubsystemPaths) -> Pending<Result<Vec<Error>, Error>> {
        let (this, controllers) = (self.clone(), paths.handles());
        Pending::new(self.host(), async move {
            let what = "only a namespace that was opened over paths can have others";
            match this.reached_over() {
                NamespacePaths::One(_) => Err(this.about(ErrorKind::Invalid(what).into())),
                NamespacePaths::Several(multipath) => {
                    let is_other =
                        |path: &Arc<ControllerHandle>| !Arc::ptr_eq(&path.host, this.host());
                    if controllers.iter().any(is_other) {
                        return Err(this.is_of_another_host());
                    }
                    multipath.change_to(&controllers).await
                }
            }
        })
    }
}

/// Returns the addresses of a subsystem that a discovery service and those of its referrals report.
pub(crate) async fn find(
    host: Arc<Inner>,
    service: SocketAddr,
    nqn: Nqn,
) -> Result<Vec<SubsystemAddress>, Error> {
    let (mut services, mut next, mut found) = (vec![service], 0, Vec::new());
    while let Some(&service) = services.get(next) {
        next += 1;
        match discover(Arc::clone(&host), service).await {
            Ok(log) => take(&log, &nqn, &mut services, &mut found),
            Err(error) if next == 1 => return Err(error),
            // A service that cannot be reached does not hide ports that others report.
            Err(_) => continue,
        }
    }
    match found.is_empty() {
        true => Err(no_port(service, nqn)),
        false => Ok(found),
    }
}

/// Adds the referrals of a log page to `services`, and the addresses of the subsystem to `found`,
/// without duplicates.
pub(crate) fn take(
    log: &DiscoveryLog,
    nqn: &Nqn,
    services: &mut Vec<SocketAddr>,
    found: &mut Vec<SubsystemAddress>,
) {
    for entry in &log.entries {
        let Ok(target) = SubsystemAddress::try_from(entry) else { continue };
        let is_service = match entry.subtype {
            SubsystemType::DISCOVERY => true,
            SubsystemType::CURRENT_DISCOVERY => !entry.eflags.duplicate_information(),
            _ => false,
        };
        let is_new = !services.contains(&target.address) && services.len() < MAX_SERVICES;
        if is_service && is_new {
            services.push(target.address);
        }
        let is_path = entry.subtype == SubsystemType::NVM && target.nqn == *nqn;
        if is_path && !found.contains(&target) {
            found.push(target);
        }
    }
}

pub(crate) fn no_port(service: SocketAddr, nqn: Nqn) -> Error {
    let target = Arc::new(SubsystemAddress { address: service, nqn });
    let what = "the discovery service names no port of the subsystem to this host";
    Error::from(ErrorKind::Invalid(what)).of_target(&target)
}
