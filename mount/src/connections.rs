//! The connections of a lane to the targets of a mount.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use feedrail_initiator::{Controller, Error, Host, MonotonicTime, Pending};

use crate::source::SourceTarget;

/// A target that could not be connected is tried again by the first read after this time.
const TRY_AGAIN: Duration = Duration::from_secs(1);

enum LaneTarget {
    /// When it was tried last.
    Away(Option<MonotonicTime>),
    Connecting(Pending<Result<Controller, Error>>),
    /// The initiator keeps it connected.
    Connected(Controller),
}

/// All targets of a mount, by their numbers.
pub(crate) struct LaneConnections {
    sources: Vec<SourceTarget>,
    targets: Vec<LaneTarget>,
}

/// Whether a target can be asked.
#[derive(Clone, Debug)]
pub(crate) enum Reached {
    Yes(Controller),
    /// The connection is being made.
    NotYet,
    No,
}

impl LaneConnections {
    pub(crate) fn begin(host: &Host, sources: Vec<SourceTarget>) -> Self {
        let connecting = |source: &SourceTarget| LaneTarget::Connecting(source.connect(host));
        let targets = sources.iter().map(connecting).collect();
        Self { sources, targets }
    }

    /// Looks which have answered; false if none has.
    pub(crate) fn advance(&mut self, now: MonotonicTime) -> bool {
        let mut has_moved = false;
        for target in &mut self.targets {
            let LaneTarget::Connecting(connecting) = target else { continue };
            let polled = Pin::new(connecting).poll(&mut Context::from_waker(Waker::noop()));
            let Poll::Ready(connected) = polled else { continue };
            has_moved = true;
            *target = match connected {
                Ok(controller) => LaneTarget::Connected(controller),
                Err(error) => {
                    tracing::warn!(%error, "cannot connect");
                    LaneTarget::Away(Some(now))
                }
            };
        }
        has_moved
    }

    /// A target that a read needs: one that is away is connected, if it was not just tried.
    pub(crate) fn reach(&mut self, host: &Host, target: usize, now: MonotonicTime) -> Reached {
        let Some(state) = self.targets.get_mut(target) else { return Reached::No };
        match state {
            LaneTarget::Connected(controller) => Reached::Yes(controller.clone()),
            LaneTarget::Connecting(_) => Reached::NotYet,
            LaneTarget::Away(Some(tried)) if now.saturating_duration_since(*tried) < TRY_AGAIN => {
                Reached::No
            }
            LaneTarget::Away(_) => {
                *state = LaneTarget::Connecting(self.sources[target].connect(host));
                Reached::NotYet
            }
        }
    }
}
