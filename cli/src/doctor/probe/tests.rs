//! Paths that were made up, and their reports.

use core::time::Duration;

use super::transfer::{Throughput, WireCounts};
use super::*;
use crate::doctor::tests::expect;
use crate::latency::Latency;

fn latency(us: u64) -> Latency {
    let mut latency = Latency::default();
    (0..100).for_each(|_| latency.record(Duration::from_micros(us)));
    latency
}

fn echoes(answered: u16) -> EchoMeasure {
    let sent_tos = 104 | ECT_0;
    let answered_tos = [(sent_tos, answered)].into_iter().filter(|(_, count)| *count > 0).collect();
    let round_trip = latency(120);
    EchoMeasure { sent: 100, answered, reordered: 0, round_trip, sent_tos, answered_tos }
}

fn transfer() -> TransferMeasure {
    let throughput = |bytes| Throughput { bytes, elapsed: Duration::from_secs(1) };
    TransferMeasure {
        providers: vec!["soft: no RDMA device".to_owned()],
        latency: latency(150),
        from_target: throughput(900_000_000),
        to_target: Ok(throughput(700_000_000)),
        wire: WireCounts {
            sent: 200_000,
            received: 400_000,
            repeated: 3,
            gaps: 5,
            ..WireCounts::default()
        },
    }
}

fn healthy() -> PathMeasure {
    PathMeasure {
        target: "10.0.0.9:4420".parse().unwrap(),
        source: "10.0.0.8".parse().unwrap(),
        interface: Some("eth0".to_owned()),
        provider: "soft: no RDMA device".to_owned(),
        local_payload: Some(4096),
        echoes: Ok(echoes(100)),
        passages: PAYLOADS.iter().map(|payload| (*payload, Passage::Passes)).collect(),
        roce_port: None,
        closed_port: None,
        roce: RoceAnswer::Discovered { subsystems: 2 },
        transfer: Some(Ok(transfer())),
    }
}

fn silent(echoes_answered: u16, roce_port: Knock, closed_port: Knock) -> PathMeasure {
    let passages = if echoes_answered > 0 { healthy().passages } else { Vec::new() };
    PathMeasure {
        echoes: Ok(echoes(echoes_answered)),
        passages,
        roce_port: Some(roce_port),
        closed_port: Some(closed_port),
        roce: RoceAnswer::Silent("10.0.0.9:4420: cannot connect: no answer".to_owned()),
        transfer: None,
        ..healthy()
    }
}

#[test]
fn paths_get_their_reports() {
    let with = |change: &dyn Fn(&mut EchoMeasure)| {
        let mut echoes = echoes(100);
        change(&mut echoes);
        PathMeasure { echoes: Ok(echoes), ..healthy() }
    };
    let wire = WireCounts { repeated: 210, gaps: 380, damaged: 4, ..transfer().wire };
    let lossy = TransferMeasure { wire, ..transfer() };
    let wire = WireCounts { marked: 12_000, notifications: 310, ..transfer().wire };
    let marked = TransferMeasure { wire, ..transfer() };
    let no_compare =
        TransferMeasure { to_target: Err("Invalid Command Opcode".to_owned()), ..transfer() };
    let short = vec![(1024, Passage::Passes), (2048, Passage::Silent), (4096, Passage::Silent)];
    let told = vec![(1024, Passage::Passes), (2048, Passage::TooLong), (4096, Passage::TooLong)];
    let refused =
        RoceAnswer::Refused("10.0.0.9:4420: connection rejected: no such service".to_owned());
    let untried = RoceAnswer::Untried("UDP port 4791 of 10.0.0.8 is in use".to_owned());
    for (name, path) in [
        ("path-healthy", healthy()),
        ("path-without-nqn", PathMeasure { transfer: None, ..healthy() }),
        ("path-mtu", PathMeasure { passages: short, ..healthy() }),
        ("path-mtu-told", PathMeasure { passages: told, ..healthy() }),
        (
            "path-loss",
            PathMeasure { echoes: Ok(echoes(97)), transfer: Some(Ok(lossy)), ..healthy() },
        ),
        ("path-reordering", with(&|echoes| echoes.reordered = 4)),
        ("path-dscp", with(&|echoes| echoes.answered_tos = [(ECT_0, 100)].into())),
        ("path-ecn", with(&|echoes| echoes.answered_tos = [(104, 100)].into())),
        ("path-congested", with(&|echoes| echoes.answered_tos = [(106, 90), (107, 10)].into())),
        ("path-marked", PathMeasure { transfer: Some(Ok(marked)), ..healthy() }),
        ("path-closed", silent(100, Knock::Refused, Knock::Refused)),
        ("path-filtered", silent(100, Knock::Silent, Knock::Refused)),
        ("path-no-udp", silent(100, Knock::Silent, Knock::Silent)),
        ("path-unreachable", silent(0, Knock::Silent, Knock::Silent)),
        ("path-refused", PathMeasure { roce: refused, transfer: None, ..healthy() }),
        ("path-untried", PathMeasure { roce: untried, transfer: None, ..healthy() }),
        (
            "path-transfer-failed",
            PathMeasure { transfer: Some(Err("no namespace 1".to_owned())), ..healthy() },
        ),
        ("path-no-compare", PathMeasure { transfer: Some(Ok(no_compare)), ..healthy() }),
        ("path-no-icmp", PathMeasure { echoes: Err("Permission denied".to_owned()), ..healthy() }),
    ] {
        expect(name, judge::judge(&path));
    }
}

/// Needs root, or a group that may send echoes.
#[test]
fn echoes_of_this_machine_come_back_as_they_left() {
    let ip: IpAddr = "127.0.0.1".parse().unwrap();
    let mut probe = match EchoProbe::open(ip, Some(ip)) {
        Ok(probe) => probe,
        Err(error) => {
            eprintln!("skipped: no ICMP socket: {error}");
            return;
        }
    };
    let measure = probe.series(106).unwrap();
    assert_eq!((measure.answered, measure.reordered), (measure.sent, 0));
    assert_eq!(measure.answered_tos, [(106, measure.sent)].into());
    assert_eq!(probe.passage(4096 + 32), Passage::Passes);
    // More than the interface takes, unfragmented.
    assert_eq!(probe.passage(65_528), Passage::TooLong);
}
