//! Ids of work requests, and deadlines of hosts.

use super::*;

#[test]
fn ids_survive_packing() {
    let kinds = [WorkKind::Receive, WorkKind::Fetch, WorkKind::Data, WorkKind::Response];
    for kind in kinds {
        for (connection, index) in [(0, 0), (0x3FFF_FFFF, u32::MAX), (77, 5)] {
            let id = WorkId { kind, connection, index };
            assert_eq!(WorkId::from_bits(id.to_bits()), id);
            let of_one = |id: WorkId, other: WorkId| {
                WorkId::of_one_connection(id.to_bits(), other.to_bits())
            };
            let sibling = WorkId { kind: WorkKind::Receive, index: 7, ..id };
            let stranger = WorkId { connection: connection ^ 1, ..id };
            assert!(of_one(id, sibling) && !of_one(id, stranger));
        }
    }
}

const TIMEOUT: Duration = Duration::from_secs(10);
const RESPONSES: u32 = 64;

fn at(seconds: u64) -> Time {
    Time::from_nanos(1) + Duration::from_secs(seconds)
}

fn is_late(outstanding: &Outstanding, now: Time) -> bool {
    outstanding.deadline().is_some_and(|due| due <= now)
}

#[test]
fn nothing_outstanding_has_no_deadline() {
    let mut outstanding = Outstanding::new(TIMEOUT);
    assert_eq!(outstanding.deadline(), None);
    outstanding.posted(at(0), 0);
    assert_eq!(outstanding.deadline(), Some(at(10)));
    outstanding.done(at(1), 1, 0);
    assert_eq!(outstanding.deadline(), None);
    outstanding.posted(at(100), 0);
    assert_eq!(outstanding.deadline(), Some(at(110)));
}

#[test]
fn one_response_now_and_then_is_not_enough() {
    let mut outstanding = Outstanding::new(TIMEOUT);
    for _ in 0..RESPONSES {
        outstanding.posted(at(0), 0);
    }
    outstanding.done(at(9), 1, 0);
    assert!(!is_late(&outstanding, at(10)));
    outstanding.done(at(18), 1, 0);
    assert!(is_late(&outstanding, at(19)), "the others have waited since the first");
}

#[test]
fn a_host_that_keeps_up_never_times_out() {
    let mut outstanding = Outstanding::new(TIMEOUT);
    for _ in 0..RESPONSES {
        outstanding.posted(at(0), 16);
    }
    for second in 1..1000 {
        outstanding.done(at(second), RESPONSES / 2, RESPONSES / 2 * 16);
        assert!(!is_late(&outstanding, at(second)));
        for _ in 0..RESPONSES / 2 {
            outstanding.posted(at(second), 16);
        }
    }
}

#[test]
fn much_data_may_take_longer() {
    let mut outstanding = Outstanding::new(TIMEOUT);
    let mib = HOST_LEAST_BYTES_PER_SECOND as u32;
    for _ in 0..RESPONSES {
        outstanding.posted(at(0), mib);
    }
    outstanding.done(at(1), 1, mib);
    let due = at(1) + TIMEOUT + Duration::from_secs(63);
    assert_eq!(outstanding.deadline(), Some(due));
    for second in 2..u64::from(RESPONSES) {
        outstanding.done(at(second), 1, mib);
        assert!(!is_late(&outstanding, at(second)));
    }
}
