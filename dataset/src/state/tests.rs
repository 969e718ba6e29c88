//! Loaders that are stopped and continue with other ranks and workers.

use std::ops::Range;

use proptest::prelude::*;

use super::*;
use crate::order::Stripe;

fn sequence(samples: u64, global_batch: u64) -> Sequence {
    Sequence {
        dataset: Blake3Hash::of(b"data"),
        samples,
        shuffle: Shuffle::Global,
        seed: 7,
        global_batch: NonZeroU64::new(global_batch).expect("not zero"),
        drop_last: false,
    }
}

/// How many ranks there are, and how many workers each has; 0 is the main process alone.
#[derive(Clone, Copy, Debug)]
struct Shape {
    world: u32,
    workers: u32,
}

fn stripes(count: u32) -> impl Iterator<Item = Stripe> {
    let count = count.max(1);
    (0..count).map(move |index| Stripe::new(index, count).expect("below the count"))
}

/// The batches that a rank gets of its workers by turns, as `DataLoader` takes them.
fn of_workers(sequence: &Sequence, place: Place, workers: u32) -> Vec<Range<u64>> {
    let of_worker = |worker| sequence.batches(place).of_worker(worker).collect::<Vec<_>>();
    let made: Vec<_> = stripes(workers).map(of_worker).collect();
    let rounds = made.iter().map(Vec::len).max().unwrap_or(0);
    (0..rounds)
        .flat_map(|round| made.iter().filter_map(move |own| own.get(round).cloned()))
        .collect()
}

/// The samples of each of some batches that ranks read together.
fn read(sequence: &Sequence, place: Place, shape: Shape, steps: usize) -> (Vec<Vec<u64>>, Place) {
    let order = sequence.order(place.epoch).expect("small");
    let batches = of_workers(sequence, place, shape.workers);
    let (mut steps_read, mut place) = (Vec::new(), place);
    for batch in batches.into_iter().take(steps) {
        let mut step = vec![u64::MAX; (batch.end - batch.start) as usize];
        for rank in stripes(shape.world) {
            let mut own = vec![0; rank.len_of(batch.clone()) as usize];
            assert_eq!(order.fill_stripe(batch.clone(), rank, &mut own), own.len());
            let every = step.iter_mut().skip(rank.index() as usize);
            every.step_by(shape.world as usize).zip(own).for_each(|(place, own)| *place = own);
        }
        place.consumed += step.len() as u64;
        steps_read.push(step);
    }
    (steps_read, place)
}

/// Resumes from a state that was written and read.
fn reloaded(sequence: &Sequence, place: Place) -> Place {
    let json = sequence.state(place).to_json();
    sequence.resume(&State::parse(json.as_bytes()).expect("just written")).expect("its own")
}

fn shapes() -> impl Strategy<Value = Vec<(Shape, usize)>> {
    let shape = (1..9_u32, 0..5_u32).prop_map(|(world, workers)| Shape { world, workers });
    prop::collection::vec((shape, 0..9_usize), 0..6)
}

