//! Life of an association: enable, reset, shutdown, abort, and the end.

use nvme_proto::fabrics::Connect;
use nvme_proto::registers::{ShutdownNotification, ShutdownStatus};
use nvme_proto::{AdminCommand, AdminOpcode, Cid, Nsid, Qid, Sqe, Status, admin::Abort};

use super::*;
use crate::controller::{CloseReason, DrainScope, Drained};

pub(super) fn keep_alive() -> Sqe {
    AdminCommand::KeepAlive.to_sqe()
}

pub(super) fn flush() -> Sqe {
    Sqe::new(0x00).with_nsid(nvme_proto::Nsid(1))
}

#[test]
fn admin_commands_wait_for_enable() {
    let associations = associations();
    let (mut line, _) = admin(&associations, Time::ZERO);
    for opcode in [AdminOpcode::IDENTIFY, AdminOpcode::KEEP_ALIVE, AdminOpcode::SET_FEATURES] {
        let status = line.refused(Sqe::new(opcode.0));
        assert!(status.is(Status::COMMAND_SEQUENCE_ERROR), "{opcode}: {status}");
    }
    assert!(!line.csts().rdy());
    assert!(line.set_cc(enabled()).is_success());
    assert!(line.csts().rdy());
    assert!(line.without_data(keep_alive()).status().is_success());
}

#[test]
fn a_configuration_that_is_not_offered_is_fatal() {
    let associations = associations();
    for cc in [
        enabled().with_mps(1),
        enabled().with_ams(1),
        enabled().with_css(CcCss::ALL),
        enabled().with_iosqes(7),
        enabled().with_iocqes(3),
    ] {
        let (mut line, _) = admin(&associations, Time::ZERO);
        assert!(line.set_cc(cc).is_success());
        let csts = line.csts();
        assert!(csts.cfs() && !csts.rdy(), "{cc:?}");
        assert!(line.refused(keep_alive()).is(Status::COMMAND_SEQUENCE_ERROR));
        // A reset clears it.
        assert!(line.set_cc(Cc::new()).is_success());
        assert!(line.set_cc(enabled()).is_success());
        assert!(line.csts().rdy() && !line.csts().cfs());
    }
}

#[test]
fn properties_have_the_values_hosts_require() {
    let associations = associations();
    let (mut line, _) = admin(&associations, Time::ZERO);
    let cap = nvme_proto::registers::Cap::from_bits(line.property(Property::CAP));
    assert_eq!(cap.mqes_z(), 31);
    assert!(cap.css().nvm() && cap.cqr() && cap.mpsmin() == 0 && cap.to() > 0);
    let crto = nvme_proto::registers::Crto::from_bits(line.property(Property::CRTO) as u32);
    assert_eq!(u16::from(cap.to()), crto.crwmt());
    for (property, size) in [
        (Property::CAP, PropertySize::FourBytes),
        (Property::VS, PropertySize::EightBytes),
        (Property::NSSR, PropertySize::FourBytes),
        (Property(0x24), PropertySize::FourBytes),
    ] {
        let status = line.without_data(PropertyGet { property, size }.to_sqe()).status();
        assert!(status.is(Status::INVALID_FIELD), "{property}: {status}");
    }
    let set = PropertySet { property: Property::CSTS, size: PropertySize::FourBytes, value: 0 };
    assert!(line.without_data(set.to_sqe()).status().is(Status::INVALID_FIELD));
}

#[test]
fn connections_without_connect_or_enable_time_out() {
    let associations = associations();
    let mut line = Line::new(&associations, 0, Time::ZERO);
    assert_eq!(line.queue.deadline(), Some(seconds(5)));
    line.now = seconds(5);
    assert_eq!(line.events(), [QueueEvent::Close(CloseReason::ConnectTimeout)]);

    let mut line = Line::new(&associations, 0, Time::ZERO);
    let connect = Connect { keep_alive_timeout_ms: 0, ..connect_command(0) };
    assert!(line.connect(&connect, &connect_data(Cntlid::DYNAMIC)).status().is_success());
    assert_eq!(line.queue.deadline(), Some(seconds(120)));
    line.now = seconds(120);
    assert_eq!(line.events(), [QueueEvent::Close(CloseReason::EnableTimeout)]);
}

