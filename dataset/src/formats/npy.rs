//! npy: a file with one numpy array (`numpy.lib.format`).
//!
//! It consists of a header (magic, version, header length, a Python dictionary of `descr`,
//! `fortran_order` and `shape`) and the items.

use super::error::{FormatError, FormatProblem, printable};
use super::shard::{ByteRange, ShardBytes};

/// First bytes of an npy file.
pub(super) const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Longest header of version 1. By default numpy reads at most 10,000 bytes.
const MAX_HEADER_BYTES: u64 = 0xFFFF;

/// Array whose rows, along the first axis, are samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Npy {
    /// Data type of an item as numpy writes it, such as `<f4`.
    pub descr: String,
    /// Length of each axis. An array without axes has one row.
    pub shape: Vec<u64>,
    items: ByteRange,
    row_bytes: u64,
    rows: u64,
}

impl Npy {
    /// Reads the header of an array that begins at the start of `range` and ends within it.
    ///
    /// # Errors
    /// The header is not valid, the array is longer than the range, its items are objects or
    /// structures, or its rows are not contiguous.
    pub fn open(shard: ShardBytes<'_>, range: ByteRange) -> Result<Self, FormatError> {
        let (text_at, length) = header_text(shard, range)?;
        let truncated = |offset, length| {
            let problem =
                FormatProblem::Truncated { expected: "an array", length, end: range.end() };
            shard.error(offset, problem)
        };
        let text = range
            .part(text_at, length)
            .ok_or_else(|| truncated(range.offset() + text_at, length))?;
        let bytes = shard.bytes(text, MAX_HEADER_BYTES, "a header of npy")?;
        let header = NpyDictionary::parse(&bytes)
            .ok_or_else(|| shard.unexpected(text.offset(), "a header of npy", shown(&bytes)))?;
        let problem = |problem| shard.error(text.offset(), problem);
        let (rows, row_bytes) = header.rows().map_err(problem)?;
        let begin = text_at + length;
        let bytes = rows.saturating_mul(row_bytes);
        let items = range.part(begin, bytes);
        let items = items.ok_or_else(|| truncated(range.offset() + begin, bytes))?;
        Ok(Self { descr: header.descr, shape: header.shape, items, row_bytes, rows })
    }

    /// Byte range of all items of the array.
    pub fn items(&self) -> ByteRange {
        self.items
    }

    /// Number of rows, which is the length of the first axis.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes of each row.
    pub fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// Byte range of a row; `None` if the array has no row of this number.
    pub fn row(&self, number: u64) -> Option<ByteRange> {
        let inside = number < self.rows;
        inside.then(|| self.items.part(number * self.row_bytes, self.row_bytes)).flatten()
    }
}

/// Returns the offset in the shard and the length of the header's dictionary.
fn header_text(shard: ShardBytes<'_>, range: ByteRange) -> Result<(u64, u64), FormatError> {
    let begin = shard.array::<12>(range.offset(), "a header of npy")?;
    if !begin.starts_with(MAGIC) {
        return Err(shard.unexpected(range.offset(), "the magic of npy", shown(&begin[..6])));
    }
    match begin[6] {
        1 => Ok((10, u16::from_le_bytes([begin[8], begin[9]]).into())),
        2 | 3 => Ok((12, u32::from_le_bytes([begin[8], begin[9], begin[10], begin[11]]).into())),
        version => Err(shard.unexpected(range.offset() + 6, "version 1, 2 or 3", version)),
    }
}

fn shown(bytes: &[u8]) -> impl ToString {
    bytes[..bytes.len().min(80)].escape_ascii()
}

/// Dictionary in the header.
#[derive(Debug, PartialEq, Eq)]
struct NpyDictionary {
    descr: String,
    fortran_order: bool,
    shape: Vec<u64>,
}

impl NpyDictionary {
    fn parse(text: &[u8]) -> Option<Self> {
        let mut rest = Literal(str::from_utf8(text).ok()?.trim());
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        rest.token("{")?;
        while rest.token("}").is_none() {
            let key = rest.string()?;
            rest.token(":")?;
            match key {
                "descr" => descr = Some(rest.descr()?),
                "fortran_order" => fortran_order = Some(rest.boolean()?),
                "shape" => shape = Some(rest.tuple()?),
                _ => return None,
            }
            if rest.token(",").is_none() {
                rest.token("}")?;
                break;
            }
        }
        let complete = rest.0.is_empty();
        complete.then_some(Self { descr: descr?, fortran_order: fortran_order?, shape: shape? })
    }

    /// Returns the number of rows, and the bytes of each.
    fn rows(&self) -> Result<(u64, u64), FormatProblem> {
        let item_bytes = self.item_bytes()?;
        let (rows, axes) =
            self.shape.split_first().map_or((1, &[][..]), |(rows, axes)| (*rows, axes));
        let longer_axes = self.shape.iter().filter(|axis| **axis != 1).count();
        if self.fortran_order && longer_axes > 1 {
            return Err(FormatProblem::Unsupported {
                what: "an array in Fortran order".to_owned(),
                remedy: "save numpy.ascontiguousarray(array)",
            });
        }
        let row_bytes = axes.iter().try_fold(item_bytes, |bytes, axis| bytes.checked_mul(*axis));
        match row_bytes {
            Some(0) => Err(FormatProblem::unexpected("rows of one byte or more", "rows of none")),
            Some(row_bytes) => Ok((rows, row_bytes)),
            None => Err(FormatProblem::unexpected("a shape that fits 64 bits", "a larger one")),
        }
    }

