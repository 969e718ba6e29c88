//! Namespaces that come and go, the hosts that see them, and their ANA states.

use std::collections::BTreeSet;

use nvme_proto::feature::{AsyncEventConfig, Feature, WriteProtection};
use nvme_proto::identify::{Cns, IdentifyController, IdentifyNamespace, NamespaceList};
use nvme_proto::log::{AnaGroups, AnaState, GetLogPage, LogId};
use nvme_proto::nvm::{Flush, Io};
use nvme_proto::{AdminCommand, Nsid, NvmCommand};

use super::admin::{identified, log, read_changed, set};
use super::*;
use crate::config::NamespaceSettings;
use crate::inventory::allowed_host::VisibilityChange;
use crate::inventory::edit::namespaces::NewNamespace;

/// Groups of the ANA page: number, state, namespaces.
fn ana_groups(line: &mut Line, get: GetLogPage) -> Vec<(u32, AnaState, Vec<u32>)> {
    let page = log(line, get).expect("offered");
    AnaGroups::new(&page)
        .map(|(group, nsids)| {
            let nsids = nsids.iter().map(|nsid| nsid.get()).collect();
            (group.agid.get(), group.state.state(), nsids)
        })
        .collect()
}

#[test]
fn hosts_hear_how_namespaces_can_be_reached() {
    let associations = associations_of(CONFIG);
    let (mut line, cntlid) = ready(&associations, Time::ZERO);
    let mut io = io_queue(&associations, 1, cntlid, Time::ZERO);
    let id: IdentifyController = identified(&mut line, Cns::CONTROLLER, 0);
    assert_eq!((id.anatt, id.anacap & 0x1F, id.nanagrpid.get()), (10, 0x1F, 16));
    let one: IdentifyNamespace = identified(&mut line, Cns::NAMESPACE, 1);
    assert_eq!(one.anagrpid.get(), 1);
    let page = GetLogPage::new(LogId::ANA, 4096);
    let before = ana_groups(&mut line, page);
    assert_eq!(before.len(), 1);
    let nsids = before[0].2.clone();
    assert_eq!(before, [(1, AnaState::OPTIMIZED, nsids.clone())]);
    assert!(nsids.contains(&1) && nsids.is_sorted());
    let groups_only = GetLogPage { lsp: 1, ..page };
    assert_eq!(ana_groups(&mut line, groups_only), [(1, AnaState::OPTIMIZED, vec![])]);

    let wants = Feature::AsyncEventConfig(AsyncEventConfig::new().with_ana_change(true));
    assert!(set(&mut line, 0, wants).status().is_success());
    let nqn = Nqn::new(SUBSYSTEM).expect("valid");
    let port = Arc::clone(&associations.inventory().ports()[0]);
    port.set_address(port.configured_address());
    let read = NvmCommand::Read(Io::new(Nsid(1), 0, 1)).to_sqe();
    let flush = NvmCommand::Flush(Flush { nsid: Nsid(1) }).to_sqe();
    for (state, status) in [
        (AnaState::NON_OPTIMIZED, None),
        (AnaState::INACCESSIBLE, Some(Status::ANA_INACCESSIBLE)),
        (AnaState::CHANGE, Some(Status::ANA_TRANSITION)),
        (AnaState::PERSISTENT_LOSS, Some(Status::ANA_PERSISTENT_LOSS)),
        (AnaState::OPTIMIZED, None),
    ] {
        assert!(line.control(AdminCommand::AsyncEventRequest.to_sqe(), &mut []).is_none());
        for _ in 0..2 {
            associations.set_ana_state(&nqn, port.address(), None, state).expect("it is served");
        }
        assert_eq!(line.events().len(), 1, "told once");
        assert_eq!(ana_groups(&mut line, page), [(1, state, nsids.clone())]);
        match status {
            None => assert!(io.io(read).is_ok(), "{state}"),
            Some(status) => {
                for command in [read, flush] {
                    let refused = io.refused(command);
                    assert!(refused.is(status) && !refused.do_not_retry(), "{state}: {refused}");
                }
                let protect = Feature::NamespaceWriteProtection(WriteProtection::Protected);
                assert!(set(&mut line, 1, protect).status().is(status));
            }
        }
    }
    // A transition that exceeds ANATT.
    assert!(line.control(AdminCommand::AsyncEventRequest.to_sqe(), &mut []).is_none());
    associations.set_ana_state(&nqn, port.address(), None, AnaState::CHANGE).expect("it is served");
    assert_eq!(line.events().len(), 1);
    ana_groups(&mut line, page);
    assert!(line.control(AdminCommand::AsyncEventRequest.to_sqe(), &mut []).is_none());
    (0..10).for_each(|_| associations.end_ana_transitions());
    assert_eq!(line.events().len(), 1);
    assert!(io.refused(read).is(Status::ANA_INACCESSIBLE));
}

