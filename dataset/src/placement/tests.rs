//! Preferences of shards, and breakers against their rules.

use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::manifest::{ManifestFile, ShardEntry, TargetEntry};

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// A data set of that many shards, each of which all targets have.
fn manifest(shards: u32, targets: &[&str]) -> Manifest {
    let mut file = ManifestFile::new(name("set"));
    for target in targets {
        let entry = TargetEntry {
            nqn: "nqn.2026-01.org.example:set".parse().expect("an NQN"),
            url: "nvmf://192.0.2.1".parse().expect("a URL"),
        };
        file.targets.insert(name(target), entry);
    }
    file.shards = (0..shards)
        .map(|shard| ShardEntry {
            bytes: 1,
            crc32c: None,
            generation: None,
            name: name(&format!("{shard:05}.tar")),
            replicas: targets.iter().map(|target| name(target)).collect(),
            uuid: None,
        })
        .collect();
    Manifest::new(file).expect("fits")
}

const SHARDS: u32 = 10_000;
const TARGETS: [&str; 9] = ["a", "b", "c", "node-0", "node-1", "node-2", "node-3", "node-4", "z"];

/// The name of the target that each shard prefers.
fn preferred(targets: &[&str]) -> Vec<Name> {
    let manifest = manifest(SHARDS, targets);
    let placement = Placement::new(&manifest);
    let first = |shard| manifest.targets()[placement.ranked(shard)[0].0 as usize].0.clone();
    (0..SHARDS).map(first).collect()
}

#[test]
fn a_target_that_goes_moves_only_its_own_shards() {
    let before = preferred(&TARGETS);
    for gone in TARGETS {
        let rest: Vec<&str> = TARGETS.into_iter().filter(|&target| target != gone).collect();
        let after = preferred(&rest);
        let moved = before.iter().zip(&after).filter(|(before, after)| before != after);
        let mut moved = moved.map(|(before, _)| before).peekable();
        assert!(moved.peek().is_some());
        assert!(moved.all(|before| before.as_str() == gone));
    }
}

#[test]
fn shards_are_spread_evenly() {
    for count in 2..=TARGETS.len() {
        let preferred = preferred(&TARGETS[..count]);
        let expected = f64::from(SHARDS) / count as f64;
        for target in &TARGETS[..count] {
            let own = preferred.iter().filter(|name| name.as_str() == *target).count();
            // Four standard deviations of so many shards that choose by chance.
            assert!((own as f64 - expected).abs() < 4.0 * expected.sqrt(), "{target}: {own}");
        }
    }
}

#[test]
fn preferences_never_change() {
    let placement = Placement::new(&manifest(4, &TARGETS[..4]));
    // A second implementation in Python gave these.
    for (shard, ranked) in
        [[1, 0, 2, 3], [3, 1, 2, 0], [0, 1, 3, 2], [3, 1, 0, 2]].iter().enumerate()
    {
        assert_eq!(placement.ranked(shard as u32), ranked.map(TargetIndex));
    }
    assert!(placement.ranked(4).is_empty());
}

#[test]
fn the_less_loaded_of_the_best_two_is_chosen() {
    let placement = Placement::new(&manifest(100, &TARGETS[..4]));
    for shard in 0..100 {
        let &[first, second, third, fourth] = placement.ranked(shard) else { panic!("four") };
        let load = |loaded| move |target| u32::from(target == loaded);
        let all = |_| true;
        assert_eq!(placement.choose(shard, all, |_| 0), Some(first));
        assert_eq!(placement.choose(shard, all, load(second)), Some(first));
        assert_eq!(placement.choose(shard, all, load(first)), Some(second));
        let without = |gone| move |target| target != gone;
        assert_eq!(placement.choose(shard, without(first), |_| 0), Some(second));
        assert_eq!(placement.choose(shard, without(first), load(second)), Some(third));
        assert_eq!(placement.choose(shard, |target| target == fourth, |_| 9), Some(fourth));
        assert_eq!(placement.choose(shard, |_| false, |_| 0), None);
    }
    assert_eq!(placement.choose(100, |_| true, |_| 0), None);
}

#[test]
fn two_choices_even_out_the_load() {
    let placement = Placement::new(&manifest(SHARDS, &TARGETS));
    let mut loads = [0_u32; TARGETS.len()];
    for shard in 0..SHARDS {
        let target = placement.choose(shard, |_| true, |target| loads[target.0 as usize]);
        loads[target.expect("healthy").0 as usize] += 1;
    }
    let (least, most) = (loads.iter().min(), loads.iter().max());
    assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 8), "{loads:?}");
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn breaker(failures: u32) -> CircuitBreaker {
    CircuitBreaker::new(BreakerOptions {
        failures: NonZeroU32::new(failures).expect("not zero"),
        pause: seconds(1),
        pause_max: seconds(5),
    })
}

