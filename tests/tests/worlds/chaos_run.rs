//! All faults together: see [`feedrail_tests::world::chaos_run`].

use feedrail_tests::world::{Totals, all_worlds, chaos_run, only_seed, with_seeds};

/// Requests of a run, at least; each is one command or more.
const REQUESTS: u64 = 1_000;

fn seeds(range: std::ops::Range<u64>) -> Totals {
    let mut totals = Totals::default();
    with_seeds(range, |seed| {
        let outcome = chaos_run(seed, false);
        assert!(outcome.totals.get("work: commands") >= REQUESTS, "{}", outcome.totals);
        totals.add_all(&outcome.totals);
    });
    totals
}

#[test]
fn no_seed_breaks_the_rules() {
    let totals = seeds(if all_worlds() { 0..100 } else { 0..10 });
    // `sim` expects it of many worlds too.
    if only_seed().is_none() && all_worlds() {
        assert_eq!(totals.missing(), Vec::<&str>::new(), "each fault and each recovery happens");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let seed = only_seed().unwrap_or(4);
    let (first, again, other) =
        (chaos_run(seed, false), chaos_run(seed, false), chaos_run(seed + 1, false));
    assert_eq!(first.trace, again.trace, "a run is a function of its seed");
    assert_eq!(first.totals, again.totals);
    assert_ne!(first.trace, other.trace, "the trace tells runs apart");
}
