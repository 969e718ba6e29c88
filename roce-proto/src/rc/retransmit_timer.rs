//! The retransmission timer of a requester.
//!
//! The specification has one timer, the local ACK timeout of 4.096 us * 2^n, usually tens or
//! hundreds of milliseconds, and a retry counter. That suffices on a network where losses are rare;
//! over UDP sockets each loss of a last packet would cause a long pause. Therefore two decisions
//! are separated:
//!
//! - a packet is *retransmitted* after a time derived from the measured round trip, which doubles
//!   a few times and never exceeds the local ACK timeout;
//! - the queue pair *fails* when no answer arrived for as long as the specification allows: the
//!   local ACK timeout times the number of tries. A slow peer is not considered dead earlier.
//!
//! A peer whose process is not scheduled is silent for longer than any round trip. The longest
//! silence that ended with an answer replaces a local ACK timeout that is shorter.

use core::time::Duration;

use crate::Time;
use crate::rc::ConnectionParams;

/// Minimum time before an RDMA READ without any response is repeated.
pub(super) const READ_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// Minimum local ACK timeout: 4.096 us * 2^12. Processes that share cores are silent for longer
/// than smaller exponents allow.
const SHORTEST_TIMEOUT: Duration = Duration::from_micros(16_777);

/// Maximum time between two tries without a local ACK timeout, and the maximum to which a silence
/// extends a shorter one.
const LONGEST_STEP: Duration = Duration::from_secs(1);

/// Maximum number of doublings of the time between two tries.
const DOUBLINGS_MAX: u32 = 6;

#[derive(Debug)]
pub(super) struct RetransmitTimer {
    /// Maximum time between two tries.
    step: Duration,
    /// Number of steps of silence before failure; `None` for no limit.
    tries: Option<u32>,
    /// Number of doublings of the time between two tries. It is kept until a round trip was
    /// measured (RFC 6298, 5.7), since a packet that was sent twice gives no sample: a round trip
    /// longer than the timeout would otherwise never be measured.
    doublings: u32,
    /// Number of timeouts since the peer last answered.
    missed: u32,
    /// Time of the next retransmission.
    deadline: Option<Time>,
    /// Time since which an answer is due and none has arrived.
    unanswered_since: Option<Time>,
}

impl RetransmitTimer {
    pub(super) const fn new() -> Self {
        Self {
            step: LONGEST_STEP,
            tries: None,
            doublings: 0,
            missed: 0,
            deadline: None,
            unanswered_since: None,
        }
    }

    pub(super) fn for_connection(connection: &ConnectionParams) -> Self {
        let exponent = connection.ack_timeout_exponent & 31;
        if exponent == 0 {
            return Self::new();
        }
        let step = Duration::from_nanos(4096 << exponent).max(SHORTEST_TIMEOUT);
        let tries = u32::from(connection.retry_count & 7) + 1;
        Self { step, tries: Some(tries), ..Self::new() }
    }

    pub(super) const fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Starts the timer when a packet that needs an answer is sent.
    pub(super) fn sent(&mut self, now: Time, retransmit_after: Duration) {
        self.unanswered_since.get_or_insert(now);
        self.deadline = Some(now + self.wait(retransmit_after));
    }

    /// The peer answered. If further answers are due, the timer is restarted with
    /// `retransmit_after`.
    pub(super) fn answered(&mut self, now: Time, retransmit_after: Option<Duration>) {
        self.step = self.step.max(self.silence(now).min(LONGEST_STEP));
        self.missed = 0;
        self.unanswered_since = retransmit_after.map(|_| now);
        self.deadline = retransmit_after.map(|after| now + self.wait(after));
    }

    /// A round trip was measured: resets the doublings.
    pub(super) fn measured(&mut self) {
        self.doublings = 0;
    }

    /// Stops the timer, since packets are retransmitted for another reason.
    pub(super) fn restart(&mut self) {
        self.deadline = None;
    }

    /// Stops the timer, since the peer sent an RNR NAK.
    pub(super) fn suspend(&mut self) {
        self.deadline = None;
        self.unanswered_since = None;
        self.missed = 0;
    }

    /// Handles a timeout. Returns false if the queue pair must fail.
    #[must_use]
    pub(super) fn timed_out(&mut self, now: Time) -> bool {
        self.deadline = None;
        self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
        self.missed += 1;
        !self.is_exhausted(now)
    }

    /// Whether there was no progress for the maximum time of silence.
    pub(super) fn is_exhausted(&self, now: Time) -> bool {
        match (self.tries, self.unanswered_since) {
            (Some(tries), Some(since)) => now - since >= self.step * tries,
            _ => false,
        }
    }

