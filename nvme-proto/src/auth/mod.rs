//! In-band authentication with DH-HMAC-CHAP (Base, 8.3.4): the commands that carry its messages,
//! and the messages.
//!
//! A host sends a message with [`AuthenticationSend`] and fetches the next one with
//! [`AuthenticationReceive`]. Computing and comparing responses is left to the caller.

mod codes;
mod command;
mod exchange;
mod failure;
mod message;
mod negotiate;
mod wire;

pub use codes::{
    AuthProtocol, AuthTransaction, ConcatenatedChannel, DhGroupId, FailureExplanation,
    FailureReason, HashId,
};
pub use command::{AuthenticationReceive, AuthenticationSend};
pub use exchange::{AuthChallenge, AuthReply, AuthSuccess1, AuthSuccess2};
pub use failure::AuthFailure;
pub use message::AuthMessage;
pub use negotiate::{AuthNegotiate, DhChapDescriptor};
pub use wire::InvalidAuthMessage;
