//! Orders of samples, for `feedrail.torch.Order`.

use std::num::NonZeroU64;

use feedrail_dataset::order::{Leftover, Order, Shuffle, Split, Stripe};
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Order of the samples of one epoch: which sample is at which position.
#[pyclass(frozen, name = "Order", module = "feedrail._core")]
pub(crate) struct OrderObject(Order);

#[pymethods]
impl OrderObject {
    /// `order` is `sequential`, `global`, `torch` or `block:BLOCK:WINDOW`.
    #[new]
    fn new(py: Python<'_>, order: &str, samples: u64, seed: u64, epoch: u64) -> PyResult<Self> {
        let shuffle = parse_shuffle(order)?;
        // The order `torch` is a table, which takes time to fill.
        let made = py.detach(|| Order::new(shuffle, samples, seed, epoch));
        made.map(Self).map_err(|error| PyOverflowError::new_err(error.to_string()))
    }

    /// Returns the number of samples of a rank; `leftover` is `keep`, `pad` or `drop`.
    fn rank_len(&self, rank: u32, world: u32, leftover: &str) -> PyResult<u64> {
        Ok(self.split(rank, world, leftover)?.len())
    }

    /// Returns at most `count` samples of a rank, from its sample `first` on, as bytes of `int64`.
    fn of_rank<'py>(
        &self,
        py: Python<'py>,
        split: (u32, u32, String),
        first: u64,
        count: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (rank, world, leftover) = split;
        let split = self.split(rank, world, &leftover)?;
        Ok(as_bytes(py, &py.detach(|| self.samples_of(split, first, count))))
    }

    /// Returns the samples of a rank in a global batch of the positions from `begin` to `end`, as
    /// bytes of `int64`.
    fn of_batch<'py>(
        &self,
        py: Python<'py>,
        batch: (u64, u64),
        rank: u32,
        world: u32,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let stripe = stripe(rank, world)?;
        let (begin, end) = (batch.0, batch.1.min(self.0.len()));
        let mut samples = zeroes(stripe.len_of(begin..end))?;
        let count = py.detach(|| self.0.fill_stripe(begin..end, stripe, &mut samples));
        Ok(as_bytes(py, &samples[..count]))
    }
}

impl OrderObject {
    fn split(&self, rank: u32, world: u32, leftover: &str) -> PyResult<Split> {
        let leftover = match leftover {
            "keep" => Leftover::Keep,
            "pad" => Leftover::Pad,
            "drop" => Leftover::Drop,
            _ => return Err(PyValueError::new_err("leftover is keep, pad or drop")),
        };
        Ok(Split { samples: self.0.len(), rank: stripe(rank, world)?, leftover })
    }

    fn samples_of(&self, split: Split, first: u64, count: usize) -> Vec<u64> {
        let left = split.len().saturating_sub(first);
        let count = usize::try_from(left).map_or(count, |left| left.min(count));
        let mut samples = vec![0; count];
        // A rank whose first position would be 2^64 or more has only padding.
        let begin = first.checked_mul(split.rank.count().get());
        let begin = begin.and_then(|begin| begin.checked_add(split.rank.index().into()));
        let filled = begin.map_or(0, |at| self.0.fill_every(at, split.rank.count(), &mut samples));
        for (number, sample) in (first..).zip(&mut samples).skip(filled) {
            let padding = split.position(number).and_then(|position| self.0.sample(position));
            *sample = padding.unwrap_or_default();
        }
        samples
    }
}

/// Parses the name of an order.
pub(crate) fn parse_shuffle(order: &str) -> PyResult<Shuffle> {
    order.parse().map_err(|error| PyValueError::new_err(format!("order {order:?}: {error}")))
}

/// Returns the stripe with index `index` of `count`.
pub(crate) fn stripe(index: u32, count: u32) -> PyResult<Stripe> {
    Stripe::new(index, count).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Returns a number of samples, or `ValueError` for zero.
pub(crate) fn positive(what: &str, number: u64) -> PyResult<NonZeroU64> {
    NonZeroU64::new(number).ok_or_else(|| PyValueError::new_err(format!("{what} is 1 or more")))
}

fn zeroes(count: u64) -> PyResult<Vec<u64>> {
    let mut samples = Vec::new();
    let count = usize::try_from(count)?;
    let reserved = samples.try_reserve_exact(count);
    reserved.map_err(|error| PyOverflowError::new_err(error.to_string()))?;
    samples.resize(count, 0);
    Ok(samples)
}

fn as_bytes<'py>(py: Python<'py>, samples: &[u64]) -> Bound<'py, PyBytes> {
    let bytes: Vec<u8> = samples.iter().flat_map(|sample| sample.to_ne_bytes()).collect();
    PyBytes::new(py, &bytes)
}
