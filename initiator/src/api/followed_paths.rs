//! The paths of a subsystem, updated from discovery services.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use nvme_proto::Nqn;

use crate::api::discovery::{DiscoveryController, DiscoveryLog};
use crate::api::namespace::Namespace;
use crate::api::pending::Pending;
use crate::api::subsystem_paths::{SubsystemPaths, no_port, take};
use crate::driver::host_state::Inner;
use crate::types::error::{Error, SubsystemAddress};

/// The paths to a subsystem over all ports that discovery services report, with a persistent
/// connection to each service to learn of changes.
///
/// [`FollowedPaths::next`] waits for a change, and [`FollowedPaths::keep_up`] moves namespaces to
/// the new paths at each change. Plans use the paths that existed when their
/// [`Shards`](crate::Shards) were built; shards over the result of `next` use the new ones. The
/// connection of a path that was removed ends when the old shards are dropped.
#[derive(Clone, Debug)]
pub struct FollowedPaths {
    nqn: Nqn,
    /// The service that the caller named, then those that its referrals lead to.
    services: Vec<FollowedService>,
    paths: SubsystemPaths,
}

/// A discovery service, and the log page that it returned last.
#[derive(Clone, Debug)]
struct FollowedService {
    controller: DiscoveryController,
    log: DiscoveryLog,
}

impl FollowedService {
    async fn connect(host: Arc<Inner>, address: SocketAddr) -> Result<Self, Error> {
        let controller = DiscoveryController::connect(host, address).await?;
        let log = controller.log().await?;
        Ok(Self { controller, log })
    }
}

impl FollowedPaths {
    pub(crate) async fn connect(
        host: Arc<Inner>,
        service: SocketAddr,
        nqn: Nqn,
    ) -> Result<Self, Error> {
        let mut services = vec![FollowedService::connect(Arc::clone(&host), service).await?];
        let targets = named(&host, &nqn, &mut services).await;
        if targets.is_empty() {
            return Err(no_port(service, nqn));
        }
        let paths = SubsystemPaths::connect(host, targets).await?;
        Ok(Self { nqn, services, paths })
    }

    /// Returns the connected paths, as of the change that led to this value.
    pub fn paths(&self) -> &SubsystemPaths {
        &self.paths
    }

    /// Returns the addresses of the discovery services.
    pub fn services(&self) -> impl Iterator<Item = SocketAddr> {
        self.services.iter().map(|service| service.controller.address())
    }

    /// Waits until the services report other ports of the subsystem, and connects to new ones.
    /// Ports that cannot be reached are tried again at the next change. While no port is reported,
    /// or none can be reached, the paths stay as they are.
    ///
    /// # Errors
    /// The first service was lost or cannot be used, or its log page is not valid.
    pub fn next(&self) -> Pending<Result<Self, Error>> {
        let host = Arc::clone(&self.paths.controllers()[0].handle().host);
        let followed = self.clone();
        Pending::new(&host, followed.into_next(Arc::clone(&host)))
    }

    /// Calls [`Namespace::change_paths`] at each change for these namespaces, which
    /// [`SubsystemPaths::multipath_namespace`] opened, for as long as the caller waits, for example
    /// in a thread of its own. A namespace that cannot be reached over any of the new paths keeps
    /// its old ones.
    ///
    /// # Errors
    /// It returns only with an error: the first service was lost or cannot be used, its log page is
    /// not valid, or a namespace belongs to another host than the paths.
    pub fn keep_up(&self, namespaces: &[Namespace]) -> Pending<Error> {
        let host = Arc::clone(&self.paths.controllers()[0].handle().host);
        let (mut followed, namespaces) = (self.clone(), namespaces.to_vec());
        let following = Arc::clone(&host);
        Pending::new(&host, async move {
            let is_other = |namespace: &&Namespace| !Arc::ptr_eq(namespace.host(), &following);
            if let Some(other) = namespaces.iter().find(is_other) {
                return other.is_of_another_host();
            }
            loop {
                followed = match followed.into_next(Arc::clone(&following)).await {
                    Ok(next) => next,
                    Err(error) => return error,
                };
                for namespace in &namespaces {
                    // A namespace that fails at this change is tried again at the next.
                    match namespace.change_paths(&followed.paths).await {
                        Ok(left_out) => left_out
                            .iter()
                            .for_each(|error| tracing::warn!(%error, "a path is left out")),
                        Err(error) => tracing::warn!(%error, "a namespace keeps its paths"),
                    }
                }
            }
        })
    }

    async fn into_next(mut self, host: Arc<Inner>) -> Result<Self, Error> {
        loop {
            let after =
                |service: &FollowedService| service.controller.log_after(service.log.genctr);
            let (place, log) = first_of(self.services.iter().map(after).collect()).await;
            match log {
                Ok(log) => self.services[place].log = log,
                Err(error) if place == 0 => return Err(error),
                Err(_) => drop(self.services.remove(place)),
            }
            let targets = named(&host, &self.nqn, &mut self.services).await;
            if !targets.is_empty()
                && let Ok(paths) = self.paths.change_to(Arc::clone(&host), &targets).await
            {
                let is_other = !paths.targets().eq(self.paths.targets());
                self.paths = paths;
                if is_other {
                    return Ok(self);
                }
            }
        }
    }
}

/// Returns the addresses of a subsystem that the services and those of their referrals report.
/// Connects to the latter, and drops the services that no referral leads to any longer.
async fn named(
    host: &Arc<Inner>,
    nqn: &Nqn,
    services: &mut Vec<FollowedService>,
) -> Vec<SubsystemAddress> {
    let mut known = std::mem::take(services);
    let first = known.first().map(|service| service.controller.address());
    let (mut addresses, mut next, mut found) = (Vec::from_iter(first), 0, Vec::new());
    while let Some(&address) = addresses.get(next) {
        next += 1;
        let place = known.iter().position(|known| known.controller.address() == address);
        let service = match place {
            Some(place) => known.remove(place),
            // A service that cannot be reached does not hide ports that others report.
            None => match FollowedService::connect(Arc::clone(host), address).await {
                Ok(service) => service,
                Err(_) => continue,
            },
        };
        take(&service.log, nqn, &mut addresses, &mut found);
        services.push(service);
    }
    found
}

/// Waits for the first result, and returns it with the index of its future.
async fn first_of<F: Future + Unpin>(mut futures: Vec<F>) -> (usize, F::Output) {
    poll_fn(|context| {
        for (place, future) in futures.iter_mut().enumerate() {
            if let Poll::Ready(output) = Pin::new(future).poll(context) {
                return Poll::Ready((place, output));
            }
        }
        Poll::Pending
    })
    .await
}