fn null_namespace(nsid: Nsid, masked: bool) -> NewNamespace {
    let medium = crate::config::Medium::Null { size_bytes: 4096 };
    let settings = NamespaceSettings {
        visible_to: masked.then(BTreeSet::new),
        ..NamespaceSettings::new("new".into(), medium, true)
    };
    NewNamespace { nsid: Some(nsid), spec: settings.into(), bdev: "new".into(), opened: None }
}

#[test]
fn a_configuration_says_who_sees_a_namespace_and_its_group() {
    let friend = "visible_to = [\"nqn.2026-01.io.feedrail:host.friend\"]\nana_group = 5\nnsid = 3";
    let associations = associations_of(&CONFIG.replacen("nsid = 3", friend, 1));
    for (name, expected) in [("friend", &[Nsid(1), Nsid(3)][..]), ("stranger", &[Nsid(1)])] {
        let mut line = Line::new(&associations, 0, Time::ZERO);
        let data = ConnectData::new(
            HOST_ID,
            Cntlid::DYNAMIC,
            SUBSYSTEM.parse().expect("a name"),
            host(name),
        );
        assert!(line.connect(&connect_command(0), &data).status().is_success());
        assert!(line.set_cc(enabled()).is_success());
        let list: NamespaceList = identified(&mut line, Cns::ACTIVE_NAMESPACES, 0);
        assert!(list.iter().eq(expected.iter().copied()), "{name}");
        let third: IdentifyNamespace = identified(&mut line, Cns::NAMESPACE, 3);
        let group = if name == "friend" { 5 } else { 0 };
        assert_eq!(third.anagrpid.get(), group, "{name}");
    }
}

#[test]
fn a_host_that_does_not_see_a_namespace_gets_nothing_of_it() {
    let managed = CONFIG.replacen("[[port]]", "management = \"/socket\"\n[[port]]", 1);
    let associations = associations_of(&managed);
    let (mut line, cntlid) = ready(&associations, Time::ZERO);
    let mut io = io_queue(&associations, 1, cntlid, Time::ZERO);
    let nqn = Nqn::new(SUBSYSTEM).expect("valid");
    let wants = Feature::AsyncEventConfig(AsyncEventConfig::new().with_namespace_attribute(true));
    assert!(set(&mut line, 0, wants).status().is_success());
    let host = associations.controllers()[0].host.nqn.0;
    let (show, hide) = (VisibilityChange::Show(host), VisibilityChange::Hide(host));
    assert!(line.control(AdminCommand::AsyncEventRequest.to_sqe(), &mut []).is_none());
    let new = null_namespace(Nsid(7), true);
    associations.edit(|edit| edit.add_namespace(&nqn, new)).expect("a free id");
    let change =
        |nsid, change| associations.edit(|edit| edit.change_visibility(&nqn, nsid, change));
    change(Nsid(7), VisibilityChange::Show(Nqn::DISCOVERY)).expect("another host");
    assert_eq!(line.events().len(), 0, "this host hears nothing of it");
    let read = NvmCommand::Read(Io::new(Nsid(7), 0, 1)).to_sqe();
    let page = GetLogPage::new(LogId::ANA, 4096);
    for _ in 0..2 {
        let status = io.refused(read);
        assert!(status.is(Status::INVALID_NAMESPACE_OR_FORMAT) && status.do_not_retry());
        let protect = Feature::NamespaceWriteProtection(WriteProtection::Protected);
        assert!(set(&mut line, 7, protect).status().is(Status::INVALID_NAMESPACE_OR_FORMAT));
        let id: IdentifyNamespace = identified(&mut line, Cns::NAMESPACE, 7);
        assert_eq!((id.nsze.get(), id.anagrpid.get()), (0, 0));
        let list: NamespaceList = identified(&mut line, Cns::ACTIVE_NAMESPACES, 0);
        assert!(list.iter().all(|nsid| nsid != Nsid(7)));
        assert!(!ana_groups(&mut line, page)[0].2.contains(&7));

        change(Nsid(7), show).expect("it was hidden");
        assert!(change(Nsid(7), show).is_err());
        assert_eq!(line.events().len(), 1);
        let whole = GetLogPage::new(LogId::CHANGED_NAMESPACES, 4096);
        assert_eq!(read_changed(&mut line, whole), Ok(vec![Nsid(7)]));
        assert!(line.control(AdminCommand::AsyncEventRequest.to_sqe(), &mut []).is_none());
        let list: NamespaceList = identified(&mut line, Cns::ACTIVE_NAMESPACES, 0);
        assert!(list.iter().any(|nsid| nsid == Nsid(7)));
        assert!(ana_groups(&mut line, page)[0].2.contains(&7));
        let (_, work) = io.io(read).expect("it is there");

        change(Nsid(7), hide).expect("it was shown");
        assert!(change(Nsid(7), hide).is_err());
        assert_eq!(line.events().len(), 1);
        assert_eq!(read_changed(&mut line, whole), Ok(vec![Nsid(7)]));
        assert!(line.control(AdminCommand::AsyncEventRequest.to_sqe(), &mut []).is_none());
        // A running command ends normally.
        assert!(io.queue.finish_io(Cid(1), &work, Ok(())).status.is_success());
    }
    assert!(change(Nsid(1), show).is_err(), "all hosts see it");
    assert!(change(Nsid(8), show).is_err(), "it is not there");
}

