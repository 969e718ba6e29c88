//! Commands that a Linux host sends between Connect and a usable disk, and other pages and
//! features.

use nvme_proto::async_event::AsyncEvent;
use nvme_proto::feature::{
    AsyncEventConfig, Feature, FeatureId, GetFeatures, QueueCounts, SetFeatures, WriteProtection,
};
use nvme_proto::identify::{
    Cns, ControllerType, Descriptors, IdDescriptor, Identify, IdentifyController,
    IdentifyNamespace, IdentifyNamespaceIndependent, NamespaceList,
};
use nvme_proto::log::{
    ChangedNamespaces, EffectsLog, ErrorLogEntry, GetLogPage, LogId, LogOffset, SmartLog,
    TransportType,
};
use nvme_proto::nvm::Io;
use nvme_proto::{AdminCommand, AdminOpcode, Csi, FromBytes, Nsid, NvmCommand, NvmOpcode};

use super::*;

pub(super) fn identify(line: &mut Line, identify: Identify) -> Result<[u8; 4096], Status> {
    let mut data = [0xEE; 4096];
    let cqe = line.control(identify.to_sqe(), &mut data).expect("it does not park");
    cqe.status().ok().map(|()| data)
}

pub(super) fn identified<T: FromBytes>(line: &mut Line, cns: Cns, nsid: u32) -> T {
    let data = identify(line, Identify::namespace(cns, Nsid(nsid))).expect("it is offered");
    T::read_from_bytes(&data).expect("its size")
}

pub(super) fn log(line: &mut Line, get: GetLogPage) -> Result<Vec<u8>, Status> {
    let mut data = vec![0xEE; usize::try_from(get.length_bytes).expect("small")];
    let cqe = line.control(get.to_sqe(), &mut data).expect("it does not park");
    cqe.status().ok().map(|()| data)
}

pub(super) fn set(line: &mut Line, nsid: u32, feature: Feature) -> Cqe {
    let set = SetFeatures { nsid: Nsid(nsid), save: false, feature };
    line.without_data(set.to_sqe())
}

pub(super) fn get(line: &mut Line, fid: FeatureId) -> Cqe {
    line.without_data(GetFeatures::current(fid).to_sqe())
}

/// Asks for write protection, whose response comes later. Returns the command.
pub(super) fn protect_later(line: &mut Line, nsid: u32) -> Cid {
    let feature = Feature::NamespaceWriteProtection(WriteProtection::Protected);
    let set = SetFeatures { nsid: Nsid(nsid), save: false, feature };
    assert!(line.control(set.to_sqe(), &mut []).is_none(), "it is parked");
    Cid(line.next_cid - 1)
}

