//! Location of a command's data, from its single SGL descriptor (NVMe RDMA transport, SGL support).

use nvme_proto::{Sgl, SglDescriptor, Status};

use crate::controller::{CommandTransfer, TransferDirection};
use crate::transport::rdma::connection::request::HostData;

/// Returns the remote key that the response must invalidate (Send with Invalidate), whether or not
/// the command succeeds.
pub(super) fn invalidated_key(descriptor: &SglDescriptor) -> Option<u32> {
    match descriptor.parse() {
        Ok(Sgl::Keyed { key, invalidate: true, length, .. }) if length > 0 => Some(key),
        _ => None,
    }
}

/// Locates the data of a command that moves data. `received` is the length in bytes of the
/// in-capsule data that arrived with it.
///
/// The length of a descriptor may be more than the command moves, but not less.
///
/// # Errors
/// The status with which the command fails, for an invalid descriptor.
pub(super) fn locate(
    descriptor: &SglDescriptor,
    transfer: CommandTransfer,
    received: u32,
) -> Result<HostData, Status> {
    match descriptor.parse()? {
        Sgl::Keyed { address, length, key, .. } => {
            covers(length, transfer.length_bytes)?;
            Ok(HostData::Keyed { address, key })
        }
        Sgl::InCapsule { offset, length } => {
            if transfer.direction == TransferDirection::ControllerToHost {
                return Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.with_dnr());
            }
            let end = offset.checked_add(u64::from(length));
            if end.is_none_or(|end| end > u64::from(received)) {
                return Err(Status::SGL_OFFSET_INVALID.with_dnr());
            }
            covers(length, transfer.length_bytes)?;
            // The offset is within the received bytes, so it fits in 32 bits.
            Ok(HostData::InCapsule { offset: offset as u32 })
        }
        // Only one descriptor is allowed (MSDBD in Identify Controller is 1).
        Sgl::LastSegment { .. } => Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.with_dnr()),
    }
}

fn covers(length: u32, needed: u32) -> Result<(), Status> {
    if length < needed {
        return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use nvme_proto::FromBytes;
    use proptest::prelude::*;

    use super::*;

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
        let host = HostData::Keyed { address: 0x1000, key: 7 };
        assert_eq!(locate(&keyed(4096), READ, 0), Ok(host));
        assert_eq!(locate(&keyed(8192), WRITE, 0), Ok(host), "more than needed is fine");
        let capsule = HostData::InCapsule { offset: 0 };
        assert_eq!(locate(&in_capsule(0, 4096), WRITE, 4096), Ok(capsule));
        let capsule = HostData::InCapsule { offset: 16 };
        assert_eq!(locate(&in_capsule(16, 4096), WRITE, 4112), Ok(capsule));
    }

    #[test]
    fn bad_descriptors() {
        let status = |descriptor: SglDescriptor, transfer, received| {
            locate(&descriptor, transfer, received).unwrap_err().without_flags()
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
        assert_eq!(
            status(SglDescriptor::from(segment), READ, 0),
            Status::SGL_DESCRIPTOR_TYPE_INVALID
        );
    }

    #[test]
    fn only_a_key_that_grants_something_is_invalidated() {
        let descriptor = |length, invalidate| {
            invalidated_key(&Sgl::Keyed { address: 0, length, key: 9, invalidate }.into())
        };
        assert_eq!(descriptor(4096, true), Some(9));
        assert_eq!(descriptor(4096, false), None);
        assert_eq!(descriptor(0, true), None);
        assert_eq!(invalidated_key(&in_capsule(0, 4096)), None);
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
            match (locate(&descriptor, transfer, received), descriptor.parse()) {
                (Ok(HostData::Keyed { address, key }), Ok(Sgl::Keyed { address: a, length, key: k, .. })) => {
                    prop_assert_eq!((address, key), (a, k));
                    prop_assert!(length >= needed);
                }
                (Ok(HostData::InCapsule { offset }), Ok(Sgl::InCapsule { offset: o, length })) => {
                    prop_assert_eq!(u64::from(offset), o);
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
}
