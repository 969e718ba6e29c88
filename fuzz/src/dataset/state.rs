//! States of loaders, and the batches that follow from them.

use std::num::{NonZeroU32, NonZeroU64};

use feedrail_dataset::Blake3Hash;
use feedrail_dataset::order::{Shuffle, Stripe};
use feedrail_dataset::state::{Place, Sequence, State};

use super::bounded;
use crate::input::Input;

/// How many bytes come before the text of a state.
pub const HEAD_BYTES: usize = 56;

/// The most that a state has as JSON.
const STATE_BYTES_MAX: usize = 1 << 10;
/// Torch's order has a table, which takes memory and time.
const TORCH_SAMPLES_MAX: u64 = 1000;

/// A sequence and a place in it, then a text: the state of the place leads back to it, batches have
/// existing samples, and a text that is accepted is written so again.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let sequence = sequence(&mut input);
    let place = Place { epoch: input.u64(), consumed: input.u64() };
    let stripe = Stripe::new(input.u16().into(), u32::from(input.u16()).max(1));
    input.u32();
    check_place(&sequence, place);
    if let Ok(stripe) = stripe {
        check_batches(&sequence, place, stripe);
    }
    let text = input.rest();
    let Ok(state) = bounded(text.len(), || State::parse(text)) else { return };
    let written = state.to_json();
    assert!(written.len() <= STATE_BYTES_MAX);
    assert_eq!(State::parse(written.as_bytes()).expect("what was written"), state);
    if let Ok(place) = sequence.resume(&state) {
        assert!(place.consumed <= sequence.samples);
    }
}

fn sequence(input: &mut Input<'_>) -> Sequence {
    let (kind, drop_last) = (input.choice(4), input.u8() & 1 != 0);
    input.u16();
    let size =
        |input: &mut Input<'_>| NonZeroU32::new(input.u16().into()).unwrap_or(NonZeroU32::MAX);
    let (block, window) = (size(input), size(input));
    let shuffle =
        [Shuffle::Sequential, Shuffle::Global, Shuffle::Block { block, window }, Shuffle::Torch]
            [kind];
    let samples = input.u64();
    let samples = if shuffle == Shuffle::Torch { samples % TORCH_SAMPLES_MAX } else { samples };
    let seed = input.u64();
    let global_batch = NonZeroU64::new(input.u64()).unwrap_or(NonZeroU64::MIN);
    Sequence { dataset: Blake3Hash::of(b""), samples, shuffle, seed, global_batch, drop_last }
}

fn check_place(sequence: &Sequence, place: Place) {
    let state = sequence.state(place);
    assert_eq!(State::parse(state.to_json().as_bytes()).expect("what was written"), state);
    let resumed = sequence.resume(&state).ok();
    assert_eq!(resumed, (place.consumed <= sequence.samples).then_some(place));
}

fn check_batches(sequence: &Sequence, place: Place, stripe: Stripe) {
    let Ok(order) = sequence.order(place.epoch) else {
        assert!(sequence.samples > i64::MAX as u64);
        return;
    };
    let end = sequence.epoch_samples();
    let mut at = place.consumed.min(end);
    let mut samples = [0; 5];
    for batch in sequence.batches(place).take(4) {
        assert!(batch.start == at && batch.start < batch.end && batch.end <= end, "{batch:?}");
        let count = order.fill_stripe(batch.clone(), stripe, &mut samples);
        assert!(samples[..count].iter().all(|&sample| sample < sequence.samples));
        at = batch.end;
    }
    for batch in sequence.batches(place).of_worker(stripe).take(2) {
        assert!(batch.start < batch.end && batch.end <= end, "{batch:?}");
    }
    let (least, _) = sequence.batches(place).size_hint();
    assert_eq!(least == 0, place.consumed >= end);
}
