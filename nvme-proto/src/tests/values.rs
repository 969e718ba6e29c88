//! Values of single structures, worked out by hand.

use std::vec::Vec;

use zerocopy::{FromZeros, IntoBytes};

use crate::async_event::{AsyncEvent, Notice};
use crate::fabrics::{ConnectData, ConnectParameter};
use crate::feature::{Feature, FeatureId, GetFeatures, QueueCounts, SetFeatures};
use crate::identify::{IdentifyController, IdentifyNamespace, NamespaceList, Sgls};
use crate::log::{
    CommandEffects, DiscoveryEntry, DiscoveryHeader, EffectsLog, EntryFlags, FirmwareSlots, LogId,
    RdmaTsas, SecureChannel, SupportedLogPages, TransportRequirements,
};
use crate::{
    AdminOpcode, Cid, Cntlid, DataDirection, HostId, HostNqn, LbaFormat, Nqn, Nsid, NvmOpcode,
    Status,
};

#[test]
fn events_point_at_the_page_that_clears_them() {
    assert_eq!(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED.into_bits(), 0x0004_0002);
    assert_eq!(AsyncEvent::DISCOVERY_LOG_CHANGED.into_bits(), 0x0070_F002);
    assert_eq!(AsyncEvent::from_bits(0x0070_F002).as_notice(), Some(Notice::DISCOVERY_LOG_CHANGED));
    assert_eq!(AsyncEvent::from_bits(0x0070_F001).as_notice(), None);
}

#[test]
fn identify_controller_bounds_transfers_and_capsules() {
    let mut id = IdentifyController::blank();
    assert_eq!((id.max_transfer_bytes(0), id.in_capsule_bytes()), (None, 0));
    id.mdts = 5;
    id.ioccsz = (4 + 256).into();
    assert_eq!(id.max_transfer_bytes(0), Some(128 * 1024));
    assert_eq!(id.in_capsule_bytes(), 4096);
    id.mdts = u8::MAX;
    assert_eq!(id.max_transfer_bytes(u8::MAX), None, "more than 64 bits is no limit");
    id.set_cntlid(Cntlid(0x1234));
    assert_eq!(id.as_bytes()[78..80], [0x34, 0x12]);
    id.sgls = Sgls::new().with_supported(1).with_keyed(true).with_offset(true);
    assert_eq!(id.as_bytes()[536..540], 0x0010_0005u32.to_le_bytes());
    assert_eq!(id.as_bytes()[4..72], [b' '; 68]);
}

#[test]
fn flbas_selects_the_lba_format() {
    let mut ns = IdentifyNamespace::new_zeroed();
    ns.lbaf[0] = LbaFormat::new(512).expect("a block size");
    ns.lbaf[17] = LbaFormat::new(4096).expect("a block size");
    ns.flbas.set_index_low(1);
    assert_eq!(ns.lba_format(), None, "there is one format only");
    ns.flbas.set_index_low(0);
    ns.flbas.set_index_high(3);
    let block_bytes = |ns: &IdentifyNamespace| ns.lba_format().and_then(|f| f.block_bytes());
    assert_eq!(block_bytes(&ns), Some(512), "the high bits do not count below 17 formats");
    ns.nlbaf_z = 17;
    ns.flbas.set_index_low(1);
    ns.flbas.set_index_high(1);
    assert_eq!(ns.flbas.into_bits(), 0x21);
    assert_eq!(block_bytes(&ns), Some(4096));
    ns.lbaf[17].lbads = 0;
    assert_eq!(block_bytes(&ns), None);
    ns.lbaf[17].lbads = 255;
    assert_eq!(block_bytes(&ns), None);
    assert_eq!(LbaFormat::new(256), None);
    assert_eq!(LbaFormat::new(1000), None);
}

#[test]
fn a_full_namespace_list_gives_the_next_start() {
    let list = NamespaceList::new((1..=5).map(Nsid));
    assert_eq!(list.iter().collect::<Vec<_>>(), (1..=5).map(Nsid).collect::<Vec<_>>());
    assert_eq!(list.next_after(), None);
    let full = NamespaceList::new((1..).map(Nsid));
    assert_eq!((full.iter().count(), full.next_after()), (1024, Some(Nsid(1024))));
    let holed = NamespaceList::new((0..1024).map(|at| Nsid(if at == 3 { 0 } else { at + 1 })));
    assert_eq!((holed.iter().count(), holed.next_after()), (3, None), "it ends at the first 0");
    assert_eq!(NamespaceList::TOO_MANY.iter().next(), Some(Nsid::ALL));
    assert_eq!(NamespaceList::EMPTY.iter().count(), 0);
}

