//! The data of the NVMe commands in the capture: of Connect, of Identify and the log pages, of
//! reads and writes. Each structure is taken apart, and made again from its parts alone.

use nvme_proto::fabrics::{Connect, ConnectData, ConnectResponse, FabricsCommand};
use nvme_proto::identify::{
    Cmic, Cns, ControllerType, Descriptors, IdDescriptor, Identify, IdentifyController,
    IdentifyControllerNvm, IdentifyNamespace, Lpa, NamespaceList, Nmic, Nsfeat, Nwpc, Oaes, Oncs,
    Sgls, Vwc, write_descriptors,
};
use nvme_proto::log::{
    AddressFamily, AnaGroups, AnaHeader, AnaState, CommandEffects, DiscoveryEntry, DiscoveryHeader,
    EffectsLog, GetLogPage, LogId, LogOffset, RdmaTsas, SmartLog, SubsystemType,
    TransportRequirements, TransportType,
};
use nvme_proto::nvm::{DsmRange, Io};
use nvme_proto::registers::Version;
use nvme_proto::{
    AdminCommand, AdminOpcode, AsciiField, Cntlid, Command, Cqe, Csi, FromBytes, FromZeros,
    IntoBytes, LbaFormat, Nqn, Nsid, NvmCommand, NvmOpcode, U16, U32, U64, view,
};

use super::session::{Exchange, exchanges};

const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
const SUBSYSTEM: &str = "nqn.2024-01.example:kernel";
const BLOCK_BYTES: u32 = 512;

fn nqn(text: &str) -> Nqn {
    text.parse().unwrap()
}

/// The `count` exchanges for which `pick` returns a value, each with that value.
fn picked<T>(count: usize, pick: impl Fn(&Exchange) -> Option<T>) -> Vec<(Exchange, T)> {
    let picked: Vec<_> = exchanges()
        .into_iter()
        .filter_map(|exchange| pick(&exchange).map(|what| (exchange, what)))
        .collect();
    assert_eq!(picked.len(), count);
    picked
}

fn identify(count: usize, cns: Cns) -> Vec<(Exchange, Identify)> {
    picked(count, |exchange| {
        match exchange.command {
            Command::Admin(AdminCommand::Identify(identify)) => Some(identify),
            _ => None,
        }
        .filter(|identify| identify.cns == cns)
    })
}

fn log_page(count: usize, lid: LogId) -> Vec<(Exchange, GetLogPage)> {
    picked(count, |exchange| {
        match exchange.command {
            Command::Admin(AdminCommand::GetLogPage(page)) => Some(page),
            _ => None,
        }
        .filter(|page| page.lid == lid)
    })
}

#[test]
fn connect_data() {
    let connects = picked(3, |exchange| match exchange.command {
        Command::Fabrics(FabricsCommand::Connect(connect)) => Some(connect),
        _ => None,
    });
    let expected = [
        (0, 32, Cntlid::DYNAMIC, DISCOVERY),
        (0, 32, Cntlid::DYNAMIC, SUBSYSTEM),
        (1, 128, Cntlid(1), SUBSYSTEM),
    ];
    for ((exchange, connect), (qid, entries, cntlid, subsystem)) in connects.iter().zip(expected) {
        let Connect { qid: ours, queue_entries, .. } = connect;
        assert_eq!((ours.0, *queue_entries), (qid, entries));
        let data = ConnectData::parse(&exchange.data).unwrap();
        assert_eq!(data.cntlid(), cntlid);
        assert_eq!(data.subsystem().unwrap(), nqn(subsystem));
        let again = ConnectData::new(data.hostid, cntlid, nqn(subsystem), data.host().unwrap());
        assert_eq!(again.as_bytes(), exchange.data);
        let response = Cqe::parse(&exchange.response.as_ref().unwrap().bytes).unwrap();
        assert_eq!(ConnectResponse::from_bits(response.dw0.get()).cntlid(), Cntlid(1));
    }
}

#[test]
fn identify_controller() {
    let mut kinds = Vec::new();
    for (exchange, _) in identify(4, Cns::CONTROLLER) {
        let data = view::<IdentifyController>(&exchange.data).unwrap();
        let again = match data.cntrltype {
            ControllerType::DISCOVERY => discovery_controller(),
            _ => io_controller(),
        };
        assert_eq!(again.as_bytes(), exchange.data);
        kinds.push(data.cntrltype);
    }
    let [discovery, io] = [ControllerType::DISCOVERY, ControllerType::IO];
    assert_eq!(kinds, [discovery, discovery, io, io]);
}

