//! Random users, lost power, failures, two writers and bit rot.

use crate::simulator::{Tally, run_world};

/// Runs 300 worlds, or as many as `FEEDRAIL_CHECKPOINT_WORLDS` says.
#[test]
fn a_reader_sees_the_old_or_the_new_state() {
    let worlds = std::env::var("FEEDRAIL_CHECKPOINT_WORLDS");
    let worlds = worlds.map_or(300, |text| text.parse().expect("a number"));
    let mut sum = Tally::default();
    for seed in 0..worlds {
        let tally = std::panic::catch_unwind(|| run_world(seed));
        let tally = tally.unwrap_or_else(|_| panic!("the world of seed {seed} fails"));
        sum.commits += tally.commits;
        sum.power_cuts += tally.power_cuts;
        sum.refusals += tally.refusals;
        sum.fenced += tally.fenced;
    }
    println!("{worlds} worlds: {sum:?}");
    let each = [sum.commits, sum.power_cuts, sum.refusals, sum.fenced];
    assert!(each.iter().all(|&count| count > worlds / 4), "too little happens: {sum:?}");
}
