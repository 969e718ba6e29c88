//! Indexed data sets of Megatron: sequences of tokens in `NAME.bin`, and their positions in
//! `NAME.idx`.
//!
//! The index has a header of 34 bytes (magic, version 1, code of the token's type, numbers of
//! sequences and of document boundaries), then each sequence's length in tokens (32 bits), each
//! sequence's first byte (64 bits), the document boundaries (64 bits), and in some data sets one
//! byte for the mode of each sequence.

use super::dtype::Dtype;
use super::error::FormatError;
use super::shard::{ByteRange, ShardBytes, ShardWindow, until_error};

/// First bytes of an index file.
pub(super) const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
const HEADER_BYTES: u64 = 34;

/// Indexed data set of Megatron.
#[derive(Clone, Copy, Debug)]
pub struct Megatron<'a> {
    idx: ShardBytes<'a>,
    bin: ShardBytes<'a>,
    dtype: Dtype,
    sequences: u64,
    lengths: ByteRange,
    pointers: ByteRange,
    documents: ByteRange,
    modes: Option<ByteRange>,
}

impl<'a> Megatron<'a> {
    /// Reads the header of the index and checks the sizes of its tables.
    ///
    /// # Errors
    /// The index has another magic, version or type, or its length does not match its header.
    pub fn open(idx: ShardBytes<'a>, bin: ShardBytes<'a>) -> Result<Self, FormatError> {
        let header = idx.array::<{ HEADER_BYTES as usize }>(0, "a header of Megatron's index")?;
        if !header.starts_with(MAGIC) {
            let found = header[..9].escape_ascii();
            return Err(idx.unexpected(0, "the magic MMIDIDX of Megatron's index", found));
        }
        let version = word(&header, 9);
        if version != 1 {
            return Err(idx.unexpected(9, "version 1 of Megatron's index", version));
        }
        let dtype = dtype(header[17]);
        let dtype = dtype.ok_or_else(|| idx.unexpected(17, "a dtype from 1 to 8", header[17]))?;
        let (sequences, boundaries) = (word(&header, 18), word(&header, 26));
        let table = |offset, count: u64, item_bytes, expected| {
            idx.range(offset, count.saturating_mul(item_bytes), expected)
        };
        let lengths = table(HEADER_BYTES, sequences, 4, "sequence lengths")?;
        let pointers = table(lengths.end(), sequences, 8, "sequence pointers")?;
        let documents = table(pointers.end(), boundaries, 8, "document boundaries")?;
        let modes = idx.range(documents.end(), idx.whole().end() - documents.end(), "modes")?;
        if modes.length() != 0 && modes.length() != sequences {
            let found = format!("{} bytes for {sequences} sequences", modes.length());
            return Err(idx.unexpected(modes.offset(), "the end, or one mode a sequence", found));
        }
        let modes = (modes.length() > 0).then_some(modes);
        Ok(Self { idx, bin, dtype, sequences, lengths, pointers, documents, modes })
    }

    /// Data type of the tokens.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Number of sequences in the data set.
    pub fn sequences(&self) -> u64 {
        self.sequences
    }

    /// Returns the byte range of each sequence in the `.bin`, in order.
    pub fn ranges(&self) -> impl Iterator<Item = Result<ByteRange, FormatError>> + use<'a> {
        let this = *self;
        let (mut lengths, mut pointers) = (ShardWindow::new(self.idx), ShardWindow::new(self.idx));
        let mut number = 0;
        until_error(move || {
            if number == this.sequences {
                return Ok(None);
            }
            let length = lengths.array(this.lengths.offset() + 4 * number, "a length")?;
            let pointer = pointers.array(this.pointers.offset() + 8 * number, "a pointer")?;
            number += 1;
            this.range(number - 1, i32::from_le_bytes(length), i64::from_le_bytes(pointer))
                .map(Some)
        })
    }

    fn range(&self, number: u64, length: i32, pointer: i64) -> Result<ByteRange, FormatError> {
        let at = self.lengths.offset() + 4 * number;
        let tokens = u64::try_from(length)
            .map_err(|_| self.idx.unexpected(at, "a length of 0 tokens or more", length))?;
        let at = self.pointers.offset() + 8 * number;
        let offset = u64::try_from(pointer)
            .map_err(|_| self.idx.unexpected(at, "a pointer of 0 or more", pointer))?;
        let length = tokens * u64::from(self.dtype.item_bytes());
        self.bin.range(offset, length, "a sequence that the index names")
    }

    /// Returns the number of the first sequence of each document, and at the end the number of
    /// sequences.
    pub fn documents(&self) -> impl Iterator<Item = Result<u64, FormatError>> + use<'a> {
        let this = *self;
        let mut window = ShardWindow::new(self.idx);
        let (mut at, mut least) = (self.documents.offset(), 0);
        until_error(move || {
            if at == this.documents.end() {
                return Ok(None);
            }
            let boundary = u64::from_le_bytes(window.array(at, "a document boundary")?);
            if !(least..=this.sequences).contains(&boundary) {
                let expected = "document boundaries that rise up to the number of sequences";
                return Err(this.idx.unexpected(at, expected, boundary));
            }
            at += 8;
            least = boundary;
            Ok(Some(boundary))
        })
    }

    /// Byte range in the index of the modes of all sequences, one byte each. `None` unless the data
    /// set is multimodal.
    pub fn modes(&self) -> Option<ByteRange> {
        self.modes
    }
}

