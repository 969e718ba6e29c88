//! Files of tokens: the `.bin` of nanoGPT, and that of llm.c.
//!
//! Both are one array of numbers. nanoGPT's has no header; llm.c's begins with 256 numbers of 32
//! bits: magic 20240520, version 1 for tokens of 16 bits, or magic 20240801, version 7 for tokens
//! of 32 bits, then the number of tokens (`dev/data/data_common.py` of llm.c).

use core::num::{NonZeroU32, NonZeroU64};

use super::dtype::Dtype;
use super::error::{FormatError, FormatProblem};
use super::shard::{ByteRange, ShardBytes};

const LLM_C_HEADER_BYTES: u64 = 1024;
const LLM_C_MAGIC_U16: u32 = 20_240_520;
const LLM_C_MAGIC_U32: u32 = 20_240_801;

/// Length and distance of the samples in an array of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBlocks {
    /// Number of tokens that a sample predicts. It has one token more, the last target.
    pub block_size: NonZeroU32,
    /// Number of tokens from the start of one sample to the start of the next.
    pub stride: NonZeroU64,
}

impl TokenBlocks {
    /// Samples that overlap by one token: the last target of each is the first token of the next.
    pub fn adjacent(block_size: NonZeroU32) -> Self {
        Self { block_size, stride: block_size.into() }
    }
}

/// Array of tokens. The position of a sample is computed from its number, so no index is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    header_bytes: u64,
    dtype: Dtype,
    tokens: u64,
    sample_bytes: u32,
    blocks: TokenBlocks,
}

impl Tokens {
    /// Opens an array of either kind. `dtype` is that of tokens without a header, by default 16
    /// bits; a header must contain the same.
    ///
    /// # Errors
    /// The errors of [`Tokens::nano_gpt`] and [`Tokens::llm_c`].
    pub fn open(
        shard: ShardBytes<'_>,
        dtype: Option<Dtype>,
        blocks: TokenBlocks,
    ) -> Result<Self, FormatError> {
        let mut first = [0; 4];
        let length = shard.whole().length().min(4) as usize;
        shard.read(0, &mut first[..length], "tokens")?;
        if !Self::is_llm_c(&first[..length]) {
            return Self::nano_gpt(shard, dtype.unwrap_or(Dtype::U16), blocks);
        }
        let tokens = Self::llm_c(shard, blocks)?;
        match dtype {
            Some(dtype) if dtype != tokens.dtype => {
                let found = format!("{}, not {dtype}", tokens.dtype);
                Err(shard.unexpected(0, "a header of the dtype that was asked for", found))
            }
            _ => Ok(tokens),
        }
    }

    /// Opens an array without a header, as nanoGPT writes it.
    ///
    /// # Errors
    /// The size of the shard is no multiple of the token size, or a sample would be longer than 4
    /// GiB.
    pub fn nano_gpt(
        shard: ShardBytes<'_>,
        dtype: Dtype,
        blocks: TokenBlocks,
    ) -> Result<Self, FormatError> {
        let length = shard.whole().length();
        let item_bytes = u64::from(dtype.item_bytes());
        if !length.is_multiple_of(item_bytes) {
            let found = format!("{length} bytes of {dtype}");
            return Err(shard.unexpected(length, "a whole number of tokens", found));
        }
        Self::new(shard, 0, dtype, length / item_bytes, blocks)
    }

    /// Opens an array with the header of llm.c, which determines the data type.
    ///
    /// # Errors
    /// The header is not valid, the shard has not the number of tokens in the header, or a sample
    /// would be longer than 4 GiB.
    pub fn llm_c(shard: ShardBytes<'_>, blocks: TokenBlocks) -> Result<Self, FormatError> {
        shard.range(0, LLM_C_HEADER_BYTES, "a header of llm.c")?;
        let header = shard.array::<12>(0, "a header of llm.c")?;
        let [magic, version, tokens] = words(header);
        let Some(dtype) = llm_c_dtype(magic, version) else {
            let found = format!("magic {magic}, version {version}");
            let expected = "magic 20240520, version 1, or magic 20240801, version 7";
            return Err(shard.unexpected(0, expected, found));
        };
        let length = u64::from(tokens) * u64::from(dtype.item_bytes());
        let array = shard.range(LLM_C_HEADER_BYTES, length, "tokens")?;
        if array.end() != shard.whole().end() {
            let found = format!("{} bytes more", shard.whole().end() - array.end());
            return Err(shard.unexpected(array.end(), "the end of the tokens", found));
        }
        Self::new(shard, LLM_C_HEADER_BYTES, dtype, tokens.into(), blocks)
    }

    /// Whether a shard begins with a magic number of llm.c.
    pub(super) fn is_llm_c(first: &[u8]) -> bool {
        let magic = first.first_chunk().map(|magic| u32::from_le_bytes(*magic));
        magic.is_some_and(|magic| [LLM_C_MAGIC_U16, LLM_C_MAGIC_U32].contains(&magic))
    }

