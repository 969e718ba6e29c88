//! Shards in namespaces of running targets.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use feedrail_dataset::Name;
use feedrail_dataset::url::{NamespaceChoice, SourceUrl, TargetUrl, UrlHost};
use feedrail_initiator::{Host, Namespace, NamespaceInfo};
use nvme_proto::Nqn;

use super::arrange::{Candidates, ShardCandidate, arrange, shard};
use super::{ListedShard, ShardLocation};
use crate::options::Local;
use crate::session::{self, Session, is_no_namespace};

/// Target and NQN of a subsystem, as in a URL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SubsystemUrl {
    pub(crate) target: TargetUrl,
    pub(crate) nqn: Nqn,
}

/// Connections to the subsystems whose namespaces are shards. Dropping it ends them.
#[derive(Default)]
pub(crate) struct Subsystems {
    sessions: BTreeMap<SubsystemUrl, Session>,
    /// Host of all sessions, shared so that one plan can read from several of them.
    host: Option<Host>,
}

impl Subsystems {
    pub(crate) fn session(&self, subsystem: &SubsystemUrl) -> Option<&Session> {
        self.sessions.get(subsystem)
    }

    /// Returns the host of all sessions; `None` before the first.
    pub(crate) fn host(&self) -> Option<&Host> {
        self.host.as_ref()
    }

    /// Returns the namespace of a URL, or all namespaces of its subsystem by name, as shards.
    pub(super) fn shards(&mut self, url: &SourceUrl, local: &Local) -> Result<Vec<ListedShard>> {
        let subsystem = Arc::new(SubsystemUrl { target: url.target.clone(), nqn: url.nqn });
        let session = self.connect(&subsystem, local)?;
        let mut candidates = Candidates::new();
        let mut chosen = None;
        for nsid in session.active_namespaces()? {
            let namespace = match session.namespace(nsid) {
                Err(error) if is_no_namespace(&error) => continue,
                namespace => namespace?,
            };
            let name = name(namespace.info())?;
            if url.namespace.as_ref().is_some_and(|choice| is_chosen(choice, &namespace, &name)) {
                chosen = Some(name.clone());
            }
            let bytes = namespace.size_bytes();
            let place = ShardLocation::Namespace { namespace, subsystem: Arc::clone(&subsystem) };
            if candidates.insert(name.clone(), ShardCandidate { bytes, place }).is_some() {
                bail!("two namespaces are called {name}; name one by its identifier");
            }
        }
        match (&url.namespace, chosen) {
            (None, _) => arrange(&candidates),
            (Some(_), Some(name)) => named(&candidates, name).map(|shard| vec![shard]),
            (Some(NamespaceChoice::Name(name)), None) if name.as_str().parse::<u32>().is_ok() => {
                bail!(
                    "the subsystem has no namespace called {name}: a number is said as nsid:{name}"
                )
            }
            (Some(_), None) => bail!("the subsystem has no such namespace"),
        }
    }

    fn connect(&mut self, subsystem: &SubsystemUrl, local: &Local) -> Result<&Session> {
        if !self.sessions.contains_key(subsystem) {
            let address = address(&subsystem.target)?;
            let host = self.host.clone().map_or_else(|| session::host(local), Ok)?;
            let host = self.host.insert(host).clone();
            let session = Session::connect_with(host, address, subsystem.nqn)?;
            self.sessions.insert(subsystem.clone(), session);
        }
        self.sessions.get(subsystem).context("it was just connected")
    }
}

/// Returns a namespace that is named explicitly, which is a shard whatever its name is.
fn named(candidates: &Candidates, name: Name) -> Result<ListedShard> {
    if let Some(shard) = shard(candidates, &name) {
        return Ok(shard);
    }
    let found = candidates.get(&name).cloned();
    let ShardCandidate { bytes, place } = found.context("it was just found")?;
    Ok(ListedShard { name, bytes, place, idx: None })
}

/// Name of a namespace that the target reports, or else `namespace-NSID`.
fn name(info: &NamespaceInfo) -> Result<Name> {
    let Some(text) = &info.name else { return Ok(Name::of_nameless(info.nsid.0)) };
    text.parse().with_context(|| format!("the name of namespace {}", info.nsid))
}

fn is_chosen(choice: &NamespaceChoice, namespace: &Namespace, name: &Name) -> bool {
    match choice {
        NamespaceChoice::Nsid(nsid) => namespace.nsid() == *nsid,
        NamespaceChoice::Name(chosen) => name == chosen,
    }
}

/// Resolves the host name of a target's URL.
pub(crate) fn address(url: &TargetUrl) -> Result<SocketAddr> {
    let name = match &url.host {
        UrlHost::Address(address) => return Ok(SocketAddr::new(*address, url.port)),
        UrlHost::Name(name) => name.as_str(),
    };
    let cannot = || format!("cannot resolve {name}");
    let mut addresses = (name, url.port).to_socket_addrs().with_context(cannot)?;
    addresses.next().with_context(cannot)
}