fn word(header: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"))
}

/// Element type for a code of Megatron's `DType`.
fn dtype(code: u8) -> Option<Dtype> {
    Some(match code {
        1 => Dtype::U8,
        2 => Dtype::I8,
        3 => Dtype::I16,
        4 => Dtype::I32,
        5 => Dtype::I64,
        6 => Dtype::F64,
        7 => Dtype::F32,
        8 => Dtype::U16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::ReadAt;
    use super::*;

    fn index(code: u8, sequences: u64, boundaries: u64, tables: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(1_u64.to_le_bytes());
        bytes.push(code);
        bytes.extend(sequences.to_le_bytes());
        bytes.extend(boundaries.to_le_bytes());
        bytes.extend(tables);
        bytes
    }

    fn open<'a>(idx: &'a dyn ReadAt, bin: &'a dyn ReadAt) -> Result<Megatron<'a>, FormatError> {
        Megatron::open(ShardBytes::new(0, idx), ShardBytes::new(0, bin))
    }

    #[test]
    fn counts_that_lie_are_errors() {
        let bin = vec![0; 100];
        for (sequences, boundaries) in
            [(u64::MAX, 0), (1 << 63, 1), (0, 1 << 63), (1 << 61, 1 << 61), (1, 0), (0, 1)]
        {
            let idx = index(8, sequences, boundaries, &[]);
            let error = open(&idx, &bin).unwrap_err();
            assert!((34..=46).contains(&error.offset), "{error}");
        }
        open(&index(9, 0, 0, &[]), &bin).unwrap_err();
        open(&index(8, 0, 0, &[0]), &bin).unwrap_err();
    }

    fn one_sequence(length: i32, pointer: i64) -> Vec<u8> {
        index(8, 1, 0, &[&length.to_le_bytes()[..], &pointer.to_le_bytes()].concat())
    }

    #[test]
    fn a_sequence_outside_the_tokens_is_an_error() {
        let bin = vec![0; 100];
        for (length, pointer) in [(-1, 0), (51, 0), (50, 1), (1, -1), (1, i64::MAX), (0, 101)] {
            let idx = one_sequence(length, pointer);
            let ranges: Vec<_> = open(&idx, &bin).unwrap().ranges().collect();
            assert!(matches!(ranges[..], [Err(_)]), "{length} {pointer}: {ranges:?}");
        }
        let idx = one_sequence(50, 0);
        let range = open(&idx, &bin).unwrap().ranges().next().unwrap().unwrap();
        assert_eq!((range.offset(), range.length()), (0, 100));
    }

    #[test]
    fn document_boundaries_rise_and_end_at_the_sequences() {
        let bin = vec![0; 100];
        let boundaries = |list: [u64; 3]| {
            let mut tables = [[0; 12], [0; 12]].concat();
            tables.extend(list.iter().flat_map(|boundary| boundary.to_le_bytes()));
            let idx = index(8, 2, 3, &tables);
            open(&idx, &bin).unwrap().documents().collect::<Result<Vec<_>, _>>().ok()
        };
        assert_eq!(boundaries([0, 1, 2]), Some(vec![0, 1, 2]));
        assert_eq!(boundaries([0, 2, 1]), None);
        assert_eq!(boundaries([0, 1, 3]), None);
    }
}
