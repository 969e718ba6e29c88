//! Namespace Write Protection, across hosts, resets and restarts.

use nvme_proto::feature::{AsyncEventConfig, Feature, SetFeatures, WriteProtection};
use nvme_proto::log::{ChangedNamespaces, GetLogPage, LogId};
use nvme_proto::nvm::Io;
use nvme_proto::{AdminCommand, FromBytes, Nsid, NvmCommand};

use super::admin::{log, protect_later, set};
use super::*;

#[test]
fn write_protection_is_enforced_and_other_hosts_notified() {
    let associations = associations();
    let (mut line, _) = ready(&associations, Time::ZERO);
    let (mut other, second) = ready(&associations, Time::ZERO);
    let mut io = io_queue(&associations, 1, second, Time::ZERO);
    let write = NvmCommand::Write(Io::new(Nsid(1), 0, 1));
    let wants = Feature::AsyncEventConfig(AsyncEventConfig::new().with_namespace_attribute(true));
    assert!(set(&mut other, 0, wants).status().is_success());
    assert!(other.control(AdminCommand::AsyncEventRequest.to_sqe(), &mut []).is_none());
    let parked = Cid(other.next_cid - 1);
    assert!(io.io(write.to_sqe()).is_ok());

    let protect = Feature::NamespaceWriteProtection(WriteProtection::Protected);
    let asked = protect_later(&mut line, 1);
    assert!(io.refused(write.to_sqe()).is(Status::NAMESPACE_IS_WRITE_PROTECTED));
    let [QueueEvent::Complete { cid, outcome }] = other.events()[..] else { panic!("an event") };
    assert_eq!((cid, outcome.result & 0xFF_FFFF), (parked, 0x04_00_02));
    assert_eq!(line.serve(Ok(())), [], "a queue has not reported the end of its writes yet");
    assert!(matches!(io.events()[..], [QueueEvent::Quiesce(_)]));
    let done = QueueEvent::Complete { cid: asked, outcome: CommandOutcome::SUCCESS };
    assert_eq!(line.serve(Ok(())), [done], "the host that did it knows");

    // The event is reported once until its page is read.
    let lift = Feature::NamespaceWriteProtection(WriteProtection::None);
    assert!(other.control(AdminCommand::AsyncEventRequest.to_sqe(), &mut []).is_none());
    assert!(set(&mut line, 1, lift).status().is_success());
    assert_eq!(other.events(), []);
    let page = log(&mut other, GetLogPage::new(LogId::CHANGED_NAMESPACES, 4096)).expect("offered");
    let changed = ChangedNamespaces::ref_from_bytes(&page).expect("its size");
    assert_eq!(changed.iter().collect::<Vec<_>>(), [Nsid(1)]);
    let asked = protect_later(&mut line, 1);
    assert_eq!(other.events().len(), 1);
    drop(io.events());
    let done = QueueEvent::Complete { cid: asked, outcome: CommandOutcome::SUCCESS };
    assert_eq!(line.serve(Ok(())), [done]);

    assert!(set(&mut line, 9, protect).status().is(Status::INVALID_NAMESPACE_OR_FORMAT));
    let forever = Feature::NamespaceWriteProtection(WriteProtection::Permanent);
    assert!(set(&mut line, 1, forever).status().is(Status::INVALID_FIELD));
    // A host cannot clear a protection of the configuration.
    assert!(set(&mut line, 3, lift).status().is(Status::FEATURE_NOT_CHANGEABLE));
    assert!(associations.inventory().namespaces()[1].write_protected());
}

#[test]
fn write_protection_waits_for_earlier_writes_and_flushes() {
    let associations = associations();
    let (mut line, cntlid) = ready(&associations, Time::ZERO);
    let mut io = io_queue(&associations, 1, cntlid, Time::ZERO);
    let write = NvmCommand::Write(Io::new(Nsid(1), 0, 1)).to_sqe();
    let (_, work) = io.io(write).expect("it is taken up");
    let (_, other) = io.io(NvmCommand::Read(Io::new(Nsid(1), 0, 1)).to_sqe()).expect("taken up");
    let asked = protect_later(&mut line, 1);
    let events = io.events();
    let [QueueEvent::Quiesce(quiesce)] = &events[..] else { panic!("it is asked") };
    assert_eq!(quiesce.of(&other), None, "reads are not waited for");
    let hold = quiesce.of(&work);
    assert!(hold.is_some());
    assert_eq!(line.events(), []);
    drop(hold);
    assert_eq!(line.events(), [], "the event itself holds it up");
    drop(events);
    let [QueueEvent::Complete { cid, outcome }] = line.serve(Ok(()))[..] else {
        panic!("it is done")
    };
    assert_eq!((cid, outcome), (asked, CommandOutcome::SUCCESS));
}

