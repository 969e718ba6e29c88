//! Tests the simulator: each deliberate bug must be found within 300 worlds.

#[path = "simulator/mod.rs"]
#[allow(dead_code, unused_imports, reason = "worlds only, without their figures")]
mod simulator;

use std::panic;

use feedrail_checkpoint::deliberate_bugs::{BUGS, set};

fn is_found(seed: u64) -> bool {
    let worlds = || (simulator::run_world(seed), simulator::run_replicas(seed));
    panic::catch_unwind(worlds).is_err()
}

#[test]
fn each_bug_is_found() {
    panic::set_hook(Box::new(|_| ()));
    let mut missed = Vec::new();
    for bug in BUGS {
        set(Some(bug));
        let found = (0..300).find(|&seed| is_found(seed));
        println!("{bug:?}: {found:?}");
        set(None);
        if found.is_none_or(is_found) {
            missed.push(bug);
        }
    }
    drop(panic::take_hook());
    assert!(missed.is_empty(), "not found: {missed:?}");
}
