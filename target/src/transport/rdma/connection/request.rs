//! Requests: commands of a connection, from their arrival until their response was sent.

use std::mem;

use ::rdma::Time;
use nvme_proto::Cid;

use super::data::{HostData, KeyedMemory, LocalData, OutgoingData, ResponseData, StorageStep};
use crate::controller::command_trace::{CommandTimes, TracePoint};
use crate::controller::{
    AbortRequest, CommandHold, CommandOutcome, CommandWork, ControlWork, IoWork,
};
use crate::core_context::SlotId;
use crate::core_context::pool::Buffer;
use crate::core_context::throttle::WaitKey;
use crate::deliberate_bugs::{self, Bug};
use crate::storage::OperationKey;

/// Index of a receive buffer of a connection, and of the capsule in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receive(pub(crate) u32);

/// Right and duty to complete the command in a slot. There is one for each command: whoever has it
/// passes it on, completes the command with it, or abandons the command because the connection
/// ends.
#[derive(Debug)]
#[must_use = "a command is completed once"]
pub(crate) struct CompletionPermit {
    slot: SlotId,
    cid: Cid,
}

impl CompletionPermit {
    pub(crate) fn slot(&self) -> SlotId {
        self.slot
    }

    pub(crate) fn cid(&self) -> Cid {
        self.cid
    }

    /// Gives up the completion of a command, since its connection has ended.
    pub(crate) fn abandon(self) {
        mem::forget(self);
    }
}

#[cfg(debug_assertions)]
impl Drop for CompletionPermit {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "a command was never completed");
    }
}

/// Stage of a request, with what it owns there.
#[derive(Debug)]
pub(crate) enum RequestStage {
    /// The slot has no request.
    Free,
    /// A call of the connection continues the request, and has its permit and its data.
    InCall,
    /// The command waits for a quota.
    AwaitingQuota(ThrottledCommand),
    /// The request waits for a buffer.
    AwaitingBuffer { permit: CompletionPermit, work: CommandWork, host: HostData },
    /// The request has a buffer and waits to fetch its data from the host.
    AwaitingFetch(DataFetch),
    /// An RDMA READ fetches its data from the host.
    Fetching(DataFetch),
    /// Storage executes an operation of the command.
    Executing(StorageRun),
    /// The controller completes it later (for example an Asynchronous Event Request).
    Parked { permit: CompletionPermit, work: ControlWork },
    /// The controller executes it again later, with its data.
    Postponed(PostponedCommand),
    /// Ended; the response waits for the end of the turn or for room in the send queue.
    AwaitingResponse(DueResponse),
    /// The response is in the send queue; the host may reuse the CID.
    Responding(SentResponse),
    /// The connection has ended, and storage still uses the memory of the operation.
    Orphaned { work: IoWork, step: StorageStep },
}

/// Owner of a quota that a command passes, in the order of passing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuotaOwner {
    Host,
    Namespace,
}

/// I/O command that waits for a quota, and has no buffer yet.
#[derive(Debug)]
pub(crate) struct ThrottledCommand {
    pub(crate) permit: CompletionPermit,
    pub(crate) work: IoWork,
    pub(crate) host: HostData,
    pub(crate) quota: QuotaOwner,
    /// Place among the waiting commands of the core.
    pub(crate) waits_as: WaitKey,
}

/// Command whose data is fetched from the host.
#[derive(Debug)]
pub(crate) struct DataFetch {
    pub(crate) permit: CompletionPermit,
    pub(crate) work: CommandWork,
    pub(crate) buffer: Buffer,
    pub(crate) from: KeyedMemory,
}

/// I/O command that storage executes.
#[derive(Debug)]
pub(crate) struct StorageRun {
    pub(crate) permit: CompletionPermit,
    pub(crate) work: IoWork,
    pub(crate) step: StorageStep,
    pub(crate) operation: OperationKey,
    /// Abort request for it that has no response yet.
    pub(crate) abort: Option<AbortRequest>,
}

