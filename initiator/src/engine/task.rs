//! Commands in flight, by what their responses are for.

use nvme_proto::Sqe;
use rdma::Time;

use crate::engine::arena::NamespaceKey;
use crate::engine::check_state::CheckTask;
use crate::engine::range_queues::RangeCommand;
use crate::engine::raw::RawReply;
use crate::engine::reply::Promise;
use crate::memory::bounce::BounceChunk;

/// Purpose of a command in flight, by which its response is handled.
pub(crate) enum Task {
    Piece(RangeCommand),
    /// A [`Raw`] command, whose result is sent to `promise`.
    Raw {
        promise: Promise<RawReply>,
        chunk: Option<BounceChunk>,
        to_host: u32,
        namespace: Option<NamespaceKey>,
        deadline: Time,
        /// The command, if it is sent again after the loss of its connection.
        again: Option<Sqe>,
        /// Whether it may change state that others can see.
        alters: bool,
    },
    /// A command of [`Opening`].
    Opening,
    /// Authentication Send or Authentication Receive.
    Authentication,
    KeepAlive,
    Check(CheckTask),
    /// Set Features, Asynchronous Event Configuration.
    EventConfig,
    /// Asynchronous Event Request, which completes at the next event.
    AsyncEvent,
    /// Abort. Its result is not used: the aborted command completes by itself.
    Abort,
    Shutdown,
}

impl Task {
    /// Returns whether the response is for the attempt to connect or the authentication, which
    /// handle Authentication Required themselves.
    pub(crate) fn is_of_connect(&self) -> bool {
        matches!(self, Self::Opening | Self::Authentication)
    }
}
