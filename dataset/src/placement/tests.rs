//! Preferences of shards against their rules.

use super::*;
use crate::manifest::{ManifestFile, ShardEntry, TargetEntry};

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// A data set of that many shards, with a replica of each on all targets.
fn manifest(shards: u32, targets: &[&str]) -> Manifest {
    let mut file = ManifestFile::new(name("set"));
    for target in targets {
        let entry = TargetEntry {
            dhchap_ctrl_secret_file: None,
            dhchap_secret_file: None,
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
