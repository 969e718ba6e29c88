//! RDMA providers, as callers choose them.

/// Which RDMA provider a host uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RdmaProvider {
    /// Shared memory where the target is on this machine and shares it with us, else verbs where a
    /// device serves the address, else soft. Chosen again for each connection.
    #[default]
    Auto,
    /// RDMA devices through libibverbs.
    Verbs,
    /// RoCE v2 in userspace over UDP.
    Soft,
    /// Shared memory, with targets on this machine only.
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
