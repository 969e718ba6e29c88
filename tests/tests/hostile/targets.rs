//! Targets that break every rule, for a host that has a well-behaved one as well.

use std::time::Duration;

use feedrail_initiator::{ControllerOptions, Host, Namespace, ReadRange};
use feedrail_tests::hostile::{HostileTarget, Manner};
use feedrail_tests::process::{Bytes, Daemon, Vitals, empty_slice, host};
use rusty_fork::rusty_fork_test;

const SIZE_BYTES: usize = 1 << 20;
/// A hostile target is given up after this.
const SOON: Duration = Duration::from_secs(1);
/// A well-behaved target may take long on a busy machine.
const HOST_TIMEOUT: Duration = Duration::from_secs(60);
/// Growth of a process that does not leak, in bytes: its allocator keeps some.
const SLACK_BYTES: u64 = 32 << 20;
/// Connections that each target leaves open or ends in its manner.
const ATTEMPTS: usize = 8;

fn decent(host: &Host, namespace: &Namespace, content: &[u8]) {
    let offsets = (0..16).map(|slot| slot * 60_001);
    let ranges = offsets.clone().map(|offset| ReadRange {
        namespace: namespace.clone(),
        offset: offset as u64,
        into: empty_slice(50_000),
    });
    for (outcome, offset) in host.read_many(ranges).wait().into_iter().zip(offsets) {
        outcome.result.expect("the decent target's data");
        assert!(*outcome.slice.bytes() == content[offset..offset + 50_000]);
    }
}

rusty_fork_test! {
    #[test]
    fn a_hostile_target_affects_no_other_controller() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shard.bin");
        let content = Bytes::new(8).take(SIZE_BYTES);
        std::fs::write(&path, &content).unwrap();
        let daemon = Daemon::serving([path]);
        let host = host().loss_timeout(HOST_TIMEOUT).io_timeout(HOST_TIMEOUT).build().unwrap();
        let namespace = daemon.open(&host);
        decent(&host, &namespace, &content);
        let mut settled = None;
        for manner in Manner::ALL {
            let hostile = HostileTarget::start(manner);
            let options = ControllerOptions::new()
                .connect_timeout(SOON)
                .admin_timeout(SOON)
                .io_timeout(SOON)
                .loss_timeout(SOON);
            let attempt = |_| host.connect_with(hostile.target(), options.clone());
            let pending: Vec<_> = (0..ATTEMPTS).map(attempt).collect();
            decent(&host, &namespace, &content);
            for pending in pending {
                let error = pending.wait().err().unwrap_or_else(|| panic!("{manner:?} was believed"));
                let line = error.to_string();
                println!("{manner:?}: {line}");
                assert!(!line.contains('\n') && line.contains("127."), "{line}");
            }
            decent(&host, &namespace, &content);
            drop(hostile);
            settled.get_or_insert_with(|| Vitals::of(std::process::id()));
        }
        let settled = settled.expect("there are several");
        settled.wait_until_restored(SLACK_BYTES, || Vitals::of(std::process::id()));
    }
}
