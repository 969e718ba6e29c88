//! Which format a shard has.

use super::error::{FormatError, FormatProblem};
use super::mds::Mds;
use super::shard::ShardBytes;
use super::tokens::Tokens;
use super::{ShardFormat, megatron, npy, parquet, tfrecord};

/// Enough for the magic of tar.
const FIRST_BYTES: u64 = 512;

/// Finds the format of a shard by its first bytes, and by its name where they do not tell.
///
/// `name` is that of a file or of a namespace. Files of tokens without a header are known by the
/// ending `.bin` alone.
///
/// # Errors
/// The shard is compressed, or has no format that is known here, or cannot be read.
pub fn detect(name: &str, shard: ShardBytes<'_>) -> Result<ShardFormat, FormatError> {
    let mut first = vec![0; shard.whole().length().min(FIRST_BYTES) as usize];
    shard.read(0, &mut first, "a shard")?;
    if let Some(compression) = compression(&first) {
        let what = format!("a shard compressed by {compression}");
        let remedy = "decompress it first";
        return Err(shard.error(0, FormatProblem::Unsupported { what, remedy }));
    }
    let format = by_magic(&first).or_else(|| by_name(name));
    let format = format.or_else(|| Mds::is_one(shard).then_some(ShardFormat::Mds));
    format.ok_or_else(|| {
        let found = first[..first.len().min(16)].escape_ascii();
        shard.unexpected(0, "a known format, or to be told which it is", found)
    })
}

fn compression(first: &[u8]) -> Option<&'static str> {
    let magics: [(&[u8], &str); 5] = [
        (&[0x1F, 0x8B], "gzip"),
        (&[0x28, 0xB5, 0x2F, 0xFD], "zstd"),
        (&[0xFD, b'7', b'z', b'X', b'Z', 0], "xz"),
        (b"BZh", "bzip2"),
        (&[0x04, 0x22, 0x4D, 0x18], "lz4"),
    ];
    magics.into_iter().find(|(magic, _)| first.starts_with(magic)).map(|(_, name)| name)
}

fn by_magic(first: &[u8]) -> Option<ShardFormat> {
    let magics: [(&[u8], ShardFormat); 5] = [
        (megatron::MAGIC, ShardFormat::Megatron),
        (npy::MAGIC, ShardFormat::Npy),
        (b"PK\x03\x04", ShardFormat::Npz),
        (b"PK\x05\x06", ShardFormat::Npz),
        (parquet::MAGIC, ShardFormat::Parquet),
    ];
    let magic = magics.into_iter().find(|(magic, _)| first.starts_with(magic));
    if let Some((_, format)) = magic {
        return Some(format);
    }
    if first.get(257..262) == Some(b"ustar") {
        return Some(ShardFormat::WebDataset);
    }
    if Tokens::is_llm_c(first) {
        return Some(ShardFormat::Tokens);
    }
    tfrecord::is_header(first).then_some(ShardFormat::TfRecord)
}

fn by_name(name: &str) -> Option<ShardFormat> {
    let endings = [
        (".safetensors", ShardFormat::Safetensors),
        (".tar", ShardFormat::WebDataset),
        (".mds", ShardFormat::Mds),
        (".bin", ShardFormat::Tokens),
    ];
    endings.into_iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, format)| format)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_without_magic_is_known_by_its_name() {
        for (name, expected) in [
            ("train.bin", ShardFormat::Tokens),
            ("a.tar", ShardFormat::WebDataset),
            ("model.safetensors", ShardFormat::Safetensors),
            ("shard.00000.mds", ShardFormat::Mds),
        ] {
            let found = detect(name, ShardBytes::new(0, &vec![7; 100]));
            assert_eq!(found.unwrap(), expected, "{name}");
        }
        let error = detect("readme.txt", ShardBytes::new(4, &b"text".to_vec())).unwrap_err();
        assert_eq!((error.shard, error.offset), (4, 0));
        detect("empty", ShardBytes::new(0, &Vec::new())).unwrap_err();
    }

    #[test]
    fn a_compressed_shard_is_an_error_that_names_the_compression() {
        let error = detect("a.tar", ShardBytes::new(0, &vec![0x1F, 0x8B, 8])).unwrap_err();
        assert!(error.to_string().contains("gzip"), "{error}");
    }
}
