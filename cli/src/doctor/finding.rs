//! Findings of the doctor: observation, cost and remedy.

use serde_json::{Value, json};

/// Severity of a finding. The worst one determines the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// Information; no action is needed.
    Info,
    /// Works, but slower or less reliably than possible.
    Warning,
    /// Something that the user requested does not work.
    Error,
}

impl Severity {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// Declares the kinds of finding: identifier, severity, name.
macro_rules! finding_ids {
    ($($id:ident $severity:ident $name:literal),+ $(,)?) => {
        /// Kind of a finding. Its name is stable, since scripts may search for it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum FindingId {
            $($id,)+
        }

        impl FindingId {
            /// Every kind, for tests.
            #[cfg(test)]
            pub(crate) const ALL: &'static [Self] = &[$(Self::$id),+];

            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$id => $name,)+ }
            }

            pub(crate) const fn severity(self) -> Severity {
                match self { $(Self::$id => Severity::$severity,)+ }
            }
        }
    };
}

finding_ids! {
    Device Info "device",
    NoDevice Info "no-device",
    NoLibraries Error "no-libraries",
    PortDown Error "port-down",
    NoRoceV2 Error "no-roce-v2",
    RoceModeV1 Error "roce-mode-v1",
    PortMtu Warning "port-mtu",
    Iwarp Warning "iwarp",
    NoReliableConnection Warning "no-reliable-connection",
    DeviceFault Info "device-fault",
    DeviceLimits Info "device-limits",
    Memlock Warning "memlock",
    Lossless Info "lossless",
    QosUnknown Info "qos-unknown",
    TrustPcp Warning "trust-pcp",
    DscpMapping Warning "dscp-mapping",
    PfcOff Warning "pfc-off",
    GlobalPause Warning "global-pause",
    EcnOff Warning "ecn-off",
    EcnUnknown Info "ecn-unknown",
    PacketsLost Warning "packets-lost",
    AckTimeouts Warning "ack-timeouts",
    ReceiverNotReady Warning "receiver-not-ready",
    Discards Warning "discards",
    CongestionMarks Info "congestion-marks",
    PauseFrames Info "pause-frames",
    CountersSinceStart Info "counters-since-start",
    ReceiveBuffer Warning "receive-buffer",
    SendBuffer Warning "send-buffer",
    GroOff Warning "gro-off",
    GsoOff Warning "gso-off",
    InterfaceMtu Info "interface-mtu",
    RocePortKernel Info "roce-port-kernel",
    RocePortTaken Error "roce-port-taken",
    RocePortShared Info "roce-port-shared",
    UdpDrops Warning "udp-drops",
    SoftirqLoad Warning "softirq-load",
    Path Info "path",
    Bandwidth Info "bandwidth",
    TargetUnreachable Error "target-unreachable",
    TargetNotListening Error "target-not-listening",
    RocePortFiltered Error "roce-port-filtered",
    ConnectFailed Error "connect-failed",
    TransferFailed Error "transfer-failed",
    PathMtu Error "path-mtu",
    PathLoss Warning "path-loss",
    PathReordering Warning "path-reordering",
    DscpRewritten Warning "dscp-rewritten",
    EcnCleared Warning "ecn-cleared",
    PathCongested Info "path-congested",
    NotTold Info "not-told",
}

/// Action that the user can take on a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// No action is needed.
    Nothing,
    /// Commands that remove the cause, in this order.
    Mend(Vec<String>),
    /// Commands that show more: the cause is on another machine, or is not known.
    Look(Vec<String>),
}

impl Advice {
    pub(crate) fn mend(command: impl Into<String>) -> Self {
        Self::Mend(vec![command.into()])
    }

    pub(crate) fn look(command: impl Into<String>) -> Self {
        Self::Look(vec![command.into()])
    }
}

/// Result of a check of one device, interface or address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DoctorFinding {
    pub(crate) id: FindingId,
    /// Name of the device, interface or address.
    pub(crate) subject: String,
    /// Observation, as a sentence.
    pub(crate) what: String,
    /// Cost in numbers; empty if `what` suffices.
    pub(crate) why: String,
    pub(crate) advice: Advice,
}

impl DoctorFinding {
    /// Creates a finding without advice.
    pub(crate) fn info(id: FindingId, subject: impl Into<String>, what: impl Into<String>) -> Self {
        let (subject, what) = (subject.into(), what.into());
        Self { id, subject, what, why: String::new(), advice: Advice::Nothing }
    }

    pub(crate) fn to_json(&self) -> Value {
        let commands = |wanted: bool| match &self.advice {
            Advice::Mend(commands) if wanted => commands.clone(),
            Advice::Look(commands) if !wanted => commands.clone(),
            _ => Vec::new(),
        };
        json!({
            "id": self.id.name(),
            "severity": self.id.severity().name(),
            "subject": self.subject,
            "what": self.what,
            "why": self.why,
            "mend": commands(true),
            "look": commands(false),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unlike() {
        let names: BTreeSet<_> = FindingId::ALL.iter().map(|id| id.name()).collect();
        assert_eq!(names.len(), FindingId::ALL.len());
    }
}
