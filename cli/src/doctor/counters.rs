//! Counters of RDMA devices and their interfaces, sampled twice.

use core::time::Duration;
use std::collections::BTreeMap;

use rdma::sysfs;

use super::device::RdmaDevice;
use super::finding::{Advice, DoctorFinding, FindingId};
use super::tree::{SystemTree, fields};

/// Event that a rise of a counter means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CounterMeaning {
    /// A packet was lost, in either direction.
    Lost,
    /// An acknowledgement did not arrive in time.
    TimedOut,
    /// A SEND arrived while no receive was posted (RNR NAK).
    NotReady,
    /// The NIC or its port dropped packets.
    Discarded,
    /// Congestion: a switch marked packets (ECN), or a CNP was sent or handled.
    Marked,
    /// Pause frames were sent or received (PFC or IEEE 802.3x).
    Paused,
}

/// The counters of a device's port in `hw_counters` and `counters`: those of mlx5 and of newer
/// bnxt_re have one set of names, then those of older bnxt_re, irdma and rxe.
const OF_PORTS: [(&str, CounterMeaning); 29] = [
    ("out_of_sequence", CounterMeaning::Lost),
    ("packet_seq_err", CounterMeaning::Lost),
    ("implied_nak_seq_err", CounterMeaning::Lost),
    ("local_ack_timeout_err", CounterMeaning::TimedOut),
    ("rnr_nak_retry_err", CounterMeaning::NotReady),
    ("out_of_buffer", CounterMeaning::NotReady),
    ("np_ecn_marked_roce_packets", CounterMeaning::Marked),
    ("np_cnp_sent", CounterMeaning::Marked),
    ("rp_cnp_handled", CounterMeaning::Marked),
    ("port_xmit_discards", CounterMeaning::Discarded),
    ("port_rcv_errors", CounterMeaning::Discarded),
    ("oos_drop_count", CounterMeaning::Lost),
    ("seq_err_naks_rcvd", CounterMeaning::Lost),
    ("missing_resp", CounterMeaning::Lost),
    ("to_retransmits", CounterMeaning::TimedOut),
    ("rnr_naks_rcvd", CounterMeaning::NotReady),
    ("rx_out_of_buffer", CounterMeaning::NotReady),
    ("rx_roce_discards", CounterMeaning::Discarded),
    ("tx_roce_discards", CounterMeaning::Discarded),
    ("rx_ecn_marked_pkts", CounterMeaning::Marked),
    ("tx_cnp_pkts", CounterMeaning::Marked),
    ("rx_cnp_pkts", CounterMeaning::Marked),
    ("RxECNMrkd", CounterMeaning::Marked),
    ("cnpSent", CounterMeaning::Marked),
    ("cnpHandled", CounterMeaning::Marked),
    ("out_of_seq_request", CounterMeaning::Lost),
    ("rcvd_seq_err", CounterMeaning::Lost),
    ("retry_exceeded_err", CounterMeaning::TimedOut),
    ("rcvd_rnr_err", CounterMeaning::NotReady),
];

/// Counters of received packets, to which losses are related.
const ARRIVED: [&str; 3] = ["port_rcv_packets", "rx_pkts", "rcvd_pkts"];

/// Meaning of a counter that `ethtool -S` prints; `None` if it shows no trouble.
fn of_interface(name: &str) -> Option<CounterMeaning> {
    let is_pause = name.ends_with("_pause")
        || name.ends_with("_pause_frames")
        || name.contains("_pause_ctrl_phy")
        || name.contains("_pfc_ena_frames_pri");
    if is_pause {
        return Some(CounterMeaning::Paused);
    }
    let is_discard = matches!(name, "rx_discards_phy" | "tx_discards_phy" | "rx_stat_discard")
        || (name.contains("_prio") && name.ends_with("discards"))
        || name.ends_with("_buf_discard");
    is_discard.then_some(CounterMeaning::Discarded)
}

/// Identity of a counter: device or interface, meaning and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CounterKey {
    subject: String,
    meaning: CounterMeaning,
    name: String,
}

/// Values of all counters at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct CounterSample {
    values: BTreeMap<CounterKey, u64>,
    /// Received packets of each device.
    arrived: BTreeMap<String, u64>,
}

impl CounterSample {
    pub(crate) fn take(tree: &SystemTree, devices: &[RdmaDevice]) -> Self {
        let mut sample = Self::default();
        for device in devices {
            sample.take_device(tree, device);
        }
        sample
    }

    fn take_device(&mut self, tree: &SystemTree, device: &RdmaDevice) {
        let class = sysfs::CLASS.trim_start_matches('/');
        let name = device.name();
        for port in &device.ports {
            let folder = format!("{class}/{name}/ports/{}", port.sysfs.number);
            let value = |counter: &str| {
                let own: Option<u64> = tree.number(&format!("{folder}/hw_counters/{counter}"));
                own.or_else(|| tree.number(&format!("{folder}/counters/{counter}")))
            };
            for (counter, meaning) in OF_PORTS {
                if let Some(value) = value(counter) {
                    *self.at(name, meaning, counter) += value;
                }
            }
            if let Some(value) = ARRIVED.iter().find_map(|counter| value(counter)) {
                *self.arrived.entry(name.to_owned()).or_default() += value;
            }
            if let Some(interface) = port.interface.as_ref().filter(|_| !device.sysfs.software) {
                self.take_interface(tree, &interface.name);
            }
        }
    }

    fn take_interface(&mut self, tree: &SystemTree, interface: &str) {
        let text = tree.tool("ethtool", &["-S", interface]).unwrap_or_default();
        for (counter, value) in fields(&text) {
            if let (Some(meaning), Ok(value)) = (of_interface(counter), value.parse()) {
                *self.at(interface, meaning, counter) = value;
            }
        }
    }

