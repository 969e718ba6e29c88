//! Parses and writes headers of NumPy arrays.

use super::Error;
use super::literal::Literals;

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// Fields of an index record and their data types.
const FIELDS: [(&str, &str); 4] =
    [("shard", "<u4"), ("length", "<u4"), ("offset", "<u8"), ("crc32c", "<u4")];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArrayHeader {
    /// Number of samples, which is the length of the array.
    pub(super) samples: u64,
    /// Offset in the file of the first record, in bytes.
    pub(super) data_offset: usize,
}

impl ArrayHeader {
    /// Parses the header at the start of a file.
    ///
    /// # Errors
    /// The first difference from the header of an index. See [`Error`].
    pub(super) fn parse(file: &[u8]) -> Result<Self, Error> {
        let (begin, data_offset) = extent(file)?;
        let mut literals = Literals::new(file, begin, data_offset);
        let samples = dictionary(&mut literals)?;
        literals.finish()?;
        Ok(Self { samples, data_offset })
    }
}

/// Returns the offsets of the start and the end of the dictionary.
fn extent(file: &[u8]) -> Result<(usize, usize), Error> {
    let cut = |header_bytes| Error::CutHeader { header_bytes, bytes: file.len() as u64 };
    let (magic, rest) = file.split_first_chunk::<6>().ok_or(Error::NotNpy)?;
    if magic != MAGIC {
        return Err(Error::NotNpy);
    }
    let (&[major, minor], rest) = rest.split_first_chunk().ok_or(cut(8))?;
    let (begin, length) = match (major, minor) {
        (1, 0) => {
            let (length, _) = rest.split_first_chunk().ok_or(cut(10))?;
            (10, u32::from(u16::from_le_bytes(*length)))
        }
        (2 | 3, 0) => {
            let (length, _) = rest.split_first_chunk().ok_or(cut(12))?;
            (12, u32::from_le_bytes(*length))
        }
        _ => return Err(Error::Version { major, minor }),
    };
    let end = begin as u64 + u64::from(length);
    let is_whole = end <= file.len() as u64;
    if is_whole { Ok((begin, end as usize)) } else { Err(cut(end)) }
}

/// Parses the dictionary and returns the length of the array. The format requires its three keys,
/// in any order.
fn dictionary(literals: &mut Literals) -> Result<u64, Error> {
    let (mut has_descr, mut has_order, mut samples) = (false, false, None);
    literals.expect("{")?;
    while !literals.take("}") {
        let key = literals.string()?;
        literals.expect(":")?;
        match key {
            b"descr" if !has_descr => has_descr = descr(literals).map(|()| true)?,
            b"fortran_order" if !has_order => has_order = c_order(literals).map(|()| true)?,
            b"shape" if samples.is_none() => samples = Some(shape(literals)?),
            _ => return Err(literals.expected("after one of descr, fortran_order, shape")),
        }
        if !literals.take(",") {
            literals.expect("}")?;
            break;
        }
    }
    let samples = samples.filter(|_| has_descr && has_order);
    samples.ok_or_else(|| literals.expected("after all of descr, fortran_order, shape"))
}

/// Parses the fields of a record, which must be those of an index.
fn descr(literals: &mut Literals) -> Result<(), Error> {
    let mut fields = FIELDS.iter();
    if !literals.take("[") {
        return Err(Error::Dtype { offset: literals.offset() });
    }
    while !literals.take("]") {
        let offset = literals.offset();
        let expected = fields.next().ok_or(Error::Dtype { offset })?;
        field(literals, expected).map_err(|_| Error::Dtype { offset })?;
        if !literals.take(",") {
            literals.expect("]")?;
            break;
        }
    }
    let is_whole = fields.next().is_none();
    if is_whole { Ok(()) } else { Err(Error::Dtype { offset: literals.offset() }) }
}

/// Parses one field, as in `('shard', '<u4')`.
fn field(literals: &mut Literals, &(name, dtype): &(&str, &str)) -> Result<(), Error> {
    literals.expect("(")?;
    let found_name = literals.string()?;
    literals.expect(",")?;
    let found_dtype = literals.string()?;
    literals.expect(")")?;
    let is_expected = found_name == name.as_bytes() && found_dtype == dtype.as_bytes();
    if is_expected { Ok(()) } else { Err(literals.expected("after another field")) }
}

fn c_order(literals: &mut Literals) -> Result<(), Error> {
    if literals.boolean()? { Err(Error::FortranOrder) } else { Ok(()) }
}

/// Parses a shape with one axis, as in `(3,)`.
fn shape(literals: &mut Literals) -> Result<u64, Error> {
    let offset = literals.offset();
    let mut axis = || {
        literals.expect("(")?;
        let samples = literals.number()?;
        literals.expect(",")?;
        literals.expect(")").map(|()| samples)
    };
    axis().map_err(|_: Error| Error::Shape { offset })
}

/// Returns the header (version 1.0) of an index with this many samples. All such headers have the
/// same length.
pub(super) fn header_bytes(samples: u64) -> Vec<u8> {
    let fields = FIELDS.map(|(name, dtype)| format!("('{name}', '{dtype}')")).join(", ");
    array_header(&format!("[{fields}]"), samples)
}

/// Returns the header (version 1.0) of an array with one axis. Like NumPy, it leaves room for a
/// length of 21 digits and pads the header to a multiple of 64 bytes.
pub(super) fn array_header(descr: &str, length: u64) -> Vec<u8> {
    let room = 21 - length.to_string().len();
    let dictionary =
        format!("{{'descr': {descr}, 'fortran_order': False, 'shape': ({length},), }}{:room$}", "");
    let length = (MAGIC.len() + 4 + dictionary.len() + 1).next_multiple_of(64) - 10;
    let mut header = Vec::with_capacity(10 + length);
    header.extend_from_slice(MAGIC);
    header.extend_from_slice(&[1, 0]);
    header.extend_from_slice(&(length as u16).to_le_bytes());
    header.extend_from_slice(dictionary.as_bytes());
    header.resize(10 + length - 1, b' ');
    header.push(b'\n');
    header
}
