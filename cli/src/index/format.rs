//! Values of the option `--format` of `feedrail index`.

use clap::ValueEnum;
use feedrail_dataset::formats::ShardFormat;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatArg {
    /// The .bin of nanoGPT or llm.c
    Tokens,
    /// The .bin and .idx of Megatron
    Megatron,
    /// A tar archive of WebDataset
    Webdataset,
    /// An uncompressed shard of MosaicML
    Mds,
    /// Records of TensorFlow, without their frames
    Tfrecord,
    /// Tensors of Hugging Face
    Safetensors,
    /// An array of numpy
    Npy,
    /// Uncompressed arrays of numpy
    Npz,
    /// Apache Parquet: row groups
    Parquet,
}

impl From<FormatArg> for ShardFormat {
    fn from(format: FormatArg) -> Self {
        match format {
            FormatArg::Tokens => Self::Tokens,
            FormatArg::Megatron => Self::Megatron,
            FormatArg::Webdataset => Self::WebDataset,
            FormatArg::Mds => Self::Mds,
            FormatArg::Tfrecord => Self::TfRecord,
            FormatArg::Safetensors => Self::Safetensors,
            FormatArg::Npy => Self::Npy,
            FormatArg::Npz => Self::Npz,
            FormatArg::Parquet => Self::Parquet,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_formats() {
        for argument in FormatArg::value_variants() {
            let value = argument.to_possible_value().unwrap();
            assert_eq!(ShardFormat::from(*argument).name(), value.get_name());
        }
    }
}
