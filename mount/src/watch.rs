//! Watchers: a thread for each target that lists its namespaces, and again whenever they change.

use std::collections::BTreeMap;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use feedrail_initiator::{Controller, Error, Host, Namespace, NamespaceInfo, Nsid};
use fuser::{INodeNo, Notifier};

use crate::lane::Shared;
use crate::source::Catalog;
use crate::tree::Outdated;

/// Pause before a target is asked again that could not be connected or did not answer.
const PAUSE: Duration = Duration::from_secs(1);

/// Keeps the tree as the targets have it.
pub(crate) struct Watch {
    host: Host,
    shared: Arc<Shared>,
    catalog: Mutex<Catalog>,
    /// How the kernel is told of changes, once it has the file system.
    notifier: Mutex<Option<Notifier>>,
}

impl Watch {
    pub(crate) fn new(host: Host, shared: Arc<Shared>, catalog: Catalog) -> Self {
        let (catalog, notifier) = (Mutex::new(catalog), Mutex::new(None));
        Self { host, shared, catalog, notifier }
    }

    /// Tells the kernel of the changes from now on.
    pub(crate) fn notify(&self, notifier: Notifier) {
        *self.notifier.lock().unwrap_or_else(PoisonError::into_inner) = Some(notifier);
    }

    /// The shards that no target has.
    pub(crate) fn missing(&self) -> Vec<String> {
        self.catalog.lock().unwrap_or_else(PoisonError::into_inner).missing()
    }

    /// Follows a target until it is given up; says first whether it can be reached and was listed.
    pub(crate) fn follow(&self, target: usize, first: Sender<Result<(), Error>>) {
        let mut first = Some(first);
        let mut tell = |result| {
            // Nobody may listen any longer.
            let _ = first.take().map(|first| first.send(result));
        };
        let Some(source) = self.shared.targets.get(target) else { return };
        let controller = loop {
            match source.connect(&self.host).wait() {
                Ok(controller) => break controller,
                Err(error) => {
                    tracing::warn!(%error, "cannot connect");
                    tell(Err(error));
                    pause();
                }
            }
        };
        let mut open = BTreeMap::new();
        // The number now, whatever it is.
        let mut seen = u64::MAX;
        loop {
            match controller.namespace_changes(seen).wait() {
                Ok(count) => seen = count,
                Err(error) => {
                    tracing::error!(%error, "the target is not followed any longer");
                    return;
                }
            }
            loop {
                match list(&controller, &mut open) {
                    Ok(()) => break,
                    Err(error) => {
                        tracing::warn!(%error, "cannot list namespaces");
                        tell(Err(error));
                        pause();
                    }
                }
            }
            let infos = open.values().map(info_now);
            self.publish(target, infos.collect());
            tell(Ok(()));
        }
    }

    /// Puts what a target has in the tree, and has the kernel forget what is no longer so.
    fn publish(&self, target: usize, namespaces: Vec<NamespaceInfo>) {
        let mut catalog = self.catalog.lock().unwrap_or_else(PoisonError::into_inner);
        catalog.list(target, namespaces);
        let before = self.shared.tree.get();
        let next = before.next(&catalog.files());
        let outdated = before.outdated(&next);
        self.shared.tree.set(next);
        drop(catalog);
        let notifier = self.notifier.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(notifier) = notifier else { return };
        for outdated in outdated {
            let told = match &outdated {
                Outdated::Entry { parent, name } => {
                    notifier.inval_entry(INodeNo(*parent), name.as_ref().as_ref())
                }
                Outdated::Inode(inode) => notifier.inval_inode(INodeNo(*inode), 0, 0),
            };
            // The kernel does not know of what was never looked up.
            if let Err(error) = told {
                tracing::debug!(%error, ?outdated, "nothing to forget");
            }
        }
    }
}

fn info_now(namespace: &Namespace) -> NamespaceInfo {
    let mut info = namespace.info().clone();
    info.name = namespace.current_name();
    info
}

#[expect(clippy::disallowed_methods, reason = "a watcher waits by the real clock")]
fn pause() {
    thread::sleep(PAUSE);
}

/// Brings the namespaces that are open to those that the target has: closes those that are gone or
/// are not what they were, and opens those that came.
fn list(controller: &Controller, open: &mut BTreeMap<Nsid, Namespace>) -> Result<(), Error> {
    if open.is_empty() {
        let namespaces = controller.namespaces().wait()?;
        open.extend(namespaces.into_iter().map(|namespace| (namespace.nsid(), namespace)));
        return Ok(());
    }
    let active = controller.active_namespaces().wait()?;
    open.retain(|nsid, namespace| {
        active.binary_search(nsid).is_ok() && namespace.change().is_none()
    });
    for nsid in active {
        if open.contains_key(&nsid) {
            continue;
        }
        match controller.namespace(nsid).wait() {
            Ok(namespace) => drop(open.insert(nsid, namespace)),
            // It was removed since it was listed.
            Err(error) if error.is_no_namespace() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
