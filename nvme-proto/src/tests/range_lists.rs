//! Read Ranges, and the offer of it.

use std::vec::Vec;

use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use crate::identify::{IdentifyController, RangeListOffer};
use crate::nvm::{ListedRange, ReadRanges};
use crate::{
    Command, DataDirection, DataTransfer, Nsid, NvmCommand, NvmOpcode, Qid, Sgl, Sqe, Status,
};

const SIZE_BYTES: u64 = 10_000;

fn command(ranges: &[ListedRange]) -> ReadRanges {
    let length_bytes = ranges.iter().map(|range| range.length_bytes.get()).sum();
    ReadRanges { nsid: Nsid(3), ranges: ranges.len() as u32, length_bytes }
}

#[test]
fn the_command_has_these_bytes() {
    // The example of docs/read-ranges.md.
    let example = "
        C2 40 00 00  03 00 00 00  00 00 00 00  00 00 00 00
        00 00 00 00  00 00 00 00  10 00 00 00  00 00 00 00
        02 0A 00 07  00 00 00 40  01 00 00 00  02 0A 00 00
        00 00 00 00  00 00 00 00  00 00 00 00  00 00 00 00
        04 10 00 00  00 00 00 00  02 08 00 00  00 00 00 00
        00 00 00 00  00 00 00 00  00 02 00 00  00 00 00 00";
    let expected: Vec<u8> =
        example.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    let ranges = [ListedRange::new(4100, 2050), ListedRange::new(0, 512)];
    let data = Sgl::Keyed { address: 0x10, length: 2562, key: 7, invalidate: false };
    let sqe = command(&ranges).to_sqe().with_data(data);
    assert_eq!([sqe.as_bytes(), ranges.as_bytes()].concat(), expected);
    let wide = ListedRange::new(0x0102_0304_0506_0708, 0x090A_0B0C);
    let bytes = [8, 7, 6, 5, 4, 3, 2, 1, 0x0C, 0x0B, 0x0A, 9, 0, 0, 0, 0];
    assert_eq!(wide.as_bytes(), bytes);
}

#[test]
fn the_opcode_is_of_a_vendor_and_its_data_goes_to_the_host() {
    const { assert!(NvmOpcode::READ_RANGES.0 >= 0x80) };
    assert_eq!(DataDirection::of(NvmOpcode::READ_RANGES.0), DataDirection::ControllerToHost);
    let command =
        NvmCommand::ReadRanges(command(&[ListedRange::new(0, 5), ListedRange::new(9, 6)]));
    assert_eq!((command.opcode(), command.nsid()), (NvmOpcode::READ_RANGES, Nsid(3)));
    let transfer = DataTransfer { direction: DataDirection::ControllerToHost, length_bytes: 11 };
    assert_eq!(command.transfer(4096), transfer);
    let sqe = command.to_sqe();
    assert_eq!(Command::parse(Qid(1), &sqe), Ok(Command::Nvm(command)));
    assert_eq!(Command::parse(Qid::ADMIN, &sqe), Err(Status::INVALID_OPCODE.with_dnr()));
}

#[test]
fn each_mistake_in_a_list_has_a_status() {
    let invalid = Status::INVALID_FIELD.with_dnr();
    let outside = Status::LBA_OUT_OF_RANGE.with_dnr();
    let good = [ListedRange::new(0, 10), ListedRange::new(SIZE_BYTES - 1, 1)];
    let found = command(&good).ranges_in(good.as_bytes(), SIZE_BYTES);
    assert_eq!(found, Ok(&good[..]));
    let more = [good[0], good[1], ListedRange::new(5, 5)];
    assert_eq!(command(&good).ranges_in(more.as_bytes(), SIZE_BYTES), Ok(&good[..]));
    let one_less = &good.as_bytes()[..31];
    assert_eq!(command(&good).ranges_in(one_less, SIZE_BYTES), Err(invalid));
    assert_eq!(command(&good).ranges_in(&[], SIZE_BYTES), Err(invalid));
    let other_sum = ReadRanges { length_bytes: 12, ..command(&good) };
    assert_eq!(other_sum.ranges_in(good.as_bytes(), SIZE_BYTES), Err(invalid));
    let refused = |range, status| {
        let list = [good[0], range];
        assert_eq!(command(&list).ranges_in(list.as_bytes(), SIZE_BYTES), Err(status), "{range:?}");
    };
    refused(ListedRange::new(7, 0), invalid);
    refused(ListedRange::new(SIZE_BYTES - 1, 2), outside);
    refused(ListedRange::new(SIZE_BYTES, 1), outside);
    refused(ListedRange::new(u64::MAX, 1), outside);
    refused(ListedRange::new(u64::MAX - 1, u32::MAX - 20), outside);
}

