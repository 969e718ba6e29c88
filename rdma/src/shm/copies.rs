//! Copies between registered memory and rings; the key and bounds of each element are checked.
#![expect(unsafe_code, reason = "rings are reached by address")]

use super::ring::{RecordSpace, RingRecord};
use crate::Sge;
use crate::software::regions::{Denied, DomainView};

/// Copies the payload of a record to the scatter-gather elements of a request, starting `offset`
/// bytes into them. The elements must have room for it.
pub(super) fn scatter(
    memory: DomainView<'_>,
    sges: &[Sge],
    offset: u32,
    record: &RingRecord,
) -> Result<(), Denied> {
    let mut source = record.payload;
    for piece in pieces(sges, offset, record.length()) {
        // SAFETY: the pieces are together as long as the payload, which was found to lie in the
        // ring.
        unsafe {
            memory.copy_to_local(piece.lkey, piece.addr, source, piece.length)?;
            source = source.add(piece.length as usize);
        }
    }
    Ok(())
}

/// Fills a record from the scatter-gather elements of a request, starting `offset` bytes into them.
/// The elements must contain that much.
pub(super) fn gather(
    memory: DomainView<'_>,
    sges: &[Sge],
    offset: u32,
    space: &RecordSpace,
) -> Result<(), Denied> {
    let mut target = space.payload();
    for piece in pieces(sges, offset, space.length()) {
        // SAFETY: the pieces are together as long as the space.
        unsafe {
            memory.copy_from_local(piece.lkey, piece.addr, target, piece.length)?;
            target = target.add(piece.length as usize);
        }
    }
    Ok(())
}

/// Fills a record with bytes from our own memory, such as inline data.
pub(super) fn fill(bytes: &[u8], space: &RecordSpace) {
    assert_eq!(bytes.len(), space.length() as usize);
    // SAFETY: the space is as long, and the ring's memory is behind no reference.
    unsafe { space.payload().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

/// The parts of the elements that `length` bytes from `offset` on occupy. Empty parts are left out,
/// so that their keys are not checked.
fn pieces(sges: &[Sge], offset: u32, length: u32) -> impl Iterator<Item = Sge> {
    let (mut skip, mut rest) = (offset, length);
    sges.iter().filter_map(move |sge| {
        let skipped = skip.min(sge.length);
        skip -= skipped;
        let length = rest.min(sge.length - skipped);
        rest -= length;
        let addr = sge.addr.wrapping_add(skipped.into());
        (length > 0).then_some(Sge { addr, length, lkey: sge.lkey })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(offset: u32, length: u32) -> Vec<(u64, u32)> {
        let sge = |addr, length| Sge { addr, length, lkey: 1 };
        let sges = [sge(1000, 10), sge(2000, 0), sge(3000, 5)];
        pieces(&sges, offset, length).map(|piece| (piece.addr, piece.length)).collect()
    }

    #[test]
    fn a_part_is_cut_where_the_elements_are() {
        assert_eq!(cut(0, 15), [(1000, 10), (3000, 5)]);
        assert_eq!(cut(0, 3), [(1000, 3)]);
        assert_eq!(cut(9, 3), [(1009, 1), (3000, 2)]);
        assert_eq!(cut(10, 5), [(3000, 5)]);
        assert_eq!(cut(14, 1), [(3004, 1)]);
        assert_eq!(cut(15, 0), []);
    }
}
