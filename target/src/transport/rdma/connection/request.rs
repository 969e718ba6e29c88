//! Requests: commands of a connection, from their arrival until their response was sent.

use std::mem;

use ::rdma::Time;
use nvme_proto::Cid;

use crate::controller::{
    AbortRequest, CommandHold, CommandOutcome, CommandTimes, CommandWork, TransferDirection,
};
use crate::core_context::pool::Buffer;
use crate::storage::OperationKey;

/// Index of a request slot in [`Slots`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId(pub(crate) u32);

/// Index of a receive buffer of a connection, and of the capsule in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receive(pub(crate) u32);

/// State of a request slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestState {
    /// The slot has no request.
    Free,
    /// The capsule has arrived and is parsed; the request continues in the same call.
    Arrived,
    /// The request waits for a buffer.
    AwaitingBuffer,
    /// The request has a buffer and waits to fetch its data from the host.
    AwaitingFetch,
    /// An RDMA READ fetches its data from the host.
    Fetching,
    /// Storage or the controller executes the command.
    Executing,
    /// The controller completes it later (for example an Asynchronous Event Request).
    Parked,
    /// Ended; the response waits for the end of the turn or for room in the send queue.
    AwaitingResponse,
    /// The response is in the send queue; the host may reuse the CID.
    Responding,
}

/// Location of a command's data on the side of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostData {
    /// The command moves no data.
    None,
    /// The data is in the command's capsule.
    InCapsule {
        /// Offset into the in-capsule data, in bytes.
        offset: u32,
    },
    /// The data is in the host's memory.
    Keyed {
        /// Virtual address in the host's memory.
        address: u64,
        /// Remote key (rkey) of the host's memory.
        key: u32,
    },
}

/// Progress of the flush that precedes a Read or Compare with Force Unit Access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commit {
    /// The flush has not begun.
    Due,
    /// The flush is in progress.
    Flushing,
    /// The flush has ended: the command may read.
    Done,
}

/// A running command, which must get exactly one completion.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) state: RequestState,
    pub(crate) cid: Cid,
    pub(crate) times: CommandTimes,
    /// Receive of its capsule. It is posted again with the response, so a connection never has more
    /// commands than receives.
    pub(crate) receive: Receive,
    /// Whether its completion must still be sent, since the connection is live.
    owed: bool,
    /// Work of the command; `None` if parsing refused it.
    pub(crate) work: Option<CommandWork>,
    pub(crate) host: HostData,
    pub(crate) direction: Option<TransferDirection>,
    /// Bytes of data to move between host and buffer.
    pub(crate) length: u32,
    /// Remote key (rkey) that the response invalidates, as the host requested.
    pub(crate) invalidate: Option<u32>,
    pub(crate) buffer: Option<Buffer>,
    /// Running storage operation of the request.
    pub(crate) operation: Option<OperationKey>,
    /// Number of ranges of a Deallocate that were started or are empty.
    pub(crate) ranges_passed: usize,
    /// Progress of a Read or Compare with Force Unit Access.
    pub(crate) commit: Commit,
    /// Abort request for it that has no response yet.
    pub(crate) abort: Option<AbortRequest>,
    /// Holds that are dropped when it ends; something waits for that.
    pub(crate) holds: Vec<CommandHold>,
    pub(crate) outcome: CommandOutcome,
    /// Send queue entries that its response needs: 2 with data, otherwise 1.
    pub(crate) send_entries: u32,
}

impl Request {
    /// Content of a free slot that was never used.
    fn none() -> Self {
        Self {
            state: RequestState::Free,
            cid: Cid(0),
            times: CommandTimes::default(),
            receive: Receive(0),
            owed: false,
            work: None,
            host: HostData::None,
            direction: None,
            length: 0,
            invalidate: None,
            buffer: None,
            operation: None,
            ranges_passed: 0,
            commit: Commit::Due,
            abort: None,
            holds: Vec::new(),
            outcome: CommandOutcome::SUCCESS,
            send_entries: 0,
        }
    }

    /// Starts a command in a free slot, and resets the fields that its previous command left.
    fn begin(&mut self, cid: Cid, receive: Receive, now: Time) {
        debug_assert_eq!(self.state, RequestState::Free);
        debug_assert!(self.buffer.is_none() && self.operation.is_none() && self.abort.is_none());
        self.state = RequestState::Arrived;
        self.cid = cid;
        self.times.arrived = now;
        self.receive = receive;
        self.owed = true;
        self.work = None;
        self.host = HostData::None;
        self.direction = None;
        self.length = 0;
        self.invalidate = None;
        self.ranges_passed = 0;
        self.commit = Commit::Due;
        self.outcome = CommandOutcome::SUCCESS;
    }

    /// Marks that the completion was posted.
    fn answer(&mut self) {
        debug_assert_ne!(self.state, RequestState::Responding);
        debug_assert!(self.owed, "a command is completed once");
        self.state = RequestState::Responding;
        self.owed = false;
    }

    /// Marks that a request needs no completion, since its connection has ended.
    pub(crate) fn abandon(&mut self) {
        self.owed = false;
    }

