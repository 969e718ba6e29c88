//! Rate limit of log lines, for each call site separately.
#![expect(clippy::disallowed_types, reason = "call sites have a hash and no order")]

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use rdma::Time;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::limits::log_rate::RatePeriod;
use crate::log_level::AUDIT;

/// Admits [`crate::limits::PEER_MESSAGES`] lines of each call site per period. Not limited are
/// lines of levels `debug` and `trace`, which an operator has requested, and of the audit log,
/// which remote peers cannot cause.
pub(super) struct LineRate<C, N> {
    clock: C,
    /// Function that logs how many lines of a call site were omitted.
    notice: N,
    places: Mutex<HashMap<Identifier, RatePeriod>>,
}

impl<C, N> LineRate<C, N>
where
    C: Fn() -> Time,
    N: Fn(u64, &'static Metadata<'static>),
{
    pub(super) fn new(clock: C, notice: N) -> Self {
        Self { clock, notice, places: Mutex::default() }
    }

    fn admits(&self, metadata: &'static Metadata<'static>) -> bool {
        if *metadata.level() > Level::INFO || metadata.target() == AUDIT {
            return true;
        }
        let now = (self.clock)();
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let admission = places.entry(metadata.callsite()).or_default().admit(now, 1);
        drop(places);
        if admission.left_out_before > 0 {
            (self.notice)(admission.left_out_before, metadata);
        }
        admission.is_admitted
    }
}

impl<S, C, N> Layer<S> for LineRate<C, N>
where
    S: Subscriber,
    C: Fn() -> Time + 'static,
    N: Fn(u64, &'static Metadata<'static>) + 'static,
{
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.admits(event.metadata())
    }
}
