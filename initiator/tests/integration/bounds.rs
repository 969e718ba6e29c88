//! Values at and beyond the ends of their ranges: they mean the same with each provider.

use std::time::Duration;

use feedrail_initiator::{
    BatchOptions, ControllerOptions, Entry, Error, ErrorKind, Grant, Host, Namespace, Outcome,
    RdmaProvider, ReadRange, Region, RegionSlice, Ring, RingFull, Shards, Submit, WriteRange,
};

use crate::served::Served;

fn hosts() -> [Host; 2] {
    [RdmaProvider::Shm, RdmaProvider::Soft]
        .map(|provider| Host::builder().provider(provider).build().unwrap())
}

fn slice(length: usize) -> RegionSlice {
    RegionSlice::from_vec(vec![0; length], Grant::Persistent)
}

#[track_caller]
fn assert_timed_out(error: &Error) {
    let is_it = matches!(error.kind(), ErrorKind::TimedOut { after: Duration::ZERO });
    assert!(is_it && error.is_retryable(), "{error}");
}

#[test]
fn options_out_of_range_are_refused() {
    let served = Served::start(4096, false);
    let refused = [
        ControllerOptions::new().queue_entries(1),
        ControllerOptions::new().io_queues(0),
        ControllerOptions::new().connect_timeout(Duration::ZERO),
        ControllerOptions::new().ack_timeout_exponent(0),
    ];
    for host in hosts() {
        for options in &refused {
            let error = Host::builder().controller_options(options.clone()).build().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Invalid(_)), "{error}");
            let error = host.connect_with(served.at, options.clone()).wait().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Invalid(_)), "{error}");
            assert_eq!(error.target(), Some(&served.at));
        }
        let fewest = ControllerOptions::new().queue_entries(2);
        let namespace = host.connect_with(served.at, fewest).wait().unwrap();
        let namespace = namespace.namespace(feedrail_initiator::Nsid(1)).wait().unwrap();
        assert_eq!(namespace.read_to_vec(0, 4096).wait().unwrap().len(), 4096);
    }
}

#[test]
fn nothing_is_sent_without_time() {
    let served = Served::start(4096, true);
    for host in hosts() {
        let namespace = served.open(&host);
        host.start_trace(8);
        let options = BatchOptions::new().deadline(Duration::ZERO);
        let range = || ReadRange { namespace: namespace.clone(), offset: 0, into: slice(512) };
        let outcomes = host.read_many_with(options, [range(), range()]).wait();
        outcomes.iter().for_each(|outcome| assert_timed_out(outcome.result.as_ref().unwrap_err()));
        let range = WriteRange { namespace: namespace.clone(), offset: 0, from: slice(512) };
        let outcomes = host.write_many_with(options, [range]).wait();
        assert_timed_out(outcomes[0].result.as_ref().unwrap_err());
        let mut ring = host.ring_with(1, options);
        ring.read(&namespace, 0, slice(512), 7).unwrap();
        let mut done = Vec::new();
        assert_eq!(ring.wait(1, None, &mut done), 1);
        assert_timed_out(done[0].result.as_ref().unwrap_err());
        let region = Region::allocate(1024, Grant::Persistent).unwrap();
        let entry = |dst| Entry { shard: 0, length: 512, offset: 0, dst };
        let deadline = Submit { deadline: Some(Duration::ZERO), ..Submit::default() };
        let shards = Shards::new([namespace.clone()]).unwrap();
        let ticket = host.submit(&shards, &[entry(0), entry(512)], &region, deadline).unwrap();
        assert_eq!(ticket.wait(2, None).failed, 2);
        assert!(ticket.outcomes().all(|outcome| outcome.status == Outcome::TIMED_OUT));
        assert_eq!(host.counters().timeouts, 6);
        assert!(host.take_trace().unwrap().commands.is_empty());
    }
}

#[test]
fn no_bytes_are_read_into_empty_memory() {
    let served = Served::start(4096, true);
    for host in hosts() {
        let namespace = served.open(&host);
        for offset in [0, 1, 4096] {
            namespace.read(offset, slice(0)).wait().result.unwrap();
            namespace.write(offset, slice(0)).wait().result.unwrap();
            assert!(namespace.read_to_vec(offset, 0).wait().unwrap().is_empty());
            namespace.read_at(offset, &mut []).unwrap();
        }
        let region = Region::allocate(0, Grant::Persistent).unwrap();
        let shards = Shards::new([namespace]).unwrap();
        let entry = Entry { shard: 0, length: 0, offset: 4096, dst: 0 };
        let ticket = host.submit(&shards, &[entry], &region, Submit::default()).unwrap();
        assert_eq!(ticket.wait(1, None).failed, 0);
        host.register(&slice(0)).unwrap();
    }
}

/// A loop that fills the ring as far as it says, and ends when it says that nothing is in flight.
fn write_all(ring: &mut Ring, namespace: &Namespace, count: u64) -> u64 {
    let (mut next, mut done, mut out) = (0, 0, Vec::new());
    while next < count || ring.in_flight() > 0 {
        while next < count && ring.in_flight() < ring.depth() {
            ring.write(namespace, next % 8 * 512, slice(512), next).unwrap();
            next += 1;
        }
        // Of the results that are there some are left in the ring.
        ring.wait(1, None, &mut out);
        for written in out.drain(..) {
            written.result.unwrap();
            done += 1;
        }
    }
    done
}

#[test]
fn a_ring_has_one_count() {
    let served = Served::start(4096, true);
    for host in hosts() {
        let namespace = served.open(&host);
        for depth in [1, 3, 16, 17] {
            let mut ring = host.ring(depth);
            assert_eq!((ring.depth(), write_all(&mut ring, &namespace, 100)), (depth, 100));
        }
        let mut ring = host.ring(2);
        ring.read(&namespace, 0, slice(512), 0).unwrap();
        ring.read(&namespace, 0, slice(512), 1).unwrap();
        let RingFull(back) = ring.write(&namespace, 0, slice(100), 2).unwrap_err();
        assert_eq!((back.len(), ring.in_flight()), (100, 2));
    }
}

#[test]
fn rings_and_traces_have_bounds() {
    let served = Served::start(4096, false);
    for host in hosts() {
        let namespace = served.open(&host);
        assert_eq!(host.ring(usize::MAX).depth(), Ring::MAX_DEPTH);
        let mut ring = host.ring(0);
        assert_eq!(ring.depth(), 1);
        host.start_trace(usize::MAX);
        ring.read(&namespace, 0, slice(512), 0).unwrap();
        assert_eq!(ring.wait(1, None, &mut Vec::new()), 1);
        assert_eq!(host.take_trace().unwrap().commands.len(), 1);
    }
}