/// Sets or clears the write protection of namespace 1.
fn change(line: &mut Line, protected: bool) -> Status {
    if !protected {
        let feature = Feature::NamespaceWriteProtection(WriteProtection::None);
        return set(line, 1, feature).status();
    }
    let asked = protect_later(line, 1);
    match line.serve(Ok(()))[..] {
        [QueueEvent::Complete { cid, outcome }] if cid == asked => outcome.status,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn the_controller_is_one_that_linux_accepts() {
    let associations = associations();
    let (mut line, cntlid) = ready(&associations, Time::ZERO);
    let id: IdentifyController = identified(&mut line, Cns::CONTROLLER, 0);
    assert_eq!(id.cntlid(), cntlid);
    assert_eq!(id.ver.into_bits().get(), line.property(Property::VS) as u32);
    assert_eq!(id.cntrltype, ControllerType::IO);
    assert!(id.kas.get() > 0 && id.maxcmd.get() == 32);
    assert!(id.ioccsz.get() >= 4 && id.iorcsz.get() >= 1 && id.icdoff.get() == 0);
    assert_eq!(id.in_capsule_bytes(), 4096);
    assert_eq!(id.max_transfer_bytes(0), Some(65_536));
    assert!(id.sgls.keyed() && id.sgls.offset() && id.sgls.supported() == 1);
    assert!(id.sgls.longer_than_data(), "Linux sends such for Dataset Management");
    assert!(id.cmic.multiple_controllers() && id.cmic.ana());
    assert_eq!((id.sqes, id.cqes, id.nn.get()), (0x66, 0x44, 3));
    assert!(id.mnan.get() <= id.nn.get());
    assert_eq!(id.subnqn.parse().expect("a name").as_str(), SUBSYSTEM);
    assert_eq!(id.mn.text(), Some("Feedrail"));
    assert_eq!(id.sn.text().map(str::len), Some(20));
    assert_eq!(id.fr.text(), Some(env!("CARGO_PKG_VERSION")));
    assert!(id.vwc.present() && id.nwpc.supported() && id.ofcs.disconnect());
}

#[test]
fn namespaces_are_listed_and_described() {
    let associations = associations();
    let (mut line, _) = ready(&associations, Time::ZERO);
    let list: NamespaceList = identified(&mut line, Cns::ACTIVE_NAMESPACES, 0);
    assert_eq!(list.iter().collect::<Vec<_>>(), [Nsid(1), Nsid(3)]);
    let list: NamespaceList = identified(&mut line, Cns::ACTIVE_NAMESPACES, 1);
    assert_eq!(list.iter().collect::<Vec<_>>(), [Nsid(3)]);

    let memory: IdentifyNamespace = identified(&mut line, Cns::NAMESPACE, 1);
    assert_eq!((memory.nsze.get(), memory.ncap.get()), (2048, 2048));
    assert_eq!(memory.lba_format().and_then(|format| format.block_bytes()), Some(512));
    assert!(!memory.nsattr.write_protected() && memory.nmic.shared());
    let info = memory.file_info().expect("ours");
    assert_eq!((info.length_bytes(), info.name()), (1 << 20, "memory-1"));
    assert!(info.generation().is_some() && info.description().is_none());

    let null: IdentifyNamespace = identified(&mut line, Cns::NAMESPACE, 3);
    assert_eq!(null.nsze.get(), 1 << 30);
    assert_eq!(null.lba_format().and_then(|format| format.block_bytes()), Some(4096));
    assert!(null.nsattr.write_protected());
    let independent: IdentifyNamespaceIndependent =
        identified(&mut line, Cns::INDEPENDENT_NAMESPACE, 3);
    assert!(independent.nstat.nrdy() && independent.nsattr.write_protected());

    let data = identify(&mut line, Identify::namespace(Cns::NAMESPACE_DESCRIPTORS, Nsid(1)))
        .expect("there");
    let uuid = associations.inventory().namespaces()[0].uuid().into_bytes();
    let descriptors: Vec<_> = Descriptors::new(&data).collect();
    let expected =
        [IdDescriptor::Uuid(uuid), IdDescriptor::Nguid(uuid), IdDescriptor::Csi(Csi::NVM)];
    assert_eq!(descriptors, expected);
}

#[test]
fn sparse_files_are_thin_and_tell_their_use() {
    use std::os::unix::fs::FileExt as _;

    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("sparse");
    let file = std::fs::File::create(&path).expect("made");
    file.set_len(1 << 20).expect("extended");
    let text = format!(
        "{CONFIG}\n[[subsystem]]\nnqn = \"nqn.2026-01.io.feedrail:sparse\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\npath = {path:?}\nread_only = false\n"
    );
    let associations = associations_of(&text);
    let mut line = Line::new(&associations, 0, Time::ZERO);
    let subsystem = Nqn::new("nqn.2026-01.io.feedrail:sparse").expect("valid");
    let data = ConnectData::new(HOST_ID, Cntlid::DYNAMIC, subsystem, host("a"));
    assert!(line.connect(&connect_command(0), &data).status().is_success());
    assert!(line.set_cc(enabled()).is_success());
    let mut used_bytes = || {
        let id: IdentifyNamespace = identified(&mut line, Cns::NAMESPACE, 1);
        let block = u64::from(id.lba_format().and_then(|f| f.block_bytes()).expect("a format"));
        assert!(id.nsfeat.thin() && id.nuse <= id.ncap && id.ncap == id.nsze);
        id.nuse.get() * block
    };
    let empty = used_bytes();
    assert!(empty < 1 << 20, "{empty}");
    file.write_all_at(&[0xA5; 256 << 10], 512 << 10).expect("written");
    file.sync_all().expect("on the medium");
    let filled = used_bytes();
    assert!(filled > empty && filled < 1 << 20, "{empty} and then {filled}");

    let (mut line, _) = ready(&associations, Time::ZERO);
    let memory: IdentifyNamespace = identified(&mut line, Cns::NAMESPACE, 1);
    assert!(!memory.nsfeat.thin() && memory.nuse == memory.nsze);
}

#[test]
fn unallocated_and_invalid_nsids_differ() {
    let associations = associations();
    let (mut line, _) = ready(&associations, Time::ZERO);
    // In range, but without a namespace: zeros.
    assert_eq!(identify(&mut line, Identify::namespace(Cns::NAMESPACE, Nsid(2))), Ok([0; 4096]));
    let invalid = [
        (Cns::NAMESPACE, 0),
        (Cns::NAMESPACE, 4),
        (Cns::NAMESPACE, u32::MAX),
        (Cns::NAMESPACE_DESCRIPTORS, 2),
        (Cns::INDEPENDENT_NAMESPACE, 0),
        (Cns::IO_COMMAND_SET_NAMESPACE, 9),
        (Cns::ACTIVE_NAMESPACES, 0xFFFF_FFFE),
        (Cns::ACTIVE_NAMESPACES, u32::MAX),
    ];
    for (cns, nsid) in invalid {
        let status =
            identify(&mut line, Identify::namespace(cns, Nsid(nsid))).expect_err("no namespace");
        assert!(status.is(Status::INVALID_NAMESPACE_OR_FORMAT), "{cns} {nsid}: {status}");
    }
    for cns in [Cns::NVM_SETS, Cns::IO_COMMAND_SETS, Cns(0xC0)] {
        let status = identify(&mut line, Identify::new(cns)).expect_err("not offered");
        assert!(status.is(Status::INVALID_FIELD), "{cns}: {status}");
    }
    let zoned = Identify { csi: Csi::ZONED, ..Identify::new(Cns::IO_COMMAND_SET_CONTROLLER) };
    assert!(identify(&mut line, zoned).expect_err("not offered").is(Status::INVALID_FIELD));
}

#[test]
fn queues_are_granted_before_there_are_any() {
    let associations = associations();
    let (mut line, cntlid) = ready(&associations, Time::ZERO);
    let ask = |count| Feature::NumberOfQueues(QueueCounts::pairs(count));
    assert_eq!(set(&mut line, 0, ask(128)).result(), 0x0003_0003);
    assert_eq!(set(&mut line, 0, ask(2)).result(), 0x0001_0001);
    assert_eq!(get(&mut line, FeatureId::NUMBER_OF_QUEUES).result(), 0x0001_0001);
    let mut beyond = Line::new(&associations, 3, Time::ZERO);
    assert!(!beyond.connect(&connect_command(3), &connect_data(cntlid)).status().is_success());
    let _io = io_queue(&associations, 2, cntlid, Time::ZERO);
    assert!(set(&mut line, 0, ask(4)).status().is(Status::COMMAND_SEQUENCE_ERROR));
}

#[test]
fn features_are_got_and_set() {
    let associations = associations();
    let (mut line, _) = ready(&associations, Time::ZERO);
    assert_eq!(get(&mut line, FeatureId::KEEP_ALIVE_TIMER).result(), 5000);
    assert!(set(&mut line, 0, Feature::KeepAliveTimer { timeout_ms: 250 }).status().is_success());
    assert_eq!(get(&mut line, FeatureId::KEEP_ALIVE_TIMER).result(), 250);
    // In whole units of the granularity that the controller reports.
    assert_eq!(line.queue.deadline(), Some(Time::ZERO + Duration::from_millis(300)));

    assert_eq!(get(&mut line, FeatureId::VOLATILE_WRITE_CACHE).result(), 1);
    let off = set(&mut line, 0, Feature::VolatileWriteCache { enabled: false }).status();
    assert!(off.is(Status::FEATURE_NOT_CHANGEABLE));

    let mut id = [0; 16];
    let cqe = line.control(GetFeatures::current(FeatureId::HOST_IDENTIFIER).to_sqe(), &mut id);
    assert!(cqe.expect("it does not park").status().is_success());
    assert_eq!(id, HOST_ID.0);
    let set_id = Feature::HostIdentifier { extended: true };
    assert!(set(&mut line, 0, set_id).status().is(Status::COMMAND_SEQUENCE_ERROR));

    let power = FeatureId::POWER_MANAGEMENT;
    assert!(get(&mut line, power).status().is(Status::INVALID_FIELD));
    let arbitration = Feature::parse(FeatureId::ARBITRATION, 3).expect("valid");
    assert!(set(&mut line, 1, arbitration).status().is(Status::FEATURE_NOT_NAMESPACE_SPECIFIC));
    let save = SetFeatures { nsid: Nsid::NONE, save: true, feature: arbitration };
    let status = line.without_data(save.to_sqe()).status();
    assert!(status.is(Status::FEATURE_IDENTIFIER_NOT_SAVEABLE));
    let unknown = Feature::AsyncEventConfig(AsyncEventConfig::new().with_firmware_activation(true));
    assert!(set(&mut line, 0, unknown).status().is(Status::INVALID_FIELD));
}

pub(super) fn read_changed(line: &mut Line, get: GetLogPage) -> Result<Vec<Nsid>, Status> {
    let page = log(line, get)?;
    let (changed, _) = ChangedNamespaces::ref_from_prefix(&page).expect("its size");
    Ok(changed.iter().collect())
}

#[test]
fn a_changed_namespace_is_listed_until_read() {
    let associations = associations();
    let (mut line, _) = ready(&associations, Time::ZERO);
    let (mut other, _) = ready(&associations, Time::ZERO);
    let whole = GetLogPage::new(LogId::CHANGED_NAMESPACES, 4096);
    let retain = GetLogPage { retain_event: true, ..whole };
    assert!(change(&mut line, true).is_success());
    let beyond = log(&mut other, GetLogPage::new(LogId::CHANGED_NAMESPACES, 4).at(8192));
    assert!(beyond.expect_err("beyond the end").is(Status::INVALID_FIELD));
    let index = GetLogPage { offset: LogOffset::Index(0), ..whole };
    assert!(log(&mut other, index).expect_err("it has no index").is(Status::INVALID_FIELD));
    assert_eq!(read_changed(&mut other, retain), Ok(vec![Nsid(1)]));
    assert_eq!(read_changed(&mut other, retain), Ok(vec![Nsid(1)]));
    assert_eq!(read_changed(&mut other, whole), Ok(vec![Nsid(1)]));
    assert_eq!(read_changed(&mut other, whole), Ok(vec![]));
}

/// One core changes a namespace while another reads the list: the change is in the list that is
/// read, or reported again.
#[test]
fn a_change_during_a_read_is_never_lost() {
    const ROUNDS: usize = 10_000;
    let associations = associations();
    let (mut line, _) = ready(&associations, Time::ZERO);
    let (mut other, _) = ready(&associations, Time::ZERO);
    let wants = Feature::AsyncEventConfig(AsyncEventConfig::new().with_namespace_attribute(true));
    assert!(set(&mut other, 0, wants).status().is_success());
    let request = AdminCommand::AsyncEventRequest.to_sqe();
    (0..2).for_each(|_| assert!(other.control(request, &mut []).is_none()));
    let whole = GetLogPage::new(LogId::CHANGED_NAMESPACES, 4096);
    let together = std::sync::Barrier::new(2);
    // Asserted after the other thread has ended, which would otherwise wait for ever.
    let mut seen = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                let _ = change(&mut line, true);
                together.wait();
                (0..round % 3000).for_each(|_| std::hint::spin_loop());
                let _ = change(&mut line, false);
                together.wait();
                together.wait();
            }
        });
        for _ in 0..ROUNDS {
            together.wait();
            let during = read_changed(&mut other, whole);
            together.wait();
            let told = other.events().len();
            let left = read_changed(&mut other, whole);
            for _ in 0..told {
                let _ = other.control(request, &mut []);
            }
            seen.push((told, during, left));
            together.wait();
        }
    });
    for (told, during, left) in seen {
        assert_eq!(during, Ok(vec![Nsid(1)]), "the first change is in the list");
        let again = left.expect("offered").len();
        assert_eq!(told, 1 + again, "each change that the list still holds was told");
    }
}

