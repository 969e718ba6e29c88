//! safetensors: tensors, and a JSON header with their positions.

use safetensors::tensor::{Metadata, TensorInfo};

use super::error::FormatError;
use super::shard::{ByteRange, ShardBytes};

/// Maximum header length that the format permits.
const MAX_HEADER_BYTES: u64 = 100_000_000;
const LENGTH_BYTES: u64 = 8;

/// Header of a safetensors file.
#[derive(Debug)]
pub struct SafetensorsHeader<'a> {
    shard: ShardBytes<'a>,
    metadata: Metadata,
    /// Offset in the shard of the first tensor's bytes.
    begin: u64,
}

/// Tensor in a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorRange {
    /// Name of the tensor in the file.
    pub name: String,
    /// Data type of its items as the format names it, such as `F32` or `BF16`.
    pub dtype: String,
    /// Length of each axis; empty for a scalar.
    pub shape: Vec<usize>,
    /// Byte range of the tensor in the shard.
    pub range: ByteRange,
}

impl<'a> SafetensorsHeader<'a> {
    /// Reads the header only.
    ///
    /// # Errors
    /// The header is not valid, tensors overlap or leave gaps, or the file has not the length that
    /// the header requires.
    pub fn open(shard: ShardBytes<'a>) -> Result<Self, FormatError> {
        let length = u64::from_le_bytes(shard.array(0, "the length of a header")?);
        let text = shard.range(LENGTH_BYTES, length, "a header of safetensors")?;
        let text_bytes = shard.bytes(text, MAX_HEADER_BYTES, "a header of safetensors")?;
        // Checks that dtypes and shapes match the offsets, and that offsets leave no gaps.
        let metadata: Metadata = serde_json::from_slice(&text_bytes)
            .map_err(|error| shard.unexpected(text.offset(), "a header of safetensors", error))?;
        let tensors = shard.range(text.end(), metadata.data_len() as u64, "tensors")?;
        if tensors.end() != shard.whole().end() {
            let found = format!("{} bytes more", shard.whole().end() - tensors.end());
            return Err(shard.unexpected(tensors.end(), "the end of the tensors", found));
        }
        Ok(Self { shard, metadata, begin: text.end() })
    }

    /// Returns the tensors in the order of their bytes.
    pub fn tensors(&self) -> impl Iterator<Item = Result<TensorRange, FormatError>> {
        let names = self.metadata.offset_keys().into_iter();
        names.filter_map(|name| {
            self.metadata.info(&name).map(|info| self.tensor(name.clone(), info))
        })
    }

    fn tensor(&self, name: String, info: &TensorInfo) -> Result<TensorRange, FormatError> {
        let (begin, end) = info.data_offsets;
        // `open` has checked that all tensors lie within the shard.
        let (offset, length) = (self.begin + begin as u64, (end - begin) as u64);
        let range = self.shard.range(offset, length, "a tensor")?;
        Ok(TensorRange { name, dtype: info.dtype.to_string(), shape: info.shape.clone(), range })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data_bytes: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data_bytes, 0);
        bytes
    }

    #[test]
    fn a_header_that_lies_is_an_error() {
        let tensor = |shape: &str, offsets: &str| {
            format!(r#"{{"a": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}}}"#)
        };
        for (header, data_bytes) in [
            (tensor("[2]", "[0, 8]"), 7),
            (tensor("[2]", "[0, 8]"), 9),
            (tensor("[2]", "[0, 12]"), 12),
            (tensor("[2]", "[8, 0]"), 8),
            (tensor("[2]", "[4, 12]"), 12),
            (tensor("[4611686018427387904, 4]", "[0, 0]"), 0),
            (tensor("[2]", "[0, 18446744073709551615]"), 8),
            ("[".repeat(50_000), 0),
        ] {
            let bytes = file(&header, data_bytes);
            assert!(SafetensorsHeader::open(ShardBytes::new(0, &bytes)).is_err(), "{header:.99}");
        }
    }

    #[test]
    fn a_header_length_that_lies_is_an_error_and_no_allocation() {
        for length in [1 << 63, u64::MAX, 100] {
            let bytes = u64::to_le_bytes(length).to_vec();
            let error = SafetensorsHeader::open(ShardBytes::new(0, &bytes)).unwrap_err();
            assert_eq!(error.offset, 8);
        }
    }
}