proptest! {
    #[test]
    fn the_sequence_does_not_depend_on_ranks_and_workers(
        samples in 0..400_u64,
        global_batch in 1..50_u64,
        drop_last: bool,
        shapes in shapes(),
    ) {
        let sequence = Sequence { drop_last, ..sequence(samples, global_batch) };
        let begin = Place { epoch: 3, consumed: 0 };
        let alone = Shape { world: 1, workers: 0 };
        let (expected, _) = read(&sequence, begin, alone, usize::MAX);
        let (mut found, mut place) = (Vec::new(), begin);
        for (shape, steps) in shapes.into_iter().chain([(alone, usize::MAX)]) {
            let (steps, next) = read(&sequence, place, shape, steps);
            found.extend(steps);
            place = reloaded(&sequence, next);
        }
        prop_assert_eq!(&found, &expected);
        let mut samples_read: Vec<u64> = found.concat();
        samples_read.sort_unstable();
        samples_read.dedup();
        let whole = samples - if drop_last { samples % global_batch } else { 0 };
        prop_assert_eq!(samples_read.len() as u64, whole, "none twice, none missing");
        prop_assert!(found.iter().rev().skip(1).all(|step| step.len() as u64 == global_batch));
        prop_assert!(!drop_last || found.last().is_none_or(|step| step.len() as u64 == global_batch));
    }

    #[test]
    fn the_rest_of_an_epoch_is_what_was_not_consumed(
        samples in 1..400_u64,
        global_batch in 1..50_u64,
        consumed in 0..400_u64,
        world in 1..9_u32,
        workers in 0..5_u32,
    ) {
        let sequence = sequence(samples, global_batch);
        let consumed = consumed.min(samples);
        let order = sequence.order(0).expect("small");
        let mut expected = vec![0; (samples - consumed) as usize];
        order.fill(consumed, &mut expected);
        let place = Place { epoch: 0, consumed };
        let (steps, _) = read(&sequence, place, Shape { world, workers }, usize::MAX);
        prop_assert_eq!(steps.concat(), expected);
        let ends = sequence.batches(place).map(|batch| batch.end);
        prop_assert!(ends.filter(|end| end % global_batch != 0).all(|end| end == samples));
    }

    #[test]
    fn batches_are_skipped_at_once(
        samples in prop_oneof![0..200_u64, Just(u64::MAX)],
        global_batch in prop_oneof![1..40_u64, 1..=u64::MAX],
        consumed in prop_oneof![0..250_u64, Just(u64::MAX - 1), Just(u64::MAX)],
        skipped in 0..20_usize,
    ) {
        let batches = sequence(samples, global_batch).batches(Place { epoch: 0, consumed });
        let (mut one_by_one, mut at_once) = (batches.clone(), batches);
        let slow = (0..=skipped).map(|_| one_by_one.next()).last().flatten();
        prop_assert_eq!(at_once.nth(skipped), slow);
        prop_assert_eq!(&at_once, &one_by_one);
        if samples < 200 {
            let count = at_once.clone().fold(0, |count, _| count + 1);
            prop_assert_eq!(at_once.size_hint(), (count, Some(count)));
        }
    }

    #[test]
    fn no_bytes_cause_a_panic(bytes: Vec<u8>) {
        let _ = State::parse(&bytes);
    }
}

/// Places in an epoch of 10^9 samples: its beginning, and after 50 and 99 % of it. Loaders stop
/// after whole steps, whose samples are 6,144, and somewhere within one.
const PLACES: [u64; 5] = [0, 81_380 * 6_144, 500_000_000, 161_132 * 6_144, 990_000_001];

#[test]
fn long_epochs_go_on_anywhere() {
    const SAMPLES: u64 = 1_000_000_000;
    let sequence = sequence(SAMPLES, 6_144);
    let order = sequence.order(5).expect("no table");
    for consumed in PLACES {
        let place = reloaded(&sequence, Place { epoch: 5, consumed });
        let (mut place, mut expected_at) = (place, consumed);
        let shapes = [(4, 0), (2, 4), (6, 2)].map(|(world, workers)| Shape { world, workers });
        for shape in shapes {
            let (steps, next) = short_read(&sequence, &order, place, shape);
            let mut expected = vec![0; steps.len()];
            order.fill(expected_at, &mut expected);
            assert_eq!(steps, expected, "{consumed} {shape:?}");
            expected_at = next.consumed;
            place = reloaded(&sequence, next);
        }
        let left: u64 = stripes(6)
            .map(|rank| sequence.batches(place).map(|batch| rank.len_of(batch)).sum::<u64>())
            .sum();
        assert_eq!(left, SAMPLES - place.consumed);
    }
}

/// Three steps of ranks whose workers make only these batches.
fn short_read(sequence: &Sequence, order: &Order, place: Place, shape: Shape) -> (Vec<u64>, Place) {
    let workers: Vec<Stripe> = stripes(shape.workers).collect();
    let batch = |step: usize| {
        let worker = workers[step % workers.len()];
        sequence.batches(place).of_worker(worker).nth(step / workers.len()).expect("not the end")
    };
    let mut read = Vec::new();
    for batch in (0..3).map(batch) {
        let mut step = vec![0; (batch.end - batch.start) as usize];
        for rank in stripes(shape.world) {
            for (i, position) in rank.of(batch.clone()).enumerate() {
                let at = i * shape.world as usize + rank.index() as usize;
                step[at] = order.sample(position).expect("in the epoch");
            }
        }
        read.extend(step);
    }
    let consumed = place.consumed + read.len() as u64;
    (read, Place { consumed, ..place })
}

