//! Buffers of one core: a pool for hosts, and one for anonymous connections.
//!
//! A connection is anonymous until it was admitted to a subsystem: Connect has not succeeded yet,
//! or it is one of the discovery service. Anonymous connections have a small pool of their own, so
//! that unknown peers take no buffers from hosts, and hosts with many buffers keep no other host
//! from connecting.

use nvme_proto::HostNqn;

use super::events::BufferEvent;
use super::share::{AccountKey, AccountName, Share};
use crate::core_context::pool::{Buffer, Pool};
use crate::core_context::request_key::RequestKey;
use crate::limits::peer::PeerOrigin;

/// Buffers of one core, and the requests that wait for one.
pub(crate) struct CoreBuffers {
    hosts: Share,
    anonymous: Share,
}

/// Accounts in [`CoreBuffers`] to which a connection's buffers are charged.
#[derive(Debug)]
pub(crate) struct Accounts {
    origin: PeerOrigin,
    requests: usize,
    anonymous: AccountKey,
    /// Account of its host, once the connection was admitted to a subsystem.
    host: Option<AccountKey>,
}

impl CoreBuffers {
    pub(crate) fn new(hosts: Pool, anonymous: Pool) -> Self {
        Self { hosts: Share::new(hosts), anonymous: Share::new(anonymous) }
    }

    /// Adds an anonymous connection with at most `requests` concurrent requests.
    pub(crate) fn join(&mut self, origin: PeerOrigin, requests: usize) -> Accounts {
        let anonymous = self.anonymous.join(origin, AccountName::Unsaid, requests);
        Accounts { origin, requests, anonymous, host: None }
    }

    /// Moves a connection to the account of the host that was admitted to a subsystem; its later
    /// requests count there.
    pub(crate) fn recognise(&mut self, accounts: &mut Accounts, name: HostNqn) {
        if accounts.host.is_none() {
            let host = self.hosts.join(accounts.origin, AccountName::Said(name), accounts.requests);
            accounts.host = Some(host);
        }
    }

    /// Removes a connection that has neither buffers nor waiting requests.
    pub(crate) fn part(&mut self, accounts: Accounts) {
        self.anonymous.part(accounts.anonymous, accounts.requests);
        if let Some(host) = accounts.host {
            self.hosts.part(host, accounts.requests);
        }
    }

    /// Allocates a buffer for a request. `None`: the request waits for [`CoreBuffers::grant`].
    pub(crate) fn allocate(
        &mut self,
        accounts: &Accounts,
        whose: RequestKey,
        length: u32,
    ) -> Option<Buffer> {
        match accounts.host {
            Some(host) => self.hosts.allocate(host, whose, length),
            None => self.anonymous.allocate(accounts.anonymous, whose, length),
        }
    }

    /// Allocates a buffer for the next waiting request; `None` if none can get one now.
    pub(crate) fn grant(&mut self) -> Option<(RequestKey, Buffer)> {
        self.hosts.grant().or_else(|| self.anonymous.grant())
    }

    /// Returns a buffer to its pool.
    pub(crate) fn release(&mut self, accounts: &Accounts, buffer: Buffer) {
        let (share, account) = self.owner(accounts, &buffer);
        share.release(account, buffer);
    }

    /// Marks a buffer that storage still uses after its connection has ended.
    pub(crate) fn orphan(&mut self, accounts: &Accounts, buffer: &Buffer) {
        let (share, account) = self.owner(accounts, buffer);
        share.orphan(account, buffer);
    }

    /// Returns a buffer marked with [`CoreBuffers::orphan`] to its pool.
    pub(crate) fn release_orphan(&mut self, accounts: &Accounts, buffer: Buffer) {
        let (share, account) = self.owner(accounts, &buffer);
        share.release_orphan(account, buffer);
    }

    /// Share that a connection's buffer came from, and the account there.
    fn owner(&mut self, accounts: &Accounts, buffer: &Buffer) -> (&mut Share, AccountKey) {
        match accounts.host {
            Some(host) if !self.anonymous.pool().owns(buffer) => (&mut self.hosts, host),
            _ => (&mut self.anonymous, accounts.anonymous),
        }
    }

