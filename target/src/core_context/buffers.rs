//! The buffers of one core: a share for hosts, and one for anonymous connections.
//!
//! An anonymous connection is a connection that was not let into a subsystem: Connect has not
//! succeeded yet, or it is the discovery service's. Anonymous connections have small buffers of
//! their own, so that unknown peers take no buffer from hosts, and hosts that hold much keep no
//! host from connecting.

use nvme_proto::HostNqn;

use super::events::BufferEvent;
use super::share::{AccountKey, AccountName, Share};
use crate::core_context::pool::{Buffer, Pool};
use crate::core_context::request_key::RequestKey;
use crate::limits::peer::PeerOrigin;

/// The buffers of one core, and the requests that stand in line for one.
pub(crate) struct CoreBuffers {
    hosts: Share,
    anonymous: Share,
}

/// A connection's accounts with the [`CoreBuffers`] of its core.
#[derive(Debug)]
pub(crate) struct Accounts {
    origin: PeerOrigin,
    requests: usize,
    anonymous: AccountKey,
    /// Once it was let into a subsystem.
    host: Option<AccountKey>,
}

impl CoreBuffers {
    pub(crate) fn new(hosts: Pool, anonymous: Pool) -> Self {
        Self { hosts: Share::new(hosts), anonymous: Share::new(anonymous) }
    }

    /// Adds a connection, with at most `requests` at once, as an anonymous one.
    pub(crate) fn join(&mut self, origin: PeerOrigin, requests: usize) -> Accounts {
        let anonymous = self.anonymous.join(origin, AccountName::Unsaid, requests);
        Accounts { origin, requests, anonymous, host: None }
    }

    /// A connection was let into a subsystem under this name: its later requests count as that
    /// host's.
    pub(crate) fn recognise(&mut self, accounts: &mut Accounts, name: HostNqn) {
        if accounts.host.is_none() {
            let host = self.hosts.join(accounts.origin, AccountName::Said(name), accounts.requests);
            accounts.host = Some(host);
        }
    }

    /// A connection is gone, and has neither buffers nor requests that wait.
    pub(crate) fn part(&mut self, accounts: Accounts) {
        self.anonymous.part(accounts.anonymous, accounts.requests);
        if let Some(host) = accounts.host {
            self.hosts.part(host, accounts.requests);
        }
    }

    /// A buffer for a request, or a place in the line.
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

    /// The next request that gets a buffer, if there is room for any.
    pub(crate) fn grant(&mut self) -> Option<(RequestKey, Buffer)> {
        self.hosts.grant().or_else(|| self.anonymous.grant())
    }

    /// Takes a buffer back.
    pub(crate) fn release(&mut self, accounts: &Accounts, buffer: Buffer) {
        let (share, account) = self.owner(accounts, &buffer);
        share.release(account, buffer);
    }

    /// A connection has ended, and storage still works on a buffer of its.
    pub(crate) fn leave_behind(&mut self, accounts: &Accounts, buffer: &Buffer) {
        let (share, account) = self.owner(accounts, buffer);
        share.leave_behind(account, buffer);
    }

    /// Takes a buffer back that was left behind.
    pub(crate) fn release_left_behind(&mut self, accounts: &Accounts, buffer: Buffer) {
        let (share, account) = self.owner(accounts, &buffer);
        share.release_left_behind(account, buffer);
    }

    /// Where a buffer of a connection came from.
    fn owner(&mut self, accounts: &Accounts, buffer: &Buffer) -> (&mut Share, AccountKey) {
        match accounts.host {
            Some(host) if !self.anonymous.pool().owns(buffer) => (&mut self.hosts, host),
            _ => (&mut self.anonymous, accounts.anonymous),
        }
    }

    /// Whether a request waits.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.hosts.is_waited_for() || self.anonymous.is_waited_for()
    }

    /// Takes a request out of the line.
    pub(crate) fn leave(&mut self, accounts: &Accounts, whose: RequestKey) {
        self.anonymous.leave(accounts.anonymous, whose);
        if let Some(host) = accounts.host {
            self.hosts.leave(host, whose);
        }
    }

    /// Takes all requests of a connection out of the line, in one pass.
    pub(crate) fn leave_all(&mut self, accounts: &Accounts, connection: RequestKey) {
        self.anonymous.leave_all(accounts.anonymous, connection);
        if let Some(host) = accounts.host {
            self.hosts.leave_all(host, connection);
        }
    }

    /// The pool of hosts. It finds the memory of anonymous connections' buffers as well.
    pub(crate) fn pool(&self) -> &Pool {
        self.hosts.pool()
    }

    /// Bytes of all buffers.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.hosts.pool().total_bytes() + self.anonymous.pool().total_bytes()
    }

    /// Bytes that requests have.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.hosts.used_bytes() + self.anonymous.used_bytes()
    }

    /// The events of the pools of hosts and of anonymous connections since the last call. Events
    /// are kept from the first call on, so it comes before all connections.
    pub(crate) fn take_events(&mut self) -> [Vec<BufferEvent>; 2] {
        [self.hosts.take_events(), self.anonymous.take_events()]
    }

    /// The core has nothing to do until something happens.
    pub(crate) fn note_rest(&mut self) {
        self.hosts.note_rest();
        self.anonymous.note_rest();
    }

    /// How often a request had to stand in line.
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
