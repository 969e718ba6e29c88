//! The invariant CRC (ICRC) of packets on a wire.

use std::net::SocketAddr;

use roce_proto::wire::{Flow, Icrc, IcrcMismatch, Identification, verify as verify_flow};

use super::wire::{Datagram, ICRC_BYTES, IpId, Outgoing};

/// The ICRC of a packet sent from `from` with this IPv4 identification.
pub(crate) fn compute(from: SocketAddr, packet: &Outgoing<'_>, ip_id: u16) -> [u8; ICRC_BYTES] {
    let id = Identification::segment(ip_id);
    let start = Flow::new(from, *packet.to)
        .map(|flow| Icrc::new(&flow, id, packet.length(), packet.headers));
    finish(start, packet.pieces.iter().copied(), packet.pad_bytes)
}

/// Completes the ICRC of a packet's headers with its payload and pad. `start` is `None` between
/// addresses of different families, where nothing is sent.
pub(crate) fn finish<'a>(
    start: Option<Icrc>,
    pieces: impl Iterator<Item = &'a [u8]>,
    pad_bytes: u8,
) -> [u8; ICRC_BYTES] {
    let Some(mut icrc) = start else { return [0; ICRC_BYTES] };
    pieces.for_each(|piece| icrc.update(piece));
    icrc.update(&[0; 3][..usize::from(pad_bytes)]);
    icrc.finish()
}

/// Checks the ICRC of a datagram; returns the IPv4 identification with which it was computed.
pub(crate) fn verify(datagram: &Datagram<'_>) -> Result<Identification, IcrcMismatch> {
    let flow = datagram.flow.ok_or(IcrcMismatch)?;
    match datagram.ip_id {
        IpId::Likely(likely) => verify_flow(&flow, likely, datagram.bytes),
        IpId::Known(known) => {
            let identification = verify_flow(&flow, known, datagram.bytes)?;
            (identification == known).then_some(identification).ok_or(IcrcMismatch)
        }
    }
}
