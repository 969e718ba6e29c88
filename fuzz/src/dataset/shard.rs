//! Shards in every format that training data comes in.

use std::num::{NonZeroU32, NonZeroU64};

use feedrail_dataset::formats::{
    ByteRange, Dtype, FormatError, KeyedSample, MdsIndex, Megatron, SampleOptions, ShardBytes,
    ShardFormat, ShardSource, TokenBlocks, detect,
};

use super::bounded;
use crate::input::Input;

/// The formats by the first byte of the input; a byte beyond them stands for MDS's `index.json`.
pub const FORMATS: [ShardFormat; 9] = [
    ShardFormat::Tokens,
    ShardFormat::Megatron,
    ShardFormat::WebDataset,
    ShardFormat::Mds,
    ShardFormat::TfRecord,
    ShardFormat::Safetensors,
    ShardFormat::Npy,
    ShardFormat::Npz,
    ShardFormat::Parquet,
];

/// How many bytes come before those of the files.
pub const HEAD_BYTES: usize = 16;

/// Bit of the second byte: samples are read, and their checksums computed.
const CHECKSUM: u8 = 1;
/// Checksums of headers are made right, so that a mutation reaches what is behind them.
const REPAIR: u8 = 2;
/// The stride of tokens is 2^32 times as long.
const LONG_STRIDE: u8 = 4;
/// Tar archives are read on behind their end marks.
const IGNORE_ZEROS: u8 = 8;

/// The head of an input: which format, how it is read, and which part is the `.idx`.
struct ShardInput {
    format: Option<ShardFormat>,
    is_repaired: bool,
    idx_bytes: usize,
    options: SampleOptions,
}

impl ShardInput {
    fn read(input: &mut Input<'_>) -> Self {
        let format = FORMATS.get(input.choice(FORMATS.len() + 1)).copied();
        let flags = input.u8();
        let idx_bytes = input.u16().into();
        let dtypes = [None, Some(Dtype::U8), Some(Dtype::U16), Some(Dtype::U32), Some(Dtype::F64)];
        let dtype = dtypes[input.choice(dtypes.len())];
        let array = [None, Some("x"), Some("")][input.choice(3)].map(str::to_owned);
        input.u16();
        let block_size = NonZeroU32::new(input.u32()).unwrap_or(NonZeroU32::MIN);
        let scale = if flags & LONG_STRIDE == 0 { 0 } else { 32 };
        let stride = NonZeroU64::new(u64::from(input.u32()) << scale);
        let blocks = TokenBlocks { block_size, stride: stride.unwrap_or(NonZeroU64::MIN) };
        let (ignore_zeros, checksum) = (flags & IGNORE_ZEROS != 0, flags & CHECKSUM != 0);
        let options = SampleOptions { blocks, dtype, array, ignore_zeros, checksum };
        Self { format, is_repaired: flags & REPAIR != 0, idx_bytes, options }
    }
}

/// A head, then the bytes of an `.idx` and those of a shard: samples lie inside the shard, they are
/// at most as many as its bytes, and memory is in proportion to them.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let head = ShardInput::read(&mut input);
    let idx = input.slice(head.idx_bytes);
    let mut bytes = input.rest().to_vec();
    match head.format {
        Some(format) if head.is_repaired => repair(format, &mut bytes),
        _ => {}
    }
    let shard = ShardBytes::new(3, &bytes);
    let input_bytes = idx.len() + bytes.len();
    let source = ShardSource { data: shard, idx: Some(ShardBytes::new(4, &idx)) };
    bounded(input_bytes, || match head.format {
        Some(format) => samples(format, source, &head.options, input_bytes),
        None => mds_index(shard),
    });
    if head.format == Some(ShardFormat::Megatron) {
        bounded(input_bytes, || documents(idx, shard));
    }
    bounded(input_bytes, || {
        if let Err(error) = detect("shard", shard) {
            check_error(&error);
        }
    });
}

fn samples(
    format: ShardFormat,
    source: ShardSource<'_>,
    options: &SampleOptions,
    input_bytes: usize,
) {
    let mut samples = match format.samples(source, options) {
        Ok(samples) => samples,
        Err(error) => return check_error(&error),
    };
    let mut count = 0;
    for sample in samples.by_ref() {
        match sample {
            Ok(sample) => check_sample(&sample, source.data.whole()),
            Err(error) => {
                check_error(&error);
                break;
            }
        }
        count += 1;
        assert!(count <= input_bytes, "more samples than bytes");
    }
    assert!(samples.next().is_none(), "a sample behind the end");
}

fn check_sample(found: &KeyedSample, whole: ByteRange) {
    let begin = found.sample.offset.get();
    let end = begin + u64::from(found.sample.length.get());
    assert!(end <= whole.end(), "{found:?} of {} bytes", whole.end());
    for member in &found.members {
        assert!(begin <= member.range.offset() && member.range.end() <= end, "{found:?}");
    }
}

/// An error is one line that does not change what a terminal shows.
fn check_error(error: &FormatError) {
    let text = error.to_string();
    assert!(!text.chars().any(char::is_control) && text.len() < 4096, "{error:?}");
}

fn documents(idx: &[u8], bin: ShardBytes<'_>) {
    let Ok(set) = Megatron::open(ShardBytes::new(4, &idx), bin) else { return };
    let mut last = 0;
    for document in set.documents() {
        let Ok(document) = document else { return };
        assert!((last..=set.sequences()).contains(&document));
        last = document;
    }
}

fn mds_index(shard: ShardBytes<'_>) {
    match MdsIndex::parse(shard) {
        Ok(index) => {
            let is_inside = |name: &str| !name.contains('/') && !name.starts_with('.');
            assert!(index.shards.iter().all(|shard| is_inside(&shard.basename)));
        }
        Err(error) => check_error(&error),
    }
}

/// Makes the checksums right that a reader looks at before anything else.
fn repair(format: ShardFormat, bytes: &mut [u8]) {
    match format {
        ShardFormat::WebDataset => bytes.chunks_exact_mut(512).for_each(repair_tar),
        ShardFormat::TfRecord => repair_records(bytes),
        _ => {}
    }
}

/// The checksum of a header of tar: the sum of its bytes in octal digits, with blanks in the place
/// of the checksum. A block of zeros stays one.
fn repair_tar(block: &mut [u8]) {
    let is_header = block[257..262] == *b"ustar" || block[148..156].iter().any(|&byte| byte != 0);
    if !is_header {
        return;
    }
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
}

/// The checksums of records of TFRecord, as far as their lengths lead inside the shard.
fn repair_records(mut bytes: &mut [u8]) {
    while let Some((header, rest)) = bytes.split_at_mut_checked(12) {
        let length = u64::from_le_bytes(*header.first_chunk().expect("8 of 12 bytes"));
        let crc = masked_crc(&header[..8]);
        header[8..].copy_from_slice(&crc.to_le_bytes());
        let inside =
            usize::try_from(length).ok().and_then(|length| rest.split_at_mut_checked(length));
        let Some((data, rest)) = inside else { return };
        let Some((footer, rest)) = rest.split_at_mut_checked(4) else { return };
        footer.copy_from_slice(&masked_crc(data).to_le_bytes());
        bytes = rest;
    }
}

fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8)
}
