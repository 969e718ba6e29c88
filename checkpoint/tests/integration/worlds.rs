//! Random users, lost power, failures, two writers, bit rot and stale replicas.

use crate::simulator::{ReplicaTally, Tally, run_replicas, run_world};

/// Returns the number of worlds: 300, in a full run of continuous integration 20,000, or
/// `FEEDRAIL_CHECKPOINT_WORLDS`.
fn worlds() -> u64 {
    let is_full = std::env::var_os("FEEDRAIL_ALL_WORLDS").is_some();
    let worlds = std::env::var("FEEDRAIL_CHECKPOINT_WORLDS").ok();
    let worlds = worlds.map(|text| text.parse().expect("a number"));
    worlds.unwrap_or(if is_full { 20_000 } else { 300 })
}

/// Runs the world of a seed, which the message of a panic names.
fn run<T>(seed: u64, world: fn(u64) -> T) -> T {
    let result = std::panic::catch_unwind(|| world(seed));
    result.unwrap_or_else(|_| panic!("the world of seed {seed} fails"))
}

#[test]
fn a_reader_sees_the_old_or_the_new_state() {
    let worlds = worlds();
    let mut sum = Tally::default();
    for seed in 0..worlds {
        let tally = run(seed, run_world);
        sum.commits += tally.commits;
        sum.power_cuts += tally.power_cuts;
        sum.refusals += tally.refusals;
        sum.fenced += tally.fenced;
        sum.contested += tally.contested;
        sum.late += tally.late;
        sum.files += tally.files;
        sum.name_changes += tally.name_changes;
    }
    println!("{worlds} worlds: {sum:?}");
    let each = [
        sum.commits,
        sum.power_cuts,
        sum.refusals,
        sum.fenced,
        sum.contested,
        sum.late,
        sum.files,
        sum.name_changes,
    ];
    assert!(each.iter().all(|&count| count > worlds / 4), "too little happens: {sum:?}");
}

#[test]
fn any_two_replicas_have_what_was_acknowledged() {
    let worlds = worlds();
    let mut sum = ReplicaTally::default();
    for seed in 0..worlds {
        let tally = run(seed, run_replicas);
        sum.acknowledged += tally.acknowledged;
        sum.below_quorum += tally.below_quorum;
        sum.repaired += tally.repaired;
        sum.repairs_cut += tally.repairs_cut;
        sum.refused += tally.refused;
        sum.damaged += tally.damaged;
        sum.rotted += tally.rotted;
        sum.rewritten += tally.rewritten;
    }
    println!("{worlds} worlds of replicas: {sum:?}");
    let each = [
        sum.acknowledged,
        sum.below_quorum,
        sum.repaired,
        sum.repairs_cut,
        sum.refused,
        sum.damaged,
        sum.rotted,
        sum.rewritten,
    ];
    assert!(each.iter().all(|&count| count > worlds / 4), "too little happens: {sum:?}");
}
