//! The targets of a manifest, the shards on each, and their connections.

use std::future::Future;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use feedrail_dataset::manifest::{KeyPath, Manifest, ShardEntry, TargetEntry, TargetIndex};
use feedrail_dataset::placement::Placement;
use feedrail_dataset::url::{TargetUrl, UrlHost};
use feedrail_initiator::{
    ChangedReplica, Controller, ControllerOptions, Error, Host, MonotonicTime, Namespace,
    NamespaceInfo, Pending, ReplicaPolicy, Shards, SubsystemAddress,
};

/// Pause after which the next read tries again to connect to a target.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Longest time for which opening a manifest waits for further targets once each shard can be read.
/// Targets that connect later are added.
const STRAGGLERS: Duration = Duration::from_secs(5);

/// Targets and shards of a manifest, for one session.
pub(crate) struct ReplicaSet {
    manifest: Arc<Manifest>,
    placement: Arc<Placement>,
    policy: ReplicaPolicy,
    options: ControllerOptions,
    targets: Vec<ManifestTarget>,
    /// Replicas of each shard, in the order of the manifest.
    shards: Vec<Vec<Replica>>,
    /// Warnings that were not issued yet.
    news: Vec<String>,
    /// Number of replicas in [`Shards::changed`] that were recorded.
    changed: usize,
}

struct ManifestTarget {
    name: String,
    entry: TargetEntry,
    address: Option<SubsystemAddress>,
    connection: TargetConnection,
}

/// Connection to a target and opening of its namespaces, in progress.
type Joining = Pin<Box<dyn Future<Output = Result<JoinedTarget, Error>> + Send>>;

struct JoinedTarget {
    controller: Controller,
    namespaces: Vec<Namespace>,
}

enum TargetConnection {
    /// Not connected; `tried` is the time of the last failure.
    Away {
        reason: String,
        tried: Option<MonotonicTime>,
    },
    Joining {
        future: Joining,
        reason: String,
    },
    /// The target's shards are known; the initiator reconnects to it.
    Joined(Controller),
}

/// Replica of a shard on one target, and whether it is read from.
pub(crate) struct Replica {
    target: usize,
    state: ReplicaState,
    /// Generation when it was first opened, by this process or its parent.
    generation: Option<u64>,
}

enum ReplicaState {
    /// The target was not connected yet.
    Away,
    Used(Namespace),
    /// The replica was taken out, for this reason, and is not read from.
    Out(String),
}

