//! Paths: a subsystem through several of its ports.

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

/// The most discovery services that are asked for the ports of a subsystem.
const MAX_SERVICES: usize = 16;

/// A subsystem through several of its ports, or several targets that serve it together, over a
/// connection each.
///
/// [`SubsystemPaths::multipath_namespace`] is a namespace over all of them, for reads and writes.
/// Plans read over all of them, too: the namespaces of [`SubsystemPaths::namespace`] are the
/// replicas of a shard ([`Shards::with_replicas`](crate::Shards::with_replicas)), and the
/// [`ReplicaPolicy`](crate::ReplicaPolicy) says which path each range takes. Paths whose ANA state
/// is optimized come first, non-optimized ones only without those; over others nothing is sent
/// until the controller tells of another state (Base, 8.1.1). Ranges in progress over a path that
/// is lost, or refuses them for its state, are read over another immediately.
#[derive(Clone, Debug)]
pub struct SubsystemPaths {
    controllers: Vec<Controller>,
    unreachable: Vec<Error>,
}

impl SubsystemPaths {
    /// Connects to all at a time; the error of the first if none can be reached.
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

    /// Makes the list of paths to these addresses: keeps the connections to them, and connects to
    /// the others. [`Namespace::change_paths`] gives the paths to a namespace.
    ///
    /// # Errors
    /// Of the first address, if there is no connection to any of them and none can be made.
    pub fn changed_to(
        &self,
        targets: impl IntoIterator<Item = SubsystemAddress>,
    ) -> Pending<Result<Self, Error>> {
        let host = Arc::clone(&self.controllers[0].handle().host);
        let (paths, targets) = (self.clone(), Vec::from_iter(targets));
        let changing = Arc::clone(&host);
        Pending::new(&host, async move { paths.change_to(changing, &targets).await })
    }

    /// Changes paths as [`SubsystemPaths::changed_to`], for callers that wait for it.
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

    /// The addresses of the paths that were connected.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &SubsystemAddress> {
        self.controllers.iter().map(Controller::target)
    }

    /// The controller of each path that was connected, in the order of the addresses. A connection
    /// that is lost is made again.
    pub fn controllers(&self) -> &[Controller] {
        &self.controllers
    }

    /// Why the other addresses could not be connected to. They are not tried again.
    pub fn unreachable(&self) -> &[Error] {
        &self.unreachable
    }

    /// Opens a namespace over all paths, at most 8, to be read and written as one: each range takes
    /// the path that the policy chooses among those that are reached best, and continues over
    /// another if that is lost.
    ///
    /// A write that was in progress over a lost path may still be carried out there. So it is sent
    /// over another path only when the lost one is connected again, which a target refuses until it
    /// has ended what was in progress, or when the target must know of the loss by the lack of Keep
    /// Alive ([`keep_alive_ms`](crate::ControllerOptions::keep_alive_ms)) and its Command Quiesce
    /// Time has passed as well. Until then other writes to the same blocks wait as well, and
    /// nothing else does. Storage of a lost target that continues for longer than the target
    /// reports may put the old write over a newer one.
    ///
    /// The namespace keeps these paths until [`Namespace::change_paths`] gives it others.
    ///
    /// # Errors
    /// It cannot be opened over one of them, or differs between two.
    pub fn multipath_namespace(
        &self,
        nsid: Nsid,
        policy: ReplicaPolicy,
    ) -> Pending<Result<Namespace, Error>> {
        let host = Arc::clone(&self.controllers[0].handle().host);
        let opening = self.namespace(nsid);
        Pending::new(&host, async move { Namespace::over_paths(policy, opening.await?) })
    }

    /// Opens a namespace over each path.
    ///
    /// # Errors
    /// It cannot be opened over one of them, or differs between two.
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
    /// Changes the paths of a namespace that was opened by [`SubsystemPaths::multipath_namespace`]
    /// to these, at most 8: those of
    /// [`FollowedPaths::next`](crate::FollowedPaths::next), for example. It keeps the connections
    /// that it has to them, and is opened over the others. Clones of it change with it; plans and
    /// [`Shards`](crate::Shards) do not.
    ///
    /// What is in progress stays where it is, and continues over one of the new paths should its
    /// own be lost. The connection of a path that is not among these ends when that is done, and no
    /// other handle has it.
    ///
    /// Returns why the namespace cannot be reached over some of the paths, which are left out.
    ///
    /// # Errors
    /// It can be reached over none of them, is another namespace there, or they are of another
    /// host: its paths are what they were. Or it was opened over a controller.
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

/// The addresses of a subsystem that a discovery service names, and those that it refers to.
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
            // One that is out of reach does not hide what the others name.
            Err(_) => continue,
        }
    }
    match found.is_empty() {
        true => Err(no_port(service, nqn)),
        false => Ok(found),
    }
}

/// Takes the services that a log page refers to, and the addresses of a subsystem that it names,
/// those that are new.
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