    /// Time for which a due answer has been missing.
    pub(super) fn silence(&self, now: Time) -> Duration {
        self.unanswered_since.map_or(Duration::ZERO, |since| now - since)
    }

    /// Whether there was more than one timeout in a row.
    pub(super) const fn repeated(&self) -> bool {
        self.missed > 1
    }

    fn wait(&self, retransmit_after: Duration) -> Duration {
        retransmit_after.saturating_mul(1 << self.doublings).min(self.step)
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::{LONGEST_STEP, RetransmitTimer, SHORTEST_TIMEOUT};
    use crate::rc::ConnectionParams;
    use crate::wire::RnrTimer;
    use crate::{PathMtu, Psn, Qpn, Time};

    const AFTER: Duration = Duration::from_millis(5);

    fn timer(exponent: u8, retry_count: u8) -> RetransmitTimer {
        RetransmitTimer::for_connection(&ConnectionParams {
            remote_qpn: Qpn::new(1),
            path_mtu: PathMtu::Bytes1024,
            send_psn: Psn::new(0),
            recv_psn: Psn::new(0),
            retry_count,
            rnr_retry_count: 7,
            ack_timeout_exponent: exponent,
            min_rnr_timer: RnrTimer::new(1),
            initiator_depth: 1,
            responder_resources: 1,
            reports_overflow: true,
            selective_recovery: true,
        })
    }

    /// Passes every deadline; returns when they were, in milliseconds, up to the one that gives up.
    fn tries(mut timer: RetransmitTimer, most: usize) -> std::vec::Vec<u128> {
        let mut now = Time::ZERO;
        let mut at = std::vec![];
        timer.sent(now, AFTER);
        while let Some(deadline) = timer.deadline() {
            now = deadline;
            at.push((now - Time::ZERO).as_millis());
            if !timer.timed_out(now) || at.len() == most {
                break;
            }
            timer.sent(now, AFTER);
        }
        at
    }

    #[test]
    fn tries_double_up_to_the_local_ack_timeout() {
        assert_eq!(tries(timer(14, 2), 99), [5, 15, 35, 75, 142, 209]);
    }

    #[test]
    fn without_a_timeout_retries_never_end() {
        let at = tries(timer(0, 0), 50);
        assert_eq!(at.len(), 50);
        assert_eq!(at[49] - at[48], 320);
    }

    #[test]
    fn a_short_timeout_is_raised_to_the_minimum() {
        let at = tries(timer(1, 0), 99);
        assert!(at.last().is_some_and(|last| *last >= SHORTEST_TIMEOUT.as_millis()));
    }

    #[test]
    fn an_answer_starts_anew() {
        let mut timer = timer(14, 0);
        let mut now = Time::ZERO;
        for _ in 0..100 {
            timer.sent(now, AFTER);
            now = now + Duration::from_millis(60);
            assert!(timer.timed_out(now), "less than 67 ms of silence");
            timer.answered(now, Some(AFTER));
        }
        timer.answered(now, None);
        assert_eq!(timer.deadline(), None);
    }

    /// A peer that was silent for long may be again, and for longer.
    #[test]
    fn a_silence_that_ended_is_borne_again() {
        let mut timer = timer(14, 7);
        let mut now = Time::ZERO;
        for silence_ms in [300, 2_000, 7_000] {
            timer.sent(now, AFTER);
            now = now + Duration::from_millis(silence_ms);
            assert!(timer.timed_out(now), "{silence_ms} ms");
            timer.answered(now, None);
        }
        timer.sent(now, AFTER);
        assert!(!timer.timed_out(now + LONGEST_STEP * 8), "no silence is borne for ever");
    }

    /// A path that became four times as long as the wait is found out: a packet that is sent once
    /// is answered in time in the end.
    #[test]
    fn a_doubled_wait_stays_until_a_round_trip_is_measured() {
        let (mut timer, round_trip) = (timer(19, 7), AFTER * 4);
        let mut now = Time::ZERO;
        let mut packets = 0;
        loop {
            timer.sent(now, AFTER);
            let answer = now + round_trip;
            let mut once = true;
            while let Some(deadline) = timer.deadline().filter(|deadline| *deadline < answer) {
                assert!(timer.timed_out(deadline));
                timer.sent(deadline, AFTER);
                once = false;
            }
            now = answer;
            packets += 1;
            timer.answered(now, None);
            if once {
                break;
            }
        }
        assert_eq!(packets, 2, "the first was sent three times");
        timer.measured();
        timer.sent(now, AFTER);
        assert_eq!(timer.deadline(), Some(now + AFTER));
    }
}
