//! Checks whether the priority of RoCE packets is protected from loss: PFC, ECN, DSCP.

use super::device::{Driver, RdmaDevice, RdmaPort};
use super::finding::{Advice, DoctorFinding, FindingId};
use super::priority::{CongestionNotification, PriorityTable, Trust};

/// DSCP (AF31) and priority for which vendors' guides configure RoCE.
const USUAL_DSCP: u8 = 26;
const USUAL_PRIORITY: u8 = 3;
/// Priority and DSCP (CS6) of congestion notification packets in vendors' guides.
const CNP_PRIORITY: u8 = 6;
const CNP_DSCP: u8 = 48;
/// Assumed round-trip time in a data centre, to calculate the cost of a lost packet.
const ROUND_TRIP_SECONDS: f64 = 10e-6;

/// RoCE packets that connections send from a port.
struct Traffic<'a> {
    device: &'a RdmaDevice,
    port: &'a RdmaPort,
    interface: &'a str,
    table: &'a PriorityTable,
    dscp: u8,
}

/// Returns findings on the priority of packets with this ToS, or with the port's default ToS.
pub(crate) fn examine(
    device: &RdmaDevice,
    port: &RdmaPort,
    table: &PriorityTable,
    tos: Option<u8>,
) -> Vec<DoctorFinding> {
    let Some(interface) = port.interface.as_ref().map(|interface| interface.name.as_str()) else {
        return Vec::new();
    };
    let tos = tos.unwrap_or(port.default_tos);
    let traffic = Traffic { device, port, interface, table, dscp: tos >> 2 };
    traffic.examine()
}

