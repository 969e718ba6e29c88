//! Exponentiations that a controller waits for.

use std::sync::Arc;

use crate::group::DhGroup;
use crate::key_agreement::{KeyPair, PublicValue, SharedSecret};
use crate::random::RandomBytes;

/// Identifier of a piece of work of one queue. Results of abandoned work are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkId(pub(super) u64);

/// Exponentiation that a controller waits for.
#[derive(Debug)]
pub enum ControllerWork {
    /// Get a pair of the group: a new one, or one that was used before.
    KeyPair {
        /// Identifier for the result.
        id: WorkId,
        /// Group of the pair.
        group: DhGroup,
    },
    /// Compute the shared secret.
    Agree {
        /// Identifier for the result.
        id: WorkId,
        /// Pair of the controller.
        pair: Arc<KeyPair>,
        /// Public value of the host.
        peer: PublicValue,
    },
}

impl ControllerWork {
    /// Executes the work, with a new pair.
    pub fn run(&self, random: &mut RandomBytes<'_>) -> ControllerWorkResult {
        match self {
            Self::KeyPair { id, group } => {
                let pair = Arc::new(KeyPair::generate(*group, random));
                ControllerWorkResult::KeyPair { id: *id, pair }
            }
            Self::Agree { id, pair, peer } => {
                ControllerWorkResult::Agree { id: *id, shared: pair.agree(peer) }
            }
        }
    }

    /// Identifier for the result.
    pub const fn id(&self) -> WorkId {
        match self {
            Self::KeyPair { id, .. } | Self::Agree { id, .. } => *id,
        }
    }
}

/// Result of [`ControllerWork`], with its identifier.
#[derive(Debug)]
pub enum ControllerWorkResult {
    /// Pair of the wanted group.
    KeyPair {
        /// Identifier of the work.
        id: WorkId,
        /// Pair, new or used before.
        pair: Arc<KeyPair>,
    },
    /// Secret of the exchange.
    Agree {
        /// Identifier of the work.
        id: WorkId,
        /// Secret that the host has computed too.
        shared: SharedSecret,
    },
}
