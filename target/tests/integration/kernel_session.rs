//! Replay of a capture against a controller: the commands that a Linux 6.12 host sent to the
//! kernel's target (`roce-proto/tests/data`).

#[path = "../../../roce-proto/tests/integration/capture/pcap.rs"]
#[allow(dead_code, reason = "made for the tests of the packets themselves")]
mod pcap;
#[path = "../../../roce-proto/tests/integration/capture/session.rs"]
#[allow(dead_code, reason = "made for the tests of the packets themselves")]
mod session;

use std::path::Path;
use std::sync::Arc;
use std::task::Waker;

use feedrail_target::Config;
use feedrail_target::stepped::Associations;
use feedrail_target::stepped::Inventory;
use feedrail_target::stepped::OpenPurpose;
use feedrail_target::testing::{
    Accepted, CommandOutcome, CommandWork, Execution, IoKind, Queue, QueueEvent,
};
use nvme_proto::fabrics::{ConnectData, FabricsCommand, PropertySet};
use nvme_proto::feature::Feature;
use nvme_proto::identify::{Cns, IdentifyController, IdentifyNamespace};
use nvme_proto::log::LogId;
use nvme_proto::registers::{Cc, CcCss, Property, ShutdownNotification};
use nvme_proto::{AdminCommand, Cntlid, Command, Cqe, FromBytes, Qid, Sqe};
use rdma::Time;
use session::{Exchange, exchanges};

/// Queues in the order of the capture: discovery, then one association's admin queue and I/O queue.
fn queues() -> [Vec<Exchange>; 3] {
    let mut queues: Vec<Vec<Exchange>> = Vec::new();
    for exchange in exchanges() {
        if matches!(exchange.command, Command::Fabrics(FabricsCommand::Connect(_))) {
            queues.push(Vec::new());
        }
        queues.last_mut().expect("Connect comes first").push(exchange);
    }
    queues.try_into().unwrap_or_else(|queues: Vec<_>| panic!("{} queues", queues.len()))
}

fn find(queue: &[Exchange], what: impl Fn(&Command) -> bool) -> &Exchange {
    queue.iter().find(|exchange| what(&exchange.command)).expect("it is in the capture")
}

fn is_identify(command: &Command, cns: Cns) -> bool {
    matches!(command, Command::Admin(AdminCommand::Identify(identify)) if identify.cns == cns)
}

/// A target with the exports of the kernel's.
fn target(admin: &[Exchange]) -> Arc<Associations> {
    let connect = ConnectData::parse(&admin[0].data).expect("its size");
    let nqn = connect.subsystem().expect("a name");
    let namespace = find(admin, |command| is_identify(command, Cns::NAMESPACE));
    let namespace = IdentifyNamespace::ref_from_bytes(&namespace.data).expect("its size");
    let lba_bytes = namespace.lba_format().and_then(|format| format.block_bytes()).expect("valid");
    let size_bytes = namespace.nsze.get() * u64::from(lba_bytes);
    let text = format!(
        "[[port]]\naddress = \"10.9.0.1:4420\"\n[[subsystem]]\nnqn = \"{nqn}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nkind = \"null\"\nsize_bytes = {size_bytes}\nlba_bytes = {lba_bytes}\n"
    );
    let config = Config::from_toml(Path::new("/session.toml"), &text).expect("valid");
    let inventory = Inventory::open(&config, OpenPurpose::Check).expect("nothing to open");
    Associations::new(inventory)
}

fn accept(target: &Arc<Associations>, qid: u16) -> Queue {
    let accepted = Accepted {
        port: Arc::clone(&target.inventory().ports()[0]),
        qid: Qid(qid),
        entries: 128,
        peer: std::net::SocketAddr::from(([10, 9, 0, 2], 50_000)).into(),
        waker: Waker::noop().clone(),
        now: Time::ZERO,
        lost: Arc::default(),
    };
    Queue::new(Arc::clone(target), target.inventory().open_core_io_stats(), accepted)
}

