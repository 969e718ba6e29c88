//! Indexes against files that NumPy wrote, and against any bytes.

use std::io::Cursor;

use proptest::prelude::*;
use zerocopy::FromBytes;

use super::*;
use crate::Sample;

/// Files of NumPy 2.4: `numpy.save`, and `numpy.lib.format.write_array` for later versions.
macro_rules! numpy_file {
    ($name:literal) => {
        include_bytes!(concat!("../../tests/data/npy/", $name, ".npy"))
    };
}

fn sample(shard: u32, length: u32, offset: u64, crc32c: u32) -> Sample {
    Sample {
        shard: shard.into(),
        length: length.into(),
        offset: offset.into(),
        crc32c: crc32c.into(),
    }
}

/// Records of three samples.
fn three() -> [Sample; 3] {
    [
        sample(0, 10, 0, 0),
        sample(1, 0, (1 << 40) + 1, 1),
        sample(u32::MAX, 2050, u64::MAX, 0xDEAD_BEEF),
    ]
}

fn written(samples: &[Sample]) -> Vec<u8> {
    let mut writer = IndexWriter::new(Cursor::new(Vec::new())).expect("memory");
    samples.chunks(2).for_each(|part| writer.append(part).expect("memory"));
    assert_eq!(writer.samples(), samples.len() as u64);
    writer.finish().expect("memory").into_inner()
}

fn error(file: &[u8]) -> Error {
    Index::parse(file).expect_err("not an index")
}

/// A file of version 1.0 with that dictionary and nothing after it.
fn with_dictionary(dictionary: &str) -> Vec<u8> {
    let length = (dictionary.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], dictionary.as_bytes()].concat()
}

const DESCR: &str = "[('shard', '<u4'), ('length', '<u4'), ('offset', '<u8'), ('crc32c', '<u4')]";

#[test]
fn files_of_numpy_are_read() {
    for file in
        [&numpy_file!("three")[..], &numpy_file!("three-v2")[..], &numpy_file!("three-v3")[..]]
    {
        let index = Index::parse(file).expect("numpy wrote it");
        assert_eq!((index.samples(), index.len(), index.is_empty()), (&three()[..], 3, false));
        assert_eq!(index.file(), file);
    }
    let none = Index::parse(numpy_file!("none")).expect("numpy wrote it");
    assert!(none.is_empty());
}