    /// Whether it can change the bytes that a later read returns.
    pub(crate) fn changes_medium(&self) -> bool {
        matches!(self.work, Some(CommandWork::Io(work)) if work.kind.changes_medium())
    }

    /// Whether it sends data to the host, which only a successful command does.
    pub(crate) fn sends_data(&self) -> bool {
        self.direction == Some(TransferDirection::ControllerToHost)
            && self.outcome.status.is_success()
    }
}

/// Resources that a request returns at its end.
#[derive(Debug)]
#[must_use]
pub(crate) struct RequestResources {
    pub(crate) buffer: Option<Buffer>,
    /// Number of send queue entries that its response took.
    pub(crate) send_entries: u32,
}

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
    /// Next slot in the chain of each slot, or `NONE`.
    following: Box<[u32]>,
    /// CID of each slot that is in a chain.
    cids: Box<[Cid]>,
}

impl Unanswered {
    const NONE: u32 = u32::MAX;

    fn new(slots: u32) -> Self {
        let slots = slots as usize;
        // Hosts number their commands from 0, so that chains are short.
        let chains = vec![Self::NONE; slots.next_power_of_two()].into();
        Self { chains, following: vec![Self::NONE; slots].into(), cids: vec![Cid(0); slots].into() }
    }

    fn find(&self, cid: Cid) -> Option<SlotId> {
        let mut slot = self.chains[self.chain(cid)];
        while slot != Self::NONE && self.cids[slot as usize] != cid {
            slot = self.following[slot as usize];
        }
        (slot != Self::NONE).then_some(SlotId(slot))
    }

    fn add(&mut self, slot: SlotId, cid: Cid) {
        self.cids[slot.0 as usize] = cid;
        // Appended, so that `find` returns the oldest of several commands with the same CID.
        let (last, _) = self.seek(cid, Self::NONE);
        self.link(cid, last, slot.0);
    }

    /// Removes a slot from its chain, if it is there.
    fn remove(&mut self, slot: SlotId) {
        let cid = self.cids[slot.0 as usize];
        let (before, found) = self.seek(cid, slot.0);
        if found == slot.0 {
            let following = mem::replace(&mut self.following[found as usize], Self::NONE);
            self.link(cid, before, following);
        }
    }

    fn chain(&self, cid: Cid) -> usize {
        usize::from(cid.0) & (self.chains.len() - 1)
    }

    /// Follows the chain of a CID to a slot or to its end. Returns the slot before that position
    /// and the slot there, each `NONE` if absent.
    fn seek(&self, cid: Cid, slot: u32) -> (u32, u32) {
        let (mut before, mut at) = (Self::NONE, self.chains[self.chain(cid)]);
        while at != slot && at != Self::NONE {
            (before, at) = (at, self.following[at as usize]);
        }
        (before, at)
    }

    /// Sets the slot that follows `before`, or the first one of the chain if `before` is `NONE`.
    fn link(&mut self, cid: Cid, before: u32, following: u32) {
        match before {
            Self::NONE => self.chains[self.chain(cid)] = following,
            slot => self.following[slot as usize] = following,
        }
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
        let used_first = std::mem::take(&mut self.free);
        self.free.reserve_exact(self.all as usize);
        self.free.extend((first as u32..self.all).rev().map(SlotId));
        self.free.extend(used_first);
        self.requests.len() - first
    }

