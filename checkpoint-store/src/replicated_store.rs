//! Several volumes with the same checkpoints, whose quorum decides what is committed.

use std::fmt;
use std::ops::{ControlFlow, Range};
use std::thread;

use feedrail_checkpoint::{Change, CheckpointName, EntrySelection, Rename, ReplicaSet};

use crate::clock::unix_ms;
use crate::error::StoreError;
use crate::open_volume::{Claim, open_unchanged};
use crate::options::{FormatOptions, StoreOptions};
use crate::stats::StoreStats;
use crate::store::{CheckpointStore, StoredCheckpoint, StoredEntry};
use crate::volume_namespace::VolumeNamespace;

/// A namespace of a replica, or why it cannot be reached.
pub type ReplicaPlace = Result<VolumeNamespace, StoreError>;

/// Replicas of a volume on several targets, by the rules of [`ReplicaSet`]. A commit succeeds when
/// a quorum has made it. Each change is made on all replicas that have the newest checkpoints, one
/// change after the other, so that their generations stay equal.
///
/// With one replica and a quorum of one, it is a [`CheckpointStore`].
pub struct ReplicatedStore {
    set: ReplicaSet,
    /// Generation with which a writer takes the leases.
    writer_generation: u64,
    /// Members that must have made a change: the quorum, or one during a repair.
    needed: usize,
    pub(crate) members: Vec<Member>,
    /// Index of a member that has the newest checkpoints.
    pub(crate) newest: usize,
    /// Counters of members from the time before they were away, by index.
    past: Vec<StoreStats>,
}

/// A replica of a store.
pub(crate) enum Member {
    Current(CheckpointStore),
    /// Other checkpoints are on it, or its newest superblock or manifest is damaged.
    Stale(CheckpointStore),
    /// Could not be reached or opened, or has failed since.
    Away(StoreError),
}

/// State of a replica, as its store knows it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ReplicaState {
    /// The newest checkpoints are on it.
    Current,
    /// Missed a commit, or is damaged; [`ReplicatedStore::repair`] makes it current.
    Stale,
    /// Could not be reached or opened, or has failed since.
    Away(StoreError),
}

impl ReplicatedStore {
    /// Makes empty volumes of all namespaces, with one UUID.
    ///
    /// # Errors
    /// The first of [`CheckpointStore::format`]; the namespaces before it are formatted. Nothing is
    /// written if the checks of one fail.
    pub fn format(places: &[ReplicaPlace], options: &FormatOptions) -> Result<(), StoreError> {
        Self::check_format(places, options)?;
        for place in places {
            CheckpointStore::format(place.as_ref().map_err(Clone::clone)?, options)?;
        }
        Ok(())
    }

    /// Reads whether all namespaces can be formatted, and writes nothing.
    ///
    /// # Errors
    /// The first of [`CheckpointStore::check_format`], or of a namespace that cannot be reached.
    pub fn check_format(
        places: &[ReplicaPlace],
        options: &FormatOptions,
    ) -> Result<(), StoreError> {
        places.iter().try_for_each(|place| {
            CheckpointStore::check_format(place.as_ref().map_err(Clone::clone)?, options)
        })
    }

    /// Opens replicas for reading. `quorum` of them must have each commit; so many must answer that
    /// one of every quorum is among them.
    ///
    /// # Errors
    /// [`StoreError::Replicas`]; with one replica, those of [`CheckpointStore::open`].
    pub fn open(
        places: Vec<ReplicaPlace>,
        quorum: usize,
        options: StoreOptions,
    ) -> Result<Self, StoreError> {
        let is_alone = places.len() == 1;
        let refused = |error, cause: Option<StoreError>| StoreError::Replicas {
            error,
            cause: cause.map(Box::new),
        };
        let set = ReplicaSet::new(places.len(), quorum).map_err(|error| refused(error, None))?;
        let open = |place: ReplicaPlace| CheckpointStore::open(&place?, options);
        let opened: Vec<_> = places.into_iter().map(open).collect();
        let answer = |one: &Result<CheckpointStore, StoreError>| {
            one.as_ref().ok().and_then(CheckpointStore::replica)
        };
        let answers: Vec<_> = opened.iter().map(answer).collect();
        if is_alone && let Some(Ok(_)) = opened.first() {
            // Also if it is damaged or incomplete: there is no other one.
            let members = opened.into_iter().flatten().map(Member::Current).collect();
            let past = vec![StoreStats::default()];
            return Ok(Self {
                set,
                writer_generation: 0,
                needed: quorum,
                members,
                newest: 0,
                past,
            });
        }
        let newest = match set.latest(&answers) {
            Ok(newest) => newest,
            Err(error) => {
                let cause = opened.into_iter().find_map(Result::err);
                return Err(match cause {
                    Some(cause) if is_alone => cause,
                    cause => refused(error, cause),
                });
            }
        };
        let stale = set.stale(&answers).map_err(|error| refused(error, None))?;
        let same: Vec<_> = match &opened[newest] {
            Ok(store) => (0..)
                .zip(&opened)
                .map(|(index, one)| {
                    answers[index].is_some()
                        && !stale.contains(&index)
                        && one.as_ref().is_ok_and(|one| one.has_same(store))
                })
                .collect(),
            Err(_) => Vec::new(),
        };
        let member = |(one, is_same)| match (one, is_same) {
            (Ok(store), true) => Member::Current(store),
            (Ok(store), false) => Member::Stale(store),
            (Err(error), _) => Member::Away(error),
        };
        let members: Vec<_> = opened.into_iter().zip(same).map(member).collect();
        let writer_generation =
            set.writer_generation(&answers).map_err(|error| refused(error, None))?;
        let past = vec![StoreStats::default(); members.len()];
        Ok(Self { set, writer_generation, needed: quorum, members, newest, past })
    }

