//! The pause before the next attempt to connect.

use std::time::Duration;

use nvme_proto::HostId;
use splitmix64::{SplitMix64, mix};

/// Pause before the second consecutive attempt; the first follows immediately, and each later pause
/// is twice as long.
const FIRST: Duration = Duration::from_millis(50);

/// Number of consecutive failed attempts, from which the next pause is computed.
#[derive(Debug)]
pub(crate) struct Retries {
    failed: u32,
    random: SplitMix64,
}

impl Retries {
    /// Seeds the random part of the pauses by host and controller, so that hosts which lose a
    /// target together do not reconnect together.
    pub(crate) fn new(host: &HostId, controller: usize) -> Self {
        let halves = host.0.as_chunks::<8>().0.iter().map(|&half| u64::from_le_bytes(half));
        let seed = halves.fold(controller as u64, |seed, half| mix(seed ^ half));
        Self { failed: 0, random: SplitMix64::new(seed) }
    }

    /// Starts with no pause again, after a connection that lasted.
    pub(crate) fn reset(&mut self) {
        self.failed = 0;
    }

    /// Returns the pause before the next attempt: zero, then doubling ones up to `longest`.
    pub(crate) fn next_pause(&mut self, longest: Duration) -> Duration {
        let failed = self.failed;
        self.failed = failed.saturating_add(1);
        let Some(doublings) = failed.checked_sub(1) else { return Duration::ZERO };
        let pause = FIRST.saturating_mul(1 << doublings.min(20)).min(longest);
        // Shortened by up to a quarter.
        let less = (self.random.next_u64() >> 32) as u32;
        pause - (pause / 4).mul_f64(f64::from(less) / f64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(host: u8, longest_ms: u64) -> Vec<u128> {
        let mut retries = Retries::new(&HostId([host; 16]), 0);
        let longest = Duration::from_millis(longest_ms);
        (0..10).map(|_| retries.next_pause(longest).as_millis()).collect()
    }

    #[test]
    fn pauses_grow_to_the_longest() {
        for host in 0..100 {
            let pauses = pauses(host, 2_000);
            assert_eq!(pauses[0], 0);
            for (i, pause) in pauses[1..].iter().enumerate() {
                let most = (50 << i).min(2_000);
                assert!((most * 3 / 4 - 1..=most).contains(pause), "{pauses:?}");
            }
        }
    }

    #[test]
    fn hosts_do_not_come_back_together() {
        assert_ne!(pauses(1, 2_000), pauses(2, 2_000));
        assert_eq!(pauses(1, 2_000), pauses(1, 2_000));
    }

    #[test]
    fn extreme_delays_are_kept() {
        assert!(pauses(1, 0).iter().all(|&pause| pause == 0));
        assert!(pauses(1, u64::MAX).iter().all(|&pause| pause < 50 << 20));
    }
}
