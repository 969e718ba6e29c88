//! The context in which a queue pair does its work.

use std::collections::VecDeque;

use super::ring::RingBroken;
use super::sleep_word::PeerNews;
use crate::software::regions::DomainView;
use crate::{GroupStats, Time, Wc, WcStatus};

/// The context of one turn of a queue pair.
pub(super) struct QpTurn<'a> {
    pub(super) now: Time,
    /// Memory that the queue pair and its peer may access.
    pub(super) memory: DomainView<'a>,
    pub(super) qpn: u32,
    pub(super) completions: &'a mut VecDeque<Wc>,
    pub(super) stats: &'a mut GroupStats,
    /// News for which the peer is rung at the end of the turn.
    pub(super) news: PeerNews,
}

/// A failure that moves the queue pair to ERROR; its oldest send request, if any, completes with
/// this status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QpFailure(pub(super) WcStatus);

impl From<RingBroken> for QpFailure {
    fn from(RingBroken: RingBroken) -> Self {
        Self(WcStatus::BAD_RESPONSE)
    }
}