#[test]
fn a_busy_host_that_closes_its_io_queues_first_is_alive() {
    let associations = associations();
    let (mut line, cntlid) = ready(&associations, Time::ZERO);
    let mut io = io_queue(&associations, 1, cntlid, Time::ZERO);
    for second in 1..=14 {
        io.now = seconds(second);
        io.io(flush()).expect("legal");
    }
    io.close();
    line.now = seconds(15);
    assert!(!line.queue.end_if_abandoned(line.now));
    assert_eq!(line.events(), []);
    assert_eq!(associations.keep_alive_losses(), 0);
}

#[test]
fn losing_an_io_queue_leaves_the_association_alive() {
    let associations = associations();
    let (mut line, cntlid) = ready(&associations, Time::ZERO);
    let one = io_queue(&associations, 1, cntlid, Time::ZERO);
    let mut two = io_queue(&associations, 2, cntlid, Time::ZERO);
    let abort = AdminCommand::Abort(Abort { sqid: Qid(1), cid: Cid(7) }).to_sqe();
    assert!(line.control(abort, &mut []).is_none());
    let asked_by = Cid(line.next_cid - 1);
    one.close();
    let not_done = QueueEvent::Complete { cid: asked_by, outcome: CommandOutcome::success(1) };
    assert_eq!(line.events(), [not_done]);
    assert_eq!(line.without_data(abort).result(), 1, "there is no such queue");
    line.now = seconds(4);
    assert_eq!(line.events(), []);
    assert_eq!(two.events(), []);
    assert!(two.io(flush()).is_ok());
    let mut again = io_queue(&associations, 1, cntlid, Time::ZERO);
    assert!(again.io(flush()).is_ok());
}

#[test]
fn a_new_queue_waits_for_a_lost_queues_writes() {
    let associations = associations();
    let (line, cntlid) = ready(&associations, Time::ZERO);
    let hold = io_queue(&associations, 1, cntlid, Time::ZERO).close_with_a_write();
    let mut new = Line::new(&associations, 1, Time::ZERO);
    let mut data = connect_data(cntlid).as_bytes().to_vec();
    assert!(new.control(connect_command(1).to_sqe(), &mut data).is_none(), "it is parked");
    let cid = Cid(new.next_cid - 1);
    assert_eq!(new.events(), []);
    drop(hold);
    let outcome = CommandOutcome::success(u64::from(cntlid.0));
    assert_eq!(new.events(), [QueueEvent::Complete { cid, outcome }]);
    assert!(new.io(flush()).is_ok());
    line.close();
}

#[test]
fn a_lost_queue_makes_room_for_its_successor() {
    let associations = associations();
    let (_line, cntlid) = ready(&associations, Time::ZERO);
    let mut old = io_queue(&associations, 1, cntlid, Time::ZERO);
    old.lost.set();
    let mut new = Line::new(&associations, 1, Time::ZERO);
    let mut data = connect_data(cntlid).as_bytes().to_vec();
    assert!(new.control(connect_command(1).to_sqe(), &mut data).is_none(), "the old one is there");
    assert_eq!(old.events(), [QueueEvent::Close(CloseReason::Lost)]);
    old.close();
    assert!(matches!(new.events()[..], [QueueEvent::Complete { .. }]));
}

#[test]
fn losing_the_admin_queue_ends_the_association() {
    let associations = associations();
    let (line, cntlid) = ready(&associations, Time::ZERO);
    let mut io = io_queue(&associations, 1, cntlid, Time::ZERO);
    line.close();
    assert_eq!(io.events(), [QueueEvent::Close(CloseReason::AssociationEnded)]);
    assert_eq!(associations.controllers().len(), 1, "its id is taken while a queue lives");
    io.close();
    assert!(associations.controllers().is_empty());
}

