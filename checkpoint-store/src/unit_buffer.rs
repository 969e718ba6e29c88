//! Bytes of an entry that do not fill a unit yet.

use crate::error::StoreError;

/// Appends bytes to those of a unit in the making, and calls `write` with each unit that is full.
/// Units that `bytes` has as a whole are not copied. A unit whose write fails is dropped.
///
/// # Errors
/// The first error of `write`.
pub(crate) fn append(
    part: &mut Vec<u8>,
    unit_bytes: usize,
    mut bytes: &[u8],
    mut write: impl FnMut(&[u8]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at((unit_bytes - part.len()).min(bytes.len()));
        if head.len() == unit_bytes {
            write(head)?;
        } else {
            part.extend_from_slice(head);
        }
        if part.len() == unit_bytes {
            let result = write(part);
            part.clear();
            result?;
        }
        bytes = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_the_same_however_bytes_are_cut() {
        let bytes: Vec<u8> = (0..103).collect();
        for piece in 1..=bytes.len() {
            let (mut part, mut units) = (Vec::new(), Vec::new());
            for one in bytes.chunks(piece) {
                append(&mut part, 10, one, |unit| {
                    units.push(unit.to_vec());
                    Ok(())
                })
                .unwrap();
            }
            assert!(units.iter().all(|unit| unit.len() == 10), "pieces of {piece}");
            assert_eq!([units.concat(), part].concat(), bytes);
        }
    }

    #[test]
    fn a_unit_whose_write_fails_is_dropped() {
        let mut part = vec![0; 9];
        append(&mut part, 10, &[1, 2], |_| Err(StoreError::SaveLost)).unwrap_err();
        assert!(part.is_empty());
    }
}
