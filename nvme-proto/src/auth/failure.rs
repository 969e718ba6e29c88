//! AUTH_Failure1 and AUTH_Failure2, which end a transaction.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::codes::{AuthTransaction, FailureExplanation, FailureReason};
use super::wire::{AuthHeader, COMMON, InvalidAuthMessage, MessageWriter, split};

/// Content of AUTH_Failure1, which a controller sends, and of AUTH_Failure2, which a host sends
/// (Base, 8.3.4.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthFailure {
    /// Transaction that has failed.
    pub transaction: AuthTransaction,
    /// Reason code, RCODE: byte 6.
    pub reason: FailureReason,
    /// Reason code explanation, RCODEEX: byte 7.
    pub explanation: FailureExplanation,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FailureHead {
    header: AuthHeader,
    reason: u8,
    explanation: u8,
}

impl AuthFailure {
    /// AUTH_TYPE and AUTH_ID of AUTH_Failure1.
    pub(super) const BY_CONTROLLER: (u8, u8) = (COMMON, 0xF1);
    /// AUTH_TYPE and AUTH_ID of AUTH_Failure2.
    pub(super) const BY_HOST: (u8, u8) = (COMMON, 0xF0);

    /// Creates the content with reason "Authentication failure".
    pub const fn new(transaction: AuthTransaction, explanation: FailureExplanation) -> Self {
        Self { transaction, reason: FailureReason::AUTHENTICATION_FAILURE, explanation }
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<(Self, usize), InvalidAuthMessage> {
        let (head, _) = split::<FailureHead>(bytes)?;
        let content = Self {
            transaction: head.header.transaction(),
            reason: FailureReason(head.reason),
            explanation: FailureExplanation(head.explanation),
        };
        Ok((content, size_of::<FailureHead>()))
    }

    pub(super) fn write(&self, kind: (u8, u8), writer: &mut MessageWriter<'_>) {
        writer.put(&FailureHead {
            header: AuthHeader::new(kind, self.transaction),
            reason: self.reason.0,
            explanation: self.explanation.0,
        });
    }
}