/// Command that the controller executes again later.
#[derive(Debug)]
pub(crate) struct PostponedCommand {
    pub(crate) permit: CompletionPermit,
    pub(crate) work: ControlWork,
    pub(crate) data: LocalData,
}

/// Response that is not in the send queue yet.
#[derive(Debug)]
pub(crate) struct DueResponse {
    outcome: CommandOutcome,
    pub(crate) data: ResponseData,
}

impl DueResponse {
    /// Send queue entries that it needs: 2 with data, otherwise 1.
    pub(crate) fn send_entries(&self) -> u32 {
        send_entries(self.data.sent_bytes())
    }
}

/// Send queue entries of a response with this many bytes of data.
fn send_entries(bytes: u32) -> u32 {
    1 + u32::from(bytes > 0) + u32::from(deliberate_bugs::has(Bug::CompleteTwice))
}

/// Response that is in the send queue, and what its end returns.
#[derive(Debug)]
#[must_use]
pub(crate) struct SentResponse {
    pub(crate) buffer: Option<Buffer>,
    /// Number of send queue entries that it took.
    pub(crate) send_entries: u32,
    /// Bytes of data that precede it.
    pub(crate) bytes: u32,
}

/// Content of the response capsule of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseContent {
    pub(crate) cid: Cid,
    pub(crate) outcome: CommandOutcome,
    /// Remote key (rkey) that the response invalidates, as the host requested.
    pub(crate) invalidate: Option<u32>,
}

impl RequestStage {
    /// Takes the stage out, for the call that continues the request.
    pub(crate) fn take(&mut self) -> Self {
        mem::replace(self, Self::InCall)
    }

    /// Gives up the request and returns its buffer, if it has one.
    fn abandon(self) -> Option<Buffer> {
        match self {
            Self::Free | Self::InCall => None,
            Self::AwaitingBuffer { permit, .. } | Self::Parked { permit, .. } => {
                permit.abandon();
                None
            }
            Self::AwaitingQuota(throttled) => {
                throttled.permit.abandon();
                None
            }
            Self::AwaitingFetch(fetch) | Self::Fetching(fetch) => {
                fetch.permit.abandon();
                Some(fetch.buffer)
            }
            Self::Executing(StorageRun { permit, step, .. }) => {
                permit.abandon();
                step.into_buffer()
            }
            Self::Postponed(PostponedCommand { permit, data, .. }) => {
                permit.abandon();
                data.into_buffer()
            }
            Self::AwaitingResponse(response) => response.data.into_buffer(),
            Self::Responding(response) => response.buffer,
            Self::Orphaned { step, .. } => step.into_buffer(),
        }
    }
}

/// A request slot, and the command in it.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) stage: RequestStage,
    cid: Cid,
    pub(crate) times: CommandTimes,
    /// Receive of its capsule. It is posted again with the response, so a connection never has more
    /// commands than receives.
    pub(crate) receive: Receive,
    /// Remote key (rkey) that the response invalidates, as the host requested.
    pub(crate) invalidate: Option<u32>,
    /// Holds that are dropped when it ends; something waits for that.
    pub(crate) holds: Vec<CommandHold>,
}

impl Request {
    /// Content of a free slot that was never used.
    fn none() -> Self {
        Self {
            stage: RequestStage::Free,
            cid: Cid(0),
            times: CommandTimes::default(),
            receive: Receive(0),
            invalidate: None,
            holds: Vec::new(),
        }
    }

    /// I/O command that has not ended, unless its connection has.
    pub(crate) fn running_io(&self) -> Option<IoWork> {
        match &self.stage {
            RequestStage::AwaitingBuffer { work: CommandWork::Io(work), .. }
            | RequestStage::AwaitingFetch(DataFetch { work: CommandWork::Io(work), .. })
            | RequestStage::Fetching(DataFetch { work: CommandWork::Io(work), .. })
            | RequestStage::AwaitingQuota(ThrottledCommand { work, .. })
            | RequestStage::Executing(StorageRun { work, .. }) => Some(*work),
            _ => None,
        }
    }

