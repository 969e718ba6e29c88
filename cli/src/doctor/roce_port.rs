//! The owner of UDP port 4791.

use rdma::soft::{ROCE_PORT, process_with_socket};

use super::device::{Driver, RdmaDevice};
use super::finding::{Finding, FindingId, Remedy};
use super::tree::SystemTree;

/// A line of `/proc/net/udp` or `udp6`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UdpSocketRow {
    pub(crate) port: u16,
    pub(crate) inode: String,
    /// Datagrams that found no room in its buffer.
    pub(crate) drops: u64,
}

impl UdpSocketRow {
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, port) = fields.get(1)?.rsplit_once(':')?;
        Some(Self {
            port: u16::from_str_radix(port, 16).ok()?,
            inode: (*fields.get(9)?).to_owned(),
            drops: fields.get(12)?.parse().ok()?,
        })
    }
}

/// Every UDP socket of the network namespace.
pub(crate) fn udp_sockets(tree: &SystemTree) -> Vec<UdpSocketRow> {
    let text = ["proc/net/udp", "proc/net/udp6"].map(|path| tree.text(path).unwrap_or_default());
    let rows = text.iter().flat_map(|text| text.lines().skip(1));
    rows.filter_map(UdpSocketRow::parse).collect()
}

/// Who has the port; `soft_is_wanted` if this run is to use `soft` in any case.
pub(crate) fn examine(
    tree: &SystemTree,
    devices: &[RdmaDevice],
    soft_is_wanted: bool,
) -> Vec<Finding> {
    let mut inodes: Vec<String> = udp_sockets(tree)
        .into_iter()
        .filter(|row| row.port == ROCE_PORT)
        .map(|row| row.inode)
        .collect();
    inodes.sort();
    inodes.dedup();
    let rxe: Vec<&str> = devices
        .iter()
        .filter(|device| device.driver == Driver::Rxe)
        .map(RdmaDevice::name)
        .collect();
    let mut holders: Vec<Option<String>> =
        inodes.iter().map(|inode| process_with_socket(&tree.path("proc"), inode)).collect();
    holders.sort();
    holders.dedup();
    holders.into_iter().map(|holder| judge(holder, &rxe, soft_is_wanted)).collect()
}

fn judge(holder: Option<String>, rxe: &[&str], soft_is_wanted: bool) -> Finding {
    let subject = format!("UDP port {ROCE_PORT}");
    let alone = "`soft` cannot listen there: a target does not start, and a host takes another port, at which only targets of Feedrail answer.";
    match holder {
        // Our own programs share the machine by addresses.
        Some(process) if process.contains("(feedrail") => {
            Finding::info(FindingId::RocePortShared, subject, format!("{process} has it"))
        }
        Some(process) => Finding {
            id: FindingId::RocePortTaken,
            subject,
            what: format!("{process} has it"),
            why: alone.to_owned(),
            remedy: match process.split_whitespace().nth(1) {
                Some(id) => Remedy::Mend(vec![format!("kill {id}")]),
                None => Remedy::Nothing,
            },
        },
        None if rxe.is_empty() => Finding {
            id: FindingId::RocePortTaken,
            subject,
            what: "another user's process or a kernel module has it".to_owned(),
            why: alone.to_owned(),
            remedy: Remedy::look(format!("ss -ulnp 'sport = :{ROCE_PORT}'  # as root")),
        },
        None => {
            let what = format!("the kernel's rdma_rxe has it, for {}", rxe.join(", "));
            if !soft_is_wanted {
                return Finding::info(FindingId::RocePortKernel, subject, what);
            }
            Finding {
                id: FindingId::RocePortTaken,
                subject,
                what,
                why: format!("{alone} In another network namespace the port is free."),
                remedy: Remedy::Mend(
                    rxe.iter().map(|name| format!("rdma link delete {name}")).collect(),
                ),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_port_inode_and_drops() {
        let line = "  340: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4711 2 0000000000000000 17";
        let row = UdpSocketRow::parse(line).unwrap();
        assert_eq!(row, UdpSocketRow { port: 4791, inode: "4711".to_owned(), drops: 17 });
        assert_eq!(UdpSocketRow::parse("nonsense"), None);
    }
}