#[test]
fn hosts_are_notified_of_a_changed_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("shard");
    std::fs::write(&path, [1; 4096]).expect("written");
    let namespace = format!("[[subsystem.namespace]]\nkind = \"file\"\npath = {path:?}\n");
    let text = CONFIG.replacen(
        "[[subsystem.namespace]]",
        &format!("{namespace}[[subsystem.namespace]]"),
        1,
    );
    let associations = associations_of(&text);
    let (mut line, _) = ready(&associations, Time::ZERO);
    let wants = Feature::AsyncEventConfig(AsyncEventConfig::new().with_namespace_attribute(true));
    assert!(set(&mut line, 0, wants).status().is_success());
    assert!(line.control(AdminCommand::AsyncEventRequest.to_sqe(), &mut []).is_none());
    let file = &associations.inventory().namespaces()[0];
    let generation = |line: &mut Line| {
        let id: IdentifyNamespace = identified(line, Cns::NAMESPACE, file.nsid.0);
        id.file_info().and_then(|info| info.generation()).expect("told")
    };
    let before = generation(&mut line);
    associations.look_at_file(file, &mut || true);
    assert_eq!((line.events().len(), generation(&mut line)), (0, before));
    // The clock of inodes may stand still for some milliseconds.
    while generation(&mut line) == before {
        std::fs::write(&path, [2; 4096]).expect("written");
        associations.look_at_file(file, &mut || true);
    }
    assert_eq!(line.events().len(), 1);
    let whole = GetLogPage::new(LogId::CHANGED_NAMESPACES, 4096);
    assert_eq!(read_changed(&mut line, whole), Ok(vec![file.nsid]));
}

