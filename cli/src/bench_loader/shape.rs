//! Parameters of a training job: the samples of a batch, and the time to compute on it.

use core::time::Duration;

use clap::ValueEnum;

use crate::training_data::{GROUP_ROWS, SampleSizes};

/// Training job of `--workload`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum LoaderWorkload {
    /// 7 samples of about 146.6 MB that differ much; 323 ms (H100)
    Unet3d,
    /// 400 samples of 114,660 bytes; 224 ms (H100)
    Resnet50,
    /// One sample of about 2.8 MB; 3.5 ms (H100)
    Cosmoflow,
    /// 24 JPEG files of 322,957 bytes; 47.55 ms (B200)
    Retinanet,
    /// 16,384 rows: 40 of the 200 columns of row groups of 6,144 rows; 0.375 ms (B200)
    Dlrm,
    /// 48 rows of 2,164,832 bytes; 1.35 s (B200)
    Flux,
    /// 480 windows of 1,025 tokens of two bytes, anywhere; 10 ms, since nanoGPT defines none
    Nanogpt,
}

/// Arrangement of the samples in the shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SampleLayout {
    /// Adjacent samples, each within one shard.
    Packed(SampleSizes),
    /// Windows of tokens that may begin at each token, and overlap.
    Windows,
    /// Adjacent row groups. A unit consists of the columns of one row group that the job reads.
    RowGroups,
}

/// Parameters of a training job's loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoaderShape {
    pub(super) layout: SampleLayout,
    /// Samples in a batch of one rank.
    pub(super) batch_samples: u32,
    /// Computing time of a batch.
    pub(super) compute: Duration,
}

impl LoaderWorkload {
    /// Name on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    pub(super) fn shape(self) -> LoaderShape {
        use SampleLayout::{Packed, RowGroups, Windows};
        let (layout, batch_samples, compute_us) = match self {
            Self::Unet3d => (Packed(SampleSizes::UNET3D), 7, 323_000),
            Self::Resnet50 => (Packed(SampleSizes::RESNET50), 400, 224_000),
            Self::Cosmoflow => (Packed(SampleSizes::COSMOFLOW), 1, 3_500),
            Self::Retinanet => (Packed(SampleSizes::RETINANET), 24, 47_550),
            Self::Dlrm => (RowGroups, 16_384, 375),
            Self::Flux => (Packed(SampleSizes::FLUX), 48, 1_350_000),
            Self::Nanogpt => (Windows, 480, 10_000),
        };
        LoaderShape { layout, batch_samples, compute: Duration::from_micros(compute_us) }
    }
}

impl SampleLayout {
    /// Number of samples in a unit, which is read as a whole.
    pub(super) fn samples_per_unit(self) -> u64 {
        if self == Self::RowGroups { GROUP_ROWS } else { 1 }
    }

    /// Divides the sizes of packed samples by `by`. Windows and row groups keep their sizes.
    pub(super) fn scaled_down(self, by: u32) -> Self {
        match self {
            Self::Packed(sizes) => Self::Packed(sizes.scaled_down(by.into())),
            other => other,
        }
    }
}

impl LoaderShape {
    /// Number of units to read for a batch. With 6,144 rows in a unit and 16,384 in a batch, it is
    /// 3, 3 and 2 in turn: the next batch uses the rows that are left over.
    pub(super) fn units_read_for_batch(&self, batch: u64) -> u64 {
        let per_unit = self.layout.samples_per_unit();
        let needed =
            |batches: u64| batches.saturating_mul(self.batch_samples.into()).div_ceil(per_unit);
        needed(batch.saturating_add(1)) - needed(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_rows_take_whole_row_groups() {
        let units =
            |shape: LoaderShape| (0..6).map(|b| shape.units_read_for_batch(b)).collect::<Vec<_>>();
        assert_eq!(units(LoaderWorkload::Dlrm.shape()), [3, 3, 2, 3, 3, 2]);
        assert_eq!(units(LoaderWorkload::Unet3d.shape()), [7; 6]);
    }

    #[test]
    fn a_step_asks_what_the_reference_says() {
        // Samples for each second of computing, in thousandths.
        for (workload, rate) in [
            (LoaderWorkload::Unet3d, 21_672),
            (LoaderWorkload::Resnet50, 1_785_714),
            (LoaderWorkload::Cosmoflow, 285_714),
            (LoaderWorkload::Retinanet, 504_732),
            (LoaderWorkload::Flux, 35_556),
            (LoaderWorkload::Dlrm, 43_690_666_667),
        ] {
            let LoaderShape { batch_samples, compute, .. } = workload.shape();
            let found = f64::from(batch_samples) / compute.as_secs_f64() * 1000.0;
            assert_eq!(found.round() as u64, rate, "{workload:?}");
        }
    }

    #[test]
    fn scaled_down_samples_keep_their_number() {
        let unet3d = LoaderWorkload::Unet3d.shape().layout.scaled_down(16);
        let sixteenth = SampleSizes { mean_bytes: 9_162_539, deviation_bytes: 4_271_363 };
        assert_eq!(unet3d, SampleLayout::Packed(sixteenth));
        assert_eq!(SampleLayout::RowGroups.scaled_down(16), SampleLayout::RowGroups);
    }
}
