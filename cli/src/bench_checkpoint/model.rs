//! Models whose checkpoints are measured: bytes and ranks, as in MLPerf Storage.

use clap::ValueEnum;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum CheckpointModel {
    /// 105 GB on 8 ranks
    #[value(name = "llama3-8b")]
    Llama8B,
    /// 912 GB on 64 ranks
    #[value(name = "llama3-70b")]
    Llama70B,
    /// 5.29 TB on 512 ranks
    #[value(name = "llama3-405b")]
    Llama405B,
}

/// Number of ranks, and bytes that each of them writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CheckpointShape {
    pub(super) ranks: u16,
    pub(super) rank_bytes: u64,
}

impl CheckpointModel {
    /// Name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Llama8B => "llama3-8b",
            Self::Llama70B => "llama3-70b",
            Self::Llama405B => "llama3-405b",
        }
    }

    fn bytes(self) -> u64 {
        match self {
            Self::Llama8B => 105_000_000_000,
            Self::Llama70B => 912_000_000_000,
            Self::Llama405B => 5_290_000_000_000,
        }
    }

    fn ranks(self) -> u16 {
        match self {
            Self::Llama8B => 8,
            Self::Llama70B => 64,
            Self::Llama405B => 512,
        }
    }

    /// Returns the bytes divided by `scale`, on the model's ranks or another number of them. A rank
    /// has at least one byte.
    pub(super) fn scaled_down(self, scale: u64, ranks: Option<u16>) -> CheckpointShape {
        let ranks = ranks.unwrap_or(self.ranks());
        let rank_bytes = self.bytes() / scale.max(1) / u64::from(ranks.max(1));
        CheckpointShape { ranks, rank_bytes: rank_bytes.max(1) }
    }
}

impl CheckpointShape {
    pub(super) fn total_bytes(self) -> u64 {
        self.rank_bytes.saturating_mul(self.ranks.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_divided_and_never_zero() {
        let shape = CheckpointModel::Llama8B.scaled_down(100, None);
        assert_eq!((shape.ranks, shape.rank_bytes), (8, 131_250_000));
        assert_eq!(shape.total_bytes(), 1_050_000_000);
        let shape = CheckpointModel::Llama70B.scaled_down(1, Some(2));
        assert_eq!((shape.ranks, shape.total_bytes()), (2, 912_000_000_000));
        assert_eq!(CheckpointModel::Llama405B.scaled_down(u64::MAX, None).rank_bytes, 1);
    }
}
