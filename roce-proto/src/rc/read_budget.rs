//! The limit on outstanding RDMA READ responses towards a receive socket.

use core::mem;
use core::time::Duration;

use crate::Time;
use crate::rc::datagram_cost::{HEADERS_BYTES, datagram_cost};
use crate::rc::retransmit_timer::READ_AGAIN_AFTER;

/// Limit on outstanding RDMA READ responses towards one local receive socket, in bytes, for all
/// queue pairs that receive through it. Responses are not acknowledged, so only the requester can
/// prevent them from overflowing its own socket.
///
/// Bytes are counted as the kernel charges them to a socket's receive buffer, see
/// [`datagram_cost`]. They count for at most two periods: a response that has not arrived by then
/// is lost, or its peer does not send it, and no peer may hold up RDMA READs from others. The
/// periods follow the time until which received packets were handled, so that a response that waits
/// in the socket is not considered missing.
#[derive(Clone, Debug)]
pub struct ReadBudget {
    limit: u64,
    awaited: Awaited,
    /// Time until which all packets that had arrived were handled.
    handled: Time,
    /// Time at which RDMA READs that wait for another limit are retried.
    retry_at: Option<Time>,
    /// True if there is room again and [`ReadBudget::forget`] has not reported it yet.
    forgot: bool,
}

/// The period in which bytes were charged; they are released in the same period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChargePeriod(u64);

/// Bytes that were requested and have not arrived. They count for at most two periods.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    period: ChargePeriod,
    /// Start of the period.
    began: Time,
    latest: Time,
    /// Bytes requested in this period and not arrived.
    recent: u64,
    /// Bytes requested in the preceding period and not arrived.
    older: u64,
}

impl Awaited {
    pub(super) const fn new() -> Self {
        Self { period: ChargePeriod(0), began: Time::ZERO, latest: Time::ZERO, recent: 0, older: 0 }
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.recent + self.older
    }

    /// Start of the present period.
    pub(super) const fn began(&self) -> Time {
        self.began
    }

    /// Starts a new period if one of this length has passed: bytes requested before the last one do
    /// not count any longer. Returns whether there were any. All that arrived until `handled` was
    /// released before.
    pub(super) fn age(&mut self, handled: Time, length: Duration) -> bool {
        let elapsed = handled - self.began;
        if elapsed < length {
            return false;
        }
        let before = self.bytes();
        // Bytes of the period that ended may still arrive, unless another period has passed since.
        let may_come = elapsed < 2 * length || handled - self.latest < length;
        let (periods, older) = if may_come { (1, self.recent) } else { (2, 0) };
        (self.recent, self.older) = (0, older);
        self.period = ChargePeriod(self.period.0 + periods);
        // Bytes requested after `handled` count for the full time.
        self.began = handled.max(self.latest);
        self.bytes() < before
    }

    /// Counts bytes that are requested now; returns the period.
    pub(super) fn charge(&mut self, now: Time, bytes: u64) -> ChargePeriod {
        self.latest = self.latest.max(now);
        self.recent += bytes;
        self.period
    }

    /// Releases bytes that were charged in `period`, since they arrived or are not expected any
    /// longer.
    pub(super) fn release(&mut self, bytes: u64, period: ChargePeriod) {
        let awaited = match self.period.0 - period.0 {
            0 => &mut self.recent,
            1 => &mut self.older,
            _ => return,
        };
        debug_assert!(bytes <= *awaited, "more READ responses arrived than were asked for");
        *awaited = awaited.saturating_sub(bytes);
    }
}

/// Length of a period: the minimum time before a READ is repeated.
pub(super) const PERIOD: Duration = READ_AGAIN_AFTER;

impl ReadBudget {
    /// Creates a budget for a socket with this receive buffer, as `getsockopt(SO_RCVBUF)` returns
    /// it (on Linux twice the value that was set). A quarter is reserved for packets that are not
    /// READ responses.
    pub const fn new(receive_buffer_bytes: u64) -> Self {
        Self::with_limit(receive_buffer_bytes / 4 * 3)
    }

    /// A budget without a limit, for a network that drops no packets for lack of buffer space.
    pub const fn unlimited() -> Self {
        Self::with_limit(u64::MAX)
    }

    const fn with_limit(limit: u64) -> Self {
        Self { limit, awaited: Awaited::new(), handled: Time::ZERO, retry_at: None, forgot: false }
    }

    /// Outstanding bytes, as the kernel charges them.
    pub const fn used(&self) -> u64 {
        self.awaited.bytes()
    }

    /// The earliest time at which [`ReadBudget::forget`] may return true; `None` if it will not.
    pub fn forgets_at(&self) -> Option<Time> {
        match self.forgot {
            true => Some(self.awaited.began()),
            false => {
                let forgets = (self.used() > 0).then(|| self.awaited.began() + PERIOD);
                forgets.into_iter().chain(self.retry_at).min()
            }
        }
    }

