//! Limits of hosts and namespaces, and the commands that they made wait.

use super::exposition::{Exposition, Label, MetricKind};
use crate::config::QosLimits;
use crate::qos::QuotaStats;

/// Quotas that limit something.
#[derive(Debug, Default)]
pub(crate) struct QuotaSnapshots {
    /// Quotas of hosts that are connected now.
    pub(crate) hosts: Vec<QuotaSnapshot>,
    pub(crate) namespaces: Vec<QuotaSnapshot>,
}

/// Quota of a host or of a namespace.
#[derive(Debug)]
pub(crate) struct QuotaSnapshot {
    /// NQN of the subsystem.
    pub(crate) nqn: String,
    /// NQN of the host, or NSID.
    pub(crate) owner: String,
    pub(crate) limits: QosLimits,
    pub(crate) stats: QuotaStats,
}

impl QuotaSnapshots {
    pub(super) fn write(&self, exposition: &mut Exposition) {
        write(exposition, "host", "host", &self.hosts);
        write(exposition, "namespace", "nsid", &self.namespaces);
    }
}

fn write(exposition: &mut Exposition, whose: &str, label: &'static str, quotas: &[QuotaSnapshot]) {
    let labels = |quota: &QuotaSnapshot| [("nqn", quota.nqn.clone()), (label, quota.owner.clone())];
    let name = format!("feedrail_{whose}_limit");
    let help = format!("Limit of the {whose}, by the key of the configuration file.");
    let samples = exposition.family(MetricKind::Gauge, &name, &help);
    for quota in quotas {
        for (key, limit) in quota.limits.present() {
            let of = labels(quota);
            let [nqn, owner] = [&of[0], &of[1]].map(|(label, value)| (*label, value.as_str()));
            exposition.sample(&samples, &[nqn, owner, ("limit", key)], limit);
        }
    }
    let mut counters = |name: &str, help: String, value: &dyn Fn(&QuotaStats) -> String| {
        let name = format!("feedrail_{whose}_{name}");
        let samples = exposition.family(MetricKind::Counter, &name, &help);
        for quota in quotas {
            let of = labels(quota);
            let of: [Label<'_>; 2] =
                [&of[0], &of[1]].map(|(label, value)| (*label, value.as_str()));
            exposition.sample(&samples, &of, value(&quota.stats));
        }
    };
    let help = format!("Commands that had to wait for a limit of the {whose}.");
    counters("throttled_commands", help, &|stats| stats.throttled.to_string());
    let help = format!("Sum of the times that commands waited for a limit of the {whose}.");
    counters("throttled_seconds", help, &|stats| {
        let waited = stats.waited;
        format!("{}.{:09}", waited.as_secs(), waited.subsec_nanos())
    });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::exposition::MetricsFormat;
    use super::*;

    #[test]
    fn limits_and_waits_are_of_their_owner() {
        let limits = QosLimits { rw_ios: 2000.try_into().expect("valid"), ..QosLimits::default() };
        let stats = QuotaStats { throttled: 7, waited: Duration::from_millis(1500) };
        let quota =
            |owner: &str| QuotaSnapshot { nqn: "nqn.a".into(), owner: owner.into(), limits, stats };
        let quotas = QuotaSnapshots { hosts: vec![quota("nqn.h")], namespaces: vec![quota("3")] };
        let mut exposition = Exposition::new(MetricsFormat::Prometheus);
        quotas.write(&mut exposition);
        let text = exposition.end();
        for line in [
            "feedrail_host_limit{nqn=\"nqn.a\",host=\"nqn.h\",limit=\"rw_ios_per_sec\"} 2000",
            "feedrail_host_throttled_commands_total{nqn=\"nqn.a\",host=\"nqn.h\"} 7",
            "feedrail_host_throttled_seconds_total{nqn=\"nqn.a\",host=\"nqn.h\"} 1.500000000",
            "feedrail_namespace_limit{nqn=\"nqn.a\",nsid=\"3\",limit=\"rw_ios_per_sec\"} 2000",
            "feedrail_namespace_throttled_commands_total{nqn=\"nqn.a\",nsid=\"3\"} 7",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
        assert!(!text.contains("mbytes"), "{text}");
    }
}
