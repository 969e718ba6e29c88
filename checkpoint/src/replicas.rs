//! Replicas: volumes with the same UUID on several namespaces, and the quorum rule for commits.

use uuid::Uuid;

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

/// Facts about a replica that answers, from its superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// UUID of the volume.
    pub uuid: Uuid,
    /// Generation of the newest valid superblock.
    pub generation: u64,
}

/// Number of replicas of a volume, and the number that must have a commit (the quorum).
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

    /// Returns the index of a replica with the newest commit. `answers` has an item for each
    /// replica, `None` for one that does not answer. At least `replicas - quorum + 1` must answer:
    /// so many have a replica in common with any quorum.
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
        let needed = replicas - self.quorum + 1;
        let answering = present().count();
        let newest = present().max_by_key(|(index, one)| (one.generation, replicas - index));
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
        let newest = answers[self.latest(answers)?];
        let is_stale = |index: &usize| answers[*index].is_some() && answers[*index] != newest;
        Ok((0..self.replicas).filter(is_stale).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(generation: u64) -> Option<Replica> {
        Some(Replica { uuid: Uuid::nil(), generation })
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
    }

    #[test]
    fn other_volumes_are_no_replicas() {
        let set = ReplicaSet::new(2, 1).unwrap();
        let other = Some(Replica { uuid: Uuid::max(), generation: 1 });
        assert!(matches!(set.latest(&[answer(1), other]), Err(ReplicaError::Mixed(..))));
        ReplicaSet::new(2, 3).unwrap_err();
    }
}
