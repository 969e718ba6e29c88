//! Findings derived from the measurements of a path.

use rdma::soft::ROCE_PORT;

use super::knock::Knock;
use super::transfer::{RoceAnswer, TransferMeasure};
use super::{ECN_MASK, ECT_0, Passage, PathMeasure};
use crate::doctor::finding::{Advice, DoctorFinding, FindingId};

/// ECN codepoint CE, which a switch sets in a packet when its queue is congested.
const CE: u8 = 0b11;
/// Maximum bytes of an IP packet other than the payload of the RoCE packet in it.
const AROUND_PAYLOAD: usize = 96;
/// Losses from 1 in this many packets on are a finding; fewer may happen on this machine itself.
const LOSS_LIMIT: u64 = 10_000;

pub(super) fn judge(path: &PathMeasure) -> Vec<DoctorFinding> {
    let mut findings = vec![summary(path)];
    findings.extend(reachability(path));
    findings.extend(mtu(path));
    findings.extend(loss(path));
    findings.extend(reordering(path));
    findings.extend(type_of_service(path));
    findings.extend(congestion(path));
    findings.extend(transfer(path));
    findings.push(not_told(path));
    findings
}

impl PathMeasure {
    fn finding(&self, id: FindingId, what: String, why: String, advice: Advice) -> DoctorFinding {
        DoctorFinding { id, subject: self.target.ip().to_string(), what, why, advice }
    }

    /// Largest payload for which a packet of that length passed.
    fn passing_payload(&self) -> Option<usize> {
        let passing = self.passages.iter().filter(|(_, passage)| *passage == Passage::Passes);
        passing.map(|(payload, _)| *payload).max()
    }
}

fn summary(path: &PathMeasure) -> DoctorFinding {
    let interface = path.interface.as_deref().unwrap_or("an interface without a name");
    let mut what = format!("from {} on {interface}, {}", path.source, path.provider);
    if let Some(payload) = path.passing_payload() {
        what += &format!("; packets with {payload} bytes of payload pass unfragmented");
    }
    match &path.echoes {
        Ok(echoes) if echoes.answered > 0 => {
            what += &format!(
                "; round trip of {} echoes: median {:.0} us, 99 % within {:.0} us",
                echoes.answered,
                echoes.round_trip.percentile_us(50.0),
                echoes.round_trip.percentile_us(99.0)
            );
        }
        _ => {}
    }
    if let RoceAnswer::Discovered { subsystems } = path.roce {
        what += &format!("; subsystems that discovery found: {subsystems}");
    }
    DoctorFinding::info(FindingId::Path, path.target.ip().to_string(), what)
}

/// Finding if RoCE does not reach the target, with the probable cause; `None` if it does.
fn reachability(path: &PathMeasure) -> Option<DoctorFinding> {
    let (ip, port) = (path.target.ip(), path.target.port());
    let error = match &path.roce {
        RoceAnswer::Discovered { .. } => return None,
        RoceAnswer::Refused(error) => {
            return Some(path.finding(
                FindingId::ConnectFailed,
                format!(
                    "RoCE reaches the machine, which refuses discovery at port {port}: {error}"
                ),
                "The path is not the trouble.".to_owned(),
                Advice::look(format!("feedrail discover -a {ip} -s {port}")),
            ));
        }
        RoceAnswer::Untried(error) => {
            return Some(path.finding(
                FindingId::ConnectFailed,
                format!("this machine could not try: {error}"),
                String::new(),
                Advice::look("feedrail devices"),
            ));
        }
        RoceAnswer::Silent(error) => error,
    };
    let echoes_answered = path.echoes.as_ref().is_ok_and(|echoes| echoes.answered > 0);
    let udp_passes = path.closed_port == Some(Knock::Refused);
    if path.roce_port == Some(Knock::Refused) {
        return Some(path.finding(
            FindingId::TargetNotListening,
            format!("the machine answers, and nothing has UDP port {ROCE_PORT} there"),
            format!("No target can be reached: {error}"),
            Advice::Mend(vec![format!("feedrail-target --listen {} FILE  # on {ip}", path.target)]),
        ));
    }
    if !udp_passes && !echoes_answered {
        return Some(path.finding(
            FindingId::TargetUnreachable,
            "nothing answers: neither echoes, nor UDP, nor RoCE".to_owned(),
            format!("{error}. The machine may be off, the address wrong, or everything dropped on the way."),
            Advice::Look(vec![format!("ip route get {ip}"), format!("ip neigh show {ip}")]),
        ));
    }
    let (what, certainty) = if udp_passes {
        (
            format!("the machine answers UDP at another port, and is silent at {ROCE_PORT}"),
            "A firewall, there or on the way, drops that port, or something there holds it and speaks no NVMe.",
        )
    } else {
        (
            format!(
                "the machine answers echoes, and no UDP: {ROCE_PORT} is silent, and so is a closed port"
            ),
            "A firewall drops UDP, there or on the way. From this side it cannot be told which.",
        )
    };
    Some(path.finding(
        FindingId::RocePortFiltered,
        what,
        format!("{certainty} ({error})"),
        Advice::Mend(vec![format!(
            "nft insert rule inet filter input udp dport {ROCE_PORT} accept  # on {ip}, and in each firewall or security group between"
        )]),
    ))
}

