//! Every command: parsing never panics, and building and parsing are inverse.

use proptest::prelude::*;
use zerocopy::FromBytes;

use crate::admin::Abort;
use crate::auth::{AuthenticationReceive, AuthenticationSend};
use crate::fabrics::{
    Connect, ConnectAttributes, Disconnect, PropertyGet, PropertySet, PropertySize,
};
use crate::feature::{
    Arbitration, AsyncEventConfig, Feature, FeatureId, GetFeatures, QueueCounts, Select,
    SetFeatures, WriteProtection,
};
use crate::identify::{Cns, Identify};
use crate::log::{GetLogPage, LogId, LogOffset};
use crate::nvm::{DatasetManagement, DsmAttributes, Flush, Io, WriteZeroes};
use crate::registers::Property;
use crate::{
    AdminCommand, AdminOpcode, Cid, Cntlid, Command, CommandCapsule, Csi, DataDirection,
    DataTransfer, FabricsCommand, FabricsType, LbaRange, Nsid, NvmCommand, NvmOpcode, Qid, Sgl,
    Sqe, SqeFlags, Status, U32,
};

const IO: Qid = Qid(1);

fn to_sqe(command: &Command) -> Sqe {
    match command {
        Command::Fabrics(command) => command.to_sqe(),
        Command::Admin(command) => command.to_sqe(),
        Command::Nvm(command) => command.to_sqe(),
    }
}

fn range() -> impl Strategy<Value = LbaRange> {
    (any::<u64>(), 1..=LbaRange::MAX_BLOCKS).prop_map(|(slba, blocks)| LbaRange { slba, blocks })
}

fn nsid() -> impl Strategy<Value = Nsid> {
    any::<u32>().prop_map(Nsid)
}

fn io() -> impl Strategy<Value = Io> {
    (nsid(), range(), any::<bool>(), any::<bool>())
        .prop_map(|(nsid, range, fua, limited_retry)| Io { nsid, range, fua, limited_retry })
}

fn write_zeroes() -> impl Strategy<Value = WriteZeroes> {
    (io(), any::<bool>()).prop_map(|(io, deallocate)| WriteZeroes {
        nsid: io.nsid,
        range: io.range,
        deallocate,
        fua: io.fua,
        limited_retry: io.limited_retry,
    })
}

fn dsm() -> impl Strategy<Value = DatasetManagement> {
    (nsid(), 1..=DatasetManagement::MAX_RANGES, any::<u32>()).prop_map(|(nsid, ranges, bits)| {
        DatasetManagement { nsid, ranges, attributes: DsmAttributes::from_bits(bits) }
    })
}

fn nvm_command() -> impl Strategy<Value = Command> {
    prop_oneof![
        nsid().prop_map(|nsid| NvmCommand::Flush(Flush { nsid })),
        io().prop_map(NvmCommand::Read),
        io().prop_map(NvmCommand::Write),
        io().prop_map(NvmCommand::Compare),
        write_zeroes().prop_map(NvmCommand::WriteZeroes),
        dsm().prop_map(NvmCommand::DatasetManagement),
    ]
    .prop_map(Command::Nvm)
}

fn property_size() -> impl Strategy<Value = PropertySize> {
    prop_oneof![Just(PropertySize::FourBytes), Just(PropertySize::EightBytes)]
}

fn property_set() -> impl Strategy<Value = PropertySet> {
    (any::<u32>(), property_size(), any::<u64>()).prop_map(|(offset, size, value)| {
        let value = match size {
            PropertySize::FourBytes => value & 0xFFFF_FFFF,
            PropertySize::EightBytes => value,
        };
        PropertySet { property: Property(offset), size, value }
    })
}

fn fabrics_command() -> impl Strategy<Value = Command> {
    let connect = (any::<u16>(), 2..=65_536u32, any::<u8>(), any::<u32>()).prop_map(
        |(qid, queue_entries, cattr, keep_alive_timeout_ms)| Connect {
            qid: Qid(qid),
            queue_entries,
            attributes: ConnectAttributes::from_bits(cattr),
            keep_alive_timeout_ms,
        },
    );
    let get = (any::<u32>(), property_size())
        .prop_map(|(offset, size)| PropertyGet { property: Property(offset), size });
    prop_oneof![
        (1..u32::MAX).prop_map(|length_bytes| {
            FabricsCommand::AuthenticationSend(AuthenticationSend { length_bytes })
        }),
        (1..u32::MAX).prop_map(|length_bytes| {
            FabricsCommand::AuthenticationReceive(AuthenticationReceive { length_bytes })
        }),
        connect.prop_map(FabricsCommand::Connect),
        get.prop_map(FabricsCommand::PropertyGet),
        property_set().prop_map(FabricsCommand::PropertySet),
        Just(FabricsCommand::Disconnect(Disconnect)),
    ]
    .prop_map(Command::Fabrics)
}