    /// Stops counting bytes that were requested too long ago, given that all packets that had
    /// arrived by `handled` were handled. Returns whether waiting queue pairs may be able to send
    /// RDMA READs since the last call.
    pub fn forget(&mut self, handled: Time) -> bool {
        self.handled = handled;
        self.forgot |= self.awaited.age(handled, PERIOD);
        let retry = self.retry_at.take_if(|at| *at <= handled).is_some();
        mem::take(&mut self.forgot) || retry
    }

    /// The `handled` of the last [`ReadBudget::forget`].
    pub(super) const fn handled_until(&self) -> Time {
        self.handled
    }

    /// Schedules a retry of waiting RDMA READs at `at`, or earlier if already scheduled.
    pub(super) fn retry_at(&mut self, at: Time) {
        self.retry_at = Some(self.retry_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Number of response packets with `payload_bytes` each that may be requested, at most
    /// `wanted`. At least one if nothing is outstanding.
    pub(super) fn admits(&self, wanted: u32, payload_bytes: u32) -> u32 {
        let fitting = self.limit.saturating_sub(self.used()) / response_cost(1, payload_bytes);
        let fitting = if self.used() == 0 { fitting.max(1) } else { fitting };
        u32::try_from(fitting).unwrap_or(u32::MAX).min(wanted)
    }

    /// Charges response packets that are requested now.
    pub(super) fn charge(&mut self, now: Time, packets: u32, payload_bytes: u32) -> ChargePeriod {
        self.awaited.charge(now, response_cost(packets, payload_bytes))
    }

    pub(super) fn release(&mut self, packets: u32, payload_bytes: u32, period: ChargePeriod) {
        self.awaited.release(response_cost(packets, payload_bytes), period);
    }
}

/// The receive-buffer cost of READ response packets with this payload each.
pub(super) const fn response_cost(packets: u32, payload_bytes: u32) -> u64 {
    packets as u64 * datagram_cost(payload_bytes as usize + HEADERS_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAYLOAD: u32 = 4096;

    const fn at(milliseconds: u64) -> Time {
        Time::from_nanos(milliseconds * 1_000_000)
    }

    /// A budget of ten packets, all asked for at 5 ms.
    fn spent() -> (ReadBudget, ChargePeriod) {
        let mut budget = ReadBudget::with_limit(response_cost(10, PAYLOAD));
        budget.forget(at(5));
        assert_eq!(budget.admits(99, PAYLOAD), 10);
        let period = budget.charge(at(5), 10, PAYLOAD);
        assert_eq!(budget.admits(1, PAYLOAD), 0);
        (budget, period)
    }

    #[test]
    fn responses_make_room() {
        let (mut budget, period) = spent();
        budget.release(4, PAYLOAD, period);
        assert_eq!(budget.admits(99, PAYLOAD), 4);
        budget.forget(at(12));
        assert_eq!(budget.admits(99, PAYLOAD), 4, "a period later it is still waited for");
        budget.release(6, PAYLOAD, period);
        assert_eq!(budget.used(), 0);
        assert_eq!(budget.forgets_at(), None);
    }

    #[test]
    fn missing_responses_are_forgotten() {
        let (mut budget, period) = spent();
        let mut now = at(5);
        let mut forgot = false;
        while let Some(time) = budget.forgets_at() {
            assert!(time > now && time <= at(30), "soon, and never twice at once: {time:?}");
            now = time;
            forgot |= budget.forget(now);
        }
        assert!(forgot);
        assert_eq!(budget.admits(99, PAYLOAD), 10);
        // If it comes after all, that makes no room twice.
        budget.charge(now, 10, PAYLOAD);
        budget.release(10, PAYLOAD, period);
        assert_eq!(budget.admits(99, PAYLOAD), 0);
    }

    #[test]
    fn after_a_long_silence_nothing_is_left() {
        let (mut budget, _) = spent();
        assert!(budget.forget(at(500)));
        assert_eq!(budget.admits(99, PAYLOAD), 10);
    }

    /// A socket is read more slowly than it fills: responses to what was asked for before and since
    /// may wait in it.
    #[test]
    fn responses_that_were_not_read_yet_are_not_missing() {
        let (mut budget, period) = spent();
        budget.release(5, PAYLOAD, period);
        budget.charge(at(300), 5, PAYLOAD);
        for handled in [6, 14, 25, 40, 309] {
            budget.forget(at(handled));
            assert!(budget.used() >= response_cost(5, PAYLOAD), "at {handled} ms");
        }
        budget.forget(at(330));
        assert_eq!(budget.used(), 0);
    }
}