    /// Opens replicas for writing: takes the leases of those that have the newest checkpoints. A
    /// quorum must have them.
    ///
    /// # Errors
    /// [`StoreError::Leased`] while another writer has a lease, [`StoreError::NoQuorum`], and those
    /// of [`ReplicatedStore::open`]; with one replica, those of [`CheckpointStore::open_writer`].
    pub fn open_writer(
        places: Vec<ReplicaPlace>,
        quorum: usize,
        options: StoreOptions,
    ) -> Result<Self, StoreError> {
        open_unchanged(|| Self::open(places.clone(), quorum, options)?.take_leases(false))
    }

    /// Opens replicas for [`ReplicatedStore::repair`], which is possible with one that has the
    /// newest checkpoints, if enough answer to know that.
    ///
    /// # Errors
    /// As [`ReplicatedStore::open_writer`], except that a quorum need not have the newest ones.
    pub fn open_repair(
        places: Vec<ReplicaPlace>,
        quorum: usize,
        options: StoreOptions,
    ) -> Result<Self, StoreError> {
        open_unchanged(|| {
            let store = Self { needed: 1, ..Self::open(places.clone(), quorum, options)? };
            store.take_leases(true)
        })
    }

    /// Takes the leases of the current members, and of the stale ones for a repair.
    fn take_leases(mut self, is_repair: bool) -> Result<Self, StoreError> {
        let generation = self.writer_generation;
        let claim = |(index, member): (usize, &Member)| match member {
            Member::Current(store) if !self.is_replicated() => {
                Some((index, store.clone(), Claim::Alone))
            }
            Member::Current(store) => Some((index, store.clone(), Claim::Replica(generation))),
            Member::Stale(store) if is_repair => {
                Some((index, store.clone(), Claim::StaleReplica(generation)))
            }
            Member::Stale(_) | Member::Away(_) => None,
        };
        let claims: Vec<_> = (0..).zip(&self.members).filter_map(claim).collect();
        // Of writers that begin together, the one that gets the first replica gets all.
        let (first, others) = claims.split_at(claims.len().min(1));
        let mut leased = 0;
        for claims in [first, others] {
            let claims = claims.iter().map(|(index, store, claim)| (*index, (store, *claim)));
            let results = concurrently(claims, |(store, claim)| store.take_lease(claim));
            for (index, result) in results {
                match result {
                    Ok(()) => leased += 1,
                    Err(error) if error.is_of_other_writer() || !self.is_replicated() => {
                        return Err(error);
                    }
                    Err(error) => self.put_away(index, error),
                }
            }
        }
        if leased < self.set.lease_quorum() { Err(self.no_quorum()) } else { Ok(self) }
    }

    pub(crate) fn is_replicated(&self) -> bool {
        self.members.len() > 1
    }

    /// Renews the leases if half of one has passed, for a caller that keeps them without other
    /// calls, or has other processes write.
    ///
    /// # Errors
    /// [`StoreError::Leased`] or [`StoreError::Volume`] if another writer has the volume;
    /// [`StoreError::Device`], if fewer replicas than a quorum can do it; [`StoreError::ReadOnly`].
    pub fn renew_if_due(&mut self) -> Result<(), StoreError> {
        match self.is_replicated() {
            true => self.renew_replicas_if_due(),
            false => self.newest()?.renew_if_due(),
        }
    }

    /// Renews the leases of several members, if one of them is due.
    pub(crate) fn renew_replicas_if_due(&mut self) -> Result<(), StoreError> {
        // Leases may end while a member that is lost takes its time to fail. It is away then.
        while self.is_replicated() && self.currents().any(|(_, one)| one.is_renewal_due()) {
            self.on_each(|store| store.renew(None))?;
        }
        Ok(())
    }

