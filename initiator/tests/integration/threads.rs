//! Threads that share a host: each is woken when its results are there, never by a timer.

use std::thread;

use feedrail_initiator::{
    Entry, Grant, Host, Namespace, RdmaProvider, ReadRange, Region, RegionSlice, Shards, Submit,
};

use crate::served::{Served, pattern};

/// Bytes of the namespace.
const LENGTH: usize = 1 << 20;
/// Bytes of a range: it crosses blocks.
const RANGE: usize = 2050;
/// Ranges of a batch, a plan or a ring.
const RANGES: usize = 24;
/// How often each thread reads so many.
const ROUNDS: usize = 40;

/// The ways to read of one thread.
const WAYS: [fn(&Host, &Namespace, usize); 4] = [one, batch, ring, plan];

fn check(offset: usize, bytes: &[u8]) {
    assert!(bytes.iter().enumerate().all(|(i, &byte)| byte == pattern(offset + i)), "{offset}");
}

fn range(namespace: &Namespace, offset: usize) -> ReadRange {
    let into = RegionSlice::from_vec(vec![0; RANGE], Grant::Persistent);
    ReadRange { namespace: namespace.clone(), offset: offset as u64, into }
}

fn one(_: &Host, namespace: &Namespace, offset: usize) {
    let mut bytes = vec![0; RANGE];
    namespace.read_at(offset as u64, &mut bytes).unwrap();
    check(offset, &bytes);
}

fn batch(host: &Host, namespace: &Namespace, offset: usize) {
    let ranges = (0..RANGES).map(|i| range(namespace, offset + i));
    for (i, outcome) in host.read_many(ranges).wait().into_iter().enumerate() {
        outcome.result.unwrap();
        check(offset + i, &outcome.slice.bytes());
    }
}

fn ring(host: &Host, namespace: &Namespace, offset: usize) {
    let mut ring = host.ring(RANGES);
    for i in 0..RANGES {
        let ReadRange { offset, into, .. } = range(namespace, offset + i);
        ring.read(namespace, offset, into, i as u64).unwrap();
    }
    let mut outcomes = Vec::new();
    while outcomes.len() < RANGES {
        ring.wait(1, None, &mut outcomes);
    }
    for outcome in outcomes {
        outcome.result.unwrap();
        check(offset + outcome.token as usize, &outcome.slice.bytes());
    }
}

fn plan(host: &Host, namespace: &Namespace, offset: usize) {
    let shards = Shards::new([namespace.clone()]).unwrap();
    let region = Region::allocate(RANGES * RANGE, Grant::Persistent).unwrap();
    let entries: Vec<_> = (0..RANGES as u64)
        .map(|i| Entry {
            shard: 0,
            length: RANGE as u32,
            offset: offset as u64 + i,
            dst: i * RANGE as u64,
        })
        .collect();
    let ticket = host.submit(&shards, &entries, &region, Submit::default()).unwrap();
    assert_eq!(ticket.wait(ticket.len(), None).failed, 0);
    let mut bytes = vec![0; RANGE];
    for i in 0..RANGES {
        region.copy_out(i * RANGE, &mut bytes).unwrap();
        check(offset + i, &bytes);
    }
}

/// Reads on threads in each way, and in all ways side by side.
fn read_on_threads(provider: RdmaProvider, check: impl Fn(u64)) {
    let served = Served::start(LENGTH, false);
    for threads in [2, 8, 32] {
        for way in 0..=WAYS.len() {
            // No timer of the host is due earlier than its connection's own.
            let host = Host::builder().provider(provider).keep_alive_ms(0).build().unwrap();
            let namespace = served.open(&host);
            let before = host.counters().timer_wakes;
            thread::scope(|scope| {
                for thread in 0..threads {
                    let (host, namespace) = (&host, &namespace);
                    let read = WAYS[if way == WAYS.len() { thread % WAYS.len() } else { way }];
                    scope.spawn(move || {
                        for round in 0..ROUNDS {
                            let offset = (thread * 7919 + round * 104_729) % (LENGTH - 4096);
                            read(host, namespace, offset);
                        }
                    });
                }
            });
            let by_timer = host.counters().timer_wakes - before;
            eprintln!("{provider:?}, {threads} threads, way {way}: {by_timer} wakes by timer");
            check(by_timer);
        }
    }
}

#[test]
fn no_wake_up_is_lost_over_shared_memory() {
    // It has no timer that comes before the patience with a peer ends.
    read_on_threads(RdmaProvider::Shm, |by_timer| assert_eq!(by_timer, 0));
}

#[test]
fn no_wake_up_is_lost_over_the_network() {
    // Acknowledgements are due at times: what this shows is that all reads end.
    read_on_threads(RdmaProvider::Soft, |_| ());
}