/// Finding if packets with the path MTU of this side's interface do not pass.
fn mtu(path: &PathMeasure) -> Option<DoctorFinding> {
    let local = path.local_payload?;
    let passing = path.passing_payload()?;
    let blocked: Vec<_> = path.passages.iter().filter(|(payload, _)| *payload > passing).collect();
    let (first, passage) = blocked.first()?;
    let interface = path.interface.as_deref().unwrap_or("IF");
    let how = match passage {
        Passage::TooLong => "a router says that they are too long",
        _ => "they are dropped without a word",
    };
    Some(path.finding(
        FindingId::PathMtu,
        format!(
            "packets with {passing} bytes of payload pass, those with {first} do not: {how}; this side would send up to {local}"
        ),
        "Connections come to be, and the first large transfer hangs until it is given up.".to_owned(),
        Advice::Mend(vec![
            format!("ip link set {interface} mtu {}  # or a larger one on the peer and on every switch between", passing + AROUND_PAYLOAD),
        ]),
    ))
}

fn loss(path: &PathMeasure) -> Option<DoctorFinding> {
    let mut parts = Vec::new();
    if let Ok(echoes) = &path.echoes
        && echoes.answered > 0
        && echoes.answered < echoes.sent
    {
        parts.push(format!(
            "{} of {} echoes were not answered",
            echoes.sent - echoes.answered,
            echoes.sent
        ));
    }
    if let Some(Ok(TransferMeasure { wire, .. })) = &path.transfer {
        if wire.repeated * LOSS_LIMIT >= wire.sent.max(1) {
            parts.push(format!(
                "{} of {} packets to the target were sent again",
                wire.repeated, wire.sent
            ));
        }
        if wire.gaps * LOSS_LIMIT >= wire.received.max(1) {
            parts.push(format!("{} gaps in {} packets from it", wire.gaps, wire.received));
        }
        if wire.damaged > 0 {
            parts.push(format!("{} packets came with a wrong CRC: damaged, or their address was translated on the way", wire.damaged));
        }
    }
    let interface = path.interface.as_deref().unwrap_or("IF");
    (!parts.is_empty()).then(|| {
        path.finding(
            FindingId::PathLoss,
            parts.join("; "),
            "A loss costs at least a round trip and what is sent again; the window shrinks with each.".to_owned(),
            Advice::Look(vec![
                format!("tc -s qdisc show dev {interface}"),
                format!("ip -s -s link show dev {interface}"),
                "feedrail doctor  # on the target: receive buffers, drops".to_owned(),
            ]),
        )
    })
}

fn reordering(path: &PathMeasure) -> Option<DoctorFinding> {
    let echoes = path.echoes.as_ref().ok().filter(|echoes| echoes.reordered > 0)?;
    let interface = path.interface.as_deref().unwrap_or("IF");
    Some(path.finding(
        FindingId::PathReordering,
        format!("{} of {} answers overtook another", echoes.reordered, echoes.answered),
        "A RoCE receiver takes a packet out of order for a loss, and the sender repeats all since.".to_owned(),
        Advice::Look(vec![
            format!("tc qdisc show dev {interface}"),
            format!("ip route get {}  # several next hops?", path.target.ip()),
        ]),
    ))
}

