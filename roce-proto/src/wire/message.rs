//! The operation of a packet, with its extended transport headers.

use crate::Psn;
use crate::wire::{Aeth, Deth, Opcode, Reth};

/// Length of the reserved payload of a congestion notification packet: sent as zero, ignored on
/// receipt.
const NOTIFICATION_BYTES: usize = 16;

/// The operation of a packet with exactly the extended transport headers that its opcode requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// First packet of a SEND.
    SendFirst,
    /// Middle packet of a SEND.
    SendMiddle,
    /// Last packet of a SEND.
    SendLast(Tail),
    /// A SEND of one packet.
    SendOnly(Tail),
    /// First packet of an RDMA WRITE.
    WriteFirst(Reth),
    /// Middle packet of an RDMA WRITE.
    WriteMiddle,
    /// Last packet of an RDMA WRITE, with immediate data if given.
    WriteLast(Option<u32>),
    /// An RDMA WRITE of one packet, with immediate data if given.
    WriteOnly(Reth, Option<u32>),
    /// An RDMA READ request.
    ReadRequest(Reth),
    /// First packet of an RDMA READ response.
    ReadResponseFirst(Aeth),
    /// Middle packet of an RDMA READ response.
    ReadResponseMiddle,
    /// Last packet of an RDMA READ response.
    ReadResponseLast(Aeth),
    /// An RDMA READ response of one packet.
    ReadResponseOnly(Aeth),
    /// An acknowledgement, positive or negative.
    Acknowledge(Aeth),
    /// A Feedrail extension: acknowledges everything up to the packet's PSN, after which a packet
    /// is missing, and contains the PSN of the latest packet received. The payload is a bitmap of
    /// the packets received in between.
    SelectiveAcknowledge(Aeth, Psn),
    /// An unreliable datagram of one packet.
    UdSendOnly(Deth),
    /// A congestion notification packet (CNP), including its 16 reserved bytes.
    CongestionNotification,
    /// Any other opcode. The bytes after the base transport header are the payload.
    Other(Opcode),
}

/// Immediate data or invalidated key in the last packet of a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Neither immediate data nor a key.
    Plain,
    /// Immediate data for the receiver's completion.
    Immediate(u32),
    /// A remote key of the receiver to be invalidated.
    Invalidate(u32),
}

