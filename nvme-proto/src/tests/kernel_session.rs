//! Entries and completions that a Linux 6.12 host and target exchanged, byte by byte.

use zerocopy::{FromBytes, IntoBytes};

use crate::fabrics::{
    Connect, ConnectAttributes, ConnectResponse, PropertyGet, PropertySet, PropertySize,
};
use crate::feature::{AsyncEventConfig, Feature, QueueCounts, SetFeatures};
use crate::identify::{Cns, Identify};
use crate::log::{GetLogPage, LogId};
use crate::nvm::{DatasetManagement, DsmAttributes, Flush, Io};
use crate::registers::{Cap, Cc, CcCss, Csts, Property, ShutdownNotification, Version};
use crate::{
    AdminCommand, Cid, Cntlid, Command, Cqe, FabricsCommand, LbaRange, Nsid, NvmCommand, Qid, Sgl,
    Sqe,
};

fn bytes<const N: usize>(hex: &str) -> [u8; N] {
    assert_eq!(hex.len(), 2 * N);
    core::array::from_fn(|i| {
        u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hexadecimal digits")
    })
}

/// Checks that the entry means `command`, and that the command with that identifier and data is the
/// entry.
fn means(qid: Qid, hex: &str, cid: u16, data: Sgl, command: Command) {
    let sqe = Sqe::read_from_bytes(&bytes::<64>(hex)).expect("64 bytes");
    assert_eq!(Command::parse(qid, &sqe), Ok(command));
    assert_eq!(sqe.dptr.parse(), Ok(data));
    let built = match command {
        Command::Fabrics(command) => command.to_sqe(),
        Command::Admin(command) => command.to_sqe(),
        Command::Nvm(command) => command.to_sqe(),
    };
    assert_eq!(built.with_cid(Cid(cid)).with_data(data).as_bytes(), sqe.as_bytes());
}

const NO_DATA: Sgl = Sgl::Keyed { address: 0, length: 0, key: 0, invalidate: false };
const IO: Qid = Qid(1);

const fn keyed(address: u64, length: u32, key: u32) -> Sgl {
    Sgl::Keyed { address, length, key, invalidate: true }
}

#[test]
fn connect() {
    means(
        Qid::ADMIN,
        "7f400000010000000000000000000000000000000000000000c86ecd075c26ff\
         000400eb0300004f000000001f00000000000000000000000000000000000000",
        0,
        keyed(0xFF26_5C07_CD6E_C800, 1024, 0x03EB),
        Command::Fabrics(FabricsCommand::Connect(Connect {
            qid: Qid::ADMIN,
            queue_entries: 32,
            attributes: ConnectAttributes::new(),
            keep_alive_timeout_ms: 0,
        })),
    );
    means(
        IO,
        "7f40000001000000000000000000000000000000000000000000000000000000\
         0004000000000001000001007f00000000000000000000000000000000000000",
        0,
        Sgl::InCapsule { offset: 0, length: 1024 },
        Command::Fabrics(FabricsCommand::Connect(Connect {
            qid: IO,
            queue_entries: 128,
            attributes: ConnectAttributes::new(),
            keep_alive_timeout_ms: 0,
        })),
    );
}

#[test]
fn properties() {
    means(
        Qid::ADMIN,
        "7f40010004000000000000000000000000000000000000000000000000000000\
         0000000000000040010000000000000000000000000000000000000000000000",
        1,
        NO_DATA,
        Command::Fabrics(FabricsCommand::PropertyGet(PropertyGet {
            property: Property::CAP,
            size: PropertySize::EightBytes,
        })),
    );
    let cc = Cc::new().with_en(true).with_iosqes(Cc::IOSQES).with_iocqes(Cc::IOCQES);
    let shut_down = cc.with_shn(ShutdownNotification::NORMAL);
    assert_eq!((cc.into_bits(), shut_down.into_bits()), (0x0046_0001, 0x0046_4001));
    assert_eq!(Cc::from_bits(0x0046_0060).css(), CcCss::ALL);
    means(
        Qid::ADMIN,
        "7f40001000000000000000000000000000000000000000000000000000000000\
         0000000000000040000000001400000060004600000000000000000000000000",
        0x1000,
        NO_DATA,
        Command::Fabrics(FabricsCommand::PropertySet(PropertySet {
            property: Property::CC,
            size: PropertySize::FourBytes,
            value: 0x0046_0060,
        })),
    );
}

