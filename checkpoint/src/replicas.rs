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
    /// Generation for which the table of checkpoints was committed.
    pub table_generation: u64,
}

/// Bits of a generation that count the superblocks of one writer; the bits above count writers.
const WRITER_SHIFT: u32 = 32;

/// Number of replicas of a volume, and the number that must have a commit (the quorum).
///
/// A writer opens at least [`ReplicaSet::needed`] replicas, repairs the stale ones, and takes the
/// lease on them with the generation [`ReplicaSet::writer_generation`]. It writes only if it has
/// that of [`ReplicaSet::lease_quorum`] replicas. Each further change gets the next generation on
/// all replicas ([`crate::Change::generation`]). Until a repair has copied all checkpoints to a
/// replica, its table has the generation 0, and then that of the table that was copied
/// ([`crate::Change::table_generation`]); that of its superblock must never fall. A replica that
/// misses a change gets no other one before it is repaired, and a writer whose commit has not
/// reached the quorum begins again. Then each acknowledged commit has the highest table generation
/// among any replicas that suffice to read.
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

    /// Returns the index of a replica with the newest commit. `answers` has an item for each
    /// replica, `None` for one that does not answer. At least [`ReplicaSet::needed`] must answer.
    ///
    /// # Errors
    /// [`ReplicaError::TooFew`] if fewer answer, [`ReplicaError::Mixed`] for different UUIDs,
    /// [`ReplicaError::Answers`] for a wrong number of items.
    pub fn latest(&self, answers: &[Option<Replica>]) -> Result<usize, ReplicaError> {
        let replicas = self.replicas;
        if answers.len() != replicas {
            return Err(ReplicaError::Answers { answers: answers.len(), replicas });
        }
        let present =
            || answers.iter().enumerate().filter_map(|(index, one)| Some((index, (*one)?)));
        let needed = self.needed();
        let answering = present().count();
        let is_wrong = deliberate_bugs::has(Bug::CompareLeases);
        let rank = |one: &Replica| if is_wrong { one.generation } else { one.table_generation };
        let newest = present().max_by_key(|(index, one)| (rank(one), replicas - index));
        let Some((newest, first)) = newest.filter(|_| answering >= needed) else {
            return Err(ReplicaError::TooFew { answering, needed });
        };
        match present().find(|(_, one)| one.uuid != first.uuid) {
            Some((_, other)) => Err(ReplicaError::Mixed(first.uuid, other.uuid)),
            None => Ok(newest),
        }
    }

    /// Returns the indexes of the replicas that answer and lack the newest commit.
    ///
    /// # Errors
    /// The errors of [`ReplicaSet::latest`], for the same reasons.
    pub fn stale(&self, answers: &[Option<Replica>]) -> Result<Vec<usize>, ReplicaError> {
        let table_generation = |index: usize| answers[index].map(|one| one.table_generation);
        let newest = table_generation(self.latest(answers)?);
        let is_stale =
            |&index: &usize| answers[index].is_some() && table_generation(index) != newest;
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

    #[test]
    fn other_volumes_are_no_replicas() {
        let set = ReplicaSet::new(2, 1).unwrap();
        let other = Some(Replica { uuid: Uuid::max(), ..answer(1).unwrap() });
        assert!(matches!(set.latest(&[answer(1), other]), Err(ReplicaError::Mixed(..))));
        ReplicaSet::new(2, 3).unwrap_err();
    }
}
