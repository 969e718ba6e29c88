//! Quota of a host in a subsystem, or of a namespace.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rdma::Time;

use super::token_bucket::TokenBucket;
use crate::config::QosLimits;

/// Limits of a host or a namespace, the tokens that its commands have taken, and its counters. All
/// cores share it.
#[derive(Debug, Default)]
pub(crate) struct Quota {
    is_limited: AtomicBool,
    /// Number of changes, by which cores see that tickets of waiting commands are outdated.
    changes: AtomicU32,
    ios: TokenBucket,
    bytes: TokenBucket,
    read_bytes: TokenBucket,
    written_bytes: TokenBucket,
    throttled: AtomicU64,
    waited_nanos: AtomicU64,
}

/// Tokens that a command takes of a quota: its I/Os, and the bytes of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Toll {
    pub(crate) direction: TollDirection,
    /// 1, or the number of ranges of Read Ranges.
    pub(crate) ios: u32,
    pub(crate) bytes: u64,
}

/// Direction of a command's data. Commands of one direction do not wait for the limit of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TollDirection {
    Read,
    Write,
}

/// Counters of a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QuotaStats {
    /// Commands that had to wait, counted when their wait ends.
    pub(crate) throttled: u64,
    /// Sum of the times that they waited.
    pub(crate) waited: Duration,
}

impl Quota {
    pub(crate) fn new(limits: &QosLimits) -> Self {
        let quota = Self::default();
        quota.set(limits);
        quota
    }

    /// Sets the limits. Commands that wait get new tickets once their core notices.
    pub(crate) fn set(&self, limits: &QosLimits) {
        self.ios.set_rate(limits.rw_ios.get());
        self.bytes.set_rate(limits.rw_mbytes.bytes());
        self.read_bytes.set_rate(limits.r_mbytes.bytes());
        self.written_bytes.set_rate(limits.w_mbytes.bytes());
        self.is_limited.store(!limits.is_none(), Ordering::Relaxed);
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Whether it has a limit.
    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Relaxed)
    }

    /// Number of changes of the limits so far.
    pub(crate) fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    /// Takes the toll of a command, and returns the time from which the command may pass.
    pub(crate) fn take(&self, now: Time, toll: Toll) -> Time {
        let of_direction = self.of_direction(toll.direction);
        self.ios
            .take(now, toll.ios.into())
            .max(self.bytes.take(now, toll.bytes))
            .max(of_direction.take(now, toll.bytes))
    }

    /// Takes that by which a toll is larger than another, which was taken and not used.
    pub(crate) fn take_more(&self, now: Time, taken: Toll, toll: Toll) {
        let more = toll.ios.saturating_sub(taken.ios);
        if more > 0 {
            self.ios.take(now, more.into());
        }
        let more = toll.bytes.saturating_sub(taken.bytes);
        if more > 0 {
            self.bytes.take(now, more);
            self.of_direction(toll.direction).take(now, more);
        }
    }

    fn of_direction(&self, direction: TollDirection) -> &TokenBucket {
        match direction {
            TollDirection::Read => &self.read_bytes,
            TollDirection::Write => &self.written_bytes,
        }
    }

    /// Counts a command whose wait has ended.
    pub(crate) fn count_wait(&self, waited_nanos: u64) {
        self.throttled.fetch_add(1, Ordering::Relaxed);
        self.waited_nanos.fetch_add(waited_nanos, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> QuotaStats {
        QuotaStats {
            throttled: self.throttled.load(Ordering::Relaxed),
            waited: Duration::from_nanos(self.waited_nanos.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_passes_when_it_is_within_all_limits() {
        let limits = QosLimits {
            rw_ios: 1_000.try_into().expect("valid"),
            r_mbytes: 1.try_into().expect("valid"),
            ..QosLimits::default()
        };
        let (quota, now) = (Quota::new(&limits), Time::from_nanos(1_000_000_000));
        let toll = |direction, bytes| Toll { direction, ios: 1, bytes };
        assert!(quota.take(now, toll(TollDirection::Read, 1 << 20)) <= now);
        let read = quota.take(now, toll(TollDirection::Read, 512));
        assert_eq!(read, now + Duration::from_millis(990), "bytes of reads");
        let write = quota.take(now, toll(TollDirection::Write, 64 << 20));
        assert!(write <= now, "bytes of writes have no limit");
        quota.set(&QosLimits::default());
        assert!(!quota.is_limited() && quota.changes() == 2);
        assert!(quota.take(now, toll(TollDirection::Read, u64::MAX)) <= now);
    }
}