/// Replays a command with its data; returns the response and the data for the host, or `None` if it
/// parked.
fn replay(queue: &mut Queue, exchange: &Exchange, data: &[u8]) -> Option<(Cqe, Vec<u8>)> {
    let cid = exchange.sqe.cid();
    let mut data = data.to_vec();
    let outcome = match queue.parse(Time::ZERO, &selecting_offered(exchange)) {
        Err(outcome) => outcome,
        Ok(command) => {
            let length = command.transfer.map_or(0, |transfer| transfer.length_bytes as usize);
            // The host describes a whole page for one range to deallocate.
            assert!(length <= data.len(), "{:?}", exchange.command);
            data.truncate(length);
            match command.work {
                CommandWork::Control(work) => match queue.execute(Time::ZERO, cid, work, &mut data)
                {
                    Execution::Complete(outcome)
                    | Execution::CompleteAndClose(outcome)
                    | Execution::Disconnect(outcome) => outcome,
                    Execution::Parked | Execution::Postponed => return None,
                },
                CommandWork::Io(work) => {
                    if work.kind == IoKind::Deallocate {
                        queue.check_ranges(&work, &data).expect("inside");
                        assert!(queue.next_range(&work, &data, &mut 0).is_some());
                    }
                    queue.finish_io(cid, &work, Ok(()))
                }
            }
        }
    };
    Some((queue.completion(cid, outcome), data))
}

/// The entry, with the command set changed to one that this target offers: the host selects all I/O
/// command sets as the kernel's target does, ours has the NVM command set alone.
fn selecting_offered(exchange: &Exchange) -> Sqe {
    match exchange.command {
        Command::Fabrics(FabricsCommand::PropertySet(set)) if set.property == Property::CC => {
            let cc = Cc::from_bits(set.value as u32).with_css(CcCss::NVM);
            let set = PropertySet { value: cc.into_bits().into(), ..set };
            set.to_sqe().with_cid(exchange.sqe.cid())
        }
        _ => exchange.sqe,
    }
}

/// Checks that the status is the kernel's, except for commands that this target does not support.
fn check(exchange: &Exchange, answer: Option<&Cqe>) {
    let theirs = exchange
        .response
        .as_ref()
        .map(|response| *Cqe::parse(&response.bytes).expect("a response"));
    match (theirs, answer) {
        (None, None) => {}
        (Some(_), Some(_)) if is_about_ana(&exchange.command) => {}
        (Some(theirs), Some(ours)) => {
            assert_eq!(
                theirs.status().is_success(),
                ours.status().is_success(),
                "{:?}: {} there, {} here",
                exchange.command,
                theirs.status(),
                ours.status()
            );
            assert_eq!(theirs.cid(), ours.cid());
        }
        (theirs, ours) => panic!("{:?}: {theirs:?} there, {ours:?} here", exchange.command),
    }
}

/// Whether a host sends a command only because the kernel's target reports ANA; this one does not.
fn is_about_ana(command: &Command) -> bool {
    match command {
        Command::Admin(AdminCommand::GetLogPage(get)) => get.lid == LogId::ANA,
        Command::Admin(AdminCommand::SetFeatures(set)) => {
            matches!(set.feature, Feature::AsyncEventConfig(config) if config.ana_change())
        }
        _ => false,
    }
}

fn is_shutdown(exchange: &Exchange) -> bool {
    matches!(exchange.command, Command::Fabrics(FabricsCommand::PropertySet(set))
        if set.property == Property::CC
            && Cc::from_bits(set.value as u32).shn() != ShutdownNotification::NONE)
}

fn replay_all(queue: &mut Queue, exchanges: &[Exchange]) {
    for exchange in exchanges {
        let answer = replay(queue, exchange, &exchange.data);
        check(exchange, answer.as_ref().map(|(cqe, _)| cqe));
    }
}

