//! Tests of waiting commands.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::config::QosLimits;
use crate::core_context::request_key::{OperationOwner, SlotId};
use crate::qos::TollDirection;

const START: Time = Time::from_nanos(60_000_000_000);

fn quota(ios: u64, mbytes: u64) -> Arc<Quota> {
    let (rw_ios, rw_mbytes) = (ios.try_into().expect("valid"), mbytes.try_into().expect("valid"));
    Arc::new(Quota::new(&QosLimits { rw_ios, rw_mbytes, ..QosLimits::default() }))
}

fn throttle(requests: usize) -> Throttle {
    let mut throttle = Throttle::default();
    throttle.turn_on(requests);
    throttle
}

fn key(party: usize, slot: u32) -> RequestKey {
    let owner = OperationOwner::Slot(SlotId(slot));
    RequestKey { transport: 0, connection: party as u32, owner }
}

fn command(party: usize, slot: u32, bytes: u64) -> MeteredCommand {
    let toll = Toll { direction: TollDirection::Read, ios: 1, bytes };
    MeteredCommand {
        whose: key(party, slot),
        namespace: NamespaceIndex { slot: party as u32, serial: 0 },
        toll,
    }
}

/// Commands in the order in which they pass, with their times.
fn drain(throttle: &mut Throttle, mut now: Time) -> Vec<(Time, RequestKey)> {
    let mut passed = Vec::new();
    while let Some(at) = throttle.deadline() {
        now = now.max(at);
        let (whose, _) = throttle.next_due(now).expect("one is due at the deadline");
        passed.push((now, whose));
    }
    assert!(throttle.is_empty());
    passed
}

#[test]
fn queues_of_a_host_take_turns() {
    let (mut throttle, quota) = (throttle(64), quota(1000, 0));
    let mut at_once = 0;
    for slot in 0..20 {
        at_once += u32::from(throttle.pass(START, &quota, 1, command(1, slot, 512)).is_ok());
    }
    assert_eq!(at_once, 11, "those of one slice, and one");
    for slot in 0..3 {
        assert!(throttle.pass(START, &quota, 2, command(2, slot, 512)).is_err());
    }
    let passed = drain(&mut throttle, START);
    let order: Vec<u32> = passed.iter().map(|(_, whose)| whose.connection).collect();
    assert_eq!(order, [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 1]);
    let last = passed.last().map(|(at, _)| *at);
    assert_eq!(last, Some(START + Duration::from_millis(12)), "1 in each millisecond");
    assert_eq!(quota.stats().throttled, 12);
}

#[test]
fn a_quota_without_a_limit_is_passed() {
    let (mut throttle, quota) = (throttle(1), quota(0, 0));
    for slot in 0..1000 {
        assert_eq!(throttle.pass(START, &quota, 1, command(1, slot, 1 << 24)), Ok(()));
    }
    assert_eq!((throttle.deadline(), throttle.next_due(START)), (None, None));
}

#[test]
fn reads_do_not_wait_behind_writes() {
    let w_mbytes = 1.try_into().expect("valid");
    let quota = Arc::new(Quota::new(&QosLimits { w_mbytes, ..QosLimits::default() }));
    let mut throttle = throttle(8);
    let write = |slot| {
        let read = command(1, slot, 1 << 20);
        MeteredCommand { toll: Toll { direction: TollDirection::Write, ..read.toll }, ..read }
    };
    assert_eq!(throttle.pass(START, &quota, 1, write(0)), Ok(()));
    assert!(throttle.pass(START, &quota, 1, write(1)).is_err());
    assert_eq!(throttle.pass(START, &quota, 1, command(1, 2, 1 << 20)), Ok(()));
}

#[test]
fn those_that_leave_are_not_waited_for() {
    let (mut throttle, quota) = (throttle(8), quota(1000, 1));
    assert_eq!(throttle.pass(START, &quota, 1, command(1, 0, 1 << 20)), Ok(()));
    let keys: Vec<WaitKey> = (1..5)
        .map(|slot| throttle.pass(START, &quota, 1, command(1, slot, 512)).expect_err("waits"))
        .collect();
    throttle.leave(START, key(1, 3), keys[2]);
    throttle.leave(START, key(1, 1), keys[0]);
    throttle.leave(START, key(1, 4), keys[3]);
    let passed = drain(&mut throttle, START);
    assert_eq!(passed.iter().map(|(_, whose)| *whose).collect::<Vec<_>>(), [key(1, 2)]);
    assert!(passed[0].0 <= START + Duration::from_secs(1), "it has the tokens of the first");
    // A place that another command has now is not left again.
    let again = throttle.pass(START, &quota, 1, command(1, 7, 1 << 30)).expect_err("waits");
    throttle.leave(START, key(1, 2), keys[1]);
    assert!(!throttle.is_empty());
    throttle.leave(START, key(1, 7), again);
    assert!(throttle.is_empty() && throttle.deadline().is_none());
}