impl Traffic<'_> {
    fn examine(&self) -> Vec<DoctorFinding> {
        let Some(pfc) = self.table.pfc else {
            return vec![self.unknown("PFC")];
        };
        let Some(priority) = self.table.priority(self.dscp) else {
            return vec![self.unknown("the trust state")];
        };
        let mut findings = Vec::new();
        let lossless = pfc.iter().position(|on| *on).and_then(|number| u8::try_from(number).ok());
        let is_protected = pfc[usize::from(priority)];
        match lossless {
            None => findings.push(self.pfc_off(priority)),
            Some(lossless) if !is_protected && self.table.trust == Trust::Pcp => {
                findings.push(self.trust_pcp(lossless));
            }
            Some(lossless) if !is_protected => findings.push(self.dscp_mapping(priority, lossless)),
            Some(_) => {}
        }
        findings.extend(self.global_pause(lossless.unwrap_or(USUAL_PRIORITY)));
        // With the remedies above, packets have the priority that has PFC.
        let ecn = self.ecn(match is_protected {
            true => priority,
            false => lossless.unwrap_or(USUAL_PRIORITY),
        });
        let all_well = findings.is_empty() && ecn.is_none();
        findings.extend(ecn);
        if all_well {
            findings.push(self.well(priority));
        }
        findings
    }

    fn finding(&self, id: FindingId, what: String, why: String, advice: Advice) -> DoctorFinding {
        DoctorFinding { id, subject: self.interface.to_owned(), what, why, advice }
    }

    /// Describes the minimum cost of a lost packet: all bytes in flight are sent again.
    fn price_of_a_loss(&self) -> String {
        let Some(bits) = self.port.bits_per_second() else { return String::new() };
        let kilobytes = bits * ROUND_TRIP_SECONDS / 8.0 / 1000.0;
        format!(
            "Each lost packet makes the sender repeat what followed it: {kilobytes:.0} KB at {:.0} Gb/s and a round trip of 10 us.",
            bits / 1e9
        )
    }

    fn unknown(&self, what: &str) -> DoctorFinding {
        let interface = self.interface;
        DoctorFinding {
            advice: Advice::Look(vec![
                format!("dcb pfc show dev {interface}"),
                format!("dcb app show dev {interface}"),
            ]),
            ..DoctorFinding::info(
                FindingId::QosUnknown,
                interface,
                format!(
                    "{what} is not told: `dcb` (of iproute2) is missing here, or the driver does not answer it, so whether priorities are lossless is not known"
                ),
            )
        }
    }

    fn pfc_off(&self, priority: u8) -> DoctorFinding {
        let (interface, device) = (self.interface, self.device.name());
        let mend = match self.device.driver {
            Driver::Bnxt => vec![format!(
                "bnxt_setupcc.sh -d {device} -i {interface} -m 3 -s {USUAL_DSCP} -p {CNP_DSCP} -r {USUAL_PRIORITY} -c {CNP_PRIORITY} -u 4"
            )],
            _ => vec![
                format!("dcb pfc set dev {interface} prio-pfc {USUAL_PRIORITY}:on"),
                format!("dcb app replace dev {interface} dscp-prio {USUAL_DSCP}:{USUAL_PRIORITY}"),
                self.set_default_tos(USUAL_DSCP),
            ],
        };
        self.finding(
            FindingId::PfcOff,
            format!(
                "PFC is off for every priority; packets of RoCE have DSCP {} and priority {priority}",
                self.dscp
            ),
            format!(
                "{} PFC stops the sender instead; the switch ports need it for the same priority.",
                self.price_of_a_loss()
            ),
            Advice::Mend(mend),
        )
    }

    fn trust_pcp(&self, lossless: u8) -> DoctorFinding {
        let interface = self.interface;
        self.finding(
            FindingId::TrustPcp,
            format!(
                "the interface sorts by VLAN tag, not by DSCP: packets without a tag have priority 0, and PFC is on for {lossless}"
            ),
            self.price_of_a_loss(),
            Advice::Mend(vec![
                // The first such entry switches mlx5 to trust DSCP.
                format!("dcb app add dev {interface} dscp-prio {USUAL_DSCP}:{lossless}"),
                self.set_default_tos(USUAL_DSCP),
            ]),
        )
    }

    fn dscp_mapping(&self, priority: u8, lossless: u8) -> DoctorFinding {
        let interface = self.interface;
        // The default DSCP 0 stays best effort; a DSCP chosen on purpose is mapped to the lossless
        // priority.
        let (by_tos, mend) = match self.table.dscp_of(lossless) {
            Some(dscp) if self.dscp == 0 => (
                format!("; connections with `--tos {}` would have it", dscp << 2),
                self.set_default_tos(dscp),
            ),
            _ => (
                String::new(),
                format!("dcb app replace dev {interface} dscp-prio {}:{lossless}", self.dscp),
            ),
        };
        self.finding(
            FindingId::DscpMapping,
            format!(
                "packets of RoCE have DSCP {} (ToS {}) and with it priority {priority}, but PFC is on for {lossless}{by_tos}",
                self.dscp,
                self.dscp << 2
            ),
            self.price_of_a_loss(),
            Advice::mend(mend),
        )
    }

    /// Command that sets the DSCP of connections that request no ToS.
    fn set_default_tos(&self, dscp: u8) -> String {
        let folder = format!("/sys/kernel/config/rdma_cm/{}", self.device.name());
        let number = self.port.sysfs.number;
        format!(
            "mkdir -p {folder}; echo {} > {folder}/ports/{number}/default_roce_tos",
            u16::from(dscp) << 2
        )
    }

    fn global_pause(&self, lossless: u8) -> Option<DoctorFinding> {
        let pause = self.table.pause.filter(|pause| pause.receive || pause.transmit)?;
        let interface = self.interface;
        let side = |on: bool| if on { "on" } else { "off" };
        Some(self.finding(
            FindingId::GlobalPause,
            format!(
                "pause frames for the whole link are on (receive {}, transmit {})",
                side(pause.receive),
                side(pause.transmit)
            ),
            format!(
                "They stop all traffic of the link, and most NICs keep PFC (priority {lossless}) off while they are on."
            ),
            Advice::mend(format!("ethtool -A {interface} autoneg off rx off tx off")),
        ))
    }

    fn ecn(&self, priority: u8) -> Option<DoctorFinding> {
        let (interface, device) = (self.interface, self.device.name());
        let number = usize::from(priority);
        let why = || {
            "Without it a sender continues at full rate until PFC stops it and everything else in that priority; with it the sender slows down when a switch marks packets."
                .to_owned()
        };
        match self.table.ecn {
            CongestionNotification::PerPriority { notification, reaction } => {
                let off: Vec<&str> = [("roce_np", notification), ("roce_rp", reaction)]
                    .into_iter()
                    .filter(|(_, on)| !on[number])
                    .map(|(name, _)| name)
                    .collect();
                if off.is_empty() {
                    return None;
                }
                let command = |side: &&str| {
                    format!("echo 1 > /sys/class/net/{interface}/ecn/{side}/enable/{priority}")
                };
                Some(self.finding(
                    FindingId::EcnOff,
                    format!("DCQCN is off for priority {priority} ({})", off.join(", ")),
                    why(),
                    Advice::Mend(off.iter().map(command).collect()),
                ))
            }
            CongestionNotification::Whole(true) => None,
            CongestionNotification::Whole(false) => {
                let folder = format!("/sys/kernel/config/bnxt_re/{device}/ports/1/cc");
                let set = |file: &str, value| format!("echo -n {value} > {folder}/{file}");
                Some(self.finding(
                    FindingId::EcnOff,
                    "congestion control is off for the device".to_owned(),
                    why(),
                    Advice::Mend(vec![
                        set("ecn_marking", "0x1"),
                        set("ecn_enable", "0x1"),
                        set("cc_mode", "1"),
                        set("apply", "0x1"),
                    ]),
                ))
            }
            CongestionNotification::Unknown => Some(DoctorFinding {
                advice: match self.device.driver {
                    Driver::Bnxt => Advice::Look(vec![
                        format!("mkdir -p /sys/kernel/config/bnxt_re/{device}"),
                        "feedrail doctor".to_owned(),
                    ]),
                    Driver::Mlx5 => Advice::look(format!(
                        "grep . /sys/kernel/debug/mlx5/{}/cc_params/*",
                        self.device.pci_address.as_deref().unwrap_or("*")
                    )),
                    _ => Advice::Nothing,
                },
                ..DoctorFinding::info(
                    FindingId::EcnUnknown,
                    interface,
                    format!("the driver does not tell whether DCQCN is on for priority {priority}"),
                )
            }),
        }
    }

    fn well(&self, priority: u8) -> DoctorFinding {
        let what = format!(
            "packets of RoCE have DSCP {} and priority {priority}, for which PFC and ECN are on",
            self.dscp
        );
        DoctorFinding::info(FindingId::Lossless, self.interface, what)
    }
}
