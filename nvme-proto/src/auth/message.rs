//! Messages of all kinds.

use super::codes::AuthTransaction;
use super::exchange::{AuthChallenge, AuthReply, AuthSuccess1, AuthSuccess2};
use super::failure::AuthFailure;
use super::negotiate::AuthNegotiate;
use super::wire::{AuthHeader, InvalidAuthMessage, MessageWriter, split};

/// Message of an authentication transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthMessage<'a> {
    /// AUTH_Negotiate, from the host.
    Negotiate(AuthNegotiate<'a>),
    /// DH-HMAC-CHAP_Challenge, from the controller.
    Challenge(AuthChallenge<'a>),
    /// DH-HMAC-CHAP_Reply, from the host.
    Reply(AuthReply<'a>),
    /// DH-HMAC-CHAP_Success1, from the controller.
    Success1(AuthSuccess1<'a>),
    /// DH-HMAC-CHAP_Success2, from the host.
    Success2(AuthSuccess2),
    /// AUTH_Failure1, from the controller.
    Failure1(AuthFailure),
    /// AUTH_Failure2, from the host.
    Failure2(AuthFailure),
}

impl<'a> AuthMessage<'a> {
    /// Decodes the message at the start of `bytes`, and returns its length in bytes too.
    ///
    /// # Errors
    /// [`InvalidAuthMessage`], which has a [`FailureExplanation`](super::FailureExplanation).
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, usize), InvalidAuthMessage> {
        let (header, _) = split::<AuthHeader>(bytes)?;
        match (header.auth_type, header.auth_id) {
            AuthNegotiate::KIND => AuthNegotiate::parse(bytes).map(with(Self::Negotiate)),
            AuthChallenge::KIND => AuthChallenge::parse(bytes).map(with(Self::Challenge)),
            AuthReply::KIND => AuthReply::parse(bytes).map(with(Self::Reply)),
            AuthSuccess1::KIND => AuthSuccess1::parse(bytes).map(with(Self::Success1)),
            AuthSuccess2::KIND => AuthSuccess2::parse(bytes).map(with(Self::Success2)),
            AuthFailure::BY_CONTROLLER => AuthFailure::parse(bytes).map(with(Self::Failure1)),
            AuthFailure::BY_HOST => AuthFailure::parse(bytes).map(with(Self::Failure2)),
            (auth_type, auth_id) => Err(InvalidAuthMessage::Unknown { auth_type, auth_id }),
        }
    }

    /// Encodes the message at the start of `buffer`, and returns its bytes; `None` if the buffer is
    /// too short.
    pub fn encode<'b>(&self, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
        let mut writer = MessageWriter::new(buffer);
        match self {
            Self::Negotiate(message) => message.write(&mut writer),
            Self::Challenge(message) => message.write(&mut writer),
            Self::Reply(message) => message.write(&mut writer),
            Self::Success1(message) => message.write(&mut writer),
            Self::Success2(message) => message.write(&mut writer),
            Self::Failure1(content) => content.write(AuthFailure::BY_CONTROLLER, &mut writer),
            Self::Failure2(content) => content.write(AuthFailure::BY_HOST, &mut writer),
        }
        writer.into_message()
    }

    /// Transaction that the message belongs to.
    pub const fn transaction(&self) -> AuthTransaction {
        match self {
            Self::Negotiate(message) => message.transaction,
            Self::Challenge(message) => message.transaction,
            Self::Reply(message) => message.transaction,
            Self::Success1(message) => message.transaction,
            Self::Success2(message) => message.transaction,
            Self::Failure1(content) | Self::Failure2(content) => content.transaction,
        }
    }
}

fn with<T, U>(variant: impl Fn(T) -> U) -> impl Fn((T, usize)) -> (U, usize) {
    move |(message, length)| (variant(message), length)
}
