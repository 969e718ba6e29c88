//! RoCE v2 packets: transport headers and the invariant CRC (ICRC).
//!
//! A packet is the payload of a UDP datagram to port [`UDP_PORT`]: base transport header, the
//! extended headers that its opcode requires, payload, zero to three pad bytes, ICRC. All headers
//! are big-endian (IBTA volume 1, chapter 9, and annex A17).

mod aeth;
mod bth;
mod deth;
mod ecn;
mod icrc;
mod message;
mod opcode;
mod packet;
mod reth;

#[cfg(test)]
mod tests;

pub use aeth::{Aeth, NakCode, RnrTimer, Syndrome};
pub use bth::Bth;
pub use deth::Deth;
pub use ecn::Ecn;
pub use icrc::{Flow, Icrc, IcrcMismatch, Identification, verify};
pub use message::{Message, Tail};
pub use opcode::Opcode;
pub use packet::{HEADERS_MAX_BYTES, Headers, Packet, PacketError, pad_bytes};
pub use reth::Reth;

/// The UDP destination port of RoCE v2.
pub const UDP_PORT: u16 = 4791;