#[test]
fn one_hosts_end_is_no_business_of_anothers() {
    let associations = associations();
    let (line, first) = ready(&associations, Time::ZERO);
    let (mut other, second) = ready(&associations, Time::ZERO);
    let mut io = io_queue(&associations, 1, second, Time::ZERO);
    assert_ne!(first, second);
    line.close();
    assert_eq!(other.events(), []);
    assert_eq!(io.events(), []);
    assert!(io.io(flush()).is_ok());
}

#[test]
fn disconnect_takes_one_queue_out() {
    let associations = associations();
    let (mut line, cntlid) = ready(&associations, Time::ZERO);
    let mut io = io_queue(&associations, 1, cntlid, Time::ZERO);
    let disconnect = nvme_proto::fabrics::Disconnect.to_sqe();
    assert!(line.refused(disconnect).is(Status::INVALID_QUEUE_TYPE));
    assert!(io.without_data(disconnect).status().is_success());
    io.close();
    assert_eq!(line.events(), []);
    // Its id is free again.
    let again = io_queue(&associations, 1, cntlid, Time::ZERO);
    assert!(again.queue.is_live());
}

#[test]
fn a_reset_ends_only_io_queues() {
    let associations = associations();
    let (mut line, cntlid) = ready(&associations, Time::ZERO);
    let mut io = io_queue(&associations, 1, cntlid, Time::ZERO);
    assert!(line.control(AdminCommand::AsyncEventRequest.to_sqe(), &mut []).is_none());
    let parked = Cid(line.next_cid - 1);

    assert!(line.set_cc(Cc::new()).is_success());
    let aborted = QueueEvent::Complete { cid: parked, outcome: Status::ABORT_REQUESTED.into() };
    assert_eq!(line.events(), [aborted]);
    assert_eq!(io.events(), [QueueEvent::Close(CloseReason::Reset)]);
    assert!(io.refused(flush()).is(Status::COMMAND_SEQUENCE_ERROR));
    io.close();

    line.now = seconds(4);
    assert_eq!(line.events(), [], "a queue that was sent away does not end the association");
    assert!(line.set_cc(enabled()).is_success());
    assert!(io_queue(&associations, 1, cntlid, Time::ZERO).queue.is_live());
}

#[test]
fn after_a_shutdown_only_properties_are_served() {
    let associations = associations();
    let (mut line, cntlid) = ready(&associations, Time::ZERO);
    let mut io = io_queue(&associations, 1, cntlid, Time::ZERO);
    assert!(line.set_cc(enabled().with_shn(ShutdownNotification::ABRUPT)).is_success());
    assert_eq!(line.csts().shst(), ShutdownStatus::OCCURRING);
    drop(io.events());
    assert_eq!(line.serve(Ok(())), []);
    assert_eq!(line.csts().shst(), ShutdownStatus::COMPLETE);
    assert!(io.refused(flush()).is(Status::COMMAND_SEQUENCE_ERROR));
    assert!(line.refused(keep_alive()).is(Status::COMMAND_SEQUENCE_ERROR));
    // A host that stays after the shutdown is dropped.
    line.now = seconds(121);
    assert!(matches!(line.events().as_slice(), [QueueEvent::Close(_)]));
}

