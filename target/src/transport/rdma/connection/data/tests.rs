//! Location of data by its descriptor, and steps of commands.

use nvme_proto::{FromBytes, SglDescriptor};
use proptest::prelude::*;

use super::*;
use crate::core_context::pool::{Pool, PoolMemory};

const WRITE: CommandTransfer =
    CommandTransfer { direction: TransferDirection::HostToController, length_bytes: 4096 };
const READ: CommandTransfer =
    CommandTransfer { direction: TransferDirection::ControllerToHost, length_bytes: 4096 };

fn keyed(length: u32) -> SglDescriptor {
    Sgl::Keyed { address: 0x1000, length, key: 7, invalidate: false }.into()
}

fn in_capsule(offset: u64, length: u32) -> SglDescriptor {
    Sgl::InCapsule { offset, length }.into()
}

#[test]
fn good_descriptors() {
    let host = KeyedMemory { address: 0x1000, key: 7, length: 4096 };
    assert_eq!(locate(keyed(4096).parse(), READ, 0), Ok(HostData::Returned(host)));
    let fetched = Ok(HostData::Fetched(host));
    assert_eq!(locate(keyed(8192).parse(), WRITE, 0), fetched, "more than needed is fine");
    let capsule = HostData::InCapsule { offset: 0, length: 4096 };
    assert_eq!(locate(in_capsule(0, 4096).parse(), WRITE, 4096), Ok(capsule));
    let capsule = HostData::InCapsule { offset: 16, length: 4096 };
    assert_eq!(locate(in_capsule(16, 4096).parse(), WRITE, 4112), Ok(capsule));
}

#[test]
fn bad_descriptors() {
    let status = |descriptor: SglDescriptor, transfer, received| {
        locate(descriptor.parse(), transfer, received).unwrap_err().without_flags()
    };
    assert_eq!(status(keyed(4095), READ, 0), Status::DATA_SGL_LENGTH_INVALID);
    assert_eq!(status(keyed(0), WRITE, 0), Status::DATA_SGL_LENGTH_INVALID);
    assert_eq!(status(in_capsule(0, 4095), WRITE, 4096), Status::DATA_SGL_LENGTH_INVALID);
    assert_eq!(status(in_capsule(0, 4096), WRITE, 4095), Status::SGL_OFFSET_INVALID);
    assert_eq!(status(in_capsule(1, 4096), WRITE, 4096), Status::SGL_OFFSET_INVALID);
    assert_eq!(status(in_capsule(u64::MAX, 4096), WRITE, 4096), Status::SGL_OFFSET_INVALID);
    assert_eq!(
        status(in_capsule(0, 4096), READ, 4096),
        Status::SGL_DESCRIPTOR_TYPE_INVALID,
        "there is no data in a response capsule"
    );
    let segment = Sgl::LastSegment { offset: 0, length: 16 };
    assert_eq!(status(segment.into(), WRITE, 16), Status::SGL_DESCRIPTOR_TYPE_INVALID);
    assert_eq!(status(SglDescriptor::from(segment), READ, 0), Status::SGL_DESCRIPTOR_TYPE_INVALID);
}

#[test]
fn only_a_key_that_grants_something_is_invalidated() {
    let descriptor = |length, invalidate| {
        invalidated_key(&Ok(Sgl::Keyed { address: 0, length, key: 9, invalidate }))
    };
    assert_eq!(descriptor(4096, true), Some(9));
    assert_eq!(descriptor(4096, false), None);
    assert_eq!(descriptor(0, true), None);
    assert_eq!(invalidated_key(&in_capsule(0, 4096).parse()), None);
}

fn transfer() -> impl Strategy<Value = CommandTransfer> {
    (any::<bool>(), 0u32..10_000).prop_map(|(read, length_bytes)| CommandTransfer {
        length_bytes,
        ..if read { READ } else { WRITE }
    })
}