/// The fields that both kinds have in common.
fn controller(serial: &str, subsystem: &str) -> IdentifyController {
    let mut controller = IdentifyController::blank();
    controller.sn = AsciiField::new(serial).unwrap();
    controller.mn = AsciiField::new("Linux").unwrap();
    controller.fr = AsciiField::new("6.12.107").unwrap();
    controller.set_cntlid(Cntlid(1));
    controller.ver = Version::new().with_major(1).with_minor(3);
    controller.maxcmd = U16::new(128);
    controller.sgls = Sgls::new().with_supported(1).with_keyed(true).with_offset(true);
    controller.subnqn = nqn(subsystem).into();
    controller
}

fn discovery_controller() -> IdentifyController {
    let mut controller = controller("d8c318438046b981e246", DISCOVERY);
    controller.oaes = Oaes::new().with_discovery_log(true);
    controller.cntrltype = ControllerType::DISCOVERY;
    controller.lpa = Lpa::new().with_extended_data(true);
    controller
}

fn io_controller() -> IdentifyController {
    let mut controller = controller("326d9f291ca47c3f6816", SUBSYSTEM);
    controller.rab = 6;
    controller.cmic =
        Cmic::new().with_multiple_ports(true).with_multiple_controllers(true).with_ana(true);
    controller.mdts = 8;
    controller.oaes = Oaes::new().with_namespace_attribute(true).with_ana_change(true);
    controller.ctratt = U32::new(1 << 6 | 1);
    controller.cntrltype = ControllerType::IO;
    (controller.acl_z, controller.aerl_z, controller.frmw) = (3, 3, 3);
    controller.lpa =
        Lpa::new().with_smart_per_namespace(true).with_effects(true).with_extended_data(true);
    controller.elpe_z = 127;
    controller.kas = U16::new(10);
    (controller.anatt, controller.anacap) = (10, 0x1F);
    (controller.anagrpmax, controller.nanagrpid) = (U32::new(128), U32::new(128));
    (controller.sqes, controller.cqes) = (0x66, 0x44);
    (controller.nn, controller.mnan) = (U32::new(1024), U32::new(1024));
    controller.oncs = Oncs::new().with_dataset_management(true).with_write_zeroes(true);
    controller.vwc = Vwc::new().with_present(true);
    controller.nwpc = Nwpc::new().with_supported(true);
    (controller.ioccsz, controller.iorcsz, controller.msdbd) = (U32::new(260), U32::new(1), 1);
    let state = &mut controller.psd[0];
    (state.mp, state.enlat, state.exlat) = (U16::new(2500), U32::new(16), U32::new(4));
    controller
}

#[test]
fn identify_namespace() {
    let mut again = IdentifyNamespace::new_zeroed();
    (again.nsze, again.ncap, again.nuse) =
        (U64::new(131_072), U64::new(131_072), U64::new(131_072));
    again.nsfeat = Nsfeat::new().with_atomic_fields(true).with_optimal_fields(1);
    again.nmic = Nmic::new().with_shared(true);
    (again.npdg_z, again.npda_z) = (U16::new(7), U16::new(7));
    again.anagrpid = U32::new(1);
    again.lbaf[0] = LbaFormat::new(BLOCK_BYTES).unwrap();
    for (exchange, identify) in identify(3, Cns::NAMESPACE) {
        assert_eq!(identify.nsid, Nsid(1));
        assert_eq!(again.as_bytes(), exchange.data);
    }
}

#[test]
fn lists_of_namespaces_and_their_names() {
    let (exchange, _) = &identify(1, Cns::ACTIVE_NAMESPACES)[0];
    assert_eq!(NamespaceList::new([Nsid(1)]).as_bytes(), exchange.data);
    let (exchange, _) = &identify(1, Cns::NAMESPACE_DESCRIPTORS)[0];
    let descriptors: Vec<_> = Descriptors::new(&exchange.data).collect();
    assert!(
        matches!(descriptors[..], [IdDescriptor::Uuid(_), IdDescriptor::Csi(Csi::NVM)]),
        "{descriptors:?}"
    );
    let mut again = [0xFF; Identify::DATA_BYTES];
    write_descriptors(&mut again, &descriptors);
    assert_eq!(again[..], exchange.data);
}

#[test]
fn identify_controller_of_the_command_set() {
    let (exchange, _) = &identify(1, Cns::IO_COMMAND_SET_CONTROLLER)[0];
    assert_eq!(IdentifyControllerNvm::new_zeroed().as_bytes(), exchange.data);
}

#[test]
fn discovery_log() {
    let pages = log_page(3, LogId::DISCOVERY);
    let generation = u64::from_le_bytes(*pages[0].0.data.first_chunk().unwrap());
    let header = DiscoveryHeader::new(generation, 2);
    let entries = [discovery_entry(DISCOVERY), discovery_entry(SUBSYSTEM)];
    let expected =
        [(0, &header.as_bytes()[..20]), (1024, entries.as_bytes()), (0, &header.as_bytes()[..20])];
    for ((exchange, page), (offset, bytes)) in pages.iter().zip(expected) {
        assert_eq!(page.offset, LogOffset::Bytes(offset));
        assert_eq!(exchange.data, bytes);
    }
}

