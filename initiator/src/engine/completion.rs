//! Results of ranges, as their owners get them.

use crate::memory::region::RegionSlice;
use crate::types::error::Error;
use crate::types::plan::Outcome;

/// Result of a range that was submitted to a ring.
#[derive(Debug)]
pub struct RangeCompletion {
    /// Token that was given with the range.
    pub token: u64,
    /// Memory of the range, which the target can no longer access.
    pub slice: RegionSlice,
    /// `Ok` if all bytes were transferred; else the slice's contents are unspecified.
    pub result: Result<(), Error>,
}

/// Data on the execution of a range, for the outcome in its plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeService {
    /// Bits of [`Outcome::path`](crate::Outcome::path) so far.
    pub(crate) path: u8,
    pub(crate) attempts: u32,
    pub(crate) latency_us: u32,
}

impl RangeService {
    pub(crate) fn outcome(self, result: &Result<(), Error>) -> Outcome {
        Outcome {
            status: result.as_ref().map_or_else(Outcome::status_of, |()| 0),
            path: self.path,
            attempts: self.attempts.try_into().unwrap_or(u8::MAX),
            latency_us: self.latency_us,
        }
    }
}
