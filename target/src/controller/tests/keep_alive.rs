//! Keep Alive: which hosts are dropped, and when.

use super::life::{flush, keep_alive};
use super::*;
use crate::controller::CloseReason;

#[test]
fn only_silent_hosts_are_dropped() {
    let associations = associations();
    let (mut line, cntlid) = ready(&associations, Time::ZERO);
    let mut io = io_queue(&associations, 1, cntlid, Time::ZERO);
    // I/O alone for ten intervals of 5 s keeps the association alive.
    for second in 1..50 {
        io.now = seconds(second);
        io.io(flush()).expect("legal");
        line.now = seconds(second);
        assert_eq!(line.events(), [], "after {second} s");
    }
    // Then silence: dropped within two intervals, and not before one.
    line.now = seconds(54);
    assert_eq!(line.events(), []);
    line.now = seconds(60);
    assert_eq!(line.events(), [QueueEvent::Close(CloseReason::KeepAlive)]);
    assert_eq!(io.events(), [QueueEvent::Close(CloseReason::KeepAlive)]);
    // A second notice of the same loss, after a pause, is not counted.
    line.now = seconds(70);
    assert!(line.queue.end_if_abandoned(line.now));
    assert_eq!(associations.keep_alive_losses(), 1);
    assert!(io.refused(flush()).is(Status::ABORTED_SQ_DELETION));
    line.close();
    io.close();
    assert!(associations.controllers().is_empty());
}

#[test]
fn the_deadline_leads_to_the_timeout() {
    // A driver that sleeps until each deadline notices a silent host in time, and no call is late
    // or without effect.
    let associations = associations();
    let (mut line, _) = ready(&associations, Time::ZERO);
    let mut wakes = 0;
    loop {
        line.now = line.queue.deadline().expect("a keep-alive timer runs");
        wakes += 1;
        match line.events().as_slice() {
            [] => assert!(wakes < 3, "deadlines make progress"),
            [QueueEvent::Close(CloseReason::KeepAlive)] => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(line.now <= seconds(10));
}

#[test]
fn without_kato_silence_is_legal_and_keep_alive_is_not() {
    let associations = associations();
    let mut line = Line::new(&associations, 0, Time::ZERO);
    let connect = Connect { keep_alive_timeout_ms: 0, ..connect_command(0) };
    assert!(line.connect(&connect, &connect_data(Cntlid::DYNAMIC)).status().is_success());
    assert!(line.set_cc(enabled()).is_success());
    assert_eq!(line.queue.deadline(), None);
    line.now = seconds(1_000_000);
    assert_eq!(line.events(), []);
    assert!(line.without_data(keep_alive()).status().is(Status::KEEP_ALIVE_TIMEOUT_INVALID));
}

#[test]
fn discovery_controllers_have_a_default_kato() {
    let associations = associations();
    let mut line = Line::new(&associations, 0, Time::ZERO);
    let connect = Connect { keep_alive_timeout_ms: 0, ..connect_command(0) };
    let data = ConnectData::new(HOST_ID, Cntlid::DYNAMIC, Nqn::DISCOVERY, host("a"));
    assert!(line.connect(&connect, &data).status().is_success());
    assert!(line.set_cc(enabled()).is_success());
    line.now = seconds(119);
    assert_eq!(line.events(), []);
    line.now = seconds(241);
    line.events();
    line.now = seconds(400);
    assert_eq!(line.events(), [QueueEvent::Close(CloseReason::KeepAlive)]);
}

#[test]
fn a_late_check_does_not_extend_the_timeout() {
    let associations = associations();
    let (mut line, _) = ready(&associations, Time::ZERO);
    line.now = seconds(4);
    assert!(line.without_data(keep_alive()).status().is_success());
    // Due after 5 s, but the process was paused.
    line.now = seconds(12);
    assert_eq!(line.events(), []);
    assert_eq!(line.queue.deadline(), Some(seconds(14)), "two timeouts after the command");
    line.now = seconds(14);
    assert_eq!(line.events(), [QueueEvent::Close(CloseReason::KeepAlive)]);
}