#[test]
fn admin_commands() {
    means(
        Qid::ADMIN,
        "06401200000000000000000000000000000000000000000000c0bbc1075c26ff\
         001000ec0300004f010000000000000000000000000000000000000000000000",
        0x12,
        keyed(0xFF26_5C07_C1BB_C000, 4096, 0x03EC),
        Command::Admin(AdminCommand::Identify(Identify::new(Cns::CONTROLLER))),
    );
    means(
        Qid::ADMIN,
        "0640162001000000000000000000000000000000000000000090bbc1075c26ff\
         001000792400004f030000000000000000000000000000000000000000000000",
        0x2016,
        keyed(0xFF26_5C07_C1BB_9000, 4096, 0x2479),
        Command::Admin(AdminCommand::Identify(Identify::namespace(
            Cns::NAMESPACE_DESCRIPTORS,
            Nsid(1),
        ))),
    );
    means(
        Qid::ADMIN,
        "02401500000000000000000000000000000000000000000000c02bd8075c26ff\
         140000ee0300004f700004000000000000000000000000000000000000000000",
        0x15,
        keyed(0xFF26_5C07_D82B_C000, 20, 0x03EE),
        Command::Admin(AdminCommand::GetLogPage(GetLogPage::new(LogId::DISCOVERY, 20))),
    );
    let set = |feature| {
        Command::Admin(AdminCommand::SetFeatures(SetFeatures {
            nsid: Nsid::NONE,
            save: false,
            feature,
        }))
    };
    means(
        Qid::ADMIN,
        "0940161000000000000000000000000000000000000000000000000000000000\
         0000000000000040070000000000000000000000000000000000000000000000",
        0x1016,
        NO_DATA,
        set(Feature::NumberOfQueues(QueueCounts::pairs(1))),
    );
    means(
        Qid::ADMIN,
        "0940130000000000000000000000000000000000000000000000000000000000\
         00000000000000400b0000000000008000000000000000000000000000000000",
        0x13,
        NO_DATA,
        set(Feature::AsyncEventConfig(AsyncEventConfig::new().with_discovery_log(true))),
    );
    means(
        Qid::ADMIN,
        "1840013000000000000000000000000000000000000000000000000000000000\
         0000000000000040000000000000000000000000000000000000000000000000",
        0x3001,
        NO_DATA,
        Command::Admin(AdminCommand::KeepAlive),
    );
}

#[test]
fn io_commands() {
    means(
        IO,
        "01407a0001000000000000000000000000000000000000000000000000000000\
         0010000000000001200300000000000007000000000000000000000000000000",
        0x7A,
        Sgl::InCapsule { offset: 0, length: 4096 },
        Command::Nvm(NvmCommand::Write(Io::new(Nsid(1), 800, 8))),
    );
    means(
        IO,
        "01407c00010000000000000000000000000000000000000000c03dd8075c26ff\
         000001b94400004f00050000000000007f000000000000000000000000000000",
        0x7C,
        keyed(0xFF26_5C07_D83D_C000, 65_536, 0x44B9),
        Command::Nvm(NvmCommand::Write(Io {
            nsid: Nsid(1),
            range: LbaRange { slba: 1280, blocks: 128 },
            fua: false,
            limited_retry: false,
        })),
    );
    // The data is longer than the one range: the kernel sends a whole page.
    means(
        IO,
        "09407d1001000000000000000000000000000000000000000000000000000000\
         0010000000000001000000000400000000000000000000000000000000000000",
        0x107D,
        Sgl::InCapsule { offset: 0, length: 4096 },
        Command::Nvm(NvmCommand::DatasetManagement(DatasetManagement {
            nsid: Nsid(1),
            ranges: 1,
            attributes: DsmAttributes::new().with_deallocate(true),
        })),
    );
    means(
        IO,
        "00407e1001000000000000000000000000000000000000000000000000000000\
         0000000000000040000000000000000000000000000000000000000000000000",
        0x107E,
        NO_DATA,
        Command::Nvm(NvmCommand::Flush(Flush { nsid: Nsid(1) })),
    );
}

#[test]
fn completions() {
    let cqe = |hex| *Cqe::parse(&bytes::<16>(hex)).expect("16 bytes");

    let connected = cqe("01000000000000000100000000000000");
    assert!(connected.status().is_success());
    let response = ConnectResponse::from_bits(connected.dw0.get());
    assert_eq!(response, ConnectResponse::controller(Cntlid(1)));
    let built = Cqe::success(Cid(0)).with_queue(1, Qid::ADMIN).with_dw0(response.into_bits());
    assert_eq!(built, connected);

    let cap = cqe("7f00000f200800000200000001000000");
    let value = Cap::from_bits(cap.result());
    assert_eq!((value.mqes_z(), value.to(), value.cqr()), (127, 15, false));
    assert!(value.css().nvm() && value.css().iocss() && !value.crwms() && !value.crims());
    assert_eq!(Cqe::success(Cid(1)).with_queue(2, Qid::ADMIN).with_result(value.into_bits()), cap);

    let version = Version::from_bits(cqe("00030100000000000700000000300000").dw0);
    assert_eq!(version, Version::V1_3);
    assert!(version < Version::V2_0 && version > Version::V1_2_1);

    let csts = Csts::from_bits(cqe("08000000000000000f00000000400000").dw0.get());
    assert_eq!(csts.shst(), crate::registers::ShutdownStatus::COMPLETE);

    let queues = cqe("7f007f00000000000c00000016100000");
    assert_eq!(
        Feature::parse(crate::feature::FeatureId::NUMBER_OF_QUEUES, queues.dw0.get()),
        Ok(Feature::NumberOfQueues(QueueCounts::pairs(128)))
    );
}
