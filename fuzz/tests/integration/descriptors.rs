//! Descriptors that peers in shared memory pass to a process, or that it opens for them, are
//! closed.

use std::sync::atomic::AtomicU64;

use feedrail_fuzz::run::Campaign;
use feedrail_fuzz::{TARGETS, corpus};
use rusty_fork::rusty_fork_test;

rusty_fork_test! {
    /// One test only in this file: others would hold descriptors of their own during this one.
    #[test]
    fn no_descriptor_is_left() {
        let target = TARGETS.into_iter().find(|target| target.name == "shared_memory").unwrap();
        let campaign = Campaign { target, corpus: corpus::load(&target).unwrap(), seed: 9 };
        // The first execution opens what all of them use.
        (campaign.target.run)(&campaign.input(0));
        let before = descriptors();
        for execution in 1..2000 {
            (campaign.target.run)(&campaign.input(execution));
        }
        assert_eq!(descriptors(), before, "seed {}", campaign.seed);
        assert!(campaign.run(1, &[AtomicU64::new(0)]).is_ok());
        assert_eq!(descriptors(), before, "those of a thread that has ended");
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