#[test]
fn a_sum_of_more_than_32_bits_is_no_length() {
    let list = [ListedRange::new(0, u32::MAX), ListedRange::new(0, 2)];
    let command = ReadRanges { nsid: Nsid(1), ranges: 2, length_bytes: 1 };
    let refused = command.ranges_in(list.as_bytes(), u64::MAX);
    assert_eq!(refused, Err(Status::INVALID_FIELD.with_dnr()));
}

#[test]
#[should_panic = "1 to 65,536"]
fn a_command_without_ranges_is_not_encoded() {
    command(&[]).to_sqe();
}

#[test]
fn the_offer_is_in_the_bytes_of_vendors() {
    let offer = RangeListOffer { ranges: 0x0102, bytes: 0x0304_0506 };
    let mut identify = IdentifyController::blank();
    assert_eq!(identify.range_list_offer(), None);
    identify.set_range_list_offer(&offer);
    assert_eq!(identify.range_list_offer(), Some(offer));
    let bytes = identify.as_bytes();
    let expected = b"FEEDRAIL\x01\x00\x02\x01\x06\x05\x04\x03";
    assert_eq!((&bytes[3072..3088], &bytes[3088..]), (&expected[..], &[0; 1008][..]));
    // Another magic, version, an end that is not zeros, and limits of 0.
    for (at, byte) in [(3072, 0), (3080, 2), (3081, 1), (3088, 1), (4095, 1)] {
        let mut other = bytes.to_vec();
        other[at] = byte;
        let other = IdentifyController::read_from_bytes(&other).unwrap();
        assert_eq!(other.range_list_offer(), None, "byte {at}");
    }
    for offer in [RangeListOffer { ranges: 0, ..offer }, RangeListOffer { bytes: 0, ..offer }] {
        identify.set_range_list_offer(&offer);
        assert_eq!(identify.range_list_offer(), None);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_list_or_refused(
        sqe in prop::array::uniform32(any::<u8>()),
        data in prop::collection::vec(any::<u8>(), 0..200),
        size_bytes in any::<u64>(),
        few in any::<bool>(),
    ) {
        let mut bytes = [0; 64];
        bytes[32..].copy_from_slice(&sqe);
        bytes[0] = NvmOpcode::READ_RANGES.0;
        if few {
            bytes[40..42].copy_from_slice(&[sqe[8] % 12, 0]);
        }
        let sqe = Sqe::read_from_bytes(&bytes).unwrap();
        let Ok(NvmCommand::ReadRanges(command)) = NvmCommand::parse(&sqe) else {
            panic!("it is this command");
        };
        prop_assert_eq!(NvmCommand::parse(&command.to_sqe()), Ok(NvmCommand::ReadRanges(command)));
        match command.ranges_in(&data, size_bytes) {
            Ok(ranges) => {
                prop_assert_eq!(ranges.len(), command.ranges as usize);
                prop_assert!(ranges.iter().all(|range| range.end().unwrap() <= size_bytes));
            }
            Err(status) => prop_assert!(status.do_not_retry()),
        }
    }

    #[test]
    fn lists_within_the_namespace_are_accepted(
        list in prop::collection::vec((0..SIZE_BYTES - 100, 1u32..100), 1..100),
        behind in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let list: Vec<_> =
            list.into_iter().map(|(offset, length)| ListedRange::new(offset, length)).collect();
        let data = [list.as_bytes(), &behind].concat();
        prop_assert_eq!(command(&list).ranges_in(&data, SIZE_BYTES), Ok(&list[..]));
    }
}