#[test]
fn released_commands_pass_at_once_and_are_paid_for() {
    let (mut throttle, quota) = (throttle(8), quota(0, 1));
    assert_eq!(throttle.pass(START, &quota, 1, command(1, 0, 1 << 20)), Ok(()));
    let keys: Vec<WaitKey> = (1..4)
        .map(|slot| throttle.pass(START, &quota, 1, command(1, slot, 1 << 20)).expect_err("waits"))
        .collect();
    throttle.release(START, |command| command.whose != key(1, 2));
    assert_eq!(throttle.deadline(), Some(Time::ZERO));
    // One that is released and then given up does not pass.
    throttle.leave(START, key(1, 3), keys[2]);
    assert_eq!(throttle.next_due(START), Some((key(1, 1), WaitEnd::Released)));
    assert_eq!(throttle.next_due(START), None);
    throttle.release_one(START, keys[1]);
    throttle.release_one(START, keys[1]);
    assert_eq!(throttle.next_due(START), Some((key(1, 2), WaitEnd::Released)));
    assert_eq!(throttle.next_due(START), None);
    let later = throttle.pass(START, &quota, 1, command(1, 5, 512));
    assert!(later.is_err());
    let at = throttle.deadline().expect("it waits");
    assert!(at >= START + Duration::from_secs(3), "{at:?}");
}

#[test]
fn changed_limits_reach_waiting_commands() {
    let (mut throttle, quota) = (throttle(64), quota(0, 1));
    for slot in 0..64 {
        let _ = throttle.pass(START, &quota, 1, command(1, slot, 1 << 20));
    }
    throttle.follow_changes(START);
    let before = throttle.deadline().expect("they wait");
    quota.set(&QosLimits { rw_mbytes: 1000.try_into().expect("valid"), ..QosLimits::default() });
    throttle.follow_changes(START);
    assert!(throttle.deadline().expect("they wait") < before);
    quota.set(&QosLimits::default());
    throttle.follow_changes(START);
    let passed = drain(&mut throttle, START);
    assert_eq!(passed.len(), 63);
    assert!(passed.iter().all(|(at, _)| *at == START));
}

proptest! {
    /// Several cores with several parties share a quota. Each command passes once, no window has
    /// more than its tokens, and a party waits for one command of each other party at most.
    #[test]
    fn cores_share_a_quota_in_turn(
        arrivals in prop::collection::vec((0_u64..3_000_000, 0_usize..6, 1_u64..9), 1..300),
        leaving in prop::collection::vec(any::<bool>(), 300),
    ) {
        const RATE: u64 = 2000;
        let quota = quota(RATE, 0);
        let mut cores = [throttle(300), throttle(300)];
        let (mut now, mut passed, mut left) = (START, Vec::new(), 0);
        let mut waiting: Vec<Vec<(RequestKey, WaitKey)>> = vec![Vec::new(); 6];
        // Commands of others that passed while a party waited, since it passed or began to wait.
        let mut others = [[0_u32; 6]; 6];
        let count = arrivals.len();
        let mut arrivals = arrivals.into_iter().enumerate().peekable();
        let mut arrives_at = START;
        loop {
            let due = cores.iter_mut().filter_map(Throttle::deadline).min();
            let next = arrivals.peek().map(|(_, (pause, ..))| arrives_at + Duration::from_nanos(*pause));
            match (due, next) {
                (None, None) => break,
                (Some(due), next) if next.is_none_or(|next| due <= next) => {
                    now = now.max(due);
                    let core = usize::from(cores[0].deadline() != Some(due));
                    let (whose, _) = cores[core].next_due(now).expect("due");
                    let party = whose.connection as usize;
                    prop_assert_eq!(waiting[party].remove(0).0, whose, "in order");
                    passed.push(now);
                    for (other, line) in waiting.iter().enumerate() {
                        if other != party && !line.is_empty() {
                            others[other][party] += 1;
                            prop_assert!(others[other][party] <= 2, "turns");
                        }
                    }
                    others[party] = [0; 6];
                }
                (_, Some(next)) => {
                    (arrives_at, now) = (next, now.max(next));
                    let (slot, (_, party, _)) = arrivals.next().expect("it is there");
                    let core = party % 2;
                    let whose = key(party, slot as u32);
                    match cores[core].pass(now, &quota, party, command(party, slot as u32, 512)) {
                        Ok(()) => passed.push(now),
                        Err(wait) if leaving[slot] && slot % 5 == 0 => {
                            cores[core].leave(now, whose, wait);
                            left += 1;
                        }
                        Err(wait) => {
                            if waiting[party].is_empty() {
                                others[party] = [0; 6];
                            }
                            waiting[party].push((whose, wait));
                        }
                    }
                }
                (Some(_), None) => unreachable!(),
            }
        }
        prop_assert_eq!(passed.len() + left, count);
        passed.sort();
        for (from, start) in passed.iter().enumerate() {
            for (to, end) in passed.iter().enumerate().skip(from) {
                let nanos = end.as_nanos() - start.as_nanos() + 10_000_000;
                prop_assert!((to - from) as u64 <= RATE * nanos / 1_000_000_000 + 1);
            }
        }
    }
}
