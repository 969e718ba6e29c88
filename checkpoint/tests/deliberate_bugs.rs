//! Tests the simulator: each deliberate bug must be found within 300 worlds.

#[path = "simulator/mod.rs"]
#[allow(dead_code, unused_imports, reason = "worlds only, without their figures")]
mod simulator;

use std::panic;

use feedrail_checkpoint::deliberate_bugs::{BUGS, set};

#[test]
fn each_bug_is_found() {
    panic::set_hook(Box::new(|_| ()));
    let mut missed = Vec::new();
    for bug in BUGS {
        set(Some(bug));
        let found =
            (0..300).find(|seed| panic::catch_unwind(|| simulator::run_world(*seed)).is_err());
        println!("{bug:?}: {found:?}");
        if found.is_none() {
            missed.push(bug);
        }
    }
    set(None);
    drop(panic::take_hook());
    assert!(missed.is_empty(), "not found: {missed:?}");
}