fn discovery_entry(subsystem: &str) -> DiscoveryEntry {
    let mut entry = DiscoveryEntry::blank();
    entry.trtype = TransportType::RDMA;
    entry.adrfam = AddressFamily::IPV4;
    entry.subtype = SubsystemType::NVM;
    if subsystem == DISCOVERY {
        entry.subtype = SubsystemType::CURRENT_DISCOVERY;
    }
    entry.treq = TransportRequirements::new().with_sq_flow_control_disable(true);
    entry.portid = U16::new(1);
    entry.asqsz = U16::new(32);
    entry.trsvcid = padded_with_nuls("4420");
    entry.subnqn = nqn(subsystem).into();
    entry.traddr = padded_with_nuls("10.9.0.1");
    entry.tsas = RdmaTsas::reliable_connected();
    entry
}

/// Where the specification has spaces, the kernel has NULs.
fn padded_with_nuls<const N: usize>(text: &str) -> AsciiField<N> {
    let mut bytes = [0; N];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    let field = AsciiField::read_from_bytes(&bytes).unwrap();
    assert_eq!(field.text(), Some(text));
    field
}

#[test]
fn effects_log() {
    let mut again = EffectsLog::EMPTY;
    for opcode in [2, 6, 8, 9, 10, 12, 24] {
        again.set_admin(AdminOpcode(opcode), CommandEffects::SUPPORTED);
    }
    for opcode in [NvmOpcode::FLUSH, NvmOpcode::READ, NvmOpcode::DATASET_MANAGEMENT] {
        again.set_io(opcode, CommandEffects::SUPPORTED);
    }
    for opcode in [NvmOpcode::WRITE, NvmOpcode::WRITE_ZEROES] {
        again.set_io(opcode, CommandEffects::WRITES);
    }
    let (exchange, _) = &log_page(1, LogId::EFFECTS)[0];
    assert_eq!(again.as_bytes(), exchange.data);
}

#[test]
fn smart_log() {
    let (exchange, _) = &log_page(1, LogId::SMART)[0];
    assert_eq!(SmartLog::new_zeroed().as_bytes(), exchange.data);
}

#[test]
fn asymmetric_access_log() {
    for (exchange, _) in log_page(2, LogId::ANA) {
        let header = view::<AnaHeader>(&exchange.data).unwrap();
        let mut again = header.as_bytes().to_vec();
        let mut groups = 0;
        for (group, nsids) in AnaGroups::new(&exchange.data) {
            assert_eq!((group.agid.get(), group.state.state()), (1, AnaState::OPTIMIZED));
            assert_eq!(nsids, [U32::new(1)]);
            again.extend_from_slice(group.as_bytes());
            again.extend_from_slice(nsids.as_bytes());
            groups += 1;
        }
        assert_eq!(groups, 1);
        // The host reads as much as there could be.
        again.resize(exchange.data.len(), 0);
        assert_eq!(again, exchange.data);
    }
}

#[test]
fn ranges_to_deallocate() {
    let ranges = picked(1, |exchange| match exchange.command {
        Command::Nvm(NvmCommand::DatasetManagement(command)) => {
            Some(command.ranges_in(&exchange.data).unwrap().to_vec())
        }
        _ => None,
    });
    let (exchange, ranges) = &ranges[0];
    assert_eq!(ranges, &[DsmRange::new(2048, 128)]);
    assert!(exchange.data.starts_with(ranges.as_bytes()));
}

/// Blocks that were written before are read with the same bytes.
#[test]
fn blocks_are_read_as_they_were_written() {
    let io = picked(54, |exchange| match exchange.command {
        Command::Nvm(NvmCommand::Read(io)) => Some((io, false)),
        Command::Nvm(NvmCommand::Write(io)) => Some((io, true)),
        _ => None,
    });
    let mut disk: std::collections::BTreeMap<u64, Vec<u8>> = std::collections::BTreeMap::new();
    let mut compared = 0;
    for (exchange, (Io { range, .. }, is_write)) in io {
        for (lba, block) in (range.slba..).zip(exchange.data.chunks(BLOCK_BYTES as usize)) {
            match disk.get(&lba).filter(|_| !is_write) {
                Some(written) => {
                    assert_eq!(written, block, "block {lba}");
                    compared += 1;
                }
                None => {
                    disk.insert(lba, block.to_vec());
                }
            }
        }
    }
    assert!(compared > 0);
}
