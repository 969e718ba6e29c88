//! Connect: which hosts and queue ids are accepted where.

use nvme_proto::fabrics::{ConnectData, ConnectParameter};
use nvme_proto::{AdminOpcode, Cntlid, HostId, Nqn, NqnField, Sqe, Status};
use proptest::prelude::*;

use super::*;

fn write() -> Sqe {
    nvme_proto::NvmCommand::Write(nvme_proto::nvm::Io::new(nvme_proto::Nsid(1), 0, 1)).to_sqe()
}

#[track_caller]
fn assert_invalid(cqe: &Cqe, parameter: ConnectParameter) {
    assert!(cqe.status().is(Status::CONNECT_INVALID_PARAMETERS), "{:?}", cqe.status());
    assert_eq!(ConnectParameter::from_dw0(cqe.result() as u32), parameter);
}

fn with(data: &ConnectData, change: impl FnOnce(&mut ConnectData)) -> ConnectData {
    let mut data = *data;
    change(&mut data);
    data
}

#[test]
fn the_response_names_the_controller() {
    let associations = associations();
    let (line, cntlid) = admin(&associations, Time::ZERO);
    assert_eq!(associations.controller(cntlid).expect("live").cntlid, cntlid);
    assert!((1..=Cntlid::MAX.0).contains(&cntlid.0));
    assert!(line.queue.is_live());
}

#[test]
fn controller_ids_stay_in_their_range() {
    let limits = "[limits]\ncntlid_min = 500\ncntlid_max = 501\n";
    let associations = associations_of(&CONFIG.replace("[limits]\n", limits));
    let lines = [(); 2].map(|()| admin(&associations, Time::ZERO));
    let ids = lines.each_ref().map(|(_, cntlid)| cntlid.0);
    assert_eq!(ids, [500, 501]);
    let mut third = Line::new(&associations, 0, Time::ZERO);
    let cqe = third.connect(&connect_command(0), &connect_data(Cntlid::DYNAMIC));
    assert!(cqe.status().is(Status::CONNECT_CONTROLLER_BUSY), "{:?}", cqe.status());

    let [(first, _), (_second, _)] = lines;
    first.close();
    assert_eq!(admin(&associations, Time::ZERO).1, Cntlid(500));
}

#[test]
fn connect_waits_for_pending_storage_operations() {
    let associations = associations();
    let (line, cntlid) = ready(&associations, Time::ZERO);
    let hold = io_queue(&associations, 1, cntlid, Time::ZERO).close_with_a_write();
    line.close();

    let command = connect_command(0);
    let data = connect_data(Cntlid::DYNAMIC);
    let cqe = Line::new(&associations, 0, Time::ZERO).connect(&command, &data);
    assert!(cqe.status().is(Status::CONNECT_CONTROLLER_BUSY), "{:?}", cqe.status());
    assert!(!cqe.status().do_not_retry());
    let other = with(&data, |data| data.hostid = HostId([9; 16]));
    let cqe = Line::new(&associations, 0, Time::ZERO).connect(&command, &other);
    assert!(cqe.status().is_success(), "{:?}", cqe.status());

    drop(hold);
    assert!(Line::new(&associations, 0, Time::ZERO).connect(&command, &data).status().is_success());
}

#[test]
fn connect_waits_for_queues_not_yet_notified() {
    let associations = associations();
    let (line, cntlid) = ready(&associations, Time::ZERO);
    let mut old = io_queue(&associations, 1, cntlid, Time::ZERO);
    line.close();
    let connect = || {
        let mut again = Line::new(&associations, 0, Time::ZERO);
        again.connect(&connect_command(0), &connect_data(Cntlid::DYNAMIC)).status()
    };
    assert!(connect().is(Status::CONNECT_CONTROLLER_BUSY));
    // Its core has not polled for events yet.
    assert!(old.refused(write()).is(Status::ABORTED_SQ_DELETION));
    let hold = old.close_with_a_write();
    assert!(connect().is(Status::CONNECT_CONTROLLER_BUSY));
    drop(hold);
    assert!(connect().is_success());
}

#[test]
fn a_lost_connection_counts_before_its_core_knows() {
    for qid in [0, 1] {
        let associations = associations();
        let (line, cntlid) = ready(&associations, Time::ZERO);
        let io = io_queue(&associations, 1, cntlid, Time::ZERO);
        let lost = if qid == 0 { &line } else { &io };
        lost.lost.set();
        let mut again = Line::new(&associations, 0, Time::ZERO);
        let cqe = again.connect(&connect_command(0), &connect_data(Cntlid::DYNAMIC));
        assert!(cqe.status().is(Status::CONNECT_CONTROLLER_BUSY), "qid {qid}: {:?}", cqe.status());
    }
}

