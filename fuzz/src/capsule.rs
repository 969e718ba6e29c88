//! Command capsules: entries, descriptors, and the data that comes with them.

use nvme_proto::fabrics::{Connect, ConnectData};
use nvme_proto::nvm::ReadRanges;
use nvme_proto::{
    Command, CommandCapsule, FabricsCommand, IntoBytes, NvmCommand, Qid, Sgl, SglDescriptor, Sqe,
};

use crate::input::Input;

/// The queue that the capsule came on, then the capsule: an entry that parses is encoded to the
/// same bytes; a descriptor that is accepted describes bytes that arrived.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let qid = Qid(u16::from(input.u8() & 1));
    let bytes = input.rest();
    let Ok(capsule) = CommandCapsule::parse(bytes) else {
        assert!(bytes.len() < size_of::<Sqe>());
        return;
    };
    let _ = format!("{:?} {:?}", capsule.sqe, capsule.sqe.dptr);
    let descriptors = capsule.descriptors();
    for descriptor in descriptors.into_iter().flatten() {
        located(&capsule, descriptor);
    }
    match Command::parse(qid, capsule.sqe) {
        Ok(command) => parsed(qid, &command, capsule.data),
        Err(status) => assert!(!status.is_success() && status.do_not_retry()),
    }
}

/// A descriptor that has a meaning says the same again, and stays within the capsule.
fn located(capsule: &CommandCapsule<'_>, descriptor: &SglDescriptor) {
    let Ok(sgl) = descriptor.parse() else { return };
    assert_eq!(SglDescriptor::from(sgl).parse(), Ok(sgl));
    let (Sgl::InCapsule { offset, length } | Sgl::LastSegment { offset, length }) = sgl else {
        return;
    };
    if let Ok(found) = capsule.in_capsule(offset, length) {
        let start = usize::try_from(offset).expect("it is within the capsule");
        assert_eq!(
            found.as_ptr_range(),
            capsule.data[start..start + length as usize].as_ptr_range()
        );
    }
}

fn parsed(qid: Qid, command: &Command, data: &[u8]) {
    let again = match command {
        Command::Fabrics(command) => command.to_sqe(),
        Command::Admin(command) => command.to_sqe(),
        Command::Nvm(command) => command.to_sqe(),
    };
    assert_eq!(Command::parse(qid, &again).as_ref(), Ok(command));
    let _ = format!("{command:?}");
    match command {
        Command::Fabrics(FabricsCommand::Connect(connect)) => connect_data(connect, data),
        Command::Nvm(command) => nvm(command, data),
        Command::Fabrics(_) | Command::Admin(_) => {}
    }
}

fn connect_data(connect: &Connect, data: &[u8]) {
    assert!(connect.queue_entries > 0);
    let Ok(received) = ConnectData::parse(data) else { return };
    if let (Ok(subsystem), Ok(host)) = (received.subsystem(), received.host()) {
        let again = ConnectData::new(received.hostid, received.cntlid(), subsystem, host);
        let again = ConnectData::parse(again.as_bytes()).expect("its size");
        assert_eq!((again.subsystem(), again.host()), (received.subsystem(), received.host()));
    }
}

/// A list that is accepted is within the data and the namespace, and as long as the command says.
fn range_list(command: &ReadRanges, data: &[u8], size_bytes: u64) {
    match command.ranges_in(data, size_bytes) {
        Ok(ranges) => {
            assert_eq!(size_of_val(ranges), command.list_bytes() as usize);
            assert!(ranges.iter().all(|range| range.end().is_some_and(|end| end <= size_bytes)));
            let lengths = ranges.iter().map(|range| u64::from(range.length_bytes.get()));
            assert_eq!(lengths.sum::<u64>(), u64::from(command.length_bytes));
        }
        Err(status) => assert!(status.do_not_retry()),
    }
}

fn nvm(command: &NvmCommand, data: &[u8]) {
    for block_bytes in [512, 4096, 1 << 31] {
        let _ = command.transfer(block_bytes);
    }
    match command {
        NvmCommand::DatasetManagement(command) => match command.ranges_in(data) {
            Ok(ranges) => assert_eq!(size_of_val(ranges) as u64, command.length_bytes()),
            Err(_) => assert!((data.len() as u64) < command.length_bytes()),
        },
        NvmCommand::ReadRanges(command) => {
            for size_bytes in [0, 1 << 20, u64::MAX] {
                range_list(command, data, size_bytes);
            }
        }
        _ => {}
    }
}
