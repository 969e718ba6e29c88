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
/// does not send it, and no peer may hold up READs from others.
#[derive(Clone, Debug)]
pub struct ReadBudget {
    limit: u64,
    awaited: Awaited,
    /// When the period began.
    began: Time,
    /// There is room again, and `forget` has not returned so yet.
    forgot: bool,
}

/// The period in which something was asked for: charges are released under it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChargePeriod(u64);

/// Bytes that were asked for and have not come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    period: ChargePeriod,
    /// Those of this period.
    recent: u64,
    /// Those of the period before.
    older: u64,
}

impl Awaited {
    pub(super) const fn new() -> Self {
        Self { period: ChargePeriod(0), recent: 0, older: 0 }
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.recent + self.older
    }

    /// It is period `to` now: what was asked for before the one before it is not awaited any more.
    pub(super) const fn age(&mut self, to: ChargePeriod) {
        (self.recent, self.older) = match to.0 - self.period.0 {
            0 => return,
            1 => (0, self.recent),
            _ => (0, 0),
        };
        self.period = to;
    }

    pub(super) const fn charge(&mut self, bytes: u64) {
        self.recent += bytes;
    }

    /// Bytes that were charged in `period` came, or are not awaited any more.
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

/// Before that nothing is asked for again.
const PERIOD: Duration = READ_AGAIN_AFTER;

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
        Self { limit, awaited: Awaited::new(), began: Time::ZERO, forgot: false }
    }

    /// Outstanding bytes, as the kernel charges them.
    pub const fn used(&self) -> u64 {
        self.awaited.bytes()
    }

    /// When [`ReadBudget::forget`] has something to tell at the earliest, if ever.
    pub fn forgets_at(&self) -> Option<Time> {
        match self.forgot {
            true => Some(self.began),
            false => (self.used() > 0).then(|| self.began + PERIOD),
        }
    }

    /// Stops counting bytes that were asked for too long ago; returns whether there were any since
    /// the last call, so that waiting queue pairs can send their READs.
    pub fn forget(&mut self, now: Time) -> bool {
        self.age(now);
        mem::take(&mut self.forgot)
    }

    fn age(&mut self, now: Time) {
        let elapsed = now - self.began;
        if elapsed < PERIOD {
            return;
        }
        // Of the period just over something may still come, unless another one has passed since.
        let periods = if elapsed < 2 * PERIOD { 1 } else { 2 };
        let before = self.used();
        self.awaited.age(ChargePeriod(self.awaited.period.0 + periods));
        self.forgot |= self.used() < before;
        self.began = now;
    }

    /// How many response packets with `payload_bytes` each may be asked for, at most `wanted`. When
    /// nothing is outstanding it is at least one.
    pub(super) fn admits(&mut self, now: Time, wanted: u32, payload_bytes: u32) -> u32 {
        self.age(now);
        let fitting = self.limit.saturating_sub(self.used()) / response_cost(1, payload_bytes);
        let fitting = if self.used() == 0 { fitting.max(1) } else { fitting };
        u32::try_from(fitting).unwrap_or(u32::MAX).min(wanted)
    }

    /// Counts packets that are asked for now.
    pub(super) fn charge(&mut self, packets: u32, payload_bytes: u32) -> ChargePeriod {
        self.awaited.charge(response_cost(packets, payload_bytes));
        self.awaited.period
    }

    /// Packets that were charged in `period` came, or are waited for no longer.
    pub(super) fn release(&mut self, packets: u32, payload_bytes: u32, period: ChargePeriod) {
        self.awaited.release(response_cost(packets, payload_bytes), period);
    }

    /// The present period, in which the next charge will be.
    pub(super) fn period(&mut self, now: Time) -> ChargePeriod {
        self.age(now);
        self.awaited.period
    }
}

/// What READ response packets with this much payload each cost a receive buffer.
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

    /// A budget of ten packets, all of which were asked for at 5 ms.
    fn spent() -> (ReadBudget, ChargePeriod) {
        let mut budget = ReadBudget::with_limit(response_cost(10, PAYLOAD));
        assert_eq!(budget.admits(at(5), 99, PAYLOAD), 10);
        let period = budget.charge(10, PAYLOAD);
        assert_eq!(budget.admits(at(5), 1, PAYLOAD), 0);
        (budget, period)
    }

    #[test]
    fn responses_make_room() {
        let (mut budget, period) = spent();
        budget.release(4, PAYLOAD, period);
        assert_eq!(budget.admits(at(6), 99, PAYLOAD), 4);
        assert_eq!(budget.admits(at(12), 99, PAYLOAD), 4, "a period later it is still waited for");
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
        assert_eq!(budget.admits(now, 99, PAYLOAD), 10);
        // If it comes after all, that makes no room twice.
        budget.charge(10, PAYLOAD);
        budget.release(10, PAYLOAD, period);
        assert_eq!(budget.admits(now, 99, PAYLOAD), 0);
    }

    #[test]
    fn after_a_long_silence_nothing_is_left() {
        let (mut budget, _) = spent();
        assert_eq!(budget.admits(at(500), 99, PAYLOAD), 10);
    }
}