    /// Whether it is an Asynchronous Event Request without an event.
    pub(crate) fn awaits_event(&self) -> bool {
        matches!(&self.stage, RequestStage::Parked { work, .. } if work.is_event_request())
    }

    /// Starts to fetch its data; `None` if it does not wait for that.
    pub(crate) fn begin_fetch(&mut self) -> Option<&DataFetch> {
        self.stage = match self.stage.take() {
            RequestStage::AwaitingFetch(fetch) => RequestStage::Fetching(fetch),
            other => other,
        };
        match &self.stage {
            RequestStage::Fetching(fetch) => Some(fetch),
            _ => None,
        }
    }

    /// Takes out the command whose data was fetched.
    pub(crate) fn take_fetch(&mut self) -> Option<DataFetch> {
        match self.stage.take() {
            RequestStage::Fetching(fetch) => Some(fetch),
            other => self.keep(other),
        }
    }

    /// Takes out the command that has passed a quota.
    pub(crate) fn take_throttled(&mut self) -> Option<ThrottledCommand> {
        match self.stage.take() {
            RequestStage::AwaitingQuota(throttled) => Some(throttled),
            other => self.keep(other),
        }
    }

    /// Takes out the command that got a buffer.
    pub(crate) fn take_waiting(&mut self) -> Option<(CompletionPermit, CommandWork, HostData)> {
        match self.stage.take() {
            RequestStage::AwaitingBuffer { permit, work, host } => Some((permit, work, host)),
            other => self.keep(other),
        }
    }

    /// Takes out the command whose operation has ended.
    pub(crate) fn take_run(&mut self) -> Option<StorageRun> {
        match self.stage.take() {
            RequestStage::Executing(run) => Some(run),
            other => self.keep(other),
        }
    }

    /// Takes out the command that the controller completes.
    pub(crate) fn take_parked(&mut self) -> Option<CompletionPermit> {
        match self.stage.take() {
            RequestStage::Parked { permit, .. } => Some(permit),
            other => self.keep(other),
        }
    }

    /// Takes out the command that the controller executes again.
    pub(crate) fn take_postponed(&mut self) -> Option<PostponedCommand> {
        match self.stage.take() {
            RequestStage::Postponed(postponed) => Some(postponed),
            other => self.keep(other),
        }
    }

    /// Takes out the command of an ended connection whose operation has ended.
    pub(crate) fn take_orphan(&mut self) -> Option<(IoWork, StorageStep)> {
        match self.stage.take() {
            RequestStage::Orphaned { work, step } => Some((work, step)),
            other => self.keep(other),
        }
    }

    pub(crate) fn due_response(&self) -> Option<&DueResponse> {
        match &self.stage {
            RequestStage::AwaitingResponse(response) => Some(response),
            _ => None,
        }
    }

    fn keep<T>(&mut self, stage: RequestStage) -> Option<T> {
        self.stage = stage;
        None
    }

    /// Marks that the response is sent; `None` if none is due.
    #[inline]
    fn send(&mut self) -> Option<ResponseContent> {
        let RequestStage::AwaitingResponse(due) = &mut self.stage else { return None };
        let outcome = due.outcome;
        let (buffer, bytes) = match mem::take(&mut due.data) {
            ResponseData::None(buffer) => (buffer, 0),
            ResponseData::Buffer(OutgoingData { buffer, to }) => (Some(buffer), to.length),
            ResponseData::Zeros(to) => (None, to.length),
        };
        let send_entries = send_entries(bytes);
        self.stage = RequestStage::Responding(SentResponse { buffer, send_entries, bytes });
        Some(ResponseContent { cid: self.cid, outcome, invalidate: self.invalidate })
    }
}

/// A slot without a request, taken for the next command.
#[derive(Debug)]
#[must_use]
pub(crate) struct FreeSlot(SlotId);

