//! Orders against those of torch itself.

use super::*;
use crate::Blake3Hash;

/// Output of torch 2.15's `DistributedSampler`: a line for each length, seed, epoch, world, rank,
/// and so on, with the first 16 samples and the BLAKE3 of all as little-endian 64-bit numbers.
const SAMPLERS: &str = include_str!("../../../tests/data/torch-sampler.txt");

#[test]
fn it_is_the_order_of_distributed_sampler() {
    let lines = SAMPLERS.lines().filter(|line| !line.starts_with('#'));
    let compared = lines.inspect(|line| compare(line)).count();
    assert_eq!(compared, 672);
}

fn compare(line: &str) {
    let fields: Vec<&str> = line.split(' ').collect();
    let [numbers @ .., first, hash] = &fields[..] else { panic!("{line}") };
    let numbers = numbers.iter().map(|field| field.parse().expect("a number"));
    let numbers: Vec<u64> = numbers.collect();
    let [samples, seed, epoch, world, rank, is_shuffled, drops_last, count] = numbers[..] else {
        panic!("{line}")
    };
    let shuffle = if is_shuffled == 1 { Shuffle::Torch } else { Shuffle::Sequential };
    let order = order(shuffle, samples, seed, epoch);
    let rank = Stripe::new(rank as u32, world as u32).expect("a rank");
    let leftover = if drops_last == 1 { Leftover::Drop } else { Leftover::Pad };
    let split = Split { samples, rank, leftover };
    assert_eq!(split.len(), count, "{line}");
    let sample = |i| order.sample(split.position(i).expect("below count")).expect("in the epoch");
    let found: Vec<u64> = (0..count).map(sample).collect();
    let texts: Vec<String> = found.iter().take(16).map(u64::to_string).collect();
    assert_eq!(texts.join(","), first.trim_matches('-'), "{line}");
    let bytes: Vec<u8> = found.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    let expected = format!("blake3:{hash}");
    assert_eq!(Blake3Hash::of(&bytes).to_string(), expected, "{line}");
}

/// Output of `torch.randperm` with a generator of seed 7 for lengths where torch changes its
/// algorithm: the first 16 numbers, and the last 3.
const LONG: [(u64, [u64; 16], [u64; 3]); 3] = [
    (
        214_748_363,
        [
            112993252, 117420445, 128500308, 81485129, 164966415, 121216550, 100782295, 23987082,
            120214251, 34414646, 165338638, 59574882, 4812510, 157811880, 94708927, 83203161,
        ],
        [89039895, 181297428, 34850603],
    ),
    (
        214_748_364,
        [
            93268064, 63068233, 165770247, 155513421, 157420379, 198105859, 53976284, 200632439,
            158936074, 63026960, 155073203, 159387101, 45718688, 51638599, 111694387, 53615918,
        ],
        [205120279, 143705087, 187216702],
    ),
    (
        214_748_365,
        [
            93268064, 63068233, 165770247, 155513421, 157420379, 198105859, 53976284, 200632439,
            158936074, 63026960, 155073203, 159387101, 45718688, 51638599, 111694387, 53615918,
        ],
        [143705087, 187216702, 52911944],
    ),
];

#[test]
#[ignore = "needs 0.9 GB of memory and more than a minute"]
fn long_orders_are_those_of_randperm() {
    for (samples, first, last) in LONG {
        let order = order(Shuffle::Torch, samples, 7, 0);
        let mut found = [0; 16];
        order.fill(0, &mut found);
        assert_eq!(found, first, "{samples}");
        let mut found = [0; 3];
        order.fill(samples - 3, &mut found);
        assert_eq!(found, last, "{samples}");
    }
}
