//! Discovery controllers: the subsystems and ports that a host is told of.

use nvme_proto::feature::{AsyncEventConfig, Feature, FeatureId};
use nvme_proto::identify::{Cns, ControllerType, Identify, IdentifyController};
use nvme_proto::log::{DiscoveryEntry, DiscoveryHeader, GetLogPage, LogId};
use nvme_proto::{AdminCommand, Cid, FromBytes, Qid, Status};

use super::admin::{get, identified, identify, log, set};
use super::*;
use crate::config::{HostPolicy, SubsystemSpec};
use crate::inventory::allowed_host::HostsChange;

pub(super) fn discovery(associations: &Arc<Associations>, host_name: &str) -> Line {
    let mut line = Line::new(associations, 0, Time::ZERO);
    let data = ConnectData::new(HOST_ID, Cntlid::DYNAMIC, Nqn::DISCOVERY, host(host_name));
    assert!(line.connect(&connect_command(0), &data).status().is_success());
    assert!(line.set_cc(enabled()).is_success());
    line
}

#[test]
fn discovery_lists_the_subsystems_a_host_may_use() {
    let associations = associations();
    associations.inventory().ports()[0].set_address("127.0.0.1:4421".parse().expect("an address"));
    let mut generations = Vec::new();
    for (name, expected) in [("stranger", 2), ("friend", 3), ("stranger", 2)] {
        let mut line = discovery(&associations, name);
        let id: IdentifyController = identified(&mut line, Cns::CONTROLLER, 0);
        assert_eq!(id.cntrltype, ControllerType::DISCOVERY);
        assert!(id.lpa.extended_data() && id.kas.get() > 0);
        // As nvme-cli does: 20 bytes of the header first, then the entries in parts.
        let head = log(&mut line, GetLogPage::new(LogId::DISCOVERY, 20)).expect("offered");
        assert_eq!(u64::from_le_bytes(head[8..16].try_into().expect("eight")), expected);
        let page = log(&mut line, GetLogPage::new(LogId::DISCOVERY, 1024 * (1 + expected)))
            .expect("offered");
        let (header, entries) = page.split_at(1024);
        let header = DiscoveryHeader::ref_from_bytes(header).expect("its size");
        assert_eq!(header.numrec.get(), expected);
        assert_eq!(header.genctr.get().to_le_bytes(), head[..8]);
        generations.push(header.genctr.get());
        let entries = <[DiscoveryEntry]>::ref_from_bytes(entries).expect("their size");
        let entry = &entries[0];
        assert_eq!(entry.subnqn.parse().expect("a name").as_str(), SUBSYSTEM);
        assert_eq!((entry.traddr.text(), entry.trsvcid.text()), (Some("127.0.0.1"), Some("4421")));
        assert_eq!((entry.trtype.0, entry.adrfam.0, entry.subtype.0), (1, 1, 2));
        assert_eq!((entry.tsas.qptype.0, entry.tsas.prtype.0, entry.tsas.cms.0), (1, 1, 1));
        assert_eq!((entry.portid.get(), entry.cntlid()), (1, Cntlid::DYNAMIC));
        assert!(entry.treq.sq_flow_control_disable());
        let service = entries.last().expect("the discovery service itself");
        assert_eq!(service.subnqn.parse(), Ok(Nqn::DISCOVERY));
        assert_eq!((service.trsvcid.text(), service.subtype.0), (Some("4421"), 3));
        assert!(service.eflags.duplicate_information() && service.eflags.persistent_connection());
    }
    assert_eq!(generations, [0; 3], "nothing changed");
}