#[test]
fn effects_and_supported_pages_are_indexed_by_code() {
    let mut effects = EffectsLog::EMPTY;
    effects.set_admin(AdminOpcode::KEEP_ALIVE, CommandEffects::SUPPORTED);
    effects.set_io(NvmOpcode::WRITE, CommandEffects::WRITES);
    let bytes = effects.as_bytes();
    assert_eq!((bytes[0x18 * 4], bytes[1024 + 4]), (0b01, 0b11));
    assert_eq!(bytes.iter().filter(|&&byte| byte != 0).count(), 2);
    assert!(effects.io(NvmOpcode::WRITE).block_content_change());
    assert!(!effects.admin(AdminOpcode::FORMAT_NVM).supported());

    let pages = SupportedLogPages::new(&[LogId::SMART, LogId::DISCOVERY]);
    let bytes = pages.as_bytes();
    assert_eq!((bytes[8], bytes[0x70 * 4]), (1, 1));
    assert_eq!(bytes.iter().filter(|&&byte| byte != 0).count(), 2);
    assert_eq!(FirmwareSlots::new().with_current(1).with_next(2).into_bits(), 0x21);
}

#[test]
fn a_discovery_log_matches_linux() {
    let header = DiscoveryHeader::new(7, 2);
    assert_eq!(header.as_bytes()[..18], [7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut entry = DiscoveryEntry::blank();
    entry.treq = TransportRequirements::new()
        .with_secure_channel(SecureChannel::NOT_REQUIRED)
        .with_sq_flow_control_disable(true);
    entry.tsas = RdmaTsas::reliable_connected();
    entry.eflags = EntryFlags::new().with_persistent_connection(true);
    let bytes = entry.as_bytes();
    assert_eq!(bytes[3], 6);
    assert_eq!(bytes[6..8], [0xFF, 0xFF]);
    assert_eq!(bytes[10..12], [2, 0]);
    assert_eq!(bytes[768..772], [1, 1, 1, 0]);
    assert_eq!((entry.cntlid(), entry.traddr.text()), (Cntlid::DYNAMIC, Some("")));
}

#[test]
fn connect_data_and_its_refusal() {
    let host = HostNqn::from_host_id(HostId([1; 16]));
    let data = ConnectData::new(HostId([1; 16]), Cntlid::DYNAMIC, Nqn::DISCOVERY, host);
    assert_eq!((data.subsystem(), data.host()), (Ok(Nqn::DISCOVERY), Ok(host)));
    assert_eq!(data.as_bytes()[15..19], [1, 0xFF, 0xFF, 0]);
    let mut broken = data;
    broken.hostnqn.as_mut_bytes()[0] = 0;
    assert_eq!(broken.host(), Err(ConnectParameter::HOSTNQN));
    let refusal = ConnectParameter::HOSTNQN.refuse(Cid(9));
    assert_eq!(refusal.dw0.get(), 0x0001_0200);
    assert_eq!(refusal.status(), Status::CONNECT_INVALID_PARAMETERS.with_dnr());
    for dw0 in [0x0001_0200, 44, 0x0001_FFFF] {
        assert_eq!(ConnectParameter::from_dw0(dw0).to_dw0(), dw0);
    }
}

#[test]
fn queue_counts_reach_their_limits() {
    assert_eq!(Feature::NumberOfQueues(QueueCounts::pairs(0)).value(), 0);
    assert_eq!(Feature::NumberOfQueues(QueueCounts::pairs(u16::MAX)).value(), 0xFFFE_FFFE);
    let Ok(Feature::NumberOfQueues(counts)) =
        Feature::parse(FeatureId::NUMBER_OF_QUEUES, 0x0003_0007)
    else {
        panic!("eight and four queues can be had");
    };
    assert_eq!((counts.submission(), counts.completion(), counts.usable()), (8, 4, 4));
}

#[test]
fn only_the_host_identifier_has_data() {
    let get = GetFeatures::current(FeatureId::HOST_IDENTIFIER).transfer();
    assert_eq!((get.direction, get.length_bytes), (DataDirection::ControllerToHost, 16));
    let get = GetFeatures::current(FeatureId::KEEP_ALIVE_TIMER).transfer();
    assert_eq!((get.direction, get.length_bytes), (DataDirection::None, 0));
    let set = |feature| SetFeatures { nsid: Nsid::NONE, save: false, feature }.transfer();
    assert_eq!(set(Feature::HostIdentifier { extended: false }).length_bytes, 8);
    assert_eq!(set(Feature::VolatileWriteCache { enabled: true }).length_bytes, 0);
}
