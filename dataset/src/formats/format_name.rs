//! Names of formats on command lines and in Python.

use core::fmt;
use core::str::FromStr;

use super::ShardFormat;

/// Error: a text is not the name of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a format is tokens, megatron, webdataset, mds, tfrecord, safetensors, npy, npz or parquet"
)]
pub struct UnknownFormat;

impl ShardFormat {
    const ALL: [Self; 9] = [
        Self::Tokens,
        Self::Megatron,
        Self::WebDataset,
        Self::Mds,
        Self::TfRecord,
        Self::Safetensors,
        Self::Npy,
        Self::Npz,
        Self::Parquet,
    ];

    /// Name of the format in lower case, as the error of [`UnknownFormat`] lists them.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Megatron => "megatron",
            Self::WebDataset => "webdataset",
            Self::Mds => "mds",
            Self::TfRecord => "tfrecord",
            Self::Safetensors => "safetensors",
            Self::Npy => "npy",
            Self::Npz => "npz",
            Self::Parquet => "parquet",
        }
    }
}

impl fmt::Display for ShardFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for ShardFormat {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        Self::ALL.into_iter().find(|format| format.name() == text).ok_or(UnknownFormat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for format in ShardFormat::ALL {
            assert_eq!(format.to_string().parse(), Ok(format));
            assert!(UnknownFormat.to_string().contains(format.name()));
        }
        assert_eq!("tar".parse::<ShardFormat>(), Err(UnknownFormat));
    }
}