#[test]
fn discovery_is_answered() {
    let [mut discovery, admin, _] = queues();
    let target = target(&admin);
    let mut queue = accept(&target, 0);
    // Asynchronous event requests come last; the host sends them before it shuts the controller
    // down.
    let shutdown = discovery.iter().position(is_shutdown).expect("the host disconnects in order");
    let rest = discovery.split_off(shutdown);
    let (parked, rest): (Vec<_>, Vec<_>) =
        rest.into_iter().partition(|exchange| exchange.response.is_none());
    replay_all(&mut queue, &discovery);
    replay_all(&mut queue, &parked);
    replay_all(&mut queue, &rest);
}

#[test]
fn a_disk_appears_is_used_and_goes() {
    let [_, admin, io] = queues();
    let target = target(&admin);
    let mut admin_queue = accept(&target, 0);
    // Asynchronous event requests are never answered, so they are last in the capture.
    let (parked, answered): (Vec<_>, Vec<_>) =
        admin.into_iter().partition(|exchange| exchange.response.is_none());
    let shutdown = answered.iter().position(is_shutdown).expect("the host disconnects in order");
    let (before, after) = answered.split_at(shutdown);

    let (connected, _) = replay(&mut admin_queue, &before[0], &before[0].data).expect("an answer");
    let cntlid = Cntlid(connected.result() as u16);
    replay_all(&mut admin_queue, &before[1..]);
    assert_eq!(parked.len(), 1);
    replay_all(&mut admin_queue, &parked);

    let failed = target.inventory().io_stats().failed;
    let mut io_queue = accept(&target, 1);
    // The only value that the host took from the kernel's answers: its controller.
    let mut connect = io[0].data.clone();
    connect[16..18].copy_from_slice(&cntlid.0.to_le_bytes());
    let (cqe, _) = replay(&mut io_queue, &io[0], &connect).expect("an answer");
    check(&io[0], Some(&cqe));
    replay_all(&mut io_queue, &io[1..]);
    let stats = target.inventory().io_stats();
    assert!(stats.reads > 0 && stats.writes > 0 && stats.flushes > 0 && stats.deallocates > 0);
    assert_eq!(stats.failed, failed, "no command of the I/O queue failed");

    // The host closes its I/O queue first, and then writes CC.
    drop(io_queue.close());
    assert_eq!(admin_queue.poll(Time::ZERO), None);
    replay_all(&mut admin_queue, after);
    let aborted = admin_queue.poll(Time::ZERO);
    assert!(
        matches!(aborted, Some(QueueEvent::Complete { outcome: CommandOutcome { status, .. }, .. }) if !status.is_success())
    );
    drop(admin_queue.close());
    assert!(target.controllers().is_empty());
}

#[test]
fn the_controller_satisfies_a_linux_host() {
    let [_, admin, _] = queues();
    let target = target(&admin);
    let mut queue = accept(&target, 0);
    let described =
        admin.iter().position(|e| is_identify(&e.command, Cns::CONTROLLER)).expect("asked");
    let mut ours = Vec::new();
    for exchange in &admin[..=described] {
        ours = replay(&mut queue, exchange, &exchange.data).expect("an answer").1;
    }
    let theirs = IdentifyController::ref_from_bytes(&admin[described].data).expect("its size");
    let ours = IdentifyController::ref_from_bytes(&ours).expect("its size");
    assert_eq!((ours.sqes, ours.cqes), (theirs.sqes, theirs.cqes));
    assert_eq!((ours.icdoff, ours.iorcsz), (theirs.icdoff, theirs.iorcsz));
    assert_eq!(ours.ioccsz, theirs.ioccsz);
    assert_eq!(ours.sgls.into_bits() & theirs.sgls.into_bits(), theirs.sgls.into_bits());
    assert_eq!(ours.subnqn, theirs.subnqn);
    assert_eq!(ours.cntrltype, theirs.cntrltype);
    assert!(ours.kas.get() > 0 && ours.maxcmd.get() > 0);
    assert_ne!(ours.cntlid(), Cntlid(0), "hosts send 0 for none");
}