impl Message {
    /// The opcode on the wire.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::SendFirst => Opcode::SEND_FIRST,
            Self::SendMiddle => Opcode::SEND_MIDDLE,
            Self::SendLast(Tail::Plain) => Opcode::SEND_LAST,
            Self::SendLast(Tail::Immediate(_)) => Opcode::SEND_LAST_IMMEDIATE,
            Self::SendLast(Tail::Invalidate(_)) => Opcode::SEND_LAST_INVALIDATE,
            Self::SendOnly(Tail::Plain) => Opcode::SEND_ONLY,
            Self::SendOnly(Tail::Immediate(_)) => Opcode::SEND_ONLY_IMMEDIATE,
            Self::SendOnly(Tail::Invalidate(_)) => Opcode::SEND_ONLY_INVALIDATE,
            Self::WriteFirst(_) => Opcode::WRITE_FIRST,
            Self::WriteMiddle => Opcode::WRITE_MIDDLE,
            Self::WriteLast(None) => Opcode::WRITE_LAST,
            Self::WriteLast(Some(_)) => Opcode::WRITE_LAST_IMMEDIATE,
            Self::WriteOnly(_, None) => Opcode::WRITE_ONLY,
            Self::WriteOnly(_, Some(_)) => Opcode::WRITE_ONLY_IMMEDIATE,
            Self::ReadRequest(_) => Opcode::READ_REQUEST,
            Self::ReadResponseFirst(_) => Opcode::READ_RESPONSE_FIRST,
            Self::ReadResponseMiddle => Opcode::READ_RESPONSE_MIDDLE,
            Self::ReadResponseLast(_) => Opcode::READ_RESPONSE_LAST,
            Self::ReadResponseOnly(_) => Opcode::READ_RESPONSE_ONLY,
            Self::Acknowledge(_) => Opcode::ACKNOWLEDGE,
            Self::SelectiveAcknowledge(..) => Opcode::SELECTIVE_ACKNOWLEDGE,
            Self::UdSendOnly(_) => Opcode::UD_SEND_ONLY,
            Self::CongestionNotification => Opcode::CONGESTION_NOTIFICATION,
            Self::Other(opcode) => *opcode,
        }
    }

    /// The AETH of the packet, if it has one.
    pub const fn aeth(&self) -> Option<&Aeth> {
        match self {
            Self::ReadResponseFirst(aeth)
            | Self::ReadResponseLast(aeth)
            | Self::ReadResponseOnly(aeth)
            | Self::Acknowledge(aeth)
            | Self::SelectiveAcknowledge(aeth, _) => Some(aeth),
            _ => None,
        }
    }

    /// Whether it is a packet of an RDMA READ response.
    pub const fn is_read_response(&self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst(_)
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast(_)
                | Self::ReadResponseOnly(_)
        )
    }

    /// Whether the packet continues a message that an earlier packet began.
    pub const fn continues(&self) -> bool {
        matches!(
            self,
            Self::SendMiddle
                | Self::SendLast(_)
                | Self::WriteMiddle
                | Self::WriteLast(_)
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast(_)
        )
    }

    /// Parses the extended headers; returns the message and the bytes after them, `None` if
    /// truncated.
    ///
    /// Inlined, since copying a result from bytes that were just stored would wait until all
    /// earlier stores, such as the last packet's payload, have reached the cache.
    #[inline(always)]
    pub(super) fn parse(opcode: Opcode, bytes: &[u8]) -> Option<(Self, &[u8])> {
        Some(match opcode {
            Opcode::SEND_FIRST => (Self::SendFirst, bytes),
            Opcode::SEND_MIDDLE => (Self::SendMiddle, bytes),
            Opcode::SEND_LAST => (Self::SendLast(Tail::Plain), bytes),
            Opcode::SEND_LAST_IMMEDIATE => {
                let (immediate, rest) = word(bytes)?;
                (Self::SendLast(Tail::Immediate(immediate)), rest)
            }
            Opcode::SEND_LAST_INVALIDATE => {
                let (rkey, rest) = word(bytes)?;
                (Self::SendLast(Tail::Invalidate(rkey)), rest)
            }
            Opcode::SEND_ONLY => (Self::SendOnly(Tail::Plain), bytes),
            Opcode::SEND_ONLY_IMMEDIATE => {
                let (immediate, rest) = word(bytes)?;
                (Self::SendOnly(Tail::Immediate(immediate)), rest)
            }
            Opcode::SEND_ONLY_INVALIDATE => {
                let (rkey, rest) = word(bytes)?;
                (Self::SendOnly(Tail::Invalidate(rkey)), rest)
            }
            Opcode::WRITE_FIRST => {
                let (reth, rest) = reth(bytes)?;
                (Self::WriteFirst(reth), rest)
            }
            Opcode::WRITE_MIDDLE => (Self::WriteMiddle, bytes),
            Opcode::WRITE_LAST => (Self::WriteLast(None), bytes),
            Opcode::WRITE_LAST_IMMEDIATE => {
                let (immediate, rest) = word(bytes)?;
                (Self::WriteLast(Some(immediate)), rest)
            }
            Opcode::WRITE_ONLY => {
                let (reth, rest) = reth(bytes)?;
                (Self::WriteOnly(reth, None), rest)
            }
            Opcode::WRITE_ONLY_IMMEDIATE => {
                let (reth, rest) = reth(bytes)?;
                let (immediate, rest) = word(rest)?;
                (Self::WriteOnly(reth, Some(immediate)), rest)
            }
            Opcode::READ_REQUEST => {
                let (reth, rest) = reth(bytes)?;
                (Self::ReadRequest(reth), rest)
            }
            Opcode::READ_RESPONSE_FIRST => {
                let (aeth, rest) = aeth(bytes)?;
                (Self::ReadResponseFirst(aeth), rest)
            }
            Opcode::READ_RESPONSE_MIDDLE => (Self::ReadResponseMiddle, bytes),
            Opcode::READ_RESPONSE_LAST => {
                let (aeth, rest) = aeth(bytes)?;
                (Self::ReadResponseLast(aeth), rest)
            }
            Opcode::READ_RESPONSE_ONLY => {
                let (aeth, rest) = aeth(bytes)?;
                (Self::ReadResponseOnly(aeth), rest)
            }
            Opcode::ACKNOWLEDGE => {
                let (aeth, rest) = aeth(bytes)?;
                (Self::Acknowledge(aeth), rest)
            }
            Opcode::SELECTIVE_ACKNOWLEDGE => {
                let (aeth, rest) = aeth(bytes)?;
                let (latest, rest) = word(rest)?;
                (Self::SelectiveAcknowledge(aeth, Psn::new(latest)), rest)
            }
            Opcode::UD_SEND_ONLY => {
                let (deth, rest) = bytes.split_first_chunk()?;
                (Self::UdSendOnly(Deth::parse(deth)), rest)
            }
            Opcode::CONGESTION_NOTIFICATION => {
                let (_, rest) = bytes.split_first_chunk::<NOTIFICATION_BYTES>()?;
                (Self::CongestionNotification, rest)
            }
            other => (Self::Other(other), bytes),
        })
    }

    /// Calls `put` with each extended header, in wire order.
    pub(super) fn encode(&self, mut put: impl FnMut(&[u8])) {
        match self {
            Self::SendLast(tail) | Self::SendOnly(tail) => match tail {
                Tail::Plain => {}
                Tail::Immediate(word) | Tail::Invalidate(word) => put(&word.to_be_bytes()),
            },
            Self::WriteFirst(reth) | Self::ReadRequest(reth) => put(&reth.encode()),
            Self::WriteLast(Some(immediate)) => put(&immediate.to_be_bytes()),
            Self::WriteOnly(reth, immediate) => {
                put(&reth.encode());
                if let Some(immediate) = immediate {
                    put(&immediate.to_be_bytes());
                }
            }
            Self::ReadResponseFirst(aeth)
            | Self::ReadResponseLast(aeth)
            | Self::ReadResponseOnly(aeth)
            | Self::Acknowledge(aeth) => put(&aeth.encode()),
            Self::SelectiveAcknowledge(aeth, latest) => {
                put(&aeth.encode());
                put(&latest.value().to_be_bytes());
            }
            Self::UdSendOnly(deth) => put(&deth.encode()),
            Self::CongestionNotification => put(&[0; NOTIFICATION_BYTES]),
            Self::SendFirst
            | Self::SendMiddle
            | Self::WriteMiddle
            | Self::WriteLast(None)
            | Self::ReadResponseMiddle
            | Self::Other(_) => {}
        }
    }
}

fn word(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (word, rest) = bytes.split_first_chunk()?;
    Some((u32::from_be_bytes(*word), rest))
}

fn reth(bytes: &[u8]) -> Option<(Reth, &[u8])> {
    let (reth, rest) = bytes.split_first_chunk()?;
    Some((Reth::parse(reth), rest))
}

fn aeth(bytes: &[u8]) -> Option<(Aeth, &[u8])> {
    let (aeth, rest) = bytes.split_first_chunk()?;
    Some((Aeth::parse(aeth), rest))
}
