//! Samples are where the libraries that own the formats read them.

use feedrail_dataset::formats::{
    FormatProblem, KeyedSample, MdsIndex, Megatron, ReadAt as _, SafetensorsHeader, ShardBytes,
    ShardFile, ShardFormat, Tokens, detect, row_groups,
};
use serde_json::Value;

use super::fixture::{self, FIXTURES};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn part(data: &[u8], offset: u64, length: u64) -> &[u8] {
    &data[offset as usize..(offset + length) as usize]
}

fn expected(name: &str) -> Vec<Value> {
    serde_json::from_slice(&fixture::read(&format!("{name}.json"))).unwrap()
}

#[track_caller]
fn check_sample(data: &[u8], found: &KeyedSample, expected: &Value) {
    let bytes = part(data, found.sample.offset.get(), found.sample.length.get().into());
    assert_eq!(found.key.as_deref(), expected["key"].as_str());
    if let Some(expected) = expected["data"].as_str() {
        assert_eq!(hex(bytes), expected);
    }
    assert_eq!(found.sample.crc32c.get(), crc32c::crc32c(bytes));
    let members = expected["members"].as_array().unwrap();
    assert_eq!(found.members.len(), members.len());
    for (found, expected) in found.members.iter().zip(members) {
        assert_eq!(found.name, expected[0].as_str().unwrap());
        let (offset, length) = (found.range.offset(), found.range.length());
        match expected[1].as_str() {
            Some(bytes) => assert_eq!(hex(part(data, offset, length)), bytes),
            None => assert_eq!([offset, length], [1, 2].map(|at| expected[at].as_u64().unwrap())),
        }
    }
}

#[test]
fn samples_are_those_of_the_library() {
    for (name, format, array) in FIXTURES {
        if name == "compressed.npz" {
            continue;
        }
        let (data, idx) = (fixture::read(name), fixture::idx(name, format));
        let options = fixture::options(array, true);
        let (samples, error) = fixture::samples(format, &data, idx.as_deref(), &options);
        assert!(error.is_none(), "{name}: {error:?}");
        let expected = expected(&array.map_or(name.to_owned(), |array| format!("{name}.{array}")));
        assert_eq!(samples.len(), expected.len(), "{name}");
        assert!(!samples.is_empty(), "{name}");
        for (found, expected) in samples.iter().zip(&expected) {
            assert_eq!(found.sample.shard.get(), 5);
            check_sample(&data, found, expected);
        }
    }
}

#[test]
fn the_format_is_detected() {
    for (name, expected, _) in FIXTURES {
        let data = fixture::read(name);
        // A `.bin` of Megatron is known by the `.idx` beside it.
        let found = detect(name, ShardBytes::new(0, &data)).unwrap();
        let is_megatron = expected == ShardFormat::Megatron;
        assert_eq!(found, if is_megatron { ShardFormat::Tokens } else { expected }, "{name}");
        let named = matches!(name, "nanogpt.bin" | "model.safetensors") || is_megatron;
        let found = detect("namespace", ShardBytes::new(0, &data));
        assert_eq!(found.ok(), (!named).then_some(expected), "{name}");
    }
    let idx = fixture::read("megatron.idx");
    assert_eq!(detect("a", ShardBytes::new(0, &idx)).unwrap(), ShardFormat::Megatron);
}

#[test]
fn a_compressed_array_or_shard_is_refused() {
    let data = fixture::read("compressed.npz");
    let options = fixture::options(None, false);
    let (_, error) = fixture::samples(ShardFormat::Npz, &data, None, &options);
    let problem = error.unwrap().problem;
    assert!(matches!(problem, FormatProblem::Unsupported { .. }), "{problem}");
    let data = fixture::read("mds-zstd/shard.00000.mds.zstd");
    let problem = detect("a.mds.zstd", ShardBytes::new(0, &data)).unwrap_err().problem;
    assert!(problem.to_string().contains("zstd"), "{problem}");
    let index = fixture::read("mds-zstd/index.json");
    let problem = MdsIndex::parse(ShardBytes::new(0, &index)).unwrap_err().problem;
    assert!(matches!(problem, FormatProblem::Unsupported { .. }), "{problem}");
}

#[test]
fn the_index_of_mds_names_its_shards_and_columns() {
    let index = fixture::read("mds/index.json");
    let index = MdsIndex::parse(ShardBytes::new(0, &index)).unwrap();
    assert_eq!(index.shards.len(), 2);
    for shard in &index.shards {
        let name = format!("mds/{}", shard.basename);
        assert_eq!(fixture::read(&name).len() as u64, shard.bytes);
        assert_eq!(expected(&name).len() as u32, shard.samples);
    }
    let columns = index.shards[0].columns.iter();
    let columns = columns.map(|column| (&*column.name, &*column.encoding, column.size));
    let expected = [("id", "int", Some(8)), ("image", "bytes", None), ("text", "str", None)];
    assert_eq!(columns.collect::<Vec<_>>(), expected);
}

#[test]
fn documents_and_modes_of_megatron_are_known() {
    for (name, has_modes) in [("megatron", false), ("modes", true)] {
        let idx = fixture::read(&format!("{name}.idx"));
        let bin = fixture::read(&format!("{name}.bin"));
        let set = Megatron::open(ShardBytes::new(0, &idx), ShardBytes::new(0, &bin)).unwrap();
        let documents: Vec<u64> = set.documents().map(Result::unwrap).collect();
        let expected = fixture::read(&format!("{name}.documents.json"));
        assert_eq!(documents, serde_json::from_slice::<Vec<u64>>(&expected).unwrap());
        let modes = set.modes().map(|modes| part(&idx, modes.offset(), modes.length()));
        assert_eq!(modes, has_modes.then_some(&[0, 1, 0, 1, 0, 1][..]));
    }
}

#[test]
fn tensors_have_their_types_and_shapes() {
    let data = fixture::read("model.safetensors");
    let header = SafetensorsHeader::open(ShardBytes::new(0, &data)).unwrap();
    let mut tensors: Vec<_> = header.tensors().map(Result::unwrap).collect();
    tensors.sort_by(|one, other| one.name.cmp(&other.name));
    let tensors: Vec<_> =
        tensors.iter().map(|tensor| (&*tensor.name, &*tensor.dtype, &*tensor.shape)).collect();
    let expected: [(&str, &str, &[usize]); 4] = [
        ("bias", "F64", &[5]),
        ("empty", "F16", &[0, 4]),
        ("scalar", "I8", &[]),
        ("weight", "F32", &[3, 4]),
    ];
    assert_eq!(tensors, expected);
}

#[test]
fn row_groups_have_their_rows() {
    let data = fixture::read("table.parquet");
    let groups = row_groups(ShardBytes::new(0, &data)).unwrap();
    assert_eq!(groups.iter().map(|group| group.rows).collect::<Vec<_>>(), [40, 40, 20]);
}

#[test]
fn a_file_is_read_as_its_bytes_are() {
    let file = std::fs::File::open(fixture::path("llmc-llama3.bin")).unwrap();
    let file = ShardFile::new(file).unwrap();
    assert_eq!(file.len(), fixture::read("llmc-llama3.bin").len() as u64);
    let blocks = fixture::options(None, false).blocks;
    let tokens = Tokens::open(ShardBytes::new(0, &file), None, blocks).unwrap();
    assert_eq!((tokens.tokens(), tokens.header_bytes(), tokens.sample_bytes()), (301, 1024, 68));
    assert_eq!(tokens.dtype().name(), "uint32");
}