/// A replica for Python: name of the target, state, reason and generation.
pub(crate) type ReplicaReport = (String, &'static str, Option<String>, Option<u64>);

/// Reason why a manifest could not be opened.
pub(crate) enum NotOpened {
    /// A shard has no replica with its bytes.
    Changed(String),
    /// The targets of a shard cannot be reached.
    Lost(String),
    /// The initiator returned an error.
    Refused(Error),
}

impl ReplicaSet {
    /// Starts to connect to all targets. `known` has, for each shard, earlier generations of its
    /// replicas by the index of their targets.
    pub(crate) fn begin(
        host: &Host,
        options: ControllerOptions,
        manifest: &Arc<Manifest>,
        placement: &Arc<Placement>,
        policy: ReplicaPolicy,
        known: &[Vec<(u32, u64)>],
    ) -> Self {
        let urls: Vec<&TargetUrl> = manifest.targets().iter().map(|(_, it)| &it.url).collect();
        let addresses = resolve(&urls);
        let targets = manifest.targets().iter().zip(addresses).map(|((name, entry), address)| {
            let (address, reason) = match address {
                Ok(address) => (Some(SubsystemAddress { address, nqn: entry.nqn }), String::new()),
                Err(reason) => (None, reason),
            };
            ManifestTarget {
                name: name.as_str().to_owned(),
                entry: entry.clone(),
                address,
                connection: TargetConnection::Away { reason, tried: None },
            }
        });
        let shards = manifest.shards().iter().enumerate().map(|(number, shard)| {
            let known = known.get(number).map_or(&[][..], Vec::as_slice);
            let replica = |target: &TargetIndex| Replica {
                target: target.0 as usize,
                state: ReplicaState::Away,
                generation: known.iter().find(|(it, _)| *it == target.0).map(|&(_, it)| it),
            };
            shard.replicas.iter().map(replica).collect()
        });
        let mut set = Self {
            manifest: Arc::clone(manifest),
            placement: Arc::clone(placement),
            policy,
            options,
            targets: targets.collect(),
            shards: shards.collect(),
            news: Vec::new(),
            changed: 0,
        };
        set.try_targets(host);
        set
    }

    /// Continues connecting, and retries targets that are due. Returns whether a target was
    /// connected, so that [`ReplicaSet::shards`] may have more replicas.
    pub(crate) fn advance(&mut self, host: &Host, waker: &Waker) -> bool {
        self.try_targets(host);
        let mut has_joined = false;
        for number in 0..self.targets.len() {
            let target = &mut self.targets[number];
            let TargetConnection::Joining { future, .. } = &mut target.connection else { continue };
            match future.as_mut().poll(&mut Context::from_waker(waker)) {
                Poll::Pending => {}
                Poll::Ready(Ok(JoinedTarget { controller, namespaces })) => {
                    target.connection = TargetConnection::Joined(controller);
                    self.take_replicas(number, &namespaces);
                    has_joined = true;
                }
                Poll::Ready(Err(error)) => {
                    let (reason, tried) = (error.to_string(), Some(Host::now()));
                    target.connection = TargetConnection::Away { reason, tried };
                }
            }
        }
        has_joined
    }

    fn try_targets(&mut self, host: &Host) {
        let now = Host::now();
        let is_due = |tried: MonotonicTime| now.saturating_duration_since(tried) >= TRY_AGAIN;
        for target in &mut self.targets {
            if let TargetConnection::Away { reason, tried } = &target.connection
                && tried.is_none_or(is_due)
                && let Some(address) = target.address
            {
                let entry = &target.entry;
                let files = [&entry.dhchap_secret_file, &entry.dhchap_ctrl_secret_file];
                let [secret, ctrl_secret] = files.map(|it| it.as_ref().map(KeyPath::as_path));
                target.connection = match self.options.clone().or_key_files(secret, ctrl_secret) {
                    Ok(options) => {
                        let connecting = host.connect_with(address, options);
                        let (future, reason) = (Box::pin(join(connecting)), reason.clone());
                        TargetConnection::Joining { future, reason }
                    }
                    Err(error) => {
                        TargetConnection::Away { reason: error.to_string(), tried: Some(now) }
                    }
                };
            }
        }
    }

    /// Adds the replicas on a target, after comparing them with the manifest and with those in use.
    fn take_replicas(&mut self, number: usize, namespaces: &[Namespace]) {
        let manifest = Arc::clone(&self.manifest);
        for (shard, entry) in manifest.shards().iter().enumerate() {
            let replicas = &self.shards[shard];
            let Some(at) = replicas.iter().position(|replica| replica.target == number) else {
                continue;
            };
            if matches!(replicas[at].state, ReplicaState::Out(_)) {
                continue;
            }
            let used = replicas.iter().find_map(|other| match &other.state {
                ReplicaState::Used(namespace) => Some((other.target, namespace)),
                _ => None,
            });
            let used = used.map(|(target, it)| (self.targets[target].name.as_str(), it.info()));
            let known = replicas[at].generation;
            let found = namespaces.iter().find(|it| is_of(entry, it.info()));
            let found = found.ok_or_else(|| "it is not there".to_owned());
            let checked = found
                .and_then(|found| check(entry, found.info(), known, used).map(|()| found.clone()));
            let replica = &mut self.shards[shard][at];
            match checked {
                Ok(namespace) => {
                    replica.generation = namespace.info().generation;
                    replica.state = ReplicaState::Used(namespace);
                }
                Err(reason) => self.take_out(shard, at, reason),
            }
        }
    }

    /// Returns the namespace of a replica that is in use.
    pub(crate) fn namespace(&self, shard: usize, replica: usize) -> Option<Namespace> {
        match &self.shards.get(shard)?.get(replica)?.state {
            ReplicaState::Used(namespace) => Some(namespace.clone()),
            _ => None,
        }
    }

    /// Takes out a replica: it is not read from again.
    pub(crate) fn take_out(&mut self, shard: usize, replica: usize, reason: String) {
        let replica = &mut self.shards[shard][replica];
        let name = &self.manifest.shards()[shard].name;
        let target = &self.targets[replica.target];
        self.news.push(format!(
            "shard {name} is no longer read from target {} ({} at {}): {reason}",
            target.name, target.entry.nqn, target.entry.url
        ));
        replica.state = ReplicaState::Out(reason);
    }

    /// Records the replicas that the initiator has found changed.
    pub(crate) fn note_changes(&mut self, shards: &Shards) {
        let changed = shards.changed();
        for ChangedReplica { shard, namespace, error } in changed.iter().skip(self.changed) {
            let shard = *shard as usize;
            let is_it = |replica: &Replica| match &replica.state {
                ReplicaState::Used(used) => used.target() == namespace.target(),
                _ => false,
            };
            if let Some(at) = self.shards[shard].iter().position(is_it) {
                self.take_out(shard, at, error.kind().to_string());
            }
        }
        self.changed = changed.len();
    }

    /// Returns the number of changed replicas that were recorded.
    pub(crate) fn noted_changes(&self) -> usize {
        self.changed
    }

    /// Returns whether targets are disconnected or being connected.
    pub(crate) fn is_incomplete(&self) -> bool {
        let is_joined = |target: &ManifestTarget| {
            matches!(target.connection, TargetConnection::Joined(_)) || target.address.is_none()
        };
        !self.targets.iter().all(is_joined)
    }

    /// Returns whether opening is complete: no connect is in progress, or each shard could be read
    /// for [`STRAGGLERS`]. `covered` is set to the time since which each shard can be read.
    pub(crate) fn is_open(&self, covered: &mut Option<MonotonicTime>) -> bool {
        let is_joining =
            |target: &ManifestTarget| matches!(target.connection, TargetConnection::Joining { .. });
        if !self.targets.iter().any(is_joining) {
            return true;
        }
        let is_used = |replica: &Replica| matches!(replica.state, ReplicaState::Used(_));
        if !self.shards.iter().all(|replicas| replicas.iter().any(is_used)) {
            return false;
        }
        let now = Host::now();
        now.saturating_duration_since(*covered.get_or_insert(now)) >= STRAGGLERS
    }

    /// Returns the shards with the replicas in use, in descending order of preference.
    ///
    /// # Errors
    /// A shard has no replica in use.
    pub(crate) fn shards(&mut self) -> Result<Shards, NotOpened> {
        let used = (0..self.shards.len()).map(|shard| self.used(shard));
        let used: Vec<_> = used.collect::<Result<_, _>>()?;
        // Shards that were just built have no changed replicas.
        self.changed = 0;
        Shards::with_replicas(self.policy, used).map_err(NotOpened::Refused)
    }

    fn used(&self, shard: usize) -> Result<Vec<Namespace>, NotOpened> {
        let in_order = match self.policy {
            ReplicaPolicy::First => self.manifest.shards()[shard].replicas.as_slice(),
            // A manifest has far fewer shards than 2^32.
            _ => self.placement.ranked(shard as u32),
        };
        let replica = |target: &TargetIndex| {
            let mut replicas = self.shards[shard].iter();
            let replica = replicas.find(|replica| replica.target == target.0 as usize)?;
            match &replica.state {
                ReplicaState::Used(namespace) => Some(namespace.clone()),
                _ => None,
            }
        };
        let used: Vec<_> = in_order.iter().filter_map(replica).collect();
        if used.is_empty() { Err(self.unusable(shard)) } else { Ok(used) }
    }

    /// Returns the error for a shard without a replica in use.
    fn unusable(&self, shard: usize) -> NotOpened {
        let replicas = &self.shards[shard];
        let reasons = replicas.iter().map(|replica| {
            let target = &self.targets[replica.target];
            let reason = match &replica.state {
                ReplicaState::Out(reason) => reason.as_str(),
                ReplicaState::Away | ReplicaState::Used(_) => target.why_away(),
            };
            format!("{}: {reason}", target.name)
        });
        let reasons = reasons.collect::<Vec<_>>().join("; ");
        let name = &self.manifest.shards()[shard].name;
        let message = format!("no target has shard {name} as the manifest has it: {reasons}");
        match replicas.iter().all(|replica| matches!(replica.state, ReplicaState::Out(_))) {
            true => NotOpened::Changed(message),
            false => NotOpened::Lost(message),
        }
    }

    /// Adds a warning for each target that is not connected after a manifest was opened.
    pub(crate) fn tell_of_absent(&mut self) {
        let away = self.targets.iter().filter(|target| target.why_not_joined().is_some());
        let news = away.map(|target| {
            format!(
                "target {} ({} at {}) is not connected, and joins when it is there: {}",
                target.name,
                target.entry.nqn,
                target.entry.url,
                target.why_away()
            )
        });
        let news: Vec<_> = news.collect();
        self.news.extend(news);
    }

    pub(crate) fn take_news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }

    /// Returns the replicas of a shard, in the order of the manifest.
    pub(crate) fn report(&self, shard: usize) -> Vec<ReplicaReport> {
        let of_replica = |replica: &Replica| {
            let target = &self.targets[replica.target];
            let (state, reason) = match &replica.state {
                ReplicaState::Out(reason) => ("out", Some(reason.clone())),
                ReplicaState::Used(_) if !target.is_lost() => ("used", None),
                _ => ("away", Some(target.why_away().to_owned())),
            };
            (target.name.clone(), state, reason, replica.generation)
        };
        self.shards.get(shard).into_iter().flatten().map(of_replica).collect()
    }

    /// Returns the names of the targets without a connection.
    pub(crate) fn away(&self) -> Vec<String> {
        let away = self.targets.iter().filter(|target| target.is_lost());
        away.map(|target| target.name.clone()).collect()
    }
}