/// Associations that store write protections in a folder, as long as it exists.
fn keeping(state_dir: &std::path::Path) -> std::sync::Arc<Associations> {
    let text = format!("state_dir = \"{}\"\n{CONFIG}", state_dir.display());
    let config = crate::config::Config::from_toml(std::path::Path::new("/test.toml"), &text);
    let purpose = crate::inventory::open::OpenPurpose::Serve;
    let inventory = crate::inventory::Inventory::open(&config.expect("valid"), purpose);
    Associations::new(inventory.expect("memory can be opened"))
}

/// Sets or clears the write protection of namespace 1, and waits until that is stored.
fn change_and_wait(line: &mut Line, state: WriteProtection) -> Status {
    let feature = Feature::NamespaceWriteProtection(state);
    let set = SetFeatures { nsid: Nsid(1), save: false, feature };
    assert!(line.control(set.to_sqe(), &mut []).is_none(), "it is parked");
    loop {
        if let [QueueEvent::Complete { outcome, .. }] = line.serve(Ok(()))[..] {
            return outcome.status;
        }
        std::thread::yield_now();
    }
}

#[test]
fn write_protection_survives_a_restart() {
    let dir = tempfile::tempdir().expect("a folder");
    for (state, protected) in [(WriteProtection::Protected, true), (WriteProtection::None, false)] {
        let associations = keeping(dir.path());
        let (mut line, _) = ready(&associations, Time::ZERO);
        assert!(change_and_wait(&mut line, state).is_success());
        assert_eq!(associations.inventory().namespaces()[0].write_protected(), protected);
        drop((line, associations));
        assert_eq!(keeping(dir.path()).inventory().namespaces()[0].write_protected(), protected);
    }
}

#[test]
fn write_protection_that_cannot_be_kept_fails() {
    let dir = tempfile::tempdir().expect("a folder");
    let state_dir = dir.path().join("state");
    let associations = keeping(&state_dir);
    // The path can no longer become a folder.
    std::fs::write(&state_dir, "").expect("written");
    let (mut line, _) = ready(&associations, Time::ZERO);
    let status = change_and_wait(&mut line, WriteProtection::Protected);
    assert!(status.is(Status::INTERNAL_ERROR), "{status:?}");
    assert!(!associations.inventory().namespaces()[0].write_protected());
}

#[test]
fn a_failed_flush_lifts_no_earlier_protection() {
    let associations = associations();
    let (mut line, _) = ready(&associations, Time::ZERO);
    protect_later(&mut line, 1);
    assert_eq!(line.serve(Ok(())).len(), 1);
    protect_later(&mut line, 1);
    assert_eq!(line.serve(Err(BackendError::from_errno(libc::EIO))).len(), 1);
    assert!(associations.inventory().namespaces()[0].write_protected());
}

#[test]
fn write_protection_that_cannot_flush_fails() {
    let associations = associations();
    let (mut line, _) = ready(&associations, Time::ZERO);
    let asked = protect_later(&mut line, 1);
    let [QueueEvent::Complete { cid, outcome }] =
        line.serve(Err(BackendError::from_errno(libc::EIO)))[..]
    else {
        panic!("the job never ended")
    };
    assert_eq!(cid, asked);
    assert!(outcome.status.is(Status::WRITE_FAULT), "{:?}", outcome.status);
    assert!(!associations.inventory().namespaces()[0].write_protected());
}

#[test]
fn a_reset_aborts_a_write_protection() {
    let associations = associations();
    let (mut line, cntlid) = ready(&associations, Time::ZERO);
    let io = io_queue(&associations, 1, cntlid, Time::ZERO);
    let asked = protect_later(&mut line, 1);
    assert!(line.set_cc(Cc::new()).is_success());
    let aborted = QueueEvent::Complete { cid: asked, outcome: Status::ABORT_REQUESTED.into() };
    assert_eq!(line.serve(Ok(())), [aborted]);
    io.close();
    assert_eq!(line.serve(Ok(())), []);
}