#[test]
fn aborts_reach_the_queue_that_has_the_command() {
    let associations = associations();
    let (mut line, cntlid) = ready(&associations, Time::ZERO);
    let mut io = io_queue(&associations, 2, cntlid, Time::ZERO);
    let abort = |sqid, cid| AdminCommand::Abort(Abort { sqid: Qid(sqid), cid: Cid(cid) }).to_sqe();

    // A queue that does not exist has nothing to abort.
    assert_eq!(line.without_data(abort(7, 1)).result(), 1);

    assert!(line.control(abort(2, 0x42), &mut []).is_none());
    let asked_by = Cid(line.next_cid - 1);
    let [QueueEvent::Abort(wish)] = io.events()[..] else { panic!("the wish arrives") };
    assert_eq!(wish.cid, Cid(0x42));
    io.queue.answer_abort(wish, true);
    let done = QueueEvent::Complete { cid: asked_by, outcome: CommandOutcome::success(0) };
    assert_eq!(line.events(), [done]);

    // A command that is not answered before its queue leaves is answered by its leaving.
    assert!(line.control(abort(2, 0x43), &mut []).is_none());
    let asked_by = Cid(line.next_cid - 1);
    assert!(io.without_data(nvme_proto::fabrics::Disconnect.to_sqe()).status().is_success());
    io.close();
    let not_done = QueueEvent::Complete { cid: asked_by, outcome: CommandOutcome::success(1) };
    assert_eq!(line.events(), [not_done]);
}

#[test]
fn aborts_are_limited_and_reach_parked_events() {
    let associations = associations();
    let (mut line, cntlid) = ready(&associations, Time::ZERO);
    let _io = io_queue(&associations, 1, cntlid, Time::ZERO);
    let abort = |sqid, cid| AdminCommand::Abort(Abort { sqid: Qid(sqid), cid: Cid(cid) }).to_sqe();
    for cid in 0..4 {
        assert!(line.control(abort(1, cid), &mut []).is_none());
    }
    let status = line.without_data(abort(1, 9)).status();
    assert!(status.is(Status::ABORT_COMMAND_LIMIT_EXCEEDED));

    assert!(line.control(AdminCommand::AsyncEventRequest.to_sqe(), &mut []).is_none());
    let event = Cid(line.next_cid - 1);
    assert!(line.control(abort(0, event.0), &mut []).is_none());
    let asked_by = Cid(line.next_cid - 1);
    let expected = [
        QueueEvent::Complete { cid: event, outcome: Status::ABORT_REQUESTED.into() },
        QueueEvent::Complete { cid: asked_by, outcome: CommandOutcome::success(0) },
    ];
    assert_eq!(line.events(), expected);
}

#[test]
fn queues_that_are_dropped_leave_nothing_behind() {
    let associations = associations();
    let (mut line, cntlid) = ready(&associations, Time::ZERO);
    let io = io_queue(&associations, 1, cntlid, Time::ZERO);
    drop(io);
    assert_eq!(line.events(), []);
    drop(line);
    assert!(associations.controllers().is_empty());
}

#[test]
fn a_reset_waits_for_pending_writes() {
    let associations = associations();
    let (mut line, cntlid) = ready(&associations, Time::ZERO);
    let mut old = io_queue(&associations, 1, cntlid, Time::ZERO);
    assert!(line.set_cc(Cc::new()).is_success());
    assert!(line.csts().rdy(), "a queue is connected");
    assert!(line.set_cc(enabled()).is(Status::COMMAND_SEQUENCE_ERROR));
    assert!(line.refused(keep_alive()).is(Status::COMMAND_SEQUENCE_ERROR));
    assert!(old.refused(flush()).is(Status::COMMAND_SEQUENCE_ERROR));
    let hold = old.close_with_a_write();
    assert!(line.csts().rdy(), "storage has a write");
    let mut new = Line::new(&associations, 1, Time::ZERO);
    let cqe = new.connect(&connect_command(1), &connect_data(cntlid));
    assert!(cqe.status().is(Status::COMMAND_SEQUENCE_ERROR));
    drop(hold);
    assert!(!line.csts().rdy());
    assert!(line.set_cc(enabled()).is_success());
    assert!(line.csts().rdy());
    assert!(new.connect(&connect_command(1), &connect_data(cntlid)).status().is_success());
}