#[test]
fn hosts_hear_of_namespaces_that_come_and_go() {
    let managed = CONFIG.replacen("[[port]]", "management = \"/socket\"\n[[port]]", 1);
    let associations = associations_of(&managed);
    let (mut line, cntlid) = ready(&associations, Time::ZERO);
    let mut io = io_queue(&associations, 1, cntlid, Time::ZERO);
    let id: IdentifyController = identified(&mut line, Cns::CONTROLLER, 0);
    assert_eq!((id.nn.get(), id.vwc.present()), (65_536, true), "what may come is announced");
    let wants = Feature::AsyncEventConfig(AsyncEventConfig::new().with_namespace_attribute(true));
    assert!(set(&mut line, 0, wants).status().is_success());
    let whole = GetLogPage::new(LogId::CHANGED_NAMESPACES, 4096);
    let nqn = Nqn::new(SUBSYSTEM).expect("valid");
    let read = NvmCommand::Read(Io::new(Nsid(7), 0, 1)).to_sqe();
    for round in 0..2 {
        let status = io.refused(read);
        assert!(status.is(Status::INVALID_NAMESPACE_OR_FORMAT) && status.do_not_retry());
        assert!(line.control(AdminCommand::AsyncEventRequest.to_sqe(), &mut []).is_none());
        let new = null_namespace(Nsid(7), false);
        associations.edit(|edit| edit.add_namespace(&nqn, new)).expect("a free id");
        assert_eq!(line.events().len(), 1);
        assert_eq!(read_changed(&mut line, whole), Ok(vec![Nsid(7)]));
        if round > 0 {
            // The host may mean the first namespace, which had the NSID before.
            assert!(io.refused(read).is(Status::INVALID_NAMESPACE_OR_FORMAT));
            let (later, cntlid) = ready(&associations, Time::ZERO);
            let mut io = io_queue(&associations, 1, cntlid, Time::ZERO);
            assert!(io.io(read).is_ok(), "this host has never known the first one");
            later.close();
        }
        let id: IdentifyNamespace = identified(&mut line, Cns::NAMESPACE, 7);
        let (_, work) = io.io(read).expect("it is there");
        assert_eq!(id.nsze.get(), 8);
        assert!(line.control(AdminCommand::AsyncEventRequest.to_sqe(), &mut []).is_none());
        associations.edit(|edit| edit.remove_namespace(&nqn, Nsid(7))).expect("it is there");
        assert_eq!(line.events().len(), 1);
        assert_eq!(read_changed(&mut line, whole), Ok(vec![Nsid(7)]));
        let id: IdentifyNamespace = identified(&mut line, Cns::NAMESPACE, 7);
        assert_eq!(id.nsze.get(), 0, "an inactive namespace is zeros");
        // A running command.
        let outcome = io.queue.finish_io(Cid(1), &work, Err(BackendError::Removed));
        assert!(outcome.status.is(Status::INVALID_NAMESPACE_OR_FORMAT));
    }
}
