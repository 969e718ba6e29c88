//! How long a requester waits for an answer.
//!
//! The specification knows one timer, the local ACK timeout: 4.096 us times two to an exponent, usually tens or
//! hundreds of milliseconds, and a retry counter. On a network where losses are rare that is enough; over UDP
//! sockets it would turn each lost last packet into a long pause. Here the two are separated:
//!
//! - something is *sent again* after a time that follows from the measured round trip, doubling a few times, and
//!   never longer than the local ACK timeout;
//! - the peer is *given up* when nothing was heard for as long as the specification allows: the local ACK
//!   timeout times the retries and the first try. A peer that is merely slow is not declared dead early.

use core::time::Duration;

use crate::Time;
use crate::rc::Connection;

/// The shortest local ACK timeout that is honoured: 4.096 us times 2^12. Processes that share cores are silent
/// for longer than what smaller exponents stand for.
const SHORTEST_TIMEOUT: Duration = Duration::from_micros(16_777);

/// The longest time between two tries when there is no local ACK timeout.
const LONGEST_STEP: Duration = Duration::from_secs(1);

/// How often the time between two tries doubles.
const DOUBLINGS_MAX: u32 = 6;

#[derive(Debug)]
pub(super) struct Patience {
    /// The most time between two tries.
    step: Duration,
    /// When to give up; never without a local ACK timeout.
    limit: Option<Duration>,
    doublings: u32,
    /// When to send again.
    deadline: Option<Time>,
    /// Since when there has been something to answer and nothing was heard.
    unanswered_since: Option<Time>,
}

impl Patience {
    pub(super) const fn new() -> Self {
        Self {
            step: LONGEST_STEP,
            limit: None,
            doublings: 0,
            deadline: None,
            unanswered_since: None,
        }
    }

    pub(super) fn for_connection(connection: &Connection) -> Self {
        let exponent = connection.ack_timeout_exponent & 31;
        if exponent == 0 {
            return Self::new();
        }
        let step = Duration::from_nanos(4096 << exponent).max(SHORTEST_TIMEOUT);
        let tries = u32::from(connection.retry_count & 7) + 1;
        Self { step, limit: Some(step * tries), ..Self::new() }
    }

    pub(super) const fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Something that wants an answer was sent.
    pub(super) fn sent(&mut self, now: Time, retransmit_after: Duration) {
        self.unanswered_since.get_or_insert(now);
        if self.deadline.is_none() {
            self.deadline = Some(now + self.wait(retransmit_after));
        }
    }

    /// The peer answered; `more` tells whether further answers are due.
    pub(super) fn answered(&mut self, now: Time, more: bool, retransmit_after: Duration) {
        self.doublings = 0;
        self.unanswered_since = more.then_some(now);
        self.deadline = more.then(|| now + self.wait(retransmit_after));
    }

    /// Something is about to be sent again for another reason than time.
    pub(super) fn restart(&mut self) {
        self.deadline = None;
    }

    /// The peer asked for time.
    pub(super) fn suspend(&mut self) {
        self.deadline = None;
        self.unanswered_since = None;
        self.doublings = 0;
    }

    /// The deadline has come. Returns false when the peer is to be given up.
    #[must_use]
    pub(super) fn timed_out(&mut self, now: Time) -> bool {
        self.deadline = None;
        self.doublings += 1;
        match (self.limit, self.unanswered_since) {
            (Some(limit), Some(since)) => now - since < limit,
            _ => true,
        }
    }

    /// Whether more than one deadline passed in a row.
    pub(super) const fn repeated(&self) -> bool {
        self.doublings > 1
    }

    fn wait(&self, retransmit_after: Duration) -> Duration {
        retransmit_after.saturating_mul(1 << self.doublings.min(DOUBLINGS_MAX)).min(self.step)
    }
}