#[test]
fn a_host_may_have_two_live_associations() {
    let associations = associations();
    let (_line, cntlid) = ready(&associations, Time::ZERO);
    let _io = io_queue(&associations, 1, cntlid, Time::ZERO);
    let (_second, other) = ready(&associations, Time::ZERO);
    assert_ne!(cntlid, other);
}

#[test]
fn queues_are_limited_by_address_not_by_name() {
    let limits = "[limits]\nconnections = 9\nconnections_per_host = 3\n";
    let associations = associations_of(&CONFIG.replace("[limits]\n", limits));
    let (command, data) = (connect_command(0), connect_data(Cntlid::DYNAMIC));
    let connect = |data: &ConnectData| {
        let mut line = Line::new(&associations, 0, Time::ZERO);
        let status = line.connect(&command, data).status();
        (line, status)
    };
    let (_first, cntlid) = ready(&associations, Time::ZERO);
    let second = io_queue(&associations, 1, cntlid, Time::ZERO);
    // A host that was refused for another reason takes no permit.
    assert!(connect(&connect_data(Cntlid(5))).1.do_not_retry());
    let (_third, status) = connect(&data);
    assert!(status.is_success(), "{status:?}");
    let (_refused, status) = connect(&data);
    assert!(status.is(Status::CONNECT_CONTROLLER_BUSY) && !status.do_not_retry(), "{status:?}");
    let other =
        ConnectData::new(HostId([9; 16]), Cntlid::DYNAMIC, data.subsystem().unwrap(), host("b"));
    assert!(connect(&other).1.is(Status::CONNECT_CONTROLLER_BUSY));
    second.close();
    assert!(connect(&data).1.is_success());
}

#[test]
fn wrong_admin_connects_get_status_and_offset() {
    let associations = associations();
    let mut line = Line::new(&associations, 0, Time::ZERO);
    let good = connect_command(0);
    let data = connect_data(Cntlid::DYNAMIC);

    let mut format = good.to_sqe();
    format.cdw10 = 1.into();
    let cqe = line.without_data(format);
    assert!(cqe.status().is(Status::CONNECT_INCOMPATIBLE_FORMAT));

    let mut one_entry = good.to_sqe();
    one_entry.cdw11 = 0.into();
    assert_invalid(&line.without_data(one_entry), ConnectParameter::SQSIZE);
    assert_invalid(
        &line.connect(&Connect { queue_entries: 33, ..good }, &data),
        ConnectParameter::SQSIZE,
    );
    assert_invalid(&line.connect(&Connect { qid: Qid(1), ..good }, &data), ConnectParameter::QID);
    assert_invalid(&line.connect(&good, &connect_data(Cntlid(1))), ConnectParameter::CNTLID);
    assert_invalid(&line.connect(&good, &connect_data(Cntlid::STATIC)), ConnectParameter::CNTLID);

    let nowhere = Nqn::new("nqn.2026-01.io.feedrail:nowhere").expect("valid");
    assert_invalid(
        &line.connect(&good, &with(&data, |data| data.subnqn = nowhere.into())),
        ConnectParameter::SUBNQN,
    );
    let unterminated: NqnField =
        nvme_proto::FromBytes::read_from_bytes(&[b'x'; 256][..]).expect("its size");
    assert_invalid(
        &line.connect(&good, &with(&data, |data| data.subnqn = unterminated)),
        ConnectParameter::SUBNQN,
    );
    assert_invalid(
        &line.connect(&good, &with(&data, |data| data.hostnqn = unterminated)),
        ConnectParameter::HOSTNQN,
    );
    assert_invalid(
        &line.connect(&good, &with(&data, |data| data.hostid = HostId::ZERO)),
        ConnectParameter::HOSTID,
    );

    // None of it left a controller behind, and the queue can still connect.
    assert!(associations.controllers().is_empty());
    assert!(line.connect(&good, &data).status().is_success());
}

/// Everything that is logged during `act`.
fn logged(act: impl FnOnce()) -> String {
    let (sender, receiver) = std::sync::mpsc::channel();
    let writer = move || Sent(sender.clone());
    let subscriber = tracing_subscriber::fmt().with_writer(writer).with_ansi(false).finish();
    tracing::subscriber::with_default(subscriber, act);
    String::from_utf8(receiver.try_iter().flatten().collect()).expect("text")
}

struct Sent(std::sync::mpsc::Sender<Vec<u8>>);

