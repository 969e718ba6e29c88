//! Detects the format of a shard.

use super::error::{FormatError, FormatProblem};
use super::mds::Mds;
use super::shard::ShardBytes;
use super::tokens::Tokens;
use super::{ShardFormat, megatron, npy, parquet, tfrecord};

/// Bytes read from the start of a shard: the header block of tar has this length.
const FIRST_BYTES: u64 = 512;

/// Detects the format of a shard by its first bytes, or else by its name.
///
/// `name` is that of a file or a namespace. A file of tokens without a header is recognised only by
/// the extension `.bin`.
///
/// # Errors
/// The shard is compressed, has none of the formats of this crate, or cannot be read.
pub fn detect(name: &str, shard: ShardBytes<'_>) -> Result<ShardFormat, FormatError> {
    let mut first = vec![0; shard.whole().length().min(FIRST_BYTES) as usize];
    shard.read(0, &mut first, "a shard")?;
    if let Some(compression) = compression(&first) {
        let what = format!("a shard that begins with a header of {compression}");
        let remedy = "decompress it first; if it is not compressed, say which format it has, by \
            --format or format=";
        return Err(shard.error(0, FormatProblem::Unsupported { what, remedy }));
    }
    let format = by_magic(&first).or_else(|| by_name(name));
    let format = format.or_else(|| Mds::is_one(shard).then_some(ShardFormat::Mds));
    format.ok_or_else(|| {
        let found = first[..first.len().min(16)].escape_ascii();
        let expected = "the first bytes or the ending of the name of a known format, or to be told \
            which it is, by --format or format=";
        shard.unexpected(0, expected, format!("{found} in {name:?}"))
    })
}

/// Returns the compression whose header a shard begins with. Headers are compared whole, since
/// tokens or other numbers too often begin with a magic of two bytes.
fn compression(first: &[u8]) -> Option<&'static str> {
    let magics: [(&[u8], &str); 3] = [
        (&[0x28, 0xB5, 0x2F, 0xFD], "zstd"),
        (&[0xFD, b'7', b'z', b'X', b'Z', 0], "xz"),
        (&[0x04, 0x22, 0x4D, 0x18], "lz4"),
    ];
    let magic = magics.into_iter().find(|(magic, _)| first.starts_with(magic));
    magic.map(|(_, name)| name).or_else(|| match first {
        _ if is_gzip(first) => Some("gzip"),
        [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, 0x53, 0x59, ..] => Some("bzip2"),
        _ => None,
    })
}

/// Whether a shard begins with a gzip header (RFC 1952, 2.3): the method is deflate, the upper
/// flags are reserved, and extra flags and system have few values.
fn is_gzip(first: &[u8]) -> bool {
    match first {
        [0x1F, 0x8B, 8, flags, _, _, _, _, extra_flags, system, ..] => {
            flags & 0xE0 == 0 && matches!(extra_flags, 0 | 2 | 4) && matches!(system, 0..=13 | 255)
        }
        _ => false,
    }
}

fn by_magic(first: &[u8]) -> Option<ShardFormat> {
    let magics: [(&[u8], ShardFormat); 6] = [
        (megatron::MAGIC, ShardFormat::Megatron),
        (npy::MAGIC, ShardFormat::Npy),
        (b"PK\x03\x04", ShardFormat::Npz),
        (b"PK\x05\x06", ShardFormat::Npz),
        (parquet::MAGIC, ShardFormat::Parquet),
        (parquet::ENCRYPTED_MAGIC, ShardFormat::Parquet),
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
        let headers: [(&[u8], &str); 5] = [
            (&[0x1F, 0x8B, 8, 0, 1, 2, 3, 4, 0, 3], "gzip"),
            (b"BZh91AY&SY", "bzip2"),
            (&[0x28, 0xB5, 0x2F, 0xFD], "zstd"),
            (b"\xFD7zXZ\0", "xz"),
            (&[0x04, 0x22, 0x4D, 0x18], "lz4"),
        ];
        for (header, compression) in headers {
            let error = detect("a.tar", ShardBytes::new(0, &header.to_vec())).unwrap_err();
            let said = error.to_string();
            assert!(said.contains(compression) && said.contains("--format"), "{said}");
        }
    }

    #[test]
    fn tokens_that_begin_with_a_short_magic_are_tokens() {
        for first in [[35615, 8, 0, 0], [35615, 50008, 1, 2], [0x5A42, 104, 5, 6]] {
            let bytes: Vec<u8> = first.iter().flat_map(|token: &u16| token.to_le_bytes()).collect();
            let bytes = [&bytes[..], &[0xEE; 8]].concat();
            let found = detect("train.bin", ShardBytes::new(0, &bytes)).unwrap();
            assert_eq!(found, ShardFormat::Tokens, "{first:?}");
        }
    }

    #[test]
    fn an_unknown_shard_is_told_what_was_seen_and_which_option_decides() {
        let error = detect("a.arrow", ShardBytes::new(0, &b"ARROW1\0\0".to_vec())).unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains(r#"ARROW1\x00\x00 in "a.arrow""#) && said.contains("--format"),
            "{said}"
        );
    }
}