    fn new(
        shard: ShardBytes<'_>,
        header_bytes: u64,
        dtype: Dtype,
        tokens: u64,
        blocks: TokenBlocks,
    ) -> Result<Self, FormatError> {
        let length = (u64::from(blocks.block_size.get()) + 1) * u64::from(dtype.item_bytes());
        let too_long = |_| shard.error(header_bytes, FormatProblem::TooLong { length });
        let sample_bytes = u32::try_from(length).map_err(too_long)?;
        Ok(Self { header_bytes, dtype, tokens, sample_bytes, blocks })
    }

    /// Bytes before the first token.
    pub fn header_bytes(&self) -> u64 {
        self.header_bytes
    }

    /// Data type of the tokens.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Number of tokens in the shard.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Bytes of each sample.
    pub fn sample_bytes(&self) -> u32 {
        self.sample_bytes
    }

    /// Number of samples in the shard.
    pub fn samples(&self) -> u64 {
        let first = u64::from(self.blocks.block_size.get()) + 1;
        self.tokens.checked_sub(first).map_or(0, |rest| rest / self.blocks.stride + 1)
    }

    /// Offset of a sample in the shard; `None` if there is no sample of this number.
    pub fn sample(&self, number: u64) -> Option<u64> {
        // The result lies within the shard, so it does not overflow.
        let offset =
            |number| number * self.blocks.stride.get() * u64::from(self.dtype.item_bytes());
        (number < self.samples()).then(|| self.header_bytes + offset(number))
    }

    /// Byte range of a sample; `None` if there is no sample of this number.
    pub(super) fn range(
        &self,
        shard: ShardBytes<'_>,
        number: u64,
    ) -> Result<Option<ByteRange>, FormatError> {
        let range = |offset| shard.range(offset, self.sample_bytes.into(), "tokens");
        self.sample(number).map(range).transpose()
    }
}

fn llm_c_dtype(magic: u32, version: u32) -> Option<Dtype> {
    match (magic, version) {
        (LLM_C_MAGIC_U16, 1) => Some(Dtype::U16),
        (LLM_C_MAGIC_U32, 7) => Some(Dtype::U32),
        _ => None,
    }
}

fn words(header: [u8; 12]) -> [u32; 3] {
    let (words, _) = header.as_chunks::<4>();
    core::array::from_fn(|index| u32::from_le_bytes(words[index]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn blocks(block_size: u32, stride: u64) -> TokenBlocks {
        TokenBlocks {
            block_size: NonZeroU32::new(block_size).unwrap(),
            stride: NonZeroU64::new(stride).unwrap(),
        }
    }

    #[test]
    fn a_length_of_no_whole_token_is_an_error() {
        let bytes = vec![0; 2051];
        let error = Tokens::nano_gpt(ShardBytes::new(0, &bytes), Dtype::U16, blocks(8, 8));
        assert!(error.unwrap_err().to_string().contains("2051 bytes of uint16"));
    }

    #[test]
    fn the_longest_block_does_not_overflow() {
        let bytes = Vec::new();
        let shard = ShardBytes::new(0, &bytes);
        let error = Tokens::nano_gpt(shard, Dtype::U16, blocks(u32::MAX, u64::MAX)).unwrap_err();
        assert!(matches!(error.problem, FormatProblem::TooLong { length: 0x2_0000_0000 }));
    }

    #[test]
    fn a_count_of_llm_c_that_lies_is_an_error() {
        for (tokens, end) in [(u32::MAX, 1024 + 8), (5, 1024 + 8), (3, 1024 + 8), (0, 100)] {
            let mut bytes = vec![0; end];
            for (at, word) in [(0, LLM_C_MAGIC_U16), (4, 1), (8, tokens)] {
                bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
            }
            Tokens::llm_c(ShardBytes::new(0, &bytes), blocks(1, 1)).unwrap_err();
        }
    }

    proptest! {
        #[test]
        fn samples_begin_at_each_stride_that_fits(
            tokens in 0_usize..300, block_size in 1_u32..40, stride in 1_u64..50,
        ) {
            let bytes = vec![0; tokens * 2];
            let shard = ShardBytes::new(0, &bytes);
            let array = Tokens::nano_gpt(shard, Dtype::U16, blocks(block_size, stride)).unwrap();
            let begins = (0..tokens as u64).step_by(stride as usize);
            let fits = |begin: &u64| begin + u64::from(block_size) < tokens as u64;
            let expected: Vec<u64> = begins.filter(fits).map(|begin| begin * 2).collect();
            let found: Vec<u64> = (0..).map_while(|number| array.sample(number)).collect();
            prop_assert_eq!(array.samples(), expected.len() as u64);
            prop_assert_eq!(found, expected);
        }
    }
}
