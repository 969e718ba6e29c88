//! Options that several commands share, named as in nvme-cli.

use std::net::IpAddr;

use clap::{Args, ValueEnum};
use nvme_proto::{HostId, HostNqn, Nqn, Nsid};

use crate::secret_args::SecretArgs;
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
    /// Transport service ID (TRSVCID) of the target: its RDMA/CM port
    #[arg(short = 's', long, value_name = "PORT", default_value_t = 4420)]
    pub(crate) trsvcid: u16,
    #[command(flatten)]
    pub(crate) local: Local,
}

/// Identity of this host, and the options of its connections.
#[derive(Args, Clone, Debug)]
pub(crate) struct Local {
    /// Source address of this host [default: by the route to the target]
    #[arg(short = 'w', long, value_name = "IP")]
    pub(crate) host_traddr: Option<IpAddr>,
    /// Host NQN [default: /etc/nvme/hostnqn, else a random one for this run]
    #[arg(short = 'q', long, value_name = "NQN")]
    pub(crate) hostnqn: Option<HostNqn>,
    /// Host identifier (HOSTID), a UUID [default: that of the host NQN, else /etc/nvme/hostid]
    #[arg(short = 'I', long, value_name = "UUID")]
    pub(crate) hostid: Option<HostId>,
    /// Number of I/O queues
    #[arg(short = 'i', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) nr_io_queues: Option<u16>,
    /// Number of entries of each I/O queue
    #[arg(short = 'Q', long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=1024))]
    pub(crate) queue_size: Option<u16>,
    /// Keep Alive Timeout (KATO) in seconds; 0 disables it
    #[arg(short = 'k', long, value_name = "S", value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub(crate) keep_alive_tmo: Option<u32>,
    /// Timeout in milliseconds of a command, and of the recovery of a lost connection
    #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) timeout: u64,
    /// Type of service (ToS) of packets in both directions: four times the DSCP. The soft provider
    /// sets the ECN bits itself, to ECT(0) [default: the device's]
    #[arg(long, value_name = "0..255")]
    pub(crate) tos: Option<u8>,
    /// Local ACK Timeout as an exponent: 4.096 us * 2^N [default: the provider's]
    #[arg(long, value_name = "1..31", value_parser = clap::value_parser!(u8).range(1..=31))]
    pub(crate) ack_timeout: Option<u8>,
    /// RDMA provider to connect with
    #[arg(long, value_enum, default_value_t = ProviderArg::Auto)]
    pub(crate) provider: ProviderArg,
    #[command(flatten)]
    pub(crate) secrets: SecretArgs,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct SubsystemArgs {
    #[command(flatten)]
    pub(crate) fabric: FabricArgs,
    /// NQN of the subsystem
    #[arg(short = 'n', long, value_name = "NQN")]
    pub(crate) nqn: Nqn,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct NamespaceArgs {
    #[command(flatten)]
    pub(crate) subsystem: SubsystemArgs,
    /// Namespace ID (NSID) in the subsystem
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
    /// shm if the target is on this machine and shares memory, else verbs if a usable device routes
    /// to the address, else soft
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
