//! Functions on scatter-gather lists.

use crate::rc::{AccessError, LocalSge, Memory, MemoryKey, PayloadPiece};

/// Total length of a list in bytes, at most `u32::MAX`.
pub(super) fn total_bytes(sges: &[LocalSge]) -> u32 {
    sges.iter().fold(0, |total, sge| total.saturating_add(sge.length))
}

/// The parts of a list that `length` bytes from byte `offset` on occupy; fewer at its end.
pub(super) fn pieces(
    sges: &[LocalSge],
    mut offset: u32,
    mut length: u32,
) -> impl Iterator<Item = LocalSge> {
    sges.iter().filter_map(move |sge| {
        let skipped = offset.min(sge.length);
        offset -= skipped;
        let taken = length.min(sge.length - skipped);
        length -= taken;
        (taken > 0).then(|| LocalSge {
            addr: sge.addr.wrapping_add(u64::from(skipped)),
            length: taken,
            lkey: sge.lkey,
        })
    })
}

/// Places `payload` at byte `offset` of a list, which must have room for it.
pub(super) fn scatter(
    memory: &mut impl Memory,
    sges: &[LocalSge],
    offset: u32,
    mut payload: &[u8],
) -> Result<(), AccessError> {
    for piece in pieces(sges, offset, payload.len() as u32) {
        let (here, rest) = payload.split_at(piece.length as usize);
        memory.place(MemoryKey::Local { lkey: piece.lkey }, piece.addr, here)?;
        payload = rest;
    }
    debug_assert!(payload.is_empty(), "the list has room for the payload");
    Ok(())
}

impl From<LocalSge> for PayloadPiece {
    fn from(LocalSge { addr, length, lkey }: LocalSge) -> Self {
        Self { key: MemoryKey::Local { lkey }, addr, length }
    }
}