fn feature() -> impl Strategy<Value = Feature> {
    prop_oneof![
        any::<u32>().prop_map(|bits| Feature::Arbitration(Arbitration::from_bits(bits))),
        any::<bool>().prop_map(|enabled| Feature::VolatileWriteCache { enabled }),
        (1..u16::MAX).prop_map(|count| Feature::NumberOfQueues(QueueCounts::pairs(count))),
        any::<u32>().prop_map(|bits| Feature::AsyncEventConfig(AsyncEventConfig::from_bits(bits))),
        any::<u32>().prop_map(|timeout_ms| Feature::KeepAliveTimer { timeout_ms }),
        any::<bool>().prop_map(|extended| Feature::HostIdentifier { extended }),
        prop_oneof![
            Just(WriteProtection::None),
            Just(WriteProtection::Protected),
            Just(WriteProtection::UntilPowerCycle),
            Just(WriteProtection::Permanent),
        ]
        .prop_map(Feature::NamespaceWriteProtection),
        any::<u32>().prop_map(|value| Feature::Other { fid: FeatureId::TIMESTAMP, value }),
    ]
}

fn log_offset() -> impl Strategy<Value = LogOffset> {
    prop_oneof![
        any::<u64>().prop_map(|at| LogOffset::Bytes(at & !3)),
        any::<u64>().prop_map(LogOffset::Index),
    ]
}

fn get_log_page() -> impl Strategy<Value = GetLogPage> {
    (
        (nsid(), any::<u8>(), 0..128u8, any::<u16>()),
        (any::<bool>(), 1..=1u64 << 32, log_offset(), any::<u8>()),
    )
        .prop_map(|((nsid, lid, lsp, lsi), (retain_event, dwords, offset, csi))| GetLogPage {
            nsid,
            lid: LogId(lid),
            lsp,
            lsi,
            retain_event,
            length_bytes: dwords * 4,
            offset,
            csi: Csi(csi),
        })
}

fn identify() -> impl Strategy<Value = Identify> {
    (nsid(), any::<u8>(), any::<u16>(), any::<u16>(), any::<u8>()).prop_map(
        |(nsid, cns, cntid, cnssid, csi)| Identify {
            nsid,
            cns: Cns(cns),
            cntid: Cntlid(cntid),
            cnssid,
            csi: Csi(csi),
        },
    )
}

fn admin_command() -> impl Strategy<Value = Command> {
    prop_oneof![
        get_log_page().prop_map(AdminCommand::GetLogPage),
        identify().prop_map(AdminCommand::Identify),
        (any::<u16>(), any::<u16>())
            .prop_map(|(sqid, cid)| AdminCommand::Abort(Abort { sqid: Qid(sqid), cid: Cid(cid) })),
        (nsid(), any::<bool>(), feature()).prop_map(|(nsid, save, feature)| {
            AdminCommand::SetFeatures(SetFeatures { nsid, save, feature })
        }),
        (nsid(), any::<u8>(), 0..8u8, any::<u32>()).prop_map(|(nsid, fid, select, value)| {
            AdminCommand::GetFeatures(GetFeatures {
                nsid,
                fid: FeatureId(fid),
                select: Select(select),
                value,
            })
        }),
        Just(AdminCommand::AsyncEventRequest),
        Just(AdminCommand::KeepAlive),
    ]
    .prop_map(Command::Admin)
}

