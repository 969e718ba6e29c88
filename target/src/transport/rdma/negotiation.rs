//! Negotiation of a connection's parameters: what a host requests in the private data and what it
//! gets (NVMe RDMA transport, connection private data).

use ::rdma::{Caps, ConnParams, PrivateData};
use nvme_proto::rdma_cm::{ConnectAccept, ConnectRequest, Reject, RejectStatus};
use nvme_proto::{IntoBytes, Qid};

use super::area::AreaLayout;
use crate::limits::{ADMIN_QUEUE_ENTRIES, Limits};

/// Parameters of a connection that were negotiated through its private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Negotiated {
    pub(super) qid: Qid,
    /// Commands that the host may have outstanding (CRQSIZE), and receives that the target posts.
    pub(super) entries: u16,
    /// Maximum number of entries that its Connect may request. Some hosts request the number in the
    /// private data, not the granted one; they keep commands in excess of `entries` back.
    pub(super) connect_entries: u16,
    /// RDMA READs that the target may have in flight.
    pub(super) initiator_depth: u8,
    /// Maximum in-capsule data of one command, in bytes.
    pub(super) in_capsule: u32,
}

impl Negotiated {
    /// Checks a connection request. `params` are as the target sees them: `initiator_depth` is the
    /// number of RDMA READs that the host accepts.
    ///
    /// # Errors
    /// The status with which to reject it.
    pub(super) fn new(
        params: &ConnParams,
        caps: &Caps,
        limits: &Limits,
    ) -> Result<Self, RejectStatus> {
        let request = ConnectRequest::parse(params.private_data.as_slice())?;
        let qid = request.qid();
        if qid.0 > limits.io_queues {
            return Err(RejectStatus::INVALID_QID);
        }
        let wanted = u16::try_from(request.send_entries()).unwrap_or(u16::MAX);
        if wanted < 2 || (!qid.is_admin() && wanted > limits.queue_depth) {
            return Err(RejectStatus::INVALID_HSQSIZE);
        }
        // A host with fewer receives than commands gets as many entries as receives.
        let connect_entries = wanted.min(request.receive_entries());
        let most = if qid.is_admin() { ADMIN_QUEUE_ENTRIES } else { limits.queue_depth };
        let entries = connect_entries.min(most);
        // Data of Writes and of Connect is fetched by RDMA READ, so at least one must be allowed.
        let initiator_depth = params.initiator_depth.min(caps.max_initiator_depth);
        if initiator_depth == 0 {
            return Err(RejectStatus::INVALID_IRD);
        }
        // Capsules of the admin queue carry no data (RDMA transport, capsule size).
        let in_capsule = if qid.is_admin() { 0 } else { limits.in_capsule_data_bytes };
        Ok(Self { qid, entries, connect_entries, initiator_depth, in_capsule })
    }

    /// Number of request slots: twice the commands, since a host may send its next commands while
    /// the responses to the last ones are not acknowledged.
    pub(super) fn slots(&self) -> u32 {
        2 * u32::from(self.entries)
    }

    /// Entries of the send queue: data and response for each slot, and the RDMA READs.
    pub(super) fn send_entries(&self) -> u32 {
        2 * self.slots() + u32::from(self.initiator_depth)
    }

    /// Entries of the longest send queue that the limits allow.
    pub(super) fn most_send_entries(caps: &Caps, limits: &Limits) -> u32 {
        let entries = limits.queue_depth.max(ADMIN_QUEUE_ENTRIES);
        let initiator_depth = caps.max_initiator_depth;
        let connect_entries = entries;
        Self { qid: Qid(1), entries, connect_entries, initiator_depth, in_capsule: 0 }
            .send_entries()
    }

    pub(super) fn layout(&self) -> AreaLayout {
        let receives = self.entries.into();
        AreaLayout { receives, slots: self.slots(), in_capsule: self.in_capsule }
    }

    pub(super) fn acceptance(&self, request: &ConnParams) -> ConnParams {
        ConnParams {
            responder_resources: 0,
            initiator_depth: self.initiator_depth,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            private_data: private(ConnectAccept::new(self.entries).as_bytes()),
        }
    }
}

pub(super) fn rejection(status: RejectStatus) -> PrivateData {
    private(Reject::new(status).as_bytes())
}

fn private(bytes: &[u8]) -> PrivateData {
    PrivateData::new(bytes).expect("32 bytes at most")
}

#[cfg(test)]
mod tests {
    use nvme_proto::Cntlid;

    use super::*;

    fn ask(private_data: &[u8], initiator_depth: u8) -> Result<Negotiated, RejectStatus> {
        let private_data = PrivateData::new(private_data).unwrap();
        let params = ConnParams { initiator_depth, private_data, ..ConnParams::default() };
        Negotiated::new(&params, &Caps::software("test"), &Limits::default())
    }

    fn request(qid: u16, receive: u16, send: u32) -> ConnectRequest {
        ConnectRequest::new(Qid(qid), Cntlid(0), receive, send)
    }

    #[test]
    fn the_kernel_hosts_request_is_granted() {
        let admin = ask(request(0, 32, 32).as_bytes(), 16).unwrap();
        assert_eq!((admin.entries, admin.in_capsule, admin.initiator_depth), (32, 0, 16));
        let mut padded = request(3, 128, 128).as_bytes().to_vec();
        padded.resize(148, 0);
        let io = ask(&padded, 200).unwrap();
        assert_eq!((io.qid, io.entries, io.in_capsule), (Qid(3), 128, 4096));
        assert_eq!(io.initiator_depth, Caps::software("test").max_initiator_depth);
        let params = io.acceptance(&ConnParams::default());
        assert_eq!(
            ConnectAccept::parse(params.private_data.as_slice()).unwrap().receive_entries(),
            128
        );
    }

    #[test]
    fn each_mistake_has_its_status() {
        let good = request(1, 128, 128);
        assert_eq!(ask(&good.as_bytes()[..31], 1), Err(RejectStatus::INVALID_PRIVATE_DATA_LENGTH));
        assert_eq!(ask(&[], 1), Err(RejectStatus::INVALID_PRIVATE_DATA_LENGTH));
        let mut format = good.as_bytes().to_vec();
        format[0] = 1;
        assert_eq!(ask(&format, 1), Err(RejectStatus::INVALID_RECFMT));
        assert_eq!(ask(request(65, 128, 128).as_bytes(), 1), Err(RejectStatus::INVALID_QID));
        assert_eq!(ask(request(1, 128, 1).as_bytes(), 1), Err(RejectStatus::INVALID_HSQSIZE));
        assert_eq!(ask(request(1, 128, 129).as_bytes(), 1), Err(RejectStatus::INVALID_HSQSIZE));
        assert_eq!(ask(request(1, 128, 65_536).as_bytes(), 1), Err(RejectStatus::INVALID_HSQSIZE));
        assert_eq!(ask(request(1, 0, 128).as_bytes(), 1), Err(RejectStatus::INVALID_HRQSIZE));
        assert_eq!(ask(good.as_bytes(), 0), Err(RejectStatus::INVALID_IRD));
    }

    #[test]
    fn a_long_admin_queue_is_cut_short() {
        let admin = ask(request(0, 1024, 1024).as_bytes(), 1).unwrap();
        assert_eq!((admin.entries, admin.connect_entries), (ADMIN_QUEUE_ENTRIES, 1024));
    }

    #[test]
    fn few_receives_mean_few_commands() {
        assert_eq!(ask(request(1, 5, 128).as_bytes(), 1).unwrap().entries, 5);
    }
}