#[test]
fn a_degraded_medium_is_a_critical_warning() {
    let associations = associations();
    let (mut line, _) = ready(&associations, Time::ZERO);
    let (mut deaf, _) = ready(&associations, Time::ZERO);
    let wants = Feature::AsyncEventConfig(AsyncEventConfig::new().with_smart_critical_warnings(4));
    assert!(set(&mut line, 0, wants).status().is_success());
    for line in [&mut line, &mut deaf] {
        assert!(line.control(AdminCommand::AsyncEventRequest.to_sqe(), &mut []).is_none());
    }
    let namespace = &associations.inventory().namespaces()[0];
    associations.announce_health(namespace);
    assert_eq!(line.events(), []);
    namespace.health().write_back_fails();
    associations.announce_health(namespace);
    associations.announce_health(namespace);
    let events = line.events();
    let told = u64::from(AsyncEvent::RELIABILITY_DEGRADED.into_bits());
    assert!(
        matches!(events[..], [QueueEvent::Complete { outcome, .. }] if outcome.result == told),
        "{events:?}"
    );
    assert_eq!(deaf.events(), [], "it did not ask for it");
    let page = log(&mut line, GetLogPage::new(LogId::SMART, 512)).expect("offered");
    let smart = SmartLog::ref_from_bytes(&page).expect("its size");
    assert_eq!(smart.critical_warning.into_bits(), 4);
}

