//! State of the in-band authentication of a controller's queues.

use std::sync::Arc;
use std::time::Duration;

use feedrail_auth::{
    AuthOffer, Authenticated, HostAuth, HostAuthError, HostSetup, HostStep, HostWork, Parties,
    SequenceNumbers,
};
use nvme_proto::auth::AuthTransaction;
use nvme_proto::{HostNqn, Nqn};
use rdma::Time;

use crate::engine::earliest;
use crate::engine::reply::Promise;
use crate::memory::bounce::BounceChunk;
use crate::types::options::ControllerOptions;

/// Source of random bytes that nobody can predict, which fills the slice.
pub(crate) type Entropy = fn(&mut [u8]);

/// Authentication of a controller's queues, over all of its connections.
#[derive(Default)]
pub(crate) struct AuthSession {
    /// Transaction in progress on one of the queues.
    pub(crate) exchange: Option<Exchange>,
    /// Identifier of the last transaction.
    last: AuthTransaction,
    /// Whether the target requires it on the queue that was connected last.
    pub(crate) is_required: bool,
    /// Whether the queues of this connection are authenticated.
    pub(crate) is_done: bool,
    /// Time at which all queues are authenticated again.
    pub(crate) again_at: Option<Time>,
    /// Callers who wait for the next authentication of all queues.
    pub(crate) waiting: Vec<Promise<()>>,
    /// Time at which the target last withdrew an authentication.
    pub(crate) withdrawn: Option<Time>,
}

impl AuthSession {
    /// Returns an identifier that differs from that of the last transaction.
    pub(crate) fn next_transaction(&mut self) -> AuthTransaction {
        self.last.0 = self.last.0.wrapping_add(1);
        self.last
    }

    /// Notes that all queues are authenticated, and when they will be again.
    pub(crate) fn complete(&mut self, now: Time, period: Option<Duration>) {
        self.is_done = true;
        self.again_at = period.map(|period| now + period);
    }

    /// Forgets the connection; returns the memory of the transaction in progress.
    pub(crate) fn forget(&mut self) -> Option<BounceChunk> {
        self.is_done = false;
        self.again_at = None;
        self.exchange.take().and_then(|exchange| exchange.chunk)
    }

    /// Returns when the next action is due on a connection that is ready for commands.
    pub(crate) fn deadline(&self) -> Option<Time> {
        earliest(self.exchange.as_ref().map(|exchange| exchange.deadline), self.again_at)
    }
}

/// A transaction in progress.
pub(crate) struct Exchange {
    pub(crate) host: HostAuth,
    /// Position of its queue among those of the session.
    pub(crate) queue: usize,
    pub(crate) stage: ExchangeStage,
    pub(crate) deadline: Time,
    /// Memory of its messages, once the first was sent.
    pub(crate) chunk: Option<BounceChunk>,
}

/// Next command of a transaction, or the result that it waits for.
pub(crate) enum ExchangeStage {
    /// Sends a message, once the queue has room.
    Send(Vec<u8>),
    /// Fetches a message, once the queue has room.
    Receive,
    /// Authentication Send is in flight.
    Sending,
    /// Authentication Receive is in flight.
    Receiving,
    /// The computation with this number is being done.
    Computing(u64),
}

impl Exchange {
    /// Takes the next step, except the last. Returns the work that has to be done, which gets
    /// `number`, or the result.
    pub(crate) fn take(&mut self, step: HostStep, number: u64) -> ExchangeProgress {
        match step {
            HostStep::Send(message) => self.stage = ExchangeStage::Send(message),
            HostStep::Receive => self.stage = ExchangeStage::Receive,
            HostStep::Compute(work) => {
                self.stage = ExchangeStage::Computing(number);
                return ExchangeProgress::Compute(work);
            }
            HostStep::Finish(result) => return ExchangeProgress::Finished(result),
        }
        ExchangeProgress::Waits
    }
}

/// Result of a step of an [`Exchange`].
pub(crate) enum ExchangeProgress {
    /// A command is to be sent.
    Waits,
    Compute(HostWork),
    Finished(Result<Authenticated, HostAuthError>),
}

/// Returns the keys of a host for a subsystem, if it has a secret.
pub(crate) fn setup(
    options: &ControllerOptions,
    host: HostNqn,
    subsystem: Nqn,
    mut entropy: Entropy,
) -> Option<Arc<HostSetup>> {
    let secret = options.dhchap_secret.as_ref()?;
    let controller_key =
        options.dhchap_ctrl_secret.as_ref().map(|secret| secret.key_for(&subsystem));
    Some(Arc::new(HostSetup {
        parties: Parties { host, subsystem },
        host_key: secret.key_for(&host.0),
        controller_key,
        offer: AuthOffer::default(),
        sequences: SequenceNumbers::new(&mut entropy),
    }))
}
