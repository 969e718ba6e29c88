//! Real processes, and nothing copied on the way that need not be.

use std::fs;

use feedrail_initiator::{ReadRange, WriteRange};
use feedrail_tests::process::{Bytes, DaemonOptions, empty_slice, host, slice_of};

const SIZE_BYTES: usize = 4 << 20;
const RANGE_BYTES: usize = 64 << 10;
const RANGES: usize = SIZE_BYTES / RANGE_BYTES;

/// Aligned ranges pass neither the page cache of the target nor a buffer of the initiator.
#[test]
fn aligned_ranges_are_bounced_nowhere() {
    // Not in /tmp, which may be a file system in memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("scratch.img");
    fs::write(&path, vec![0; SIZE_BYTES]).unwrap();
    let daemon = DaemonOptions::files([&path]).arg("--writable").start();
    daemon.wait_for_log("listening");
    if daemon.log().contains("through the page cache") {
        return eprintln!("not tested, without direct I/O: {}", daemon.log());
    }
    let host = host().io_queues(2).build().unwrap();
    let namespace = daemon.open(&host);
    let content = Bytes::new(3).take(SIZE_BYTES);

    let offset = |index: usize| (index * RANGE_BYTES) as u64;
    let writes = content.chunks(RANGE_BYTES).enumerate().map(|(index, bytes)| WriteRange {
        namespace: namespace.clone(),
        offset: offset(index),
        from: slice_of(bytes),
    });
    for outcome in host.write_many(writes).wait() {
        outcome.result.unwrap();
    }
    let reads = (0..RANGES).map(|index| ReadRange {
        namespace: namespace.clone(),
        offset: offset(index),
        into: empty_slice(RANGE_BYTES),
    });
    for (outcome, expected) in host.read_many(reads).wait().iter().zip(content.chunks(RANGE_BYTES))
    {
        outcome.result.as_ref().unwrap();
        assert!(*outcome.slice.bytes() == *expected);
    }

    let counters = host.counters();
    assert_eq!(counters.bounced_bytes, 0, "{counters:?}");
    assert_eq!(counters.direct_bytes, 2 * SIZE_BYTES as u64, "{counters:?}");
    let stats = daemon.stats();
    let io = &stats["io"];
    assert_eq!((io["bounced"].as_u64(), io["direct"].as_u64()), (Some(0), Some(2 * RANGES as u64)));
    assert_eq!((io["reads"].as_u64(), io["writes"].as_u64()), (Some(64), Some(64)), "{io}");
}