/// Request slots of a connection: a few until Connect succeeds, then the full number.
#[derive(Debug)]
pub(crate) struct Slots {
    requests: Vec<Request>,
    /// Number of slots after [`Slots::grow`].
    all: u32,
    free: Vec<SlotId>,
    unanswered: Unanswered,
}

/// Hash table from CIDs of unanswered commands to slots, with a chain of slots for each remainder
/// of a CID by the table size.
#[derive(Debug)]
struct Unanswered {
    /// First slot of each chain, or `NONE`.
    chains: Box<[u32]>,
    links: Box<[UnansweredLink]>,
}

/// Place of a slot in its chain.
#[derive(Clone, Copy, Debug)]
struct UnansweredLink {
    /// Next slot in the chain, or `NONE`.
    following: u32,
    /// CID of the slot's command, if it is in a chain.
    cid: Cid,
}

impl Unanswered {
    const NONE: u32 = u32::MAX;

    fn new(slots: u32) -> Self {
        let slots = slots as usize;
        // Hosts number their commands from 0, so that chains are short.
        let chains = vec![Self::NONE; slots.next_power_of_two()].into();
        let link = UnansweredLink { following: Self::NONE, cid: Cid(0) };
        Self { chains, links: vec![link; slots].into() }
    }

    fn find(&self, cid: Cid) -> Option<SlotId> {
        let mut slot = self.chains[self.chain(cid)];
        while slot != Self::NONE && self.links[slot as usize].cid != cid {
            slot = self.links[slot as usize].following;
        }
        (slot != Self::NONE).then_some(SlotId(slot))
    }

    #[inline]
    fn add(&mut self, slot: SlotId, cid: Cid) {
        self.links[slot.0 as usize].cid = cid;
        let chain = self.chain(cid);
        match self.chains[chain] {
            Self::NONE => self.chains[chain] = slot.0,
            // Appended, so that `find` returns the oldest of several commands with the same CID.
            first => {
                let last = self.before(first, Self::NONE);
                self.links[last as usize].following = slot.0;
            }
        }
    }

    /// Removes a slot from its chain, if it is there.
    #[inline]
    fn remove(&mut self, slot: SlotId) {
        let UnansweredLink { following, cid } = self.links[slot.0 as usize];
        let chain = self.chain(cid);
        match self.chains[chain] {
            Self::NONE => return,
            first if first == slot.0 => self.chains[chain] = following,
            first => match self.before(first, slot.0) {
                last if self.links[last as usize].following == Self::NONE => return,
                before => self.links[before as usize].following = following,
            },
        }
        self.links[slot.0 as usize].following = Self::NONE;
    }

    fn chain(&self, cid: Cid) -> usize {
        usize::from(cid.0) & (self.chains.len() - 1)
    }

    /// Follows a chain from its slot `at`, and returns the slot before `slot`, or the last one.
    #[cold]
    fn before(&self, mut at: u32, slot: u32) -> u32 {
        while self.links[at as usize].following != slot
            && self.links[at as usize].following != Self::NONE
        {
            at = self.links[at as usize].following;
        }
        at
    }
}

impl Slots {
    /// Creates the first `first` of `all` slots; [`Slots::grow`] creates the others.
    pub(crate) fn new(first: u32, all: u32) -> Self {
        let mut free = Vec::with_capacity(all as usize);
        free.extend((0..first).rev().map(SlotId));
        let requests = (0..first).map(|_| Request::none()).collect();
        Self { requests, all, free, unanswered: Unanswered::new(all) }
    }

    /// Creates the remaining slots. Returns their number.
    pub(crate) fn grow(&mut self) -> usize {
        let first = self.requests.len();
        self.requests.reserve_exact(self.all as usize - first);
        self.requests.resize_with(self.all as usize, Request::none);
        // Existing slots are still the first to be used.
        let used_first = mem::take(&mut self.free);
        self.free.reserve_exact(self.all as usize);
        self.free.extend((first as u32..self.all).rev().map(SlotId));
        self.free.extend(used_first);
        self.requests.len() - first
    }

