//! Messages of the connection managers, sent over Unix sockets.

use crate::{ConnParams, PrivateData};

/// First bytes of every message: a name, and the version of the shared-memory protocol.
const MAGIC: [u8; 8] = *b"FRshm\0\0\x02";
/// Length of the fixed part in bytes, which the private data follows.
const FIXED_BYTES: usize = 20;
/// Maximum length of a message in bytes.
pub(super) const MAX_MESSAGE_BYTES: usize = FIXED_BYTES + PrivateData::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CmMessageKind {
    /// Requests a connection. Two descriptors are attached: the memory and the bell.
    Request,
    Accept,
    Reject,
    /// The active side has processed the accept.
    Ready,
    /// The sender's queue pair is in ERROR, and the connection ends.
    Disconnect,
    /// Answer to a [`CmMessageKind::Disconnect`] of the peer.
    Disconnected,
}

/// A message. Fields that its kind does not use are zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShmCmMessage {
    pub(super) kind: CmMessageKind,
    /// Parameters seen from the sender's side.
    pub(super) params: ConnParams,
    pub(super) ack_timeout_exponent: u8,
    /// The source port in a request, the reason in a reject.
    pub(super) number: u16,
}

impl CmMessageKind {
    const ALL: [Self; 6] = [
        Self::Request,
        Self::Accept,
        Self::Reject,
        Self::Ready,
        Self::Disconnect,
        Self::Disconnected,
    ];
}

impl ShmCmMessage {
    /// A message of a kind, with all other fields zero.
    pub(super) fn plain(kind: CmMessageKind) -> Self {
        Self { kind, params: ConnParams::default(), ack_timeout_exponent: 0, number: 0 }
    }

    pub(super) fn encode(&self) -> ([u8; MAX_MESSAGE_BYTES], usize) {
        let mut bytes = [0; MAX_MESSAGE_BYTES];
        let ConnParams { private_data, .. } = &self.params;
        let private = private_data.as_slice();
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8] = self.kind as u8;
        bytes[9] = self.params.responder_resources;
        bytes[10] = self.params.initiator_depth;
        bytes[11] = self.params.retry_count;
        bytes[12] = self.params.rnr_retry_count;
        bytes[13] = self.ack_timeout_exponent;
        bytes[14..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[FIXED_BYTES..FIXED_BYTES + private.len()].copy_from_slice(private);
        (bytes, FIXED_BYTES + private.len())
    }

    /// Parses a message; `None` if it is malformed or of another version.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (fixed, private) = bytes.split_at_checked(FIXED_BYTES)?;
        if fixed[..8] != MAGIC {
            return None;
        }
        let kind = CmMessageKind::ALL.into_iter().find(|&kind| kind as u8 == fixed[8])?;
        let params = ConnParams {
            responder_resources: fixed[9],
            initiator_depth: fixed[10],
            retry_count: fixed[11],
            rnr_retry_count: fixed[12],
            private_data: PrivateData::new(private)?,
        };
        let number = u16::from_le_bytes([fixed[14], fixed[15]]);
        Some(Self { kind, params, ack_timeout_exponent: fixed[13], number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_parsed_as_they_were_encoded() {
        for kind in CmMessageKind::ALL {
            for length in [0, 1, PrivateData::MAX] {
                let message = ShmCmMessage {
                    kind,
                    params: ConnParams {
                        responder_resources: 1,
                        initiator_depth: 2,
                        retry_count: 3,
                        rnr_retry_count: 4,
                        private_data: PrivateData::new(&vec![5; length]).unwrap(),
                    },
                    ack_timeout_exponent: 6,
                    number: 0x0708,
                };
                let (bytes, count) = message.encode();
                let parsed = ShmCmMessage::parse(&bytes[..count]).unwrap();
                assert_eq!(format!("{parsed:?}"), format!("{message:?}"));
            }
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let (bytes, count) = ShmCmMessage::plain(CmMessageKind::Request).encode();
        for length in 0..count {
            assert!(ShmCmMessage::parse(&bytes[..length]).is_none());
        }
        assert!(ShmCmMessage::parse(&[&bytes[..], &[0]].concat()).is_none(), "too long");
        for index in 0..8 {
            let mut changed = bytes;
            changed[index] ^= 1;
            assert!(ShmCmMessage::parse(&changed[..count]).is_none(), "byte {index}");
        }
        let mut unknown = bytes;
        unknown[8] = 99;
        assert!(ShmCmMessage::parse(&unknown[..count]).is_none());
    }
}