#[test]
fn failures_in_a_row_open_a_breaker() {
    let mut breaker = breaker(3);
    breaker.failed(seconds(10));
    breaker.failed(seconds(10));
    breaker.succeeded();
    breaker.failed(seconds(10));
    breaker.failed(seconds(10));
    assert_eq!(breaker.admit(seconds(10)), Admission::Yes);
    breaker.failed(seconds(10));
    assert_eq!(breaker.admit(seconds(10)), Admission::No { until: seconds(11) });
}

#[test]
fn one_loss_opens_a_breaker() {
    let mut breaker = breaker(3);
    breaker.lost(seconds(10));
    assert!(!breaker.would_admit(seconds(10)));
    breaker.lost(seconds(20));
    breaker.failed(seconds(20));
    breaker.succeeded();
    assert!(!breaker.would_admit(seconds(10)), "what was under way changes nothing");
    assert!(breaker.would_admit(seconds(11)));
}

#[test]
fn one_probe_closes_a_breaker_or_doubles_its_pause() {
    let mut breaker = breaker(3);
    breaker.lost(seconds(0));
    let mut now = 0;
    for pause in [1, 2, 4, 5, 5] {
        now += pause;
        assert!(!breaker.would_admit(seconds(now) - Duration::from_nanos(1)));
        assert!(breaker.would_admit(seconds(now)));
        assert_eq!(breaker.admit(seconds(now)), Admission::Probe);
        assert_eq!(breaker.admit(seconds(now)), Admission::No { until: seconds(now + pause) });
        breaker.failed(seconds(now));
    }
    now += 5;
    assert_eq!(breaker.admit(seconds(now)), Admission::Probe);
    breaker.succeeded();
    assert_eq!(breaker.admit(seconds(now)), Admission::Yes);
    breaker.lost(seconds(now));
    assert_eq!(breaker.admit(seconds(now)), Admission::No { until: seconds(now + 1) });
}

#[test]
fn a_probe_that_is_never_heard_of_is_replaced() {
    let mut breaker = breaker(1);
    breaker.failed(seconds(0));
    assert_eq!(breaker.admit(seconds(1)), Admission::Probe);
    assert_eq!(breaker.admit(seconds(1)), Admission::No { until: seconds(2) });
    assert_eq!(breaker.admit(seconds(2)), Admission::Probe);
}

/// What may happen to a breaker.
#[derive(Clone, Copy, Debug)]
enum Happening {
    Admit,
    Success,
    Failure,
    Loss,
    Later(u64),
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let happening = prop_oneof![
        3 => Just(Happening::Admit),
        1 => Just(Happening::Success),
        2 => Just(Happening::Failure),
        1 => Just(Happening::Loss),
        3 => (0..4_000_000_000_u64).prop_map(Happening::Later),
    ];
    prop::collection::vec(happening, 0..200)
}

proptest! {
    #[test]
    fn a_breaker_asks_a_lost_target_once_a_pause(happenings in happenings()) {
        let mut breaker = breaker(3);
        let (mut now, mut is_lost, mut last_probe) = (Duration::ZERO, false, None::<Duration>);
        for happening in happenings {
            let would_admit = breaker.would_admit(now);
            match happening {
                Happening::Later(nanoseconds) => now += Duration::from_nanos(nanoseconds),
                Happening::Failure => breaker.failed(now),
                Happening::Loss => {
                    breaker.lost(now);
                    is_lost = true;
                }
                Happening::Success => {
                    breaker.succeeded();
                    is_lost &= !would_be_closed(&breaker);
                }
                Happening::Admit => match breaker.admit(now) {
                    Admission::Yes => {
                        prop_assert!(would_admit && !is_lost);
                        last_probe = None;
                    }
                    Admission::Probe => {
                        prop_assert!(would_admit);
                        let earliest = last_probe.map_or(Duration::ZERO, |last| last + seconds(1));
                        prop_assert!(now >= earliest, "{last_probe:?} {now:?}");
                        last_probe = Some(now);
                    }
                    Admission::No { until } => {
                        prop_assert!(!would_admit);
                        prop_assert!(now < until && until <= now + seconds(5));
                    }
                },
            }
        }
        // Whatever has happened, a target that serves again is asked again.
        now += seconds(5);
        prop_assert!(breaker.would_admit(now));
        breaker.admit(now);
        breaker.succeeded();
        prop_assert_eq!(breaker.admit(now), Admission::Yes);
    }
}

fn would_be_closed(breaker: &CircuitBreaker) -> bool {
    breaker.would_admit(Duration::ZERO)
}

#[test]
fn times_at_the_end_of_the_clock_do_not_overflow() {
    let mut breaker = breaker(1);
    breaker.lost(Duration::MAX);
    assert_eq!(breaker.admit(Duration::MAX), Admission::Probe);
    breaker.failed(Duration::MAX);
    assert!(breaker.would_admit(Duration::MAX));
}