#[test]
fn a_stream_is_judged_as_the_file_is() {
    let many: Vec<Sample> = (0..10_000).map(|number| sample(0, 10, number, 0)).collect();
    let file = written(&many);
    let check =
        |file: &[u8], bytes| check_reader(file, bytes, &[10_010]).map_err(|e| e.to_string());
    let length = file.len() as u64;
    assert_eq!(check(&file, length), Ok(10_000));
    assert_eq!(
        check_reader(&file[..], length, &[10_008]).map_err(|e| e.to_string()).unwrap_err(),
        Index::parse(&file).expect("whole").check(&[10_008]).expect_err("too long").to_string()
    );
    assert_eq!(check(numpy_file!("none"), numpy_file!("none").len() as u64), Ok(0));
    // A file that ends early, or is too long, or that a header leads past.
    for end in [0, 7, 11, 40, 127, 128, 5000] {
        let expected = error(&file[..end]).to_string();
        assert_eq!(check(&file[..end], end as u64), Err(expected), "{end}");
    }
    assert!(check(&file[..5000], length).expect_err("shrank").contains("cannot be read"));
    let longer = [&file[..], &[0]].concat();
    assert!(check(&longer, length).expect_err("grew").contains("samples"));
    assert!(check(&longer, length + 1).is_err());
    let mut long_header = file.clone();
    long_header[6] = 2;
    long_header[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(check(&long_header, length).expect_err("cut").contains("cut off"));
}

#[test]
fn numpy_would_write_the_same() {
    assert_eq!(written(&three()), numpy_file!("three"));
    assert_eq!(written(&[]), numpy_file!("none"));
}

#[test]
fn other_arrays_of_numpy_are_refused() {
    assert_eq!(error(numpy_file!("bigendian")), Error::Dtype { offset: 21 });
    assert_eq!(error(numpy_file!("aligned")), Error::Dtype { offset: 96 });
    assert_eq!(error(numpy_file!("plain")), Error::Dtype { offset: 20 });
    assert_eq!(error(numpy_file!("twod")), Error::Shape { offset: 130 });
}

#[test]
fn damaged_files_are_refused() {
    let file = numpy_file!("three");
    assert_eq!(error(b"PK\x03\x04 a zip file"), Error::NotNpy);
    assert_eq!(error(&file[..5]), Error::NotNpy);
    assert_eq!(error(&file[..7]), Error::CutHeader { header_bytes: 8, bytes: 7 });
    assert_eq!(error(&file[..9]), Error::CutHeader { header_bytes: 10, bytes: 9 });
    assert_eq!(error(&file[..191]), Error::CutHeader { header_bytes: 192, bytes: 191 });
    assert_eq!(error(&file[..251]), Error::Length { samples: 3, bytes: 59 });
    assert!(matches!(error(&[&file[..], &[0]].concat()), Error::Table { .. }));
    let mut other = *file;
    other[6] = 4;
    assert_eq!(error(&other), Error::Version { major: 4, minor: 0 });
}

#[test]
fn dictionaries_are_read_as_python_reads_them() {
    let header = format!("{{\"shape\":( 0 , ),'fortran_order':False,'descr':{DESCR}}} \n");
    assert!(Index::parse(with_dictionary(&header)).expect("valid").is_empty());
}

#[test]
fn wrong_dictionaries_are_refused() {
    let header = |text: String| error(&with_dictionary(&text));
    let at = |offset, expected| Error::Header { offset, expected };
    let fortran = format!("{{'descr': {DESCR}, 'fortran_order': True, 'shape': (0,), }}\n");
    assert_eq!(header(fortran), Error::FortranOrder);
    assert_eq!(header(String::new()), at(10, "{"));
    assert_eq!(header("{'a\\'': 1}".into()), at(11, "a string without backslashes"));
    assert_eq!(header("{'shape".into()), at(11, "a string without backslashes"));
    assert_eq!(header("{3: 4}".into()), at(11, "a string"));
    assert_eq!(header("{'fortran_order': 0}".into()), at(28, "True or False"));
    assert_eq!(header("{'other': 1}".into()), at(19, "after one of descr, fortran_order, shape"));
    let twice = "{'fortran_order': False, 'fortran_order': False}".to_owned();
    assert_eq!(header(twice), at(51, "after one of descr, fortran_order, shape"));
    let lacking = "{'fortran_order': False, 'shape': (0,)}".to_owned();
    assert_eq!(header(lacking), at(49, "after all of descr, fortran_order, shape"));
    let rest = format!("{{'descr': {DESCR}, 'fortran_order': False, 'shape': (0,), }} 1");
    assert!(matches!(header(rest), Error::Header { expected: "the end of the header", .. }));
    for shape in ["()", "(3)", "3", "(-1,)", "(18446744073709551616,)", "(1, 2)"] {
        assert_eq!(header(format!("{{'shape': {shape}}}")), Error::Shape { offset: 20 }, "{shape}");
    }
}

#[test]
fn a_length_that_overflows_is_refused() {
    let samples = u64::MAX;
    let header = format!("{{'descr': {DESCR}, 'fortran_order': False, 'shape': ({samples},), }}\n");
    assert_eq!(error(&with_dictionary(&header)), Error::Length { samples, bytes: 0 });
}

#[test]
fn the_shards_follow_the_records_and_numpy_passes_over_them() {
    let shard = |name: &str, bytes, samples| IndexShard {
        samples,
        ..IndexShard::new(name.parse().expect("a name"), bytes)
    };
    let table = ShardTable::new(vec![shard("a.tar", 10, 1), shard("b.tar", 5, 2)]);
    let mut writer = IndexWriter::new(Cursor::new(Vec::new())).expect("memory");
    writer.append(&three()).expect("memory");
    let file = writer.finish_with(&table).expect("memory").into_inner();
    assert!(file.starts_with(numpy_file!("three")));
    let index = Index::parse(&file).expect("whole");
    assert_eq!((index.samples(), index.shards()), (&three()[..], Some(&table)));
    let mut stream = Cursor::new(&file);
    assert_eq!(ShardTable::read(&mut stream).expect("whole"), Some(table));
    let old = ShardTable::read(Cursor::new(numpy_file!("three"))).expect("whole");
    assert_eq!(old, None);
    let length = file.len() as u64;
    let streamed = check_reader(&file[..], length, &[10, 5]).expect_err("shard 4294967295");
    let whole = index.check(&[10, 5]).expect_err("shard 4294967295");
    assert_eq!(streamed.to_string(), whole.to_string());
    let in_shards = written(&[sample(0, 1, 0, 0)]);
    let in_shards = [&in_shards[..], &file[252..]].concat();
    assert_eq!(check_reader(&in_shards[..], in_shards.len() as u64, &[10, 5]).ok(), Some(1));
    for end in 253..file.len() {
        assert!(matches!(error(&file[..end]), Error::Table { .. }), "{end}");
        assert!(ShardTable::read(Cursor::new(&file[..end])).is_err(), "{end}");
        let cut = check_reader(&in_shards[..end - 40], (end - 40) as u64, &[10, 5]);
        assert!(cut.is_err(), "{end}");
    }
}

#[test]
fn an_unfinished_index_is_none() {
    let mut file = Cursor::new(Vec::new());
    let mut writer = IndexWriter::new(&mut file).expect("memory");
    writer.append(&three()).expect("memory");
    assert_eq!(error(&file.into_inner()), Error::NotNpy);
}

#[test]
fn an_index_may_begin_within_a_file() {
    let mut file = Cursor::new(b"before".to_vec());
    file.set_position(6);
    let mut writer = IndexWriter::new(file).expect("memory");
    writer.append(&three()).expect("memory");
    let file = writer.finish().expect("memory");
    assert_eq!(file.position(), file.get_ref().len() as u64);
    let index = Index::parse(&file.get_ref()[6..]).expect("whole");
    assert_eq!(index.samples(), three());
}

#[test]
fn samples_lie_in_their_shards() {
    let file = written(&[sample(0, 10, 90, 0), sample(1, 0, 5, 0), sample(0, 1, 100, 0)]);
    let index = Index::parse(&file[..]).expect("whole");
    assert_eq!(index.check(&[101, 5]), Ok(()));
    let past_end = Error::PastEnd { sample: 2, shard: 0, offset: 100, length: 1, shard_bytes: 100 };
    assert_eq!(index.check(&[100, 5]), Err(past_end));
    assert_eq!(index.check(&[101]), Err(Error::NoShard { sample: 1, shard: 1, shards: 1 }));
    let part = check_samples(&index.samples()[1..], 1, &[0, 4]);
    let past_end = Error::PastEnd { sample: 1, shard: 1, offset: 5, length: 0, shard_bytes: 4 };
    assert_eq!(part, Err(past_end));
    let overflow = [sample(0, 2, u64::MAX, 0)];
    assert!(check_samples(&overflow, 0, &[u64::MAX]).is_err());
}

proptest! {
    #[test]
    fn what_is_written_is_read(records: Vec<[u8; 20]>) {
        let samples: Vec<Sample> =
            records.iter().filter_map(|record| Sample::read_from_bytes(record).ok()).collect();
        let file = written(&samples);
        let index = Index::parse(file).expect("just written");
        prop_assert_eq!(index.samples(), samples);
    }

    #[test]
    fn no_bytes_cause_a_panic(bytes: Vec<u8>, shard_bytes: Vec<u64>) {
        let _ = Index::parse(&bytes);
        let file = [&numpy_file!("three")[..10], &bytes].concat();
        let _ = Index::parse(file);
        let with_length = with_dictionary(&String::from_utf8_lossy(&bytes));
        let _ = Index::parse(with_length);
        if let Ok(samples) = <[Sample]>::ref_from_bytes(&bytes[..bytes.len() / 20 * 20]) {
            let _ = check_samples(samples, u64::MAX, &shard_bytes);
        }
    }

    #[test]
    fn no_damage_causes_a_panic(at in 0..252_usize, byte: u8, cut in 0..=252_usize) {
        let mut file = *numpy_file!("three");
        file[at] = byte;
        for file in [&file[..], &file[..cut]] {
            if let Ok(index) = Index::parse(file) {
                prop_assert_eq!(index.len(), 3);
            }
        }
    }
}