#[test]
fn the_last_batch_is_short_or_dropped() {
    let sizes = |drop_last, consumed| {
        let sequence = Sequence { drop_last, ..sequence(10, 4) };
        let batches = sequence.batches(Place { epoch: 0, consumed });
        batches.map(|batch| batch.end - batch.start).collect::<Vec<_>>()
    };
    assert_eq!(sizes(false, 0), [4, 4, 2]);
    assert_eq!(sizes(true, 0), [4, 4]);
    assert_eq!(sizes(false, 3), [1, 4, 2], "the rest of a batch first");
    assert_eq!(sizes(true, 9), [0; 0], "what is left does not fill a batch");
    assert_eq!(sizes(false, 10), [0; 0]);
}

#[test]
fn a_state_is_small_json() {
    let mut sequence = sequence(10, 4);
    let state = sequence.state(Place { epoch: 3, consumed: 8 });
    let dataset = Blake3Hash::of(b"data");
    let json = format!(
        "{{\"v\":1,\"dataset\":\"{dataset}\",\"order\":\"global\",\"seed\":7,\"epoch\":3,\
         \"consumed\":8,\"global_batch\":4}}"
    );
    assert_eq!(state.to_json(), json);
    let without_order = json.replace("\"order\":\"global\",", "");
    assert_eq!(State::parse(without_order.as_bytes()).expect("global"), state);
    sequence.shuffle = "block:4294967295:4294967295".parse().expect("the longest");
    (sequence.seed, sequence.global_batch) = (u64::MAX, NonZeroU64::MAX);
    let longest = sequence.state(Place { epoch: u64::MAX, consumed: u64::MAX }).to_json();
    assert!(longest.len() <= 1024, "{}", longest.len());
}

#[test]
fn other_texts_are_no_states() {
    let error = |json: &str| State::parse(json.as_bytes()).expect_err(json).to_string();
    let json = sequence(10, 4).state(Place::default()).to_json();
    assert!(error("").contains("not a state of a loader: EOF"));
    assert!(error(&json.replace("\"v\":1", "\"v\":2,\"new\":0")).contains("version 2"));
    assert!(error(&json.replace("\"seed\"", "\"sead\"")).contains("unknown field `sead`"));
    assert!(error(&json.replace(",\"seed\":7", "")).contains("missing field `seed`"));
    let zero = json.replace("\"global_batch\":4", "\"global_batch\":0");
    assert!(error(&zero).contains("expected a nonzero u64"), "{}", error(&zero));
    let negative = json.replace("\"consumed\":0", "\"consumed\":-1");
    assert!(error(&negative).contains("invalid value: integer `-1`"));
    assert!(error(&json.replace("blake3:", "sha1:")).contains("a hash is"));
    assert!(error(&json.replace("global\"", "random\"")).contains("an order is"));
}

#[test]
fn a_state_of_another_sequence_is_refused() {
    let own = sequence(10, 4);
    let state = own.state(Place { epoch: 1, consumed: 8 });
    let error = |other: Sequence| other.resume(&state).expect_err("another sequence");
    let other = Sequence { dataset: Blake3Hash::of(b"other"), ..own };
    assert!(matches!(error(other), Error::Dataset { .. }));
    let other = Sequence { shuffle: Shuffle::Sequential, ..own };
    assert!(matches!(error(other), Error::Order { .. }));
    let other = Sequence { seed: 8, ..own };
    assert!(matches!(error(other), Error::Seed { state: 7, current: 8 }));
    assert!(matches!(error(sequence(10, 5)), Error::GlobalBatch { .. }));
    let other = sequence(7, 4);
    assert!(matches!(error(other), Error::Consumed { consumed: 8, samples: 7 }));
    let dropping = Sequence { drop_last: true, ..own };
    assert_eq!(dropping.resume(&state).expect("whole batches are the same").consumed, 8);
}

#[test]
fn a_seed_without_effect_may_change() {
    let resumed = |shuffle, seed, other| {
        let own = Sequence { shuffle, seed, ..sequence(10, 4) };
        let state = own.state(Place::default());
        Sequence { seed: other, ..own }.resume(&state).is_ok()
    };
    assert!(resumed(Shuffle::Sequential, 1, 2));
    assert!(resumed(Shuffle::Torch, 1, (1 << 32) + 1), "torch takes 32 bits of the seed");
    assert!(!resumed(Shuffle::Torch, 1, 2));
    assert!(!resumed(Shuffle::Global, 1, (1 << 32) + 1));
    let block = "block:2:2".parse().expect("an order");
    assert!(!resumed(block, 1, (1 << 32) + 1));
}
