//! Seeded worlds: hosts and strangers at a controller, over a network that is hostile.

use crate::world::{Tally, run_world};

/// Returns the number of worlds: 2,000, in a full run of continuous integration 100,000, or
/// `FEEDRAIL_AUTH_WORLDS`.
fn worlds() -> u64 {
    let is_full = std::env::var_os("FEEDRAIL_ALL_WORLDS").is_some();
    let worlds = std::env::var("FEEDRAIL_AUTH_WORLDS").ok();
    let worlds = worlds.map(|text| text.parse().expect("a number"));
    worlds.unwrap_or(if is_full { 100_000 } else { 2_000 })
}

#[test]
fn who_has_the_key_gets_in_and_nobody_else() {
    let worlds = worlds();
    let mut sum = Tally::default();
    for seed in 0..worlds {
        let world = std::panic::catch_unwind(|| run_world(seed));
        sum.add(&world.unwrap_or_else(|_| panic!("the world of seed {seed} fails")));
    }
    println!("{worlds} worlds: {sum:?}");
    assert!(sum.least() > worlds / 8, "too little happens: {sum:?}");
}
