//! Finds the process or module that uses UDP port 4791.

use rdma::soft::{ROCE_PORT, process_with_socket};

use super::device::{Driver, RdmaDevice};
use super::finding::{Advice, DoctorFinding, FindingId};
use super::tree::SystemTree;

/// UDP socket, as a line of `/proc/net/udp` or `udp6` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UdpSocketRow {
    pub(crate) port: u16,
    pub(crate) inode: String,
    /// Datagrams that found no room in the socket's receive buffer.
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

/// Returns all UDP sockets of the network namespace.
pub(crate) fn udp_sockets(tree: &SystemTree) -> Vec<UdpSocketRow> {
    let text = ["proc/net/udp", "proc/net/udp6"].map(|path| tree.text(path).unwrap_or_default());
    let rows = text.iter().flat_map(|text| text.lines().skip(1));
    rows.filter_map(UdpSocketRow::parse).collect()
}

/// Returns findings on the users of the port. `soft_is_wanted` if this run uses the soft provider
/// in any case.
pub(crate) fn examine(
    tree: &SystemTree,
    devices: &[RdmaDevice],
    soft_is_wanted: bool,
) -> Vec<DoctorFinding> {
    let mut inodes: Vec<String> = udp_sockets(tree)
        .into_iter()
        .filter(|row| row.port == ROCE_PORT)
        .map(|row| row.inode)
        .collect();
    inodes.sort();
    inodes.dedup();
    let links = devices.iter().filter(|device| device.driver == Driver::Rxe);
    // The rdma_rxe module holds the port while it is loaded, even without a device.
    let rxe: Option<Vec<String>> = tree
        .path("sys/module/rdma_rxe")
        .exists()
        .then(|| links.map(|device| device.name().to_owned()).collect());
    let mut holders: Vec<Option<String>> =
        inodes.iter().map(|inode| process_with_socket(&tree.path("proc"), inode)).collect();
    holders.sort();
    holders.dedup();
    holders.into_iter().map(|holder| judge(holder, rxe.as_deref(), soft_is_wanted)).collect()
}

/// Finding on one user of the port. `rxe` contains the names of the rxe devices, if the module is
/// loaded.
fn judge(holder: Option<String>, rxe: Option<&[String]>, soft_is_wanted: bool) -> DoctorFinding {
    let subject = format!("UDP port {ROCE_PORT}");
    let alone = "`soft` cannot listen there: a target does not start, and a host takes another port, at which only targets of Feedrail answer.";
    match holder {
        // Feedrail's programs can share the port by binding different addresses.
        Some(process) if process.contains("(feedrail") => {
            DoctorFinding::info(FindingId::RocePortShared, subject, format!("{process} has it"))
        }
        Some(process) => DoctorFinding {
            id: FindingId::RocePortTaken,
            subject,
            what: format!("{process} has it"),
            why: alone.to_owned(),
            advice: match process.split_whitespace().nth(1) {
                Some(id) => Advice::Mend(vec![format!("kill {id}")]),
                None => Advice::Nothing,
            },
        },
        None => match rxe {
            None => DoctorFinding {
                id: FindingId::RocePortTaken,
                subject,
                what: "another user's process or a kernel module has it".to_owned(),
                why: alone.to_owned(),
                advice: Advice::look(format!("ss -ulnp 'sport = :{ROCE_PORT}'  # as root")),
            },
            Some(links) => {
                let names =
                    if links.is_empty() { "no device".to_owned() } else { links.join(", ") };
                let what = format!("the kernel's rdma_rxe has it, for {names}");
                if !soft_is_wanted {
                    return DoctorFinding::info(FindingId::RocePortKernel, subject, what);
                }
                let unload = "modprobe -r rdma_rxe".to_owned();
                let delete = links.iter().map(|name| format!("rdma link delete {name}"));
                DoctorFinding {
                    id: FindingId::RocePortTaken,
                    subject,
                    what,
                    why: format!("{alone} In another network namespace the port is free."),
                    advice: Advice::Mend(delete.chain([unload]).collect()),
                }
            }
        },
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
