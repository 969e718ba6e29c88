//! Layout of the data of well-known training jobs: lengths of samples, row groups.
//!
//! Sizes are those that MLPerf Storage's configurations for DLIO and nanoGPT's loader have; nothing
//! here is comparable with results of those.

use splitmix64::SplitMix64;

/// Bytes of a token of nanoGPT's `train.bin`.
pub(crate) const TOKEN_BYTES: u64 = 2;
/// Bytes of a window of tokens: one token more than nanoGPT's context of 1,024.
pub(crate) const WINDOW_BYTES: u64 = TOKEN_BYTES * 1025;

/// Rows of a row group of DLRM's Parquet files.
pub(crate) const GROUP_ROWS: u64 = 6144;
/// Bytes of a row group, with all of its 200 columns.
pub(crate) const GROUP_BYTES: u64 = GROUP_ROWS * 761;
/// Number of columns that are read: every fifth one.
const COLUMNS: u64 = 40;
/// Bytes per row of five of the columns that are read. The other columns repeat this sequence.
const COLUMN_WIDTHS: [u64; 5] = [1, 2, 4, 8, 5];

/// Offset and length in bytes of the columns that are read, in a row group.
pub(crate) fn group_columns() -> impl ExactSizeIterator<Item = (u64, u64)> {
    (0..COLUMNS as u32).map(|column| {
        let width = COLUMN_WIDTHS[column as usize % COLUMN_WIDTHS.len()];
        (u64::from(column) * (GROUP_BYTES / COLUMNS), width * GROUP_ROWS)
    })
}

/// Distribution of the lengths of samples, as in DLIO's generator: a length is the product of two
/// normally distributed dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SampleSizes {
    pub(crate) mean_bytes: u64,
    /// DLIO's `record_length_stdev`: the standard deviation of lengths is 0.71 times this.
    pub(crate) deviation_bytes: u64,
}

impl SampleSizes {
    pub(crate) const RESNET50: Self = Self::equal(114_660);
    pub(crate) const RETINANET: Self = Self::equal(322_957);
    pub(crate) const FLUX: Self = Self::equal(2_164_832);
    pub(crate) const COSMOFLOW: Self = Self { mean_bytes: 2_828_486, deviation_bytes: 71_311 };
    pub(crate) const UNET3D: Self = Self { mean_bytes: 146_600_628, deviation_bytes: 68_341_808 };

    /// Returns a distribution in which all samples have the same length.
    pub(crate) const fn equal(bytes: u64) -> Self {
        Self { mean_bytes: bytes, deviation_bytes: 0 }
    }

    /// Divides all lengths by `by`; none becomes less than 1 byte.
    pub(crate) fn scaled_down(self, by: u64) -> Self {
        let by = by.max(1);
        Self {
            mean_bytes: (self.mean_bytes / by).max(1),
            deviation_bytes: self.deviation_bytes / by,
        }
    }

    /// Bytes of the longest sample. Longer ones that the generator draws are limited to this.
    pub(crate) fn longest_bytes(self) -> u64 {
        self.mean_bytes.saturating_add(self.deviation_bytes.min(self.mean_bytes))
    }

    /// Draws the length of one sample in bytes, at least 1.
    pub(crate) fn draw(self, random: &mut SplitMix64) -> u64 {
        if self.deviation_bytes == 0 {
            return self.mean_bytes;
        }
        let side = (self.mean_bytes as f64).sqrt();
        let spread = self.deviation_bytes as f64 / 2.0 / side;
        let mut dimension = || side + spread * normal(random);
        let bytes = (dimension() * dimension()).max(0.0) as u64;
        bytes.clamp(1, self.longest_bytes())
    }
}

/// Approximates a standard normal deviate by the sum of twelve uniform ones (Irwin-Hall).
fn normal(random: &mut SplitMix64) -> f64 {
    const STEPS: u64 = 1 << 32;
    let sum: f64 = (0..12).map(|_| random.below(STEPS) as f64 / STEPS as f64).sum();
    sum - 6.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_dlios_mean_and_spread() {
        let sizes = SampleSizes::UNET3D.scaled_down(16);
        assert_eq!(sizes, SampleSizes { mean_bytes: 9_162_539, deviation_bytes: 4_271_363 });
        let mut random = SplitMix64::new(1);
        let lengths: Vec<f64> = (0..10_000).map(|_| sizes.draw(&mut random) as f64).collect();
        let mean = lengths.iter().sum::<f64>() / lengths.len() as f64;
        assert!((8_900_000.0..9_400_000.0).contains(&mean), "{mean}");
        let variance = lengths.iter().map(|length| (length - mean).powi(2)).sum::<f64>();
        let deviation = (variance / lengths.len() as f64).sqrt();
        // The product of two deviates spreads by about the root of a half of what each dimension
        // was given.
        assert!((2_700_000.0..3_200_000.0).contains(&deviation), "{deviation}");
    }

    #[test]
    fn equal_samples_are_equal() {
        let mut random = SplitMix64::new(1);
        for bytes in [1, 2, 512, 114_660] {
            assert_eq!(SampleSizes::equal(bytes).longest_bytes(), bytes);
            assert_eq!(SampleSizes::equal(bytes).draw(&mut random), bytes);
        }
        assert_eq!(SampleSizes::equal(10).scaled_down(100).mean_bytes, 1);
    }

    #[test]
    fn columns_of_a_row_group_do_not_overlap() {
        let columns: Vec<_> = group_columns().collect();
        assert_eq!(columns.iter().map(|(_, bytes)| bytes).sum::<u64>(), 160 * GROUP_ROWS);
        assert!(columns.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        assert!(columns.last().is_some_and(|(offset, bytes)| offset + bytes <= GROUP_BYTES));
    }
}
