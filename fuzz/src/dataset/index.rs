//! `index.npy`, as a whole and as a stream.

use std::io::Cursor;

use feedrail_dataset::Sample;
use feedrail_dataset::index::{Index, IndexWriter, check_reader};

use super::bounded;

/// The sizes of shards that samples are checked against.
const SHARD_BYTES: [u64; 3] = [0, 10_000, u64::MAX];

/// The bytes of a file: an index that is accepted has the samples that its length says, those that
/// pass the check lie in their shards, one that is written again has the same samples, and a stream
/// is judged as the whole file is.
pub fn run(data: &[u8]) {
    let streamed = bounded(data.len(), || check_reader(data, data.len() as u64, &SHARD_BYTES));
    let Ok(index) = bounded(data.len(), || Index::parse(data)) else {
        return assert!(streamed.is_err());
    };
    let samples = index.samples();
    assert_eq!(index.len(), samples.len() as u64);
    assert!(size_of_val(samples) <= data.len());
    match index.check(&SHARD_BYTES) {
        Ok(()) => {
            samples.iter().for_each(check_inside);
            assert_eq!(streamed.ok(), Some(index.len()));
        }
        Err(error) => {
            let streamed = streamed.expect_err("a sample lies elsewhere");
            assert_eq!(streamed.to_string(), error.to_string());
        }
    }
    let mut writer = IndexWriter::new(Cursor::new(Vec::new())).expect("memory");
    writer.append(samples).expect("memory");
    let written = writer.finish().expect("memory").into_inner();
    let again = Index::parse(&written).expect("an index was written");
    assert_eq!(again.samples(), samples);
}

fn check_inside(sample: &Sample) {
    let end = u128::from(sample.offset.get()) + u128::from(sample.length.get());
    assert!(end <= SHARD_BYTES[sample.shard.get() as usize].into(), "{sample:?}");
}
