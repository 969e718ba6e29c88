//! What callers see and the engine uses alike: errors, counters, options.

pub(crate) mod counters;
pub(crate) mod error;
pub(crate) mod options;
