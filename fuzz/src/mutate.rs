//! New inputs out of old ones.

use splitmix64::SplitMix64;

/// Values at the borders of a field, and others that code often gets wrong.
const BORDERS: [u64; 16] = [
    0,
    1,
    2,
    3,
    0x0F,
    0x3F,
    0x7F,
    0x80,
    0xFF,
    0x0FFF,
    0x1000,
    0x7FFF,
    0xFFFF,
    0x00FF_FFFF,
    0x7FFF_FFFF,
    u64::MAX,
];

/// The most changes of one mutation.
const CHANGES_MAX: usize = 12;

/// Makes an input out of `corpus` by a few changes.
///
/// Inputs are sequences of records of `record_bytes`. About half of the changes are made to whole
/// records, so that a sequence of operations stays one; the others are made to bytes and to fields.
pub fn mutate(
    corpus: &[Vec<u8>],
    record_bytes: usize,
    limit_bytes: usize,
    random: &mut SplitMix64,
) -> Vec<u8> {
    let mut input = match corpus.len() {
        0 => Vec::new(),
        count => corpus[random.index(count)].clone(),
    };
    for _ in 0..=random.index(CHANGES_MAX) {
        if input.is_empty() || random.index(2) == 0 {
            change_records(&mut input, corpus, record_bytes, random);
        } else {
            change_bytes(&mut input, random);
        }
    }
    input.truncate(limit_bytes);
    input
}

/// Repeats, removes, swaps, makes up or borrows records.
fn change_records(
    input: &mut Vec<u8>,
    corpus: &[Vec<u8>],
    record_bytes: usize,
    random: &mut SplitMix64,
) {
    let count = input.len() / record_bytes;
    let at = random.index(count + 1) * record_bytes;
    let some = |random: &mut SplitMix64| (1 + random.index(4)) * record_bytes;
    match random.index(6) {
        0 => {
            let end = (at + some(random)).min(input.len());
            let repeated = input[at..end].to_vec();
            let to = random.index(count + 1) * record_bytes;
            input.splice(to..to, repeated);
        }
        1 => {
            let end = (at + some(random)).min(input.len());
            input.drain(at..end);
        }
        2 if count >= 2 => {
            let other = random.index(count) * record_bytes;
            let at = random.index(count) * record_bytes;
            for offset in 0..record_bytes {
                input.swap(at + offset, other + offset);
            }
        }
        3 => {
            let made: Vec<u8> = (0..some(random)).map(|_| random.next_u64() as u8).collect();
            input.splice(at..at, made);
        }
        4 => input.truncate(at + random.index(record_bytes)),
        _ => {
            let Some(donor) = corpus.get(random.index(corpus.len().max(1))) else { return };
            let from = random.index(donor.len() / record_bytes + 1) * record_bytes;
            let end = (from + 4 * some(random)).min(donor.len());
            input.splice(at..at, donor[from.min(end)..end].iter().copied());
        }
    }
}

/// Flips a bit, or overwrites a byte or a field of up to eight.
fn change_bytes(input: &mut [u8], random: &mut SplitMix64) {
    let at = random.index(input.len());
    match random.index(4) {
        0 => input[at] ^= 1 << random.index(8),
        1 => input[at] = random.next_u64() as u8,
        2 => input[at] = input[at].wrapping_add((random.index(9) as u8).wrapping_sub(4)),
        _ => {
            let value = BORDERS[random.index(BORDERS.len())];
            let width = (1 << random.index(4)).min(input.len() - at);
            let (little, big) = (value.to_le_bytes(), value.to_be_bytes());
            let bytes = if random.index(2) == 0 { &little[..width] } else { &big[8 - width..] };
            input[at..at + width].copy_from_slice(bytes);
        }
    }
}
