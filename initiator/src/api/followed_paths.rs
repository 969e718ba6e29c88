//! The paths of a subsystem, as discovery services name them now and later.

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

/// A subsystem through all ports that discovery services name, with a connection to each service
/// that lasts, so that ports which come or go are noticed.
///
/// [`FollowedPaths::next`] waits for that, and [`FollowedPaths::keep_up`] moves namespaces to the
/// new paths each time. Plans read over the paths that existed when their
/// [`Shards`](crate::Shards) were made; those of `next` have the new ones, and the connection of a
/// path that is gone ends once the old ones are dropped.
#[derive(Clone, Debug)]
pub struct FollowedPaths {
    nqn: Nqn,
    /// The one that the caller named, and those that it refers to.
    services: Vec<FollowedService>,
    paths: SubsystemPaths,
}

/// A discovery service, and what it said last.
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

    /// The paths that were found.
    pub fn paths(&self) -> &SubsystemPaths {
        &self.paths
    }

    /// The discovery services that are followed.
    pub fn services(&self) -> impl Iterator<Item = SocketAddr> {
        self.services.iter().map(|service| service.controller.address())
    }

    /// Waits until the services name other ports of the subsystem, and connects to those that are
    /// new. Ports that could not be reached are tried again with the next change. While no port is
    /// named, or none can be reached, the paths are what they were.
    ///
    /// # Errors
    /// The first service can no longer be used.
    pub fn next(&self) -> Pending<Result<Self, Error>> {
        let host = Arc::clone(&self.paths.controllers()[0].handle().host);
        let followed = self.clone();
        Pending::new(&host, followed.into_next(Arc::clone(&host)))
    }

    /// Changes the paths of namespaces that were opened by [`SubsystemPaths::multipath_namespace`]
    /// with each change, as [`Namespace::change_paths`], for as long as it is waited for: in a
    /// thread of its own, for example. A namespace that is on none of the new paths keeps those
    /// that it had.
    ///
    /// # Errors
    /// The first service can no longer be used, or one of the namespaces is of another host than
    /// the paths: the only ways in which it ends.
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
                    // What is wrong now may be right with the next change.
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

/// The addresses of a subsystem that services and those that they refer to name. Connects to the
/// latter, and leaves those that are no longer referred to.
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
            // One that is out of reach does not hide what the others name.
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

/// The result that comes first, and its place.
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
