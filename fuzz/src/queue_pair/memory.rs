//! The memory of one end, and a model of the accesses that are allowed.

use std::collections::VecDeque;
use std::ops::Range;

use roce_proto::Qpn;
use roce_proto::rc::{
    AccessError, BindWindow, CompletedWork, LocalAccess, LocalSge, Memory, MemoryKey, PayloadPiece,
    RemoteAccess, WorkCompletion, WorkStatus,
};

/// Where the memory begins, as work requests see it.
pub(super) const BASE: u64 = 0x7F00_0000_1000;
/// How much there is.
pub(super) const BYTES: usize = SHARED.end;
/// Never written: bytes to send, and bytes that the peer may read.
pub(super) const SOURCE: Range<usize> = 0..8 << 10;
/// Destination of receives and READs.
pub(super) const SINK: Range<usize> = 8 << 10..24 << 10;
/// Bytes that the peer may read and write.
pub(super) const SHARED: Range<usize> = 24 << 10..28 << 10;

pub(super) const SOURCE_KEY: u32 = 1;
pub(super) const SINK_KEY: u32 = 2;
pub(super) const SHARED_KEY: u32 = 3;

const LOCAL_WRITE: u32 = 1;
const REMOTE_READ: u32 = 2;
const REMOTE_WRITE: u32 = 4;

#[derive(Clone, Debug)]
struct FuzzRegion {
    key: u32,
    range: Range<u64>,
    access: u32,
    /// The queue pair that a window is bound for.
    window_of: Option<Qpn>,
}

/// A work request that has not completed.
#[derive(Clone, Debug)]
pub(super) struct Posted {
    pub(super) wr_id: u64,
    /// Whether success is reported.
    pub(super) signaled: bool,
    /// Where it may put something.
    pub(super) sinks: Vec<LocalSge>,
}

/// The memory, and which work requests may write to it.
pub(super) struct Modelled {
    pub(super) bytes: Vec<u8>,
    regions: Vec<FuzzRegion>,
    pub(super) sends: VecDeque<Posted>,
    /// The newest last, which is used first.
    pub(super) receives: Vec<Posted>,
    /// The receive that has a part of a message: it gets the rest, however many are posted after
    /// it.
    begun: Option<u64>,
}

impl Modelled {
    pub(super) fn new() -> Self {
        let mut memory = Self {
            bytes: (0..BYTES).map(|at| (at ^ at >> 8) as u8).collect(),
            regions: Vec::new(),
            sends: VecDeque::new(),
            receives: Vec::new(),
            begun: None,
        };
        memory.open(SOURCE_KEY, SOURCE, REMOTE_READ);
        memory.open(SINK_KEY, SINK, LOCAL_WRITE);
        memory.share();
        memory
    }

    fn open(&mut self, key: u32, range: Range<usize>, access: u32) {
        let range = BASE + range.start as u64..BASE + range.end as u64;
        self.regions.push(FuzzRegion { key, range, access, window_of: None });
    }

    /// Opens the shared part to the peer.
    pub(super) fn share(&mut self) {
        self.unshare();
        self.open(SHARED_KEY, SHARED, LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE);
    }

    /// Closes the shared part to the peer.
    pub(super) fn unshare(&mut self) {
        self.regions.retain(|region| region.key != SHARED_KEY);
    }

    /// The bytes behind pieces of memory.
    pub(super) fn gather(&self, pieces: &[LocalSge]) -> Vec<u8> {
        pieces.iter().flat_map(|piece| self.slice(piece.addr, piece.length)).copied().collect()
    }

    /// The bytes of a piece of a packet, whose key must open them at this moment.
    pub(super) fn piece(&self, piece: &PayloadPiece) -> &[u8] {
        let (key, qpn, access) = match piece.key {
            MemoryKey::Local { lkey } => (lkey, None, 0),
            MemoryKey::Remote { qpn, rkey } => (rkey, Some(qpn), REMOTE_READ),
        };
        let checked = self.check(key, qpn, piece.addr, u64::from(piece.length), access);
        assert_eq!(checked, Ok(()), "{piece:?} is sent and no key opens it");
        self.slice(piece.addr, piece.length)
    }

    fn slice(&self, addr: u64, length: u32) -> &[u8] {
        let start = (addr - BASE) as usize;
        &self.bytes[start..start + length as usize]
    }

    fn check(
        &self,
        key: u32,
        qpn: Option<Qpn>,
        addr: u64,
        length: u64,
        access: u32,
    ) -> Result<(), AccessError> {
        let end = addr.checked_add(length).ok_or(AccessError)?;
        let opens = |region: &FuzzRegion| {
            region.key == key
                && region.range.start <= addr
                && end <= region.range.end
                && region.access & access == access
                && (region.window_of.is_none() || region.window_of == qpn)
        };
        self.regions.iter().any(opens).then_some(()).ok_or(AccessError)
    }

