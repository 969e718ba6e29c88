//! Every NVMe structure in the capture parses to the expected value, and encodes to the same bytes.

use std::collections::BTreeMap;

use nvme_proto::{
    AdminCommand, Command, Cqe, DataDirection, IntoBytes, NvmCommand, Sgl, Sqe, rdma_cm,
};
use roce_proto::cm::{IpHeader, ManagementMessage};

use super::mads::recorded;
use super::session::{Exchange, Movement, exchanges};

#[test]
fn private_data_survives() {
    let (mut requests, mut accepts) = (Vec::new(), Vec::new());
    for recorded in recorded() {
        match ManagementMessage::parse(&recorded.mad).unwrap().1 {
            ManagementMessage::Req(req) => {
                let datum = &req.private_data[IpHeader::BYTES..];
                let request = rdma_cm::ConnectRequest::parse(datum).unwrap();
                let again = rdma_cm::ConnectRequest::new(
                    request.qid(),
                    request.cntlid(),
                    request.receive_entries(),
                    request.send_entries(),
                );
                assert_eq!(again.as_bytes(), &datum[..32]);
                assert_eq!(datum[32..], [0; 24]);
                requests.push((request.qid().0, request.send_entries()));
            }
            ManagementMessage::Rep(rep) => {
                let accept = rdma_cm::ConnectAccept::parse(&rep.private_data).unwrap();
                let again = rdma_cm::ConnectAccept::new(accept.receive_entries());
                assert_eq!(again.as_bytes(), &rep.private_data[..32]);
                assert_eq!(rep.private_data[32..], [0; 164]);
                accepts.push(accept.receive_entries());
            }
            _ => {}
        }
    }
    assert_eq!(requests, [(0, 32), (0, 32), (1, 128)]);
    assert_eq!(accepts, [32, 32, 128]);
}

#[test]
fn commands_are_made_again_from_their_meaning() {
    for Exchange { sqe, command, .. } in exchanges() {
        let again = match command {
            Command::Fabrics(command) => command.to_sqe(),
            Command::Admin(command) => command.to_sqe(),
            Command::Nvm(command) => command.to_sqe(),
        };
        let mut again: Sqe = again.with_cid(sqe.cid()).with_data(sqe.dptr.parse().unwrap());
        if let Command::Nvm(NvmCommand::Read(_) | NvmCommand::Write(_)) = command {
            // Hints about future use, which are ignored.
            again.cdw13 = sqe.cdw13;
        }
        assert_eq!(again.as_bytes(), sqe.as_bytes(), "{command:?}");
    }
}

#[test]
fn responses_are_made_again_from_their_meaning() {
    let mut responses = 0;
    for exchange in exchanges() {
        let Some(response) = &exchange.response else { continue };
        responses += 1;
        let cqe = Cqe::parse(&response.bytes).unwrap();
        let again = Cqe::new(cqe.cid(), cqe.status())
            .with_result(cqe.result())
            .with_queue(cqe.sqhd.get(), nvme_proto::Qid(cqe.sqid.get()));
        assert_eq!(again.as_bytes(), response.bytes);
        assert_eq!(cqe.sqid.get(), exchange.qid.0, "{:?}", exchange.command);
        // A key goes with the response if and only if the command allowed it.
        let granted = match exchange.sqe.dptr.parse().unwrap() {
            Sgl::Keyed { key, invalidate: true, .. } => Some(key),
            _ => None,
        };
        assert_eq!(response.invalidated, granted, "{:?}", exchange.command);
    }
    assert_eq!(responses, 96);
}

#[test]
fn data_length_equals_the_commands() {
    for exchange in exchanges() {
        let transfer = match exchange.command {
            Command::Fabrics(command) => command.transfer(),
            Command::Admin(command) => command.transfer(),
            Command::Nvm(command) => command.transfer(512),
        };
        let is_failure = exchange.response.as_ref().is_some_and(|response| {
            Cqe::parse(&response.bytes).unwrap().status() != nvme_proto::Status::SUCCESS
        });
        if is_failure {
            assert!(exchange.data.is_empty());
            continue;
        }
        let expected = match exchange.command {
            // The kernel sends the whole page in which its ranges are.
            Command::Nvm(NvmCommand::DatasetManagement(_)) => 4096,
            _ => transfer.length_bytes,
        };
        assert_eq!(exchange.data.len() as u64, expected, "{:?}", exchange.command);
        match transfer.direction {
            DataDirection::None => assert_eq!(exchange.by, Movement::Nothing),
            DataDirection::ControllerToHost => assert_eq!(exchange.by, Movement::RdmaWrite),
            _ => assert!(matches!(exchange.by, Movement::InCapsule | Movement::RdmaRead)),
        }
    }
}

/// The name of an exchange, and the movement of its data.
fn kind(exchange: &Exchange) -> (String, Movement) {
    let name = match exchange.command {
        Command::Fabrics(command) => format!("{}", command.fabrics_type()),
        Command::Admin(AdminCommand::Identify(identify)) => format!("{}", identify.cns),
        Command::Admin(AdminCommand::GetLogPage(page)) => format!("{}", page.lid),
        Command::Admin(command) => format!("{}", command.opcode()),
        Command::Nvm(command) => format!("{}", command.opcode()),
    };
    (name, exchange.by)
}

#[test]
fn every_kind_of_exchange_is_there() {
    let mut kinds = BTreeMap::new();
    for exchange in exchanges() {
        *kinds.entry(kind(&exchange)).or_insert(0) += 1;
    }
    let kinds: Vec<_> = kinds.iter().map(|((name, by), count)| (&name[..], *by, *count)).collect();
    assert_eq!(kinds, KINDS);
}

/// Name of an exchange, movement of its data, and number of occurrences.
const KINDS: [(&str, Movement, usize); 21] = [
    ("Active Namespace ID list", Movement::RdmaWrite, 1),
    ("Asymmetric Namespace Access", Movement::RdmaWrite, 2),
    ("Asynchronous Event Request", Movement::Nothing, 2),
    ("Commands Supported and Effects", Movement::RdmaWrite, 1),
    ("Connect", Movement::InCapsule, 1),
    ("Connect", Movement::RdmaRead, 2),
    ("Dataset Management", Movement::InCapsule, 1),
    ("Discovery", Movement::RdmaWrite, 3),
    ("Flush", Movement::Nothing, 1),
    ("I/O Command Set specific Identify Controller", Movement::RdmaWrite, 1),
    ("Identify Controller", Movement::RdmaWrite, 4),
    ("Identify Namespace", Movement::RdmaWrite, 3),
    ("Keep Alive", Movement::Nothing, 1),
    ("Namespace Identification Descriptor list", Movement::RdmaWrite, 1),
    ("Property Get", Movement::Nothing, 10),
    ("Property Set", Movement::Nothing, 6),
    ("Read", Movement::RdmaWrite, 51),
    ("SMART / Health Information", Movement::RdmaWrite, 1),
    ("Set Features", Movement::Nothing, 3),
    ("Write", Movement::InCapsule, 2),
    ("Write", Movement::RdmaRead, 1),
];
