//! Load by other programs during the examination: dropped datagrams, and cores busy with soft
//! interrupts.

use core::time::Duration;
use std::collections::BTreeMap;

use rdma::soft::ROCE_PORT;

use super::finding::{Advice, DoctorFinding, FindingId};
use super::roce_port::udp_sockets;
use super::tree::SystemTree;

/// Share of a core's time in soft interrupts above which the soft provider is slow on that core.
const BUSY_SHARE: f64 = 0.5;
/// Index of the soft interrupts in a `cpu` line of `/proc/stat`, and the number of fields whose sum
/// is the total time.
const SOFTIRQ_FIELD: usize = 6;
const TIME_FIELDS: usize = 8;

/// Counters of dropped packets and of interrupt time at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct NeighbourSample {
    /// Datagrams that found no room in a socket's buffer, in the whole network namespace.
    buffer_errors: u64,
    /// Datagrams dropped by sockets on the RoCE port.
    roce_drops: u64,
    /// Packets that found no room in the backlog queue of a core.
    backlog_drops: u64,
    /// Clock ticks in soft interrupts, and in total, by core.
    cores: BTreeMap<String, (u64, u64)>,
}

impl NeighbourSample {
    pub(crate) fn take(tree: &SystemTree) -> Self {
        let backlog = tree.text("proc/net/softnet_stat").unwrap_or_default();
        let dropped = |line: &str| -> Option<u64> {
            u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()
        };
        let stat = tree.text("proc/stat").unwrap_or_default();
        let roce = udp_sockets(tree).into_iter().filter(|row| row.port == ROCE_PORT);
        Self {
            buffer_errors: udp_counter(tree, "RcvbufErrors").unwrap_or(0),
            roce_drops: roce.map(|row| row.drops).sum(),
            backlog_drops: backlog.lines().filter_map(dropped).sum(),
            cores: stat.lines().filter_map(core_times).collect(),
        }
    }

    pub(crate) fn since(&self, before: &Self, interval: Duration) -> Vec<DoctorFinding> {
        [self.drops(before, interval), self.softirq_load(before)].into_iter().flatten().collect()
    }

    fn drops(&self, before: &Self, interval: Duration) -> Option<DoctorFinding> {
        let all = self.buffer_errors.saturating_sub(before.buffer_errors);
        let roce = self.roce_drops.saturating_sub(before.roce_drops);
        let backlog = self.backlog_drops.saturating_sub(before.backlog_drops);
        if all + roce + backlog == 0 {
            return None;
        }
        let seconds = interval.as_secs_f64();
        let what = format!(
            "within {seconds:.1} s {all} datagrams found no room in a socket's buffer, {roce} of them on port {ROCE_PORT}, and {backlog} none in the queue of a core"
        );
        Some(DoctorFinding {
            id: FindingId::UdpDrops,
            subject: "UDP".to_owned(),
            what,
            why: format!(
                "{:.0}/s are lost on this machine; `soft` sends its own again, after a round trip at best.",
                (all.max(roce) + backlog) as f64 / seconds.max(1e-3)
            ),
            advice: if backlog > 0 {
                Advice::mend("sysctl -w net.core.netdev_max_backlog=10000")
            } else {
                Advice::Look(vec!["ss -uanm".to_owned()])
            },
        })
    }

    fn softirq_load(&self, before: &Self) -> Option<DoctorFinding> {
        let share = |core: &String, &(softirq, all): &(u64, u64)| {
            let &(softirq_before, all_before) = before.cores.get(core)?;
            let all = all.checked_sub(all_before).filter(|ticks| *ticks > 0)?;
            Some(softirq.saturating_sub(softirq_before) as f64 / all as f64)
        };
        let busy: Vec<String> = self
            .cores
            .iter()
            .filter_map(|(core, times)| Some((core, share(core, times)?)))
            .filter(|(_, share)| *share >= BUSY_SHARE)
            .map(|(core, share)| format!("{core} ({:.0} %)", share * 100.0))
            .collect();
        (!busy.is_empty()).then(|| DoctorFinding {
            id: FindingId::SoftirqLoad,
            subject: "cores".to_owned(),
            what: format!("soft interrupts take most of the time of {}", busy.join(", ")),
            why: "A thread of `soft` on such a core gets only the remaining time, and its socket's buffer overflows."
                .to_owned(),
            advice: Advice::Look(vec![
                "grep -E 'NET_RX|NET_TX' /proc/softirqs".to_owned(),
                "grep -H . /proc/irq/*/smp_affinity_list".to_owned(),
            ]),
        })
    }
}

/// Returns a UDP counter of `/proc/net/snmp`: the first line `Udp:` has names, the second values.
fn udp_counter(tree: &SystemTree, name: &str) -> Option<u64> {
    let text = tree.text("proc/net/snmp")?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let column = lines.next()?.split_whitespace().position(|other| other == name)?;
    lines.next()?.split_whitespace().nth(column)?.parse().ok()
}

/// Parses `cpu3 user nice system idle iowait irq softirq steal ...`
fn core_times(line: &str) -> Option<(String, (u64, u64))> {
    let mut words = line.split_whitespace();
    let name = words.next().filter(|name| name.starts_with("cpu") && name.len() > 3)?;
    let times: Vec<u64> = words.take(TIME_FIELDS).filter_map(|word| word.parse().ok()).collect();
    Some((name.to_owned(), (*times.get(SOFTIRQ_FIELD)?, times.iter().sum())))
}
