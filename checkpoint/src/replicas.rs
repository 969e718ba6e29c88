//! Replicas: volumes with the same UUID on several namespaces, and the quorum rule for commits.

use uuid::Uuid;

use crate::deliberate_bugs::{self, Bug};

/// Reason why a set of replicas cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaError {
    /// The quorum is zero or above the number of replicas.
    #[error("a quorum of {quorum} of {replicas} replicas is impossible; choose 1 to {replicas}")]
    Quorum {
        /// Number of replicas that must have a commit.
        quorum: usize,
        /// Number of replicas in the set.
        replicas: usize,
    },
    /// The caller passed answers of fewer or more replicas than the set has.
    #[error("{answers} answers were given for {replicas} replicas; give one for each")]
    Answers {
        /// Number of answers, `None` included.
        answers: usize,
        /// Number of replicas in the set.
        replicas: usize,
    },
    /// So few replicas answer that the newest commit may be on the others only.
    #[error(
        "{answering} replicas answer, and {needed} are needed to know the newest commit; bring others back"
    )]
    TooFew {
        /// Number of replicas that answer.
        answering: usize,
        /// Number of replicas that must answer.
        needed: usize,
    },
    /// A replica that answers had newer checkpoints before a repair that has not ended, and the
    /// others that answer do not have them.
    #[error(
        "a repair has not ended, and the newest commit is on a replica that does not answer; bring it back"
    )]
    Incomplete,
    /// Two replicas have different volume UUIDs, given here.
    #[error("the replicas are of volumes {0} and {1}; name those of one volume")]
    Mixed(Uuid, Uuid),
}

/// Facts about a replica that answers, from [`crate::Volume::replica`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// UUID of the volume.
    pub uuid: Uuid,
    /// Generation of the newest valid superblock, which a change of the lease increments.
    pub generation: u64,
    /// Generation for which the table of checkpoints was committed; if it is not complete, that of
    /// the last table that was.
    pub table_generation: u64,
    /// Whether the table is complete: no repair is copying it from another replica.
    pub is_complete: bool,
}

/// Bits of a generation that count the superblocks of one writer; the bits above count writers.
const WRITER_SHIFT: u32 = 32;

/// Number of replicas of a volume, and the number that must have a commit (the quorum).
///
/// A writer opens at least [`ReplicaSet::needed`] replicas, repairs the stale ones, and takes the
/// lease on them with the generation [`ReplicaSet::writer_generation`]. It writes only if it has
/// that of [`ReplicaSet::lease_quorum`] replicas. Each further change gets the next generation on
/// all replicas ([`crate::Change::generation`]). A replica that misses a change gets no other one
/// before a repair ([`crate::RepairPlan`]) has made it equal, and a writer whose commit has not
/// reached the quorum begins again. Then each acknowledged commit has the highest table generation
/// among any replicas that suffice to read.
///
/// While a repair copies a table to a replica, that table is incomplete. The replica still counts:
/// it tells the generation of the table that it had, so that a replica that is older than that is
/// not taken for the newest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaSet {
    replicas: usize,
    quorum: usize,
}

impl ReplicaSet {
    /// Makes a set in which `quorum` of `replicas` must have a commit.
    ///
    /// # Errors
    /// [`ReplicaError::Quorum`] if the quorum is zero or above `replicas`.
    pub fn new(replicas: usize, quorum: usize) -> Result<Self, ReplicaError> {
        let is_possible = (1..=replicas).contains(&quorum);
        if is_possible {
            Ok(Self { replicas, quorum })
        } else {
            Err(ReplicaError::Quorum { quorum, replicas })
        }
    }

    /// Whether a commit that `have` replicas have made durable has succeeded.
    pub fn is_committed(&self, have: usize) -> bool {
        have >= self.quorum
    }

    /// Returns the number of replicas that must answer to know the newest commit: so many have a
    /// replica in common with any quorum.
    pub fn needed(&self) -> usize {
        self.replicas - self.quorum + 1
    }

    /// Returns the number of replicas on which a writer must have taken the lease before it writes:
    /// enough for a commit, and more than half, so that no other writer has taken it with the same
    /// generation.
    pub fn lease_quorum(&self) -> usize {
        self.quorum.max(self.needed())
    }

    /// Returns the generation with which a new writer takes the lease: above those of all writers
    /// that have committed. `answers` are those of [`ReplicaSet::latest`].
    ///
    /// # Errors
    /// The errors of [`ReplicaSet::latest`], for the same reasons.
    pub fn writer_generation(&self, answers: &[Option<Replica>]) -> Result<u64, ReplicaError> {
        self.latest(answers)?;
        let newest = answers.iter().flatten().map(|one| one.generation).max().unwrap_or(0);
        Ok(((newest >> WRITER_SHIFT) + 1) << WRITER_SHIFT)
    }

