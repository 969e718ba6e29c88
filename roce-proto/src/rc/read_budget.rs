//! The bound on RDMA READ responses on their way to a receive socket.

use core::mem;
use core::time::Duration;

use crate::Time;
use crate::rc::datagram_cost::{HEADERS_BYTES, datagram_cost};
use crate::rc::retransmit_timer::READ_AGAIN_AFTER;

/// Bytes of RDMA READ responses that may be outstanding towards one local receive socket, for all
/// queue pairs that receive through it. Responses are not acknowledged, so the requester alone can
/// keep them from overrunning its own socket.
///
/// Bytes count as the kernel charges them to a socket's receive buffer, see [`datagram_cost`]. They
/// count for two periods at the most: a response that has not come by then is lost, or the peer
/// does not send it, and no peer may hold up READs from others. A response that waits in the socket
/// has come: the periods follow the time until which packets were handled, which lags while a
/// socket is read more slowly than it fills.
#[derive(Clone, Debug)]
pub struct ReadBudget {
    limit: u64,
    awaited: Awaited,
    /// All packets that had arrived by then were handled.
    handled: Time,
    /// When READs that wait for something else than this budget are to be tried again.
    retry_at: Option<Time>,
    /// There is room again, and `forget` has not returned so yet.
    forgot: bool,
}

/// The period in which something was asked for: charges are released under it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChargePeriod(u64);

/// Bytes that were asked for and have not come. They count for two periods at the most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    period: ChargePeriod,
    /// When the period began.
    began: Time,
    /// When something was last asked for.
    latest: Time,
    /// Bytes that were asked for in this period.
    recent: u64,
    /// Bytes that were asked for in the period before.
    older: u64,
}

impl Awaited {
    pub(super) const fn new() -> Self {
        Self { period: ChargePeriod(0), began: Time::ZERO, latest: Time::ZERO, recent: 0, older: 0 }
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.recent + self.older
    }

    /// When the period began.
    pub(super) const fn began(&self) -> Time {
        self.began
    }

    /// Begins a period if one of this length has passed: what was asked for before the last one is
    /// no longer awaited. Returns whether that was anything. All that came until `handled` was
    /// released.
    pub(super) fn age(&mut self, handled: Time, length: Duration) -> bool {
        let elapsed = handled - self.began;
        if elapsed < length {
            return false;
        }
        let before = self.bytes();
        // Of the period just over something may still come, unless another period has passed since.
        let may_come = elapsed < 2 * length || handled - self.latest < length;
        let (periods, older) = if may_come { (1, self.recent) } else { (2, 0) };
        (self.recent, self.older) = (0, older);
        self.period = ChargePeriod(self.period.0 + periods);
        // What was asked for later than that is awaited for as long.
        self.began = handled.max(self.latest);
        self.bytes() < before
    }

    /// Counts bytes that are asked for now, in the period that is returned.
    pub(super) fn charge(&mut self, now: Time, bytes: u64) -> ChargePeriod {
        self.latest = self.latest.max(now);
        self.recent += bytes;
        self.period
    }

    /// Bytes that were charged in `period` came, or are no longer awaited.
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

/// Least time before anything is asked for again.
pub(super) const PERIOD: Duration = READ_AGAIN_AFTER;

impl ReadBudget {
    /// A budget for a socket whose receive buffer is `receive_buffer_bytes` as
    /// `getsockopt(SO_RCVBUF)` returns it (Linux: twice the value that was set). A quarter is left
    /// for packets that are not READ responses.
    pub const fn new(receive_buffer_bytes: u64) -> Self {
        Self::with_limit(receive_buffer_bytes / 4 * 3)
    }

    /// No limit: for a network that drops nothing for lack of room.
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

    /// When [`ReadBudget::forget`] has something to tell at the earliest, if ever.
    pub fn forgets_at(&self) -> Option<Time> {
        match self.forgot {
            true => Some(self.awaited.began()),
            false => {
                let forgets = (self.used() > 0).then(|| self.awaited.began() + PERIOD);
                forgets.into_iter().chain(self.retry_at).min()
            }
        }
    }

    /// All packets that had arrived by `handled` were handled, which those in the socket's buffer
    /// were not: stops counting bytes that were asked for too long before. Returns whether waiting
    /// queue pairs may be able to send their READs since the last call.
    pub fn forget(&mut self, handled: Time) -> bool {
        self.handled = handled;
        self.forgot |= self.awaited.age(handled, PERIOD);
        let retry = self.retry_at.take_if(|at| *at <= handled).is_some();
        mem::take(&mut self.forgot) || retry
    }

    /// The time of the last [`ReadBudget::forget`].
    pub(super) const fn handled_until(&self) -> Time {
        self.handled
    }

    /// Schedules waiting READs to be tried again at `at`, if there is no reason to do so earlier.
    pub(super) fn retry_at(&mut self, at: Time) {
        self.retry_at = Some(self.retry_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// How many response packets with `payload_bytes` each may be asked for, at most `wanted`. When
    /// nothing is outstanding it is at least one.
    pub(super) fn admits(&self, wanted: u32, payload_bytes: u32) -> u32 {
        let fitting = self.limit.saturating_sub(self.used()) / response_cost(1, payload_bytes);
        let fitting = if self.used() == 0 { fitting.max(1) } else { fitting };
        u32::try_from(fitting).unwrap_or(u32::MAX).min(wanted)
    }

    /// Counts packets that are asked for now.
    pub(super) fn charge(&mut self, now: Time, packets: u32, payload_bytes: u32) -> ChargePeriod {
        self.awaited.charge(now, response_cost(packets, payload_bytes))
    }

    /// Packets that were charged in `period` came, or are waited for no longer.
    pub(super) fn release(&mut self, packets: u32, payload_bytes: u32, period: ChargePeriod) {
        self.awaited.release(response_cost(packets, payload_bytes), period);
    }
}

/// Cost to a receive buffer of READ response packets with this much payload each.
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
