//! Data types of array items.

use core::fmt;
use core::str::FromStr;

/// Data type of numbers, named as in numpy. All are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// Unsigned, 8 bits wide.
    U8,
    /// Signed, 8 bits wide.
    I8,
    /// Unsigned, 16 bits wide.
    U16,
    /// Signed, 16 bits wide.
    I16,
    /// Unsigned, 32 bits wide.
    U32,
    /// Signed, 32 bits wide.
    I32,
    /// Unsigned, 64 bits wide.
    U64,
    /// Signed, 64 bits wide.
    I64,
    /// Binary floating point, 32 bits wide.
    F32,
    /// Binary floating point, 64 bits wide.
    F64,
}

/// Error: a text is not the name of a [`Dtype`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a dtype is uint8, int8, uint16, int16, uint32, int32, uint64, int64, float32 or float64")]
pub struct DtypeError;

impl Dtype {
    const ALL: [Self; 10] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::U64,
        Self::I64,
        Self::F32,
        Self::F64,
    ];

    /// Bytes of an item: 1, 2, 4 or 8.
    pub fn item_bytes(self) -> u32 {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Name of the data type in numpy, such as `uint16`.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::I8 => "int8",
            Self::U16 => "uint16",
            Self::I16 => "int16",
            Self::U32 => "uint32",
            Self::I32 => "int32",
            Self::U64 => "uint64",
            Self::I64 => "int64",
            Self::F32 => "float32",
            Self::F64 => "float64",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Dtype {
    type Err = DtypeError;

    fn from_str(text: &str) -> Result<Self, DtypeError> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == text).ok_or(DtypeError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for dtype in Dtype::ALL {
            assert_eq!(dtype.to_string().parse(), Ok(dtype));
        }
        assert_eq!("uint128".parse::<Dtype>(), Err(DtypeError));
    }
}
