//! RDMA providers that a host can use.

/// RDMA provider of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RdmaProvider {
    /// Selects a provider for each connection: `Shm` if the target is on this machine and offers
    /// it, else `Verbs` if an RDMA device reaches the address, else `Soft`.
    #[default]
    Auto,
    /// RDMA devices through libibverbs.
    Verbs,
    /// RoCE v2 in userspace over UDP sockets, without an RDMA device.
    Soft,
    /// Shared memory; only for targets on this machine.
    Shm,
}

impl RdmaProvider {
    pub(crate) const fn kind(self) -> rdma::ProviderKind {
        match self {
            Self::Auto => rdma::ProviderKind::Auto,
            Self::Verbs => rdma::ProviderKind::Verbs,
            Self::Soft => rdma::ProviderKind::Soft,
            Self::Shm => rdma::ProviderKind::Shm,
        }
    }
}