#[test]
fn event_requests_are_limited() {
    let associations = associations();
    let (mut line, _) = ready(&associations, Time::ZERO);
    for _ in 0..4 {
        assert!(line.control(AdminCommand::AsyncEventRequest.to_sqe(), &mut []).is_none());
    }
    let fifth = line.without_data(AdminCommand::AsyncEventRequest.to_sqe()).status();
    assert!(fifth.is(Status::ASYNC_EVENT_REQUEST_LIMIT_EXCEEDED));
}

#[test]
fn errors_are_logged_with_their_place() {
    let associations = associations();
    let (mut line, cntlid) = ready(&associations, Time::ZERO);
    let mut io = io_queue(&associations, 2, cntlid, Time::ZERO);
    let read = NvmCommand::Read(Io::new(Nsid(1), 2048, 1));
    let status = io.refused(read.to_sqe().with_cid(Cid(0x77)));
    assert!(status.is(Status::LBA_OUT_OF_RANGE) && status.more());
    line.refused(Sqe::new(0xC5));

    let page = log(&mut line, GetLogPage::new(LogId::ERROR, 192)).expect("offered");
    let entries = <[ErrorLogEntry]>::ref_from_bytes(&page).expect("their size");
    assert_eq!((entries[0].error_count.get(), entries[0].opcode), (2, 0xC5));
    let entry = entries[1];
    assert_eq!((entry.error_count.get(), entry.sqid.get(), entry.cid.get()), (1, 2, 0x77));
    assert!(entry.status().is(Status::LBA_OUT_OF_RANGE));
    assert_eq!((entry.nsid.get(), entry.lba.get(), entry.parameter_location.get()), (1, 2048, 40));
    assert_eq!(entry.trtype, TransportType::RDMA.0);
    assert_eq!(entries[2].error_count.get(), 0);

    // A flood keeps the newest entries, and counts all.
    for _ in 0..200 {
        line.refused(Sqe::new(0xC6));
    }
    let page = log(&mut line, GetLogPage::new(LogId::ERROR, 4096)).expect("offered");
    let entries = <[ErrorLogEntry]>::ref_from_bytes(&page).expect("their size");
    assert_eq!((entries[0].error_count.get(), entries[63].error_count.get()), (202, 139));
}

