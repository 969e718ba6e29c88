//! Groups and their queue pairs, on a device that does what it is told.
#![expect(unsafe_code, reason = "work requests name memory by address")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::context::Context;
use super::fake::{Device, complete, context, device, domain, id};
use super::handle::Id;
use super::memory::VerbsRegion;
use super::queue_pair::VerbsQp;
use super::{Verbs, VerbsGroup};
use crate::{
    Access, Group, GroupConfig, Mem, Op, PushError, QpConfig, QpKey, RecvWr, Registered, SendFlags,
    SendWr, Time, WakeFor, Wc, WcStatus,
};

const SMALL: QpConfig =
    QpConfig { send_wr: 4, recv_wr: 4, send_sge: 1, recv_sge: 1, inline_bytes: 0 };

/// The group of a test, on a device that knows nothing of the tests before it.
fn group(context: &Arc<Context>, completions: u32) -> VerbsGroup {
    device(|device| *device = Device::default());
    let config = GroupConfig { completions, queue_pairs: 1, completion_vector: 0 };
    VerbsGroup::new(context, &config).expect("a group")
}

fn queue_pair(
    context: &Arc<Context>,
    group: &VerbsGroup,
    id: &Arc<Id>,
) -> std::io::Result<VerbsQp> {
    queue_pair_with(context, group, id, &SMALL)
}

fn queue_pair_with(
    context: &Arc<Context>,
    group: &VerbsGroup,
    id: &Arc<Id>,
    config: &QpConfig,
) -> std::io::Result<VerbsQp> {
    VerbsQp::create(&domain(context), &context.info.caps, id, &group.handle().0, config)
}

/// A group with a queue pair that is connected.
fn connected() -> (VerbsGroup, QpKey, Arc<Id>) {
    let context = context(64);
    let mut group = group(&context, 64);
    let id = id(&context);
    id.note_ready();
    let qp = queue_pair(&context, &group, &id).expect("a queue pair");
    let key = group.adopt(qp);
    (group, key, id)
}

fn send(group: &mut VerbsGroup, qp: QpKey, wr_id: u64, flags: SendFlags) -> Result<(), PushError> {
    let wr = SendWr { wr_id, op: Op::Send, flags, sges: &[] };
    // SAFETY: the request names no memory.
    unsafe { group.push_send(qp, &wr) }
}

fn receive(group: &mut VerbsGroup, qp: QpKey, wr_id: u64) -> Result<(), PushError> {
    // SAFETY: as above.
    unsafe { group.push_recv(qp, &RecvWr { wr_id, sges: &[] }) }
}