impl ManifestTarget {
    fn is_lost(&self) -> bool {
        match &self.connection {
            TargetConnection::Joined(controller) => !controller.is_connected(),
            _ => true,
        }
    }

    fn why_not_joined(&self) -> Option<&str> {
        match &self.connection {
            TargetConnection::Joined(_) => None,
            TargetConnection::Away { reason, .. } | TargetConnection::Joining { reason, .. } => {
                Some(reason)
            }
        }
    }

    fn why_away(&self) -> &str {
        match self.why_not_joined() {
            Some("") => "it has not answered yet",
            Some(reason) => reason,
            None => "its connection was lost, and is being made again",
        }
    }
}

async fn join(connecting: Pending<Result<Controller, Error>>) -> Result<JoinedTarget, Error> {
    let controller = connecting.await?;
    let namespaces = controller.namespaces().await?;
    Ok(JoinedTarget { controller, namespaces })
}

/// Returns the addresses of targets; names are resolved concurrently.
fn resolve(urls: &[&TargetUrl]) -> Vec<Result<SocketAddr, String>> {
    let look_up = |url: &TargetUrl| match &url.host {
        UrlHost::Address(address) => Ok(SocketAddr::new(*address, url.port)),
        UrlHost::Name(name) => {
            let found = (name.as_str(), url.port).to_socket_addrs();
            let found = found.map_err(|error| error.to_string())?.next();
            found.ok_or_else(|| format!("{} has no address", name.as_str()))
        }
    };
    thread::scope(|scope| {
        let begin = |url: &&TargetUrl| {
            let url: TargetUrl = (*url).clone();
            let is_name = matches!(url.host, UrlHost::Name(_));
            if is_name { Err(scope.spawn(move || look_up(&url))) } else { Ok(look_up(&url)) }
        };
        let begun: Vec<_> = urls.iter().map(begin).collect();
        let end = |begun: Result<Result<SocketAddr, String>, thread::ScopedJoinHandle<'_, _>>| {
            begun.unwrap_or_else(|thread| {
                thread.join().unwrap_or_else(|_| Err("its name could not be looked up".to_owned()))
            })
        };
        begun.into_iter().map(end).collect()
    })
}

