//! Panics in code of the user's that a host calls: they cost nobody else anything.
#![expect(unsafe_code, reason = "memory whose owner panics")]

use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use feedrail_initiator::{
    Entry, Grant, Host, Namespace, RdmaProvider, Region, RegionSlice, Shards, Submit,
};

use crate::served::{Served, block_on, pattern};

const LENGTH: usize = 4 << 20;
const PROVIDERS: [RdmaProvider; 2] = [RdmaProvider::Shm, RdmaProvider::Soft];

struct PanicsAtWake;

impl Wake for PanicsAtWake {
    fn wake(self: Arc<Self>) {
        panic!("a waker of a test");
    }
}

struct PanicsAtDrop;

impl Drop for PanicsAtDrop {
    fn drop(&mut self) {
        panic!("an owner of a test");
    }
}

fn foreign_memory(length: usize) -> NonNull<u8> {
    NonNull::from(Box::leak(vec![0; length].into_boxed_slice())).cast()
}

/// Reads in a task that does not drive: the host's thread has to.
#[track_caller]
fn check(namespace: &Namespace) {
    let (done, result) = mpsc::channel();
    let namespace = namespace.clone();
    thread::spawn(move || {
        for offset in 0..20 {
            let bytes = block_on(namespace.read_to_vec(offset, LENGTH / 2)).unwrap();
            let expected = (offset as usize..).map(pattern);
            assert!(bytes.iter().copied().eq(expected.take(bytes.len())));
        }
        done.send(()).unwrap();
    });
    result.recv_timeout(Duration::from_secs(120)).expect("the host's thread continues");
}

fn each_provider(disturb: impl Fn(&Host, &Namespace)) {
    let served = Served::start(LENGTH, false);
    for provider in PROVIDERS {
        let host = Host::builder().provider(provider).build().unwrap();
        let namespace = served.open(&host);
        for _ in 0..3 {
            disturb(&host, &namespace);
            check(&namespace);
        }
    }
}

#[test]
fn a_host_outlives_wakers_that_panic() {
    each_provider(|_, namespace| {
        let waker = Waker::from(Arc::new(PanicsAtWake));
        let mut context = Context::from_waker(&waker);
        let mut reads: Vec<_> = (0..4).map(|i| namespace.read_to_vec(i, LENGTH - 4)).collect();
        for read in &mut reads {
            // Its waker is called by the host's thread, or by a task that waits beside it.
            let _ = Pin::new(read).poll(&mut context);
        }
        check(namespace);
    });
}

#[test]
fn a_host_outlives_owners_that_panic() {
    each_provider(|host, namespace| {
        let shards = Shards::new([namespace.clone()]).unwrap();
        let length = LENGTH - 4;
        let memory = foreign_memory(length);
        // SAFETY: the memory is never freed, and used through the region only.
        let region =
            unsafe { Region::from_raw(memory, length, Grant::Persistent, Box::new(PanicsAtDrop)) };
        let entry = Entry { shard: 0, length: length as u32, offset: 1, dst: 0 };
        let ticket = host.submit(&shards, &[entry], &region, Submit::default()).unwrap();
        drop((ticket, region));
        let memory = foreign_memory(length);
        let release = || panic!("a release of a test");
        // SAFETY: as above.
        let slice = unsafe { RegionSlice::from_raw(memory, length, Grant::Persistent, release) };
        drop(namespace.read(2, slice));
    });
}