    /// Whether a request waits for a buffer.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.hosts.is_waited_for() || self.anonymous.is_waited_for()
    }

    /// Ends the wait of a request for a buffer. No effect if it does not wait.
    pub(crate) fn leave(&mut self, accounts: &Accounts, whose: RequestKey) {
        self.anonymous.leave(accounts.anonymous, whose);
        if let Some(host) = accounts.host {
            self.hosts.leave(host, whose);
        }
    }

    /// Removes all waiting requests of a connection, in one pass.
    pub(crate) fn leave_all(&mut self, accounts: &Accounts, connection: RequestKey) {
        self.anonymous.leave_all(accounts.anonymous, connection);
        if let Some(host) = accounts.host {
            self.hosts.leave_all(host, connection);
        }
    }

    /// Pool of hosts. It also resolves the addresses of anonymous connections' buffers, which lie
    /// in the same memory.
    pub(crate) fn pool(&self) -> &Pool {
        self.hosts.pool()
    }

    /// Bytes of both pools, free or in use.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.hosts.pool().total_bytes() + self.anonymous.pool().total_bytes()
    }

    /// Bytes of buffers in use.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.hosts.used_bytes() + self.anonymous.used_bytes()
    }

    /// Highest values of [`CoreBuffers::used_bytes`] of the two pools.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.hosts.peak_bytes() + self.anonymous.peak_bytes()
    }

    /// Number of requests that wait for a buffer now.
    pub(crate) fn waiting(&self) -> u64 {
        self.hosts.waiting() + self.anonymous.waiting()
    }

    /// Events of the pools of hosts and of anonymous connections since the last call. Events are
    /// recorded from the first call on, which comes before all connections.
    pub(crate) fn take_events(&mut self) -> [Vec<BufferEvent>; 2] {
        [self.hosts.take_events(), self.anonymous.take_events()]
    }

    /// Records [`BufferEvent::Rested`], for the simulator.
    pub(crate) fn note_rest(&mut self) {
        self.hosts.note_rest();
        self.anonymous.note_rest();
    }

    /// Number of requests so far that had to wait for a buffer.
    pub(crate) fn waits(&self) -> u64 {
        self.hosts.waits() + self.anonymous.waits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core_context::pool::{PoolMemory, PoolPlan};
    use crate::limits::{ANONYMOUS_POOL_BYTES, ANONYMOUS_TRANSFER_BYTES};

    const BLOCK: u32 = 1 << 20;

    fn buffers() -> CoreBuffers {
        let plan = PoolPlan::new(4 * u64::from(BLOCK), 1, BLOCK as usize);
        let memory = PoolMemory::new(plan.memory_bytes(), 0).unwrap();
        let (hosts, anonymous) = plan.pools(&memory, 0);
        CoreBuffers::new(hosts, anonymous)
    }

    fn ip(number: u8) -> PeerOrigin {
        PeerOrigin::Address([10, 0, 0, number].into())
    }

    fn name(number: u8) -> HostNqn {
        HostNqn(format!("nqn.2026-01.io.feedrail:host{number}").parse().unwrap())
    }

    fn request(connection: u32, slot: u32) -> RequestKey {
        RequestKey { transport: 0, connection, slot }
    }

    #[test]
    fn anonymous_connections_take_no_host_buffers() {
        let mut buffers = buffers();
        let mut held = Vec::new();
        for number in 0..60 {
            let anonymous = buffers.join(ip(number), 32);
            for slot in 0..32 {
                let whose = request(number.into(), slot);
                held.extend(buffers.allocate(&anonymous, whose, ANONYMOUS_TRANSFER_BYTES));
            }
        }
        held.extend(std::iter::from_fn(|| buffers.grant()).map(|(_, buffer)| buffer));
        assert!(
            held.len() as u64 * u64::from(ANONYMOUS_TRANSFER_BYTES) <= ANONYMOUS_POOL_BYTES as u64
        );
        let mut host = buffers.join(ip(99), 8);
        buffers.recognise(&mut host, name(1));
        assert!(buffers.allocate(&host, request(99, 0), BLOCK).is_some());
    }

    #[test]
    fn hosts_do_not_block_anonymous_connections() {
        let mut buffers = buffers();
        for number in 0..20 {
            let mut host = buffers.join(ip(number), 8);
            buffers.recognise(&mut host, name(number));
            for slot in 0..8 {
                let _held = buffers.allocate(&host, request(number.into(), slot), BLOCK);
            }
        }
        let anonymous = buffers.join(ip(99), 8);
        assert!(buffers.allocate(&anonymous, request(99, 0), 1024).is_some());
    }

    #[test]
    fn anonymous_buffers_return_to_their_pool() {
        let mut buffers = buffers();
        let mut accounts = buffers.join(ip(1), 8);
        let connect = buffers.allocate(&accounts, request(0, 0), 1024).unwrap();
        buffers.recognise(&mut accounts, name(1));
        let data = buffers.allocate(&accounts, request(0, 1), 4096).unwrap();
        assert_eq!(buffers.used_bytes(), 2 * 4096);
        for buffer in [connect, data] {
            buffers.release(&accounts, buffer);
        }
        assert_eq!((buffers.anonymous.used_bytes(), buffers.hosts.used_bytes()), (0, 0));
        buffers.part(accounts);
    }
}