#[test]
fn a_reset_aborts_earlier_commands() {
    let associations = associations();
    let (mut line, _) = ready(&associations, Time::ZERO);
    let command = line.queue.parse(Time::ZERO, &keep_alive()).expect("well-formed");
    let super::super::CommandWork::Control(work) = command.work else {
        panic!("a control command")
    };
    assert!(line.set_cc(Cc::new()).is_success());
    assert!(line.set_cc(enabled()).is_success());
    let execution = line.queue.execute(Time::ZERO, Cid(1), work, &mut []);
    let super::super::Execution::Complete(outcome) = execution else { panic!("it ends") };
    assert!(outcome.status.is(Status::ABORT_REQUESTED), "{:?}", outcome.status);
}

#[test]
fn an_ended_association_cannot_be_enabled() {
    let associations = associations();
    let (mut line, cntlid) = ready(&associations, Time::ZERO);
    let mut io = io_queue(&associations, 1, cntlid, Time::ZERO);
    associations.controller(cntlid).expect("live").end(CloseReason::Stopping);
    let _ = line.set_cc(Cc::new());
    let _ = line.set_cc(enabled());
    let status = io.refused(flush());
    assert!(status.is(Status::ABORTED_SQ_DELETION) && !status.do_not_retry(), "{status}");
}

#[test]
fn a_drain_waits_for_all_commands_that_have_begun() {
    let associations = associations();
    let (_admin, cntlid) = ready(&associations, Time::ZERO);
    let mut io = io_queue(&associations, 1, cntlid, Time::ZERO);
    let blocks = nvme_proto::nvm::Io::new(nvme_proto::Nsid(1), 0, 1);
    let begun = [nvme_proto::NvmCommand::Read(blocks), nvme_proto::NvmCommand::Write(blocks)];
    let mut begun = Vec::from(begun.map(|command| io.io(command.to_sqe()).expect("taken up").1));
    let mut holds = Vec::new();
    let mut drain = |begun: &[_], holds: &mut Vec<_>| {
        let (sender, drained) = std::sync::mpsc::channel();
        let waiting = Arc::clone(&associations);
        let timeout = std::time::Duration::from_secs(if begun.is_empty() { 600 } else { 0 });
        let thread = std::thread::spawn(move || {
            sender.send(waiting.drain(DrainScope::default(), timeout)).expect("awaited");
        });
        let result = loop {
            for event in io.events() {
                let QueueEvent::Quiesce(quiesce) = event else { panic!("{event:?}") };
                holds.extend(begun.iter().filter_map(|work| quiesce.of(work)));
            }
            if let Ok(result) = drained.try_recv() {
                break result;
            }
            std::thread::yield_now();
        };
        thread.join().expect("it ends");
        let late = io.events().into_iter().filter_map(|event| match event {
            QueueEvent::Quiesce(quiesce) => Some(quiesce),
            _ => None,
        });
        late.for_each(|quiesce| holds.extend(begun.iter().filter_map(|work| quiesce.of(work))));
        result
    };
    while !begun.is_empty() {
        assert_eq!(drain(&begun, &mut holds), Drained::UnderWay);
        assert_eq!(holds.len(), begun.len(), "reads are waited for as well");
        holds.clear();
        begun.pop();
    }
    assert_eq!(drain(&begun, &mut holds), Drained::Done);
    let later = io.refused(nvme_proto::NvmCommand::Read(blocks).to_sqe());
    assert!(later.is(Status::ANA_INACCESSIBLE), "{later}");
    assert!(associations.end_drain(DrainScope::default()));
    io.io(nvme_proto::NvmCommand::Read(blocks).to_sqe()).expect("as before");
    let elsewhere =
        DrainScope { address: Some(([192, 0, 2, 7], 1).into()), ..DrainScope::default() };
    assert_eq!(associations.drain(elsewhere, std::time::Duration::ZERO), Drained::Nothing);
    assert!(!associations.end_drain(elsewhere));
}