    /// Members that have the newest checkpoints, the newest first.
    pub(crate) fn currents(&self) -> impl Iterator<Item = (usize, &CheckpointStore)> {
        let (before, from) = self.members.split_at(self.newest);
        let from = (self.newest..).zip(from);
        from.chain((0..).zip(before)).filter_map(|(index, member)| match member {
            Member::Current(store) => Some((index, store)),
            Member::Stale(_) | Member::Away(_) => None,
        })
    }

    /// Fails if fewer members than needed can make a change, before one of them makes it.
    pub(crate) fn check_quorum(&self, able: usize) -> Result<(), StoreError> {
        if able < self.needed { Err(self.no_quorum()) } else { Ok(()) }
    }

    /// Calls a function for each current member, concurrently, if they are enough. Members for
    /// which it fails are away afterwards.
    pub(crate) fn on_each(
        &mut self,
        call: impl Fn(&CheckpointStore) -> Result<(), StoreError> + Sync,
    ) -> Result<(), StoreError> {
        self.check_quorum(self.currents().count())?;
        let results = concurrently(self.currents(), call);
        self.conclude(results)
    }

    /// Decides by the results of members whether a change was made. If all of them have refused it,
    /// they are still equal.
    pub(crate) fn conclude(
        &mut self,
        results: Vec<(usize, Result<(), StoreError>)>,
    ) -> Result<(), StoreError> {
        if let Some(error) = common_refusal(&results) {
            return Err(error);
        }
        let made = results.iter().filter(|(_, result)| result.is_ok()).count();
        let mut first = None;
        for (index, result) in results {
            if let Err(error) = result {
                first.get_or_insert(error.clone());
                if self.is_replicated() {
                    self.put_away(index, error);
                }
            }
        }
        match first {
            _ if made >= self.needed => Ok(()),
            None => Err(self.no_quorum()),
            Some(error) if made == 0 => Err(error),
            // Those that have it may be the newest when the others are back.
            Some(error) => Err(StoreError::Unknown(Box::new(error))),
        }
    }

    fn no_quorum(&self) -> StoreError {
        let quorum = self.set.lease_quorum();
        StoreError::NoQuorum { current: self.currents().count(), quorum }
    }

    /// Takes a member out that has missed a change.
    pub(crate) fn put_away(&mut self, index: usize, error: StoreError) {
        let member = std::mem::replace(&mut self.members[index], Member::Away(error));
        if let Member::Current(store) | Member::Stale(store) = member {
            // A superblock more, and it would not be behind the others.
            store.forget_lease();
            self.past[index] = store.stats();
        }
        let next = self.currents().map(|(index, _)| index).next();
        self.newest = next.unwrap_or(self.newest);
    }

    /// Gives the leases back. A store for reading has none.
    ///
    /// # Errors
    /// As [`CheckpointStore::close`], if fewer replicas than a quorum have done it.
    pub fn close(mut self) -> Result<(), StoreError> {
        let is_writer = self.currents().any(|(_, store)| store.has_lease());
        if is_writer { self.on_each(CheckpointStore::release) } else { Ok(()) }
    }

    /// Returns what is known of each replica, in the order in which they were given.
    pub fn replicas(&self) -> Vec<ReplicaState> {
        let state = |member: &Member| match member {
            Member::Current(_) => ReplicaState::Current,
            Member::Stale(_) => ReplicaState::Stale,
            Member::Away(error) => ReplicaState::Away(error.clone()),
        };
        self.members.iter().map(state).collect()
    }

    /// Returns the counters of each replica since the store was opened, in the order in which they
    /// were given.
    pub fn stats(&self) -> Vec<StoreStats> {
        let of = |(member, past): (&Member, &StoreStats)| match member {
            Member::Current(store) | Member::Stale(store) => store.stats(),
            Member::Away(_) => *past,
        };
        self.members.iter().zip(&self.past).map(of).collect()
    }

    /// Returns a replica that has the newest checkpoints.
    ///
    /// # Errors
    /// [`StoreError::NoQuorum`] if none is left.
    pub fn newest(&self) -> Result<&CheckpointStore, StoreError> {
        self.currents().next().map(|(_, store)| store).ok_or_else(|| self.no_quorum())
    }

    /// Returns the replicas that have the newest checkpoints, with their indexes.
    pub fn current(&self) -> Vec<(usize, CheckpointStore)> {
        self.currents().map(|(index, store)| (index, store.clone())).collect()
    }

    /// Returns the checkpoints, in the order of their commits.
    ///
    /// # Errors
    /// [`StoreError::NoQuorum`] if no replica is left that has the newest ones.
    pub fn list(&self) -> Result<Vec<StoredCheckpoint>, StoreError> {
        Ok(self.newest()?.list())
    }

