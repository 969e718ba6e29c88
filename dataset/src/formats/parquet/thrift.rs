//! Parser of the parts of Thrift's compact protocol that a Parquet footer needs.

/// Maximum nesting of structures and lists that are skipped; those of a footer have at most 6
/// levels.
const MAX_DEPTH: usize = 32;

/// Error: bytes that are not valid in the compact protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ThriftError {
    #[error("its end in the middle of a value")]
    Truncated,
    #[error("a varint of more than 64 bits")]
    Varint,
    #[error("a value of type {0}")]
    Kind(u8),
    #[error("structures nested too deeply")]
    Depth,
}

/// Type codes of the compact protocol.
mod kind {
    pub(super) const TRUE: u8 = 1;
    pub(super) const FALSE: u8 = 2;
    pub(super) const BYTE: u8 = 3;
    pub(super) const I16: u8 = 4;
    pub(super) const I64: u8 = 6;
    pub(super) const DOUBLE: u8 = 7;
    pub(super) const BINARY: u8 = 8;
    pub(super) const LIST: u8 = 9;
    pub(super) const SET: u8 = 10;
    pub(super) const MAP: u8 = 11;
    pub(super) const STRUCT: u8 = 12;
    pub(super) const UUID: u8 = 13;
}

/// Number and type code of a field, whose value comes next.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThriftField {
    pub(super) id: i16,
    kind: u8,
}

/// One level of nested values that remain to be skipped.
enum Level {
    /// Fields of a structure, up to its end.
    Struct,
    /// A number of values of one type.
    Values { left: usize, kind: u8 },
    /// A number of key-value pairs of a map.
    Pairs { left: usize, key: u8, value: u8 },
}