proptest! {
    /// Located data exists and has the right length, for any descriptor bytes.
    #[test]
    fn data_is_where_the_descriptor_says_or_nowhere(
        bytes: [u8; 15],
        kind in prop::sample::select(vec![0x40u8, 0x4F, 0x01, 0x31, 0x00]),
        small: bool,
        transfer in transfer(),
        received in 0u32..10_000,
    ) {
        let mut bytes = bytes;
        if small {
            // An offset and a length that may fit.
            bytes[2..8].fill(0);
            bytes[10..12].fill(0);
        }
        let descriptor = [&bytes[..], &[kind]].concat();
        let descriptor = SglDescriptor::read_from_bytes(&descriptor).expect("16 bytes");
        let needed = transfer.length_bytes;
        match (locate(descriptor.parse(), transfer, received), descriptor.parse()) {
            (
                Ok(found @ (HostData::Fetched(memory) | HostData::Returned(memory))),
                Ok(Sgl::Keyed { address, length, key, .. }),
            ) => {
                prop_assert_eq!(memory, KeyedMemory { address, key, length: needed });
                prop_assert!(length >= needed);
                let returns = matches!(found, HostData::Returned(_));
                prop_assert_eq!(returns, transfer.direction == TransferDirection::ControllerToHost);
            }
            (
                Ok(HostData::InCapsule { offset, length: moved }),
                Ok(Sgl::InCapsule { offset: o, length }),
            ) => {
                prop_assert_eq!((u64::from(offset), moved), (o, needed));
                prop_assert!(length >= needed && o + u64::from(length) <= u64::from(received));
                prop_assert_eq!(transfer.direction, TransferDirection::HostToController);
            }
            (Ok(found), described) => prop_assert!(false, "{found:?} of {described:?}"),
            (Err(_), Ok(Sgl::Keyed { length, .. })) => prop_assert!(length < needed),
            (Err(_), Ok(Sgl::InCapsule { offset, length })) => {
                let inside = offset.checked_add(length.into()).is_some_and(|end| end <= received.into());
                let write = transfer.direction == TransferDirection::HostToController;
                prop_assert!(!(write && inside && length >= needed), "it was refused");
            }
            (Err(_), Ok(Sgl::LastSegment { .. }) | Err(_)) => {}
        }
    }
}

/// A buffer of one page and more, which nothing uses.
fn buffer(pool: &mut Pool) -> Buffer {
    pool.allocate(8192).expect("the pool is empty")
}

#[test]
fn a_command_has_the_steps_of_its_kind() {
    let memory = PoolMemory::new(1 << 20, 0).unwrap();
    let mut pool = Pool::new(memory, 0, 1, 1 << 20);
    let to = KeyedMemory { address: 0x1000, key: 7, length: 4096 };
    let mut outgoing = || LocalData::Outgoing(OutgoingData { buffer: buffer(&mut pool), to });
    let read = |fua, data| StorageStep::first(IoKind::Read { fua }, data).expect("its data");
    let step = read(false, outgoing()).next();
    assert!(matches!(step, Err(StorageStep::Read(_))), "{step:?}");
    let step = read(true, outgoing());
    assert!(matches!(step, StorageStep::FlushThenRead(_)) && step.buffer().is_some(), "{step:?}");
    let step = step.next().expect("it reads then");
    assert!(matches!(step, StorageStep::Read(_)), "{step:?}");
    assert_eq!(step.into_response(Status::SUCCESS).sent_bytes(), 4096);
    let failed = read(false, outgoing()).into_response(Status::ABORT_REQUESTED);
    assert!(failed.sent_bytes() == 0 && failed.into_buffer().is_some());
    let compared = LocalData::Arrived(ArrivedData::Buffer(buffer(&mut pool)));
    let step = StorageStep::first(IoKind::Compare { fua: true }, compared).expect("its data");
    assert!(matches!(step.next(), Ok(StorageStep::Compare(_))));
    let capsule = || LocalData::Arrived(ArrivedData::Capsule { offset: 0, length: 16 });
    let step = StorageStep::first(IoKind::Deallocate, capsule()).expect("its data");
    assert!(matches!(step.next(), Ok(StorageStep::Deallocate { passed: 0, .. })));
    let step = StorageStep::first(IoKind::Write { fua: false }, capsule()).expect("its data");
    assert!(step.buffer().is_none() && matches!(step.next(), Err(StorageStep::Write(_))));
    assert!(matches!(StorageStep::first(IoKind::Flush, LocalData::None), Ok(StorageStep::Plain)));
    for (kind, data) in [
        (IoKind::Read { fua: false }, capsule()),
        (IoKind::Read { fua: false }, LocalData::None),
        (IoKind::Write { fua: false }, LocalData::None),
        (IoKind::Compare { fua: false }, capsule()),
        (IoKind::Flush, capsule()),
    ] {
        assert!(StorageStep::first(kind, data).is_err(), "{kind:?}");
    }
}
