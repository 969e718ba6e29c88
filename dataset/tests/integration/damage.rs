//! Damaged shards: never a panic, never a sample that the whole shard does not have.

use feedrail_dataset::formats::{MdsIndex, Megatron, ShardBytes, ShardFormat, detect};
use proptest::prelude::*;

use super::fixture::{self, FIXTURES};

#[test]
fn a_truncated_shard_has_an_error_or_fewer_samples() {
    for (name, format, array) in FIXTURES {
        let (data, idx) = (fixture::read(name), fixture::idx(name, format));
        let options = fixture::options(array, true);
        let (whole, _) = fixture::samples(format, &data, idx.as_deref(), &options);
        for end in 0..data.len() {
            let (samples, error) = fixture::samples(format, &data[..end], idx.as_deref(), &options);
            assert!(whole.starts_with(&samples), "{name} cut at {end}: {samples:?}");
            // Arrays without a header, and records, are whole wherever one of their items ends;
            // tokens have a header if they begin with a magic of 4 bytes.
            let may_be_whole = matches!(name, "nanogpt.bin" | "records.tfrecord")
                || (format == ShardFormat::Tokens && end < 4);
            let is_known = error.is_some() || samples == whole;
            assert!(is_known || may_be_whole, "{name} cut at {end} is no error");
            if let Some(error) = error {
                assert!(error.offset <= data.len() as u64, "{name} cut at {end}: {error}");
            }
            let _ = detect(name, ShardBytes::new(0, &&data[..end]));
        }
    }
}

#[test]
fn a_truncated_index_of_megatron_is_an_error() {
    for name in ["megatron", "modes"] {
        let idx = fixture::read(&format!("{name}.idx"));
        let bin = fixture::read(&format!("{name}.bin"));
        let modes_at = if name == "modes" { idx.len() - 6 } else { idx.len() };
        for end in 0..idx.len() {
            let cut = &idx[..end];
            let set = Megatron::open(ShardBytes::new(0, &cut), ShardBytes::new(0, &bin));
            // Modes are the last part, and optional.
            assert_eq!(set.is_ok(), end == modes_at, "{name} cut at {end}");
        }
    }
}

#[test]
fn a_truncated_index_of_mds_is_an_error() {
    let index = fixture::read("mds/index.json");
    for end in 0..index.len() {
        assert!(MdsIndex::parse(ShardBytes::new(0, &&index[..end])).is_err(), "cut at {end}");
    }
}

fn check_inside(format: ShardFormat, data: &[u8], idx: Option<&[u8]>, array: Option<&str>) {
    let (samples, _) = fixture::samples(format, data, idx, &fixture::options(array, true));
    for found in samples {
        let end = found.sample.offset.get() + u64::from(found.sample.length.get());
        assert!(end <= data.len() as u64, "{found:?} of {} bytes", data.len());
        for member in &found.members {
            assert!(member.range.end() <= data.len() as u64, "{member:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn samples_of_a_changed_shard_lie_inside_it(
        fixture in 0..FIXTURES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        in_idx: bool,
    ) {
        let (name, format, array) = FIXTURES[fixture];
        let (mut data, mut idx) = (fixture::read(name), fixture::idx(name, format));
        let changed = if in_idx { idx.as_mut().unwrap_or(&mut data) } else { &mut data };
        for (at, byte) in changes {
            let at = at.index(changed.len());
            changed[at] = byte;
        }
        check_inside(format, &data, idx.as_deref(), array);
        let _ = detect(name, ShardBytes::new(0, &data));
    }

    #[test]
    fn bytes_of_another_format_cause_no_panic(
        fixture in 0..FIXTURES.len(), other in 0..FIXTURES.len(), swap in 0_usize..600,
    ) {
        let (name, format, array) = FIXTURES[fixture];
        let (other_name, ..) = FIXTURES[other];
        let (mut data, other) = (fixture::read(name), fixture::read(other_name));
        check_inside(format, &other, fixture::idx(name, format).as_deref(), array);
        let swap = swap.min(data.len()).min(other.len());
        data[..swap].copy_from_slice(&other[..swap]);
        check_inside(format, &data, fixture::idx(name, format).as_deref(), array);
    }
}