proptest! {
    #[test]
    fn encoded_commands_parse_to_themselves(
        nvm in nvm_command(), fabrics in fabrics_command(), admin in admin_command(), cid: u16,
    ) {
        for (qid, command) in [
            (IO, nvm), (IO, fabrics), (Qid::ADMIN, fabrics), (Qid::ADMIN, admin),
        ] {
            let sqe = to_sqe(&command).with_cid(Cid(cid));
            prop_assert_eq!(sqe.cid(), Cid(cid));
            prop_assert_eq!(Command::parse(qid, &sqe), Ok(command));
        }
    }

    /// Any 64 bytes parse without a panic, and a parsed command encodes to an entry that parses to
    /// it.
    #[test]
    fn any_entry_parses_or_is_refused(
        mut bytes: [[u8; 32]; 2], opcode in 0..0x20u8, fabrics: bool, fctype in 0..9u8, qid in 0..2u16,
    ) {
        bytes[0][0] = if fabrics { 0x7F } else { opcode };
        bytes[0][1] = bytes[0][1] & 0x3C | 0x40;
        if fabrics {
            bytes[0][4] = fctype;
        }
        let sqe = Sqe::read_from_bytes(bytes.as_flattened()).expect("64 bytes");
        match Command::parse(Qid(qid), &sqe) {
            Ok(command) => {
                let again = to_sqe(&command);
                prop_assert_eq!(Command::parse(Qid(qid), &again), Ok(command));
                prop_assert_eq!(again.opcode, sqe.opcode);
            }
            Err(status) => prop_assert!(!status.is_success() && status.do_not_retry()),
        }
        let _ = sqe.dptr.parse();
    }

    #[test]
    fn transfers_have_the_direction_of_the_opcode(
        nvm in nvm_command(), admin in admin_command(), fabrics in fabrics_command(),
    ) {
        let of = |transfer: DataTransfer, code: u8| {
            transfer == DataTransfer::NONE || transfer.direction == DataDirection::of(code)
        };
        let (Command::Nvm(nvm), Command::Admin(admin), Command::Fabrics(fabrics)) = (nvm, admin, fabrics)
        else {
            unreachable!("each strategy makes its own kind");
        };
        prop_assert!(of(nvm.transfer(512), nvm.opcode().0));
        prop_assert!(of(admin.transfer(), admin.opcode().0));
        prop_assert!(of(fabrics.transfer(), fabrics.fabrics_type().0));
    }

    #[test]
    fn sgl_descriptors_round_trip(address: u64, length in 0..=Sgl::KEYED_MAX_BYTES, key: u32, invalidate: bool, kind in 0..3u8) {
        let sgl = match kind {
            0 => Sgl::Keyed { address, length, key, invalidate },
            1 => Sgl::InCapsule { offset: address, length: key },
            _ => Sgl::LastSegment { offset: address, length: key },
        };
        let descriptor = crate::SglDescriptor::from(sgl);
        prop_assert_eq!(descriptor.parse(), Ok(sgl));
    }

    #[test]
    fn in_capsule_data_stays_within_the_received_bytes(
        received in 0..64usize, offset in 0..80u64, length in 0..80u32,
    ) {
        let sqe = Sqe::new(NvmOpcode::WRITE.0);
        let bytes = [7u8; 64];
        let capsule = CommandCapsule { sqe: &sqe, data: &bytes[..received] };
        match capsule.in_capsule(offset, length) {
            Ok(data) => {
                prop_assert_eq!(data.len(), length as usize);
                prop_assert!(offset + u64::from(length) <= received as u64);
            }
            Err(status) if offset > received as u64 => {
                prop_assert_eq!(status, Status::SGL_OFFSET_INVALID.with_dnr());
            }
            Err(status) => {
                prop_assert!(offset + u64::from(length) > received as u64);
                prop_assert_eq!(status, Status::DATA_SGL_LENGTH_INVALID.with_dnr());
            }
        }
    }
}

#[test]
fn unknown_commands_get_invalid_opcode() {
    let refused = Err(Status::INVALID_OPCODE.with_dnr());
    let opcodes = [AdminOpcode::FORMAT_NVM, AdminOpcode::CREATE_IO_SQ, AdminOpcode(0xC0)];
    for opcode in opcodes {
        assert_eq!(Command::parse(Qid::ADMIN, &Sqe::new(opcode.0)), refused);
    }
    for opcode in [NvmOpcode::COPY, NvmOpcode::VERIFY, NvmOpcode(0x90)] {
        assert_eq!(Command::parse(IO, &Sqe::new(opcode.0)), refused);
    }
    let fabrics = Sqe::fabrics(FabricsType(0x07));
    assert_eq!(Command::parse(Qid::ADMIN, &fabrics), refused);
    // Opcodes mean other things on the other kind of queue.
    assert_eq!(Command::parse(IO, &Sqe::new(AdminOpcode::IDENTIFY.0)), refused);
    assert_eq!(
        FabricsCommand::parse(&Sqe::new(AdminOpcode::IDENTIFY.0)),
        Err(Status::INVALID_OPCODE.with_dnr())
    );
}

#[test]
fn prps_and_fused_operations_are_refused() {
    let mut sqe = Sqe::new(NvmOpcode::FLUSH.0);
    for bits in [0x00, 0x80, 0xC0, 0x41, 0x42] {
        sqe.flags = SqeFlags::from_bits(bits);
        assert_eq!(Command::parse(IO, &sqe), Err(Status::INVALID_FIELD.with_dnr()));
    }
    sqe.flags = SqeFlags::from_bits(0x40 | 0x3C);
    assert!(Command::parse(IO, &sqe).is_ok(), "reserved bits are ignored");
}

