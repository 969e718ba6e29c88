//! The base transport header (BTH).

use crate::wire::Opcode;
use crate::{Psn, Qpn};

/// The base transport header, without its opcode, which is part of [`crate::wire::Message`] (IBTA
/// volume 1, 9.2). Reserved bits are ignored on receipt and sent as zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Solicited event: the receiver's completion may wake its consumer.
    pub solicited: bool,
    /// Migration state (MigReq); true in all packets without automatic path migration.
    pub migrated: bool,
    /// Number of pad bytes after the payload, 0..=3.
    pub pad_bytes: u8,
    /// Partition key; 0xFFFF on Ethernet.
    pub pkey: u16,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification.
    pub becn: bool,
    /// Number of the destination queue pair.
    pub dest_qpn: Qpn,
    /// True if an acknowledgement is requested.
    pub ack_request: bool,
    /// Packet sequence number (PSN) of the packet.
    pub psn: Psn,
}

impl Bth {
    /// Size of the header on the wire.
    pub const BYTES: usize = 12;

    /// The default partition key, full member; the only one with RoCE.
    pub const DEFAULT_PKEY: u16 = 0xFFFF;

    /// The header of a packet without special flags.
    pub const fn new(dest_qpn: Qpn, psn: Psn) -> Self {
        Self {
            solicited: false,
            migrated: true,
            pad_bytes: 0,
            pkey: Self::DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest_qpn,
            ack_request: false,
            psn,
        }
    }

    /// The header of a congestion notification packet (CNP) to `dest_qpn`.
    pub const fn notification(dest_qpn: Qpn) -> Self {
        Self { migrated: false, becn: true, ..Self::new(dest_qpn, Psn::new(0)) }
    }

    /// Parses a header; returns the opcode, the header and the transport version.
    pub(super) fn parse(bytes: &[u8; Self::BYTES]) -> (Opcode, Self, u8) {
        let [opcode, flags, pkey_hi, pkey_lo, ecn, qpn2, qpn1, qpn0, ack, psn2, psn1, psn0] =
            *bytes;
        let bth = Self {
            solicited: flags & 0x80 != 0,
            migrated: flags & 0x40 != 0,
            pad_bytes: flags >> 4 & 3,
            pkey: u16::from_be_bytes([pkey_hi, pkey_lo]),
            fecn: ecn & 0x80 != 0,
            becn: ecn & 0x40 != 0,
            dest_qpn: Qpn::new(u32::from_be_bytes([0, qpn2, qpn1, qpn0])),
            ack_request: ack & 0x80 != 0,
            psn: Psn::new(u32::from_be_bytes([0, psn2, psn1, psn0])),
        };
        (Opcode(opcode), bth, flags & 0x0F)
    }

    pub(super) fn encode(&self, opcode: Opcode) -> [u8; Self::BYTES] {
        let flags = u8::from(self.solicited) << 7
            | u8::from(self.migrated) << 6
            | (self.pad_bytes & 3) << 4;
        let ecn = u8::from(self.fecn) << 7 | u8::from(self.becn) << 6;
        // Two large stores: loading bytes that were just stored in smaller pieces would wait for
        // those stores.
        let first = u64::from(opcode.0) << 56
            | u64::from(flags) << 48
            | u64::from(self.pkey) << 32
            | u64::from(ecn) << 24
            | u64::from(self.dest_qpn.value());
        let second = u32::from(self.ack_request) << 31 | self.psn.value();
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&first.to_be_bytes());
        bytes[8..].copy_from_slice(&second.to_be_bytes());
        bytes
    }
}