/// Parser of a value of the compact protocol.
pub(super) struct Compact<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Compact<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// Number of bytes that have been read.
    pub(super) fn position(&self) -> u64 {
        self.position as u64
    }

    /// Returns the next field of a structure, or `None` at its end. `last` is the number of the
    /// previous field.
    pub(super) fn field(&mut self, last: &mut i16) -> Result<Option<ThriftField>, ThriftError> {
        let byte = self.byte()?;
        if byte == 0 {
            return Ok(None);
        }
        let id = match byte >> 4 {
            0 => self.zigzag()? as i16,
            delta => last.wrapping_add(delta.into()),
        };
        *last = id;
        Ok(Some(ThriftField { id, kind: byte & 15 }))
    }

    /// Returns the number of structures or binaries in a list. It is bounded by the bytes that are
    /// left, since each has at least one.
    pub(super) fn list(&mut self, field: ThriftField) -> Result<usize, ThriftError> {
        expect(field, kind::LIST)?;
        let (length, _) = self.list_header()?;
        Ok(length)
    }

    pub(super) fn structure(field: ThriftField) -> Result<(), ThriftError> {
        expect(field, kind::STRUCT)
    }

    pub(super) fn integer(&mut self, field: ThriftField) -> Result<i64, ThriftError> {
        match field.kind {
            kind::I16..=kind::I64 => self.zigzag(),
            other => Err(ThriftError::Kind(other)),
        }
    }

    pub(super) fn binary(&mut self) -> Result<&'a [u8], ThriftError> {
        let length = usize::try_from(self.varint()?).map_err(|_| ThriftError::Truncated)?;
        self.take(length)
    }

    /// Skips the value of a field, without recursion.
    pub(super) fn skip(&mut self, field: ThriftField) -> Result<(), ThriftError> {
        // The type code of a boolean field contains its value.
        if matches!(field.kind, kind::TRUE | kind::FALSE) {
            return Ok(());
        }
        let mut levels = vec![Level::Values { left: 1, kind: field.kind }];
        while let Some(level) = levels.last_mut() {
            let next = match level {
                Level::Struct => {
                    // Field numbers do not matter when skipping.
                    let field = self.field(&mut 0)?;
                    let boolean = |kind| matches!(kind, kind::TRUE | kind::FALSE);
                    field.map(|field| (!boolean(field.kind)).then_some(field.kind))
                }
                Level::Values { left: 0, .. } | Level::Pairs { left: 0, .. } => None,
                Level::Values { left, kind } => {
                    *left -= 1;
                    Some(Some(*kind))
                }
                Level::Pairs { left, key, value } => {
                    let (key_kind, value_kind) = (*key, *value);
                    // The kinds are swapped, so that key and value are skipped in turn: a pair
                    // counts as two values.
                    *level = Level::Pairs { left: *left - 1, key: value_kind, value: key_kind };
                    Some(Some(key_kind))
                }
            };
            match next {
                None => _ = levels.pop(),
                Some(None) => {}
                Some(Some(kind)) => levels.extend(self.skip_flat(kind)?),
            }
            if levels.len() > MAX_DEPTH {
                return Err(ThriftError::Depth);
            }
        }
        Ok(())
    }

    /// Skips a value; a structure, list or map is returned for the caller to skip its contents.
    fn skip_flat(&mut self, kind: u8) -> Result<Option<Level>, ThriftError> {
        match kind {
            kind::TRUE | kind::FALSE | kind::BYTE => _ = self.byte()?,
            kind::I16..=kind::I64 => _ = self.varint()?,
            kind::DOUBLE => _ = self.take(8)?,
            kind::UUID => _ = self.take(16)?,
            kind::BINARY => _ = self.binary()?,
            kind::STRUCT => return Ok(Some(Level::Struct)),
            kind::LIST | kind::SET => {
                let (left, kind) = self.list_header()?;
                return Ok(Some(Level::Values { left, kind }));
            }
            kind::MAP => return self.map_header().map(Some),
            other => return Err(ThriftError::Kind(other)),
        }
        Ok(None)
    }

    fn list_header(&mut self) -> Result<(usize, u8), ThriftError> {
        let byte = self.byte()?;
        let length = match byte >> 4 {
            15 => self.varint()?,
            length => length.into(),
        };
        // A value has at least one byte.
        Ok((self.fits(length)?, byte & 15))
    }

    fn map_header(&mut self) -> Result<Level, ThriftError> {
        let pairs = self.varint()?;
        if pairs == 0 {
            return Ok(Level::Values { left: 0, kind: 0 });
        }
        let kinds = self.byte()?;
        let left = self.fits(pairs.saturating_mul(2))?;
        Ok(Level::Pairs { left, key: kinds >> 4, value: kinds & 15 })
    }

    fn fits(&self, values: u64) -> Result<usize, ThriftError> {
        let left = self.bytes.len() - self.position;
        usize::try_from(values).ok().filter(|values| *values <= left).ok_or(ThriftError::Truncated)
    }

    fn byte(&mut self) -> Result<u8, ThriftError> {
        Ok(self.take(1)?[0])
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], ThriftError> {
        let taken = self.bytes[self.position..].get(..length).ok_or(ThriftError::Truncated)?;
        self.position += length;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, ThriftError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if bits << shift >> shift != bits {
                return Err(ThriftError::Varint);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ThriftError::Varint)
    }

    fn zigzag(&mut self) -> Result<i64, ThriftError> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }
}

fn expect(field: ThriftField, kind: u8) -> Result<(), ThriftError> {
    if field.kind == kind { Ok(()) } else { Err(ThriftError::Kind(field.kind)) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn integers_are_zigzag_varints() {
        for (bytes, expected) in [
            (&[0][..], Ok(0)),
            (&[1], Ok(-1)),
            (&[2], Ok(1)),
            (&[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1], Ok(i64::MIN)),
            (&[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2], Err(ThriftError::Varint)),
            (&[0x80], Err(ThriftError::Truncated)),
        ] {
            assert_eq!(Compact::new(bytes).zigzag(), expected);
        }
    }

    #[test]
    fn a_map_is_skipped_pair_by_pair() {
        // Two pairs of a binary and an i32, then a byte that is not theirs.
        let bytes = [2, 0x85, 1, b'a', 2, 1, b'b', 4, 99];
        let mut compact = Compact::new(&bytes);
        compact.skip(ThriftField { id: 1, kind: kind::MAP }).unwrap();
        assert_eq!(compact.position(), 8);
    }

    proptest! {
        #[test]
        fn skipping_ends(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0_u8..16) {
            let _ = Compact::new(&bytes).skip(ThriftField { id: 1, kind });
        }
    }
}