/// Returns whether a namespace is a replica of a shard: by its name, or by its UUID if the target
/// reports no names.
fn is_of(shard: &ShardEntry<TargetIndex>, info: &NamespaceInfo) -> bool {
    match &info.name {
        Some(name) => name == shard.name.as_str(),
        None => shard.uuid.is_some_and(|uuid| info.uuid.as_ref() == Some(uuid.as_bytes())),
    }
}

/// Checks that a namespace can have the bytes of a shard.
///
/// # Errors
/// The property that differs, as text.
fn check(
    shard: &ShardEntry<TargetIndex>,
    info: &NamespaceInfo,
    known: Option<u64>,
    used: Option<(&str, &NamespaceInfo)>,
) -> Result<(), String> {
    let hex = |uuid: &[u8; 16]| uuid.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let text = |uuid: &Option<[u8; 16]>| uuid.as_ref().map_or("none".to_owned(), hex);
    if info.size_bytes != shard.bytes {
        let (found, bytes) = (info.size_bytes, shard.bytes);
        return Err(format!("it has {found} bytes, and {bytes} in the manifest"));
    }
    if let Some(uuid) = shard.uuid
        && info.uuid.as_ref() != Some(uuid.as_bytes())
    {
        let (found, uuid) = (text(&info.uuid), hex(uuid.as_bytes()));
        return Err(format!("its UUID is {found}, and {uuid} in the manifest"));
    }
    let generations = [
        (shard.generation.map(|it| it.0), "in the manifest"),
        (known, "when the data set was opened"),
    ];
    for (expected, when) in generations {
        if let Some(expected) = expected
            && info.generation != Some(expected)
        {
            let found = info.generation.map_or("none".to_owned(), |it| format!("{it:016x}"));
            return Err(format!("its generation is {found}, and was {expected:016x} {when}"));
        }
    }
    // With a checksum in the manifest, replicas have the same bytes even if their UUIDs differ.
    if shard.uuid.is_none()
        && shard.crc32c.is_none()
        && let Some((other, used)) = used
        && used.uuid != info.uuid
    {
        let (found, uuid) = (text(&info.uuid), text(&used.uuid));
        return Err(format!(
            "its UUID is {found}, and {uuid} on {other}; write the manifest with --crc if the \
             bytes are the same"
        ));
    }
    Ok(())
}