impl std::io::Write for Sent {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.send(bytes.to_vec()).map_err(std::io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn each_refusal_of_connect_is_logged() {
    let associations = associations();
    let good = connect_command(0);
    let data = connect_data(Cntlid::DYNAMIC);
    let unusable: NqnField =
        nvme_proto::FromBytes::read_from_bytes(&[b'x'; 256][..]).expect("its size");
    for (command, data, reason) in [
        (Connect { queue_entries: 33, ..good }, data, "SQSIZE"),
        (Connect { qid: Qid(1), ..good }, data, "QID"),
        (good, with(&data, |data| data.hostid = HostId::ZERO), "HOSTID"),
        (good, with(&data, |data| data.hostnqn = unusable), "HOSTNQN"),
        (good, connect_data(Cntlid(1)), "CNTLID"),
    ] {
        let mut line = Line::new(&associations, 0, Time::ZERO);
        let log = logged(|| _ = line.connect(&command, &data));
        assert_eq!(log.lines().count(), 1, "{log}");
        for part in ["connect refused", "127.0.0.9:50000", reason] {
            assert!(log.contains(part), "{part}: {log}");
        }
        assert!(!log.contains("for an I/O command"), "a status of another command: {log}");
    }
}

#[test]
fn a_nameless_host_is_identified_by_hostid() {
    let associations = associations();
    let mut line = Line::new(&associations, 0, Time::ZERO);
    let nameless = |cntlid| {
        with(&connect_data(cntlid), |data| data.hostnqn = nvme_proto::FromZeros::new_zeroed())
    };
    let cqe = line.connect(&connect_command(0), &nameless(Cntlid::DYNAMIC));
    assert!(cqe.status().is_success(), "{:?}", cqe.status());
    assert!(line.set_cc(enabled()).is_success());
    let cntlid = Cntlid(cqe.result() as u16);
    let controller = associations.controller(cntlid).expect("live");
    assert_eq!(controller.host.nqn, HostNqn::from_host_id(HOST_ID));
    let mut io = Line::new(&associations, 1, Time::ZERO);
    assert!(io.connect(&connect_command(1), &nameless(cntlid)).status().is_success());
    // The NQN derived for it gives it no access.
    let closed = CONFIG.replace(
        "nqn.2026-01.io.feedrail:host.friend",
        "nqn.2014-08.org.nvmexpress:uuid:07070707-0707-0707-0707-070707070707",
    );
    let associations = associations_of(&closed);
    let private = Nqn::new("nqn.2026-01.io.feedrail:private").expect("valid");
    let connect = |named: bool| {
        let name = HostNqn::from_host_id(HOST_ID);
        let data = ConnectData::new(HOST_ID, Cntlid::DYNAMIC, private, name);
        let nameless = with(&data, |data| data.hostnqn = nvme_proto::FromZeros::new_zeroed());
        let mut line = Line::new(&associations, 0, Time::ZERO);
        line.connect(&connect_command(0), if named { &data } else { &nameless }).status()
    };
    assert!(connect(true).is_success());
    assert!(connect(false).is(Status::CONNECT_INVALID_HOST));
}

#[test]
fn only_listed_hosts_get_in() {
    let associations = associations();
    let private = Nqn::new("nqn.2026-01.io.feedrail:private").expect("valid");
    let data = |name: &str| ConnectData::new(HOST_ID, Cntlid::DYNAMIC, private, host(name));
    let mut line = Line::new(&associations, 0, Time::ZERO);
    let cqe = line.connect(&connect_command(0), &data("stranger"));
    assert!(cqe.status().is(Status::CONNECT_INVALID_HOST), "{:?}", cqe.status());
    assert!(cqe.status().do_not_retry());
    assert!(line.connect(&connect_command(0), &data("friend")).status().is_success());
}

#[test]
fn connect_must_come_first_and_only_once() {
    let associations = associations();
    let mut line = Line::new(&associations, 0, Time::ZERO);
    let get = PropertyGet { property: Property::CAP, size: PropertySize::EightBytes };
    for sqe in [get.to_sqe(), Sqe::new(AdminOpcode::IDENTIFY.0), Sqe::new(0xFE)] {
        assert!(line.refused(sqe).is(Status::COMMAND_SEQUENCE_ERROR));
    }
    let (mut line, _) = admin(&associations, Time::ZERO);
    assert!(line.refused(connect_command(0).to_sqe()).is(Status::COMMAND_SEQUENCE_ERROR));
}

#[test]
fn io_queues_join_their_controller_and_no_other() {
    let associations = associations();
    let (mut one, first) = admin(&associations, Time::ZERO);
    let good = connect_command(1);
    let data = connect_data(first);
    let mut line = Line::new(&associations, 1, Time::ZERO);
    // Not enabled yet.
    assert!(line.connect(&good, &data).status().is(Status::COMMAND_SEQUENCE_ERROR));
    assert!(one.set_cc(enabled()).is_success());

    let private = Nqn::new("nqn.2026-01.io.feedrail:private").expect("valid");
    assert_invalid(
        &line.connect(&good, &with(&data, |data| data.subnqn = private.into())),
        ConnectParameter::SUBNQN,
    );
    let other = with(&data, |data| data.hostnqn = host("b").0.into());
    assert_invalid(&line.connect(&good, &other), ConnectParameter::HOSTNQN);
    let other = with(&data, |data| data.hostid = HostId([8; 16]));
    assert_invalid(&line.connect(&good, &other), ConnectParameter::HOSTID);
    let unknown = line.connect(&good, &connect_data(Cntlid(first.0 + 1)));
    assert_invalid(&unknown, ConnectParameter::CNTLID);
    assert!(!unknown.status().do_not_retry(), "a host must be free to reconnect");

    assert!(line.connect(&good, &data).status().is_success());
    let mut twin = Line::new(&associations, 1, Time::ZERO);
    assert!(twin.connect(&good, &data).status().is(Status::COMMAND_SEQUENCE_ERROR));
    // One more than was granted.
    let mut beyond = Line::new(&associations, 5, Time::ZERO);
    assert_invalid(&beyond.connect(&connect_command(5), &data), ConnectParameter::QID);
}

#[test]
fn a_discovery_controller_has_no_io_queues() {
    let associations = associations();
    let mut line = Line::new(&associations, 0, Time::ZERO);
    let data = ConnectData::new(HOST_ID, Cntlid::DYNAMIC, Nqn::DISCOVERY, host("a"));
    let cqe = line.connect(&connect_command(0), &data);
    assert!(cqe.status().is_success());
    assert!(line.set_cc(enabled()).is_success());
    let cntlid = Cntlid(cqe.result() as u16);
    let data = ConnectData::new(HOST_ID, cntlid, Nqn::DISCOVERY, host("a"));
    let mut io = Line::new(&associations, 1, Time::ZERO);
    assert_invalid(&io.connect(&connect_command(1), &data), ConnectParameter::QID);
}

#[test]
fn queue_heads_go_round_or_not_at_all() {
    let associations = associations();
    let mut line = Line::new(&associations, 0, Time::ZERO);
    let connect = Connect { queue_entries: 3, ..connect_command(0) };
    let mut heads = vec![line.connect(&connect, &connect_data(Cntlid::DYNAMIC)).sqhd.get()];
    let get = PropertyGet { property: Property::VS, size: PropertySize::FourBytes };
    heads.extend((0..4).map(|_| line.without_data(get.to_sqe()).sqhd.get()));
    assert_eq!(heads, [1, 2, 0, 1, 2]);

    let mut line = Line::new(&associations, 0, Time::ZERO);
    let attributes = ConnectAttributes::new().with_disable_sq_flow_control(true);
    let connect = Connect { attributes, ..connect_command(0) };
    assert_eq!(line.connect(&connect, &connect_data(Cntlid::DYNAMIC)).sqhd.get(), 0xFFFF);
    assert_eq!(line.without_data(get.to_sqe()).sqhd.get(), 0xFFFF);
}

#[test]
fn stopping_admits_no_host() {
    let associations = associations();
    let (mut line, _) = admin(&associations, Time::ZERO);
    associations.stop();
    assert_eq!(line.events(), [QueueEvent::Close(super::super::CloseReason::Stopping)]);
    let mut late = Line::new(&associations, 0, Time::ZERO);
    let cqe = late.connect(&connect_command(0), &connect_data(Cntlid::DYNAMIC));
    assert!(cqe.status().is(Status::CONNECT_CONTROLLER_BUSY));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// No two live controllers share a CNTLID, in any order of connects and ends.
    #[test]
    fn controller_ids_are_unique_while_they_live(steps in prop::collection::vec(0_usize..6, 1..200)) {
        let associations = associations();
        let mut lines: Vec<(Line, Cntlid)> = Vec::new();
        for step in steps {
            if step < 4 || lines.is_empty() {
                let new = admin(&associations, Time::ZERO);
                prop_assert!(lines.iter().all(|(_, cntlid)| *cntlid != new.1));
                lines.push(new);
            } else {
                lines.swap_remove(step % lines.len()).0.close();
            }
            prop_assert_eq!(associations.controllers().len(), lines.len());
        }
    }
}
