//! Tests of registered memory regions.

use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use rdma::StillRegistered;

use super::host_memory::{AnyRegion, Registration, ScopeId};
use super::*;
use crate::driver::process::Process;

#[test]
fn a_slice_is_split_and_joined() {
    let mut left = RegionSlice::allocate(100, Grant::Persistent).unwrap();
    let mut right = left.split_off(30);
    left.fill(1);
    right.fill(2);
    assert_eq!((left.len(), right.len(), right.address()), (30, 70, left.address() + 30));
    let (right, left) = right.join(left).unwrap_err();
    let whole = left.join(right).unwrap();
    assert_eq!(whole.to_vec(), [[1; 30].as_slice(), &[2; 70]].concat());
}

#[test]
fn slices_of_different_regions_are_not_joined() {
    let a = RegionSlice::allocate(10, Grant::Persistent).unwrap();
    let b = RegionSlice::allocate(10, Grant::Persistent).unwrap();
    assert!(a.join(b).is_err());
}

#[test]
fn only_a_whole_vector_is_given_back() {
    let mut slice = RegionSlice::from_vec(vec![5; 64], Grant::PerCommand);
    let rest = slice.split_off(32);
    let slice = slice.into_vec().unwrap_err();
    let whole = slice.join(rest).unwrap();
    assert_eq!(whole.into_vec().unwrap(), [5; 64]);
    let pages = RegionSlice::allocate(8, Grant::Persistent).unwrap();
    assert!(pages.into_vec().is_err());
}

#[test]
fn foreign_memory_is_released_with_the_last_slice() {
    let released = Arc::new(AtomicUsize::new(0));
    let memory: &'static mut [u8] = Box::leak(Box::new([0; 64]));
    let address = NonNull::from(memory).cast();
    let count = Arc::clone(&released);
    let release = move || {
        count.fetch_add(1, Ordering::SeqCst);
    };
    // SAFETY: the memory is never freed, and used through slices only.
    let mut slice = unsafe { RegionSlice::from_raw(address, 64, Grant::Persistent, release) };
    let rest = slice.split_off(10);
    drop(slice);
    assert_eq!(released.load(Ordering::SeqCst), 0);
    drop(rest);
    assert_eq!(released.load(Ordering::SeqCst), 1);
}

#[test]
fn only_what_no_target_can_write_is_borrowed() {
    let mut open = RegionSlice::from_vec(vec![7; 16], Grant::Persistent);
    assert!(open.as_slice().is_none() && open.as_mut_slice().is_none());
    assert!(matches!(open.bytes(), Cow::Owned(bytes) if bytes == [7; 16]));
    let mut closed = RegionSlice::from_vec(vec![7; 16], Grant::PerCommand);
    closed.as_mut_slice().unwrap()[3] = 8;
    assert!(matches!(closed.bytes(), Cow::Borrowed(bytes) if bytes[2..5] == [7, 8, 7]));
}

/// A tensor's memory: its owner keeps a pointer, and uses it between operations.
#[test]
fn an_owner_uses_foreign_memory_between_operations() {
    let memory = NonNull::from(Box::leak(Box::new([0u8; 8]))).cast::<u8>();
    let address = MemoryAddress(memory);
    let not_sync = std::cell::Cell::new(0);
    let release = move || {
        not_sync.set(1);
        // SAFETY: it came from a box, and no slice is left.
        drop(unsafe { Box::from_raw({ address }.0.cast::<[u8; 8]>().as_ptr()) });
    };
    // SAFETY: the memory is freed by `release`; nothing reaches it while a method of the slice
    // runs.
    let mut slice = unsafe { RegionSlice::from_raw(memory, 8, Grant::PerCommand, release) };
    slice.fill(1);
    // SAFETY: mapped, and no reference to it exists.
    unsafe { memory.add(3).write(9) };
    assert_eq!(slice.to_vec(), [1, 1, 1, 9, 1, 1, 1, 1]);
}

struct Refuses;

impl AnyRegion for Refuses {
    fn deregister(self: Box<Self>) -> Result<(), StillRegistered> {
        Err(StillRegistered)
    }
}

#[test]
fn memory_that_stays_registered_is_not_freed() {
    let (released, alive) = (Arc::new(AtomicUsize::new(0)), Arc::new(()));
    let refusing = |slice: &RegionSlice| {
        let (scope, alive) = (ScopeId(u64::MAX), Arc::downgrade(&alive));
        let keys = Keys { scope, lkey: 1, rkey: 1 };
        let (process, region) = (Process::current(), Box::new(Refuses));
        let refusal = Registration { scope, alive, keys, process, region };
        slice.region.registrations.write().unwrap().all.push(refusal);
    };
    let count = Arc::clone(&released);
    let release = move || _ = count.fetch_add(1, Ordering::SeqCst);
    let memory = NonNull::from(Box::leak(Box::new([0; 64]))).cast();
    // SAFETY: the memory is never freed, and used through slices only.
    let slice = unsafe { RegionSlice::from_raw(memory, 64, Grant::Persistent, release) };
    refusing(&slice);
    drop(slice);
    assert_eq!(released.load(Ordering::SeqCst), 0);
    let slice = RegionSlice::from_vec(vec![1; 64], Grant::Persistent);
    refusing(&slice);
    let slice = slice.into_vec().unwrap_err();
    assert_eq!(slice.into_vec().unwrap_err().to_vec(), [1; 64]);
}

#[test]
fn empty_slices_are_slices() {
    assert!(RegionSlice::allocate(0, Grant::Persistent).unwrap().is_empty());
    let empty = RegionSlice::from_vec(Vec::new(), Grant::Persistent);
    assert_eq!(empty.chunks(16).map(|chunk| chunk.len()).collect::<Vec<_>>(), [0]);
}

proptest! {
    #[test]
    fn chunks_are_all_of_it_in_order(length in 1usize..5000, chunk in 1usize..700) {
        let mut slice = RegionSlice::allocate(length, Grant::Persistent).unwrap();
        let bytes: Vec<u8> = (0..length).map(|i| i as u8).collect();
        slice.copy_in(0, &bytes);
        let chunks: Vec<_> = slice.chunks(chunk).collect();
        prop_assert!(chunks.iter().rev().skip(1).all(|piece| piece.len() == chunk));
        let whole = chunks.into_iter().reduce(|a, b| a.join(b).unwrap()).unwrap();
        prop_assert_eq!(whole.len(), length);
        prop_assert_eq!(whole.to_vec(), bytes);
    }
}
