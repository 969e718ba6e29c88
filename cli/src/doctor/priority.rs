//! Priority (802.1p) of RoCE packets on an interface, and the flow control of that priority.

use std::collections::BTreeMap;

use super::device::Driver;
use super::tree::{SystemTree, fields};

/// Number of priorities of Ethernet (IEEE 802.1Q).
pub(crate) const PRIORITIES: usize = 8;

/// Header field by which an interface sorts packets into priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The DSCP of the IP header.
    Dscp,
    /// The priority of the VLAN tag; packets without one have priority 0.
    Pcp,
    /// Neither `dcb` nor `mlnx_qos` reports it.
    Unknown,
}

/// Priorities with DCQCN: CNPs upon packets that a switch has marked, and the reaction to CNPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CongestionNotification {
    /// Set for each priority: `notification` is whether the receiver sends CNPs, `reaction` whether
    /// the sender slows down upon them.
    PerPriority { notification: [bool; PRIORITIES], reaction: [bool; PRIORITIES] },
    /// One setting for the whole device.
    Whole(bool),
    /// The driver does not report it.
    Unknown,
}

/// Flow control by the pause frames of IEEE 802.3x, which stop all priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GlobalPause {
    pub(crate) receive: bool,
    pub(crate) transmit: bool,
}

/// Priority and flow control settings of an interface.
#[derive(Clone, Debug)]
pub(crate) struct PriorityTable {
    pub(crate) trust: Trust,
    /// Priorities of DSCPs that were mapped explicitly.
    mapped: BTreeMap<u8, u8>,
    pub(crate) pfc: Option<[bool; PRIORITIES]>,
    pub(crate) pause: Option<GlobalPause>,
    pub(crate) ecn: CongestionNotification,
}

impl PriorityTable {
    pub(crate) fn read(tree: &SystemTree, driver: &Driver, device: &str, interface: &str) -> Self {
        let mut table = Self {
            trust: Trust::Unknown,
            mapped: BTreeMap::new(),
            pfc: None,
            pause: tree.tool("ethtool", &["-a", interface]).as_deref().and_then(parse_pause),
            ecn: read_ecn(tree, driver, device, interface),
        };
        // `-N` prints numbers instead of names (`AF31`).
        if let Some(text) = tree.tool("dcb", &["-N", "app", "show", "dev", interface]) {
            table.take_dcb_app(&text);
        }
        if let Some(text) = tree.tool("dcb", &["pfc", "show", "dev", interface]) {
            table.pfc = parse_dcb_pfc(&text);
        }
        // NVIDIA's own tool prints the trust state, which `dcb` does not.
        if *driver == Driver::Mlx5
            && let Some(text) = tree.tool("mlnx_qos", &["-i", interface])
        {
            table.take_mlnx_qos(&text);
        }
        table
    }

    /// Priority of packets with a DSCP; `None` if the trust state is not known.
    pub(crate) fn priority(&self, dscp: u8) -> Option<u8> {
        match self.trust {
            Trust::Dscp => Some(self.mapped.get(&dscp).copied().unwrap_or(dscp >> 3)),
            Trust::Pcp => Some(0),
            Trust::Unknown => None,
        }
    }

    /// Returns a DSCP whose packets have the priority, preferably one that was mapped explicitly.
    pub(crate) fn dscp_of(&self, priority: u8) -> Option<u8> {
        let set = self.mapped.iter().find(|(_, other)| **other == priority);
        let by_default = (0..64).find(|dscp| self.priority(*dscp) == Some(priority));
        set.map(|(dscp, _)| *dscp).or(by_default)
    }

    /// Parses `dscp-prio 24:3 26:3`. Without that line the interface trusts the VLAN tag.
    fn take_dcb_app(&mut self, text: &str) {
        let line = text.lines().find_map(|line| line.trim().strip_prefix("dscp-prio"));
        self.mapped.extend(line.into_iter().flat_map(pairs));
        self.trust = if self.mapped.is_empty() { Trust::Pcp } else { Trust::Dscp };
    }

    /// Parses `Priority trust state: dscp`, `prio:3 dscp:31,30,` and the row `enabled` below `PFC
    /// configuration:`.
    fn take_mlnx_qos(&mut self, text: &str) {
        for line in text.lines().map(str::trim) {
            match line.strip_prefix("Priority trust state:").map(str::trim) {
                Some("dscp") => self.trust = Trust::Dscp,
                Some("pcp") => self.trust = Trust::Pcp,
                _ => {}
            }
            if let Some(row) = line.strip_prefix("prio:")
                && let Some((priority, dscps)) = row.split_once("dscp:")
                && let Ok(priority) = priority.trim().parse()
            {
                let dscps = dscps.split(',').filter_map(|dscp| dscp.trim().parse::<u8>().ok());
                self.mapped.extend(dscps.map(|dscp| (dscp, priority)));
            }
            if let Some(row) = line.strip_prefix("enabled")
                && self.pfc.is_none()
            {
                self.pfc = flags(row.split_whitespace().map(|word| word == "1"));
            }
        }
    }
}