    pub(crate) fn count(&self) -> usize {
        self.requests.len()
    }

    /// Takes a free slot, if there is one.
    pub(crate) fn take_free(&mut self) -> Option<FreeSlot> {
        self.free.pop().map(FreeSlot)
    }

    /// Starts a command in a free slot.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        FreeSlot(slot): FreeSlot,
        cid: Cid,
        receive: Receive,
        now: Time,
    ) -> CompletionPermit {
        self.unanswered.add(slot, cid);
        let request = &mut self.requests[slot.0 as usize];
        debug_assert!(matches!(request.stage, RequestStage::Free) && request.holds.is_empty());
        request.stage = RequestStage::InCall;
        request.cid = cid;
        request.times.reach(TracePoint::Arrived, now);
        request.receive = receive;
        request.invalidate = None;
        CompletionPermit { slot, cid }
    }

    /// Returns the request in a slot, which must be in use.
    pub(crate) fn get(&mut self, slot: SlotId) -> &mut Request {
        let request = &mut self.requests[slot.0 as usize];
        debug_assert!(!matches!(request.stage, RequestStage::Free));
        request
    }

    /// Completes a command: its response is due. Returns its slot.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        permit: CompletionPermit,
        outcome: CommandOutcome,
        data: ResponseData,
    ) -> SlotId {
        let slot = permit.slot;
        let request = self.get(slot);
        debug_assert!(matches!(request.stage, RequestStage::InCall));
        request.stage = RequestStage::AwaitingResponse(DueResponse { outcome, data });
        request.holds.clear();
        mem::forget(permit);
        slot
    }

    /// Marks that the response of a request is sent, so that its CID may be reused; `None` if none
    /// is due.
    #[inline]
    pub(crate) fn send(&mut self, slot: SlotId) -> Option<ResponseContent> {
        let content = self.get(slot).send()?;
        self.unanswered.remove(slot);
        Some(content)
    }

    /// Ends a request whose response was sent, and frees its slot; `None` if it was not.
    #[inline]
    pub(crate) fn end(&mut self, slot: SlotId) -> Option<SentResponse> {
        let request = &mut self.requests[slot.0 as usize];
        let RequestStage::Responding(sent) = &mut request.stage else { return None };
        let SentResponse { buffer, send_entries, bytes } = sent;
        let sent =
            SentResponse { buffer: buffer.take(), send_entries: *send_entries, bytes: *bytes };
        request.stage = RequestStage::Free;
        self.free.push(slot);
        Some(sent)
    }

    /// Frees a slot whose command gets no response, and returns its buffer, if it has one.
    pub(crate) fn abandon(&mut self, slot: SlotId) -> Option<Buffer> {
        let stage = mem::replace(&mut self.get(slot).stage, RequestStage::Free);
        self.unanswered.remove(slot);
        self.free.push(slot);
        stage.abandon()
    }

    /// Returns the slot of the oldest unanswered command with this CID.
    #[inline]
    pub(crate) fn find(&self, cid: Cid) -> Option<SlotId> {
        self.unanswered.find(cid)
    }

    /// Gives up all requests, when the transport is dropped.
    pub(crate) fn abandon_all(&mut self) {
        for request in &mut self.requests {
            // The pool is dropped with the connection.
            let _ = request.stage.take().abandon();
        }
    }

    /// Whether all requests (slots in use) are kept open by the controller.
    pub(crate) fn are_parked(&self) -> bool {
        let rests = |request: &Request| {
            matches!(
                request.stage,
                RequestStage::Free | RequestStage::Parked { .. } | RequestStage::Postponed(_)
            )
        };
        self.requests.iter().all(rests)
    }

    pub(crate) fn in_use(&self) -> Vec<SlotId> {
        (0..self.requests.len())
            .filter(|&index| !matches!(self.requests[index].stage, RequestStage::Free))
            .map(|index| SlotId(index as u32))
            .collect()
    }
}

#[cfg(test)]
mod tests;