fn poll(group: &mut VerbsGroup) -> Vec<(u64, WcStatus)> {
    let mut wcs = [Wc::default(); 16];
    let count = group.poll(Time::ZERO, &mut wcs);
    wcs[..count].iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

#[test]
fn one_doorbell_hands_over_all_requests() {
    let (mut group, qp, _id) = connected();
    for wr_id in [100, 101] {
        send(&mut group, qp, wr_id, SendFlags::SIGNALED).expect("there is room");
    }
    receive(&mut group, qp, 200).expect("there is room");
    group.flush(Time::ZERO);
    let (sends, receives) = device(|device| {
        assert_eq!(device.doorbells, 1);
        (device.sends.clone(), device.receives.clone())
    });
    for wr_id in [sends[0], receives[0], sends[1]] {
        complete(wr_id, WcStatus::SUCCESS);
    }
    let success = WcStatus::SUCCESS;
    let sends_first = [(100, success), (101, success), (200, success)];
    assert_eq!(poll(&mut group), sends_first);
}

#[test]
fn a_group_armed_for_arrivals_ignores_sends() {
    let (mut group, qp, _id) = connected();
    let armed = || device(|device| device.armed);
    let next = |group: &mut VerbsGroup| {
        send(group, qp, 1, SendFlags::SIGNALED).expect("there is room");
        receive(group, qp, 2).expect("there is room");
        group.flush(Time::ZERO);
        device(|device| (device.sends.pop(), device.receives.pop()))
    };
    let (sent, received) = next(&mut group);
    assert!(group.arm(WakeFor::Arrivals), "it is asked for the first time");
    assert!(!group.arm(WakeFor::Arrivals), "once is enough");
    assert_eq!(armed(), [false, true]);
    complete(sent.expect("sent"), WcStatus::SUCCESS);
    group.acknowledge_wake();
    assert_eq!(device(|device| device.unacknowledged), 0, "nothing woke it");
    complete(received.expect("posted"), WcStatus::SUCCESS);
    group.acknowledge_wake();
    assert_eq!(poll(&mut group), [(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
    assert!(group.arm(WakeFor::Everything));
    assert_eq!(armed(), [true, true]);
    let (sent, _) = next(&mut group);
    complete(sent.expect("sent"), WcStatus::SUCCESS);
    assert!(!group.arm(WakeFor::Everything), "its event is yet to be taken");
    group.acknowledge_wake();
    assert_eq!(device(|device| device.unacknowledged), 2);
    drop(group);
    assert_eq!(device(|device| device.unacknowledged), 0, "destroying a queue waits for that");
}

/// A target posts a receive again before it responds, because the host may send its next command
/// immediately.
#[test]
fn a_full_send_batch_rings_earlier_receives_first() {
    let context = context(512);
    let mut group = group(&context, 512);
    let id = id(&context);
    id.note_ready();
    let config = QpConfig { send_wr: 128, recv_wr: 128, ..SMALL };
    let qp = queue_pair_with(&context, &group, &id, &config).expect("a queue pair");
    let qp = group.adopt(qp);
    for wr_id in 0..64 {
        receive(&mut group, qp, wr_id).expect("there is room");
        // Data and response.
        for _ in 0..2 {
            send(&mut group, qp, wr_id, SendFlags::SIGNALED).expect("there is room");
        }
        let (sends, receives) = device(|device| (device.sends.len(), device.receives.len()));
        assert!(2 * receives >= sends, "{sends} sends went out with {receives} receives posted");
    }
    assert!(device(|device| device.sends.len()) > 0, "no batch was ever full");
}

#[test]
fn a_signaled_success_frees_earlier_requests() {
    let (mut group, qp, _id) = connected();
    for wr_id in 0..4 {
        let flags = if wr_id == 2 { SendFlags::SIGNALED } else { SendFlags::NONE };
        send(&mut group, qp, wr_id, flags).expect("there is room");
    }
    group.flush(Time::ZERO);
    assert_eq!(send(&mut group, qp, 9, SendFlags::NONE), Err(PushError::QueueFull));
    complete(device(|device| device.sends[2]), WcStatus::SUCCESS);
    assert_eq!(poll(&mut group), [(2, WcStatus::SUCCESS)]);
    let taken = (0..4).filter(|_| send(&mut group, qp, 9, SendFlags::NONE).is_ok()).count();
    assert_eq!(taken, 3);
}

#[test]
fn a_refused_request_fails_its_queue_pair() {
    let (mut group, qp, _id) = connected();
    device(|device| device.refuses_after = Some(1));
    let mut arm = || group.arm(WakeFor::Everything);
    assert_eq!([arm(), arm()], [true, false]);
    for wr_id in 0..3 {
        send(&mut group, qp, wr_id, SendFlags::SIGNALED).expect("there is room");
    }
    group.flush(Time::ZERO);
    assert_eq!(device(|device| device.errors), 1);
    assert!(group.arm(WakeFor::Everything), "no event comes for requests that the device refused");
    complete(device(|device| device.sends[0]), WcStatus::FLUSHED);
    let flushed = WcStatus::FLUSHED;
    assert_eq!(poll(&mut group), [(0, flushed), (1, flushed), (2, flushed)]);
}

/// rxe looks at what lies in its receive queue only when it is told of an error.
#[test]
fn each_receive_after_a_failure_is_flushed() {
    let (mut group, qp, _id) = connected();
    receive(&mut group, qp, 1).expect("there is room");
    group.flush(Time::ZERO);
    complete(device(|device| device.receives[0]), WcStatus::FLUSHED);
    assert_eq!(poll(&mut group), [(1, WcStatus::FLUSHED)]);
    assert_eq!(device(|device| device.errors), 1, "requests posted meanwhile are flushed");
    receive(&mut group, qp, 2).expect("there is room");
    group.flush(Time::ZERO);
    assert_eq!(device(|device| device.errors), 2);
}

#[test]
fn a_released_queue_pairs_completions_are_dropped() {
    let (mut group, old, id) = connected();
    send(&mut group, old, 1, SendFlags::SIGNALED).expect("there is room");
    group.flush(Time::ZERO);
    group.release(old);
    let context = context(64);
    let qp = queue_pair(&context, &group, &id).expect("a queue pair");
    let new = group.adopt(qp);
    assert_eq!(new.0 as u32, old.0 as u32, "it takes the place of the old one");
    send(&mut group, new, 2, SendFlags::SIGNALED).expect("there is room");
    group.flush(Time::ZERO);
    let [stale, fresh] = device(|device| [device.sends[0], device.sends[1]]);
    complete(stale, WcStatus::FLUSHED);
    complete(fresh, WcStatus::SUCCESS);
    assert_eq!(poll(&mut group), [(2, WcStatus::SUCCESS)]);
    assert_eq!(device(|device| device.errors), 0);
}

#[test]
fn sends_wait_for_their_connection() {
    let (mut group, _, _) = connected();
    let context = context(64);
    let id = id(&context);
    let qp = queue_pair(&context, &group, &id).expect("a queue pair");
    let qp = group.adopt(qp);
    send(&mut group, qp, 1, SendFlags::SIGNALED).expect("there is room");
    assert!(poll(&mut group).is_empty());
    assert_eq!(device(|device| device.doorbells), 0);
    assert!(group.deadline().is_some(), "no event comes when the connection is made");
    id.note_ready();
    assert!(poll(&mut group).is_empty());
    assert_eq!(device(|device| device.doorbells), 1);
    assert_eq!(group.deadline(), None);
}

#[test]
fn a_failed_connection_flushes_waiting_sends() {
    let (mut group, _, _) = connected();
    let context = context(64);
    let id = id(&context);
    let qp = queue_pair(&context, &group, &id).expect("a queue pair");
    let qp = group.adopt(qp);
    send(&mut group, qp, 1, SendFlags::SIGNALED).expect("there is room");
    id.note_end();
    assert!(poll(&mut group).is_empty());
    assert_eq!(
        device(|device| (device.errors, device.sends.len())),
        (1, 1),
        "the device flushes it"
    );
    group.release(qp);
    assert_eq!(group.deadline(), None);
}

#[test]
fn the_completion_queue_limits_its_queue_pairs() {
    let context = context(10);
    let group = group(&context, 4);
    let ids = [id(&context), id(&context), id(&context)];
    let first = queue_pair(&context, &group, &ids[0]).expect("4 entries are there in each");
    assert!(device(|device| device.log.is_empty()));
    let _second = queue_pair(&context, &group, &ids[1]).expect("they grow");
    assert_eq!(device(|device| core::mem::take(&mut device.log)), ["completion queue resized"; 2]);
    let third = queue_pair(&context, &group, &ids[2]).err().expect("10 entries are the most");
    let text = third.to_string();
    assert!(
        text.contains("fake0") && text.contains("10 is the most") && text.contains("12"),
        "{text}"
    );
    drop(first);
    let third = queue_pair(&context, &group, &ids[2]);
    assert!(third.is_ok(), "the room of one that is gone is free");
}

#[test]
fn a_completion_queue_goes_last() {
    let context = context(64);
    let group = group(&context, 64);
    let id = id(&context);
    let qp = queue_pair(&context, &group, &id).expect("a queue pair");
    drop((group, id));
    assert!(
        device(|device| device.log.is_empty()),
        "a queue pair on its way still completes to it"
    );
    drop(qp);
    let log = device(|device| core::mem::take(&mut device.log));
    let gone = "completion queue destroyed";
    let domain = "protection domain deallocated";
    let order = ["queue pair destroyed", "identifier destroyed", domain, gone, gone];
    assert_eq!(log, order);
}

/// Memory with a token that it holds until it is freed.
type Tracked = (Box<[u8; 64]>, Arc<()>);

fn registered(context: &Arc<Context>) -> (Arc<()>, VerbsRegion, Tracked) {
    let token = Arc::new(());
    let mut memory = (Box::new([0; 64]), Arc::clone(&token));
    let place = Mem::Host { addr: memory.0.as_mut_ptr(), length: 64 };
    // SAFETY: the device is made up, and touches no memory.
    let region = unsafe { VerbsRegion::register(&domain(context), place, Access::LOCAL_WRITE) };
    (token, region.expect("a region"), memory)
}

#[test]
fn memory_is_freed_once_it_was_deregistered() {
    let context = context(64);
    device(|device| *device = Device::default());
    let (token, region, memory) = registered(&context);
    drop(Registered::<Verbs, _>::from_parts(region, memory));
    assert_eq!(Arc::strong_count(&token), 1);
    let log = device(|device| core::mem::take(&mut device.log));
    assert_eq!(log, ["region deregistered", "protection domain deallocated"]);
}

#[test]
fn memory_that_a_device_keeps_is_leaked() {
    let context = context(64);
    device(|device| {
        *device = Device::default();
        device.keeps_regions = true;
    });
    let (token, region, memory) = registered(&context);
    drop(Registered::<Verbs, _>::from_parts(region, memory));
    assert_eq!(Arc::strong_count(&token), 2, "the memory was freed");
    assert_eq!(context.leaked_regions.load(Ordering::Relaxed), 1);
}