    /// Only a request that has not completed yet may put something somewhere, and only where it
    /// said. A message begins in the newest receive and stays in it.
    fn want(&mut self, addr: u64, length: u64) {
        let end = addr + length;
        let wants =
            |sink: &LocalSge| sink.addr <= addr && end <= sink.addr + u64::from(sink.length);
        if self.sends.iter().flat_map(|posted| &posted.sinks).any(wants) {
            return;
        }
        let receive = self.next_receive().map(|at| &self.receives[at]);
        let receive = receive.filter(|posted| posted.sinks.iter().any(wants));
        assert!(
            receive.is_some(),
            "{length} bytes at {addr:#x} are written, and no request wants them"
        );
        self.begun = receive.map(|posted| posted.wr_id);
    }

    /// The receive whose turn it is.
    fn next_receive(&self) -> Option<usize> {
        let begun = |wr_id| self.receives.iter().rposition(|posted| posted.wr_id == wr_id);
        self.begun.map_or_else(|| self.receives.len().checked_sub(1), begun)
    }

    /// Takes a completed request from its queue: each completes once and when it is its turn. Of
    /// the send queue none that had to is left out.
    pub(super) fn complete(&mut self, completion: &WorkCompletion) -> Posted {
        if matches!(completion.work, CompletedWork::Receive | CompletedWork::ReceiveWriteImmediate)
        {
            let posted = self.next_receive().map(|at| self.receives.remove(at));
            self.begun = None;
            let posted = posted.unwrap_or_else(|| panic!("no request waits for {completion:?}"));
            assert_eq!(completion.wr_id, posted.wr_id, "it is the turn of a different receive");
            return posted;
        }
        loop {
            let posted = self.sends.pop_front();
            let posted = posted.unwrap_or_else(|| panic!("no request waits for {completion:?}"));
            if posted.wr_id == completion.wr_id {
                assert!(posted.signaled || completion.status != WorkStatus::Success);
                return posted;
            }
            assert!(!posted.signaled, "{completion:?} comes before request {}", posted.wr_id);
        }
    }
}

impl Memory for Modelled {
    fn check_local(
        &self,
        lkey: u32,
        addr: u64,
        length: u32,
        access: LocalAccess,
    ) -> Result<(), AccessError> {
        assert_ne!(length, 0, "no check for no bytes");
        let access = if access == LocalAccess::Write { LOCAL_WRITE } else { 0 };
        self.check(lkey, None, addr, u64::from(length), access)
    }

    fn check_remote(
        &self,
        qpn: Qpn,
        rkey: u32,
        addr: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), AccessError> {
        assert_ne!(length, 0, "no check for no bytes");
        let access = if access == RemoteAccess::Write { REMOTE_WRITE } else { REMOTE_READ };
        self.check(rkey, Some(qpn), addr, u64::from(length), access)
    }

    fn place(&mut self, key: MemoryKey, addr: u64, payload: &[u8]) -> Result<(), AccessError> {
        let length = payload.len() as u64;
        assert_ne!(length, 0, "no placement of no bytes");
        match key {
            MemoryKey::Local { lkey } => {
                self.check(lkey, None, addr, length, LOCAL_WRITE)?;
                self.want(addr, length);
            }
            MemoryKey::Remote { qpn, rkey } => {
                self.check(rkey, Some(qpn), addr, length, REMOTE_WRITE)?;
            }
        }
        let start = (addr - BASE) as usize;
        self.bytes[start..start + payload.len()].copy_from_slice(payload);
        Ok(())
    }

    fn bind(&mut self, qpn: Qpn, bind: &BindWindow) -> Result<(), AccessError> {
        self.check(bind.region as u32, None, bind.addr, bind.length, bind.access)?;
        if self.regions.iter().any(|region| region.key == bind.rkey) {
            return Err(AccessError);
        }
        self.regions.push(FuzzRegion {
            key: bind.rkey,
            range: bind.addr..bind.addr + bind.length,
            access: bind.access,
            window_of: Some(qpn),
        });
        Ok(())
    }

    fn invalidate(&mut self, qpn: Qpn, rkey: u32) -> Result<(), AccessError> {
        let is_window = |region: &FuzzRegion| region.key == rkey && region.window_of == Some(qpn);
        let window = self.regions.iter().position(is_window).ok_or(AccessError)?;
        self.regions.remove(window);
        Ok(())
    }
}
