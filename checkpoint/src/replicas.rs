//! Replicas: volumes with one UUID, of which a quorum decides.

use uuid::Uuid;

/// Why a set of replicas has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaError {
    /// The quorum is zero or above the number of replicas.
    #[error("a quorum of {quorum} of {replicas} replicas is impossible; choose 1 to {replicas}")]
    Quorum {
        /// Replicas that must have a commit.
        quorum: usize,
        /// Replicas there are.
        replicas: usize,
    },
    /// The number of replicas given is another than that of the set.
    #[error("{answers} answers were given for {replicas} replicas; give one for each")]
    Answers {
        /// Answers given.
        answers: usize,
        /// Replicas there are.
        replicas: usize,
    },
    /// Too few replicas answer for the newest commit to be among them.
    #[error(
        "{answering} replicas answer, and {needed} are needed to know the newest commit; bring others back"
    )]
    TooFew {
        /// Replicas that answer.
        answering: usize,
        /// Replicas that must.
        needed: usize,
    },
    /// Replicas belong to different volumes.
    #[error("the replicas are of volumes {0} and {1}; name those of one volume")]
    Mixed(Uuid, Uuid),
}

/// What a replica says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Its volume.
    pub uuid: Uuid,
    /// The generation of its newest superblock.
    pub generation: u64,
}

/// The rule by which replicas decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaSet {
    replicas: usize,
    quorum: usize,
}

impl ReplicaSet {
    /// `quorum` of `replicas` must have a commit.
    ///
    /// # Errors
    /// [`ReplicaError::Quorum`].
    pub fn new(replicas: usize, quorum: usize) -> Result<Self, ReplicaError> {
        let is_possible = (1..=replicas).contains(&quorum);
        if is_possible {
            Ok(Self { replicas, quorum })
        } else {
            Err(ReplicaError::Quorum { quorum, replicas })
        }
    }

    /// True if a commit succeeds that so many replicas have.
    pub fn is_committed(&self, have: usize) -> bool {
        have >= self.quorum
    }

    /// The index of a replica with the newest commit, from the answers of all. `None` is one that
    /// does not answer. Any quorum has a replica in common with those that must answer.
    ///
    /// # Errors
    /// [`ReplicaError::TooFew`], [`ReplicaError::Mixed`], [`ReplicaError::Answers`].
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

    /// The replicas that answer and are behind the newest.
    ///
    /// # Errors
    /// Those of [`ReplicaSet::latest`].
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
