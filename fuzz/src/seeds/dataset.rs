//! Files of training data that the libraries wrote which own the formats, and texts.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use feedrail_fuzz::dataset::{shard, state};

use super::Seeds;

/// Files by name, with the number of their format, flags, and the number of the array.
const SHARDS: [(&str, [u8; 6]); 17] = [
    ("nanogpt.bin", [0, 1, 0, 0, 0, 0]),
    ("llmc-gpt2.bin", [0, 1, 0, 0, 0, 0]),
    ("llmc-llama3.bin", [0, 1, 0, 0, 0, 0]),
    ("megatron.bin", [1, 1, 0, 0, 0, 0]),
    ("modes.bin", [1, 1, 0, 0, 0, 0]),
    ("webdataset.tar", [2, 2, 0, 0, 0, 0]),
    ("gnu.tar", [2, 2, 0, 0, 0, 0]),
    ("pax.tar", [2, 2, 0, 0, 0, 0]),
    ("ustar.tar", [2, 3, 0, 0, 0, 0]),
    ("mds/shard.00000.mds", [3, 1, 0, 0, 0, 0]),
    ("records.tfrecord", [4, 3, 0, 0, 0, 0]),
    ("model.safetensors", [5, 1, 0, 0, 0, 0]),
    ("rows.npy", [6, 1, 0, 0, 0, 0]),
    ("rows-2.npy", [6, 0, 0, 0, 0, 0]),
    ("arrays.npz", [7, 1, 0, 0, 0, 1]),
    ("table.parquet", [8, 0, 0, 0, 0, 0]),
    ("mds/index.json", [9, 0, 0, 0, 0, 0]),
];

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../dataset/tests/data")
}

fn read(name: &str) -> Result<Vec<u8>> {
    let path = folder().join(name);
    fs::read(&path).with_context(|| path.display().to_string())
}

/// Each file behind its head, and without the zeros that pad an archive to 10 KiB.
pub(super) fn shards() -> Result<Seeds> {
    let mut seeds = Seeds::new();
    for (name, head) in SHARDS {
        let mut data = read(&format!("formats/{name}"))?;
        if name.ends_with(".tar") {
            let used = data.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
            data.truncate(used.next_multiple_of(512) + 1024);
        }
        let idx = match head[0] {
            1 => read(&format!("formats/{}", name.replace(".bin", ".idx")))?,
            _ => Vec::new(),
        };
        let mut input = head.to_vec();
        input[2..4].copy_from_slice(&(idx.len() as u16).to_le_bytes());
        input.resize(shard::HEAD_BYTES, 0);
        // Blocks of 16 tokens.
        (input[8], input[12]) = (16, 16);
        seeds.insert(name.replace('/', "-"), [input, idx, data].concat());
    }
    Ok(seeds)
}

/// Arrays whose headers are as those of an index, or nearly so.
pub(super) fn indexes() -> Result<Seeds> {
    let names = ["aligned", "bigendian", "none", "plain", "three", "three-v2", "twod"];
    names.iter().map(|name| Ok(((*name).to_owned(), read(&format!("npy/{name}.npy"))?))).collect()
}

/// One that Python wrote, and one with a name that has a mark, which was written as another name.
pub(super) fn manifests() -> Result<Seeds> {
    let python = String::from_utf8(read("manifest.json")?)?;
    let marked = python.replace("org.example:b", "org.example:b\u{6ed}");
    let seeds = [("of-python", python), ("mark-in-name", marked)];
    Ok(seeds.map(|(name, text)| (name.to_owned(), text.into_bytes())).into())
}

/// Places in the sequences of each order, and the state of a different one.
pub(super) fn states() -> Seeds {
    let orders = ["sequential", "global", "block:16:4", "torch"];
    let seed = |(number, order): (u8, &&str)| {
        let mut input = vec![number, number & 1, 0, 0, 16, 0, 4, 0];
        for word in [1000_u64, 7, 48, 3, 144] {
            input.extend(word.to_le_bytes());
        }
        input.extend([1, 0, 4, 0, 0, 0, 0, 0]);
        debug_assert_eq!(input.len(), state::HEAD_BYTES);
        let hash = feedrail_dataset::Blake3Hash::of(b"");
        input.extend(
            format!(
                r#"{{"v":1,"dataset":"{hash}","order":"{order}","seed":7,"epoch":3,"consumed":144,"global_batch":48}}"#
            )
            .bytes(),
        );
        (order.replace(':', "-"), input)
    };
    (0..).zip(&orders).map(seed).collect()
}

pub(super) fn urls() -> Seeds {
    [
        ("target", "nvmf://192.0.2.1:4421"),
        ("six", "nvmf://[2001:db8::2]/nqn.2026-01.org.example:a"),
        ("nsid", "nvmf://node-1.example.org/nqn.2026-01.org.example:a/12"),
        ("name", "nvmf://192.0.2.1/nqn.2026-01.org.example%2Fa/train/000%20%C3%A4.tar"),
        ("digits", "nvmf://192.0.2.1/nqn.2026-01.org.example:a/%3142"),
        ("path", "sub/index.npy"),
        ("order", "block:1024:64"),
        ("generation", "00000000000000ff"),
        ("crc32c", "9a71bb4c"),
        ("hash", "blake3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"),
    ]
    .map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()))
    .into()
}