/// Hosts reach it by either name, and are told the unique one.
#[test]
fn a_discovery_service_may_have_a_name_of_its_own() {
    let own = "nqn.2026-01.io.feedrail:discovery";
    let named = CONFIG.replacen("[[port]]", &format!("discovery_nqn = \"{own}\"\n[[port]]"), 1);
    let associations = associations_of(&named);
    let own: Nqn = own.parse().expect("a name");
    for name in [own, Nqn::DISCOVERY] {
        let mut line = Line::new(&associations, 0, Time::ZERO);
        let data = ConnectData::new(HOST_ID, Cntlid::DYNAMIC, name, host("stranger"));
        assert!(line.connect(&connect_command(0), &data).status().is_success());
        assert!(line.set_cc(enabled()).is_success());
        let id: IdentifyController = identified(&mut line, Cns::CONTROLLER, 0);
        assert_eq!((id.cntrltype, id.subnqn.parse()), (ControllerType::DISCOVERY, Ok(own)));
        let page = log(&mut line, GetLogPage::new(LogId::DISCOVERY, 1024 * 3)).expect("offered");
        let entries = <[DiscoveryEntry]>::ref_from_bytes(&page[1024..]).expect("their size");
        let service = entries.last().expect("the discovery service itself");
        assert_eq!((service.subnqn.parse(), service.subtype.0), (Ok(own), 3));
        let mut io = Line::new(&associations, 0, Time::ZERO);
        assert!(!io.connect(&connect_command(1), &data).status().is_success());
    }
    let new = SubsystemSpec::new(own, HostPolicy::Any);
    let error =
        associations.inventory().edit(|edit| edit.add_subsystem(new, None)).expect_err("taken");
    assert!(error.to_string().contains("discovery"), "{error}");
}

#[test]
fn discovery_lists_the_other_ports_of_a_subsystem() {
    let ports = ["127.0.0.1:4421", "192.0.2.7:4420", "192.0.2.8:4420", "192.0.2.9:4420"];
    let others: String = (2..)
        .zip(&ports[1..])
        .map(|(id, _)| format!("\n[[port]]\nid = {id}\naddress = \"127.0.0.{id}:0\"\n"))
        .collect();
    let associations = associations_of(&(CONFIG.to_owned() + &others));
    let bound = associations.inventory().ports().to_vec();
    // Nothing listens at the last port.
    for (port, address) in bound.iter().zip(&ports[..3]) {
        port.set_address(address.parse().expect("an address"));
    }
    let subsystems = bound[2].subsystems();
    subsystems[1..].iter().for_each(|subsystem| assert!(bound[2].remove(subsystem)));
    // Entries of a port: subtypes, addresses, and whether the host gets the same log there.
    let told = |port: usize, host: &str| {
        let mut line = Line::at_port(&associations, port, 0, Time::ZERO);
        let data = ConnectData::new(HOST_ID, Cntlid::DYNAMIC, Nqn::DISCOVERY, self::host(host));
        assert!(line.connect(&connect_command(0), &data).status().is_success());
        assert!(line.set_cc(enabled()).is_success());
        let page = log(&mut line, GetLogPage::new(LogId::DISCOVERY, 16 * 1024)).expect("offered");
        let header = DiscoveryHeader::ref_from_bytes(&page[..1024]).expect("its size");
        let end = 1024 * (1 + header.numrec.get() as usize);
        let entries = <[DiscoveryEntry]>::ref_from_bytes(&page[1024..end]).expect("their size");
        let entries = entries.iter().map(|entry| {
            let address = entry.traddr.text().expect("an address").to_owned();
            (entry.subtype.0, address, entry.eflags.duplicate_information())
        });
        entries.collect::<Vec<_>>()
    };
    let expected = |list: &[(u8, &str, bool)]| -> Vec<(u8, String, bool)> {
        list.iter().map(|&(kind, address, same)| (kind, address.to_owned(), same)).collect()
    };
    let (near, one, two) = ("127.0.0.1", "192.0.2.7", "192.0.2.8");
    let all = [
        (2, near, false),
        (2, one, false),
        (2, two, false),
        (3, near, true),
        (3, one, true),
        (3, two, true),
    ];
    assert_eq!(told(0, "stranger"), expected(&all), "one subsystem, at three ports");
    // A remote host cannot reach a loopback address; `friend` has a subsystem that one port lacks.
    let friend =
        [(2, one, false), (2, one, false), (2, two, false), (3, one, true), (3, two, false)];
    assert_eq!(told(1, "friend"), expected(&friend));
    let friend = [(2, two, false), (2, one, false), (3, two, true), (3, one, false)];
    assert_eq!(told(2, "friend"), expected(&friend));
}

