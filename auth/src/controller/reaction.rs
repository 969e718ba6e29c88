//! Reactions of a controller, which its caller carries out.

use nvme_proto::Status;

use super::work::ControllerWork;

/// Reaction to Authentication Send.
#[derive(Debug)]
#[must_use]
pub enum SendReaction {
    /// Complete the command successfully.
    Complete,
    /// Complete the command successfully, and execute work.
    Compute(ControllerWork),
    /// Complete the command with this status.
    Abort(Status),
    /// Complete the command successfully, then disconnect.
    Disconnect,
}

/// Reaction to Authentication Receive.
#[derive(Debug)]
#[must_use]
pub enum ReceiveReaction {
    /// Transfer the message and complete the command successfully.
    Respond(Vec<u8>),
    /// Transfer the message, complete the command successfully, then disconnect. Commands of the
    /// queue that still run end with Operation Denied (Base, 8.3.4.2).
    RespondAndDisconnect(Vec<u8>),
    /// Keep the command, and hand it over again after the result of the work.
    Wait,
    /// Complete the command with this status.
    Abort(Status),
}

/// Reaction to the event that the timer of a queue has run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum TimeoutReaction {
    /// Disconnect, because the host is not authenticated.
    Disconnect,
    /// Nothing: the transaction is forgotten, and the queue stays authenticated.
    Forget,
}