    /// Returns the entries of a checkpoint.
    ///
    /// # Errors
    /// As [`ReplicatedStore::newest`] and [`CheckpointStore::entries`].
    pub fn entries(&self, checkpoint: &str) -> Result<Vec<StoredEntry>, StoreError> {
        self.newest()?.entries(checkpoint)
    }

    /// Reads like [`CheckpointStore::read_with`], from another replica if one has lost or damaged
    /// the bytes. `sink` may then get bytes again.
    ///
    /// # Errors
    /// As [`CheckpointStore::read_with`], of the last replica.
    pub fn read_with(
        &self,
        checkpoint: &str,
        entry: &str,
        range: Range<u64>,
        sink: &mut dyn FnMut(u64, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let mut result = Err(self.no_quorum());
        for (_, store) in self.currents() {
            result = store.read_with(checkpoint, entry, range.clone(), sink);
            if !matches!(&result, Err(StoreError::Damaged { .. } | StoreError::Host(_))) {
                return result;
            }
        }
        result
    }

    /// Deletes a checkpoint on all replicas that have the newest ones.
    ///
    /// # Errors
    /// As [`CheckpointStore::delete`]; [`StoreError::Unknown`] if fewer than a quorum have deleted
    /// it.
    pub fn delete(&mut self, checkpoint: &str) -> Result<(), StoreError> {
        self.remove(checkpoint, None)
    }

    /// Removes an entry of a checkpoint, all entries of a folder, whose name ends with `/`, or the
    /// checkpoint. With its last entry, the checkpoint is deleted.
    ///
    /// # Errors
    /// [`StoreError::Name`] for a wrong name; as [`ReplicatedStore::delete`] for a missing one.
    pub fn remove(&mut self, checkpoint: &str, entry: Option<&str>) -> Result<(), StoreError> {
        let selection = EntrySelection::parse(entry)?;
        self.change(&Change::new().remove(checkpoint, selection))
    }

    /// Renames a checkpoint, an entry, or all entries of a folder, whose name ends with `/`: gives
    /// the names of `from` with those of `to`, which may be in another checkpoint. Entries that
    /// have the new names are replaced if `is_replacing`; a checkpoint never is.
    ///
    /// # Errors
    /// [`StoreError::Volume`] if there is nothing to rename, if a new name is in use, or unless
    /// both are entries or neither is; [`StoreError::Name`]; as [`ReplicatedStore::delete`].
    pub fn rename(
        &mut self,
        from: (&str, Option<&str>),
        to: (&str, Option<&str>),
        is_replacing: bool,
    ) -> Result<(), StoreError> {
        let place = |(checkpoint, entry)| -> Result<_, StoreError> {
            Ok((CheckpointName::new(checkpoint)?, EntrySelection::parse(entry)?))
        };
        let rename = Rename::new(place(from)?, place(to)?, is_replacing, unix_ms())?;
        self.change(&Change::new().rename(rename))
    }

    /// Makes a change on all replicas that have the newest checkpoints.
    fn change(&mut self, change: &Change<'_>) -> Result<(), StoreError> {
        self.renew_replicas_if_due()?;
        self.on_each(|store| store.publish(change))
    }

    /// Deletes all checkpoints but the last `count` on all replicas that have the newest ones.
    ///
    /// # Errors
    /// As [`ReplicatedStore::delete`]; it is no error if there are fewer.
    pub fn keep(&mut self, count: usize) -> Result<(), StoreError> {
        self.change(&Change::new().keep(count))
    }
}

/// Calls a function with what each member has for it, at the same time.
pub(crate) fn concurrently<T: Send>(
    members: impl IntoIterator<Item = (usize, T)>,
    call: impl Fn(T) -> Result<(), StoreError> + Sync,
) -> Vec<(usize, Result<(), StoreError>)> {
    let call = &call;
    thread::scope(|scope| {
        let spawn = |(index, one)| (index, scope.spawn(move || call(one)));
        let threads: Vec<_> = members.into_iter().map(spawn).collect();
        let join = |(index, thread): (usize, thread::ScopedJoinHandle<'_, _>)| {
            (index, thread.join().expect("calls of stores do not panic"))
        };
        threads.into_iter().map(join).collect()
    })
}

/// Returns the first error if all members have refused a change before they wrote anything.
pub(crate) fn common_refusal(results: &[(usize, Result<(), StoreError>)]) -> Option<StoreError> {
    let refusal = |(_, one): &(usize, Result<(), StoreError>)| {
        one.as_ref().err().filter(|error| error.is_refusal()).cloned()
    };
    results.iter().map(refusal).collect::<Option<Vec<_>>>()?.into_iter().next()
}

impl fmt::Debug for ReplicatedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicatedStore")
            .field("set", &self.set)
            .field("replicas", &self.replicas())
            .finish_non_exhaustive()
    }
}
