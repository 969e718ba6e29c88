//! Every structure on the wire accepts any bytes, prints, and is copied without a change.

use std::fmt::Debug;
use std::format;
use std::vec::Vec;

use proptest::prelude::*;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::fabrics::ConnectData;
use crate::identify::{
    Descriptors, IdDescriptorHeader, IdentifyController, IdentifyControllerNvm, IdentifyNamespace,
    IdentifyNamespaceIndependent, IdentifyNamespaceNvm, NamespaceList, PowerState,
};
use crate::log::{
    DiscoveryEntry, DiscoveryHeader, EffectsLog, ErrorLogEntry, FirmwareSlotLog, RdmaTsas,
    SmartLog, SupportedLogPages,
};
use crate::nvm::DsmRange;
use crate::{Cqe, HostId, LbaFormat, NqnField, SglDescriptor, Sqe, Truncated, rdma_cm, view};

/// Views the bytes as a `T`, prints it, and checks that copying it changes nothing, at any
/// alignment.
fn round_trips<T>(bytes: &[u8])
where
    T: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned + Copy + Debug,
{
    let size = size_of::<T>();
    for bytes in [bytes, &bytes[1..]] {
        let value = *view::<T>(bytes).expect("the buffer is longer than any structure");
        assert_eq!(value.as_bytes(), &bytes[..size]);
        assert!(!format!("{value:?}").is_empty());
    }
    let truncated = view::<T>(&bytes[..size - 1]).expect_err("a byte is missing");
    assert_eq!((truncated.needed_bytes, truncated.received_bytes), (size, size - 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_round_trip(bytes in prop::collection::vec(any::<u8>(), 4200)) {
        round_trips::<Sqe>(&bytes);
        round_trips::<Cqe>(&bytes);
        round_trips::<SglDescriptor>(&bytes);
        round_trips::<ConnectData>(&bytes);
        round_trips::<HostId>(&bytes);
        round_trips::<NqnField>(&bytes);
        round_trips::<IdentifyController>(&bytes);
        round_trips::<IdentifyNamespace>(&bytes);
        round_trips::<NamespaceList>(&bytes);
        round_trips::<IdDescriptorHeader>(&bytes);
        round_trips::<IdentifyNamespaceNvm>(&bytes);
        round_trips::<IdentifyControllerNvm>(&bytes);
        round_trips::<IdentifyNamespaceIndependent>(&bytes);
        round_trips::<PowerState>(&bytes);
        round_trips::<LbaFormat>(&bytes);
        round_trips::<SupportedLogPages>(&bytes);
        round_trips::<ErrorLogEntry>(&bytes);
        round_trips::<SmartLog>(&bytes);
        round_trips::<FirmwareSlotLog>(&bytes);
        round_trips::<EffectsLog>(&bytes);
        round_trips::<DiscoveryHeader>(&bytes);
        round_trips::<DiscoveryEntry>(&bytes);
        round_trips::<RdmaTsas>(&bytes);
        round_trips::<DsmRange>(&bytes);
        round_trips::<rdma_cm::ConnectRequest>(&bytes);
        round_trips::<rdma_cm::ConnectAccept>(&bytes);
        round_trips::<rdma_cm::Reject>(&bytes);
    }

    #[test]
    fn accessors_take_any_bytes(bytes in prop::collection::vec(any::<u8>(), 4096), mpsmin: u8) {
        let controller = view::<IdentifyController>(&bytes).expect("4,096 bytes");
        let _ = (controller.max_transfer_bytes(mpsmin), controller.in_capsule_bytes());
        let _ = (controller.sn.text(), controller.subnqn.parse());
        let namespace = view::<IdentifyNamespace>(&bytes).expect("4,096 bytes");
        let _ = namespace.lba_format().and_then(|format| format.block_bytes());
        let _ = namespace.file_info();
        let list = view::<NamespaceList>(&bytes).expect("4,096 bytes");
        let _ = (list.iter().count(), list.next_after());
        prop_assert!(Descriptors::new(&bytes).count() <= 4096 / 5);
        let connect = view::<ConnectData>(&bytes).expect("1,024 bytes");
        let _ = (connect.subsystem(), connect.host(), connect.cntlid());
    }
}

#[test]
fn truncation_names_the_structure() {
    let truncated = Cqe::parse(&[0; 15]).expect_err("16 bytes are needed");
    assert_eq!(truncated, Truncated { structure: "Cqe", needed_bytes: 16, received_bytes: 15 });
    assert_eq!(format!("{truncated}"), "Cqe needs 16 bytes, got 15");
}

#[test]
fn fields_are_where_the_specification_puts_them() {
    let bytes: Vec<u8> = (0..4096u32).map(|i| (i % 251) as u8).collect();
    let le16 = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let controller = view::<IdentifyController>(&bytes).expect("4,096 bytes");
    assert_eq!(controller.mdts, bytes[77]);
    assert_eq!(controller.cntlid().0, le16(78));
    assert_eq!(controller.cntrltype.0, bytes[111]);
    assert_eq!(controller.oacs.into_bits().get(), le16(256));
    assert_eq!(controller.aerl_z, bytes[259]);
    assert_eq!(controller.kas.get(), le16(320));
    assert_eq!(controller.anatt, bytes[342]);
    assert_eq!(controller.maxcmd.get(), le16(514));
    assert_eq!(controller.oncs.into_bits().get(), le16(520));
    assert_eq!(controller.vwc.into_bits(), bytes[525]);
    assert_eq!(controller.nwpc.into_bits(), bytes[531]);
    assert_eq!(controller.icdoff.get(), le16(1800));
    assert_eq!(controller.msdbd, bytes[1803]);
    assert_eq!(controller.ofcs.into_bits().get(), le16(1804));
    let namespace = view::<IdentifyNamespace>(&bytes).expect("4,096 bytes");
    assert_eq!(namespace.flbas.into_bits(), bytes[26]);
    assert_eq!(namespace.dlfeat.into_bits(), bytes[33]);
    assert_eq!(namespace.noiob.get(), le16(46));
    assert_eq!(namespace.mssrl.get(), le16(74));
    assert_eq!(namespace.nsattr.into_bits(), bytes[99]);
    assert_eq!(namespace.eui64, bytes[120..128]);
    let smart = view::<SmartLog>(&bytes).expect("512 bytes");
    assert_eq!(smart.composite_temperature_k.get(), le16(1));
    assert_eq!(smart.media_errors.as_bytes(), &bytes[160..176]);
    let error = view::<ErrorLogEntry>(&bytes).expect("64 bytes");
    assert_eq!(error.status().to_wire() | le16(12) & 1, le16(12));
    assert_eq!(error.version, bytes[63]);
    let entry = view::<DiscoveryEntry>(&bytes).expect("1,024 bytes");
    assert_eq!(entry.asqsz.get(), le16(8));
    assert_eq!(entry.eflags.into_bits().get(), le16(10));
    assert_eq!(entry.trsvcid.as_bytes()[..], bytes[32..64]);
    assert_eq!(entry.tsas.pkey.get(), le16(776));
}
