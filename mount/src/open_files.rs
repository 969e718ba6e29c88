//! The files that a lane has open: the namespaces that they are read from.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use feedrail_initiator::{Controller, Host, MonotonicTime, Namespace, ReplicaPolicy, Shards};
use rustix::io::Errno;

use crate::connections::{LaneConnections, Reached};
use crate::fault::ReadFault;
use crate::file::{FileReplica, FileVersion};
use crate::tree::FileTree;

/// The most files that a lane keeps open: each is checked after a reconnect.
const OPEN_AT_MOST: usize = 1024;
/// A file without some of its replicas is opened again by the first read after this time.
const LOOK_FOR_REPLICAS: Duration = Duration::from_secs(10);

type FileOpening = Pin<Box<dyn Future<Output = Result<Shards, ReadFault>> + Send>>;

enum OpenState {
    Opening(FileOpening),
    Open(Shards),
    /// Kept until the reads that wait are told.
    Failed(ReadFault),
}

struct OpenFile {
    version: Arc<FileVersion>,
    state: OpenState,
    /// When it was opened, if replicas were left out.
    incomplete_since: Option<MonotonicTime>,
    /// Number of the read that used it last.
    used: u64,
}

/// The open files of a lane, by inode.
#[derive(Default)]
pub(crate) struct OpenFiles {
    files: BTreeMap<u64, OpenFile>,
    uses: u64,
}

pub(crate) enum FileReadiness<'a> {
    Open(&'a Shards),
    /// The file is being opened, or its target connected.
    NotYet,
    Failed(ReadFault),
}

impl OpenFiles {
    /// The state of a file that is to be read, which is opened if it is not.
    pub(crate) fn status(
        &mut self,
        host: &Host,
        connections: &mut LaneConnections,
        inode: u64,
        version: &Arc<FileVersion>,
        now: MonotonicTime,
    ) -> FileReadiness<'_> {
        self.uses += 1;
        let is_due =
            |since: MonotonicTime| now.saturating_duration_since(since) >= LOOK_FOR_REPLICAS;
        let is_usable = self.files.get(&inode).is_some_and(|file| {
            is_same(&file.version, version) && !file.incomplete_since.is_some_and(is_due)
        });
        if !is_usable {
            match open(host, connections, version, now) {
                Ok(Some((opening, is_complete))) => {
                    self.make_room();
                    let incomplete_since = (!is_complete).then_some(now);
                    let (version, state) = (Arc::clone(version), OpenState::Opening(opening));
                    let file = OpenFile { version, state, incomplete_since, used: 0 };
                    self.files.insert(inode, file);
                }
                Ok(None) => return FileReadiness::NotYet,
                Err(fault) => return FileReadiness::Failed(fault),
            }
        }
        let Some(file) = self.files.get_mut(&inode) else { return FileReadiness::NotYet };
        file.used = self.uses;
        match &file.state {
            OpenState::Opening(_) => FileReadiness::NotYet,
            OpenState::Open(shards) => FileReadiness::Open(shards),
            OpenState::Failed(fault) => FileReadiness::Failed(*fault),
        }
    }

    /// Closes the file that was not used for longest, if there are as many as may be.
    fn make_room(&mut self) {
        if self.files.len() >= OPEN_AT_MOST
            && let Some((&inode, _)) = self.files.iter().min_by_key(|(_, file)| file.used)
        {
            self.files.remove(&inode);
        }
    }

    /// Looks which files are open by now; false if none is.
    pub(crate) fn advance(&mut self) -> bool {
        let mut has_moved = false;
        for file in self.files.values_mut() {
            let OpenState::Opening(opening) = &mut file.state else { continue };
            let polled = opening.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let Poll::Ready(opened) = polled else { continue };
            has_moved = true;
            file.state = match opened {
                Ok(shards) => OpenState::Open(shards),
                Err(fault) => OpenState::Failed(fault),
            };
        }
        has_moved
    }

    /// Forgets the files that could not be opened: the next read tries again.
    pub(crate) fn forget_failed(&mut self) {
        self.files.retain(|_, file| !matches!(file.state, OpenState::Failed(_)));
    }

    /// Closes a file, which is opened again by the next read.
    pub(crate) fn close(&mut self, inode: u64) {
        self.files.remove(&inode);
    }

    pub(crate) fn close_others(&mut self, tree: &FileTree) {
        self.files.retain(|inode, _| tree.file(*inode).is_some());
    }
}

/// Whether two versions are one, which they are most often by their address.
fn is_same(one: &Arc<FileVersion>, other: &Arc<FileVersion>) -> bool {
    Arc::ptr_eq(one, other) || one == other
}

/// Begins to open a file over the targets that are connected, and says whether those are all.
/// `None` if one is to be waited for.
fn open(
    host: &Host,
    connections: &mut LaneConnections,
    version: &FileVersion,
    now: MonotonicTime,
) -> Result<Option<(FileOpening, bool)>, ReadFault> {
    let (mut reached, mut is_coming) = (Vec::new(), false);
    for replica in &version.replicas {
        match connections.reach(host, replica.target, now) {
            Reached::Yes(controller) => reached.push((controller, replica.clone())),
            Reached::NotYet => is_coming = true,
            Reached::No => {}
        }
    }
    if reached.is_empty() {
        return if is_coming { Ok(None) } else { Err(ReadFault::Away) };
    }
    let is_complete = reached.len() == version.replicas.len();
    Ok(Some((Box::pin(open_over(reached)), is_complete)))
}

/// Opens the namespaces that have the bytes of the file.
async fn open_over(reached: Vec<(Controller, FileReplica)>) -> Result<Shards, ReadFault> {
    // Sent all together.
    let opening: Vec<_> = reached
        .into_iter()
        .map(|(controller, replica)| (controller.namespace(replica.nsid), replica))
        .collect();
    let (mut namespaces, mut failure): (Vec<Namespace>, _) =
        (Vec::new(), ReadFault::Final(Errno::STALE));
    for (opening, replica) in opening {
        match opening.await {
            Ok(namespace) if replica.is(namespace.info()) => namespaces.push(namespace),
            // The namespace has changed, which the tree will have soon.
            Ok(_) => {}
            Err(error) => failure = ReadFault::logged(&error, "cannot open a namespace"),
        }
    }
    if namespaces.is_empty() {
        return Err(failure);
    }
    Shards::with_replicas(ReplicaPolicy::default(), [namespaces])
        .map_err(|error| ReadFault::of(&error))
}
