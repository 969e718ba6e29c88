//! Queue pairs that are created by the connection manager and not adopted yet.

use roce_proto::rc::QueuePair;

use super::numbers::QpNumber;
use super::regions::DomainId;
use crate::QpConfig;

/// A queue pair that no group has adopted yet.
pub struct NewQp {
    pub(super) queue_pair: Box<QueuePair>,
    pub(super) number: QpNumber,
    pub(super) granted: QpConfig,
    pub(super) domain: DomainId,
}