/// Parses `prio-pfc 0:off 1:off 2:off 3:on ...`, in a line of its own or behind other words.
fn parse_dcb_pfc(text: &str) -> Option<[bool; PRIORITIES]> {
    let (_, list) = text.split_once("prio-pfc")?;
    let words = list.split_whitespace().map_while(|word| word.split_once(':'));
    flags(words.take(PRIORITIES).map(|(_, state)| state == "on"))
}

fn flags(all: impl Iterator<Item = bool>) -> Option<[bool; PRIORITIES]> {
    all.take(PRIORITIES).collect::<Vec<_>>().try_into().ok()
}

/// Parses pairs of DSCP and priority, such as `24:3 26:3`.
fn pairs(list: &str) -> impl Iterator<Item = (u8, u8)> {
    list.split_whitespace().filter_map(|pair| {
        let (dscp, priority) = pair.split_once(':')?;
        Some((dscp.parse().ok()?, priority.parse().ok()?))
    })
}

fn parse_pause(text: &str) -> Option<GlobalPause> {
    let value =
        |wanted: &str| fields(text).find(|(name, _)| *name == wanted).map(|(_, on)| on == "on");
    Some(GlobalPause { receive: value("RX")?, transmit: value("TX")? })
}

fn read_ecn(
    tree: &SystemTree,
    driver: &Driver,
    device: &str,
    interface: &str,
) -> CongestionNotification {
    match driver {
        Driver::Mlx5 => {
            let side = |name: &str| {
                let priority = |number: usize| {
                    let path = format!("sys/class/net/{interface}/ecn/{name}/enable/{number}");
                    tree.number::<u8>(&path).map(|value| value != 0)
                };
                let all: Option<Vec<bool>> = (0..PRIORITIES).map(priority).collect();
                all?.try_into().ok()
            };
            match (side("roce_np"), side("roce_rp")) {
                (Some(notification), Some(reaction)) => {
                    CongestionNotification::PerPriority { notification, reaction }
                }
                _ => CongestionNotification::Unknown,
            }
        }
        Driver::Bnxt => {
            let path = format!("sys/kernel/config/bnxt_re/{device}/ports/1/cc/ecn_enable");
            match tree.text(&path).as_deref() {
                Some("0" | "0x0") => CongestionNotification::Whole(false),
                Some(_) => CongestionNotification::Whole(true),
                None => CongestionNotification::Unknown,
            }
        }
        _ => CongestionNotification::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> PriorityTable {
        PriorityTable {
            trust: Trust::Unknown,
            mapped: BTreeMap::new(),
            pfc: None,
            pause: None,
            ecn: CongestionNotification::Unknown,
        }
    }

    #[test]
    fn dcb_says_priorities_and_pfc() {
        let mut table = empty();
        table.take_dcb_app("dscp-prio 26:3 48:6 \n");
        assert_eq!(
            (table.trust, table.priority(26), table.priority(0)),
            (Trust::Dscp, Some(3), Some(0))
        );
        assert_eq!(
            (table.priority(40), table.dscp_of(3), table.dscp_of(1)),
            (Some(5), Some(26), Some(8))
        );
        let mut table = empty();
        table.take_dcb_app("ethtype-prio 35093:3\n");
        assert_eq!((table.trust, table.priority(26)), (Trust::Pcp, Some(0)));

        let line = "prio-pfc 0:off 1:off 2:off 3:on 4:off 5:off 6:off 7:off";
        for text in [
            format!("pfc-cap 8 macsec-bypass off delay 0 \n{line} \n"),
            format!("pfc-cap 8 {line} delay 0"),
        ] {
            let pfc = parse_dcb_pfc(&text).unwrap();
            assert!(pfc[3] && pfc.iter().filter(|on| **on).count() == 1, "{text}");
        }
        assert_eq!(parse_dcb_pfc("prio-pfc 0:off 1:on"), None);
        assert_eq!(parse_dcb_pfc("Attribute read: Operation not supported"), None);
    }

    #[test]
    fn mlnx_qos_says_the_trust_state() {
        let mut table = empty();
        table.take_mlnx_qos(
            "DCBX mode: OS controlled\nPriority trust state: dscp\ndscp2prio mapping:\n\tprio:0 dscp:07,06,00,\n\
             \tprio:4 dscp:26,\nPFC configuration:\n\tpriority    0   1   2   3   4   5   6   7\n\
             \tenabled     0   0   0   0   1   0   0   0   \n\tbuffer      0   0   0   0   1   0   0   0   \n",
        );
        assert_eq!((table.trust, table.priority(26)), (Trust::Dscp, Some(4)));
        assert!(table.pfc.unwrap()[4]);
    }

    #[test]
    fn pause_frames_are_both_ways() {
        let text = "Pause parameters for eth0:\nAutonegotiate:\toff\nRX:\t\ton\nTX:\t\toff\n";
        assert_eq!(parse_pause(text), Some(GlobalPause { receive: true, transmit: false }));
        assert_eq!(parse_pause("Cannot get device pause settings"), None);
    }
}