#[test]
fn a_shutdown_waits_for_writes_and_flushes() {
    let associations = associations();
    let (mut line, cntlid) = ready(&associations, Time::ZERO);
    let mut io = io_queue(&associations, 1, cntlid, Time::ZERO);
    let leaving = io_queue(&associations, 2, cntlid, Time::ZERO).close_with_a_write();
    let write = nvme_proto::nvm::Io::new(nvme_proto::Nsid(1), 0, 1);
    let (_, work) = io.io(nvme_proto::NvmCommand::Write(write).to_sqe()).expect("it is taken up");
    assert!(line.set_cc(enabled().with_shn(ShutdownNotification::NORMAL)).is_success());
    let events = io.events();
    let [QueueEvent::Quiesce(quiesce)] = &events[..] else { panic!("it is asked") };
    let hold = quiesce.of(&work);
    drop(events);
    for step in [hold, Some(leaving)] {
        assert_eq!(line.serve(Ok(())), []);
        assert_eq!(line.csts().shst(), ShutdownStatus::OCCURRING);
        drop(step);
    }
    let Some(QueueEvent::Flush(flush)) = line.queue.poll(line.now) else {
        panic!("it is to be flushed")
    };
    assert_eq!(line.csts().shst(), ShutdownStatus::OCCURRING);
    line.queue.flushed(line.now, flush, Ok(()));
    assert_eq!(line.serve(Ok(())), []);
    assert_eq!(line.csts().shst(), ShutdownStatus::COMPLETE);
}

#[test]
fn a_shutdown_that_cannot_flush_never_completes() {
    let associations = associations();
    let (mut line, _) = ready(&associations, Time::ZERO);
    assert!(line.set_cc(enabled().with_shn(ShutdownNotification::NORMAL)).is_success());
    assert_eq!(line.serve(Err(crate::backend::BackendError::from_errno(libc::EIO))), []);
    let csts = line.csts();
    assert!(csts.cfs() && csts.shst() == ShutdownStatus::OCCURRING, "{csts:?}");
    // A reset starts again.
    assert!(line.set_cc(Cc::new()).is_success());
    let csts = line.csts();
    assert!(!csts.cfs() && csts.shst() == ShutdownStatus::NORMAL, "{csts:?}");
}

#[test]
fn a_reset_gives_up_a_shutdown() {
    let associations = associations();
    let (mut line, _) = ready(&associations, Time::ZERO);
    assert!(line.set_cc(enabled().with_shn(ShutdownNotification::NORMAL)).is_success());
    assert!(line.set_cc(Cc::new()).is_success());
    assert!(line.set_cc(enabled()).is_success());
    assert_eq!(line.serve(Ok(())), []);
    assert_eq!(line.csts(), Csts::new().with_rdy(true));
}

/// A write protection that cannot be stored is reported as an error.
#[test]
fn a_protection_that_nothing_keeps_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = "state_dir = \"state\"\n[[port]]\naddress = \"127.0.0.1\"\n[[subsystem]]\n\
                nqn = \"nqn.2026-01.io.feedrail:t\"\nallow_any_host = true\n\
                [[subsystem.namespace]]\nkind = \"memory\"\nsize_bytes = 4096\n";
    let config = Config::from_toml(&folder.path().join("t.toml"), text).expect("valid");
    let inventory = Inventory::open(&config, OpenPurpose::Serve).expect("opened");
    let associations = Associations::new(inventory);
    let nqn = Nqn::new("nqn.2026-01.io.feedrail:t").expect("valid");
    let protect = |protected| associations.protect_namespace(&nqn, Nsid(1), protected);
    protect(true).expect("it is kept");
    protect(false).expect("it is kept");
    let inventory = associations.inventory();
    let subsystem = inventory.find_subsystem(&nqn).expect("it is there");
    let namespace = subsystem.find_namespace(Nsid(1)).expect("it is there");
    assert!(inventory.keep_protection(&subsystem, &namespace, true, |_| panic!("on purpose")));
    let error = protect(true).expect_err("what keeps it has ended").to_string();
    assert!(error.contains("restart the target"), "{error}");
}
