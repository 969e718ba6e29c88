//! Management datagrams, and the private data of NVMe in them.

use nvme_proto::{IntoBytes, rdma_cm};
use roce_proto::cm::{IpHeader, MAD_BYTES, ManagementMessage};

/// One datagram, cut or filled up with zeros to its length: whatever parses says the same when it
/// is encoded and parsed again.
pub fn run(data: &[u8]) {
    let mut mad = [0; MAD_BYTES];
    let length = data.len().min(MAD_BYTES);
    mad[..length].copy_from_slice(&data[..length]);
    let Ok((transaction_id, message)) = ManagementMessage::parse(&mad) else { return };
    let again = message.to_mad(transaction_id);
    assert_eq!(ManagementMessage::parse(&again), Ok((transaction_id, message)));
    match message {
        ManagementMessage::Req(req) => request(&req.private_data, req.service_id.is_rdma_cm()),
        ManagementMessage::Rep(rep) => {
            if let Some(accept) = rdma_cm::ConnectAccept::parse(&rep.private_data) {
                assert!(rep.private_data.starts_with(accept.as_bytes()));
            }
        }
        ManagementMessage::Rej(rej) => {
            assert!(rej.info().len() <= rej.info.len());
            if let Some(reject) = rdma_cm::Reject::parse(&rej.private_data) {
                assert_eq!(rdma_cm::Reject::new(reject.status()).as_bytes(), reject.as_bytes());
            }
        }
        ManagementMessage::Mra(_)
        | ManagementMessage::Rtu(_)
        | ManagementMessage::Dreq(_)
        | ManagementMessage::Drep(_) => {}
    }
}

fn request(private_data: &[u8], is_rdma_cm: bool) {
    let mut data = private_data;
    if is_rdma_cm {
        if let Some(header) = IpHeader::parse(private_data) {
            assert_eq!(IpHeader::parse(&header.to_bytes()), Some(header));
        }
        data = &private_data[IpHeader::BYTES..];
    }
    if let Ok(request) = rdma_cm::ConnectRequest::parse(data) {
        assert!(request.receive_entries() > 0 && request.send_entries() > 0);
        let again = rdma_cm::ConnectRequest::new(
            request.qid(),
            request.cntlid(),
            request.receive_entries(),
            request.send_entries(),
        );
        assert_eq!(
            rdma_cm::ConnectRequest::parse(again.as_bytes()).map(|request| request.qid()),
            Ok(request.qid())
        );
    }
}
