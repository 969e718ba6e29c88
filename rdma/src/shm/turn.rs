//! The state that a queue pair works with during its turn.

use std::collections::VecDeque;

use super::ring::RingBroken;
use super::sleep_word::PeerNews;
use crate::software::regions::DomainView;
use crate::{GroupStats, Time, Wc, WcStatus};

/// One queue pair's turn.
pub(super) struct QpTurn<'a> {
    pub(super) now: Time,
    /// Memory that the queue pair and its peer may reach.
    pub(super) memory: DomainView<'a>,
    pub(super) qpn: u32,
    pub(super) completions: &'a mut VecDeque<Wc>,
    pub(super) stats: &'a mut GroupStats,
    /// News that the peer is told at the end of the turn.
    pub(super) news: PeerNews,
}

/// The queue pair goes to ERROR, and its oldest send request, if any, gets this status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QpFailure(pub(super) WcStatus);

impl From<RingBroken> for QpFailure {
    fn from(RingBroken: RingBroken) -> Self {
        Self(WcStatus::BAD_RESPONSE)
    }
}