    fn at(&mut self, subject: &str, meaning: CounterMeaning, name: &str) -> &mut u64 {
        let (subject, name) = (subject.to_owned(), name.to_owned());
        self.values.entry(CounterKey { subject, meaning, name }).or_default()
    }

    /// Returns findings for the counters that have risen since the sample `before`.
    pub(crate) fn since(&self, before: &Self, interval: Duration) -> Vec<DoctorFinding> {
        let mut groups: BTreeMap<(&str, CounterMeaning), Vec<CounterRise<'_>>> = BTreeMap::new();
        for (key, &now) in &self.values {
            let by = now.saturating_sub(before.values.get(key).copied().unwrap_or(now));
            if by > 0 {
                let rise = CounterRise { name: &key.name, by, now };
                groups.entry((key.subject.as_str(), key.meaning)).or_default().push(rise);
            }
        }
        let finding = |(&(subject, meaning), rises): (&(&str, CounterMeaning), &Vec<_>)| {
            let arrived = self.arrived.get(subject).map(|now| {
                now.saturating_sub(before.arrived.get(subject).copied().unwrap_or(*now))
            });
            judge(subject, meaning, rises, interval, arrived)
        };
        let mut findings: Vec<DoctorFinding> = groups.iter().map(finding).collect();
        findings.extend(self.since_start());
        findings
    }

    /// Returns one finding for each device or interface with nonzero counters from before the
    /// examination.
    fn since_start(&self) -> Vec<DoctorFinding> {
        let mut past: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (key, value) in self.values.iter().filter(|(_, value)| **value > 0) {
            past.entry(&key.subject).or_default().push(format!("{} {value}", key.name));
        }
        let finding = |(subject, list): (&str, Vec<String>)| {
            DoctorFinding::info(FindingId::CountersSinceStart, subject, list.join(", "))
        };
        past.into_iter().map(finding).collect()
    }
}

/// How far a counter rose between two samples.
struct CounterRise<'a> {
    name: &'a str,
    by: u64,
    now: u64,
}

fn judge(
    subject: &str,
    meaning: CounterMeaning,
    rises: &[CounterRise<'_>],
    interval: Duration,
    arrived: Option<u64>,
) -> DoctorFinding {
    let seconds = interval.as_secs_f64();
    let list: Vec<String> = rises
        .iter()
        .map(|CounterRise { name, by, now }| format!("{name} +{by} (now {now})"))
        .collect();
    let what = format!("within {seconds:.1} s: {}", list.join(", "));
    let total: u64 = rises.iter().map(|rise| rise.by).sum();
    let share = match arrived {
        Some(arrived) if arrived > 0 => {
            format!("That is one in {} packets that arrived. ", arrived / total.max(1))
        }
        _ => String::new(),
    };
    let (id, why, advice) = match meaning {
        CounterMeaning::Lost => (
            FindingId::PacketsLost,
            format!(
                "{share}Each loss makes the sender repeat what followed the lost packet, at most a window of a queue pair."
            ),
            Advice::Look(vec![
                "feedrail doctor -a PEER".to_owned(),
                format!("rdma statistic show link {subject}/1"),
            ]),
        ),
        CounterMeaning::TimedOut => (
            FindingId::AckTimeouts,
            "Each costs a time-out, 67 ms at `--ack-timeout 14`, while the queue pair stands still; with 7 in a row its connection ends."
                .to_owned(),
            Advice::Look(vec!["feedrail doctor -a PEER".to_owned()]),
        ),
        CounterMeaning::NotReady => (
            FindingId::ReceiverNotReady,
            "Messages came for which no receive was posted; each waits for the RNR timer, 0.01 to 655 ms, and is sent again."
                .to_owned(),
            Advice::look("feedrail id-ctrl -a PEER -n NQN  # maxcmd: the host's queues must not be longer"),
        ),
        CounterMeaning::Discarded => (
            FindingId::Discards,
            format!("{share}The NIC or its port dropped them: its buffer was full, or the link damages packets."),
            Advice::look(format!("ethtool -S {subject} | grep -E 'discard|drop|crc|symbol'")),
        ),
        CounterMeaning::Marked => (
            FindingId::CongestionMarks,
            format!(
                "{:.0}/s. Switches mark packets and senders slow down: ECN and DCQCN work, and the path is the bottleneck now.",
                total as f64 / seconds.max(1e-3)
            ),
            Advice::Nothing,
        ),
        CounterMeaning::Paused => (
            FindingId::PauseFrames,
            format!(
                "{:.0}/s. `rx` counts times that the switch stopped this host, `tx` times that this host stopped the switch, which spreads to others.",
                total as f64 / seconds.max(1e-3)
            ),
            Advice::Nothing,
        ),
    };
    DoctorFinding { id, subject: subject.to_owned(), what, why, advice }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_ethtool_are_known_by_their_names() {
        for name in [
            "rx_prio3_pause",
            "rx_global_pause",
            "tx_pause_ctrl_phy",
            "rx_pfc_ena_frames_pri3",
            "rx_pause_frames",
        ] {
            assert_eq!(of_interface(name), Some(CounterMeaning::Paused), "{name}");
        }
        for name in ["rx_discards_phy", "rx_prio3_discards", "rx_prio0_buf_discard"] {
            assert_eq!(of_interface(name), Some(CounterMeaning::Discarded), "{name}");
        }
        for name in ["rx_packets", "rx_prio3_bytes", "rx_prio3_pause_duration", "NIC statistics"] {
            assert_eq!(of_interface(name), None, "{name}");
        }
    }
}