#[test]
fn smart_counts_what_hosts_did_and_survives_them() {
    let associations = associations();
    let (line, cntlid) = ready(&associations, Time::ZERO);
    // Each line is of a core of its own.
    let mut queues = [1, 2].map(|qid| io_queue(&associations, qid, cntlid, Time::ZERO));
    let read = NvmCommand::Read(Io::new(Nsid(1), 0, 128));
    for i in 0..16 {
        let io = &mut queues[i % 2];
        let (_, work) = io.io(read.to_sqe()).expect("legal");
        assert_eq!(io.queue.finish_io(Cid(1), &work, Ok(())), CommandOutcome::SUCCESS);
    }
    let [first, second] = &associations.inventory().subsystems()[..] else {
        panic!("there are two")
    };
    assert_eq!(
        (
            associations.inventory().io_stats_of(first).reads,
            associations.inventory().io_stats().reads
        ),
        (16, 16)
    );
    assert_eq!(associations.inventory().io_stats_of(second).reads, 0);
    queues.into_iter().for_each(Line::close);
    line.close();

    let (mut line, _) = ready(&associations, Time::ZERO);
    let get = GetLogPage { nsid: Nsid::ALL, ..GetLogPage::new(LogId::SMART, 512) };
    let page = log(&mut line, get).expect("offered");
    let smart = SmartLog::ref_from_bytes(&page).expect("its size");
    assert_eq!(smart.host_read_commands.get(), 16);
    // 16 times 64 KiB are 2,048 blocks: three units of a thousand, rounded up.
    assert_eq!((smart.data_units_read.get(), smart.data_units_written.get()), (3, 0));
    assert_eq!((smart.available_spare, smart.critical_warning.into_bits()), (100, 0));
    let get = GetLogPage { nsid: Nsid(1), ..GetLogPage::new(LogId::SMART, 512) };
    assert!(log(&mut line, get).expect_err("not per namespace").is(Status::INVALID_FIELD));
}

#[test]
fn smart_counts_the_errors_of_all_controllers() {
    let associations = associations();
    let smart = |line: &mut Line| {
        let page = log(line, GetLogPage::new(LogId::SMART, 512)).expect("offered");
        let smart = SmartLog::read_from_bytes(&page).expect("its size");
        (smart.media_errors.get(), smart.error_log_entries.get())
    };
    let (mut line, cntlid) = ready(&associations, Time::ZERO);
    let mut io = io_queue(&associations, 1, cntlid, Time::ZERO);
    for (command, error) in [
        (NvmCommand::Read(Io::new(Nsid(1), 0, 1)), BackendError::from_errno(libc::EIO)),
        (NvmCommand::Write(Io::new(Nsid(1), 0, 1)), BackendError::Shrunk),
        (NvmCommand::Write(Io::new(Nsid(1), 0, 1)), BackendError::from_errno(libc::ENOSPC)),
    ] {
        let (_, work) = io.io(command.to_sqe()).expect("legal");
        assert!(!io.queue.finish_io(Cid(1), &work, Err(error)).status.is_success());
    }
    assert_eq!(smart(&mut line), (2, 3));
    io.close();
    line.close();

    let (mut line, _) = ready(&associations, Time::ZERO);
    assert_eq!(smart(&mut line), (2, 3), "errors outlive the association that saw them");
    line.refused(Sqe::new(0xC5));
    let page = log(&mut line, GetLogPage::new(LogId::ERROR, 128)).expect("offered");
    let entries = <[ErrorLogEntry]>::ref_from_bytes(&page).expect("their size");
    assert_eq!(entries.iter().map(|entry| entry.error_count.get()).collect::<Vec<_>>(), [4, 0]);
    assert_eq!(smart(&mut line), (2, 4));
}

