//! Options that several commands share, named as in nvme-cli.

use std::net::IpAddr;

use clap::{Args, ValueEnum};
use nvme_proto::{HostId, HostNqn, Nqn, Nsid};

use crate::size::ByteSize;

/// Address of a target, and the options of this host.
#[derive(Args, Clone, Debug)]
pub(crate) struct FabricArgs {
    /// Transport type of the target's address
    #[arg(short = 't', long, value_enum, default_value_t = TransportArg::Rdma)]
    pub(crate) transport: TransportArg,
    /// Address of the target
    #[arg(short = 'a', long, value_name = "IP")]
    pub(crate) traddr: IpAddr,
    /// Service id of the target: its RDMA port
    #[arg(short = 's', long, value_name = "PORT", default_value_t = 4420)]
    pub(crate) trsvcid: u16,
    #[command(flatten)]
    pub(crate) local: Local,
}

/// Identity of this host, and the options of its connections.
#[derive(Args, Clone, Debug)]
pub(crate) struct Local {
    /// Address of this host to connect from [default: found by route]
    #[arg(short = 'w', long, value_name = "IP")]
    pub(crate) host_traddr: Option<IpAddr>,
    /// NQN of this host [default: /etc/nvme/hostnqn, else made up for this run]
    #[arg(short = 'q', long, value_name = "NQN")]
    pub(crate) hostnqn: Option<HostNqn>,
    /// Identifier of this host, a UUID [default: that of the host NQN, else /etc/nvme/hostid]
    #[arg(short = 'I', long, value_name = "UUID")]
    pub(crate) hostid: Option<HostId>,
    /// Number of I/O queues
    #[arg(short = 'i', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) nr_io_queues: Option<u16>,
    /// Entries of each I/O queue
    #[arg(short = 'Q', long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=1024))]
    pub(crate) queue_size: Option<u16>,
    /// Keep alive timeout in seconds; 0 turns it off
    #[arg(short = 'k', long, value_name = "S", value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub(crate) keep_alive_tmo: Option<u32>,
    /// Time that a command, and the recovery of a lost connection, may take in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) timeout: u64,
    /// Type of service of the packets, in both directions: four times the DSCP. `soft` sets the ECN
    /// bits itself, to ECT(0) [default: the device's]
    #[arg(long, value_name = "0..255")]
    pub(crate) tos: Option<u8>,
    /// Wait 4.096 us times two to the power of this for an acknowledgement [default: the
    /// provider's]
    #[arg(long, value_name = "1..31", value_parser = clap::value_parser!(u8).range(1..=31))]
    pub(crate) ack_timeout: Option<u8>,
    /// RDMA provider to connect with
    #[arg(long, value_enum, default_value_t = ProviderArg::Auto)]
    pub(crate) provider: ProviderArg,
}

/// Subsystem at an address.
#[derive(Args, Clone, Debug)]
pub(crate) struct SubsystemArgs {
    #[command(flatten)]
    pub(crate) fabric: FabricArgs,
    /// NQN of the subsystem
    #[arg(short = 'n', long, value_name = "NQN")]
    pub(crate) nqn: Nqn,
}

/// Namespace of a subsystem.
#[derive(Args, Clone, Debug)]
pub(crate) struct NamespaceArgs {
    #[command(flatten)]
    pub(crate) subsystem: SubsystemArgs,
    /// Namespace identifier in the subsystem
    #[arg(long, value_name = "NSID", default_value = "1", value_parser = nsid)]
    pub(crate) namespace_id: Nsid,
}

/// Format in which results are printed.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Output {
    /// Format of results on stdout
    #[arg(short = 'o', long, value_enum, default_value_t = Format::Normal)]
    pub(crate) output_format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Text for people to read
    Normal,
    /// JSON for programs to parse
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportArg {
    /// RDMA: RoCE v2, InfiniBand
    Rdma,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProviderArg {
    /// shm where the target is on this machine and does so too, else verbs where a usable device
    /// routes to the address, else soft
    Auto,
    /// libibverbs: RDMA NICs and the kernel's rdma_rxe
    Verbs,
    /// RoCE v2 in userspace over UDP
    Soft,
    /// Shared memory, with a target on this machine that runs as the same user or as root
    Shm,
}

impl ProviderArg {
    /// Name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Verbs => "verbs",
            Self::Soft => "soft",
            Self::Shm => "shm",
        }
    }
}

/// A byte range on the command line.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct RangeArgs {
    /// First byte of the range
    #[arg(long, value_name = "BYTES", default_value = "0")]
    pub(crate) offset: ByteSize,
    /// Number of bytes in the range
    #[arg(long, value_name = "BYTES")]
    pub(crate) length: Option<ByteSize>,
}

pub(crate) fn nsid(text: &str) -> Result<Nsid, String> {
    let nsid = text.parse().ok().map(Nsid).filter(|nsid| nsid.is_one() && *nsid <= Nsid::MAX);
    nsid.ok_or_else(|| format!("a namespace identifier is a number from 1 to {}", Nsid::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_identifiers_name_one_namespace() {
        assert_eq!(nsid("1"), Ok(Nsid(1)));
        assert_eq!(nsid("4294967294"), Ok(Nsid::MAX));
        for text in ["0", "4294967295", "-1", "0x1", ""] {
            assert!(nsid(text).is_err(), "{text}");
        }
    }
}