#[test]
fn invalid_field_values_are_refused() {
    let mut connect = Sqe::fabrics(FabricsType::CONNECT);
    assert_eq!(Connect::parse(&connect), Err(Status::CONNECT_INVALID_PARAMETERS.with_dnr()));
    connect.cdw10 = U32::new(1);
    connect.cdw11 = U32::new(31);
    assert_eq!(Connect::parse(&connect), Err(Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr()));

    let mut get = Sqe::fabrics(FabricsType::PROPERTY_GET);
    get.cdw10 = U32::new(2);
    assert_eq!(PropertyGet::parse(&get), Err(Status::INVALID_FIELD.with_dnr()));

    let refused = Err(Status::INVALID_FIELD.with_dnr());
    let mut log = GetLogPage::new(LogId::SMART, 512).to_sqe();
    log.cdw12 = U32::new(2);
    assert_eq!(Command::parse(Qid::ADMIN, &log), refused, "an offset that is no dword's");
    assert_eq!(
        Feature::parse(FeatureId::NUMBER_OF_QUEUES, 0xFFFF),
        Err(Status::INVALID_FIELD.with_dnr())
    );
    assert_eq!(
        Feature::parse(FeatureId::NUMBER_OF_QUEUES, 0xFFFF_0000),
        Err(Status::INVALID_FIELD.with_dnr())
    );
    assert_eq!(
        Feature::parse(FeatureId::NAMESPACE_WRITE_PROTECTION, 4),
        Err(Status::INVALID_FIELD.with_dnr())
    );
}

#[test]
fn a_range_ends_within_the_namespace() {
    let outside = Err(Status::LBA_OUT_OF_RANGE.with_dnr());
    assert_eq!(LbaRange { slba: 0, blocks: 8 }.check(8), Ok(()));
    assert_eq!(LbaRange { slba: 1, blocks: 8 }.check(8), outside);
    assert_eq!(LbaRange { slba: 8, blocks: 1 }.check(8), outside);
    assert_eq!(LbaRange { slba: u64::MAX, blocks: 1 }.check(u64::MAX), outside);
    assert_eq!(
        LbaRange { slba: u64::MAX, blocks: 65_536 }.check(u64::MAX),
        outside,
        "no wrap-around"
    );
}

#[test]
fn the_largest_transfers_are_counted_in_64_bits() {
    let io = Io::new(Nsid(1), 0, LbaRange::MAX_BLOCKS);
    let transfer = NvmCommand::Read(io).transfer(1 << 31);
    assert_eq!(transfer.length_bytes, 1 << 47);
    let numd = GetLogPage::new(LogId::EFFECTS, 1 << 34).to_sqe();
    assert_eq!((numd.cdw10.get() >> 16, numd.cdw11.get()), (0xFFFF, 0xFFFF));
}

#[test]
fn a_segment_of_descriptors_is_whole_and_received() {
    let descriptor = crate::SglDescriptor::from(Sgl::InCapsule { offset: 32, length: 4 });
    let mut data = [0u8; 36];
    data[..16].copy_from_slice(zerocopy::IntoBytes::as_bytes(&descriptor));
    data[16..32].copy_from_slice(zerocopy::IntoBytes::as_bytes(&descriptor));
    let segment = |offset, length| {
        let sqe = Sqe::new(NvmOpcode::WRITE.0).with_data(Sgl::LastSegment { offset, length });
        CommandCapsule { sqe: &sqe, data: &data }.descriptors().map(<[_]>::len)
    };
    assert_eq!(segment(0, 32), Ok(2));
    assert_eq!(segment(16, 16), Ok(1));
    let invalid = Err(Status::INVALID_SGL_SEGMENT_DESCRIPTOR.with_dnr());
    assert_eq!(segment(0, 0), invalid);
    assert_eq!(segment(0, 24), invalid);
    assert_eq!(segment(16, 32), invalid);
    assert_eq!(segment(37, 16), Err(Status::SGL_OFFSET_INVALID.with_dnr()));
    assert_eq!(segment(u64::MAX, u32::MAX), Err(Status::SGL_OFFSET_INVALID.with_dnr()));

    let sqe = Sqe::new(NvmOpcode::WRITE.0).with_data(descriptor);
    let capsule = CommandCapsule { sqe: &sqe, data: &data };
    assert_eq!(capsule.descriptors(), Ok(&[descriptor][..]), "a lone descriptor is in the entry");
}
