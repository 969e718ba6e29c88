//! Text for the reject reasons of a target's connection manager, with advice.

use nvme_proto::rdma_cm::{Reject, RejectStatus};

use crate::types::error::{Error, ErrorKind};

/// Reject reasons of the connection management protocol (InfiniBand volume 1, table of reject
/// reasons), except the one that refers to the private data.
const REASONS: [(u16, &str); 34] = [
    (1, "the target has no queue pair left; end connections, or raise the limits there"),
    (2, "the target has no end-to-end context left; end connections there"),
    (3, "the target has no resources for another connection; end some, or raise the limits there"),
    (4, "the target timed out waiting for this host; look for packets that are lost on the way"),
    (5, "the target does not support this kind of request; is it an NVMe-oF target?"),
    (6, "the target does not know the connection (invalid communication id); try again"),
    (7, "the target takes it for another connection (invalid communication instance); try again"),
    (8, "nobody listens on this port; is the target running, and is the port right?"),
    (9, "the target offers no reliable connections on this port; is it an NVMe-oF port?"),
    (
        10,
        "the target still knows an earlier connection (stale connection); try again in some seconds",
    ),
    (
        11,
        "the target has no reliable datagram channel for it, which NVMe-oF does not use; is it an NVMe-oF port?",
    ),
    (12, "the address (GID) is not the target's; check the address, and ARP on the way"),
    (13, "the local identifier (LID) is not the target's; check the subnet manager"),
    (14, "the target does not take this service level; check the fabric's quality of service"),
    (15, "the target does not take this type of service; connect with another, or with none"),
    (16, "the target does not take this hop limit; check the route between the two"),
    (17, "the target cannot receive at this packet rate; check the speeds of the two links"),
    (18, "the alternate address (GID) is not the target's; path migration is not used by NVMe-oF"),
    (
        19,
        "the alternate local identifier (LID) is not the target's; path migration is not used by NVMe-oF",
    ),
    (
        20,
        "the target does not take the alternate service level; path migration is not used by NVMe-oF",
    ),
    (
        21,
        "the target does not take the alternate type of service; path migration is not used by NVMe-oF",
    ),
    (22, "the target does not take the alternate hop limit; path migration is not used by NVMe-oF"),
    (
        23,
        "the target cannot receive at the alternate packet rate; path migration is not used by NVMe-oF",
    ),
    (
        24,
        "the target wants its connection manager asked elsewhere (redirection), which is not supported",
    ),
    (
        25,
        "the target wants to be reached on another port (redirection); connect to that one's address",
    ),
    (26, "the target does not take packets of this path MTU; set the same MTU on both interfaces"),
    (27, "the target does not serve as many RDMA READs as were asked for; raise its limit"),
    (29, "the target does not take this RNR retry count"),
    (30, "the target has another connection of this name (duplicate communication id); try again"),
    (31, "the target speaks another version of the connection-management protocol"),
    (32, "the target does not take this flow label; check the route between the two"),
    (
        33,
        "the target does not take the alternate flow label; path migration is not used by NVMe-oF",
    ),
    (35, "the target does not support an option of the device's vendor"),
    // Libraries report this for a reply that they cannot interpret.
    (0, "the target gives no reason; its log may"),
];

pub(crate) fn rejection(reason: u16, private: &[u8]) -> Error {
    let text = match reason {
        rdma::REJECT_CONSUMER_DEFINED => consumer(private),
        _ => match REASONS.iter().find(|(known, _)| *known == reason) {
            Some((_, text)) => (*text).to_owned(),
            None => format!(
                "reason {reason}, which no specification known here names; see the target's log"
            ),
        },
    };
    ErrorKind::Rejected(text).into()
}

/// Returns the reason that NVMe-oF private data contain.
fn consumer(private: &[u8]) -> String {
    let Some(reject) = Reject::parse(private) else {
        return "the target does not say why; its log may".to_owned();
    };
    let status = reject.status();
    let hint = match status {
        RejectStatus::NO_RESOURCES => {
            "the target has no resources for another queue; ask for fewer queues, or raise its limits"
        }
        RejectStatus::INVALID_HSQSIZE | RejectStatus::INVALID_HRQSIZE => "ask for smaller queues",
        RejectStatus::INVALID_QID => "ask for fewer queues",
        RejectStatus::INVALID_CNTLID => "the target has lost the controller; connect again",
        _ => "the two disagree about the protocol; the target's log may say more",
    };
    format!("{status} (status {:#x}); {hint}", status.0)
}

#[cfg(test)]
mod tests {
    use nvme_proto::IntoBytes as _;

    use super::*;

    /// One clear line: it has words of its own, no line break, and not just a number.
    #[track_caller]
    fn line(reason: u16, private: &[u8]) -> String {
        let text = rejection(reason, private).to_string();
        let words = text.strip_prefix("connection rejected: ").expect("it is a rejection");
        assert!(
            words.split_whitespace().count() >= 5 && !words.contains('\n'),
            "{reason}: {words}"
        );
        words.to_owned()
    }

    #[test]
    fn every_reject_reason_has_its_own_line() {
        let reasons = (0..=35).filter(|reason| ![28, 34].contains(reason));
        let mut lines: Vec<String> = reasons.clone().map(|reason| line(reason, &[])).collect();
        for (reason, text) in reasons.zip(&lines) {
            assert!(!text.contains(&format!("reason {reason}")), "{text}");
        }
        lines.sort();
        let all = lines.len();
        lines.dedup();
        assert_eq!((lines.len(), REASONS.len()), (all, all));
    }

    #[test]
    fn private_data_means_nothing_to_other_reasons() {
        assert_eq!(line(8, Reject::new(RejectStatus::NO_RESOURCES).as_bytes()), line(8, &[]));
        assert!(line(8, &[]).starts_with("nobody listens on this port"));
    }

    #[test]
    fn an_unknown_reason_keeps_its_number() {
        for reason in [34, 36, 1000, u16::MAX] {
            assert!(line(reason, &[]).contains(&format!("reason {reason},")));
        }
    }

    #[test]
    fn every_status_of_nvme_of_is_named() {
        for status in 1..=9 {
            let status = RejectStatus(status);
            let text = line(rdma::REJECT_CONSUMER_DEFINED, Reject::new(status).as_bytes());
            assert!(text.starts_with(&format!("{status} (status {:#x}); ", status.0)), "{text}");
        }
        assert!(line(28, &[0, 0, 77, 0]).starts_with("0x4d (status 0x4d)"));
        for other in [&[][..], &[0, 0, 6], &[1, 0, 6, 0]] {
            assert!(line(28, other).contains("does not say why"));
        }
    }
}