#[test]
fn a_discovery_controller_supports_only_discovery() {
    let associations = associations();
    let mut line = discovery(&associations, "a");
    let abort = nvme_proto::admin::Abort { sqid: Qid(0), cid: Cid(1) };
    assert!(line.refused(AdminCommand::Abort(abort).to_sqe()).is(Status::INVALID_OPCODE));
    let namespaces = Identify::new(Cns::ACTIVE_NAMESPACES);
    assert!(identify(&mut line, namespaces).expect_err("none here").is(Status::INVALID_FIELD));
    assert!(get(&mut line, FeatureId::NUMBER_OF_QUEUES).status().is(Status::INVALID_FIELD));
    assert!(line.without_data(AdminCommand::KeepAlive.to_sqe()).status().is_success());
    let notices = Feature::AsyncEventConfig(AsyncEventConfig::new().with_discovery_log(true));
    assert!(set(&mut line, 0, notices).status().is_success());
    assert!(line.control(AdminCommand::AsyncEventRequest.to_sqe(), &mut []).is_none());
}

#[test]
fn hosts_hear_of_subsystems_that_come_and_go() {
    let managed = CONFIG.replacen("[[port]]", "management = \"/socket\"\n[[port]]", 1);
    let associations = associations_of(&managed);
    let address = "127.0.0.1:4421".parse().expect("an address");
    associations.inventory().ports()[0].set_address(address);
    let mut line = discovery(&associations, "stranger");
    let wants = Feature::AsyncEventConfig(AsyncEventConfig::new().with_discovery_log(true));
    assert!(set(&mut line, 0, wants).status().is_success());
    let nqn = Nqn::new("nqn.2026-01.io.feedrail:new").expect("valid");
    let new = SubsystemSpec::new(nqn, HostPolicy::Any);
    // Fields of the header: the generation counter and the number of records.
    let header = |line: &mut Line| {
        let page = log(line, GetLogPage::new(LogId::DISCOVERY, 1024)).expect("offered");
        let header = DiscoveryHeader::ref_from_bytes(&page).expect("its size");
        (header.genctr.get(), header.numrec.get())
    };
    let before = header(&mut line);
    associations.inventory().edit(|edit| edit.add_subsystem(new, None)).expect("a new name");
    assert_eq!(header(&mut line), before, "it is served nowhere");
    let allow = |any| {
        let change = HostsChange::AllowAny(any);
        associations.edit(|edit| edit.change_hosts(&nqn, change)).expect("a change");
    };
    let listen = || associations.edit(|edit| edit.add_listener(&nqn, address));
    let remove = || associations.edit(|edit| edit.remove_subsystem(&nqn));
    let changes: [&dyn Fn(); 4] = [
        &|| drop(listen().expect("it was not served")),
        &|| allow(false),
        &|| allow(true),
        &|| assert!(remove().expect("it is there").1.warnings.is_empty()),
    ];
    let listed = [true, false, true, false];
    for (count, (change, is_listed)) in (1..).zip(changes.iter().zip(listed)) {
        assert!(line.control(AdminCommand::AsyncEventRequest.to_sqe(), &mut []).is_none());
        change();
        assert_eq!(line.events().len(), 1);
        let (generation, records) = header(&mut line);
        assert_eq!(records, before.1 + u64::from(is_listed));
        assert_eq!(generation, before.0 + count);
    }
}