#[test]
fn log_pages_are_read_in_parts() {
    let associations = associations();
    let (mut line, _) = ready(&associations, Time::ZERO);
    let whole = log(&mut line, GetLogPage::new(LogId::EFFECTS, 4096)).expect("offered");
    let effects = EffectsLog::ref_from_bytes(&whole).expect("its size");
    assert!(effects.admin(AdminOpcode::IDENTIFY).supported());
    assert!(effects.io(NvmOpcode::WRITE).block_content_change());
    assert!(!effects.io(NvmOpcode::COPY).supported());
    let mut parts = Vec::new();
    for offset in (0..4096).step_by(512) {
        parts.extend(
            log(&mut line, GetLogPage::new(LogId::EFFECTS, 512).at(offset)).expect("offered"),
        );
    }
    assert_eq!(parts, whole);
    // Past the end there are zeros; from beyond it there is nothing to read.
    let tail = log(&mut line, GetLogPage::new(LogId::FIRMWARE_SLOT, 64).at(500)).expect("offered");
    assert_eq!(tail, [0; 64]);
    let beyond = GetLogPage::new(LogId::FIRMWARE_SLOT, 64).at(516);
    assert!(log(&mut line, beyond).expect_err("beyond").is(Status::INVALID_FIELD));
    let far = GetLogPage::new(LogId::EFFECTS, 64).at(u64::MAX - 3);
    assert!(log(&mut line, far).expect_err("beyond").is(Status::INVALID_FIELD));
    let index = GetLogPage { offset: LogOffset::Index(0), ..GetLogPage::new(LogId::EFFECTS, 64) };
    assert!(log(&mut line, index).expect_err("no index").is(Status::INVALID_FIELD));
    for lid in [LogId::TELEMETRY_HOST, LogId::DISCOVERY, LogId(0xC0)] {
        let status = log(&mut line, GetLogPage::new(lid, 64)).expect_err("not offered");
        assert!(status.is(Status::INVALID_LOG_PAGE), "{lid}");
    }
    let too_long = GetLogPage::new(LogId::EFFECTS, 65_540).to_sqe();
    assert!(line.refused(too_long).is(Status::INVALID_FIELD));
}

#[test]
fn hosts_hear_how_long_storage_may_go_on() {
    for (ms, expected) in [(None, 0), (Some(1), 1), (Some(65_535), 65_535)] {
        let quiesce = ms.map(|ms| format!("command_quiesce_ms = {ms}\n")).unwrap_or_default();
        let limits = format!("[limits]\n{quiesce}");
        let associations = associations_of(&CONFIG.replace("[limits]\n", &limits));
        let (mut line, _) = ready(&associations, Time::ZERO);
        let id: IdentifyController = identified(&mut line, Cns::CONTROLLER, 0);
        assert_eq!(id.cqt.get(), expected);
    }
}

#[test]
fn a_namespace_is_described() {
    let described = "description = \"tokens of GPT-2\"\nnsid = 3";
    let associations = associations_of(&CONFIG.replacen("nsid = 3", described, 1));
    let (mut line, _) = ready(&associations, Time::ZERO);
    let id: IdentifyNamespace = identified(&mut line, Cns::NAMESPACE, 3);
    let info = id.file_info().expect("ours");
    assert_eq!((info.name(), info.description()), ("null-3", Some("tokens of GPT-2")));
}