    /// Returns the generation with which a writer renews the leases of replicas whose last
    /// generations ([`crate::Volume::last_generation`]) are these: the same on all of them.
    pub fn renewal_generation(last: impl IntoIterator<Item = u64>) -> u64 {
        last.into_iter().max().unwrap_or(0) + 1
    }

    /// Returns the index of a replica with the newest commit. `answers` has an item for each
    /// replica, `None` for one that does not answer. At least [`ReplicaSet::needed`] must answer.
    ///
    /// # Errors
    /// [`ReplicaError::TooFew`] if fewer answer, [`ReplicaError::Incomplete`] if the newest commit
    /// may be on the others only, [`ReplicaError::Mixed`] for different UUIDs,
    /// [`ReplicaError::Answers`] for a wrong number of items.
    pub fn latest(&self, answers: &[Option<Replica>]) -> Result<usize, ReplicaError> {
        let replicas = self.replicas;
        if answers.len() != replicas {
            return Err(ReplicaError::Answers { answers: answers.len(), replicas });
        }
        let present =
            || answers.iter().enumerate().filter_map(|(index, one)| Some((index, (*one)?)));
        let (needed, answering) = (self.needed(), present().count());
        if answering < needed {
            return Err(ReplicaError::TooFew { answering, needed });
        }
        let is_wrong = deliberate_bugs::has(Bug::CompareLeases);
        let rank = |one: &Replica| if is_wrong { one.generation } else { one.table_generation };
        let complete = present().filter(|(_, one)| one.is_complete);
        let newest = complete.max_by_key(|(index, one)| (rank(one), replicas - index));
        let (newest, first) = newest.ok_or(ReplicaError::Incomplete)?;
        let is_newer = |(_, one): (usize, Replica)| one.table_generation > first.table_generation;
        if let Some((_, other)) = present().find(|(_, one)| one.uuid != first.uuid) {
            return Err(ReplicaError::Mixed(first.uuid, other.uuid));
        }
        if !is_wrong && present().any(is_newer) {
            return Err(ReplicaError::Incomplete);
        }
        Ok(newest)
    }

    /// Returns the indexes of the replicas that answer and lack the newest commit.
    ///
    /// # Errors
    /// The errors of [`ReplicaSet::latest`], for the same reasons.
    pub fn stale(&self, answers: &[Option<Replica>]) -> Result<Vec<usize>, ReplicaError> {
        let latest = self.latest(answers)?;
        let newest = answers[latest].map(|one| one.table_generation);
        let is_stale = |&index: &usize| {
            answers[index]
                .is_some_and(|one| !one.is_complete || Some(one.table_generation) != newest)
        };
        Ok((0..self.replicas).filter(is_stale).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(generation: u64) -> Option<Replica> {
        Some(Replica {
            uuid: Uuid::nil(),
            generation: 9 - generation,
            table_generation: generation,
            is_complete: true,
        })
    }

    #[test]
    fn a_lone_stale_replica_is_not_the_latest() {
        let set = ReplicaSet::new(3, 2).unwrap();
        let alone = [None, None, answer(4)];
        assert_eq!(set.latest(&alone), Err(ReplicaError::TooFew { answering: 1, needed: 2 }));
        let two = [None, answer(5), answer(4)];
        assert_eq!(set.latest(&two), Ok(1));
        assert_eq!(set.stale(&two), Ok(vec![2]));
        assert!(set.is_committed(2) && !set.is_committed(1));
        assert_eq!(set.writer_generation(&two), Ok(1 << 32));
    }

    /// A repair of the first replica has ended too early, and its source does not answer.
    #[test]
    fn an_incomplete_replica_tells_what_it_had() {
        let set = ReplicaSet::new(3, 2).unwrap();
        let incomplete =
            |generation| answer(generation).map(|one| Replica { is_complete: false, ..one });
        assert_eq!(set.latest(&[incomplete(5), answer(4), None]), Err(ReplicaError::Incomplete));
        assert_eq!(
            set.latest(&[incomplete(5), incomplete(4), None]),
            Err(ReplicaError::Incomplete)
        );
        let with_same = [incomplete(5), answer(5), None];
        assert_eq!((set.latest(&with_same), set.stale(&with_same)), (Ok(1), Ok(vec![0])));
        assert_eq!(set.latest(&[incomplete(5), answer(4), answer(6)]), Ok(2));
    }

    #[test]
    fn other_volumes_are_no_replicas() {
        let set = ReplicaSet::new(2, 1).unwrap();
        let other = Some(Replica { uuid: Uuid::max(), ..answer(1).unwrap() });
        assert!(matches!(set.latest(&[answer(1), other]), Err(ReplicaError::Mixed(..))));
        ReplicaSet::new(2, 3).unwrap_err();
    }
}