    fn item_bytes(&self) -> Result<u64, FormatProblem> {
        let unsupported = || FormatProblem::Unsupported {
            what: format!("an array of dtype {}", printable(&self.descr)),
            remedy: "save an array of numbers, or each field of a structure as an array",
        };
        // The unit of a time, as in `<M8[ns]`, does not affect the length.
        let plain = self.descr.split('[').next().unwrap_or_default();
        let plain = plain.strip_prefix(['<', '>', '|', '=']).unwrap_or(plain);
        let kind = plain.chars().next().filter(|kind| "?biufcmMSUV".contains(*kind));
        let kind = kind.ok_or_else(unsupported)?;
        let count: u64 = match &plain[1..] {
            "" if kind == '?' => 1,
            digits => digits.parse().map_err(|_| unsupported())?,
        };
        let character_bytes = if kind == 'U' { 4 } else { 1 };
        count.checked_mul(character_bytes).ok_or_else(unsupported)
    }
}

/// Part of a Python literal that is not yet parsed.
struct Literal<'a>(&'a str);

impl<'a> Literal<'a> {
    fn token(&mut self, token: &str) -> Option<()> {
        self.0 = self.0.strip_prefix(token)?.trim_start();
        Some(())
    }

    fn string(&mut self) -> Option<&'a str> {
        let quote = self.0.chars().next().filter(|quote| ['\'', '"'].contains(quote))?;
        let (string, rest) = self.0[1..].split_once(quote)?;
        self.0 = rest.trim_start();
        (!string.contains('\\')).then_some(string)
    }

    /// Parses a string. A list of fields is returned as text, unparsed.
    fn descr(&mut self) -> Option<String> {
        if !self.0.starts_with('[') {
            return self.string().map(str::to_owned);
        }
        // No other value of the dictionary contains a square bracket.
        let (list, rest) = self.0.split_at(self.0.rfind(']')? + 1);
        self.0 = rest.trim_start();
        Some(list.to_owned())
    }

    fn boolean(&mut self) -> Option<bool> {
        self.token("True").map(|()| true).or_else(|| self.token("False").map(|()| false))
    }

    fn tuple(&mut self) -> Option<Vec<u64>> {
        let mut numbers = Vec::new();
        self.token("(")?;
        while self.token(")").is_none() {
            let digits = self.0.find(|letter: char| !letter.is_ascii_digit())?;
            numbers.push(self.0[..digits].parse().ok()?);
            self.0 = self.0[digits..].trim_start();
            if self.token(",").is_none() {
                self.token(")")?;
                break;
            }
        }
        Some(numbers)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn npy(header: &str, items: usize) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + items, 7);
        bytes
    }

    fn open(header: &str, items: usize) -> Result<Npy, FormatError> {
        let bytes = npy(header, items);
        let shard = ShardBytes::new(0, &bytes);
        Npy::open(shard, shard.whole())
    }

    fn array(descr: &str, shape: &str, items: usize) -> Result<Npy, FormatError> {
        open(&format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"), items)
    }

    #[test]
    fn rows_are_the_first_axis() {
        for (descr, shape, rows, row_bytes) in [
            ("'<f4'", "(3, 4)", 3, 16),
            ("'|u1'", "(5,)", 5, 1),
            ("'<U3'", "(2, 2)", 2, 24),
            ("'?'", "()", 1, 1),
            ("'<M8[ns]'", "(2,)", 2, 8),
            ("'>i2'", "(0, 9)", 0, 18),
        ] {
            let npy = array(descr, shape, (rows * row_bytes) as usize).unwrap();
            assert_eq!((npy.rows(), npy.row_bytes()), (rows, row_bytes), "{descr} {shape}");
            assert_eq!(npy.row(rows), None);
        }
    }

    #[test]
    fn what_has_no_rows_is_an_error_that_says_why() {
        for (descr, shape, why) in [
            ("'|O'", "(1,)", "dtype |O"),
            ("'\0\x1b'", "(1,)", "dtype \\u{0}\\u{1b}"),
            ("[('a', '<i4'), ('b', '<f4')]", "(1,)", "structure"),
            ("'<f4'", "(9223372036854775807, 4)", "18446744073709551615 bytes of an array"),
            ("'<f4'", "(3, 18446744073709551615)", "64 bits"),
            ("'<f4'", "(3, 18446744073709551616)", "header of npy"),
            ("'<f4'", "(1152921504606846976, 0)", "rows of none"),
            ("'<f4'", "(3, 4, 5)", "240 bytes of an array"),
            ("'<f4'", "(-1,)", "header of npy"),
            ("'<f4", "(1,)", "header of npy"),
        ] {
            let error = array(descr, shape, 4).unwrap_err().to_string();
            assert!(error.contains(why), "{descr} {shape}: {error}");
        }
        let fortran = "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2)}";
        assert!(open(fortran, 16).unwrap_err().to_string().contains("ascontiguousarray"));
        open(&fortran.replace("(2, 2)", "(4,)"), 16).unwrap();
    }

    #[test]
    fn a_header_length_that_lies_is_an_error() {
        let mut bytes = npy("{}", 100);
        bytes[6] = 2;
        bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        let shard = ShardBytes::new(0, &bytes);
        Npy::open(shard, shard.whole()).unwrap_err();
    }

    proptest! {
        #[test]
        fn any_header_is_parsed_or_refused(header in "[{}()\\[\\],:'\" a-z0-9<]{0,60}") {
            let _ = NpyDictionary::parse(header.as_bytes());
        }
    }
}