    pub(crate) fn count(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Starts a request in a free slot; there must be one.
    pub(crate) fn begin(&mut self, cid: Cid, receive: Receive, now: Time) -> SlotId {
        let slot = self.free.pop().expect("the caller saw room");
        self.unanswered.add(slot, cid);
        self.requests[slot.0 as usize].begin(cid, receive, now);
        slot
    }

    /// Returns the request in a slot, which must be in use.
    pub(crate) fn get(&mut self, slot: SlotId) -> &mut Request {
        let request = &mut self.requests[slot.0 as usize];
        debug_assert_ne!(request.state, RequestState::Free);
        request
    }

    /// Marks a request whose response is being sent, so that its CID may be reused.
    pub(crate) fn answer(&mut self, slot: SlotId) {
        self.get(slot).answer();
        self.unanswered.remove(slot);
    }

    /// Ends a request whose completion was sent or that was abandoned, and frees its slot.
    pub(crate) fn end(&mut self, slot: SlotId) -> RequestResources {
        let request = self.get(slot);
        debug_assert!(!request.owed, "a command was never completed");
        // An abandoned request still has its CID.
        let answered = request.state == RequestState::Responding;
        request.state = RequestState::Free;
        let resources =
            RequestResources { buffer: request.buffer.take(), send_entries: request.send_entries };
        if !answered {
            (request.operation, request.abort) = (None, None);
            self.unanswered.remove(slot);
        }
        self.free.push(slot);
        resources
    }

    /// Returns the slot of the oldest unanswered command with this CID.
    pub(crate) fn find(&self, cid: Cid) -> Option<SlotId> {
        self.unanswered.find(cid)
    }

    /// Marks all requests as abandoned, when the connection ends without their completions.
    pub(crate) fn abandon_all(&mut self) {
        self.requests.iter_mut().for_each(Request::abandon);
    }

    /// Whether all requests (slots in use) are in this state.
    pub(crate) fn all(&self, state: RequestState) -> bool {
        let states = self.requests.iter().map(|request| request.state);
        states.filter(|other| *other != RequestState::Free).all(|other| other == state)
    }

    /// Returns all slots in use.
    pub(crate) fn in_use(&self) -> Vec<SlotId> {
        (0..self.requests.len())
            .filter(|&index| self.requests[index].state != RequestState::Free)
            .map(|index| SlotId(index as u32))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_id_is_found_until_its_response_is_posted() {
        let mut slots = Slots::new(2, 2);
        let slot = slots.begin(Cid(0xFFFF), Receive(0), Time::ZERO);
        assert_eq!(slots.find(Cid(0xFFFF)), Some(slot));
        assert_eq!(slots.find(Cid(0)), None);
        slots.answer(slot);
        assert_eq!(slots.find(Cid(0xFFFF)), None);
        let other = slots.begin(Cid(0xFFFF), Receive(1), Time::ZERO);
        assert!(!slots.has_room());
        assert_eq!(slots.find(Cid(0xFFFF)), Some(other));
        let _ = slots.end(slot);
        slots.get(other).abandon();
        let _ = slots.end(other);
        assert!(slots.in_use().is_empty());
    }

    #[test]
    fn ids_of_one_chain_are_distinguished() {
        let mut unanswered = Unanswered::new(4);
        let cids = [0, 4, 8, 4].map(Cid);
        for (slot, cid) in (0..).map(SlotId).zip(cids) {
            unanswered.add(slot, cid);
        }
        assert_eq!(
            cids.map(|cid| unanswered.find(cid)),
            [0, 1, 2, 1].map(|slot| Some(SlotId(slot)))
        );
        unanswered.remove(SlotId(1));
        unanswered.remove(SlotId(1));
        assert_eq!(
            cids.map(|cid| unanswered.find(cid)),
            [0, 3, 2, 3].map(|slot| Some(SlotId(slot)))
        );
        for slot in [0, 3, 2].map(SlotId) {
            unanswered.remove(slot);
        }
        assert_eq!(cids.map(|cid| unanswered.find(cid)), [None; 4]);
        unanswered.add(SlotId(3), Cid(12));
        assert_eq!(unanswered.find(Cid(12)), Some(SlotId(3)));
    }

    #[test]
    #[should_panic(expected = "never completed")]
    #[cfg(debug_assertions)]
    fn a_command_can_not_be_forgotten() {
        let mut slots = Slots::new(1, 1);
        let slot = slots.begin(Cid(1), Receive(0), Time::ZERO);
        let _ = slots.end(slot);
    }

    #[test]
    #[should_panic(expected = "completed once")]
    #[cfg(debug_assertions)]
    fn a_command_can_not_be_completed_twice() {
        let mut slots = Slots::new(1, 1);
        let slot = slots.begin(Cid(1), Receive(0), Time::ZERO);
        slots.answer(slot);
        slots.get(slot).state = RequestState::Executing;
        slots.answer(slot);
    }

    proptest! {
        /// Any sequence of arrivals, answers and ends, compared with a list of the CIDs in use.
        #[test]
        fn a_slot_is_one_commands_from_its_arrival_to_its_end(
            steps in prop::collection::vec((0..3, 0u16..6, any::<prop::sample::Index>()), 1..200)
        ) {
            const COUNT: usize = 8;
            let mut slots = Slots::new(2, COUNT as u32);
            let mut live: Vec<(SlotId, u16, bool)> = Vec::new();
            let mut count = 2;
            for (step, (what, cid, index)) in steps.into_iter().enumerate() {
                if step == 20 {
                    count += slots.grow();
                    prop_assert_eq!(count, COUNT);
                }
                let unanswered = live.iter().any(|(_, other, answered)| *other == cid && !answered);
                match what {
                    0 if live.len() < count && !unanswered => {
                        let slot = slots.begin(Cid(cid), Receive(0), Time::ZERO);
                        prop_assert!(live.iter().all(|(other, ..)| *other != slot), "used twice");
                        live.push((slot, cid, false));
                    }
                    1 if !live.is_empty() => {
                        let index = index.index(live.len());
                        let (slot, _, answered) = &mut live[index];
                        if !std::mem::replace(answered, true) {
                            slots.answer(*slot);
                        }
                    }
                    2 if !live.is_empty() => {
                        let (slot, cid, answered) = live.swap_remove(index.index(live.len()));
                        if !answered {
                            slots.get(slot).abandon();
                        }
                        prop_assert_eq!(slots.get(slot).cid, Cid(cid));
                        let _ = slots.end(slot);
                    }
                    _ => {}
                }
                prop_assert_eq!(slots.has_room(), live.len() < count);
                prop_assert_eq!(slots.in_use().len(), live.len());
                for cid in 0..6 {
                    let unanswered = live.iter().find(|(_, other, answered)| *other == cid && !answered);
                    prop_assert_eq!(slots.find(Cid(cid)), unanswered.map(|(slot, ..)| *slot));
                }
            }
        }
    }
}