/// Findings on DSCP and ECN of the echo replies, which copy those of the requests as they arrived.
fn type_of_service(path: &PathMeasure) -> Vec<DoctorFinding> {
    let Ok(echoes) = &path.echoes else { return Vec::new() };
    let mut findings = Vec::new();
    let sent = echoes.sent_tos;
    let other_dscp = echoes.answered_tos.keys().find(|tos| **tos >> 2 != sent >> 2);
    if let Some(tos) = other_dscp {
        findings.push(path.finding(
            FindingId::DscpRewritten,
            format!("echoes left with DSCP {} and came back with {}", sent >> 2, tos >> 2),
            "Behind whoever rewrites it, packets of RoCE are in another queue than their priority, without PFC and its share."
                .to_owned(),
            Advice::look(format!(
                "tcpdump -v -ni any icmp and host {}  # on the target: which way is it rewritten?",
                path.target.ip()
            )),
        ));
    }
    if echoes.answered_tos.keys().any(|tos| tos & ECN_MASK == 0) && sent & ECN_MASK == ECT_0 {
        findings.push(path.finding(
            FindingId::EcnCleared,
            "echoes left as ECN-capable and came back as not ECN-capable".to_owned(),
            "Switches then drop packets where they would mark them, and no sender slows down before."
                .to_owned(),
            Advice::look(format!(
                "tcpdump -v -ni any icmp and host {}  # on the target: which way is it cleared?",
                path.target.ip()
            )),
        ));
    }
    findings
}

/// Finding on congestion marks, in echo replies and in packets of the transfers.
fn congestion(path: &PathMeasure) -> Option<DoctorFinding> {
    let mut parts = Vec::new();
    if let Ok(echoes) = &path.echoes {
        let marks = echoes.answered_tos.iter().filter(|(tos, _)| *tos & ECN_MASK == CE);
        let marked: u16 = marks.map(|(_, count)| count).sum();
        if marked > 0 {
            parts.push(format!("{marked} of {} echoes came back marked (CE)", echoes.answered));
        }
    }
    if let Some(Ok(TransferMeasure { wire, .. })) = &path.transfer {
        if wire.marked > 0 {
            parts.push(format!("{} of {} packets came marked", wire.marked, wire.received));
        }
        if wire.notifications > 0 {
            parts.push(format!(
                "the target sent {} congestion notifications for marked ones (rp_cnp_handled)",
                wire.notifications
            ));
        }
    }
    (!parts.is_empty()).then(|| {
        let what = format!("{}: a queue on the path is long", parts.join("; "));
        DoctorFinding::info(FindingId::PathCongested, path.target.ip().to_string(), what)
    })
}

fn transfer(path: &PathMeasure) -> Option<DoctorFinding> {
    let (ip, port) = (path.target.ip(), path.target.port());
    match path.transfer.as_ref()? {
        Err(error) => Some(path.finding(
            FindingId::TransferFailed,
            format!("reads failed: {error}"),
            String::new(),
            Advice::look(format!("feedrail discover -a {ip} -s {port}")),
        )),
        Ok(measure) => {
            let mut what = format!(
                "{:.0} MB/s from the target (reads); reads of 4 KiB one by one: median {:.0} us, 99 % within {:.0} us",
                measure.from_target.megabytes_per_second(),
                measure.latency.percentile_us(50.0),
                measure.latency.percentile_us(99.0)
            );
            if let Ok(throughput) = &measure.to_target {
                what = format!(
                    "{:.0} MB/s to the target (compares), {what}",
                    throughput.megabytes_per_second()
                );
            }
            what += &format!("; over {}", measure.providers.join("; "));
            Some(DoctorFinding::info(FindingId::Bandwidth, ip.to_string(), what))
        }
    }
}

/// Finding that lists what could not be examined, and why.
fn not_told(path: &PathMeasure) -> DoctorFinding {
    let mut parts: Vec<String> = Vec::new();
    match &path.echoes {
        Err(error) => parts.push(format!(
            "round trip, order, DSCP and ECN: no ICMP socket ({error}); run as root, or set net.ipv4.ping_group_range"
        )),
        Ok(echoes) if echoes.answered == 0 => {
            parts.push("round trip, order, DSCP and ECN: the target answers no echo".to_owned());
        }
        Ok(_) => parts.push(
            "which way loses, reorders or rewrites: echoes take both, and are ICMP, which a switch may treat unlike UDP"
                .to_owned(),
        ),
    }
    if path.passing_payload().is_none() {
        parts.push("MTU: neither echoes nor a closed UDP port answer".to_owned());
    }
    match &path.transfer {
        None => parts.push("bandwidth: `-n NQN` names a subsystem to read from".to_owned()),
        Some(Ok(TransferMeasure { to_target: Err(error), .. })) => {
            parts.push(format!("bandwidth to the target: Compare is not available ({error})"));
        }
        Some(_) => {}
    }
    parts.push(
        "DSCP and ECN of RoCE packets as they arrive: the target would have to say with what marks they come".to_owned(),
    );
    DoctorFinding::info(FindingId::NotTold, path.target.ip().to_string(), parts.join(". "))
}
